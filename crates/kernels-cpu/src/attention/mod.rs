//! Causal grouped-query attention over KV blocks.
//!
//! # What is computed
//! For each query row (a token and a head): scores against every stored key that it may see,
//! `p = exp(score - max)`, and the mean of the stored values weighted by `p`. The result depends
//! on the stored KV of the visible positions and on the layer's shape alone, to the last bit:
//!
//! - Queries are multiplied by `score_scale` once; a score is then one chain of fused
//!   multiply-adds over the features in ascending order, on keys converted exactly to f32. Where
//!   the layer caps scores, that follows.
//! - Positions are cut into **segments** of [`SEGMENT_TOKENS`] at absolute borders. Within one the
//!   maximum is exact, the sum of `p` has 32 virtual lanes (position modulo 32) and a fixed tree,
//!   and each output feature is one chain over the positions in ascending order.
//! - Segments are merged one by one in ascending order: `m = max(m1, m2)`, both sides scaled by
//!   `exp(m_i - m)`. At the end the output is divided by the sum.
//!
//! Lanes that a query must not see are left out by loop limits or selected away, never multiplied:
//! whatever they hold, it does not matter.
//!
//! # How it is spread over threads
//! A [`Plan`] cuts a step's batch into items, once for all layers of a shape. [`AttnJob`] runs the
//! items of one layer on any number of threads. How a plan is cut changes no result. Sequences that
//! share a prefix name the same blocks; a plan notices, and reads such blocks once for several
//! sequences. Each query's chain of operations stays its own.
//!
//! This module knows nothing of masks other than causal ones with an optional sliding window.

mod item;
mod job;
mod later;
mod plan;
mod segment;
mod share;
mod softmax;
mod tiles;

pub use job::{AttnJob, AttnScratch, AttnTensors, attend};
pub use plan::{AttnSequence, AttnShape, Plan};

use crate::kv::BLOCK_TOKENS;

/// Positions of a segment, a whole number of blocks.
pub const SEGMENT_TOKENS: usize = 512;

/// The most features of a query or key head.
pub const MAX_HEAD_DIM: usize = 512;

const _: () = assert!(SEGMENT_TOKENS.is_multiple_of(BLOCK_TOKENS));

#[cfg(test)]
mod tests;
