//! The cluster: replicas behind a placement policy, under one virtual clock.
//!
//! The coordinator owns what concerns more than one replica: arrivals, requests that wait for
//! others, placement, hand-over of KV, replicas that come and go. It lets all replicas run on their
//! own until the next moment at which one of these may matter, and then acts. The order of
//! everything is (time, class, replica, sequence), completions before arrivals, whatever the number
//! of threads.

mod changes;
mod coordinator;
mod handoff;

use std::{
    sync::{Arc, Mutex},
    thread,
};

use dunlin_router::PlacementKind;
use dunlin_units::{SeedTree, Time};
use dunlin_workload::Request;

pub use changes::{Autoscale, Change, ChangeKind};

use crate::{
    error::SimError,
    events::EventSink,
    metrics::Slo,
    replica::{Replica, ReplicaSpec, Role, World},
    report::Report,
    shard::{MAX_THREADS, Shard, Signal, Team, help},
    source::Source,
};
use coordinator::Coordinator;

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
    /// How KV goes from replicas that prefill to those that decode.
    pub transfer: Transfer,
    /// Replicas that go down, come up, or become slow, in order of time.
    pub changes: Vec<Change>,
    /// How many replicas are on, by load: one for each role at most.
    pub autoscale: Vec<Autoscale>,
}

/// How KV goes from replica to replica. Links are max-min fair ([`crate::links`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfer {
    /// Nanoseconds from a transfer's last byte to its use.
    pub latency_ns: u64,
    /// Layers whose KV leaves as soon as it is computed; without, all of it leaves when the prompt is
    /// done.
    pub overlap_layers: Option<u32>,
}

impl ClusterSpec {
    /// A single replica.
    pub fn single(replica: ReplicaSpec) -> Self {
        Self {
            replicas: vec![Arc::new(replica)],
            placement: PlacementKind::LeastLoaded,
            report_interval_ns: 0,
            slo: Slo::default(),
            transfer: Transfer::default(),
            changes: Vec::new(),
            autoscale: Vec::new(),
        }
    }

    /// Whether prefill and decode are on different replicas.
    pub fn is_disaggregated(&self) -> bool {
        self.replicas.iter().any(|r| r.role != Role::Mixed)
    }

    /// Whether only ends of requests pass from replica to replica, so that each need not be run before
    /// its next request may end.
    fn is_lazy(&self) -> bool {
        !self.is_disaggregated() && self.changes.is_empty() && self.autoscale.is_empty()
    }

    /// Whether the cluster can be simulated.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    pub fn validate(&self) -> Result<(), SimError> {
        if self.replicas.is_empty() {
            return Err(SimError::NoReplicas);
        }
        for (replica, spec) in self.replicas.iter().enumerate() {
            spec.core
                .validate()
                .map_err(|problem| SimError::Core { replica: replica as u32, problem })?;
        }
        let setting = |setting, problem: &str| {
            Err(SimError::Setting { setting, problem: problem.to_string() })
        };
        if self.is_disaggregated() {
            let has = |role| self.replicas.iter().any(|r| r.role == role);
            if has(Role::Mixed) || !has(Role::Prefill) || !has(Role::Decode) {
                let problem = "a cluster has mixed replicas only, or at least one that prefills, \
                               one that decodes, and no others";
                return setting("role", problem);
            }
            if self.replicas.iter().any(|r| r.block_bytes == 0 || r.link_bytes_per_s == 0) {
                let problem = "replicas that hand KV over need the bytes of a KV block and of their \
                               link a second";
                return setting("link_bytes_per_s", problem);
            }
        }
        let count = self.replicas.len() as u32;
        if self.changes.iter().any(|c| c.replica >= count) {
            return setting("changes", &format!("there are replicas 0 to {} only", count - 1));
        }
        if self.changes.windows(2).any(|w| w[0].at > w[1].at) {
            return setting("changes", "they are not in order of time");
        }
        for (index, scale) in self.autoscale.iter().enumerate() {
            let pool = self.replicas.iter().filter(|r| r.role == scale.role).count();
            scale.validate(pool as u32)?;
            if self.autoscale[..index].iter().any(|other| other.role == scale.role) {
                return setting("autoscale.role", "two of them are of one role");
            }
        }
        Ok(())
    }
}

/// Replicas whose next end may come within this part of the shortest step behind a round are run in
/// it. More parts make rounds shorter, and leave threads less to do side by side.
const ALONG: u64 = 4;

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
    let overlaps = spec.is_disaggregated() && spec.transfer.overlap_layers.is_some();
    let world = || World {
        wants_begun: overlaps,
        log: logs.then(Vec::new),
        slo: spec.slo,
        ..World::default()
    };
    let lazy = spec.is_lazy() && !logs;
    let shard = |replicas| Mutex::new(Shard::new(replicas, world(), lazy));
    let shards: Vec<Mutex<Shard>> = parts.into_iter().map(shard).collect();
    let least_ns = spec.replicas.iter().map(|r| r.cost.least_ns()).min().unwrap_or(0);
    let along = if lazy { 2 * (least_ns / ALONG) } else { 0 };
    let signal = Signal::new();
    let source = Source::new(requests.into_iter())?;
    thread::scope(|scope| {
        let helpers = shards[1..].iter().map(|shard| {
            let signal = &signal;
            scope.spawn(move || help(shard, signal)).thread().clone()
        });
        let team = Team::new(&shards, &signal, helpers.collect(), along);
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
