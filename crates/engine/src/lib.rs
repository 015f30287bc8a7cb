//! The real driver of the core: it has what the core must not have, a clock, threads, files.
//!
//! [`Engine`] runs a model on the caller's thread: requests in, steps one after the other, results
//! out. [`EngineThread`] owns an engine on a thread of its own, for callers that are many. Around
//! them: the tier of KV on disk, sessions in files, questions answered ahead of time, the
//! [recorder] whose files replay to the same plans, and the bill with its joules.
//!
//! Not here: what runs when (the scheduler decides), forward passes and sampling (the executor has
//! them done), and protocols.
#![forbid(unsafe_code)]

mod bill;
mod config;
mod energy;
mod engine;
mod flash;
mod job;
pub mod recorder;
mod request;
mod session;
mod session_file;
mod session_prune;
mod thread;
mod tier;

pub use bill::{Bill, SpeculationContract};
pub use config::{DiskTierConfig, EngineConfig, EngineError, ModelIdentity};
pub use dunlin_executor::{PositionLogprobs, drafter, text::TextOptions};
pub use dunlin_scheduler::{
    DraftControl, DrafterKind, DrafterStats, EnergyBudget, MAX_BRANCHES, MAX_DRAFT, OUTPUTS,
    Speculate, SpeculationStats,
};
pub use energy::{EnergySource, Joules};
pub use engine::{Engine, EngineStats, Totals};
pub use flash::{Asked, QuestionId};
pub use request::{
    CancelFlag, Choice, Completion, ContextOverflow, Event, Finish, Request, RequestError,
};
pub use session::SessionFailure;
pub use session_file::SessionFileError;
pub use thread::{
    EngineGone, EngineHandle, EngineThread, RequestEvent, RequestHandle, SubmitError,
};
