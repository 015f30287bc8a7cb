//! Replicas that come and go: faults, stragglers, and a number that follows the load.
//!
//! A replica that goes down loses its KV and its requests; those begin again elsewhere, with the
//! tokens that their users have had already as a part of the prompt.

use dunlin_units::Time;
use serde::{Deserialize, Serialize};

use super::coordinator::{Act, Coordinator};
use crate::error::SimError;

/// Something that becomes of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When.
    pub at: Time,
    /// Which replica.
    pub replica: u32,
    /// What.
    pub kind: ChangeKind,
}

/// What becomes of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It goes down, with all that it has.
    Down,
    /// It comes up, with an empty cache.
    Up,
    /// Its steps take this many percent of their price from now on.
    Slow {
        /// 100 is usual.
        percent: u32,
    },
}

/// How many replicas are on: enough for so many requests each, looked at in intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autoscale {
    /// The fewest.
    pub least: u32,
    /// The most; replicas beyond are never on.
    pub most: u32,
    /// Requests, waiting and running, that one replica should have.
    pub requests_per_replica: u32,
    /// Nanoseconds between looks.
    pub interval_ns: u64,
    /// Nanoseconds from the decision to a replica that takes requests.
    pub start_ns: u64,
    /// Looks in a row at which fewer would do, before one is let go.
    pub patience: u32,
}

impl Autoscale {
    pub(super) fn validate(&self, replicas: u32) -> Result<(), SimError> {
        let bad = |setting, problem: String| Err(SimError::Setting { setting, problem });
        if self.least == 0 || self.least > self.most || self.most > replicas {
            let problem = format!(
                "from {} to {} replicas; they go from at least 1 to at most the {replicas} there are",
                self.least, self.most
            );
            return bad("autoscale.least", problem);
        }
        if self.requests_per_replica == 0 || self.interval_ns == 0 {
            return bad("autoscale.interval", "intervals and requests are above zero".into());
        }
        Ok(())
    }
}

/// Where a replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    On,
    Starting,
    /// On, until its requests have ended.
    Draining,
    Off,
}

impl<I> Coordinator<'_, '_, I>
where
    I: Iterator<Item = Result<dunlin_workload::Request, SimError>>,
{
    /// What is to come of the cluster's settings: changes, and the first look of the autoscaler.
    pub(super) fn plan_changes(&mut self) {
        for (number, change) in self.spec.changes.iter().enumerate() {
            self.push(change.at, number as u64, Act::Change(*change));
        }
        if let Some(scale) = self.spec.autoscale {
            for replica in scale.least..self.spec.replicas.len() as u32 {
                self.power[replica as usize] = Power::Off;
                self.workers[replica as usize].accepting = false;
                self.team.with(replica, |r, world| r.close(Time(0), world));
            }
            self.push(Time(scale.interval_ns), 0, Act::Look);
        }
    }

    pub(super) fn change(&mut self, now: Time, change: Change) {
        let replica = change.replica;
        match change.kind {
            ChangeKind::Slow { percent } => {
                self.team.with(replica, |r, _| r.slow_percent = percent.max(1));
            }
            ChangeKind::Up => self.bring_up(now, replica),
            ChangeKind::Down => {
                let index = replica as usize;
                if self.power[index] == Power::Off {
                    return;
                }
                self.power[index] = Power::Off;
                self.workers[index].accepting = false;
                let jobs = self.team.with(replica, |r, world| r.crash(now, world));
                self.metrics.retried += jobs.len() as u64;
                for mut job in jobs {
                    self.forget(replica, job.request.prompt_tokens);
                    job.came = now;
                    self.place(now, job);
                }
            }
        }
    }

    pub(super) fn bring_up(&mut self, now: Time, replica: u32) {
        let index = replica as usize;
        if matches!(self.power[index], Power::On | Power::Draining) {
            return;
        }
        self.power[index] = Power::On;
        self.workers[index].accepting = true;
        self.team.with(replica, |r, world| r.restart(now, world));
        for mut job in std::mem::take(&mut self.stranded) {
            job.came = now;
            self.place(now, job);
        }
    }

    /// The autoscaler looks.
    pub(super) fn look(&mut self, now: Time) {
        let Some(scale) = self.spec.autoscale else { return };
        let requests: u64 = self.workers.iter().map(|w| u64::from(w.requests)).sum();
        let requests = requests + self.stranded.len() as u64;
        let wanted = requests.div_ceil(u64::from(scale.requests_per_replica)) as u32;
        let wanted = wanted.clamp(scale.least, scale.most);
        let count = |power| self.power.iter().filter(|p| **p == power).count() as u32;
        let coming = count(Power::On) + count(Power::Starting);
        let range = 0..scale.most as usize;
        if wanted > coming {
            self.few_looks = 0;
            // Those that drain are there already; then those that are off.
            for _ in coming..wanted {
                let find = |power| range.clone().find(|&r| self.power[r] == power);
                if let Some(r) = find(Power::Draining) {
                    self.power[r] = Power::On;
                    self.workers[r].accepting = true;
                } else if let Some(r) = find(Power::Off) {
                    self.power[r] = Power::Starting;
                    self.push(now.after(scale.start_ns), r as u64, Act::Started(r as u32));
                }
            }
        } else if wanted < coming {
            self.few_looks += 1;
            if self.few_looks > scale.patience
                && let Some(r) = range.rev().find(|&r| self.power[r] == Power::On)
            {
                self.few_looks = 0;
                self.power[r] = Power::Draining;
                self.workers[r].accepting = false;
                self.power_off_if_empty(now, r as u32);
            }
        } else {
            self.few_looks = 0;
        }
        if self.has_more(now) {
            self.push(now.after(scale.interval_ns), 0, Act::Look);
        }
    }

    /// One that drains goes off with its last request.
    pub(super) fn power_off_if_empty(&mut self, now: Time, replica: u32) {
        let index = replica as usize;
        if self.power[index] == Power::Draining && self.workers[index].requests == 0 {
            self.power[index] = Power::Off;
            self.team.with(replica, |r, world| r.close(now, world));
        }
    }
}
