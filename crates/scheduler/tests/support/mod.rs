//! What the scheduler's tests share: an executor without a model, and a world in which a core, its
//! checker and that executor run against each other.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests may look outside")]

mod executor;
mod world;

pub use executor::{NullExecutor, Rules};
pub use world::World;

use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace, NamespaceKey};
use dunlin_scheduler::CoreConfig;

/// A small memory without a disk tier.
pub fn cache(block_tokens: usize, block_count: usize) -> CacheConfig {
    CacheConfig {
        block_tokens,
        block_count,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 7,
    }
}

/// Settings with that memory and steps of that size.
pub fn config(block_tokens: usize, block_count: usize, step_tokens: u32) -> CoreConfig {
    CoreConfig::new(cache(block_tokens, block_count), step_tokens)
}

/// A namespace by number.
pub fn namespace(n: u64) -> Namespace {
    Namespace::new(&NamespaceKey { tenant_salt: n, ..NamespaceKey::default() })
}

/// A 64-bit mix of some numbers.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x51_7C_C1_B7_27_22_0A_95, |hash, &part| {
        let mut z = (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z ^ (z >> 29)
    })
}
