//! Replicas that come and go: faults, stragglers, and a number that follows the load.
//!
//! A replica that goes down loses its KV and its requests; those begin again elsewhere, with the
//! tokens that their users have had already as a part of the prompt. Where prefill and decode are
//! apart, each kind of replica may follow its own load.

use dunlin_units::Time;
use serde::{Deserialize, Serialize};

use super::coordinator::{Act, Coordinator};
use crate::{error::SimError, replica::Role};

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
    /// Replicas of which role.
    pub role: Role,
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
                "from {} to {} replicas; they go from at least 1 to at most the {replicas} there are \
                 of the role",
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
        for (index, scale) in self.spec.autoscale.iter().enumerate() {
            for &replica in &self.pool(scale.role)[scale.least as usize..] {
                self.power[replica as usize] = Power::Off;
                self.workers[replica as usize].accepting = false;
                self.team.with(replica, |r, world| r.close(Time(0), world));
            }
            self.push(Time(scale.interval_ns), index as u64, Act::Look(index));
        }
    }

    /// The replicas of a role.
    fn pool(&self, role: Role) -> Vec<u32> {
        let all = self.spec.replicas.iter().enumerate();
        all.filter(|(_, r)| r.role == role).map(|(index, _)| index as u32).collect()
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
                let jobs = if self.spec.is_disaggregated() {
                    self.give_up(now, replica, jobs)
                } else {
                    jobs.iter().for_each(|job| self.forget(replica, job.request.prompt_tokens));
                    jobs
                };
                self.metrics.retried += jobs.len() as u64;
                jobs.into_iter().for_each(|job| self.retry(now, job));
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
        for job in std::mem::take(&mut self.stranded) {
            self.retry(now, job);
        }
        if self.spec.replicas[index].role == Role::Prefill {
            // Those that wait for KV may do so for want of anybody to compute it.
            self.pool(Role::Decode).into_iter().for_each(|decode| self.reserve(now, decode));
        }
    }

    /// An autoscaler looks.
    pub(super) fn look(&mut self, now: Time, index: usize) {
        let scale = self.spec.autoscale[index];
        let mut pool = self.pool(scale.role);
        let of = |r: &u32| u64::from(self.workers[*r as usize].requests);
        let mut requests: u64 = pool.iter().map(of).sum();
        pool.truncate(scale.most as usize);
        if scale.role != Role::Prefill {
            requests += self.stranded.len() as u64;
        }
        let wanted = requests.div_ceil(u64::from(scale.requests_per_replica)) as u32;
        let wanted = wanted.clamp(scale.least, scale.most);
        let is = |r: &u32, power| self.power[*r as usize] == power;
        let coming =
            pool.iter().filter(|r| is(r, Power::On) || is(r, Power::Starting)).count() as u32;
        if wanted > coming {
            self.few_looks[index] = 0;
            // Those that drain are there already; then those that are off.
            for _ in coming..wanted {
                let find = |power| pool.iter().copied().find(|&r| self.power[r as usize] == power);
                if let Some(r) = find(Power::Draining) {
                    self.power[r as usize] = Power::On;
                    self.workers[r as usize].accepting = true;
                } else if let Some(r) = find(Power::Off) {
                    self.power[r as usize] = Power::Starting;
                    self.push(now.after(scale.start_ns), r.into(), Act::Started(r));
                }
            }
        } else if wanted < coming {
            self.few_looks[index] += 1;
            if self.few_looks[index] > scale.patience
                && let Some(r) =
                    pool.iter().rev().copied().find(|&r| self.power[r as usize] == Power::On)
            {
                self.few_looks[index] = 0;
                self.power[r as usize] = Power::Draining;
                self.workers[r as usize].accepting = false;
                self.power_off_if_empty(now, r);
            }
        } else {
            self.few_looks[index] = 0;
        }
        if self.has_more(now) {
            self.push(now.after(scale.interval_ns), index as u64, Act::Look(index));
        }
    }

    /// One that drains goes off with its last request, and when nobody fetches KV from it any more.
    pub(super) fn power_off_if_empty(&mut self, now: Time, replica: u32) {
        let index = replica as usize;
        if self.power[index] == Power::Draining
            && self.workers[index].requests == 0
            && !self.is_fetched_from(replica)
        {
            self.power[index] = Power::Off;
            self.team.with(replica, |r, world| r.close(now, world));
        }
    }
}
