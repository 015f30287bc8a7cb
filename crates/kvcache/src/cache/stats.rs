//! What a cache has done so far.

use serde::{Deserialize, Serialize};

/// Totals since the cache was made. Tokens are whole blocks' tokens where nothing else is
/// said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CacheStats {
    /// Calls of [`crate::KvCache::lookup`].
    pub lookups: u64,
    /// Tokens that those calls asked about, full blocks only.
    pub lookup_tokens: u64,
    /// Tokens found in memory.
    pub hit_tokens: u64,
    /// Tokens found at the beginning of a block in memory, to be copied: parts of blocks, about which
    /// [`Self::lookup_tokens`] did not ask.
    pub copied_tokens: u64,
    /// Further tokens found on disk.
    pub disk_hit_tokens: u64,
    /// Blocks that entered the index.
    pub registered: u64,
    /// Computed blocks given up because the index had an equal one.
    pub duplicates: u64,
    /// Cached blocks that left memory to make room, with or without a copy on disk.
    pub evictions: u64,
    /// Moves to disk that were started.
    pub demotions: u64,
    /// Those of them that failed.
    pub failed_demotions: u64,
    /// Moves from disk that were started.
    pub loads: u64,
    /// Those of them that failed.
    pub failed_loads: u64,
    /// Disk copies given up to make room for others.
    pub disk_evictions: u64,
}

impl CacheStats {
    /// The share of looked-up tokens that memory had, 0 to 1; 0 before the first look-up.
    pub fn hit_rate(&self) -> f64 {
        if self.lookup_tokens == 0 {
            return 0.0;
        }
        self.hit_tokens as f64 / self.lookup_tokens as f64
    }
}
