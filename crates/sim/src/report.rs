//! What came of a run, and its form as JSON.

use serde::Serialize;

use crate::{
    events::Digest,
    metrics::{BOUNDS, DurationStats, Metrics, Slo},
};

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// Sums over the run.
    pub metrics: Metrics,
    /// By replica.
    pub replicas: Vec<ReplicaSummary>,
    /// Of the event log.
    pub digest: Digest,
    /// The first request that was not taken on, by number, and why.
    pub rejection: Option<(u64, String)>,
    /// Whether the scheduler was told how long answers would be.
    pub oracle: bool,
    /// The goals.
    pub slo: Slo,
    /// Whether the run was stopped early.
    pub stopped: bool,
}

/// A replica's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReplicaSummary {
    /// Nanoseconds in which steps ran.
    pub busy_ns: u64,
    /// Requests that ended here.
    pub ended: u64,
    /// Requests that were here at the end.
    pub unfinished: u64,
}

/// The report as it is written.
#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Summary {
    pub requests: Requests,
    pub duration_s: f64,
    pub throughput: Throughput,
    pub latency: Latency,
    pub goodput: Goodput,
    pub tokens: Tokens,
    pub kv: Kv,
    pub steps: Steps,
    pub energy: Energy,
    pub replicas: Replicas,
    /// A hash of the event log: equal for equal runs.
    pub event_digest: String,
    /// The scheduler was told how long answers would be, which no real system knows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub oracle_lengths: bool,
    /// The run was stopped before its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Requests {
    pub arrived: u64,
    pub finished: u64,
    pub clipped: u64,
    pub rejected: u64,
    pub failed: u64,
    pub unfinished: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub retried: u64,
    /// The first rejection's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_rejection: Option<String>,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Throughput {
    pub requests_per_s: f64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Latency {
    pub ttft: Option<DurationStats>,
    pub tpot: Option<DurationStats>,
    pub itl: Option<DurationStats>,
    pub e2e: Option<DurationStats>,
    pub queue: Option<DurationStats>,
    /// Until KV blocks were had on the replica that decodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserve: Option<DurationStats>,
    /// From a prompt's being done on one replica to its KV's being on another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handoff: Option<DurationStats>,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Goodput {
    pub slo: Slo,
    pub requests: u64,
    /// Of those that arrived.
    pub share: f64,
    pub requests_per_s: f64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Tokens {
    pub prompt: u64,
    pub output: u64,
    pub computed: u64,
    pub recomputed: u64,
    pub draft: u64,
    pub accepted: u64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Kv {
    /// Prompt tokens whose KV was there already.
    pub cached_tokens: u64,
    pub prefix_hit_share: f64,
    /// Of the blocks that there are, over time.
    pub mean_use: f64,
    /// On the fullest replica.
    pub peak_use: f64,
    pub preemptions: u64,
    pub blocks_loaded: u64,
    pub tier_moves: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub transfers: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub transfer_bytes: u64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Steps {
    pub steps: u64,
    pub sequence_steps: u64,
    pub mean_sequences: f64,
    pub mean_ms: f64,
    /// Nanoseconds of steps over nanoseconds that replicas were up.
    pub busy_share: f64,
    /// Shares of the time by the resource that bound the step.
    pub bound: std::collections::BTreeMap<&'static str, f64>,
    /// Steps beyond what the cost model knows.
    pub extrapolated: u64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Energy {
    /// Of steps, by the cost model. Zero where it has none.
    pub step_joules: f64,
    /// Of replicas that are on.
    pub idle_joules: f64,
    pub joules_per_output_token: f64,
    /// Of requests that ended with their tokens: parts of the energy of steps, dealt out by tokens
    /// that went through the model. All requests' parts sum to it to the microjoule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_request: Option<RequestJoules>,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct RequestJoules {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Debug, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Replicas {
    pub count: usize,
    /// Replicas up, over time.
    pub mean_up: f64,
    pub least_busy_share: f64,
    pub most_busy_share: f64,
    pub fewest_requests: u64,
    pub most_requests: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl Report {
    /// Seconds of simulated time.
    pub fn duration_s(&self) -> f64 {
        self.metrics.last.0 as f64 / 1e9
    }

    /// As it is written.
    pub fn summary(&self) -> Summary {
        let m = &self.metrics;
        let seconds = self.duration_s();
        let per_s = |value: u64| if seconds > 0.0 { value as f64 / seconds } else { 0.0 };
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let total_ns: u128 = m.bound_ns.iter().sum();
        let bound = BOUNDS.into_iter().zip(m.bound_ns).filter(|(_, ns)| *ns > 0);
        let (step_joules, idle_joules) = (m.energy_uj as f64 / 1e6, m.idle_uj_e9 as f64 / 1e15);
        Summary {
            requests: Requests {
                arrived: m.arrived,
                finished: m.finished,
                clipped: m.clipped,
                rejected: m.rejected,
                failed: m.failed,
                unfinished: self.replicas.iter().map(|r| r.unfinished).sum(),
                retried: m.retried,
                first_rejection: self
                    .rejection
                    .as_ref()
                    .map(|(number, why)| format!("row {}: {why}", number + 1)),
            },
            duration_s: seconds,
            throughput: Throughput {
                requests_per_s: per_s(m.finished),
                output_tokens_per_s: per_s(m.output_tokens),
                total_tokens_per_s: per_s(m.output_tokens + m.prompt_tokens),
            },
            latency: Latency {
                ttft: m.ttft.stats(),
                tpot: m.tpot.stats(),
                itl: m.itl.stats(),
                e2e: m.e2e.stats(),
                queue: m.queue.stats(),
                reserve: m.reserve.stats(),
                handoff: m.handoff.stats(),
            },
            goodput: Goodput {
                slo: self.slo,
                requests: m.good,
                share: share(m.good as f64, m.arrived as f64),
                requests_per_s: per_s(m.good),
            },
            tokens: Tokens {
                prompt: m.prompt_tokens,
                output: m.output_tokens,
                computed: m.computed_tokens,
                recomputed: m.recomputed_tokens,
                draft: m.draft_tokens,
                accepted: m.accepted_tokens,
            },
            kv: Kv {
                cached_tokens: m.cached_tokens,
                prefix_hit_share: share(m.cached_tokens as f64, m.prompt_tokens as f64),
                mean_use: share(m.blocks_ns as f64, m.capacity_ns as f64),
                peak_use: m.peak_blocks as f64 / 1e4,
                preemptions: m.preemptions,
                blocks_loaded: m.blocks_loaded,
                tier_moves: m.moves,
                transfers: m.transfers,
                transfer_bytes: m.transfer_bytes,
            },
            steps: Steps {
                steps: m.steps,
                sequence_steps: m.sequence_steps,
                mean_sequences: share(m.sequence_steps as f64, m.steps as f64),
                mean_ms: share(m.busy_ns as f64 / 1e6, m.steps as f64),
                busy_share: share(m.busy_ns as f64, m.up_ns as f64),
                bound: bound.map(|(name, ns)| (name, share(ns as f64, total_ns as f64))).collect(),
                extrapolated: m.extrapolated_steps,
            },
            energy: Energy {
                step_joules,
                idle_joules,
                joules_per_output_token: share(step_joules + idle_joules, m.output_tokens as f64),
                // The histogram is of whole numbers: here microjoules, a million to the joule as
                // nanoseconds to the millisecond.
                per_request: m.request_energy.stats().filter(|_| m.energy_uj > 0).map(|s| {
                    RequestJoules {
                        mean: s.mean_ms,
                        p50: s.p50_ms,
                        p90: s.p90_ms,
                        p99: s.p99_ms,
                        max: s.max_ms,
                    }
                }),
            },
            replicas: self.replica_summary(),
            event_digest: format!("{:016x}", self.digest.0),
            oracle_lengths: self.oracle,
            stopped_early: self.stopped,
        }
    }

    fn replica_summary(&self) -> Replicas {
        let last = (self.metrics.last.0 as f64).max(1.0);
        let busy = self.replicas.iter().map(|r| r.busy_ns as f64 / last);
        let ended = self.replicas.iter().map(|r| r.ended);
        Replicas {
            count: self.replicas.len(),
            mean_up: self.metrics.up_ns as f64 / last,
            least_busy_share: busy.clone().fold(f64::INFINITY, f64::min),
            most_busy_share: busy.fold(0.0, f64::max),
            fewest_requests: ended.clone().min().unwrap_or(0),
            most_requests: ended.max().unwrap_or(0),
        }
    }
}
