//! What the tests share: small clusters, and workloads of their own.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use dunlin_costmodel::LinearCost;
use dunlin_kvcache::{CacheConfig, EvictionKind};
use dunlin_scheduler::CoreConfig;
use dunlin_sim::{ClusterSpec, ReplicaSpec, Report, RunOptions, SimError, simulate};
use dunlin_units::{SeedTree, Stream, Time};
use dunlin_workload::Request;

pub fn core(blocks: usize, running: u32) -> CoreConfig {
    let cache = CacheConfig {
        block_tokens: 16,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 1,
    };
    CoreConfig { max_running: running, ..CoreConfig::new(cache, 2048) }
}

/// Every step takes the same time.
pub fn constant(step_ns: f64) -> LinearCost {
    LinearCost { fixed_ns: step_ns, ..LinearCost::default() }
}

/// Like a small model on a small machine.
pub fn usual() -> LinearCost {
    LinearCost {
        fixed_ns: 4e6,
        token_ns: 30e3,
        kv_position_ns: 50.0,
        prefill_pair_ns: 5.0,
        power_watts: 100.0,
        ..LinearCost::default()
    }
}

pub fn replica(core: CoreConfig, cost: LinearCost) -> ReplicaSpec {
    ReplicaSpec::new(core, Arc::new(cost))
}

pub fn cluster(replica: ReplicaSpec, count: usize) -> ClusterSpec {
    let one = ClusterSpec::single(replica);
    let replicas = std::iter::repeat_n(Arc::clone(&one.replicas[0]), count).collect();
    ClusterSpec { replicas, ..one }
}

pub fn run(
    cluster: &ClusterSpec,
    requests: impl IntoIterator<Item = Request>,
) -> Result<Report, SimError> {
    simulate(cluster, requests.into_iter().map(Ok), RunOptions::default())
}

/// The same with every decision checked.
pub fn checked(
    cluster: &ClusterSpec,
    requests: impl IntoIterator<Item = Request>,
) -> Result<Report, SimError> {
    let options = RunOptions { checked: true, ..RunOptions::default() };
    simulate(cluster, requests.into_iter().map(Ok), options)
}

/// Poisson arrivals at a rate, with lengths from a function.
pub fn poisson(
    seed: u64,
    per_s: f64,
    count: usize,
    mut lengths: impl FnMut(&mut Stream) -> (u32, u32),
) -> Vec<Request> {
    let seeds = SeedTree::root(seed);
    let (mut gaps, mut sizes) = (seeds.child("gaps").stream(), seeds.child("sizes").stream());
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += -(1.0 - gaps.next_unit()).ln() / per_s * 1e9;
            let (prompt, output) = lengths(&mut sizes);
            Request::new(Time(at as u64), prompt, output)
        })
        .collect()
}
