//! The core's settings.

use std::{fmt, str::FromStr};

use dunlin_kvcache::CacheConfig;
use serde::{Deserialize, Serialize};

use crate::{policy::PolicyKind, speculation::SpeculationConfig};

/// Everything that a core's decisions depend on besides its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoreConfig {
    /// KV memory: blocks, tiers, eviction, the prefix cache.
    pub cache: CacheConfig,
    /// The most tokens of a step, drafts included.
    pub max_step_tokens: u32,
    /// The most sequences that run at once; no more than `max_step_tokens` do.
    pub max_running: u32,
    /// The most requests that wait; more are rejected.
    pub max_waiting: u32,
    /// Steps that may be planned before the first of them is done: 1, or 2 to plan one while another
    /// runs.
    pub steps_in_flight: u32,
    /// How much prompt goes into a step beside sequences that decode.
    pub chunking: Chunking,
    /// In which order requests are taken on.
    pub policy: PolicyKind,
    /// How much memory a request must find to be taken on.
    pub admission: Admission,
    /// The operator's limit on the output tokens of a choice.
    pub clip_tokens: Option<u32>,
    /// What preemption has to decide by.
    pub swap: SwapCost,
    /// How drafts are asked for and cut.
    pub speculation: SpeculationConfig,
}

impl CoreConfig {
    /// Usual settings for this much KV memory and steps of this size.
    pub fn new(cache: CacheConfig, max_step_tokens: u32) -> Self {
        Self {
            cache,
            max_step_tokens,
            max_running: 256,
            max_waiting: 1 << 20,
            steps_in_flight: 1,
            chunking: Chunking::default(),
            policy: PolicyKind::Fcfs,
            admission: Admission::default(),
            clip_tokens: None,
            swap: SwapCost::default(),
            speculation: SpeculationConfig::default(),
        }
    }

    /// Whether a core can run with these settings.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = [
            ("cache.block_tokens", self.cache.block_tokens as u64),
            ("cache.block_count", self.cache.block_count as u64),
            ("max_step_tokens", u64::from(self.max_step_tokens)),
            ("max_running", u64::from(self.max_running)),
            ("steps_in_flight", u64::from(self.steps_in_flight)),
        ];
        if let Some((setting, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError { setting, problem: "it is 0" });
        }
        if self.steps_in_flight > 2 {
            return Err(ConfigError { setting: "steps_in_flight", problem: "it is more than 2" });
        }
        if let Chunking::Slowdown { percent } = self.chunking
            && percent <= 100
        {
            return Err(ConfigError {
                setting: "chunking.slowdown",
                problem: "it is not above 100%, which leaves prompts no time at all",
            });
        }
        Ok(())
    }
}

/// A setting that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct ConfigError {
    /// Which.
    pub setting: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// How much memory a request must find to be taken on, and what it waits for besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Room for its prompt, a token, and a block for every fourth that runs, so that few give way
    /// soon after. Whoever begins like a prompt that is being computed waits for it.
    #[default]
    Headroom,
    /// Room for its prompt, and nothing else, as vLLM 0.19 takes requests on: more run at once, and
    /// more of them give way.
    Prompt,
}

/// How much prompt goes into a step beside sequences that decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Chunking {
    /// As much as the step holds: the most throughput.
    #[default]
    Full,
    /// So many tokens at most.
    Tokens(u32),
    /// So much that the step takes at most this percentage of the time that it would take without,
    /// by the costs measured so far; [`MIN_CHUNK`] tokens at least.
    Slowdown {
        /// The percentage, above 100.
        percent: u32,
    },
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Tokens(tokens) => write!(f, "{tokens}"),
            Self::Slowdown { percent } => write!(f, "{percent}%"),
        }
    }
}

/// Not a way to cut prompts into chunks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no chunking: it is `full`, a number of tokens, or a percentage above 100 (`225%`)"
)]
pub struct ParseChunkingError(String);

impl FromStr for Chunking {
    type Err = ParseChunkingError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let chunking = match s.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(|percent| Self::Slowdown { percent }),
            None if s == "full" => Some(Self::Full),
            None => s.parse().ok().map(Self::Tokens),
        };
        chunking
            .filter(|c| !matches!(c, Self::Tokens(0) | Self::Slowdown { percent: 0..=100 }))
            .ok_or_else(|| ParseChunkingError(s.to_string()))
    }
}

/// Prompt tokens that a step takes at least where it holds them, so that prompts always get on.
pub const MIN_CHUNK: u32 = 8;

/// What moving KV to the disk tier and back costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapCost {
    /// Bytes of a KV block.
    pub block_bytes: u64,
    /// Bytes a second that the disk tier takes or gives.
    pub bytes_per_s: u64,
}

impl Default for SwapCost {
    fn default() -> Self {
        Self { block_bytes: 0, bytes_per_s: 500_000_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunkings_are_read_as_they_are_written() {
        for chunking in [Chunking::Full, Chunking::Tokens(96), Chunking::Slowdown { percent: 225 }]
        {
            assert_eq!(chunking.to_string().parse(), Ok(chunking));
        }
        for bad in ["", "0", "100%", "-5", "%", "1e9", "full%", "99999999999"] {
            assert!(bad.parse::<Chunking>().is_err(), "{bad}");
        }
    }
}
