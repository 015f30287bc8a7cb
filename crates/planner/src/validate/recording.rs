//! The real side: a run from the calls of its core.

use std::collections::BTreeMap;

use dunlin_scheduler::{CoreConfig, Effects, Event};
use dunlin_units::{RequestId, Time};

use super::RequestTimes;
use crate::calibrate::{StepReader, StepTrace};

/// A request as the core saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The call that told of it.
    told: Time,
    /// The call before that.
    before: Time,
    /// Whether that call told of the end of a step, too.
    with_step: bool,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens that it got.
    pub output_tokens: u32,
    first_token: Option<Time>,
    end: Option<Time>,
}

/// A run from its record.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The core's settings.
    pub config: CoreConfig,
    /// Its steps, in order.
    pub steps: Vec<StepTrace>,
    requests: BTreeMap<RequestId, Recorded>,
    reader: StepReader,
    last_call: Time,
}

impl Recording {
    /// A run before its first call.
    pub fn new(config: CoreConfig) -> Self {
        Self {
            config,
            steps: Vec::new(),
            requests: BTreeMap::new(),
            reader: StepReader::default(),
            last_call: Time(0),
        }
    }

    /// The next call of the core.
    pub fn call(&mut self, now: Time, events: &[Event], effects: &Effects) {
        let with_step = events.iter().any(|e| matches!(e, Event::StepDone(_)));
        for event in events {
            if let Event::Submit(submission) = event {
                let recorded = Recorded {
                    told: now,
                    before: self.last_call,
                    with_step,
                    prompt_tokens: submission.prompt.len() as u32,
                    output_tokens: 0,
                    first_token: None,
                    end: None,
                };
                self.requests.insert(submission.request, recorded);
            }
        }
        for output in &effects.outputs {
            if let Some(request) = self.requests.get_mut(&output.request) {
                request.first_token.get_or_insert(now);
                request.output_tokens += 1;
            }
        }
        for finished in &effects.finished {
            if let Some(request) = self.requests.get_mut(&finished.request) {
                request.end = Some(now);
            }
        }
        self.reader.call(now, events, effects, &mut self.steps);
        self.last_call = now;
    }

    /// The requests, in the order of their names.
    pub fn requests(&self) -> impl Iterator<Item = &Recorded> {
        self.requests.values()
    }

    /// When each request may be said to have arrived so that the core, told at once, knows of it in
    /// the same steps: `scheduled`, moved to within the calls between which it was told. What comes
    /// at the moment at which a step ends would come after that.
    pub fn arrivals(&self, scheduled: &[Time]) -> Vec<Time> {
        let moved = |(request, scheduled): (&Recorded, &Time)| {
            if !request.with_step {
                return request.told;
            }
            let last = Time(request.told.0.saturating_sub(1));
            (*scheduled).max(request.before.after(1)).min(last)
        };
        self.requests.values().zip(scheduled).map(moved).collect()
    }

    /// When each request got its first token and ended, measured from these arrivals. Those without
    /// an end on record are left out.
    pub fn times(&self, arrivals: &[Time]) -> Vec<RequestTimes> {
        let all = self.requests.values().zip(arrivals).enumerate();
        all.filter_map(|(number, (request, &arrival))| {
            Some(RequestTimes {
                number: number as u64,
                arrival,
                first_token: request.first_token,
                end: request.end?,
                output_tokens: request.output_tokens,
            })
        })
        .collect()
    }
}
