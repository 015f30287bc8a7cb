//! What a run is measured by, collected as a stream: nothing is kept of a request that is over.
//!
//! All of it is whole numbers and sums, so that replicas may be simulated on several threads and the
//! parts merged in any order give the same result.

mod dist;
mod timeline;

use dunlin_units::Time;
use serde::{Deserialize, Serialize};

pub use dist::{DurationStats, Durations};
pub use timeline::{Bin, Level, MAX_BINS, Timeline};

/// What a request must keep to count as good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Slo {
    /// Nanoseconds to the first token.
    pub ttft_ns: Option<u64>,
    /// Nanoseconds between tokens, on average over the request.
    pub tpot_ns: Option<u64>,
    /// Nanoseconds to the last token.
    pub e2e_ns: Option<u64>,
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// When it was ready.
    pub ready: Time,
    /// When its first token came; none without tokens.
    pub first_token: Option<Time>,
    /// When its last token came.
    pub last_token: Time,
    /// When it ended.
    pub end: Time,
    /// Nanoseconds in queues.
    pub queue_ns: u64,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Nanoseconds from being ready to when the answer should be complete.
    pub deadline_ns: Option<u64>,
}

impl Served {
    /// Nanoseconds from being ready to the first token, or to the end where there is none.
    pub fn ttft_ns(&self) -> u64 {
        self.first_token.unwrap_or(self.end).since(self.ready)
    }

    /// Nanoseconds between tokens, on average; none with fewer than two.
    pub fn tpot_ns(&self) -> Option<u64> {
        let first = self.first_token?;
        let gaps = u64::from(self.output_tokens).checked_sub(1).filter(|&n| n > 0)?;
        Some(self.last_token.since(first) / gaps)
    }

    /// Nanoseconds from being ready to the end.
    pub fn e2e_ns(&self) -> u64 {
        self.end.since(self.ready)
    }

    /// Whether it kept all that was asked for.
    pub fn is_good(&self, slo: &Slo) -> bool {
        slo.ttft_ns.is_none_or(|most| self.ttft_ns() <= most)
            && slo.tpot_ns.is_none_or(|most| self.tpot_ns().is_none_or(|ns| ns <= most))
            && slo.e2e_ns.is_none_or(|most| self.e2e_ns() <= most)
            && self.deadline_ns.is_none_or(|most| self.e2e_ns() <= most)
    }
}

/// The resource that bound steps, in the order of [`Metrics::bound_ns`].
pub const BOUNDS: [&str; 5] = ["compute", "memory", "link", "overhead", "unknown"];

/// Sums over a run, or over a part of one.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Requests that became ready.
    pub arrived: u64,
    /// Requests that ended with all their tokens.
    pub finished: u64,
    /// Of those, answers that a limit cut short.
    pub clipped: u64,
    /// Requests that were not taken on.
    pub rejected: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Requests that kept the goals.
    pub good: u64,
    /// Requests that began anew on another replica because theirs went down.
    pub retried: u64,
    /// Tokens of prompts of requests that ended.
    pub prompt_tokens: u64,
    /// Of those, tokens whose KV was there already.
    pub cached_tokens: u64,
    /// Tokens of answers of requests that ended.
    pub output_tokens: u64,
    /// Tokens that went through the model for requests that ended.
    pub computed_tokens: u64,
    /// Of those, tokens that had been computed before.
    pub recomputed_tokens: u64,
    /// Draft nodes verified.
    pub draft_tokens: u64,
    /// Draft nodes accepted.
    pub accepted_tokens: u64,
    /// How often requests gave way.
    pub preemptions: u64,
    /// KV blocks that came from the disk tier.
    pub blocks_loaded: u64,
    /// Moves between tiers.
    pub moves: u64,
    /// KV blocks that went from replica to replica.
    pub transfers: u64,
    /// Bytes of those.
    pub transfer_bytes: u64,
    /// To the first token.
    pub ttft: Durations,
    /// Between tokens, a request's average.
    pub tpot: Durations,
    /// Between tokens, each gap.
    pub itl: Durations,
    /// From being ready to the end.
    pub e2e: Durations,
    /// In queues.
    pub queue: Durations,
    /// Until KV blocks were had on the replica that decodes.
    pub reserve: Durations,
    /// From a prompt's being done on one replica to its KV's being on another.
    pub handoff: Durations,
    /// Steps.
    pub steps: u64,
    /// Parts of sequences in steps, one for each sequence and step.
    pub sequence_steps: u64,
    /// Tokens chosen in steps.
    pub sampled_tokens: u64,
    /// Nanoseconds in which steps ran, over replicas.
    pub busy_ns: u128,
    /// The same by the resource that bound the step ([`BOUNDS`]).
    pub bound_ns: [u128; 5],
    /// Steps whose cost was guessed beyond what the cost model knows.
    pub extrapolated_steps: u64,
    /// Energy of steps in microjoules.
    pub energy_uj: u128,
    /// Energy of steps of requests that ended with their tokens, in microjoules each.
    pub request_energy: Durations,
    /// Energy of replicas that are on, whether they work or not, in microjoules times 10^9.
    pub idle_uj_e9: u128,
    /// Carbon of making replicas that are on, in micrograms of CO2-equivalent times the nanoseconds of
    /// an hour.
    pub embodied_ugco2_hours: u128,
    /// KV blocks in use, over time.
    pub blocks_ns: u128,
    /// KV blocks that there are, over time.
    pub capacity_ns: u128,
    /// Replicas that were up, over time.
    pub up_ns: u128,
    /// The most KV blocks in use on one replica, in 1/10,000 of what it has.
    pub peak_blocks: u64,
    /// The last moment at which anything happened.
    pub last: Time,
    /// What happened when.
    pub timeline: Timeline,
}

impl Metrics {
    /// Counts a request that ended with its tokens.
    pub fn serve(&mut self, served: &Served, slo: &Slo) {
        self.finished += 1;
        self.good += u64::from(served.is_good(slo));
        self.ttft.add(served.ttft_ns());
        if let Some(ns) = served.tpot_ns() {
            self.tpot.add(ns);
        }
        self.e2e.add(served.e2e_ns());
        self.queue.add(served.queue_ns);
        self.output_tokens += u64::from(served.output_tokens);
        self.timeline.at(served.end).finished += 1;
    }

    /// Adds all that another part has.
    pub fn merge(&mut self, other: Self) {
        macro_rules! add {
            ($($field:ident),*) => { $(self.$field += other.$field;)* };
        }
        add!(arrived, finished, clipped, rejected, failed, good, retried);
        add!(prompt_tokens, cached_tokens, output_tokens, computed_tokens, recomputed_tokens);
        add!(draft_tokens, accepted_tokens, preemptions, blocks_loaded, moves);
        add!(transfers, transfer_bytes, steps, sequence_steps, sampled_tokens, busy_ns);
        add!(extrapolated_steps, energy_uj, idle_uj_e9, embodied_ugco2_hours);
        add!(blocks_ns, capacity_ns, up_ns);
        for (own, more) in self.bound_ns.iter_mut().zip(other.bound_ns) {
            *own += more;
        }
        self.ttft.merge(other.ttft);
        self.tpot.merge(other.tpot);
        self.itl.merge(other.itl);
        self.e2e.merge(other.e2e);
        self.queue.merge(other.queue);
        self.reserve.merge(other.reserve);
        self.handoff.merge(other.handoff);
        self.request_energy.merge(other.request_energy);
        self.peak_blocks = self.peak_blocks.max(other.peak_blocks);
        self.last = self.last.max(other.last);
        self.timeline.merge(other.timeline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_kept_up_to_their_limits() {
        let served = Served {
            ready: Time(100),
            first_token: Some(Time(150)),
            last_token: Time(190),
            end: Time(190),
            queue_ns: 10,
            output_tokens: 5,
            deadline_ns: None,
        };
        assert_eq!((served.ttft_ns(), served.tpot_ns(), served.e2e_ns()), (50, Some(10), 90));
        let slo = |ttft, tpot, e2e| Slo { ttft_ns: ttft, tpot_ns: tpot, e2e_ns: e2e };
        assert!(served.is_good(&Slo::default()));
        assert!(served.is_good(&slo(Some(50), Some(10), Some(90))));
        assert!(!served.is_good(&slo(Some(49), None, None)));
        assert!(!served.is_good(&slo(None, Some(9), None)));
        assert!(!served.is_good(&slo(None, None, Some(89))));
        assert!(!Served { deadline_ns: Some(89), ..served }.is_good(&Slo::default()));
        assert_eq!(Served { output_tokens: 1, ..served }.tpot_ns(), None);
    }
}
