//! Names that every crate shares, and randomness that depends on where it is used and never on what
//! was drawn before.
//!
//! [`Noise`] answers with the noise of one (seed, choice, position, purpose), lane by lane, from a
//! counter-based generator; batching, chunking and speculation cannot change it. [`SeedTree`]
//! derives independent seeds by name, and [`Stream`] is a plain sequence for code that does want
//! one draw after another (workloads, tests).
//!
//! Not here: distributions, and anything cryptographic.
#![forbid(unsafe_code)]

mod ids;
mod noise;
mod philox;
mod seed_tree;

pub use ids::{RequestId, SeqId, SessionId, StepId, Time};
pub use noise::{Noise, Purpose};
pub use philox::philox4x32_10;
pub use seed_tree::{SeedTree, Stream};
