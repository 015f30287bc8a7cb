//! What a replication of a candidate came to, and which goals it keeps.

use dunlin_sim::{Report, Role, metrics::BOUNDS};
use serde::Serialize;

use super::{
    candidate::{Candidate, Space},
    config::{Goals, Objective},
};
use crate::stats::Estimate;

/// One replication.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Of the requests that arrived, the share that kept all latency goals.
    pub good: f64,
    /// Milliseconds, 99th percentile, the network to the site included.
    pub ttft_ms: f64,
    /// Milliseconds, 99th percentile over requests.
    pub tpot_ms: f64,
    /// Milliseconds, 99th percentile, the network included.
    pub e2e_ms: f64,
    /// Money an hour, for machines and electricity.
    pub cost_per_hour: f64,
    /// Money for a million output tokens.
    pub cost_per_mtok: f64,
    /// Joules at the meter for an output token.
    pub joules_per_token: f64,
    /// Grams of CO2-equivalent for a million output tokens.
    pub gco2_per_mtok: f64,
    /// Of those, the share of making the machines.
    pub embodied_share: f64,
    /// Litres for a million output tokens.
    pub litres_per_mtok: f64,
    /// Watts at the meter, on average.
    pub facility_watts: f64,
    /// Output tokens a second.
    pub tokens_per_s: f64,
    /// Of replicas' time, the share with a step.
    pub busy: f64,
    /// KV blocks in use, over time, of those that there are.
    pub kv_use: f64,
    /// The most of them at once, on one replica.
    pub kv_peak: f64,
    /// Preemptions for a request.
    pub preemptions: f64,
    /// Of the time of steps, the shares by what bound them ([`BOUNDS`]).
    pub bound: [f64; 5],
    /// Of steps, the share beyond what the cost model knows.
    pub extrapolated: f64,
}

/// Seconds of an hour.
const HOUR: f64 = 3600.0;

impl Outcome {
    /// What a run came to.
    pub fn new(space: &Space, candidate: &Candidate, report: &Report) -> Self {
        let m = &report.metrics;
        let site = &space.sites[candidate.site];
        let seconds = report.duration_s().max(1e-9);
        let hours = seconds / HOUR;
        let tokens = (m.output_tokens as f64).max(1.0);
        // Steps have the energy of their devices; the rest of the time these idle, and what is
        // around them draws always.
        let mut joules = m.energy_uj as f64 / 1e6;
        let (mut price_per_hour, mut embodied_per_hour) = (0.0, 0.0);
        let mut replicas = report.replicas.iter();
        for (_, group) in space.groups(candidate) {
            let engine = &space.engines[group.engine];
            let devices = f64::from(engine.devices());
            for replica in replicas.by_ref().take(group.replicas as usize) {
                let idle_s = (seconds - replica.busy_ns as f64 / 1e9).max(0.0);
                joules +=
                    devices * (idle_s * engine.idle_watts + seconds * engine.device.node_watts);
            }
            let all = devices * f64::from(group.replicas);
            price_per_hour += all * engine.device.price_per_hour;
            embodied_per_hour += all * engine.device.embodied_gco2 / engine.device.lifetime_hours;
        }
        let footprint = site.footprint(joules, site.mean_intensity());
        let cost_per_hour = price_per_hour + footprint.price / hours;
        let embodied = embodied_per_hour * hours;
        let gco2 = footprint.gco2 + embodied;
        let per_mtok = |amount: f64| amount / tokens * 1e6;
        let p99 = |d: &dunlin_sim::metrics::Durations| {
            if d.count() == 0 { 0.0 } else { d.percentile_ms(0.99) }
        };
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let total_ns: u128 = m.bound_ns.iter().sum();
        Self {
            good: share(m.good as f64, m.arrived as f64),
            ttft_ms: p99(&m.ttft) + site.network_ms,
            tpot_ms: p99(&m.tpot),
            e2e_ms: p99(&m.e2e) + site.network_ms,
            cost_per_hour,
            cost_per_mtok: per_mtok(cost_per_hour * hours),
            joules_per_token: footprint.joules / tokens,
            gco2_per_mtok: per_mtok(gco2),
            embodied_share: share(embodied, gco2),
            litres_per_mtok: per_mtok(footprint.litres),
            facility_watts: footprint.joules / seconds,
            tokens_per_s: m.output_tokens as f64 / seconds,
            busy: share(m.busy_ns as f64, m.up_ns as f64),
            kv_use: share(m.blocks_ns as f64, m.capacity_ns as f64),
            kv_peak: m.peak_blocks as f64 / 1e4,
            preemptions: share(m.preemptions as f64, m.arrived as f64),
            bound: m.bound_ns.map(|ns| share(ns as f64, total_ns as f64)),
            extrapolated: share(m.extrapolated_steps as f64, m.steps as f64),
        }
    }

    /// What it is in terms of an objective.
    pub fn objective(&self, objective: Objective) -> f64 {
        match objective {
            Objective::Cost => self.cost_per_hour,
            Objective::Energy => self.joules_per_token,
            Objective::Carbon => self.gco2_per_mtok,
            Objective::Water => self.litres_per_mtok,
            Objective::Ttft => self.ttft_ms,
            Objective::Tpot => self.tpot_ms,
            Objective::E2e => self.e2e_ms,
        }
    }
}

/// A goal, and where a candidate is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GoalState {
    /// Its key in the plan.
    pub goal: &'static str,
    /// What it asks for.
    pub limit: f64,
    /// What there is.
    pub found: Estimate,
    /// Of what it allows, how much is used; above 1 it is broken. For the share of good requests it is
    /// the share of bad ones over what may be bad.
    pub used: f64,
    /// Whether the mean keeps it.
    pub holds: bool,
    /// Whether the whole interval does.
    pub surely: bool,
}

/// A goal's name, and the value that it limits.
type Limit = (&'static str, fn(&Outcome) -> f64);

/// The goals that are upper limits.
const LIMITS: [Limit; 6] = [
    ("cost_per_hour", |o| o.cost_per_hour),
    ("cost_per_mtok", |o| o.cost_per_mtok),
    ("joules_per_token", |o| o.joules_per_token),
    ("gco2_per_mtok", |o| o.gco2_per_mtok),
    ("litres_per_mtok", |o| o.litres_per_mtok),
    ("facility_watts", |o| o.facility_watts),
];

impl GoalState {
    /// Every goal that was given.
    pub fn of(goals: &Goals, outcomes: &[Outcome], site_watts: Option<f64>) -> Vec<Self> {
        let values =
            |f: fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(f).collect::<Vec<_>>());
        let mut states = Vec::new();
        if goals.ttft_ms.or(goals.tpot_ms).or(goals.e2e_ms).is_some() {
            let (share, found) = (goals.share(), values(|o| o.good));
            states.push(Self {
                goal: "good_share",
                limit: share,
                found,
                // A goal of all requests allows one in a million.
                used: (1.0 - found.mean) / (1.0 - share).max(1e-6),
                holds: found.mean >= share,
                surely: found.low() >= share,
            });
        }
        let given = [
            goals.cost_per_hour,
            goals.cost_per_mtok,
            goals.joules_per_token,
            goals.gco2_per_mtok,
            goals.litres_per_mtok,
            [goals.facility_watts, site_watts].into_iter().flatten().reduce(f64::min),
        ];
        for ((goal, value), limit) in LIMITS.into_iter().zip(given) {
            let Some(limit) = limit else { continue };
            let found = values(value);
            states.push(Self {
                goal,
                limit,
                found,
                used: found.mean / limit,
                holds: found.mean <= limit,
                surely: found.high() <= limit,
            });
        }
        states
    }
}

/// What keeps a point from doing more, or from doing the same with less.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Binding {
    /// The resource: `kv_capacity`, `compute`, `memory`, `link`, `overhead`, `unknown`, or `idle`
    /// where replicas wait for requests for most of the time.
    pub resource: &'static str,
    /// The goal that is nearest to its limit, where there are goals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<&'static str>,
    /// How much of that limit is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal_used: Option<f64>,
    /// Of steps' time, the shares by resource.
    pub step_shares: Vec<(&'static str, f64)>,
}

impl Binding {
    /// From means over replications and the states of goals.
    ///
    /// Capacity binds (the wall that a roofline does not show: "operational intensity and capacity
    /// footprint") where sequences give way to each other or KV memory is full at times while
    /// requests wait; else what most of the time of steps goes to, if steps are what the time goes
    /// to.
    pub fn new(outcomes: &[Outcome], goals: &[GoalState]) -> Self {
        let n = outcomes.len().max(1) as f64;
        let mean = |f: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(f).sum::<f64>() / n;
        let shares: Vec<(&'static str, f64)> =
            (0..5).map(|i| (BOUNDS[i], mean(&|o| o.bound[i]))).filter(|s| s.1 > 0.0).collect();
        let resource = if mean(&|o| o.kv_peak) > 0.97 && mean(&|o| o.kv_use) > 0.6
            || mean(&|o| o.preemptions) > 0.05
        {
            "kv_capacity"
        } else if mean(&|o| o.busy) < 0.5 {
            "idle"
        } else {
            shares.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("unknown", |s| s.0)
        };
        let tightest = goals.iter().max_by(|a, b| a.used.total_cmp(&b.used));
        Self {
            resource,
            goal: tightest.map(|g| g.goal),
            goal_used: tightest.map(|g| g.used),
            step_shares: shares,
        }
    }
}

/// A role's name.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Mixed => "mixed",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_kept_up_to_their_limits() {
        let goals = Goals {
            ttft_ms: Some(100.0),
            good_share: Some(0.9),
            cost_per_hour: Some(10.0),
            ..Goals::default()
        };
        let outcome = |good, cost_per_hour| Outcome { good, cost_per_hour, ..Outcome::default() };
        let states = GoalState::of(&goals, &[outcome(0.9, 10.0), outcome(0.9, 10.0)], None);
        assert_eq!(
            states.iter().map(|s| s.goal).collect::<Vec<_>>(),
            ["good_share", "cost_per_hour"]
        );
        assert!(states.iter().all(|s| s.holds && s.surely && (s.used - 1.0).abs() < 1e-9));
        let states = GoalState::of(&goals, &[outcome(0.88, 11.0), outcome(0.91, 9.5)], Some(5.0));
        assert!(!states[0].holds && !states[1].holds && !states[1].surely);
        // What the site delivers is a limit, too.
        assert_eq!((states[2].goal, states[2].limit), ("facility_watts", 5.0));
        assert!(GoalState::of(&Goals::default(), &[], None).is_empty());
    }

    #[test]
    fn the_binding_resource_is_capacity_first_and_then_where_time_goes() {
        let steps = Outcome { busy: 0.8, bound: [0.2, 0.7, 0.0, 0.1, 0.0], ..Outcome::default() };
        let resource = |o: Outcome| Binding::new(&[o], &[]).resource;
        assert_eq!(resource(steps.clone()), "memory");
        assert_eq!(resource(Outcome { busy: 0.2, ..steps.clone() }), "idle");
        assert_eq!(resource(Outcome { preemptions: 0.4, ..steps.clone() }), "kv_capacity");
        assert_eq!(resource(Outcome { kv_peak: 1.0, kv_use: 0.9, ..steps.clone() }), "kv_capacity");
        assert_eq!(resource(Outcome { kv_peak: 1.0, kv_use: 0.1, ..steps }), "memory");
    }
}
