//! The search: rounds of simulation with common random numbers, each round with more replications of
//! fewer candidates (as successive halving has it: Jamieson and Talwalkar, AISTATS 2016).
//!
//! Replication `k` of every candidate gets the same requests, so that differences between candidates
//! are not those of luck. After a round a candidate is dropped only if it is out of the question: it
//! breaks a goal by far more than its scatter, or another that keeps the goals is better in every
//! objective by more than theirs. What is left at the end has all replications, and the front is that
//! of their means.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use dunlin_sim::{RunOptions, SimError, metrics::Slo, simulate};
use dunlin_workload::Request;

use super::{
    PlanError,
    candidate::{Candidate, Space},
    config::{Goals, Objective, PlanConfig},
    front::dominates,
    outcome::{GoalState, Outcome},
};
use crate::stats::Estimate;

/// How far the first round, which has one replication and so no scatter of its own, may be off: this
/// part of any value.
const FIRST_SLACK: f64 = 0.3;
/// And this part of the requests may be good in truth that are bad there.
const FIRST_SHARE: f64 = 0.05;

/// How far a search is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Simulations done.
    pub done: usize,
    /// Simulations in all, if nobody more were dropped.
    pub total: usize,
    /// Candidates that are left.
    pub left: usize,
}

/// Looks at the progress; false stops the search with what it has.
pub type Watch<'a> = &'a (dyn Fn(Progress) -> bool + Sync);

/// A candidate with its replications.
#[derive(Debug, Clone)]
pub struct Tried {
    /// The candidate.
    pub candidate: Candidate,
    /// What its replications came to.
    pub outcomes: Vec<Outcome>,
    /// The round after which it was dropped, from 1; none for those that stayed.
    pub dropped: Option<usize>,
}

impl Tried {
    /// Whether its means keep every goal.
    pub fn is_feasible(&self, goals: &Goals, site_watts: Option<f64>) -> bool {
        !self.outcomes.is_empty()
            && GoalState::of(goals, &self.outcomes, site_watts).iter().all(|g| g.holds)
    }

    /// Its objectives, on average.
    pub fn objectives(&self, objectives: &[Objective]) -> Vec<f64> {
        objectives.iter().map(|o| self.estimate(*o).mean).collect()
    }

    /// One objective.
    pub fn estimate(&self, objective: Objective) -> Estimate {
        let values: Vec<f64> = self.outcomes.iter().map(|o| o.objective(objective)).collect();
        Estimate::of(&values)
    }
}

/// What a search did.
#[derive(Debug, Clone)]
pub struct Searched {
    /// Everyone who was simulated, in the order of candidates.
    pub tried: Vec<Tried>,
    /// Simulations.
    pub simulations: usize,
    /// Whether it was stopped early.
    pub stopped: bool,
}

/// Searches among these candidates. `replications` holds the requests of each replication.
///
/// # Errors
/// What the simulator refuses.
pub fn search(
    space: &Space,
    config: &PlanConfig,
    candidates: Vec<Candidate>,
    replications: &[Vec<Request>],
    watch: Watch<'_>,
) -> Result<Searched, PlanError> {
    let mut tried: Vec<Tried> = candidates
        .into_iter()
        .map(|candidate| Tried { candidate, outcomes: Vec::new(), dropped: None })
        .collect();
    let rounds = rounds(replications.len());
    let (mut done, mut stopped) = (0, false);
    for (round, &upto) in rounds.iter().enumerate() {
        let left: Vec<usize> = (0..tried.len()).filter(|&i| tried[i].dropped.is_none()).collect();
        let jobs: Vec<(usize, usize)> = left
            .iter()
            .flat_map(|&i| (tried[i].outcomes.len()..upto).map(move |k| (i, k)))
            .collect();
        let rest: usize = replications.len() - upto;
        let total = done + jobs.len() + rest * left.len();
        let tell = |more| watch(Progress { done: done + more, total, left: left.len() });
        let found = run_all(space, config, &tried, &jobs, replications, &tell)?;
        done += found.len();
        stopped |= found.len() < jobs.len();
        for (i, outcome) in found {
            tried[i].outcomes.push(outcome);
        }
        if stopped {
            break;
        }
        if upto < replications.len() {
            drop_hopeless(space, config, &mut tried, round + 1);
        }
    }
    Ok(Searched { tried, simulations: done, stopped })
}

/// Replications up to which each round goes: 1, 2, 4 and so on.
fn rounds(replications: usize) -> Vec<usize> {
    let doubling = std::iter::successors(Some(1), |n| Some(n * 2));
    doubling.take_while(|n| *n < replications).chain([replications]).collect()
}

/// What latency goals leave for the cluster, the network's part taken off.
pub fn slo(goals: &Goals, network_ms: f64) -> Slo {
    let ns = |ms: f64| (ms.max(0.0) * 1e6) as u64;
    Slo {
        ttft_ns: goals.ttft_ms.map(|ms| ns(ms - network_ms)),
        tpot_ns: goals.tpot_ms.map(ns),
        e2e_ns: goals.e2e_ms.map(|ms| ns(ms - network_ms)),
    }
}

/// Runs jobs (candidate, replication) on threads; results are in the order of jobs, and a part of
/// them from the beginning where it was stopped.
fn run_all(
    space: &Space,
    config: &PlanConfig,
    tried: &[Tried],
    jobs: &[(usize, usize)],
    replications: &[Vec<Request>],
    tell: &(dyn Fn(usize) -> bool + Sync),
) -> Result<Vec<(usize, Outcome)>, PlanError> {
    type Slot = Option<Result<Outcome, SimError>>;
    let results: Mutex<Vec<Slot>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let (next, finished, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let job = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(i, k)) = jobs.get(job) else { return };
            let outcome = run(space, config, &tried[i].candidate, &replications[k]);
            results.lock().unwrap_or_else(PoisonError::into_inner)[job] = Some(outcome);
            if !tell(finished.fetch_add(1, Ordering::Relaxed) + 1) {
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..config.search.threads.clamp(1, 64) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut found = Vec::new();
    for (&(i, _), result) in jobs.iter().zip(results) {
        let Some(result) = result else { break };
        found.push((i, result?));
    }
    Ok(found)
}

/// One replication of one candidate.
fn run(
    space: &Space,
    config: &PlanConfig,
    candidate: &Candidate,
    requests: &[Request],
) -> Result<Outcome, SimError> {
    let network_ms = space.sites[candidate.site].network_ms;
    let cluster = space.cluster(candidate, config, slo(&config.goals, network_ms));
    let options = RunOptions { seed: config.seed, ..RunOptions::default() };
    let report = simulate(&cluster, requests.iter().cloned().map(Ok), options)?;
    Ok(Outcome::new(space, candidate, &report))
}

/// Drops whoever cannot be on the front, as far as can be told.
fn drop_hopeless(space: &Space, config: &PlanConfig, tried: &mut [Tried], round: usize) {
    let goals = &config.goals;
    let watts = |t: &Tried| space.sites[t.candidate.site].watts;
    let left: Vec<usize> = (0..tried.len()).filter(|&i| tried[i].dropped.is_none()).collect();
    let mut out: Vec<usize> = Vec::new();
    let mut safe: Vec<usize> = Vec::new();
    for &i in &left {
        match judge(&GoalState::of(goals, &tried[i].outcomes, watts(&tried[i]))) {
            Verdict::Out => out.push(i),
            Verdict::In => safe.push(i),
            Verdict::Open => {}
        }
    }
    // At least one stays, whoever is nearest, to say how far it is.
    if !out.is_empty() && out.len() == left.len() {
        let worst = |i: &usize| {
            let states = GoalState::of(goals, &tried[*i].outcomes, watts(&tried[*i]));
            states.iter().map(|s| s.used).fold(0.0, f64::max)
        };
        out.sort_by(|a, b| worst(a).total_cmp(&worst(b)));
        out.drain(..1);
    }
    let objectives = &config.search.objectives;
    let bounds = |i: usize| {
        let ends = objectives.iter().map(|&o| interval(&tried[i], o));
        ends.unzip::<f64, f64, Vec<f64>, Vec<f64>>()
    };
    let best: Vec<(usize, Vec<f64>)> = safe.iter().map(|&i| (i, bounds(i).1)).collect();
    for &i in &left {
        if out.contains(&i) {
            continue;
        }
        let low = bounds(i).0;
        if best.iter().any(|(other, high)| *other != i && dominates(high, &low)) {
            out.push(i);
        }
    }
    out.into_iter().for_each(|i| tried[i].dropped = Some(round));
}

enum Verdict {
    /// It breaks a goal by more than its scatter.
    Out,
    /// It keeps all, scatter and all.
    In,
    /// Who knows.
    Open,
}

fn judge(states: &[GoalState]) -> Verdict {
    let out = |s: &GoalState| match (s.goal, s.found.half_width.is_finite()) {
        ("good_share", true) => s.found.mean + 2.0 * s.found.half_width < s.limit,
        ("good_share", false) => s.found.mean + FIRST_SHARE + (1.0 - s.found.mean) * 0.5 < s.limit,
        (_, true) => s.found.mean - 2.0 * s.found.half_width > s.limit,
        (_, false) => s.found.mean * (1.0 - FIRST_SLACK) > s.limit,
    };
    let safe = |s: &GoalState| match (s.goal, s.found.half_width.is_finite()) {
        ("good_share", false) => s.found.mean >= s.limit + (1.0 - s.limit) * 0.5,
        (_, false) => s.found.mean * (1.0 + FIRST_SLACK) <= s.limit,
        (_, true) => s.surely,
    };
    if states.iter().any(out) {
        Verdict::Out
    } else if states.iter().all(safe) {
        Verdict::In
    } else {
        Verdict::Open
    }
}

/// Where an objective may be in truth. What machines cost an hour is known.
fn interval(tried: &Tried, objective: Objective) -> (f64, f64) {
    let e = tried.estimate(objective);
    let spread = match (objective, e.half_width.is_finite()) {
        (Objective::Cost, false) => 0.0,
        (_, false) => FIRST_SLACK * e.mean,
        (_, true) => e.half_width,
    };
    (e.mean - spread, e.mean + spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_double_up_to_all() {
        assert_eq!(rounds(5), [1, 2, 4, 5]);
        assert_eq!(rounds(2), [1, 2]);
        assert_eq!(rounds(8), [1, 2, 4, 8]);
    }

    #[test]
    fn the_network_is_taken_off_the_goals() {
        let goals = Goals { ttft_ms: Some(100.0), tpot_ms: Some(20.0), ..Goals::default() };
        let slo = slo(&goals, 30.0);
        assert_eq!(
            (slo.ttft_ns, slo.tpot_ns, slo.e2e_ns),
            (Some(70_000_000), Some(20_000_000), None)
        );
    }
}
