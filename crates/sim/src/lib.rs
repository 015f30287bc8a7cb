//! The simulator: the core that serves, under a virtual clock.
//!
//! [`simulate`] drives the real `dunlin-scheduler` and `dunlin-kvcache` as the engine does; what the
//! engine computes is priced by a cost model instead ([`StepCost`](dunlin_costmodel::StepCost)), and how long answers are is
//! known to an oracle that no policy can ask. So a decision made here is one that the serving code
//! makes when it is told the same.
//!
//! - Time is whole nanoseconds. What happens is ordered by (time, class, replica, sequence),
//!   completions before arrivals; the same seed gives the same [event log](events), byte for byte,
//!   on any number of threads.
//! - Requests stream: nothing holds a trace, and nothing is kept of a request that is over but sums
//!   and histograms ([`metrics`]).
//!
//! Not here: what a step costs, and where requests come from.
#![forbid(unsafe_code)]

pub mod afd;
pub mod chrome;
mod cluster;
pub mod config;
pub mod csv;
mod error;
pub mod events;
mod experts;
mod footprint;
pub mod html;
pub mod links;
pub mod metrics;
pub mod queueing;
pub mod recorded;
mod replica;
mod report;
mod shard;
mod source;
mod speculation;

pub use cluster::{Autoscale, Change, ChangeKind, ClusterSpec, RunOptions, Transfer, simulate};
pub use error::SimError;
pub use experts::{ExpertSpec, ExpertSpread};
pub use footprint::SiteFootprint;
pub use replica::{Prediction, ReplicaSpec, Role, SharedCost, Tier};
pub use report::{ReplicaSummary, Report, Summary};
pub use speculation::{CERTAIN, Speculation};
