//! What the core costs: the time of one call, and many requests through it with an executor that
//! does nothing. Prints JSON.
//!
//! ```text
//! cargo run --release -p dunlin-scheduler --example scheduler_bench -- step
//! cargo run --release -p dunlin-scheduler --example scheduler_bench -- requests [COUNT] [TRACE.csv] [no-prefix-cache]
//! ```
//!
//! The trace is the Azure LLM inference trace of conversations of 2023 (a line of TIMESTAMP,
//! ContextTokens, GeneratedTokens each); without it, lengths are drawn from its quantiles below.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "it measures time"
)]

use std::time::Instant;

use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace};
use dunlin_scheduler::{Commit, Core, CoreConfig, Effects, Event, StepOutcome, Submission};
use dunlin_units::{RequestId, SeedTree, Stream, Time};
use serde_json::{Value, json};

const BLOCK_TOKENS: usize = 32;
const STEP_NS: u64 = 1_000_000;

/// Quantiles of the trace's 19,366 requests, at every 1/32 and, behind those, at 0.99, 0.999 and 1;
/// between them lengths are taken as uniform. Means drawn: 1,159 in and 211 out; the trace's: 1,155
/// and 211.
const CONTEXT: [u32; 35] = [
    2, 165, 194, 206, 235, 374, 383, 391, 396, 401, 405, 412, 428, 818, 966, 1001, 1020, 1037,
    1052, 1067, 1083, 1100, 1120, 1147, 1189, 1312, 1335, 1770, 2310, 3018, 4079, 4089, 4142, 6212,
    14050,
];
const GENERATED: [u32; 35] = [
    7, 33, 45, 53, 60, 68, 75, 81, 85, 89, 92, 95, 99, 104, 110, 118, 129, 141, 157, 171, 195, 223,
    377, 389, 395, 397, 402, 411, 416, 427, 440, 502, 601, 954, 1000,
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let report = match args.first().map(String::as_str) {
        Some("step") => step_times(),
        Some("requests") => {
            let count = args.iter().find_map(|a| a.parse().ok()).unwrap_or(1_000_000);
            let trace = args.iter().find(|a| a.ends_with(".csv"));
            let prefix_cache = !args.iter().any(|a| a == "no-prefix-cache");
            many_requests(count, trace.map(String::as_str), prefix_cache)
        }
        _ => {
            eprintln!(
                "usage: scheduler_bench step | requests [COUNT] [TRACE.csv] [no-prefix-cache]"
            );
            std::process::exit(2);
        }
    };
    println!("{}", serde_json::to_string_pretty(&report).expect("JSON"));
}

fn config(running: u32, blocks: usize, prefix_cache: bool) -> CoreConfig {
    let cache = CacheConfig {
        block_tokens: BLOCK_TOKENS,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache,
        hash_seed: 1,
    };
    let mut config = CoreConfig::new(cache, 4096);
    config.max_running = running;
    config
}

/// A prompt that begins like no other.
fn prompt(request: u64, tokens: u32) -> std::sync::Arc<[u32]> {
    let base = (request as u32).wrapping_mul(0x9E37_79B1);
    (0..tokens).map(|i| base.wrapping_add(i)).collect()
}

/// Gives every sample one token, and puts the outcome back into `events`.
fn carry_out(effects: &Effects, outcome: &mut Option<Box<StepOutcome>>, events: &mut Vec<Event>) {
    let Some(plan) = &effects.plan else { return };
    let mut done = outcome.take().unwrap_or_default();
    done.step = plan.step;
    done.duration_ns = STEP_NS;
    done.commits.clear();
    done.commits.resize(plan.samples.len(), Commit { tokens: 1, end: None });
    done.tokens.clear();
    done.tokens.resize(plan.samples.len(), 7);
    events.push(Event::StepDone(done));
}

/// The time of a call with so many sequences that decode: an outcome in, the next plan out.
fn step_times() -> Value {
    let rows: Vec<Value> = [64, 128, 256, 512, 1024].into_iter().map(step_time).collect();
    json!({ "blocks": 10_000, "block_tokens": BLOCK_TOKENS, "steps": rows })
}

fn step_time(running: u32) -> Value {
    let mut times = Vec::new();
    for round in 0..8 {
        let mut core = Core::new(config(running, 10_000, true)).expect("settings");
        let (mut effects, mut events) = (Effects::default(), Vec::new());
        for i in 0..u64::from(running) {
            let id = RequestId(round * 100_000 + i);
            // Blocks fill up at different steps.
            let tokens = 48 + (i % 32) as u32;
            let submission = Submission::new(id, Namespace::default(), prompt(id.0, tokens), 200);
            events.push(Event::Submit(Box::new(submission)));
        }
        let (mut now, mut all_run) = (0, 0);
        loop {
            let begin = Instant::now();
            core.advance(Time(now), &mut events, &mut effects);
            let ns = begin.elapsed().as_nanos() as u64;
            let Some(plan) = &effects.plan else { break };
            if plan.samples.len() as u32 == running && plan.entries.iter().all(|e| e.tokens == 1) {
                all_run += 1;
                // The first steps still touch memory for the first time.
                if all_run > 16 && effects.finished.is_empty() {
                    times.push(ns);
                }
            }
            now += STEP_NS;
            carry_out(&effects, &mut None, &mut events);
        }
    }
    times.sort_unstable();
    let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e3;
    json!({
        "running": running, "calls": times.len(), "mean_us": mean, "median_us": at(0.5),
        "p99_us": at(0.99), "median_ns_per_sequence": at(0.5) * 1e3 / f64::from(running),
    })
}

/// Lengths of requests.
struct Lengths {
    trace: Vec<(u32, u32)>,
    noise: Stream,
}

impl Lengths {
    fn new(path: Option<&str>) -> Self {
        let text = path.map(|p| std::fs::read_to_string(p).expect("the trace can be read"));
        let row = |line: &str| {
            let mut fields = line.split(',').skip(1).map(|f| f.trim().parse().ok());
            Some((fields.next()??, fields.next()??))
        };
        let trace = text.iter().flat_map(|t| t.lines().filter_map(row)).collect();
        Self { trace, noise: SeedTree::root(1).child("lengths").stream() }
    }

    fn quantile(&mut self, knots: &[u32; 35]) -> u32 {
        let place = |knot: usize| match knot {
            32 => 0.99,
            33 => 0.999,
            34 => 1.0,
            k => k as f64 / 32.0,
        };
        let u = self.noise.next_unit();
        let upper = (1..35).find(|&k| u < place(k)).unwrap_or(34);
        let (from, to) = (place(upper - 1), place(upper));
        let (low, high) = (f64::from(knots[upper - 1]), f64::from(knots[upper]));
        (low + (high - low) * (u - from) / (to - from)) as u32
    }

    /// Tokens in and out of the next request.
    fn next(&mut self) -> (u32, u32) {
        if self.trace.is_empty() {
            return (self.quantile(&CONTEXT), self.quantile(&GENERATED));
        }
        let (tokens_in, out) = self.trace[self.noise.next_below(self.trace.len() as u64) as usize];
        (tokens_in.max(1), out.max(1))
    }
}

fn many_requests(count: u64, trace: Option<&str>, prefix_cache: bool) -> Value {
    let running = 256;
    let blocks = 24_000;
    let mut lengths = Lengths::new(trace);
    let mut core = Core::new(config(running, blocks, prefix_cache)).expect("settings");
    let (mut effects, mut events) = (Effects::default(), Vec::new());
    let mut outcome = None;
    let (mut sent, mut over, mut now) = (0, 0, 0);
    let (mut steps, mut sequence_steps, mut tokens_in, mut tokens_out) = (0u64, 0u64, 0u64, 0u64);
    let mut marks = Vec::new();
    let mut advance_ns = 0u64;
    let begin_cpu = cpu_ns();
    let begin = Instant::now();
    while over < count {
        // Enough wait that none is missing when one ends.
        while sent < count && sent - over < u64::from(running) + 64 {
            let (tokens, out) = lengths.next();
            tokens_in += u64::from(tokens);
            let id = RequestId(sent);
            let submission = Submission::new(id, Namespace::default(), prompt(sent, tokens), out);
            events.push(Event::Submit(Box::new(submission)));
            sent += 1;
        }
        let call = Instant::now();
        core.advance(Time(now), &mut events, &mut effects);
        advance_ns += call.elapsed().as_nanos() as u64;
        tokens_out += effects.outputs.len() as u64;
        if let Some(plan) = &effects.plan {
            steps += 1;
            sequence_steps += plan.entries.len() as u64;
        }
        now += STEP_NS;
        for _ in &effects.finished {
            over += 1;
            if [count / 10, count / 2, count].contains(&over) {
                let (resident, peak) = memory_kib();
                marks.push(json!({ "requests": over, "rss_kib": resident, "peak_rss_kib": peak }));
            }
        }
        carry_out(&effects, &mut outcome, &mut events);
    }
    let wall_s = begin.elapsed().as_secs_f64();
    let cpu_s = (cpu_ns() - begin_cpu) as f64 / 1e9;
    core.check().expect("everything adds up");
    let leaked = blocks as u64 - core.load().available_blocks;
    json!({
        "requests": count, "prefix_cache": prefix_cache, "running": running, "blocks": blocks,
        "block_tokens": BLOCK_TOKENS, "trace": trace.is_some(),
        "mean_tokens_in": tokens_in as f64 / count as f64,
        "mean_tokens_out": tokens_out as f64 / count as f64,
        "steps": steps, "sequence_steps": sequence_steps,
        "cpu_s": cpu_s, "wall_s": wall_s,
        "sequence_steps_per_cpu_s": sequence_steps as f64 / cpu_s,
        "advance_us_per_step": advance_ns as f64 / steps as f64 / 1e3,
        "leaked_blocks": leaked, "memory": marks, "cache": format!("{:?}", core.kv().stats()),
    })
}

/// Time that this process has run on a CPU.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Resident memory now, and the most so far.
fn memory_kib() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    (field("VmRSS:"), field("VmHWM:"))
}
