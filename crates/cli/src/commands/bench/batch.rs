//! `dunlin bench batch`: many requests through the engine, beside the best that the backend does with
//! a batch that never changes, and with a prefix that all share.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use dunlin_engine::{Engine, Request};
use dunlin_kernels_cpu::kv::BLOCK_TOKENS;
use dunlin_model::CpuModel;
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};
use serde::Serialize;

use super::{
    peer_batch::{self, PeerBatches},
    peers::{Peer, Requests},
    workload::{Bench, Setting, prompt, request},
};
use crate::{model_args::ModelArgs, note};

/// How much of everything.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sizes {
    requests: usize,
    prompt: usize,
    output: usize,
    prefix: usize,
    suffix: usize,
    prefix_output: usize,
}

impl Sizes {
    fn new(scale: usize) -> Self {
        let part = |tokens: usize| (tokens / scale).max(2);
        Self {
            requests: part(64),
            prompt: part(256),
            output: part(128),
            prefix: part(1000),
            suffix: part(16),
            prefix_output: part(64),
        }
    }

    /// Tokens of KV that a row needs at most, in whole blocks.
    fn kv_tokens(&self) -> usize {
        let each = (self.prompt + self.output).max(self.prefix + self.suffix + self.prefix_output);
        (each.next_multiple_of(BLOCK_TOKENS) + BLOCK_TOKENS) * self.requests + BLOCK_TOKENS
    }
}

/// A run of all requests.
#[derive(Debug, Clone, Serialize)]
struct Run {
    seconds: f64,
    /// Prompt and output tokens a second.
    tokens_per_second: f64,
    output_tokens_per_second: f64,
    steps: u64,
    /// Microseconds of the scheduler in a step: mean, and the most of any.
    scheduler_us_per_step: f64,
    scheduler_us_max: f64,
    /// The scheduler's part of the time.
    scheduler_part: f64,
    /// Choosing tokens, of the time.
    sampling_part: f64,
    /// The time outside steps: submission, text, bills and the scheduler.
    outside_steps_part: f64,
    preemptions: usize,
    cached_tokens: usize,
    joules: f64,
    joules_source: &'static str,
}

/// A batch of one size that runs to its end before the next begins.
#[derive(Debug, Clone, Serialize)]
struct Static {
    batch: usize,
    seconds: f64,
    output_tokens_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    setting: Setting,
    sizes: Sizes,
    /// Requests with prompts of their own, through the engine.
    offline: Vec<Run>,
    /// The same on the backend alone: one group of each size is timed, times the groups.
    static_batches: Vec<Vec<Static>>,
    /// Requests with a common prefix.
    shared_prefix: Vec<Run>,
    /// The same without the prefix cache.
    shared_prefix_uncached: Vec<Run>,
    /// The other engines on both.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    peers: BTreeMap<&'static str, PeerBatches>,
    /// The best of each, and what follows.
    summary: Summary,
}

#[derive(Debug, Serialize)]
struct Summary {
    offline_seconds: f64,
    best_static_seconds: f64,
    best_static_batch: usize,
    /// Against the best static batch.
    offline_speedup: f64,
    shared_prefix_seconds: f64,
    shared_prefix_uncached_seconds: f64,
    /// Against the prefix cache off.
    shared_prefix_speedup: f64,
    /// Against the best of the other engines at its best batch size.
    #[serde(skip_serializing_if = "Option::is_none")]
    offline_against_peers: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_prefix_against_peers: Option<f64>,
}

/// Measures, and writes the report.
///
/// # Errors
/// Models that cannot be loaded or computed.
pub fn run(
    args: &ModelArgs,
    path: &Path,
    scale: usize,
    reps: usize,
    json: bool,
    peers: Vec<Peer>,
) -> anyhow::Result<()> {
    let sizes = Sizes::new(scale);
    let longest = (sizes.prompt + sizes.output + 1)
        .max(sizes.prefix + sizes.suffix + sizes.prefix_output + 1);
    let mut bench = Bench::open(args, path, longest, sizes.kv_tokens())?;
    let vocab_size = bench.vocab_size;
    let own: Vec<Request> = (0..sizes.requests as u64)
        .map(|i| request(prompt(sizes.prompt, vocab_size, 100 + i), sizes.output))
        .collect();
    let prefix = prompt(sizes.prefix, vocab_size, 7);
    let shared: Vec<Request> = (0..sizes.requests as u64)
        .map(|i| {
            let tokens = [&prefix[..], &prompt(sizes.suffix, vocab_size, 300 + i)].concat();
            request(tokens, sizes.prefix_output)
        })
        .collect();
    let (mut offline, mut statics) = (Vec::new(), Vec::new());
    let (mut cached, mut uncached) = (Vec::new(), Vec::new());
    for repetition in 0..reps {
        note!("repetition {} of {reps}", repetition + 1);
        offline.push(bench.with_engine(|_| {}, |engine| all(engine, &own))?);
        statics.push(static_batches(bench.backend(), &own, sizes.output)?);
        cached.push(bench.with_engine(|_| {}, |engine| all(engine, &shared))?);
        let off = |config: &mut dunlin_engine::EngineConfig| config.prefix_cache = false;
        uncached.push(bench.with_engine(off, |engine| all(engine, &shared))?);
    }
    let mut found = BTreeMap::new();
    for mut peer in peers {
        let own = Requests {
            requests: sizes.requests,
            shared: 0,
            prompt: sizes.prompt,
            output: sizes.output,
        };
        let shared = Requests {
            shared: sizes.prefix,
            prompt: sizes.suffix,
            output: sizes.prefix_output,
            ..own
        };
        let name = peer.package().name;
        found.insert(name, peer_batch::measure(&mut peer, own, shared)?);
        peer.finish();
    }
    let summary = Summary::new(&offline, &statics, &cached, &uncached, &found);
    let report = Report {
        peers: found,
        setting: bench.setting(scale),
        sizes,
        offline,
        static_batches: statics,
        shared_prefix: cached,
        shared_prefix_uncached: uncached,
        summary,
    };
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        writeln!(out, "{}", report.table())?;
    }
    Ok(out.flush()?)
}

/// Runs all requests at once.
fn all(engine: &mut Engine<CpuModel>, requests: &[Request]) -> anyhow::Result<Run> {
    let started = Instant::now();
    for request in requests {
        engine.submit(request.clone())?;
    }
    let (mut prompts, mut outputs, mut preemptions, mut cached) = (0, 0, 0, 0);
    let mut sample_ns = 0;
    engine.run(|event| {
        if let dunlin_engine::Event::Finished { completion, .. } = event {
            prompts += completion.bill.prompt_tokens;
            outputs += completion.bill.output_tokens;
            preemptions += completion.bill.preemptions;
            cached += completion.bill.cached_tokens;
            sample_ns += completion.bill.sample_ns;
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let totals = engine.stats().totals;
    Ok(Run {
        seconds,
        tokens_per_second: (prompts + outputs) as f64 / seconds,
        output_tokens_per_second: outputs as f64 / seconds,
        steps: totals.steps,
        scheduler_us_per_step: totals.core_ns as f64 / 1e3 / totals.steps.max(1) as f64,
        scheduler_us_max: totals.core_max_ns as f64 / 1e3,
        scheduler_part: totals.core_ns as f64 / 1e9 / seconds,
        sampling_part: sample_ns as f64 / 1e9 / seconds,
        outside_steps_part: 1.0 - totals.step_ns as f64 / 1e9 / seconds,
        preemptions,
        cached_tokens: cached,
        joules: totals.energy.joules(),
        joules_source: totals.energy.source.label(),
    })
}

/// The backend alone on batches of several sizes.
fn static_batches(
    backend: &mut CpuModel,
    requests: &[Request],
    output: usize,
) -> anyhow::Result<Vec<Static>> {
    let mut found = Vec::new();
    let mut batch = requests.len();
    while batch >= 4.min(requests.len()) && found.len() < 4 {
        let time = one_batch(backend, &requests[..batch], output)?;
        let groups = requests.len() as f64 / batch as f64;
        let seconds = time.as_secs_f64() * groups;
        let tokens = (requests.len() * output) as f64;
        found.push(Static { batch, seconds, output_tokens_per_second: tokens / seconds });
        batch /= 2;
    }
    Ok(found)
}

/// Prompts in full steps, then all sequences a step, with the greedy choice.
fn one_batch(
    backend: &mut CpuModel,
    requests: &[Request],
    output: usize,
) -> anyhow::Result<Duration> {
    let block_tokens = backend.block_tokens();
    let length = requests[0].prompt.len();
    let blocks = (length + output).div_ceil(block_tokens) as u32;
    let tables: Vec<Vec<u32>> =
        (0..requests.len() as u32).map(|i| (i * blocks..(i + 1) * blocks).collect()).collect();
    let (mut logits, mut best, mut greedy) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = vec![0u32; requests.len()];
    let started = Instant::now();
    let most = backend.max_step_tokens();
    let (mut sequence, mut position) = (0, 0);
    while sequence < requests.len() {
        // As much of the prompts as a step holds.
        let (mut left, first) = (most, sequence);
        let mut inputs = Vec::new();
        while sequence < requests.len() && left > 0 {
            let size = left.min(length - position);
            let end = position + size;
            inputs.push(SequenceInput {
                tokens: &requests[sequence].prompt[position..end],
                first_position: position,
                block_table: &tables[sequence],
                logits: if end == length { LogitsWanted::Last } else { LogitsWanted::None },
                branch_of: None,
            });
            left -= size;
            position = if end == length { 0 } else { end };
            sequence += usize::from(end == length);
        }
        greedy.resize(inputs.len(), true);
        backend.forward_best(&inputs, &greedy, &mut logits, &mut best)?;
        for (last, best) in last[first..].iter_mut().zip(&best) {
            *last = best.token;
        }
    }
    for step in 0..output - 1 {
        let inputs: Vec<SequenceInput<'_>> = last
            .iter()
            .zip(&tables)
            .map(|(token, table)| SequenceInput {
                tokens: std::slice::from_ref(token),
                first_position: length + step,
                block_table: table,
                logits: LogitsWanted::Last,
                branch_of: None,
            })
            .collect();
        greedy.resize(inputs.len(), true);
        backend.forward_best(&inputs, &greedy, &mut logits, &mut best)?;
        last = best.iter().map(|best| best.token).collect();
    }
    Ok(started.elapsed())
}

impl Summary {
    fn new(
        offline: &[Run],
        statics: &[Vec<Static>],
        cached: &[Run],
        uncached: &[Run],
        peers: &BTreeMap<&'static str, PeerBatches>,
    ) -> Self {
        let peer = |runs: fn(&PeerBatches) -> &[_]| {
            let best = peers.values().filter_map(|p| PeerBatches::best(runs(p)));
            best.map(|run| run.seconds).min_by(f64::total_cmp)
        };
        let best = |runs: &[Run]| runs.iter().map(|r| r.seconds).fold(f64::INFINITY, f64::min);
        let best_static = statics.iter().flatten().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let (seconds, batch) = best_static.map_or((f64::NAN, 0), |s| (s.seconds, s.batch));
        Self {
            offline_seconds: best(offline),
            best_static_seconds: seconds,
            best_static_batch: batch,
            offline_speedup: seconds / best(offline),
            shared_prefix_seconds: best(cached),
            shared_prefix_uncached_seconds: best(uncached),
            shared_prefix_speedup: best(uncached) / best(cached),
            offline_against_peers: peer(|p| &p.offline).map(|s| s / best(offline)),
            shared_prefix_against_peers: peer(|p| &p.shared_prefix).map(|s| s / best(cached)),
        }
    }
}

impl Report {
    fn table(&self) -> String {
        let (sizes, summary) = (&self.sizes, &self.summary);
        let outputs = (sizes.requests * sizes.output) as f64;
        let mut table = format!(
            "{}, {} threads\n\
             {} requests of {} + {} tokens: {:.2} s, {:.0} output tokens/s; best static batch \
             ({}): {:.2} s; {:.2} times\n\
             {} requests, {} tokens in common, {} + {} of their own: {:.2} s; cache off {:.2} s; \
             {:.2} times",
            self.setting.model,
            self.setting.threads,
            sizes.requests,
            sizes.prompt,
            sizes.output,
            summary.offline_seconds,
            outputs / summary.offline_seconds,
            summary.best_static_batch,
            summary.best_static_seconds,
            summary.offline_speedup,
            sizes.requests,
            sizes.prefix,
            sizes.suffix,
            sizes.prefix_output,
            summary.shared_prefix_seconds,
            summary.shared_prefix_uncached_seconds,
            summary.shared_prefix_speedup,
        );
        for (name, peer) in &self.peers {
            for (what, runs) in
                [("own prompts", &peer.offline), ("common prefix", &peer.shared_prefix)]
            {
                if let Some(best) = PeerBatches::best(runs) {
                    table += &format!(
                        "\n{name}, {what}: {:.2} s at {} a time ({} attention)",
                        best.seconds,
                        best.batch,
                        best.attention.name()
                    );
                }
            }
        }
        if let Some((own, common)) =
            summary.offline_against_peers.zip(summary.shared_prefix_against_peers)
        {
            table += &format!("\nagainst the better of them: {own:.2} times, {common:.2} times");
        }
        table
    }
}
