//! The core: a pure state machine that decides which tokens of which requests go into the next step,
//! and whose KV stays.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

pub mod bill;
pub mod effects;
pub mod event;

pub use bill::Bill;
pub use effects::{
    Effects, End, Entry, Finished, Output, Rejection, SeqOp, SessionError, SessionProblem, StepKind,
    StepPlan,
};
pub use event::{
    Class, Commit, DraftNode, Event, Keep, Proposal, SampleEnd, SessionOp, SessionUse, StepOutcome,
    Submission,
};
