//! A replica, described.

use std::sync::Arc;

use dunlin_costmodel::StepCost;
use dunlin_scheduler::CoreConfig;

use crate::{experts::ExpertSpec, speculation::Speculation};

/// A cost model that threads share.
pub type SharedCost = Arc<dyn StepCost + Send + Sync>;

/// A replica, described.
#[derive(Clone)]
pub struct ReplicaSpec {
    /// The core's settings.
    pub core: CoreConfig,
    /// What a step costs.
    pub cost: SharedCost,
    /// Nanoseconds between steps that the host needs; hidden where two steps may be in flight.
    pub host_ns: u64,
    /// Its speed beside others, for placement.
    pub weight: u32,
    /// The most output tokens that a request may ask for; without, what the KV memory holds.
    pub max_output_tokens: Option<u32>,
    /// What the scheduler is told of output lengths.
    pub prediction: Prediction,
    /// A drafter.
    pub speculation: Option<Speculation>,
    /// Bytes of a KV block, for what moves.
    pub block_bytes: u64,
    /// Where KV goes that leaves memory, if the core has slots for it.
    pub tier: Tier,
    /// What it does.
    pub role: Role,
    /// Bytes a second of its link to others, out and in; for hand-over of KV.
    pub link_bytes_per_s: u64,
    /// How tokens spread over experts, in models that have them.
    pub experts: Option<ExpertSpec>,
    /// Power of the replica while it is on, beside that of its steps, in microwatts.
    pub idle_uw: u64,
    /// Carbon of making it, for each hour of its life, in micrograms of CO2-equivalent.
    pub embodied_ugco2_per_hour: u64,
}

impl std::fmt::Debug for ReplicaSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaSpec").field("core", &self.core).finish_non_exhaustive()
    }
}

impl ReplicaSpec {
    /// A replica without anything special.
    pub fn new(core: CoreConfig, cost: SharedCost) -> Self {
        Self {
            core,
            cost,
            host_ns: 0,
            weight: 1,
            max_output_tokens: None,
            prediction: Prediction::None,
            speculation: None,
            block_bytes: 0,
            tier: Tier::default(),
            role: Role::Mixed,
            link_bytes_per_s: 0,
            experts: None,
            idle_uw: 0,
            embodied_ugco2_per_hour: 0,
        }
    }

    /// The most output tokens that a prompt of so many tokens may be followed by.
    pub fn output_limit(&self, prompt_tokens: u32) -> u32 {
        let cache = &self.core.cache;
        // One block more may be needed for a moment, where one is copied.
        let positions = cache.block_count.saturating_sub(1) * cache.block_tokens;
        let positions = u32::try_from(positions).unwrap_or(u32::MAX).min(u32::MAX / 2 - 1);
        let room = positions.saturating_sub(prompt_tokens);
        self.max_output_tokens.map_or(room, |most| most.min(room))
    }
}

/// What the scheduler is told of the lengths of answers before they are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prediction {
    /// Nothing.
    #[default]
    None,
    /// The truth, which no real system has: results say so.
    Oracle,
    /// The truth times a factor drawn evenly from `1 / (1 + error)` to `1 + error` (percent).
    Noisy {
        /// The error in percent.
        percent: u32,
    },
}

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prompts and answers.
    #[default]
    Mixed,
    /// Prompts, and the first token of each answer.
    Prefill,
    /// The rest of the answers.
    Decode,
}

/// The tier below memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// Bytes a second, both ways together.
    pub bytes_per_s: u64,
    /// Nanoseconds before a move's first byte.
    pub latency_ns: u64,
}

impl Default for Tier {
    fn default() -> Self {
        Self { bytes_per_s: 3_000_000_000, latency_ns: 100_000 }
    }
}
