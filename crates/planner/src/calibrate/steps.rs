//! Steps from the calls of a core.

use std::collections::VecDeque;

use dunlin_costmodel::{Phase, SeqShape, StepShape};
use dunlin_scheduler::{Effects, Event, StepPlan};
use dunlin_units::{StepId, Time};

/// A step that ran.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTrace {
    /// Its number.
    pub step: StepId,
    /// What was in it.
    pub shape: StepShape,
    /// When it was planned, or the step before it ended where that came later.
    pub began: Time,
    /// When the core heard that it had ended.
    pub ended: Time,
    /// What the executor measured, in nanoseconds.
    pub forward_ns: u64,
}

impl StepTrace {
    /// Nanoseconds from its beginning to its end.
    pub fn time_ns(&self) -> u64 {
        self.ended.since(self.began)
    }
}

/// What a step costs depends on this part of its plan alone.
pub fn shape_of(plan: &StepPlan) -> StepShape {
    let seqs = plan.entries.iter().map(|entry| {
        let phase = match (entry.tokens, entry.draft) {
            (_, 1..) => Phase::Verify,
            (1, 0) if entry.samples > 0 => Phase::Decode,
            _ => Phase::Prefill,
        };
        SeqShape { new_tokens: entry.tokens + entry.draft, context: entry.first_position, phase }
    });
    StepShape {
        seqs: seqs.collect(),
        sampled: plan.samples.len() as u32 + plan.draft.len() as u32,
        experts: None,
    }
}

/// Turns the calls of a core, in order, into steps.
#[derive(Debug, Clone, Default)]
pub struct StepReader {
    /// Planned, and not heard of since.
    open: VecDeque<(StepId, Time, StepShape)>,
    /// When the last one ended.
    last: Time,
}

impl StepReader {
    /// Takes the next call; the steps that ended with it are appended.
    pub fn call(
        &mut self,
        now: Time,
        events: &[Event],
        effects: &Effects,
        into: &mut Vec<StepTrace>,
    ) {
        for event in events {
            let Event::StepDone(outcome) = event else { continue };
            // A record may begin in the middle.
            let Some(at) = self.open.iter().position(|open| open.0 == outcome.step) else {
                continue;
            };
            let (step, planned, shape) = self.open.remove(at).expect("it was found there");
            let began = planned.max(self.last);
            self.last = now;
            let forward_ns = outcome.duration_ns;
            into.push(StepTrace { step, shape, began, ended: now, forward_ns });
        }
        if let Some(plan) = &effects.plan {
            self.open.push_back((plan.step, now, shape_of(plan)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_scheduler::{Entry, StepOutcome};
    use dunlin_units::SeqId;

    #[allow(clippy::field_reassign_with_default, reason = "a field is private")]
    fn plan(step: u64, entries: &[(u32, u32, u32, u32)]) -> Effects {
        let entry = |&(first_position, tokens, draft, samples): &(u32, u32, u32, u32)| Entry {
            seq: SeqId(0),
            first_position,
            tokens,
            draft,
            scratch: 0,
            samples,
        };
        let samples = entries.iter().map(|e| e.3 as usize).sum();
        let plan = StepPlan {
            step: StepId(step),
            entries: entries.iter().map(entry).collect(),
            samples: vec![SeqId(0); samples],
            ..StepPlan::default()
        };
        let mut effects = Effects::default();
        effects.plan = Some(plan);
        effects
    }

    fn done(step: u64, ns: u64) -> Event {
        let outcome = StepOutcome { step: StepId(step), duration_ns: ns, ..StepOutcome::default() };
        Event::StepDone(Box::new(outcome))
    }

    #[test]
    fn a_step_lasts_from_its_plan_to_the_call_that_hears_of_it() {
        let (mut reader, mut steps) = (StepReader::default(), Vec::new());
        let first = plan(1, &[(0, 40, 0, 1), (64, 8, 0, 0)]);
        reader.call(Time(100), &[], &first, &mut steps);
        reader.call(Time(350), &[done(1, 200)], &plan(2, &[(40, 1, 0, 1)]), &mut steps);
        reader.call(Time(400), &[done(2, 45)], &Effects::default(), &mut steps);
        assert_eq!(steps.len(), 2);
        let times = steps.iter().map(|s| (s.time_ns(), s.forward_ns)).collect::<Vec<_>>();
        assert_eq!(times, [(250, 200), (50, 45)]);
        let phases: Vec<Phase> =
            steps.iter().flat_map(|s| s.shape.seqs.iter().map(|q| q.phase)).collect();
        assert_eq!(phases, [Phase::Prefill, Phase::Prefill, Phase::Decode]);
        assert_eq!((steps[0].shape.sampled, steps[1].shape.seqs[0].context), (1, 40));
    }

    #[test]
    fn of_two_in_flight_the_second_begins_when_the_first_ends() {
        let (mut reader, mut steps) = (StepReader::default(), Vec::new());
        reader.call(Time(0), &[], &plan(1, &[(0, 4, 0, 1)]), &mut steps);
        reader.call(Time(5), &[], &plan(2, &[(4, 1, 0, 1)]), &mut steps);
        reader.call(Time(100), &[done(1, 1)], &Effects::default(), &mut steps);
        reader.call(Time(130), &[done(2, 1), done(9, 1)], &Effects::default(), &mut steps);
        assert_eq!(steps.iter().map(StepTrace::time_ns).collect::<Vec<_>>(), [100, 30]);
    }
}
