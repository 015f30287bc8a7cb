//! One replica: the real core, a price for every step, and an oracle that knows how long answers
//! are.
//!
//! The core is told what the engine would tell it: requests, outcomes of steps, ends of moves. How
//! long an answer is shows only when its last token has been "computed", as a stop token; the limit
//! that the core sees is the operator's. So no policy can know it, unless the settings declare an
//! oracle ([`Prediction::Oracle`]).

mod energy;
mod horizon;
mod job;
mod life;
mod spec;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

use dunlin_costmodel::{Phase, SeqShape};
use dunlin_kvcache::{MoveId, Namespace, Place, TenantId};
use dunlin_scheduler::{
    Commit, Core, Effects, End, Event, Finished, Keep, SampleEnd, SeqOp, SessionOp, SessionUse,
    Speculate, StepOutcome, StepPlan, Submission, checker::CheckedCore, policy::PolicyKind,
};
use dunlin_units::{RequestId, SeedTree, SeqId, SessionId, Time};
use dunlin_workload::stream_token;

use job::served;
pub(crate) use job::{Job, Note, NoteKind, Stage, World};
pub use spec::{Prediction, ReplicaSpec, Role, SharedCost, Tier};

use crate::{
    events::{Digest, LogEvent, What},
    experts::Experts,
    metrics::Level,
    speculation::{Ahead, propose},
};

/// Tokens are below this. They carry nothing but which are equal.
pub(crate) const VOCABULARY: u32 = 1 << 17;

/// Requests beyond those that run that a core holds at most where the order is first come, first
/// served; the others wait outside, in the same order, and take up far less memory. More than the
/// core looks at in one step, so that it decides as if it had them all.
const CORE_QUEUE: usize = 192;

/// A request that the core has.
#[derive(Debug)]
struct Active {
    job: Job,
    submitted: Time,
    /// The answer's first tokens, where the trace names them, the last first.
    head: Vec<u32>,
    /// Behind those, tokens of this stream from this index on.
    stream: u64,
    index: u32,
    /// Tokens that its answer still lacks.
    left: u32,
    /// Of the prompt as submitted.
    prompt_tokens: u32,
    /// Its sequence.
    seq: u32,
    /// Whether a step has had a part of it.
    begun: bool,
}

/// The part of an answer that is to come: see [`Active`].
struct Rest {
    head: Vec<u32>,
    stream: u64,
    index: u32,
}

/// What a step needs to know of a sequence: its request's slot, copied here so that the loop over a
/// batch touches one line for each.
#[derive(Debug, Clone, Copy)]
struct SeqState {
    /// When its latest token came; [`Time::NEVER`] before the first.
    last: Time,
    stream: u64,
    index: u32,
    left: u32,
    slot: u32,
    /// Tokens left in the head.
    head: u32,
}

const NOBODY: SeqState =
    SeqState { last: Time::NEVER, stream: 0, index: 0, left: 0, slot: u32::MAX, head: 0 };

#[derive(Debug)]
enum Driver {
    Plain(Box<Core>),
    Checked(Box<CheckedCore>),
}

impl Driver {
    fn core(&self) -> &Core {
        match self {
            Self::Plain(core) => core,
            Self::Checked(checked) => &checked.core,
        }
    }
}

/// A step in flight.
#[derive(Debug)]
struct Running {
    began: Time,
    done: Time,
    plan: StepPlan,
    tokens: u32,
    blocks: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Replica {
    pub id: u32,
    spec: Arc<ReplicaSpec>,
    driver: Driver,
    checked: bool,
    /// Whether the latest reservation was had.
    reserved: bool,
    experts: Option<Experts>,
    seeds: SeedTree,
    /// What comes, in order of time.
    inbox: VecDeque<Job>,
    /// What came and waits outside the core.
    backlog: VecDeque<Job>,
    active: Vec<Option<Active>>,
    free: Vec<u32>,
    by_id: HashMap<RequestId, u32>,
    seqs: Vec<SeqState>,
    /// Microjoules of each sequence that its request does not have yet.
    energy: Vec<u64>,
    steps: VecDeque<Running>,
    spare: Vec<StepPlan>,
    moves: BinaryHeap<Reverse<(Time, MoveId)>>,
    /// When the tier is free again.
    tier_free: Time,
    effects: Effects,
    events: Vec<Event>,
    /// Step times in percent of their price.
    pub slow_percent: u32,
    /// What no step's price is below.
    least_ns: u64,
    pub up_since: Option<Time>,
    level: Level,
    level_since: Time,
    logged: u64,
    pub digest: Digest,
    /// Its own steps' nanoseconds, and requests that ended.
    pub busy_ns: u64,
    pub ended: u64,
}

/// The order of what happens at one moment: completions are even, arrivals odd.
pub(crate) const fn key(at: Time, arrival: bool) -> u64 {
    if at.0 >= u64::MAX / 2 { u64::MAX } else { at.0 * 2 + arrival as u64 }
}

impl Replica {
    pub(crate) fn new(id: u32, spec: Arc<ReplicaSpec>, seeds: SeedTree, checked: bool) -> Self {
        let driver = Self::driver(&spec, checked);
        Self {
            id,
            driver,
            checked,
            reserved: false,
            experts: spec
                .experts
                .clone()
                .map(|e| Experts::new(e, seeds.child("experts").child_at(id.into()))),
            seeds,
            inbox: VecDeque::new(),
            backlog: VecDeque::new(),
            active: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            seqs: Vec::new(),
            energy: Vec::new(),
            steps: VecDeque::new(),
            spare: Vec::new(),
            moves: BinaryHeap::new(),
            tier_free: Time(0),
            effects: Effects::default(),
            events: Vec::new(),
            slow_percent: 100,
            least_ns: spec.cost.least_ns(),
            up_since: Some(Time(0)),
            level: Level::default(),
            level_since: Time(0),
            logged: 0,
            digest: Digest::default(),
            busy_ns: 0,
            ended: 0,
            spec,
        }
    }

    fn driver(spec: &ReplicaSpec, checked: bool) -> Driver {
        let why = "settings are checked before replicas are made";
        if checked {
            Driver::Checked(Box::new(CheckedCore::new(spec.core.clone()).expect(why)))
        } else {
            Driver::Plain(Box::new(Core::new(spec.core.clone()).expect(why)))
        }
    }

    /// The key of what happens next here, or [`u64::MAX`].
    pub(crate) fn next_key(&self) -> u64 {
        let step = self.steps.front().map_or(Time::NEVER, |s| s.done);
        let moved = self.moves.peek().map_or(Time::NEVER, |m| m.0.0);
        let deadline = self.driver.core().next_deadline().unwrap_or(Time::NEVER);
        let came = self.inbox.front().map_or(Time::NEVER, |j| j.came);
        key(step.min(moved).min(deadline), false).min(key(came, true))
    }

    /// Requests that are here and not over.
    pub(crate) fn unfinished(&self) -> usize {
        self.by_id.len() + self.backlog.len() + self.inbox.len()
    }

    /// Puts a request into the inbox, behind others of its moment.
    pub(crate) fn deliver(&mut self, job: Job) {
        let place = self.inbox.partition_point(|other| other.came <= job.came);
        self.inbox.insert(place, job);
    }

    /// Everything that happens before `bound`.
    pub(crate) fn run_until(&mut self, bound: u64, world: &mut World) {
        loop {
            let next = self.next_key();
            if next >= bound || next == u64::MAX {
                return;
            }
            let now = Time(next / 2);
            if next.is_multiple_of(2) {
                self.complete(now, world);
            } else {
                while self.inbox.front().is_some_and(|j| j.came == now) {
                    let job = self.inbox.pop_front().expect("it is there");
                    self.log(world, now, 1, What::Arrive { request: job.number });
                    self.backlog.push_back(job);
                }
            }
            self.feed(now, world);
            self.advance(now, world);
            // Sessions of requests that have just ended.
            if !self.events.is_empty() {
                self.advance(now, world);
            }
        }
    }

    /// Gives the core what waits outside, as far as it wants it.
    fn feed(&mut self, now: Time, world: &mut World) {
        let most = match self.spec.core.policy {
            PolicyKind::Fcfs => self.spec.core.max_running as usize + CORE_QUEUE,
            _ => usize::MAX,
        };
        while self.by_id.len() < most
            && let Some(job) = self.backlog.pop_front()
        {
            self.submit(now, job, world);
        }
    }

    fn submit(&mut self, now: Time, job: Job, world: &mut World) {
        let done = job.done_tokens;
        let Rest { head, stream, index } = self.write_prompt(&job, &mut world.prompt);
        let mut active = Active {
            submitted: now,
            head,
            stream,
            index,
            left: 0,
            prompt_tokens: 0,
            seq: u32::MAX,
            begun: false,
            job,
        };
        active.prompt_tokens = world.prompt.len() as u32;
        let request = &active.job.request;
        let limit = self.spec.output_limit(active.prompt_tokens);
        let wanted = request.output_tokens - done.min(request.output_tokens);
        let stage = active.job.stage;
        let limit = if stage == Stage::Prefill { limit.min(1) } else { limit };
        active.left = wanted.min(limit);
        let id = RequestId(active.job.number);
        // A limit of nothing would be taken for a wish for nothing.
        let max_tokens = if wanted == 0 { 0 } else { limit.max(1) };
        // Where the prompt's KV is there, what is left to compute is the latest token.
        let known = if stage == Stage::Decode { world.prompt.len() - 1 } else { 0 };
        let mut submission =
            Submission::new(id, Namespace::default(), &world.prompt[known..], max_tokens);
        let session = SessionId(active.job.number);
        if stage != Stage::Whole {
            submission.session = Some(SessionUse { session, keep: Keep::Prompt });
        }
        if self.spec.speculation.is_some() {
            submission.speculate = Speculate::Auto;
        }
        submission.predicted_tokens = self.predicted(&active.job, wanted);
        submission.due = request.deadline_ns.map(|ns| active.job.ready.after(ns.get()));
        if self.spec.core.policy == PolicyKind::Fair {
            submission.tenant = TenantId(request.client.0);
        }
        self.events.push(Event::Submit(Box::new(submission)));
        if stage == Stage::Prefill {
            self.events.push(Event::Session(SessionOp::Hold { session, held: true }));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.active.push(None);
            self.active.len() as u32 - 1
        });
        self.active[slot as usize] = Some(active);
        self.by_id.insert(id, slot);
    }

    /// Writes a request's prompt: with what has been answered before it came here as a part of it.
    fn write_prompt(&self, job: &Job, prompt: &mut Vec<u32>) -> Rest {
        let own = self.seeds.child_at(job.number).seed();
        prompt.clear();
        job.request.prompt_ids(own, VOCABULARY, prompt);
        let answer = job.request.answer(own, VOCABULARY);
        let mut rest = Rest { head: answer.head, stream: answer.stream, index: answer.first };
        rest.head.reverse();
        prompt.extend((0..job.done_tokens).map(|_| match rest.head.pop() {
            Some(token) => token,
            None => {
                rest.index += 1;
                stream_token(rest.stream, rest.index - 1, VOCABULARY)
            }
        }));
        rest
    }

    fn predicted(&self, job: &Job, wanted: u32) -> Option<u32> {
        match self.spec.prediction {
            Prediction::None => None,
            Prediction::Oracle => Some(wanted),
            Prediction::Noisy { percent } => {
                let mut draw = self.seeds.child("prediction").child_at(job.number).stream();
                let most = f64::from(percent) / 100.0;
                let (low, high) = (1.0 / (1.0 + most), 1.0 + most);
                let factor = low + (high - low) * draw.next_unit();
                Some((f64::from(wanted) * factor + 0.5) as u32)
            }
        }
    }

    /// What ends at this moment: a step, moves.
    fn complete(&mut self, now: Time, world: &mut World) {
        while let Some(&Reverse((at, id))) = self.moves.peek()
            && at <= now
        {
            self.moves.pop();
            self.events.push(Event::MoveDone { id, ok: true });
        }
        while self.steps.front().is_some_and(|s| s.done <= now) {
            let running = self.steps.pop_front().expect("it is there");
            self.step_done(now, &running, world);
            self.spare.push(running.plan);
        }
    }

    fn step_done(&mut self, now: Time, running: &Running, world: &mut World) {
        let plan = &running.plan;
        let took = now.since(running.began);
        self.busy_ns += took;
        let what = What::Step {
            step: plan.step.0,
            began: running.began,
            sequences: plan.entries.len() as u32,
            tokens: running.tokens,
            blocks: running.blocks,
        };
        self.log(world, now, 0, what);
        let mut outcome = Box::new(StepOutcome {
            step: plan.step,
            duration_ns: took,
            commits: Vec::with_capacity(plan.samples.len()),
            tokens: Vec::with_capacity(plan.samples.len()),
            ..StepOutcome::default()
        });
        let mut samples = plan.samples.iter();
        for entry in &plan.entries {
            for _ in 0..entry.samples {
                let seq = *samples.next().expect("as many as the entries say");
                let position = entry.first_position + entry.tokens;
                let commit = self.sample(now, seq, position, entry.draft, &mut outcome, world);
                outcome.commits.push(commit);
            }
        }
        let bin = world.metrics.timeline.at(now);
        bin.output_tokens += outcome.tokens.len() as u64;
        bin.computed_tokens += u64::from(running.tokens);
        world.metrics.sampled_tokens += outcome.tokens.len() as u64;
        self.events.push(Event::StepDone(outcome));
    }

    /// The tokens that a sequence gets in a step that ends now.
    #[inline]
    fn sample(
        &mut self,
        now: Time,
        seq: SeqId,
        position: u32,
        drafted: u32,
        outcome: &mut StepOutcome,
        world: &mut World,
    ) -> Commit {
        let state = &mut self.seqs[seq.0 as usize];
        if state.left == 0 {
            // It has ended in the step before; this one was planned without knowing.
            outcome.tokens.push(0);
            return Commit { tokens: 1, end: None };
        }
        let mut gained = 1;
        if drafted > 0 {
            let speculation = self.spec.speculation.as_ref().expect("whoever drafts has it");
            gained += speculation.accepted(state.stream, position, drafted);
            gained = gained.min(state.left);
        }
        for _ in 0..gained {
            let token = if state.head == 0 {
                state.index += 1;
                stream_token(state.stream, state.index - 1, VOCABULARY)
            } else {
                state.head -= 1;
                let active = self.active[state.slot as usize].as_mut().expect("it runs");
                active.head.pop().expect("counted")
            };
            outcome.tokens.push(token);
        }
        state.left -= gained;
        if state.last == Time::NEVER {
            let active = self.active[state.slot as usize].as_mut().expect("it runs");
            active.job.first_token.get_or_insert(now);
            let (request, id) = (active.job.number, self.id);
            state.last = now;
            let event = LogEvent {
                at: now,
                class: 0,
                replica: id,
                sequence: self.logged,
                what: What::FirstToken { request },
            };
            self.logged += 1;
            self.digest.event(&event);
            if let Some(log) = &mut world.log {
                log.push(event);
            }
        } else {
            world.metrics.itl.add(now.since(state.last));
            state.last = now;
        }
        // Tokens that are accepted together come together.
        for _ in 1..gained {
            world.metrics.itl.add(0);
        }
        let left = state.left;
        if left > 1
            && let Some(speculation) = &self.spec.speculation
        {
            let head = match state.head {
                0 => &[][..],
                _ => &self.active[state.slot as usize].as_ref().expect("it runs").head,
            };
            let ahead =
                Ahead { stream: state.stream, index: state.index, head, vocabulary: VOCABULARY };
            outcome.proposals.push(propose(seq, ahead, position + gained, speculation));
        }
        Commit { tokens: gained, end: (left == 0).then_some(SampleEnd::Stop) }
    }

    /// Tells the core, and carries out what it says.
    fn advance(&mut self, now: Time, world: &mut World) {
        world.metrics.timeline.level(self.level_since, now, self.level);
        world.metrics.blocks_ns +=
            u128::from(self.level.blocks) * u128::from(now.since(self.level_since));
        world.metrics.last = world.metrics.last.max(now);
        if let Some(plan) = self.spare.pop() {
            self.effects.plan = Some(plan);
        }
        let mut effects = std::mem::take(&mut self.effects);
        match &mut self.driver {
            Driver::Plain(core) => core.advance(now, &mut self.events, &mut effects),
            Driver::Checked(core) => {
                if let Err(violation) = core.advance(now, &mut self.events, &mut effects) {
                    world.violation.get_or_insert(violation.to_string());
                }
            }
        }
        for op in &effects.ops {
            self.op(op);
        }
        for moved in &effects.moves {
            let tier = self.spec.tier;
            let bytes = self.spec.block_bytes;
            let ns = transfer_ns(bytes, tier.bytes_per_s);
            let until = now.max(self.tier_free).after(ns);
            self.tier_free = until;
            let done = until.after(tier.latency_ns).max(now.after(1));
            self.moves.push(Reverse((done, moved.id)));
            world.metrics.moves += 1;
            world.metrics.blocks_loaded += u64::from(matches!(moved.from, Place::Disk(_)));
            self.log(world, now, 1, What::Move { until: done, bytes });
        }
        for finished in &effects.finished {
            self.finish(now, finished, world);
        }
        if let Some(plan) = effects.plan.take() {
            self.begin(now, plan, world);
        }
        self.reserved = effects.session_errors.is_empty();
        self.effects = effects;
        let load = self.driver.core().load();
        let blocks = self.spec.core.cache.block_count as u64;
        let used = blocks - load.available_blocks.min(blocks);
        world.metrics.peak_blocks = world.metrics.peak_blocks.max(used * 10_000 / blocks.max(1));
        self.level = Level {
            waiting: u64::from(load.waiting) + self.backlog.len() as u64,
            running: u64::from(load.running + load.loading),
            blocks: used,
            busy: !self.steps.is_empty(),
        };
        self.level_since = now;
    }

    fn op(&mut self, op: &SeqOp) {
        let (seq, request) = match *op {
            SeqOp::Start { seq, request, .. } | SeqOp::Assign { seq, request, .. } => {
                (seq, request)
            }
            SeqOp::Fork { to, request, .. } => (to, request),
            SeqOp::End { seq } => (seq, None),
            _ => return,
        };
        let place = seq.0 as usize;
        if place >= self.seqs.len() {
            self.seqs.resize(place + 1, NOBODY);
            self.energy.resize(place + 1, 0);
        }
        self.settle(place);
        let slot = request.and_then(|id| self.by_id.get(&id).copied());
        self.seqs[place] = match slot {
            None => NOBODY,
            Some(slot) => {
                let active = self.active[slot as usize].as_mut().expect("the core has it");
                active.seq = place as u32;
                // Whoever has tokens from elsewhere has had them a while ago.
                let before = active.job.first_token.map_or(Time::NEVER, |_| active.job.last_token);
                SeqState {
                    last: before,
                    stream: active.stream,
                    index: active.index,
                    left: active.left,
                    slot,
                    head: active.head.len() as u32,
                }
            }
        };
    }

    /// Begins a step.
    fn begin(&mut self, now: Time, plan: StepPlan, world: &mut World) {
        let mut tokens = 0;
        world.shape.seqs.clear();
        for entry in &plan.entries {
            let phase = match (entry.tokens, entry.draft) {
                (_, 1..) => Phase::Verify,
                (1, 0) if entry.samples > 0 => Phase::Decode,
                _ => Phase::Prefill,
            };
            let new_tokens = entry.tokens + entry.draft;
            tokens += new_tokens;
            world.shape.seqs.push(SeqShape { new_tokens, context: entry.first_position, phase });
        }
        if let Some(experts) = &mut self.experts {
            world.shape.experts = experts.draw(tokens);
        }
        world.shape.sampled = plan.samples.len() as u32 + plan.draft.len() as u32;
        let price = self.spec.cost.price(&world.shape);
        let mut ns = price.time_ns;
        if let Some(speculation) = &self.spec.speculation {
            ns += speculation.step_ns + speculation.token_ns * plan.draft.len() as u64;
        }
        let ns = self.step_ns(ns);
        let began = self.steps.back().map_or(now, |s| s.done.max(now));
        let core = self.driver.core();
        let blocks = self.spec.core.cache.block_count - core.kv().available_blocks();
        let metrics = &mut world.metrics;
        metrics.steps += 1;
        metrics.sequence_steps += plan.entries.len() as u64;
        metrics.busy_ns += u128::from(ns);
        metrics.bound_ns[price.bound as usize] += u128::from(ns);
        metrics.extrapolated_steps += u64::from(price.extrapolated);
        metrics.energy_uj += u128::from(price.energy_uj);
        let done = began.after(ns);
        if price.energy_uj > 0 {
            metrics.timeline.at(done).energy_uj += price.energy_uj;
            self.charge(&plan, price.energy_uj, tokens);
        }
        if world.wants_begun && self.spec.role == Role::Prefill {
            self.note_begun(began, &plan, world);
        }
        self.steps.push_back(Running { began, done, plan, tokens, blocks: blocks as u32 });
    }

    /// Nanoseconds of a step of this price: as slow as the replica is, with the host's part. Never
    /// less for a higher price.
    fn step_ns(&self, price_ns: u64) -> u64 {
        let mut ns = price_ns;
        if self.slow_percent != 100 {
            ns = (u128::from(ns) * u128::from(self.slow_percent) / 100) as u64;
        }
        if self.spec.core.steps_in_flight == 1 {
            ns += self.spec.host_ns;
        } else {
            ns = ns.max(self.spec.host_ns);
        }
        ns.max(1)
    }

    /// Tells which prompts have their first part in a step.
    fn note_begun(&mut self, began: Time, plan: &StepPlan, world: &mut World) {
        for entry in &plan.entries {
            let state = &self.seqs[entry.seq.0 as usize];
            if let Some(Some(active)) = self.active.get_mut(state.slot as usize)
                && !std::mem::replace(&mut active.begun, true)
            {
                let kind = NoteKind::Begun(active.job.number);
                let (replica, sequence) = (self.id, self.logged);
                self.logged += 1;
                world.notes.push(Note { at: began, replica, sequence, kind });
            }
        }
    }

    /// A request is over, or its part here.
    fn finish(&mut self, now: Time, finished: &Finished, world: &mut World) {
        let slot = self.by_id.remove(&finished.request).expect("the core has it from here");
        let mut active = self.active[slot as usize].take().expect("it is there");
        self.bill(&mut active);
        self.free.push(slot);
        self.ended += 1;
        let mut job = active.job;
        let bill = &finished.bill;
        let gained = bill.output_tokens as u32;
        job.done_tokens += gained;
        job.queue_ns += active.submitted.since(job.came) + bill.queue_ns;
        if gained > 0 {
            job.last_token = now;
        }
        let metrics = &mut world.metrics;
        if job.stage != Stage::Decode {
            metrics.prompt_tokens += bill.prompt_tokens;
            metrics.cached_tokens += bill.cached_tokens;
        }
        metrics.computed_tokens += bill.computed_tokens;
        metrics.recomputed_tokens += bill.recomputed_tokens;
        metrics.draft_tokens += bill.draft_tokens;
        metrics.accepted_tokens += bill.accepted_tokens;
        metrics.preemptions += bill.preemptions;
        let wanted = job.request.output_tokens;
        let kind = match finished.ends.first() {
            Some(End::Stop | End::Length | End::Clipped)
                if job.stage == Stage::Prefill && job.done_tokens < wanted =>
            {
                NoteKind::Prefilled(Box::new(job))
            }
            Some(End::Stop | End::Length | End::Clipped) => {
                let clipped = job.done_tokens < wanted;
                metrics.clipped += u64::from(clipped);
                metrics.serve(&served(&job, now), &world.slo);
                metrics.request_energy.add(job.energy_uj);
                self.log_end(now, &job, !clipped, world);
                self.over(job)
            }
            Some(End::Aborted) => {
                let session = SessionId(job.number);
                self.events.push(Event::Session(SessionOp::Close(session)));
                NoteKind::Withdrawn(Box::new(job))
            }
            Some(End::Rejected(rejection)) => {
                metrics.rejected += 1;
                world.rejection.get_or_insert((job.number, rejection.clone()));
                self.log_end(now, &job, false, world);
                self.over(job)
            }
            _ => {
                metrics.failed += 1;
                self.log_end(now, &job, false, world);
                self.over(job)
            }
        };
        let (replica, sequence) = (self.id, self.logged);
        world.notes.push(Note { at: now, replica, sequence, kind });
    }

    /// What others hear of a request that is over: of one that only had its prompt computed here, it
    /// is the coordinator who ends it.
    fn over(&mut self, job: Job) -> NoteKind {
        match job.stage {
            Stage::Whole => NoteKind::Ended(Box::new(job)),
            Stage::Prefill => NoteKind::Prefilled(Box::new(job)),
            Stage::Decode => {
                self.events.push(Event::Session(SessionOp::Close(SessionId(job.number))));
                NoteKind::Ended(Box::new(job))
            }
        }
    }

    fn log_end(&mut self, now: Time, job: &Job, complete: bool, world: &mut World) {
        let what = What::End {
            request: job.number,
            tokens: job.done_tokens,
            energy_uj: job.energy_uj,
            complete,
        };
        self.log(world, now, 0, what);
    }

    fn log(&mut self, world: &mut World, at: Time, class: u8, what: What) {
        let event = LogEvent { at, class, replica: self.id, sequence: self.logged, what };
        self.logged += 1;
        self.digest.event(&event);
        if let Some(log) = &mut world.log {
            log.push(event);
        }
    }
}

/// Nanoseconds to move so many bytes, rounded up.
pub(crate) fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}
