//! A run of the real engine beside simulations of it: whether the simulator decides the same when it
//! is told how long each step took, and what a cost model alone gets wrong.
//!
//! - [`Recording`] is the real side: what the core was told and when, step by step and request by
//!   request, from a record of its calls.
//! - [`decisions`] feeds the recorded step times to the simulator. Every step must have the same
//!   sequences, tokens and contexts in the same order, and every request must get its first token
//!   and its end at the same nanosecond.
//! - [`predict`] asks a cost model for the step times instead; [`Sides`] compares.

mod decide;
mod recording;
mod sides;

pub use decide::{Decisions, decisions, predict};
pub use recording::{Recorded, Recording};
pub use sides::{Comparison, Figures, RequestTimes, Sides};
