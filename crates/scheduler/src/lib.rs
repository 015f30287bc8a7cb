//! The core: a pure state machine that decides which tokens of which requests go into the next step,
//! and whose KV stays.
//!
//! [`Core::advance`] is told what happened (requests, outcomes of steps, moves that ended) and
//! answers with [`Effects`]: changes to the executor's sequences, the next [`StepPlan`], moves of KV
//! between tiers, tokens and ends of requests. It has no clock, threads, randomness or text; time
//! comes in as an argument, so the engine that serves, the simulator that plans and a replay that
//! checks all run this code, and the same calls give the same plans, byte for byte.
//!
//! - Continuous batching: each step takes one token of every sequence that decodes and fills up with
//!   chunks of prompts ([`Chunking`]).
//! - Requests are taken on in the order of a policy ([`policy`]), when the KV memory that their
//!   prompts actually need can be had; when it runs out later, the last in order gives way
//!   (recomputed, or swapped to the disk tier where that is cheaper).
//! - Prefixes are shared through [`dunlin_kvcache`], also with a prompt that is being computed:
//!   whoever begins like it waits for it instead of computing the same.
//! - Sessions keep their KV between requests; choices of one prompt share its KV.
//! - Drafts are verified as part of any step, as far as they pay (`speculation`); what a drafter
//!   that costs time is asked for is a step of its own.
//!
//! Not here: KV bytes, sampling, text, sockets, and what a step costs beyond a fit of past ones.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod bill;
pub mod checker;
mod config;
mod core;
mod cost;
mod effects;
mod event;
pub mod policy;
mod speculation;

pub use bill::Bill;
pub use config::{
    Admission, Chunking, ConfigError, CoreConfig, MIN_CHUNK, ParseChunkingError, SwapCost,
};
pub use core::{Core, Load};
pub use effects::{
    Effects, End, Entry, Finished, Output, Rejection, SeqOp, SessionError, SessionProblem,
    StepKind, StepPlan,
};
pub use event::{
    Class, Commit, DraftNode, Event, Keep, MAX_BRANCHES, MAX_DRAFT, Proposal, SampleEnd, SessionOp,
    SessionUse, StepOutcome, Submission,
};
pub use speculation::{
    Branch, CONFIDENCE_ONE, DraftControl, DraftWanted, DraftWork, DrafterKind, DrafterStats,
    EnergyBudget, Experts, OUTPUTS, POSITIONS, ParseSpeculateError, Speculate, SpeculationConfig,
    SpeculationStats, TreeLayout,
};
