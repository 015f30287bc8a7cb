//! What can be ruled out without simulation.
//!
//! - **Roofline**: a request alone on a replica is as quick as it can be. Where more requests than may
//!   be bad miss a goal even so, no number of replicas helps. Prompts that share a prefix count with
//!   their last token alone, as all else may be cached.
//! - **Price** of the machines alone.
//! - **Stability**: where more requests come than replicas can serve at the largest batch that KV
//!   memory and settings allow, the queue grows for ever (the closed form of "Queueing stability with
//!   KV memory"). A margin covers what the form leaves out.
//! - **Load**: where the fluid estimate of the steady state ([`LengthMeans::gap_ns`]) has tokens come
//!   further apart than a goal allows, by the same margin. It is an estimate and no bound: it is not
//!   asked where few requests must keep the goal, where a replication is too short for a steady state,
//!   or where the plan says so (`queueing_estimate`).

use dunlin_costmodel::{Phase, SeqShape, StepCost, StepShape};
use dunlin_sim::queueing::LengthMeans;
use dunlin_workload::{Content, Request};
use serde::Serialize;

use super::{
    candidate::{Candidate, Engine, Group, Space},
    config::{Goals, PlanConfig},
};

/// Requests that the bounds are computed of, at most.
const SAMPLE: usize = 400;

/// Of requests, the share that must keep a goal for a mean to say anything of it.
const MANY: f64 = 0.9;

/// Times of a mean answer that a replication spans at least where its state is taken for steady.
const ANSWERS: f64 = 4.0;

/// Why a candidate is out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pruned {
    /// The goal that it cannot keep, or `stability`.
    pub goal: &'static str,
    /// How far it is off: its value over the limit.
    pub used: f64,
}

/// Rules out candidates, engine by engine.
#[derive(Debug)]
pub struct Pruner<'a> {
    space: &'a Space,
    goals: Goals,
    margin: f64,
    sample: Vec<Request>,
    means: LengthMeans,
    rate_per_s: f64,
    /// Seconds that a replication spans.
    span_s: f64,
    /// Whether the estimate of the time between tokens is asked.
    estimates: bool,
    /// Whether prompts share what begins alike: then the closed form knows too little.
    shares: bool,
}

/// What requests take alone: milliseconds.
#[derive(Debug, Clone, Copy)]
struct Alone {
    ttft_ms: f64,
    tpot_ms: Option<f64>,
    e2e_ms: f64,
}

impl<'a> Pruner<'a> {
    /// For this workload.
    pub fn new(space: &'a Space, config: &PlanConfig, requests: &[Request]) -> Self {
        let lengths = requests.iter().map(|r| (r.prompt_tokens, r.output_tokens));
        let span_s = match (requests.first(), requests.last()) {
            (Some(first), Some(last)) => last.arrival.since(first.arrival) as f64 / 1e9,
            _ => 0.0,
        };
        let waits = requests.iter().any(|r| r.wait != dunlin_workload::Wait::Nothing);
        // Where requests wait for others their rate is not what the trace says.
        let rate = if span_s > 0.0 && !waits { (requests.len() - 1) as f64 / span_s } else { 0.0 };
        Self {
            space,
            goals: config.goals,
            margin: config.search.capacity_margin,
            sample: requests.iter().take(SAMPLE).cloned().collect(),
            means: LengthMeans::new(lengths, config.search.block_tokens),
            rate_per_s: rate,
            span_s,
            estimates: config.search.queueing_estimate,
            shares: requests.iter().any(|r| r.content != Content::Unique),
        }
    }

    /// Requests a second.
    pub fn rate_per_s(&self) -> f64 {
        self.rate_per_s
    }

    /// Why a candidate is out; `None` where it has to be simulated.
    pub fn judge(&self, candidate: &Candidate) -> Option<Pruned> {
        self.price(candidate)
            .or_else(|| self.alone(candidate))
            .or_else(|| self.stability(candidate))
            .or_else(|| self.loaded(candidate))
    }

    fn price(&self, candidate: &Candidate) -> Option<Pruned> {
        let limit = self.goals.cost_per_hour?;
        let groups = self.space.groups(candidate).into_iter();
        let price: f64 = groups
            .map(|(_, g)| {
                let engine = &self.space.engines[g.engine];
                f64::from(g.replicas * engine.devices()) * engine.device.price_per_hour
            })
            .sum();
        (price > limit).then_some(Pruned { goal: "cost_per_hour", used: price / limit })
    }

    /// The goal that too many requests of the sample miss even alone.
    fn alone(&self, candidate: &Candidate) -> Option<Pruned> {
        let network = self.space.sites[candidate.site].network_ms;
        let prefill = &self.space.engines[candidate.group.engine];
        let decode = &self.space.engines[candidate.decode.unwrap_or(candidate.group).engine];
        let alone = |r: &Request| alone(r, prefill, decode, candidate.max_step_tokens, network);
        let times: Vec<Alone> = self.sample.iter().map(alone).collect();
        let may_be_bad = (1.0 - self.goals.share()) * times.len() as f64;
        let goals: [(&str, Option<f64>, fn(&Alone) -> Option<f64>); 3] = [
            ("ttft_ms", self.goals.ttft_ms, |a| Some(a.ttft_ms)),
            ("tpot_ms", self.goals.tpot_ms, |a| a.tpot_ms),
            ("e2e_ms", self.goals.e2e_ms, |a| Some(a.e2e_ms)),
        ];
        goals.into_iter().find_map(|(goal, limit, of)| {
            let limit = limit?;
            let mut values: Vec<f64> = times.iter().filter_map(of).collect();
            let missed = values.iter().filter(|v| **v > limit).count() as f64;
            // The sample is not all of them: five standard deviations of a count.
            let allowed = may_be_bad + 5.0 * may_be_bad.max(1.0).sqrt();
            if missed <= allowed {
                return None;
            }
            // How far off the request is that would have to keep it.
            values.sort_by(f64::total_cmp);
            let at = values.len() - 1 - (allowed as usize).min(values.len() - 1);
            Some(Pruned { goal, used: (values[at] / limit).max(1.0) })
        })
    }

    fn stability(&self, candidate: &Candidate) -> Option<Pruned> {
        // Prefixes that are computed once take load off in ways that no form of lengths knows, and
        // where the halves are apart each has its own form.
        if self.shares || candidate.decode.is_some() || self.rate_per_s <= 0.0 {
            return None;
        }
        let capacity = self.capacity_per_s(candidate)?;
        let used = self.rate_per_s / capacity / self.margin;
        (used > 1.0).then_some(Pruned { goal: "stability", used })
    }

    /// Whether tokens come too far apart when replicas have their usual load.
    fn loaded(&self, candidate: &Candidate) -> Option<Pruned> {
        let limit = self.goals.tpot_ms?;
        let unknown = self.shares || candidate.decode.is_some() || self.rate_per_s <= 0.0;
        if !self.estimates || unknown || self.goals.share() < MANY {
            return None;
        }
        let Group { engine, replicas } = candidate.group;
        let rate = self.rate_per_s / f64::from(replicas);
        let (running, step) = (candidate.max_running, candidate.max_step_tokens);
        let engine = &self.space.engines[engine];
        let most = self.means.capacity(&*engine.cost, engine.blocks, running, step)?.batch as u32;
        let gap_ms = self.means.gap_ns(&*engine.cost, rate, most, step)? / 1e6;
        let answer_s = gap_ms / 1e3 * self.means.mean_output();
        let used = gap_ms / limit / self.margin;
        (used > 1.0 && self.span_s > ANSWERS * answer_s)
            .then_some(Pruned { goal: "tpot_ms under load", used })
    }

    /// Requests a second that a candidate with mixed replicas can serve, by the closed form.
    pub fn capacity_per_s(&self, candidate: &Candidate) -> Option<f64> {
        let Group { engine, replicas } = candidate.group;
        let engine = &self.space.engines[engine];
        let (running, step) = (candidate.max_running, candidate.max_step_tokens);
        let one = self.means.capacity(&*engine.cost, engine.blocks, running, step)?;
        Some(one.critical_per_s * f64::from(replicas))
    }
}

/// What a request takes when nothing else is there.
fn alone(
    request: &Request,
    prefill: &Engine,
    decode: &Engine,
    max_step_tokens: u32,
    network_ms: f64,
) -> Alone {
    let price = |engine: &Engine, new_tokens: u32, context: u32, phase: Phase| {
        let seqs = vec![SeqShape { new_tokens, context, phase }];
        engine.cost.price(&StepShape { seqs, sampled: 1, experts: None }).time_ns as f64 / 1e6
    };
    let (prompt, output) = (request.prompt_tokens, request.output_tokens);
    // All but the last token may be cached where the prompt is not its own.
    let cached = if request.content == Content::Unique { 0 } else { prompt.saturating_sub(1) };
    let (mut done, mut ttft_ms) = (cached, 0.0);
    while done < prompt {
        let chunk = (prompt - done).min(max_step_tokens.max(1));
        ttft_ms += price(prefill, chunk, done, Phase::Prefill);
        done += chunk;
    }
    let gaps = output.saturating_sub(1);
    // The first decode is the quickest of them.
    let tpot_ms = (gaps > 0).then(|| price(decode, 1, prompt, Phase::Decode));
    let e2e_ms = ttft_ms + f64::from(gaps) * tpot_ms.unwrap_or(0.0);
    Alone { ttft_ms: ttft_ms + network_ms, tpot_ms, e2e_ms: e2e_ms + network_ms }
}

/// The probability that all of `servers` are busy in M/M/c with `load` erlangs (Erlang 1917), by the
/// recursion of the loss formula; 1 where the queue grows for ever.
pub fn erlang_c(servers: u32, load: f64) -> f64 {
    let c = f64::from(servers);
    if load >= c {
        return 1.0;
    }
    let loss = (1..=servers).fold(1.0, |b, k| load * b / (f64::from(k) + load * b));
    loss / (1.0 - load / c * (1.0 - loss))
}

/// Mean seconds in the queue of G/G/c, by Allen and Cunneen's approximation ("Probability, Statistics
/// and Queueing Theory", 1990): that of M/M/c times half the sum of the squared coefficients of
/// variation of gaps and of service. Exact for M/M/c and for M/G/1. None where the queue grows for
/// ever.
pub fn ggc_wait_s(
    rate: f64,
    service_s: f64,
    servers: u32,
    cv2_gaps: f64,
    cv2_service: f64,
) -> Option<f64> {
    let load = rate * service_s;
    if load >= f64::from(servers) {
        return None;
    }
    let mmc = erlang_c(servers, load) * service_s / (f64::from(servers) - load);
    Some(mmc * (cv2_gaps + cv2_service) / 2.0)
}

/// The fewest servers for which the mean wait of M/G/c, by [`ggc_wait_s`], is at most `wait_s`.
pub fn fewest_servers(rate: f64, service_s: f64, cv2_service: f64, wait_s: f64) -> u32 {
    let mut servers = (rate * service_s).floor() as u32 + 1;
    while ggc_wait_s(rate, service_s, servers, 1.0, cv2_service).is_none_or(|w| w > wait_s) {
        servers += 1;
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_exact_where_theory_is() {
        // M/M/1: load / (1 - load) services in all, one of them in service.
        for load in [0.1f64, 0.5, 0.9] {
            let wait = ggc_wait_s(load, 1.0, 1, 1.0, 1.0).unwrap();
            assert!((wait - load / (1.0 - load)).abs() < 1e-12);
            // M/D/1: half of it (Pollaczek and Khinchine).
            let constant = ggc_wait_s(load, 1.0, 1, 1.0, 0.0).unwrap();
            assert!((constant - load / (1.0 - load) / 2.0).abs() < 1e-12);
        }
        // M/M/c, by the sum over states.
        for (servers, load) in [(2u32, 1.5f64), (5, 3.0), (20, 18.0)] {
            let c = f64::from(servers);
            let term = |k: u32| (1..=k).fold(1.0, |t, i| t * load / f64::from(i));
            let tail = term(servers) * c / (c - load);
            let sum: f64 = (0..servers).map(term).sum::<f64>() + tail;
            assert!((erlang_c(servers, load) - tail / sum).abs() < 1e-12);
        }
        assert_eq!(ggc_wait_s(2.0, 1.0, 2, 1.0, 1.0), None);
        assert_eq!(erlang_c(3, 3.0), 1.0);
    }

    #[test]
    fn the_fewest_servers_are_the_fewest() {
        for (rate, limit) in [(3.2, 0.1), (0.4, 0.01), (17.0, 0.002), (50.0, 1.0)] {
            let servers = fewest_servers(rate, 1.0, 0.0, limit);
            let wait = |n| ggc_wait_s(rate, 1.0, n, 1.0, 0.0);
            assert!(wait(servers).unwrap() <= limit, "{rate}");
            assert!(servers == 1 || wait(servers - 1).is_none_or(|w| w > limit), "{rate}");
        }
    }
}
