//! The simulated side.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use dunlin_costmodel::{StepCost, StepPrice, StepShape};
use dunlin_scheduler::CoreConfig;
use dunlin_sim::{
    ClusterSpec, ReplicaSpec, Report, RunOptions, SharedCost, SimError,
    events::{LogEvent, What},
    simulate,
};
use dunlin_units::Time;
use dunlin_workload::Request;
use serde::Serialize;

use super::{Recording, RequestTimes};

/// What a simulation with the recorded step times decided otherwise than the engine did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Decisions {
    /// Steps on record.
    pub steps: u64,
    /// Of those, steps whose sequences, tokens or contexts differ, and steps that only one side has.
    pub different_steps: u64,
    /// Requests on record.
    pub requests: u64,
    /// Of those, requests whose first token or end came at another nanosecond, or with another
    /// number of tokens.
    pub different_requests: u64,
    /// The first difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<String>,
}

impl Decisions {
    /// Differences of either kind.
    pub fn differences(&self) -> u64 {
        self.different_steps + self.different_requests
    }
}

/// Gives each step the time that it took on record, and remembers what was in it.
#[derive(Debug)]
struct RecordedTimes {
    times_ns: Vec<u64>,
    asked: Mutex<Vec<StepShape>>,
}

impl StepCost for RecordedTimes {
    fn price(&self, shape: &StepShape) -> StepPrice {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // Beyond the record any time does: there is a difference already.
        let time_ns = self.times_ns.get(asked.len()).copied().unwrap_or(1);
        asked.push(shape.clone());
        StepPrice { time_ns, ..StepPrice::default() }
    }
}

/// Simulates a recorded run with its own step times and compares every step and every request.
/// `requests` are those of the run in the order in which it got them, with when they were meant to
/// arrive on the clock of the record.
///
/// # Errors
/// What keeps the simulation from running.
pub fn decisions(recording: &Recording, requests: &[Request]) -> Result<Decisions, SimError> {
    let scheduled: Vec<Time> = requests.iter().map(|r| r.arrival).collect();
    let arrivals = recording.arrivals(&scheduled);
    let moved =
        requests.iter().zip(&arrivals).map(|(r, &arrival)| Request { arrival, ..r.clone() });
    let cost = Arc::new(RecordedTimes {
        times_ns: recording.steps.iter().map(|s| s.time_ns()).collect(),
        asked: Mutex::default(),
    });
    let shared: SharedCost = cost.clone();
    let (times, _) = predict(&recording.config, shared, moved.collect())?;
    let asked = std::mem::take(&mut *cost.asked.lock().unwrap_or_else(PoisonError::into_inner));
    let real = recording.times(&arrivals);
    let mut found = Decisions {
        steps: recording.steps.len() as u64,
        requests: real.len() as u64,
        ..Decisions::default()
    };
    for i in 0..asked.len().max(recording.steps.len()) {
        let (own, real) = (asked.get(i), recording.steps.get(i).map(|s| &s.shape));
        if own != real {
            found.different_steps += 1;
            found
                .first_difference
                .get_or_insert_with(|| format!("step {}: {}", i + 1, told(real, own)));
        }
    }
    let simulated: BTreeMap<u64, &RequestTimes> = times.iter().map(|t| (t.number, t)).collect();
    for real in &real {
        let own = simulated.get(&real.number);
        if own != Some(&real) {
            found.different_requests += 1;
            found.first_difference.get_or_insert_with(|| {
                format!("request {}: {real:?} on record, {own:?} in simulation", real.number)
            });
        }
    }
    Ok(found)
}

/// Both sides of a step in few words.
fn told(real: Option<&StepShape>, own: Option<&StepShape>) -> String {
    let one = |side: Option<&StepShape>| match side {
        None => "no such step".to_string(),
        Some(shape) => {
            let parts = shape.seqs.iter().map(|s| format!("{}@{}", s.new_tokens, s.context));
            parts.collect::<Vec<_>>().join(" ")
        }
    };
    format!("{} on record, {} in simulation", one(real), one(own))
}

/// Simulates these requests, in order of arrival, on one replica with a core of these settings, step
/// times by `cost`. Returns when each got its first token and ended, in order.
///
/// # Errors
/// What keeps the simulation from running.
pub fn predict(
    config: &CoreConfig,
    cost: SharedCost,
    requests: Vec<Request>,
) -> Result<(Vec<RequestTimes>, Report), SimError> {
    let cluster = ClusterSpec::single(ReplicaSpec::new(config.clone(), cost));
    let arrivals: Vec<Time> = requests.iter().map(|r| r.arrival).collect();
    let mut log: Vec<LogEvent> = Vec::new();
    let options = RunOptions { events: Some(&mut log), ..RunOptions::default() };
    let report = simulate(&cluster, requests.into_iter().map(Ok), options)?;
    let mut first: BTreeMap<u64, Time> = BTreeMap::new();
    let mut times = Vec::new();
    for event in &log {
        match event.what {
            What::FirstToken { request } => {
                first.insert(request, event.at);
            }
            What::End { request, tokens, .. } => times.push(RequestTimes {
                number: request,
                arrival: arrivals[request as usize],
                first_token: first.remove(&request),
                end: event.at,
                output_tokens: tokens,
            }),
            _ => {}
        }
    }
    times.sort_by_key(|t| t.number);
    Ok((times, report))
}
