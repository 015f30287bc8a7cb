//! Recorded runs of vLLM 0.19 against the simulator. Timings of single kernels go in, and what the
//! operators of the runs had set; nothing is fitted to the runs. Source and licence of the data, and
//! where each constant comes from, are in `examples/data/vllm/README.md`.

use std::{fs::File, io::BufReader, path::PathBuf, sync::Arc};

use dunlin_costmodel::{CostFile, CostSpec, OperatorProfile, Operators};
use dunlin_kvcache::{CacheConfig, EvictionKind};
use dunlin_scheduler::{Admission, CoreConfig};
use dunlin_sim::{
    ClusterSpec, ReplicaSpec, RunOptions, SimError,
    events::{LogEvent, What},
    simulate,
};
use dunlin_workload::trace::{ReadOptions, TraceKind, TraceReader};

/// A run: its folder, its workload, and what its operators set.
struct Run {
    name: &'static str,
    trace: &'static str,
    kv_blocks: usize,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
}

const LLAMA: &str = "sharegpt-llama-3.1-8b.blocks16.jsonl";
const QWEN: &str = "sharegpt-qwen3.blocks16.jsonl";

const RTX4090: Run = Run {
    name: "rtx4090-llama-3.1-8b",
    trace: LLAMA,
    kv_blocks: 2588,
    max_num_seqs: 256,
    max_num_batched_tokens: 2048,
};

const PRO6000_LLAMA: Run = Run {
    name: "rtxpro6000-llama-3.1-8b",
    trace: LLAMA,
    kv_blocks: 34_000,
    max_num_seqs: 128,
    max_num_batched_tokens: 2048,
};

const PRO6000_QWEN_32B: Run = Run {
    name: "rtxpro6000-qwen3-32b-tp2",
    trace: QWEN,
    kv_blocks: 26_000,
    max_num_seqs: 128,
    max_num_batched_tokens: 2048,
};

/// Two ranks that step together are one replica with twice of everything.
const PRO6000_QWEN_MOE: Run = Run {
    name: "rtxpro6000-qwen3-30b-a3b-dp2",
    trace: QWEN,
    kv_blocks: 60_000,
    max_num_seqs: 256,
    max_num_batched_tokens: 4096,
};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/vllm").join(name)
}

fn cost_file(run: &Run) -> CostFile {
    let text = std::fs::read_to_string(data(run.name).join("cost.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

/// When a request came, got its first token and its last, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    arrival: u64,
    first: u64,
    last: u64,
    tokens: u64,
}

fn recorded(run: &Run) -> Vec<Times> {
    let text = std::fs::read_to_string(data(run.name).join("recorded.csv")).unwrap();
    let row = |line: &str| {
        let f: Vec<u64> = line.split(',').map(|f| f.parse().unwrap()).collect();
        Times { arrival: f[0], first: f[3], last: f[4], tokens: f[5] }
    };
    text.lines().skip(1).map(row).collect()
}

fn simulated(run: &Run) -> Vec<Times> {
    let cache = CacheConfig {
        block_tokens: 16,
        block_count: run.kv_blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 1,
    };
    let core = CoreConfig {
        max_running: run.max_num_seqs,
        admission: Admission::Prompt,
        ..CoreConfig::new(cache, run.max_num_batched_tokens)
    };
    let replica = ReplicaSpec::new(core, Arc::new(cost_file(run).build().unwrap()));
    let file = BufReader::new(File::open(data(run.trace)).unwrap());
    let reader =
        TraceReader::new(file, Some(TraceKind::LlmServingSim), ReadOptions::default()).unwrap();
    let mut log: Vec<LogEvent> = Vec::new();
    let options = RunOptions { events: Some(&mut log), ..RunOptions::default() };
    let requests = reader.map(|r| r.map_err(SimError::from));
    simulate(&ClusterSpec::single(replica), requests, options).unwrap();
    let mut times = vec![Times::default(); 300];
    for event in &log {
        match event.what {
            What::Arrive { request } => times[request as usize].arrival = event.at.0,
            What::FirstToken { request } => times[request as usize].first = event.at.0,
            What::End { request, tokens, complete, .. } => {
                assert!(complete, "request {request}");
                times[request as usize].last = event.at.0;
                times[request as usize].tokens = u64::from(tokens);
            }
            _ => {}
        }
    }
    times
}

/// Means of TTFT, TPOT and end-to-end latency, in milliseconds.
fn means(times: &[Times]) -> [f64; 3] {
    let mean = |f: fn(&Times) -> f64| times.iter().map(f).sum::<f64>() / times.len() as f64 / 1e6;
    [
        mean(|t| (t.first - t.arrival) as f64),
        mean(|t| (t.last - t.first) as f64 / (t.tokens - 1) as f64),
        mean(|t| (t.last - t.arrival) as f64),
    ]
}

/// Relative errors of the simulation's means of TTFT, TPOT and end-to-end latency.
fn errors(run: &Run) -> [f64; 3] {
    let (was, is) = (recorded(run), simulated(run));
    assert!(was.iter().zip(&is).all(|(a, b)| a.tokens == b.tokens), "the same requests");
    let (was, is) = (means(&was), means(&is));
    let errors = [0, 1, 2].map(|i| is[i] / was[i] - 1.0);
    println!("{}: recorded {was:.1?} ms, simulated {is:.1?} ms, errors {errors:.4?}", run.name);
    errors
}

#[test]
fn the_rtx_4090_run_within_one_percent() {
    for error in errors(&RTX4090) {
        assert!(error.abs() < 0.01, "{error}");
    }
}

#[test]
fn the_dense_runs_on_rtx_pro_6000_within_two_percent_end_to_end() {
    for run in [PRO6000_LLAMA, PRO6000_QWEN_32B] {
        let [_, tpot, e2e] = errors(&run);
        assert!(e2e.abs() < 0.02 && tpot.abs() < 0.01, "{}: {tpot} {e2e}", run.name);
    }
}

/// Not within two percent: which experts were in use was not recorded, and the model takes them to be
/// chosen evenly, which uses the most of them.
#[test]
fn the_run_with_experts_within_four_percent_end_to_end() {
    let [_, tpot, e2e] = errors(&PRO6000_QWEN_MOE);
    assert!(e2e.abs() < 0.04 && tpot.abs() < 0.04, "{tpot} {e2e}");
}

/// Points of the profile's sweep that lie between those of its grid, left out there: what linear
/// interpolation gets wrong.
#[test]
fn interpolation_meets_points_that_were_left_out() {
    let CostSpec::Operators(profile) = cost_file(&PRO6000_LLAMA).model else { panic!() };
    let whole = Operators::new(&profile).unwrap();
    // Every other point of the decode table's KV axis goes.
    let mut coarse: OperatorProfile = (*profile).clone();
    let d = &mut coarse.attention.decode;
    let kept: Vec<usize> = (0..d.kv.len()).step_by(2).collect();
    d.us = (0..d.seqs.len())
        .flat_map(|s| kept.iter().map(move |k| (s, *k)))
        .map(|(s, k)| d.us[s * d.kv.len() + k])
        .collect();
    d.kv = kept.iter().map(|&k| d.kv[k]).collect();
    let coarse = Operators::new(&coarse).unwrap();
    let mut errors = Vec::new();
    for n in [1, 8, 64, 128] {
        for kv in [512u32, 2048, 8192] {
            use dunlin_costmodel::{Phase, SeqShape, StepCost, StepShape};
            let seq = SeqShape { new_tokens: 1, context: kv - 1, phase: Phase::Decode };
            let shape = StepShape { seqs: vec![seq; n], sampled: n as u32, experts: None };
            let (a, b) = (whole.price(&shape), coarse.price(&shape));
            errors.push((b.time_ns as f64 / a.time_ns as f64 - 1.0).abs());
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean error of a step with half of the points: {mean:.4}");
    assert!(mean < 0.02, "{errors:?}");
}
