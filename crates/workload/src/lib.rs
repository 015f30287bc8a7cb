//! Who asks for what, and when.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod arrival;
mod client;
mod compose;
mod dist;
mod error;
mod fit;
mod length;
mod math;
mod merge;
mod population;
mod prefix;
mod request;
mod rollout;
mod session;
pub mod stats;
pub mod trace;

pub use arrival::{ArrivalSpec, Arrivals, GapSpec, MarkovState, RateSpec, Shape};
pub use client::{Client, ClientSpec};
pub use compose::{Workload, WorkloadSpec};
pub use dist::{Dist, DistSpec, Part};
pub use error::SpecError;
pub use fit::fit_clients;
pub use length::{Count, CountSpec, LengthStreams, Lengths, LengthsSpec, MAX_TOKENS};
pub use merge::Merge;
pub use population::PopulationSpec;
pub use prefix::{PrefixPoolSpec, PrefixUse};
pub use request::{ClientId, Content, GroupId, Piece, Request, Wait};
pub use rollout::{Rollout, RolloutSpec};
pub use session::{Context, ConversationSpec, Pacing};
