//! The state machine.

mod admit;
mod commit;
mod plan;
mod preempt;
mod sessions;
mod speculate;
mod state;
mod submit;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use dunlin_kvcache::{BlockId, KvCache, MoveId};
use dunlin_units::{RequestId, SeqId, SessionId, StepId, Time};

use crate::{
    config::{ConfigError, CoreConfig},
    cost::{StepCost, StepShape},
    effects::{Effects, Entry, SeqOp, StepPlan},
    event::Event,
    policy::Policy,
    speculation::DraftWanted,
};
use speculate::Speculation;
use state::{NONE, Rank, Request, Seq, Session, Slab, Stage};

/// Decides which tokens of which requests go into the next step, and whose KV stays.
///
/// Pure: the same settings and the same calls give the same effects, to the last bit, on every
/// machine. It does not fail: a bad request becomes an effect; what must never happen is an
/// assertion that stays on.
///
/// # Invariants
/// - **Liveness**: while there is an unfinished request, a step or a move is in flight, or
///   [`Core::next_deadline`] says when to call again, or the caller holds a session's KV.
/// - A block that a plan names goes to nobody else until the step is done.
/// - A sequence is at most once in a plan, and its positions are computed in order.
/// - Only full, computed blocks are shared for reading; what is written is held once.
#[derive(Debug)]
pub struct Core {
    config: CoreConfig,
    block_tokens: u32,
    kv: KvCache,
    policy: Box<dyn Policy>,
    cost: StepCost,
    speculation: Speculation,
    requests: Slab<Request>,
    by_id: HashMap<RequestId, u32>,
    seqs: Slab<Seq>,
    /// The queue: those that wait, in order.
    waiting: BTreeSet<(Rank, u32)>,
    /// Those that run, in order of rank; some may have ended since the last plan.
    running: Vec<u32>,
    /// Whether `running` holds some that no longer run.
    running_stale: bool,
    /// Running ones of class idle.
    idle_running: u32,
    /// Idle ones that still run are not planned: there is something else to do.
    idle_waits: bool,
    /// Those that wait for moves.
    loading: Vec<u32>,
    /// Which sequence waits for which move.
    moves: BTreeMap<MoveId, u32>,
    sessions: BTreeMap<SessionId, Session>,
    /// When requests expire.
    expiries: BTreeSet<(Time, RequestId)>,
    /// Steps planned and not done, the oldest first.
    in_flight: VecDeque<InFlight>,
    /// Memory of plans that are done.
    spare: Vec<InFlight>,
    next_step: u64,
    arrivals: u64,
    uses: u64,
    /// Blocks promised to sequences at admission and not allocated yet.
    promised: u64,
    /// The sequence at the head of the queue that did not fit, and the blocks that there were.
    blocked: Option<(u32, u64)>,
    scratch: Vec<u32>,
    /// Blocks that left a table while this step, in flight, names them.
    detached: Vec<(u64, BlockId)>,
}

/// What a core remembers of a step in flight.
#[derive(Debug, Default)]
struct InFlight {
    step: StepId,
    entries: Vec<Entry>,
    samples: Vec<SeqId>,
    wanted: Vec<DraftWanted>,
    /// Blocks of the branches of drafts.
    scratch: Vec<BlockId>,
    shape: StepShape,
}

/// A look at a core from outside, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Sequences in the queue.
    pub waiting: u32,
    /// Sequences that run.
    pub running: u32,
    /// Sequences whose KV is coming from the disk tier.
    pub loading: u32,
    /// Sessions.
    pub sessions: u32,
    /// Steps planned and not done.
    pub steps_in_flight: u32,
    /// KV blocks that nothing references.
    pub available_blocks: u64,
}

impl Core {
    /// A core without requests.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn new(config: CoreConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            block_tokens: config.cache.block_tokens as u32,
            kv: KvCache::new(config.cache),
            policy: config.policy.build(),
            cost: StepCost::default(),
            speculation: Speculation::new(config.speculation.clone()),
            requests: Slab::new(),
            by_id: HashMap::new(),
            seqs: Slab::new(),
            waiting: BTreeSet::new(),
            running: Vec::new(),
            running_stale: false,
            idle_running: 0,
            idle_waits: false,
            loading: Vec::new(),
            moves: BTreeMap::new(),
            sessions: BTreeMap::new(),
            expiries: BTreeSet::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            next_step: 1,
            arrivals: 0,
            uses: 0,
            promised: 0,
            blocked: None,
            scratch: Vec::new(),
            detached: Vec::new(),
            config,
        })
    }

    /// Its settings.
    pub fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// The KV memory, to look at.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The KV memory, to set tenants' budgets. Nothing else may be changed from outside.
    pub fn set_budget(&mut self, tenant: dunlin_kvcache::TenantId, blocks: Option<usize>) {
        self.kv.set_budget(tenant, blocks);
        self.blocked = None;
    }

    /// How much there is to do.
    pub fn load(&self) -> Load {
        Load {
            waiting: self.waiting.len() as u32,
            running: self.requests_running(),
            loading: self.loading.len() as u32,
            sessions: self.sessions.len() as u32,
            steps_in_flight: self.in_flight.len() as u32,
            available_blocks: self.kv.available_blocks() as u64,
        }
    }

    fn requests_running(&self) -> u32 {
        self.running.iter().filter(|&&s| self.seqs[s].stage == Stage::Running).count() as u32
    }

    /// Whether there is any unfinished request.
    pub fn is_busy(&self) -> bool {
        !self.by_id.is_empty() || !self.in_flight.is_empty()
    }

    /// Takes note of what happened until `now` (never before that of the last call), and decides.
    /// `events` is emptied; `effects` is cleared and filled.
    ///
    /// # Panics
    /// When a caller breaks the protocol (an outcome of a step that is not the oldest in flight, or
    /// with other samples than planned), or an invariant is broken.
    pub fn advance(&mut self, now: Time, events: &mut Vec<Event>, effects: &mut Effects) {
        effects.clear();
        for event in events.drain(..) {
            match event {
                Event::Submit(submission) => self.submit(now, *submission, effects),
                Event::Abort(request) => self.abort(now, request, effects),
                Event::StepDone(outcome) => self.step_done(now, &outcome, effects),
                Event::MoveDone { id, ok } => self.move_done(now, id, ok, effects),
                Event::Session(op) => self.session_op(op, effects),
            }
        }
        self.expire(now, effects);
        self.plan(now, effects);
        self.take_moves(effects);
        assert!(
            self.by_id.is_empty()
                || !self.in_flight.is_empty()
                || self.kv.moves_in_flight() > 0
                || self.next_deadline().is_some()
                || self.sessions.values().any(|s| s.held),
            "{} requests, and nothing that moves them on: {:?}",
            self.by_id.len(),
            self.load()
        );
    }

    /// When [`Core::advance`] must be called at the latest, whatever happens.
    pub fn next_deadline(&self) -> Option<Time> {
        self.expiries.first().map(|e| e.0)
    }

    fn take_moves(&mut self, fx: &mut Effects) {
        self.kv.take_moves(&mut fx.moves);
    }

    /// A sequence in a fresh slot, without tokens.
    fn new_seq(&mut self) -> u32 {
        match self.seqs.reuse() {
            Some(slot) => {
                let old = &mut self.seqs[slot];
                let (mut tokens, mut table, mut draft) = (
                    std::mem::take(&mut old.tokens),
                    std::mem::take(&mut old.table),
                    std::mem::take(&mut old.draft),
                );
                tokens.clear();
                table.clear();
                draft.clear();
                // The longest of all would else leave its memory in every slot in time.
                tokens.shrink_to(KEPT_CAPACITY);
                table.shrink_to(KEPT_CAPACITY);
                *old = Seq { tokens, table, draft, request: NONE, ..Seq::default() };
                slot
            }
            None => self.seqs.insert(Seq { request: NONE, ..Seq::default() }),
        }
    }

    /// Lets go of a sequence that no step in flight has a part of.
    fn end_seq(&mut self, slot: u32, fx: &mut Effects) {
        self.drop_kv(slot);
        self.seqs[slot].stage = Stage::Free;
        fx.ops.push(SeqOp::End { seq: SeqId(slot) });
        self.seqs.free(slot);
    }

    /// Releases all of a sequence's blocks.
    fn drop_kv(&mut self, slot: u32) {
        let seq = &mut self.seqs[slot];
        assert_eq!(seq.in_flight, 0, "a sequence's blocks were released during its step");
        self.promised -= u64::from(seq.promised);
        seq.promised = 0;
        self.kv.release_table(&mut seq.table, 0);
        seq.computed = 0;
        seq.planned = 0;
        seq.registered = 0;
        seq.unknown = 0;
        seq.special = seq.parts;
        seq.draft.clear();
    }

    /// Whether every number adds up: for tests, slow.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        self.kv.check()?;
        let mut references = HashMap::<u32, u32>::new();
        for (_, block) in &self.detached {
            *references.entry(*block).or_default() += 1;
        }
        for &block in self.in_flight.iter().flat_map(|step| &step.scratch) {
            *references.entry(block).or_default() += 1;
        }
        let mut promised = 0;
        let mut in_use = 0;
        for (slot, seq) in self.seqs.slots.iter().enumerate() {
            if seq.stage == Stage::Free {
                continue;
            }
            in_use += 1;
            promised += u64::from(seq.promised);
            for &block in &seq.table {
                *references.entry(block).or_default() += 1;
            }
            let covered = seq.table.len() as u64 * u64::from(self.block_tokens);
            let ok = seq.computed <= seq.planned
                && seq.planned <= seq.total()
                && u64::from(seq.planned) <= covered
                && seq.registered * self.block_tokens <= seq.computed
                && (seq.in_flight > 0 || seq.computed == seq.planned)
                && (seq.stage != Stage::Waiting || seq.in_flight == 0);
            if !ok {
                return Err(format!("sequence {slot} is inconsistent: {seq:?}"));
            }
        }
        if promised != self.promised || in_use != self.seqs.in_use() {
            return Err(format!("{promised} promised, {} noted", self.promised));
        }
        for block in 0..self.config.cache.block_count as u32 {
            let (held, noted) =
                (references.get(&block).copied().unwrap_or(0), self.kv.reference_count(block));
            if held != noted {
                return Err(format!("block {block}: {held} tables name it, {noted} references"));
            }
        }
        Ok(())
    }
}

/// Tokens that a slot keeps memory for between its sequences.
const KEPT_CAPACITY: usize = 2048;

/// Where effects go while requests end.
type Fx<'a> = &'a mut Effects;

/// Keeps plans and their memory apart from [`InFlight`].
fn remember(plan: &StepPlan, shape: StepShape, mut memory: InFlight) -> InFlight {
    memory.step = plan.step;
    memory.entries.clear();
    memory.entries.extend_from_slice(&plan.entries);
    memory.samples.clear();
    memory.samples.extend_from_slice(&plan.samples);
    memory.wanted.clear();
    memory.wanted.extend_from_slice(&plan.wanted);
    memory.scratch.clear();
    memory.scratch.extend_from_slice(&plan.scratch);
    memory.shape = shape;
    memory
}
