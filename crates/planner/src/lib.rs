//! Planning: cost models calibrated on steps that ran, their validation against the engine, and a
//! search over configurations for a goal.
//!
//! - [`calibrate`]: from the record of a run to a fitted cost model and its errors.
//! - [`validate`]: the real engine beside its simulation.
//! - [`plan`]: the search, and its answer.
//!
//! Not here: files, clocks and the engine itself; whoever has those hands in what they say.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod plan;
pub mod stats;
pub mod validate;
pub mod workload;
