//! Logical KV: which block holds what.
//!
//! [`KvCache`] gives out memory blocks by id, counts references to them, and keeps full blocks that
//! were computed in an index of prefixes, so that another sequence that starts with the same tokens
//! shares them. When memory runs out, an [`EvictionPolicy`] names the cached block to give up; with
//! a disk tier its content moves there and can be loaded again. Tenants have budgets of blocks, and
//! a [`Namespace`] decides who may share with whom.
//!
//! How callers use it:
//!
//! - [`KvCache::lookup`] takes a reference on every block it finds, in order of position, and
//!   returns a cursor ([`ChainHash`]). [`KvCache::allocate`] gives blocks for the rest. When a block
//!   is full and computed, [`KvCache::register`] enters it at the cursor and moves that on.
//! - Only [`KvCache::release`] gives references back. In particular, when a load fails the blocks
//!   stay referenced by whoever loaded them, with content that nobody knows and no place in the
//!   index; the caller cuts its table with [`KvCache::release_table`].
//! - [`KvCache::begin_load`] returns the cursor behind what it loads and appends its moves to a
//!   list; moves that evictions decide are fetched with [`KvCache::take_moves`].
//! - While a demotion is in flight its block can still be found and shared, which keeps it in
//!   memory, but it is not given out. Where room can only be made by demoting,
//!   [`KvCache::allocate`] starts as many demotions as it needs and returns `None`; calling again
//!   before they are done starts no more.
//!
//! Everything is decided by the calls alone: no clock, no randomness, no threads, no hash order.
//! A call that breaks the contract (releasing what nobody holds, say) panics.
//!
//! Not here: the bytes of KV, their layout, and anything about time.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod cache;
mod config;
pub mod eviction;
mod index;
mod moves;
mod namespace;
mod tenants;

pub use cache::{CacheStats, ChainHash, KvCache, Match};
pub use config::{CacheConfig, EvictionKind, ParseEvictionError};
pub use eviction::EvictionPolicy;
pub use moves::{Move, MoveId, Place};
pub use namespace::{Namespace, NamespaceKey, TenantId};

/// A memory block, `0..block_count`. Block tables are lists of these.
pub type BlockId = u32;
