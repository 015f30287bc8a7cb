//! How fast the simulator is: many requests with the lengths of a recorded trace, through one
//! replica or many. Prints JSON.
//!
//! ```text
//! cargo run --release -p dunlin-sim --example sim_bench -- TRACE.csv [REQUESTS] [REPLICAS] [THREADS]
//! ```
//!
//! Full metrics, prefix cache on; arrivals are Poisson at the rate given by `RATE` (requests a second
//! for each replica, 9 without), placement is `PLACEMENT` (least-loaded without). With `ABREAST` no replica falls behind the others, as
//! where any may go down: for comparison; the result is the same.

use std::{sync::Arc, time::Instant};

use dunlin_costmodel::LinearCost;
use dunlin_kvcache::{CacheConfig, EvictionKind};
use dunlin_router::PlacementKind;
use dunlin_scheduler::CoreConfig;
use dunlin_sim::{Change, ChangeKind, ClusterSpec, ReplicaSpec, RunOptions, simulate};
use dunlin_units::Time;
use dunlin_workload::{
    ArrivalSpec, ClientSpec, LengthsSpec, WorkloadSpec,
    trace::{ReadOptions, TraceReader},
};

/// A step of 12 ms, and what its tokens and the KV they read add: about a model of 8 billion
/// parameters on one GPU.
fn cost() -> LinearCost {
    LinearCost {
        fixed_ns: 12e6,
        token_ns: 20e3,
        kv_position_ns: 40.0,
        prefill_pair_ns: 10.0,
        power_watts: 500.0,
        ..LinearCost::default()
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, usual: u64| args.get(at).map_or(usual, |a| a.parse().expect("a number"));
    let path = args.first().expect("a trace");
    let (count, replicas, threads) = (number(1, 400_000), number(2, 1), number(3, 1));
    let variable = |name: &str| std::env::var(name).ok();
    let rate: f64 = variable("RATE").map_or(9.0, |r| r.parse().expect("a rate"));
    let placement: PlacementKind =
        variable("PLACEMENT").map_or(PlacementKind::LeastLoaded, |p| p.parse().expect("a policy"));
    let interval: u64 = variable("REPORT_MS").map_or(0, |r| r.parse().expect("milliseconds"));
    let blocks: usize = variable("BLOCKS").map_or(24_000, |r| r.parse().expect("blocks"));
    let file = std::fs::File::open(path).expect("the trace can be opened");
    let reader = TraceReader::new(std::io::BufReader::new(file), None, ReadOptions::default())
        .expect("a trace");
    let rows: Vec<(u32, u32)> =
        reader.map(|row| row.map(|r| (r.prompt_tokens, r.output_tokens)).expect("a row")).collect();
    let mut client = ClientSpec::new(
        "trace",
        ArrivalSpec::poisson(rate * replicas as f64),
        LengthsSpec::Rows { rows: rows.into() },
    );
    client.limit = Some(count);
    let workload = WorkloadSpec { clients: vec![client], ..WorkloadSpec::default() };
    let cache = CacheConfig {
        block_tokens: 32,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 1,
    };
    let replica = Arc::new(ReplicaSpec::new(CoreConfig::new(cache, 4096), Arc::new(cost())));
    let usual_speed = Change { at: Time(0), replica: 0, kind: ChangeKind::Slow { percent: 100 } };
    let cluster = ClusterSpec {
        replicas: vec![replica; replicas as usize],
        placement,
        report_interval_ns: interval * 1_000_000,
        changes: variable("ABREAST").map(|_| usual_speed).into_iter().collect(),
        ..ClusterSpec::single(ReplicaSpec::new(CoreConfig::new(cache, 4096), Arc::new(cost())))
    };
    let options = RunOptions { seed: 1, threads: threads as usize, ..RunOptions::default() };
    let (begin, begin_cpu) = (Instant::now(), cpu_ns());
    let requests = workload.build(1).expect("a workload").map(Ok);
    let report = simulate(&cluster, requests, options).expect("a run");
    let (wall_s, cpu_s) = (begin.elapsed().as_secs_f64(), (cpu_ns() - begin_cpu) as f64 / 1e9);
    let summary = report.summary();
    let result = serde_json::json!({
        "wall_s": wall_s, "cpu_s": cpu_s,
        "sequence_steps_per_cpu_s": summary.steps.sequence_steps as f64 / cpu_s,
        "requests_per_cpu_s": count as f64 / cpu_s,
        "peak_rss_kib": peak_kib(),
        "summary": summary,
    });
    println!("{}", serde_json::to_string_pretty(&result).expect("JSON"));
}

/// Time that all threads of this process have run on a CPU, those that have ended included, in steps
/// of ten milliseconds.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may have spaces: user and system time are the 12th and 13th.
    let fields = text.rsplit(')').next().unwrap_or("").split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10_000_000
}

/// The most memory that was resident, in KiB.
fn peak_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmHWM:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}
