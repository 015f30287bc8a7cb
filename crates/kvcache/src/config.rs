//! Settings of a cache.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a cache is made of. None of it changes while the cache lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// Tokens in a block.
    pub block_tokens: usize,
    /// Blocks in memory.
    pub block_count: usize,
    /// Blocks that fit in the disk tier; 0 where there is none.
    pub disk_slots: usize,
    /// Which cached block goes first.
    pub eviction: EvictionKind,
    /// Whether computed blocks are kept for other sequences at all.
    pub prefix_cache: bool,
    /// Keys the hashes of the index. It changes no result, only where entries lie.
    pub hash_seed: u64,
}

/// An eviction policy, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvictionKind {
    /// The least recently used.
    Lru,
    /// The least often used, then the least recently.
    Lfu,
    /// The first to have come.
    Fifo,
    /// The least frequency times cost of recomputation, with aging.
    Gdsf,
    /// Adaptive replacement: recency and frequency, balanced by what was evicted too early.
    Arc,
}

impl EvictionKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Lru, Self::Lfu, Self::Fifo, Self::Gdsf, Self::Arc];

    /// The name that [`FromStr`] reads.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
            Self::Gdsf => "gdsf",
            Self::Arc => "arc",
        }
    }
}

impl fmt::Display for EvictionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no eviction policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no eviction policy is called {0:?}: lru, lfu, fifo, gdsf or arc")]
pub struct ParseEvictionError(pub String);

impl FromStr for EvictionKind {
    type Err = ParseEvictionError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| ParseEvictionError(name.to_string()))
    }
}
