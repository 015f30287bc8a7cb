//! The bridge between requests and a backend: sampled tokens, physical KV blocks and the loop that
//! fills batches.
//!
//! Not here: forward passes (a [`dunlin_tensor::Backend`] computes them) and policies of
//! scheduling.
#![forbid(unsafe_code)]

pub mod generate;
mod math;
pub mod sampler;
pub mod text;
