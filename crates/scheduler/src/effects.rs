//! What the core decides: operations on sequences, the next step, moves of KV, and what has become
//! of requests.

use std::sync::Arc;

use dunlin_kvcache::{BlockId, Move};
use dunlin_units::{RequestId, SeqId, SessionId, StepId};
use serde::{Deserialize, Serialize};

use crate::{bill::Bill, event::DraftNode, speculation::DraftWanted};

/// The answer to one [`advance`](crate::Core::advance). Cleared and filled by each call; keep one
/// and its memory is used again.
///
/// Carry it out in this order: `ops` one by one, then `moves` may begin, then `plan`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Effects {
    /// Changes to the executor's sequences.
    pub ops: Vec<SeqOp>,
    /// Moves of KV between tiers. A step that reads what a move brings is planned only after it has
    /// ended.
    pub moves: Vec<Move>,
    /// The step to run; steps run in the order in which they were planned.
    pub plan: Option<StepPlan>,
    /// Tokens that became part of outputs.
    pub outputs: Vec<Output>,
    /// Requests that are over.
    pub finished: Vec<Finished>,
    /// Session operations that cannot be done.
    pub session_errors: Vec<SessionError>,
    /// Memory of the last plan, to be used again.
    #[serde(skip)]
    pub(crate) spare_plan: StepPlan,
}

impl Effects {
    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.moves.clear();
        if let Some(plan) = self.plan.take() {
            self.spare_plan = plan;
        }
        self.outputs.clear();
        self.finished.clear();
        self.session_errors.clear();
    }
}

impl PartialEq for Effects {
    fn eq(&self, other: &Self) -> bool {
        // Everything but the memory that is kept.
        (&self.ops, &self.moves, &self.plan, &self.outputs, &self.finished, &self.session_errors)
            == (
                &other.ops,
                &other.moves,
                &other.plan,
                &other.outputs,
                &other.finished,
                &other.session_errors,
            )
    }
}

/// A change to a sequence of the executor's: its tokens and the table of its KV blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeqOp {
    /// A new sequence without tokens or blocks.
    Start {
        /// Its name.
        seq: SeqId,
        /// The request whose parameters sample it; none for a session at rest.
        request: Option<RequestId>,
        /// Which of the request's choices it is.
        choice: u32,
    },
    /// A new sequence with the first `tokens` tokens of another and the blocks that hold their KV.
    Fork {
        /// The one copied.
        from: SeqId,
        /// Its name.
        to: SeqId,
        /// Tokens copied.
        tokens: u32,
        /// Blocks copied: those that hold KV computed already or in steps planned.
        blocks: u32,
        /// The request whose parameters sample the new one.
        request: Option<RequestId>,
        /// Which of the request's choices it is.
        choice: u32,
    },
    /// From now on the sequence belongs to another request, or to none.
    Assign {
        /// Which sequence.
        seq: SeqId,
        /// Its request.
        request: Option<RequestId>,
        /// Which of the request's choices it is.
        choice: u32,
    },
    /// Tokens are appended; their KV is not there yet.
    Append {
        /// Which sequence.
        seq: SeqId,
        /// The tokens.
        tokens: Arc<[u32]>,
    },
    /// The sequence forgets all but its first tokens, and all but its first blocks.
    Truncate {
        /// Which sequence.
        seq: SeqId,
        /// Tokens that stay.
        tokens: u32,
        /// Blocks that stay.
        blocks: u32,
    },
    /// A block is appended to the sequence's table.
    Block {
        /// Which sequence.
        seq: SeqId,
        /// The block.
        block: BlockId,
    },
    /// Another block, with the same KV, takes a place in the table.
    Replace {
        /// Which sequence.
        seq: SeqId,
        /// The place.
        index: u32,
        /// The block that takes it.
        block: BlockId,
    },
    /// The first positions of a block are copied to another.
    Copy {
        /// The block read.
        from: BlockId,
        /// The block written.
        to: BlockId,
        /// Positions.
        tokens: u32,
    },
    /// The KV of the sequence's tokens is to be filled in from outside, before the next step.
    Fill {
        /// Which sequence.
        seq: SeqId,
        /// For which session.
        session: SessionId,
    },
    /// The sequence is over; its name may be used again.
    End {
        /// Which.
        seq: SeqId,
    },
}

/// One forward pass over parts of several sequences.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepPlan {
    /// Its number.
    pub step: StepId,
    /// What it is for.
    pub kind: StepKind,
    /// The parts; each sequence at most once. Sequences that decode come first, then chunks of
    /// prompts.
    pub entries: Vec<Entry>,
    /// The sequences that get tokens, entry by entry (see [`Entry::samples`]).
    pub samples: Vec<SeqId>,
    /// The draft nodes of all entries (see [`Entry::draft`]).
    pub draft: Vec<DraftNode>,
    /// Blocks for the branches of drafts, entry by entry (see [`Entry::scratch`]).
    pub scratch: Vec<BlockId>,
    /// In a draft step, which has no entries: the drafts that are asked for, each of another
    /// sequence.
    pub wanted: Vec<DraftWanted>,
}

/// What a step is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum StepKind {
    /// The model runs, and the tokens that it chooses count.
    #[default]
    Run,
    /// Drafters run, and propose.
    Draft,
}

/// A sequence's part of a step: `tokens` of its tokens from `first_position` on (a token that the
/// step before chooses may be among them), then `draft` nodes that follow them as a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Which.
    pub seq: SeqId,
    /// The absolute position of the first token. Every earlier position's KV is there, or comes from
    /// a step planned before.
    pub first_position: u32,
    /// Tokens of the sequence's own to compute, at least one.
    pub tokens: u32,
    /// Draft nodes that follow; the next so many of the plan's.
    pub draft: u32,
    /// Blocks for the draft's branches other than the first, which nobody else has until the step is
    /// done; the next so many of the plan's. [`TreeLayout`](crate::TreeLayout) says which branches
    /// there are and how many blocks each needs, in order. What is accepted of a branch is in the
    /// sequence's own blocks when the step is done.
    pub scratch: u32,
    /// How many sequences get a token from the logits of the last token; the next so many of the
    /// plan's `samples`. None in a chunk of a prompt that is not its last; more than one where the
    /// choices of a request part. With a draft it is one, and gets as many tokens as are accepted
    /// and one.
    pub samples: u32,
}

/// A token of a request's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Whose.
    pub request: RequestId,
    /// In which choice.
    pub choice: u32,
    /// The token.
    pub token: u32,
}

/// A request that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Which.
    pub request: RequestId,
    /// Why, for each choice; one for all where the choices had not parted.
    pub ends: Vec<End>,
    /// What it cost.
    pub bill: Bill,
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens` was reached. (Zero tokens wanted: the prompt's KV is there.)
    Length,
    /// The limit that the operator set was reached before `max_tokens`.
    Clipped,
    /// The request was aborted.
    Aborted,
    /// Its time was up.
    Expired,
    /// No token could be chosen, or the backend could not compute it.
    Error,
    /// It was never taken on.
    Rejected(Rejection),
}

/// Why a request cannot be taken on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// No prompt.
    #[error("the prompt is empty; it needs at least one token")]
    EmptyPrompt,
    /// No choices, or more than a step can hold.
    #[error("{choices} choices were asked for; it can be 1 to {limit}")]
    BadChoices {
        /// Asked for.
        choices: u32,
        /// The most.
        limit: u32,
    },
    /// Even alone it would not fit.
    #[error(
        "the request can come to need {needed} KV blocks of {block_tokens} tokens, and there are {available}"
    )]
    TooLarge {
        /// Blocks needed.
        needed: u64,
        /// Blocks that its tenant may have.
        available: u64,
        /// Tokens of a block.
        block_tokens: u32,
    },
    /// The queue is full.
    #[error("{waiting} requests are waiting already, as many as may")]
    QueueFull {
        /// Waiting.
        waiting: u32,
    },
    /// A request of that name is there already.
    #[error("a request of that name is there already")]
    Duplicate,
    /// The session has a request under way that extends it, or others use it.
    #[error("the session is in use by another request")]
    SessionBusy,
    /// The session belongs to another tenant or to other settings.
    #[error("the session belongs to another tenant or was made with other settings")]
    SessionForeign,
}

/// A session operation that could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionError {
    /// The session that the operation is on.
    pub session: SessionId,
    /// Why not.
    pub problem: SessionProblem,
}

/// Why a session operation cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SessionProblem {
    /// There is none of that name.
    #[error("there is no such session")]
    Unknown,
    /// There is one of that name already.
    #[error("a session of that name is there already")]
    Exists,
    /// A request is extending it.
    #[error("a request is using the session")]
    Busy,
    /// A rewind to more tokens than there are.
    #[error("the session has fewer tokens than that")]
    TooShort,
    /// No KV blocks can be had for it.
    #[error("there is no KV memory for the session")]
    NoMemory,
}
