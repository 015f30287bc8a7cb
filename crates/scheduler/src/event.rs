//! What the core is told: requests, what came of steps and of moves, changes to sessions.

use std::sync::Arc;

use dunlin_kvcache::{MoveId, Namespace, TenantId};
use dunlin_units::{RequestId, SeqId, SessionId, StepId, Time};
use serde::{Deserialize, Serialize};

use crate::speculation::{DraftWork, DrafterKind, Speculate};

/// Something that happened since the last call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A request arrives.
    Submit(Box<Submission>),
    /// A request is no longer wanted. Unknown and finished requests are ignored.
    Abort(RequestId),
    /// The step in flight that is oldest has ended.
    StepDone(Box<StepOutcome>),
    /// A move of KV between tiers has ended.
    MoveDone {
        /// Which.
        id: MoveId,
        /// Whether the data arrived.
        ok: bool,
    },
    /// A change to a session.
    Session(SessionOp),
}

/// A request to generate from a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// Its name: one that no unfinished request has.
    pub request: RequestId,
    /// On whose behalf.
    pub tenant: TenantId,
    /// The root of the prompt's hash chain: only requests of one namespace share KV.
    pub namespace: Namespace,
    /// The prompt, at least one token. In a session, the tokens to append to it.
    pub prompt: Arc<[u32]>,
    /// How many continuations of the prompt; they share its KV.
    pub choices: u32,
    /// The most tokens of each choice. Zero computes the prompt's KV and nothing else.
    pub max_tokens: u32,
    /// Who goes first.
    pub class: Class,
    /// When the first token is due, for policies that look at it.
    pub due: Option<Time>,
    /// When the request ends whatever has become of it.
    pub expires: Option<Time>,
    /// The expected number of output tokens, for policies that look at it.
    pub predicted_tokens: Option<u32>,
    /// The session that the prompt continues.
    pub session: Option<SessionUse>,
    /// Which drafters it uses.
    pub speculate: Speculate,
    /// Draft nodes that a step verifies for one of its choices at most.
    pub max_draft: u32,
    /// Branches of such a draft at most; 1 for chains.
    pub max_branches: u32,
}

impl Submission {
    /// One continuation of `prompt` at normal priority.
    pub fn new(
        request: RequestId,
        namespace: Namespace,
        prompt: impl Into<Arc<[u32]>>,
        max_tokens: u32,
    ) -> Self {
        Self {
            request,
            tenant: TenantId(0),
            namespace,
            prompt: prompt.into(),
            choices: 1,
            max_tokens,
            class: Class::Normal,
            due: None,
            expires: None,
            predicted_tokens: None,
            session: None,
            speculate: Speculate::default(),
            max_draft: MAX_DRAFT,
            max_branches: MAX_BRANCHES,
        }
    }
}

/// Draft nodes of a sequence that a step verifies at most, where nobody says otherwise.
pub const MAX_DRAFT: u32 = 31;

/// Branches of a draft at most, where nobody says otherwise.
pub const MAX_BRANCHES: u32 = 8;

/// Priority. A higher class is admitted first and may preempt a lower one; within a class the policy
/// decides.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Class {
    /// Runs only while nothing else does, and is put back at once when something else arrives.
    Idle,
    /// Below normal: batches that may wait.
    Low,
    /// The usual.
    #[default]
    Normal,
    /// Above normal.
    High,
}

/// How a request continues a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUse {
    /// Which; it comes into being with its first request.
    pub session: SessionId,
    /// What becomes of the prompt and the answer.
    pub keep: Keep,
}

/// What a session keeps of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// The prompt and the first choice's tokens. One request at a time.
    All,
    /// The prompt, without the answer. One request at a time.
    Prompt,
    /// Nothing: the session is as before. Any number at a time.
    Nothing,
}

/// A change to a session, between requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum SessionOp {
    /// A new session that begins as a copy; the KV is shared.
    Fork {
        /// The one copied.
        from: SessionId,
        /// The new one's name.
        to: SessionId,
    },
    /// Forgets all but the first `tokens` tokens.
    Rewind {
        /// Which.
        session: SessionId,
        /// Tokens that stay.
        tokens: u32,
    },
    /// A session whose KV the executor is going to fill in from elsewhere, before the next step.
    Restore {
        /// The new session's name.
        session: SessionId,
        /// On whose behalf.
        tenant: TenantId,
        /// The root of its hash chain.
        namespace: Namespace,
        /// All of its tokens; each has its KV.
        tokens: Arc<[u32]>,
    },
    /// Ends the session. Not while a request extends it: abort that first. Requests that keep nothing
    /// have copies of their own and go on.
    Close(SessionId),
    /// Whether the session's KV stays in memory while no request uses it, whoever runs short: KV on
    /// its way to or from another machine, which cannot be found again otherwise. Whoever holds must
    /// let go, use it or close it: what is held for ever may leave a request waiting for ever.
    Hold {
        /// Which; it may have a request that extends it.
        session: SessionId,
        /// Whether it stays.
        held: bool,
    },
}

/// What came of a step: the tokens of each sequence that was to be sampled, in the order of
/// [`StepPlan::samples`](crate::StepPlan::samples).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepOutcome {
    /// Which step.
    pub step: StepId,
    /// Nanoseconds that it took.
    pub duration_ns: u64,
    /// Bytes that it read and wrote, where the executor can tell.
    pub bytes: u64,
    /// Microjoules that it took, measured or modelled; 0 where nobody can tell.
    pub microjoules: u64,
    /// One for each entry of the plan's `samples`.
    pub commits: Vec<Commit>,
    /// The tokens of all commits, one after the other.
    pub tokens: Vec<u32>,
    /// Entries of the plan (by index) whose sequences could not be computed; they have no commits
    /// that count.
    pub failed: Vec<u32>,
    /// Continuations that drafters propose.
    pub proposals: Vec<Proposal>,
    /// What a draft step took.
    pub work: DraftWork,
}

/// The tokens that a sequence gained in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Commit {
    /// How many; more than one where drafts were accepted.
    pub tokens: u32,
    /// Whether the sequence ends with the last of them, and why.
    pub end: Option<SampleEnd>,
}

/// Why a sampled sequence ends, other than by its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SampleEnd {
    /// A stop token or a stop string.
    Stop,
    /// No token could be chosen.
    Error,
}

/// A tree of tokens that may follow a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Whose.
    pub seq: SeqId,
    /// From whom.
    pub drafter: DrafterKind,
    /// The nodes, parents first. What is worth most should come first: a tree that is too large is cut
    /// at its end.
    pub nodes: Vec<DraftNode>,
}

/// A token of a draft tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftNode {
    /// The token.
    pub token: u32,
    /// Its parent's index in the tree, or [`DraftNode::ROOT`] to follow the sequence itself.
    pub parent: u32,
    /// The drafter's confidence in this token, given its parent, in 1/65536.
    pub confidence: u32,
    /// Who says so: a tree may be of more than one drafter.
    pub drafter: DrafterKind,
}

impl DraftNode {
    /// The parent of nodes that directly follow the sequence.
    pub const ROOT: u32 = u32::MAX;
}
