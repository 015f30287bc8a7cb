//! What keeps a simulation from being run, or from coming to an end.

use dunlin_scheduler::ConfigError;
use dunlin_units::Time;
use dunlin_workload::trace::TraceError;

/// A simulation that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// No replicas.
    #[error("the cluster has no replicas; it needs at least one")]
    NoReplicas,
    /// A setting of a core that makes no sense.
    #[error("replica {replica}: {problem}")]
    Core {
        /// Which replica.
        replica: u32,
        /// What is wrong.
        problem: ConfigError,
    },
    /// A setting of the cluster that makes no sense.
    #[error("{setting}: {problem}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What is wrong with it, and what would do.
        problem: String,
    },
    /// A trace that cannot be read on.
    #[error("the trace: {0}")]
    Trace(#[from] TraceError),
    /// A request that arrives before the one before it.
    #[error(
        "request {number} arrives at {} ns, and the one before it at {} ns: a workload is in order of arrival",
        at.0, before.0
    )]
    Unsorted {
        /// Its number, from 0.
        number: u64,
        /// When it arrives.
        at: Time,
        /// When the one before it arrived.
        before: Time,
    },
    /// Requests that wait for what never comes.
    #[error("{count} requests wait for what never ends: {example}")]
    Stuck {
        /// How many.
        count: u64,
        /// One of them, and what it waits for.
        example: String,
    },
    /// Requests that were ready and could not be served, as no replica was up and none would be.
    #[error("{count} requests found no replica that takes requests, and none was to come up")]
    Nowhere {
        /// How many.
        count: u64,
    },
    /// A core broke a promise: a fault in this program.
    #[error("the plan checker found a fault in the scheduler: {0}")]
    Violation(String),
}
