//! The coordinator: what concerns more than one replica, in order of time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use dunlin_router::{Placement, RequestView, WorkerView, prefix_keys};
use dunlin_units::{SeedTree, Time};
use dunlin_workload::Request;

use super::{
    ClusterSpec, RunOptions,
    changes::{Change, Power},
    handoff::Handoffs,
};
use crate::{
    error::SimError,
    events::Digest,
    links::Links,
    metrics::Metrics,
    replica::{Job, Note, NoteKind, Prediction, ReplicaSpec, Role, Stage, VOCABULARY, key},
    report::{ReplicaSummary, Report},
    shard::Team,
    source::{Next, Numbered, Source},
};

/// Requests placed ahead of time at most, where placement needs to know nothing of replicas.
const AHEAD: usize = 4096;

/// Requests between two questions whether to stop.
const ASK_EVERY: u64 = 1000;

/// Tokens of a block of prompt that placement by prefix tells apart.
const PREFIX_BLOCK_TOKENS: usize = 64;

/// Something that the coordinator is to do.
#[derive(Debug)]
pub(super) enum Act {
    /// Something becomes of a replica.
    Change(Change),
    /// A replica that was started takes requests.
    Started(u32),
    /// KV has arrived.
    Landed(u64),
    /// The autoscaler of this number looks.
    Look(usize),
    /// A request that waited is ready.
    Ready(Numbered),
}

impl Act {
    /// What comes before what at one moment.
    fn class(&self) -> u8 {
        match self {
            Self::Change(_) => 0,
            Self::Started(_) => 1,
            Self::Landed(_) => 2,
            Self::Look(_) => 3,
            Self::Ready(_) => 4,
        }
    }
}

/// An act with its place in the order.
#[derive(Debug)]
struct Planned {
    order: (Time, u8, u64),
    act: Act,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

/// See the module.
pub(super) struct Coordinator<'a, 'o, I> {
    pub(super) spec: &'a ClusterSpec,
    pub(super) team: &'a Team<'a>,
    source: Source<I>,
    options: RunOptions<'o>,
    router: Box<dyn Placement>,
    /// What the router knows.
    pub(super) workers: Vec<WorkerView>,
    /// The same for one role: others seem to take nothing.
    masked: Vec<WorkerView>,
    pub(super) power: Vec<Power>,
    /// Requests that found no replica.
    pub(super) stranded: Vec<Job>,
    pub(super) handoffs: Handoffs,
    /// Looks in a row at which fewer would have done, for each autoscaler.
    pub(super) few_looks: Vec<u32>,
    /// Ends that the router has not heard of.
    unheard: Vec<(Time, u32, u32)>,
    acts: BinaryHeap<Reverse<Planned>>,
    notes: Vec<Note>,
    released: Vec<(Time, Numbered)>,
    seeds: SeedTree,
    tokens: Vec<u32>,
    prefixes: Vec<u64>,
    pub(super) metrics: Metrics,
    /// Whether placement may go ahead of the replicas.
    blind: bool,
    disaggregated: bool,
    /// When to ask next whether to stop, by requests.
    ask_at: u64,
    stopped: bool,
}

impl<'a, 'o, I> Coordinator<'a, 'o, I>
where
    I: Iterator<Item = Result<Request, SimError>>,
{
    pub(super) fn new(
        spec: &'a ClusterSpec,
        seeds: SeedTree,
        source: Source<I>,
        team: &'a Team<'a>,
        options: RunOptions<'o>,
    ) -> Self {
        let router = spec.placement.build(seeds.child("router"));
        let prefill_router = spec.placement.build(seeds.child("prefill router"));
        let worker =
            |r: &Arc<ReplicaSpec>| WorkerView { weight: r.weight, ..WorkerView::default() };
        let count = spec.replicas.len();
        let disaggregated = spec.is_disaggregated();
        let knows_nothing = count == 1 || !router.looks_at_load();
        let rates = |r: &Arc<ReplicaSpec>| r.link_bytes_per_s.max(1);
        let rates: Vec<u64> = spec.replicas.iter().map(rates).collect();
        Self {
            workers: spec.replicas.iter().map(worker).collect(),
            masked: Vec::new(),
            power: vec![Power::On; count],
            stranded: Vec::new(),
            handoffs: Handoffs {
                prefill_router,
                under_way: BTreeMap::new(),
                waiting: vec![VecDeque::new(); count],
                links: Links::new(rates.clone(), rates),
            },
            few_looks: vec![0; spec.autoscale.len()],
            spec,
            team,
            source,
            options,
            router,
            unheard: Vec::new(),
            acts: BinaryHeap::new(),
            notes: Vec::new(),
            released: Vec::new(),
            seeds,
            tokens: Vec::new(),
            prefixes: Vec::new(),
            metrics: Metrics::default(),
            blind: knows_nothing && spec.autoscale.is_empty() && !disaggregated,
            disaggregated,
            ask_at: ASK_EVERY,
            stopped: false,
        }
    }

    pub(super) fn push(&mut self, at: Time, number: u64, act: Act) {
        self.acts.push(Reverse(Planned { order: (at, act.class(), number), act }));
    }

    fn next_arrival(&self) -> Option<Time> {
        let wanted = |at: &Time| self.options.until.is_none_or(|until| *at < until);
        self.source.next_arrival().filter(|at| !self.stopped && wanted(at))
    }

    fn next_act(&self) -> Option<Time> {
        let act = self.acts.peek().map(|a| a.0.order.0);
        act.into_iter().chain(self.handoffs.links.next_end()).min()
    }

    /// When the coordinator has something to do next.
    fn next_own(&self) -> Option<Time> {
        self.next_arrival().into_iter().chain(self.next_act()).min()
    }

    /// Whether anything is under way or to come, besides looks of the autoscaler.
    pub(super) fn has_more(&self, _now: Time) -> bool {
        let looks = |a: &Reverse<Planned>| matches!(a.0.act, Act::Look(_));
        self.next_arrival().is_some()
            || self.acts.iter().any(|a| !looks(a))
            || self.workers.iter().any(|w| w.requests > 0)
            || !self.stranded.is_empty()
            || self.source.least_delay().is_some()
    }

    /// Runs to the end.
    pub(super) fn run(&mut self) -> Result<(), SimError> {
        self.plan_changes();
        loop {
            let own = self.next_own();
            let bound = self.bound(own);
            if own.is_none() && self.team.next_key() == u64::MAX {
                break;
            }
            self.team.run_until(bound);
            self.collect()?;
            let Some(own) = self.next_own().filter(|at| key(*at, true) <= bound) else { continue };
            self.act(own)?;
            if self.metrics.arrived >= self.ask_at
                && let Some(stop) = &mut self.options.stop
            {
                self.ask_at = self.metrics.arrived + ASK_EVERY;
                self.stopped |= stop(own);
            }
        }
        if self.stopped || self.options.until.is_some() {
            return Ok(());
        }
        let waiting: usize = self.handoffs.waiting.iter().map(VecDeque::len).sum();
        match (self.stranded.len() + waiting) as u64 {
            0 => self.source.stuck().map_or(Ok(()), Err),
            count => Err(SimError::Nowhere { count }),
        }
    }

    /// Up to where replicas may run on their own: the coordinator's next moment, or earlier where
    /// what happens on one may concern another before that.
    fn bound(&self, own: Option<Time>) -> u64 {
        let bound = own.map_or(u64::MAX, |at| key(at, true));
        let delay = if self.disaggregated { Some(0) } else { self.source.least_delay() };
        let Some(delay) = delay else { return bound };
        let next = self.team.next_key();
        if next == u64::MAX {
            return bound;
        }
        // At least the next event itself, or nothing would ever happen.
        bound.min(key(Time(next / 2).after(delay), true).max(next + 1))
    }

    /// Hears what has happened.
    fn collect(&mut self) -> Result<(), SimError> {
        let mut log = Vec::new();
        for index in 0..self.team.shards() {
            let mut shard = self.team.shard(index);
            self.notes.append(&mut shard.world.notes);
            if let Some(events) = &mut shard.world.log {
                log.append(events);
            }
            if let Some(violation) = shard.world.violation.take() {
                return Err(SimError::Violation(violation));
            }
        }
        if let Some(sink) = &mut self.options.events {
            log.sort_unstable();
            log.iter().for_each(|event| sink.event(event));
        }
        self.notes.sort_unstable_by_key(|n| (n.at, n.replica, n.sequence));
        let mut notes = std::mem::take(&mut self.notes);
        for note in notes.drain(..) {
            match note.kind {
                NoteKind::Ended(job) => {
                    self.hear_end(note.at, &job.request);
                    self.unheard.push((note.at, note.replica, job.request.prompt_tokens));
                }
                NoteKind::Begun(number) => self.prefill_begun(note.at, number),
                NoteKind::Prefilled(job) => self.prefilled(note.at, job),
                NoteKind::Withdrawn(job) => self.withdrawn(note.at, note.replica, *job),
            }
        }
        self.notes = notes;
        if self.spec.report_interval_ns == 0 {
            self.hear();
        }
        Ok(())
    }

    /// A request has ended: what waited for it may be ready.
    pub(super) fn hear_end(&mut self, at: Time, request: &Request) {
        let mut released = std::mem::take(&mut self.released);
        self.source.ended(at, request, &mut released);
        for (ready, row) in released.drain(..) {
            self.push(ready, row.number, Act::Ready(row));
        }
        self.released = released;
    }

    /// The router hears of ends.
    fn hear(&mut self) {
        let mut unheard = std::mem::take(&mut self.unheard);
        for (at, replica, tokens) in unheard.drain(..) {
            self.forget(replica, tokens);
            if self.disaggregated {
                self.reserve(at, replica);
            }
            self.power_off_if_empty(at, replica);
        }
        self.unheard = unheard;
    }

    /// A request is no longer on a replica.
    pub(super) fn forget(&mut self, replica: u32, prompt_tokens: u32) {
        let worker = &mut self.workers[replica as usize];
        worker.requests -= 1;
        worker.prompt_tokens -= u64::from(prompt_tokens);
    }

    /// What the coordinator does at a moment, and ahead of it where it may.
    fn act(&mut self, now: Time) -> Result<(), SimError> {
        self.hear();
        self.sent(now);
        // All of one moment.
        while let Some(at) = self.next_own().filter(|at| *at <= now) {
            self.next(at)?;
        }
        // Until when it may go on without hearing from the replicas.
        let until = match now.0.checked_div(self.spec.report_interval_ns) {
            Some(passed) => Time((passed + 1).saturating_mul(self.spec.report_interval_ns)),
            None if self.blind => Time::NEVER,
            None => return Ok(()),
        };
        let until = self.next_act().map_or(until, |act| act.min(until));
        for _ in 0..AHEAD {
            let ahead = self.next_arrival().filter(|at| *at < until);
            let Some(at) = ahead.filter(|_| !self.source.is_coupled()) else { return Ok(()) };
            self.next(at)?;
        }
        // The rest of a moment that it has begun.
        let begun = self.source.taken();
        while let Some(at) = self.next_arrival().filter(|at| *at <= begun && *at < until) {
            self.next(at)?;
        }
        Ok(())
    }

    /// Does what is first: an act, or the next arrival, at `at`.
    fn next(&mut self, at: Time) -> Result<(), SimError> {
        if self.acts.peek().is_some_and(|a| a.0.order.0 <= at) {
            let planned = self.acts.pop().expect("it is there").0;
            match planned.act {
                Act::Change(change) => self.change(at, change),
                Act::Started(replica) => self.bring_up(at, replica),
                Act::Landed(number) => self.landed(at, number),
                Act::Look(index) => self.look(at, index),
                Act::Ready(row) => self.arrive(at, row),
            }
            return Ok(());
        }
        if self.handoffs.links.next_end().is_some_and(|end| end <= at) {
            self.sent(at);
            return Ok(());
        }
        match self.source.take()? {
            Some(Next::Ready(ready, row)) if ready <= at => self.arrive(at, row),
            Some(Next::Ready(ready, row)) => self.push(ready, row.number, Act::Ready(row)),
            Some(Next::Held) | None => {}
        }
        Ok(())
    }

    /// A request is ready.
    fn arrive(&mut self, at: Time, row: Numbered) {
        let Numbered { number, request } = row;
        self.metrics.arrived += 1;
        self.metrics.timeline.at(at).arrived += 1;
        let job = Job {
            number,
            request,
            ready: at,
            came: at,
            first_token: None,
            last_token: at,
            done_tokens: 0,
            energy_uj: 0,
            queue_ns: 0,
            stage: Stage::Whole,
        };
        self.place(at, job);
    }

    /// A request begins again at a moment.
    pub(super) fn retry(&mut self, now: Time, mut job: Job) {
        job.came = now;
        self.place(now, job);
    }

    /// A request goes to a replica that does all of it, or to one that decodes.
    fn place(&mut self, at: Time, job: Job) {
        if self.disaggregated {
            return self.place_decode(at, job);
        }
        let Some(replica) = self.route(&job, Role::Mixed) else {
            self.stranded.push(job);
            return;
        };
        let worker = &mut self.workers[replica as usize];
        worker.requests += 1;
        worker.prompt_tokens += u64::from(job.request.prompt_tokens);
        self.team.deliver(replica, job);
    }

    /// The replica of a role that a request goes to, if any takes it.
    pub(super) fn route(&mut self, job: &Job, role: Role) -> Option<u32> {
        let router = match role {
            Role::Prefill => &mut self.handoffs.prefill_router,
            Role::Mixed | Role::Decode => &mut self.router,
        };
        self.prefixes.clear();
        if router.looks_at_prefix() {
            self.tokens.clear();
            let own = self.seeds.child("content").child_at(job.number).seed();
            job.request.prompt_ids(own, VOCABULARY, &mut self.tokens);
            prefix_keys(&self.tokens, PREFIX_BLOCK_TOKENS, &mut self.prefixes);
        }
        let view = RequestView {
            number: job.number,
            session: job.request.session,
            prompt_tokens: job.request.prompt_tokens,
            prefixes: &self.prefixes,
        };
        let chosen = if role == Role::Mixed {
            router.place(&view, &self.workers)
        } else {
            self.masked.clear();
            let roles = self.spec.replicas.iter().map(|r| r.role == role);
            let masked = self.workers.iter().zip(roles);
            let mask =
                |(w, own): (&WorkerView, bool)| WorkerView { accepting: w.accepting && own, ..*w };
            self.masked.extend(masked.map(mask));
            router.place(&view, &self.masked)
        };
        chosen.map(|replica| replica as u32)
    }

    /// The end: everything added up.
    pub(super) fn report(&mut self) -> Result<Report, SimError> {
        let mut metrics = std::mem::take(&mut self.metrics);
        let mut last = metrics.last;
        for index in 0..self.team.shards() {
            last = last.max(self.team.shard(index).world.metrics.last);
        }
        let mut rejection: Option<(u64, dunlin_scheduler::Rejection)> = None;
        let mut replicas: Vec<ReplicaSummary> = Vec::with_capacity(self.spec.replicas.len());
        let mut digest = Digest::default();
        for id in 0..self.spec.replicas.len() as u32 {
            self.team.with(id, |replica, world| {
                replica.close(last, world);
                digest.word(replica.digest.0);
                replicas.push(ReplicaSummary {
                    busy_ns: replica.busy_ns,
                    ended: replica.ended,
                    unfinished: replica.unfinished() as u64,
                });
            });
        }
        for index in 0..self.team.shards() {
            let mut shard = self.team.shard(index);
            metrics.merge(std::mem::take(&mut shard.world.metrics));
            if let Some(found) = shard.world.rejection.take()
                && rejection.as_ref().is_none_or(|first| found.0 < first.0)
            {
                rejection = Some(found);
            }
        }
        metrics.last = last;
        let oracle = self.spec.replicas.iter().any(|r| matches!(r.prediction, Prediction::Oracle));
        Ok(Report {
            metrics,
            replicas,
            digest,
            rejection: rejection.map(|(number, why)| (number, why.to_string())),
            oracle,
            slo: self.spec.slo,
            stopped: self.stopped,
        })
    }
}
