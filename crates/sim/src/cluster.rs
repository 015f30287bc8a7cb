//! The cluster: replicas behind a placement policy, under one virtual clock.
//!
//! The coordinator owns what concerns more than one replica: arrivals, requests that wait for
//! others, placement. It lets all replicas run on their own until the next moment at which one of
//! these may matter, and then acts. The order of everything is (time, class, replica, sequence),
//! completions before arrivals, whatever the number of threads.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{Arc, Mutex},
    thread,
};

use dunlin_router::{Placement, PlacementKind, RequestView, WorkerView, prefix_keys};
use dunlin_units::{SeedTree, Time};
use dunlin_workload::Request;

use crate::{
    error::SimError,
    events::{Digest, EventSink},
    metrics::{Metrics, Slo},
    replica::{Job, Note, Replica, ReplicaSpec, VOCABULARY, World, key},
    report::{ReplicaSummary, Report},
    shard::{MAX_THREADS, Shard, Signal, Team, help},
    source::{Next, Numbered, Source},
};

/// Requests placed ahead of time at most, where placement needs to know nothing of replicas.
const AHEAD: usize = 4096;

/// Requests between two questions whether to stop.
const ASK_EVERY: u64 = 1000;

/// Tokens of a block of prompt that placement by prefix tells apart.
const PREFIX_BLOCK_TOKENS: usize = 64;

/// A cluster, described.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// The replicas.
    pub replicas: Vec<Arc<ReplicaSpec>>,
    /// Which replica a request goes to.
    pub placement: PlacementKind,
    /// How old what the router knows of loads may be: of ends it learns with the first request of
    /// each span of so many nanoseconds, of what it places at once. Zero for always up to date.
    pub report_interval_ns: u64,
    /// What a request must keep to count as good.
    pub slo: Slo,
}

impl ClusterSpec {
    /// A single replica.
    pub fn single(replica: ReplicaSpec) -> Self {
        Self {
            replicas: vec![Arc::new(replica)],
            placement: PlacementKind::LeastLoaded,
            report_interval_ns: 0,
            slo: Slo::default(),
        }
    }

    fn validate(&self) -> Result<(), SimError> {
        if self.replicas.is_empty() {
            return Err(SimError::NoReplicas);
        }
        for (replica, spec) in self.replicas.iter().enumerate() {
            spec.core
                .validate()
                .map_err(|problem| SimError::Core { replica: replica as u32, problem })?;
        }
        Ok(())
    }
}

/// How to run.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// The seed of everything that is drawn in the simulation (what the workload drew is its own).
    pub seed: u64,
    /// Threads; 0 and 1 are the same.
    pub threads: usize,
    /// Checks every decision of every core: slow, for tests.
    pub checked: bool,
    /// Who gets the event log.
    pub events: Option<&'a mut dyn EventSink>,
    /// No request that arrives later is taken.
    pub until: Option<Time>,
    /// Asked now and then whether to stop early, with the moment that was reached.
    pub stop: Option<&'a mut dyn FnMut(Time) -> bool>,
}

/// Simulates.
///
/// # Errors
/// Settings that make no sense, a workload that is not in order or waits for itself, a row that
/// cannot be read.
pub fn simulate<I>(
    spec: &ClusterSpec,
    requests: I,
    options: RunOptions<'_>,
) -> Result<Report, SimError>
where
    I: IntoIterator<Item = Result<Request, SimError>>,
{
    spec.validate()?;
    let seeds = SeedTree::root(options.seed).child("simulation");
    let threads = options.threads.clamp(1, MAX_THREADS).min(spec.replicas.len());
    let mut parts: Vec<Vec<Replica>> = (0..threads).map(|_| Vec::new()).collect();
    for (id, replica) in spec.replicas.iter().enumerate() {
        let content = seeds.child("content");
        let replica = Replica::new(id as u32, Arc::clone(replica), content, options.checked);
        parts[id % threads].push(replica);
    }
    let logs = options.events.is_some();
    let world =
        || World { wants_notes: true, log: logs.then(Vec::new), slo: spec.slo, ..World::default() };
    let shards: Vec<Mutex<Shard>> =
        parts.into_iter().map(|replicas| Mutex::new(Shard::new(replicas, world()))).collect();
    let signal = Signal::new();
    let source = Source::new(requests.into_iter())?;
    thread::scope(|scope| {
        let helpers = shards[1..].iter().map(|shard| {
            let signal = &signal;
            scope.spawn(move || help(shard, signal)).thread().clone()
        });
        let team = Team::new(&shards, &signal, helpers.collect());
        let stopper = Stopper(&team);
        let mut coordinator = Coordinator::new(spec, seeds, source, &team, options);
        let result = coordinator.run();
        drop(stopper);
        result.and_then(|()| coordinator.report())
    })
}

/// Ends the threads, also when the coordinator panics.
struct Stopper<'a, 'b>(&'a Team<'b>);

impl Drop for Stopper<'_, '_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A request that is ready at a moment to come.
#[derive(Debug)]
struct Due {
    at: Time,
    row: Numbered,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.row.number) == (other.at, other.row.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.row.number).cmp(&(other.at, other.row.number))
    }
}

struct Coordinator<'a, 'o, I> {
    spec: &'a ClusterSpec,
    team: &'a Team<'a>,
    source: Source<I>,
    options: RunOptions<'o>,
    router: Box<dyn Placement>,
    /// What the router knows.
    workers: Vec<WorkerView>,
    /// Ends that it has not heard of.
    unheard: Vec<(u32, u32)>,
    /// Requests that waited and are ready at a moment to come.
    due: BinaryHeap<Reverse<Due>>,
    notes: Vec<Note>,
    released: Vec<(Time, Numbered)>,
    seeds: SeedTree,
    tokens: Vec<u32>,
    prefixes: Vec<u64>,
    metrics: Metrics,
    /// Whether placement may go ahead of the replicas.
    blind: bool,
    /// When to ask next whether to stop, by requests.
    ask_at: u64,
    stopped: bool,
}

impl<'a, 'o, I> Coordinator<'a, 'o, I>
where
    I: Iterator<Item = Result<Request, SimError>>,
{
    fn new(
        spec: &'a ClusterSpec,
        seeds: SeedTree,
        source: Source<I>,
        team: &'a Team<'a>,
        options: RunOptions<'o>,
    ) -> Self {
        let router = spec.placement.build(seeds.child("router"));
        let worker =
            |r: &Arc<ReplicaSpec>| WorkerView { weight: r.weight, ..WorkerView::default() };
        let blind = spec.replicas.len() == 1 || !router.looks_at_load();
        Self {
            workers: spec.replicas.iter().map(worker).collect(),
            spec,
            team,
            source,
            options,
            router,
            unheard: Vec::new(),
            due: BinaryHeap::new(),
            notes: Vec::new(),
            released: Vec::new(),
            seeds,
            tokens: Vec::new(),
            prefixes: Vec::new(),
            metrics: Metrics::default(),
            blind,
            ask_at: ASK_EVERY,
            stopped: false,
        }
    }

    /// When the coordinator has something to do next.
    fn next_own(&self) -> Option<Time> {
        let arrival = self
            .source
            .next_arrival()
            .filter(|at| !self.stopped && self.options.until.is_none_or(|until| *at < until));
        let due = self.due.peek().map(|d| d.0.at);
        [arrival, due].into_iter().flatten().min()
    }

    /// Runs to the end.
    fn run(&mut self) -> Result<(), SimError> {
        loop {
            let own = self.next_own();
            let bound = self.bound(own);
            if bound == u64::MAX && self.team.next_key() == u64::MAX && own.is_none() {
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
        match self.source.stuck() {
            Some(stuck) if !self.stopped && self.options.until.is_none() => Err(stuck),
            _ => Ok(()),
        }
    }

    /// Up to where replicas may run on their own: the coordinator's next moment, or earlier where an
    /// end may have a request follow.
    fn bound(&self, own: Option<Time>) -> u64 {
        let bound = own.map_or(u64::MAX, |at| key(at, true));
        let Some(delay) = self.source.least_delay() else { return bound };
        let next = self.team.next_key();
        if next == u64::MAX {
            return bound;
        }
        // At least the next event itself, or nothing would ever happen.
        bound.min(key(Time(next / 2).after(delay), true).max(next + 1))
    }

    /// Hears what has ended.
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
        for note in self.notes.drain(..) {
            self.source.ended(note.at, &note.job.request, &mut self.released);
            self.unheard.push((note.replica, note.job.request.prompt_tokens));
            self.due.extend(self.released.drain(..).map(|(at, row)| Reverse(Due { at, row })));
        }
        if self.spec.report_interval_ns == 0 {
            self.hear();
        }
        Ok(())
    }

    /// The router hears of ends.
    fn hear(&mut self) {
        for (replica, tokens) in self.unheard.drain(..) {
            let worker = &mut self.workers[replica as usize];
            worker.requests -= 1;
            worker.prompt_tokens -= u64::from(tokens);
        }
    }

    /// What the coordinator does at a moment, and ahead of it where it may.
    fn act(&mut self, now: Time) -> Result<(), SimError> {
        let interval = self.spec.report_interval_ns;
        self.hear();
        // Until when it may go on without hearing from the replicas.
        let until = match now.0.checked_div(interval) {
            Some(passed) => Time((passed + 1).saturating_mul(interval)),
            None if self.blind => Time::NEVER,
            None => now.after(1),
        };
        for _ in 0..AHEAD {
            let Some(at) = self.next_own().filter(|at| *at < until) else { return Ok(()) };
            if at > now && self.source.is_coupled() {
                return Ok(());
            }
            self.next_ready(at)?;
        }
        // All of one moment, or what comes would depend on how far it went.
        while let Some(at) = self.next_own().filter(|at| *at == now) {
            self.next_ready(at)?;
        }
        Ok(())
    }

    /// Takes what is ready or arrives first, at `at`.
    fn next_ready(&mut self, at: Time) -> Result<(), SimError> {
        if self.due.peek().is_some_and(|d| d.0.at == at) {
            let due = self.due.pop().expect("it is there").0;
            self.place(at, due.row);
            return Ok(());
        }
        match self.source.take()? {
            Some(Next::Ready(ready, row)) if ready <= at => self.place(at, row),
            Some(Next::Ready(ready, row)) => self.due.push(Reverse(Due { at: ready, row })),
            Some(Next::Held) | None => {}
        }
        Ok(())
    }

    /// Places a request that is ready.
    fn place(&mut self, at: Time, row: Numbered) {
        let Numbered { number, request } = row;
        self.metrics.arrived += 1;
        self.metrics.timeline.at(at).arrived += 1;
        let prompt_tokens = request.prompt_tokens;
        self.prefixes.clear();
        if self.router.looks_at_prefix() {
            self.tokens.clear();
            let own = self.seeds.child("content").child_at(number).seed();
            request.prompt_ids(own, VOCABULARY, &mut self.tokens);
            prefix_keys(&self.tokens, PREFIX_BLOCK_TOKENS, &mut self.prefixes);
        }
        let view = RequestView {
            number,
            session: request.session,
            prompt_tokens,
            prefixes: &self.prefixes,
        };
        let replica = self.router.place(&view, &self.workers).expect("all accept");
        let worker = &mut self.workers[replica];
        worker.requests += 1;
        worker.prompt_tokens += u64::from(prompt_tokens);
        let job = Job {
            number,
            request,
            ready: at,
            came: at,
            first_token: None,
            last_token: at,
            done_tokens: 0,
            queue_ns: 0,
        };
        self.team.deliver(replica as u32, job);
    }

    /// The end: everything added up.
    fn report(&mut self) -> Result<Report, SimError> {
        let mut metrics = std::mem::take(&mut self.metrics);
        let mut last = Time(0);
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
        let oracle = self
            .spec
            .replicas
            .iter()
            .any(|r| matches!(r.prediction, crate::replica::Prediction::Oracle));
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
