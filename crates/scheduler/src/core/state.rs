//! Requests and sequences as the core keeps them, each in a slab.

use dunlin_kvcache::{BlockId, ChainHash, Namespace, TenantId};
use dunlin_units::{RequestId, SessionId, Time};

use crate::{
    bill::Bill,
    effects::End,
    event::{Class, DraftNode, SessionUse},
    speculation::{Speculate, ledger::Credit},
};

use super::speculate::Drafts;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// The slot is not in use.
    #[default]
    Free,
    /// In the queue. May hold KV, if its session did.
    Waiting,
    /// Its KV is coming from the disk tier.
    Loading,
    /// Computed step by step.
    Running,
    /// Of a session, with no request.
    Resting,
    /// Over, but in steps that are in flight: its blocks must not be used again before they end.
    Ending,
}

/// A sequence of tokens and its KV. What every step looks at comes first, so that a step touches few
/// cache lines of it.
#[derive(Debug, Clone, Default)]
#[repr(C, align(64))]
pub(super) struct Seq {
    pub(super) stage: Stage,
    /// The next position needs more than a look: a block that may be shared, choices that part, a
    /// draft.
    pub(super) special: bool,
    /// Choices part when the prompt is computed.
    pub(super) parts: bool,
    /// A draft of it is in flight.
    pub(super) drafting: bool,
    /// Whether it has got a token.
    pub(super) begun: bool,
    /// Steps in flight that have a part of it.
    pub(super) in_flight: u32,
    /// Positions whose KV is there.
    pub(super) computed: u32,
    /// Positions whose KV is there or comes from steps in flight.
    pub(super) planned: u32,
    /// Tokens that steps in flight will choose.
    pub(super) unknown: u32,
    /// Tokens at which it ends.
    pub(super) limit: u32,
    /// Full blocks that are in the prefix index.
    pub(super) registered: u32,
    /// Positions that had been computed before preemptions.
    pub(super) lost: u32,
    /// Which of its request's choices it is.
    pub(super) choice: u32,
    /// Its request's name.
    pub(super) id: RequestId,
    /// The last step that has a part of it.
    pub(super) last_step: u64,
    pub(super) tokens: Vec<u32>,
    /// Block `i` holds positions `i * block_tokens ..`.
    pub(super) table: Vec<BlockId>,
    /// Its part of steps' times and bytes, and counts, since they were added to the request's bill.
    pub(super) tally: Tally,
    /// Slot of its request.
    pub(super) request: u32,
    /// Blocks that were promised at admission and are not allocated yet.
    pub(super) promised: u32,
    /// Where its chain of registered blocks ends.
    pub(super) chain: ChainHash,
    pub(super) namespace: Namespace,
    pub(super) tenant: TenantId,
    /// Order in the queue and among those that run.
    pub(super) rank: Rank,
    /// A draft for the next step.
    pub(super) draft: Vec<DraftNode>,
    /// Which drafters it uses.
    pub(super) speculate: Speculate,
    /// Nodes of its drafts at most.
    pub(super) max_draft: u32,
    /// Branches of these at most.
    pub(super) max_branches: u32,
    /// How far it is ahead of plain decoding.
    pub(super) credit: Credit,
    /// What is known of its drafts.
    pub(super) drafts: Option<Box<Drafts>>,
    /// Moves that it waits for.
    pub(super) loads: u32,
    /// Whether one of them failed.
    pub(super) loads_failed: bool,
    /// When it began to wait for room for what is on disk; reset when it runs.
    pub(super) waits_for_room_since: Option<Time>,
    /// Skipped by admission until this sequence has computed so many positions: they are its own
    /// prompt's, too.
    pub(super) follows: Option<(u32, Rank, u32)>,
}

/// A total order over sequences: idle ones last, then by key, arrival and choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Rank {
    pub(super) idle: bool,
    pub(super) key: Time,
    pub(super) arrival: u64,
    pub(super) choice: u32,
}

/// What a sequence's steps cost.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) ns: u64,
    pub(super) bytes: u64,
    pub(super) output: u64,
    pub(super) recomputed: u64,
    pub(super) drafts: u64,
    pub(super) accepted: u64,
    pub(super) draft_ns: u64,
}

impl Seq {
    /// Its length once the steps in flight are done.
    pub(super) fn total(&self) -> u32 {
        self.tokens.len() as u32 + self.unknown
    }

    /// Whether anything is generated after its tokens.
    pub(super) fn generates(&self) -> bool {
        self.total() < self.limit
    }
}

/// A request under way.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) class: Class,
    pub(super) choices: u32,
    /// Tokens of the session before the prompt.
    pub(super) base: u32,
    /// Base and prompt.
    pub(super) prompt_end: u32,
    /// Whether `limit` is the operator's.
    pub(super) clipped: bool,
    pub(super) session: Option<SessionUse>,
    /// Its sequences by choice; [`NONE`] where one has ended. Only the first until they part.
    pub(super) seqs: Vec<u32>,
    pub(super) ends: Vec<Option<End>>,
    /// Sequences that have not ended.
    pub(super) live: u32,
    /// Sequences that run.
    pub(super) running: u32,
    pub(super) expires: Option<Time>,
    pub(super) admitted: Option<Time>,
    pub(super) first_token: Option<Time>,
    /// Since when none of its sequences runs.
    pub(super) waits_since: Time,
    pub(super) bill: Bill,
}

impl Request {
    pub(super) fn add(&mut self, tally: &mut Tally) {
        let tally = std::mem::take(tally);
        let bill = &mut self.bill;
        bill.output_tokens += tally.output;
        bill.steps += tally.steps;
        bill.computed_tokens += tally.tokens;
        bill.recomputed_tokens += tally.recomputed;
        bill.draft_tokens += tally.drafts;
        bill.accepted_tokens += tally.accepted;
        bill.draft_ns += tally.draft_ns;
        bill.step_share_ns += tally.ns;
        bill.bytes_share += tally.bytes;
    }

    /// One of its sequences begins to run.
    pub(super) fn runs(&mut self, now: Time) {
        self.running += 1;
        if self.running > 1 {
            return;
        }
        let waited = now.since(self.waits_since);
        self.bill.queue_ns += waited;
        match (self.admitted, self.first_token) {
            // Waits are left out of the times that they would otherwise be part of.
            (Some(admitted), None) => self.admitted = Some(admitted.after(waited)),
            (_, Some(first)) => self.first_token = Some(first.after(waited)),
            (None, None) => self.admitted = Some(now),
        }
    }

    /// One of its sequences no longer runs.
    pub(super) fn stops(&mut self, now: Time) {
        self.running -= 1;
        if self.running == 0 {
            self.waits_since = now;
        }
    }

    pub(super) fn got_token(&mut self, now: Time) {
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.bill.prefill_ns = now.since(self.admitted.unwrap_or(now));
        }
    }

    /// Completes the bill.
    pub(super) fn close(&mut self, now: Time) {
        if self.running == 0 {
            self.bill.queue_ns += now.since(self.waits_since);
        }
        let until = if self.running == 0 { self.waits_since } else { now };
        match (self.admitted, self.first_token) {
            (_, Some(first)) => self.bill.decode_ns = until.since(first),
            (Some(admitted), None) => self.bill.prefill_ns = until.since(admitted),
            (None, None) => {}
        }
    }
}

/// KV that outlives requests.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Its sequence.
    pub(super) seq: u32,
    pub(super) tenant: TenantId,
    pub(super) namespace: Namespace,
    /// Whether a request is extending it.
    pub(super) busy: bool,
    /// Whether its KV stays in memory, whoever runs short.
    pub(super) held: bool,
    /// Counts up with each use of any session.
    pub(super) used: u64,
}

/// Values in numbered slots; freed ones are used again, the last first.
#[derive(Debug)]
pub(super) struct Slab<T> {
    pub(super) slots: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = value;
            slot
        } else {
            self.slots.push(value);
            (self.slots.len() - 1) as u32
        }
    }

    /// A slot whose old value, with its memory, may be used again.
    pub(super) fn reuse(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, slot: u32) -> &T {
        &self.slots[slot as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize]
    }
}
