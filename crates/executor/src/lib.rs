//! The bridge between the core's plans and a backend: sequences with their block tables, batches,
//! sampled tokens, stop strings.
//!
//! An [`Executor`] does what a plan says and nothing else: it turns the plan's entries, prefill
//! chunks and decodes of many sequences mixed, into one forward pass without padding, chooses the
//! tokens and tells what came of it.
//!
//! Not here: forward passes (a [`dunlin_tensor::Backend`] computes them), decisions about what runs
//! when (the scheduler's), clocks and threads that outlive a call (the engine's).
#![forbid(unsafe_code)]

mod constraint;
pub mod drafter;
mod draw;
mod drawn;
mod generation;
mod math;
pub mod sampler;
mod sequence;
mod step;
pub mod text;
mod tree;

pub use generation::{ChoiceEnd, ChoiceState, Generation, GenerationParams, PositionLogprobs};
pub use step::Executor;
