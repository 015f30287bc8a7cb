//! A check of everything that a core decides, written without its code.
//!
//! [`PlanChecker`] is told the events that go into each [`advance`](crate::Core::advance) and the
//! effects that come out, and keeps a mirror of its own: what every sequence, table, block and disk
//! slot holds, and how far every request is. It holds the core to what its interface promises:
//!
//! - **Content.** Each position of each block is known by the namespace and the exact tokens up to
//!   it. What a step reads must be what the sequence's tokens say; what it writes goes into blocks
//!   that no other sequence names, unless that one's tokens are the same there. Moves and copies
//!   carry content; a block or slot in a move is left alone.
//! - **Plans.** Budgets; every sequence at most once; positions in order; tables that cover them;
//!   samples exactly where all tokens are computed and more are wanted; drafts that were proposed,
//!   parents first; class idle alone or not at all. What a step names stays in its tables.
//! - **Requests.** Outputs are the commits, no more and no less; each request ends once, as soon as
//!   it can, for the right reason; sessions have the tokens that their requests left.
//! - **Bills.** Tokens, steps and times are what happened; the parts of the steps' durations and
//!   bytes sum to the whole whenever nothing is under way.
//! - **Liveness.** With an unfinished request, something is in flight or a deadline is set.
//!
//! It looks at nothing inside a core, and its cost is about that of the plans. Not here: whether a
//! decision is a good one.

mod bills;
mod memory;
mod plans;
mod requests;
mod sequences;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use dunlin_kvcache::Namespace;
use dunlin_units::{RequestId, SessionId, Time};

use crate::{
    config::{ConfigError, CoreConfig},
    core::Core,
    effects::{Effects, Output},
    event::{Event, SessionOp},
};
use memory::Memory;
use plans::Step;
use requests::{Request, Session};
use sequences::Sequence;

/// The result of one rule.
type Check = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}
use ensure;

/// A promise that a core has broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("call {call} at {} ns: {problem}", now.0)]
pub struct Violation {
    /// Which call of `advance`, from 1.
    pub call: u64,
    /// Its time.
    pub now: Time,
    /// What is wrong.
    pub problem: String,
}

/// The mirror; see the [module](self).
#[derive(Debug)]
pub struct PlanChecker {
    config: CoreConfig,
    calls: u64,
    now: Time,
    memory: Memory,
    seqs: Vec<Option<Sequence>>,
    requests: HashMap<RequestId, Request>,
    sessions: BTreeMap<SessionId, Session>,
    /// The link before the first token, by namespace.
    roots: BTreeMap<Namespace, u64>,
    expiries: BTreeSet<(Time, RequestId)>,
    /// Steps in flight, the oldest first.
    steps: VecDeque<Step>,
    last_step: u64,
    /// Sequences that have been planned, and have not ended or been put back since.
    running: u32,
    /// Requests with choices that have not ended and whose class is not idle.
    busy: u32,
    /// Durations and bytes of all steps, and what bills have said of them.
    totals: bills::Totals,
    /// What this call must give.
    outputs: Vec<Output>,
    /// Requests that must finish in this call.
    due: BTreeSet<RequestId>,
    /// Requests that came in this call.
    fresh: Vec<RequestId>,
}

impl PlanChecker {
    /// A mirror of a core that has these settings and no requests.
    pub fn new(config: &CoreConfig) -> Self {
        let cache = &config.cache;
        Self {
            config: config.clone(),
            calls: 0,
            now: Time(0),
            memory: Memory::new(cache.block_tokens, cache.block_count, cache.disk_slots),
            seqs: Vec::new(),
            requests: HashMap::new(),
            sessions: BTreeMap::new(),
            roots: BTreeMap::new(),
            expiries: BTreeSet::new(),
            steps: VecDeque::new(),
            last_step: 0,
            running: 0,
            busy: 0,
            totals: bills::Totals::default(),
            outputs: Vec::new(),
            due: BTreeSet::new(),
            fresh: Vec::new(),
        }
    }

    /// Requests that are not over.
    pub fn unfinished(&self) -> usize {
        self.requests.len()
    }

    /// Checks one call: the events that went in (`advance` empties its list: keep a copy), the
    /// effects that came out, and the core's [`next_deadline`](Core::next_deadline) after it.
    ///
    /// # Errors
    /// The first promise broken. The mirror is of no use afterwards.
    pub fn advance(
        &mut self,
        now: Time,
        events: &[Event],
        effects: &Effects,
        next_deadline: Option<Time>,
    ) -> Result<(), Violation> {
        self.calls += 1;
        let result = self.check(now, events, effects, next_deadline);
        result.map_err(|problem| Violation { call: self.calls, now, problem })
    }

    fn check(
        &mut self,
        now: Time,
        events: &[Event],
        fx: &Effects,
        deadline: Option<Time>,
    ) -> Check {
        ensure!(now >= self.now, "time runs backwards");
        self.now = now;
        self.outputs.clear();
        self.fresh.clear();
        let mut answers = Answers::new(fx);
        for event in events {
            match event {
                Event::Submit(submission) => self.submit(submission, &mut answers)?,
                Event::Abort(request) => self.end_all(*request, &crate::End::Aborted)?,
                Event::StepDone(outcome) => self.step_done(outcome)?,
                Event::MoveDone { id, ok } => self.memory.end(*id, *ok)?,
                Event::Session(op) => self.session_op(op, &mut answers)?,
            }
        }
        answers.all_expected()?;
        self.expire()?;
        ensure!(
            self.outputs == fx.outputs,
            "outputs differ: {:?} instead of {:?}",
            fx.outputs,
            self.outputs
        );
        for op in &fx.ops {
            self.op(op, events).map_err(|problem| format!("{op:?}: {problem}"))?;
        }
        self.check_fresh(fx)?;
        let first_in_flight = self.steps.front().map_or(u64::MAX, |s| s.id);
        for m in &fx.moves {
            self.memory.begin(*m, first_in_flight)?;
        }
        for finished in &fx.finished {
            self.finished(finished)
                .map_err(|problem| format!("{}: {problem}", finished.request))?;
        }
        ensure!(self.due.is_empty(), "over, and not finished: {:?}", self.due);
        if let Some(plan) = &fx.plan {
            self.plan(plan).map_err(|problem| format!("step {}: {problem}", plan.step.0))?;
        }
        ensure!(
            self.requests.is_empty()
                || !self.steps.is_empty()
                || self.memory.moves_in_flight() > 0
                || deadline.is_some()
                || self.sessions.values().any(requests::Session::is_held),
            "{} requests, and nothing that moves them on",
            self.requests.len()
        );
        ensure!(
            deadline == self.expiries.first().map(|e| e.0),
            "the next deadline is {:?}, not {deadline:?}",
            self.expiries.first()
        );
        if self.requests.is_empty() && self.steps.is_empty() {
            self.totals.check()?;
        }
        Ok(())
    }

    /// The link before the first token of a namespace.
    fn root(&mut self, namespace: Namespace) -> u64 {
        let next = self.roots.len() as u32;
        *self.roots.entry(namespace).or_insert_with(|| memory::link(u64::MAX, next))
    }
}

/// Answers to events that the mirror cannot foretell, in their order.
struct Answers<'a> {
    rejected: VecDeque<&'a crate::Finished>,
    session_errors: VecDeque<&'a crate::SessionError>,
}

impl<'a> Answers<'a> {
    fn new(fx: &'a Effects) -> Self {
        let rejected = |f: &&crate::Finished| matches!(f.ends[..], [crate::End::Rejected(_)]);
        Self {
            rejected: fx.finished.iter().filter(rejected).collect(),
            session_errors: fx.session_errors.iter().collect(),
        }
    }

    /// The problem with an operation on a session, if that is what comes next.
    fn session_error(&mut self, op: &SessionOp) -> Option<crate::SessionProblem> {
        let session = match op {
            SessionOp::Fork { from, .. } => from,
            SessionOp::Rewind { session, .. } | SessionOp::Restore { session, .. } => session,
            SessionOp::Close(session) | SessionOp::Hold { session, .. } => session,
        };
        let next = self.session_errors.front().filter(|e| e.session == *session)?;
        let problem = next.problem;
        Some(problem)
    }

    fn all_expected(&self) -> Check {
        ensure!(self.rejected.is_empty(), "rejected without cause: {:?}", self.rejected);
        ensure!(self.session_errors.is_empty(), "without cause: {:?}", self.session_errors);
        Ok(())
    }
}

/// A core with its checker: every call is checked.
#[derive(Debug)]
pub struct CheckedCore {
    /// The core.
    pub core: Core,
    checker: PlanChecker,
    events: Vec<Event>,
}

impl CheckedCore {
    /// A core without requests, and its mirror.
    ///
    /// # Errors
    /// Settings that make no sense.
    pub fn new(config: CoreConfig) -> Result<Self, ConfigError> {
        let checker = PlanChecker::new(&config);
        Ok(Self { core: Core::new(config)?, checker, events: Vec::new() })
    }

    /// As [`Core::advance`].
    ///
    /// # Errors
    /// The promise that the core has broken.
    pub fn advance(
        &mut self,
        now: Time,
        events: &mut Vec<Event>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.events.clear();
        self.events.extend_from_slice(events);
        self.core.advance(now, events, effects);
        self.checker.advance(now, &self.events, effects, self.core.next_deadline())
    }
}
