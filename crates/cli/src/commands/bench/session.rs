//! `dunlin bench session`: the time to the first token of a query on a session, against computing
//! the whole context again; and what a long prompt does to those who decode beside it.

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use dunlin_engine::{Engine, Request};
use dunlin_kvcache::TenantId;
use dunlin_model::CpuModel;
use dunlin_scheduler::{Chunking, Keep, SessionUse};
use dunlin_units::SessionId;
use serde::Serialize;

use super::{
    summary::median,
    workload::{Bench, Setting, Times, ms, prompt, quantile, request},
};
use crate::{model_args::ModelArgs, note};

/// A step with a part of a prompt takes at most this much of one without.
const SLOWDOWN_PERCENT: u32 = 225;

/// How much of everything.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sizes {
    long: usize,
    short: usize,
    query: usize,
    decoders: usize,
    depth: usize,
    prompt: usize,
    /// Tokens of each decoder before the prompt arrives.
    unloaded: usize,
}

impl Sizes {
    fn new(scale: usize) -> Self {
        let part = |tokens: usize| (tokens / scale).max(2);
        Self {
            long: part(7000),
            short: part(1000),
            query: part(32),
            decoders: 8,
            depth: part(128),
            prompt: part(4000),
            unloaded: part(64),
        }
    }

    /// The most tokens that a decoder may need: the prompt comes in chunks of at least eight.
    fn decoder(&self) -> usize {
        self.depth + self.unloaded + self.prompt / 8 + 16
    }
}

/// Queries on one context.
#[derive(Debug, Serialize)]
struct Queries {
    context: usize,
    /// Milliseconds to the first token of each query.
    ttft_ms: Vec<f64>,
    median_ms: f64,
    /// Tokens computed for one.
    computed_tokens: usize,
    /// The same as one prompt, from nothing.
    reprefill_ms: f64,
    speedup: f64,
}

/// Tokens removed from the middle of a session.
#[derive(Debug, Serialize)]
struct Prune {
    context: usize,
    removed: usize,
    /// The later tokens computed again: exact.
    recompute_ms: f64,
    /// Their KV kept: `measured`.
    keep_ms: f64,
    speedup: f64,
}

/// Decoders beside a prompt.
#[derive(Debug, Serialize)]
struct Interference {
    chunking: String,
    unloaded_median_ms: f64,
    unloaded_p99_ms: f64,
    loaded_median_ms: f64,
    loaded_p99_ms: f64,
    loaded_max_ms: f64,
    /// p99 against the unloaded median.
    p99_ratio: f64,
    ttft_alone_ms: f64,
    ttft_beside_ms: f64,
    ttft_ratio: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    setting: Setting,
    sizes: Sizes,
    queries: Vec<Queries>,
    /// Of the longer context against the shorter one: what attention over it takes.
    long_against_short_ms: f64,
    prune: Prune,
    interference: Vec<Interference>,
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
) -> anyhow::Result<()> {
    let sizes = Sizes::new(scale);
    let longest = (sizes.long + 2 * sizes.query + 16).max(sizes.prompt + 16).max(sizes.decoder());
    let decoders = sizes.decoders * (sizes.decoder() + 64);
    let kv_tokens = (2 * sizes.long + sizes.short + 256).max(sizes.prompt + 128 + decoders) + longest;
    let mut bench = Bench::open(args, path, longest, kv_tokens)?;
    let mut all = Vec::new();
    for context in [sizes.short, sizes.long] {
        all.push(queries(&mut bench, context, sizes.query, reps.max(5))?);
    }
    let prune = prune(&mut bench, &sizes, reps.max(3))?;
    let mut interference = Vec::new();
    for chunking in [Chunking::Slowdown { percent: SLOWDOWN_PERCENT }, Chunking::Full] {
        interference.push(interfere(&mut bench, &sizes, chunking)?);
    }
    let report = Report {
        setting: bench.setting(scale),
        sizes,
        long_against_short_ms: all[1].median_ms - all[0].median_ms,
        queries: all,
        prune,
        interference,
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

/// The time to a request's first token, and the tokens computed for it. Nothing else is under way.
fn first_token(
    engine: &mut Engine<CpuModel>,
    request: Request,
) -> anyhow::Result<(Duration, usize)> {
    let before = engine.stats().totals.computed_tokens;
    let started = Instant::now();
    let id = engine.submit(request)?;
    let mut times = Times::default();
    times.run(engine, |times| times.first(id).is_some());
    let first = times.first(id).ok_or_else(|| anyhow::anyhow!("a request gave no token"))?;
    Times::default().run(engine, |_| false);
    let computed = engine.stats().totals.computed_tokens - before;
    Ok((first - started, computed as usize))
}

fn queries(
    bench: &mut Bench,
    context: usize,
    query: usize,
    reps: usize,
) -> anyhow::Result<Queries> {
    let vocab_size = bench.vocab_size;
    let data = prompt(context, vocab_size, 11);
    let asked = |i: usize| prompt(query, vocab_size, 500 + i as u64);
    let session = SessionId(1);
    let (ttft_ms, computed_tokens) = bench.with_engine(
        |_| {},
        |engine| {
            engine.append_session(session, TenantId(0), data.clone())?;
            Times::default().run(engine, |_| false);
            let (mut all, mut computed) = (Vec::new(), 0);
            for i in 0..reps {
                let usage = Some(SessionUse { session, keep: Keep::Nothing });
                let request = Request { session: usage, ..request(asked(i), 1) };
                let (time, tokens) = first_token(engine, request)?;
                all.push(ms(time));
                computed = tokens;
            }
            Ok((all, computed))
        },
    )?;
    let whole = [&data[..], &asked(0)].concat();
    let (reprefill, _) =
        bench.with_engine(|_| {}, |engine| first_token(engine, request(whole, 1)))?;
    let median_ms = median(&ttft_ms).unwrap_or(f64::NAN);
    Ok(Queries {
        context,
        ttft_ms,
        median_ms,
        computed_tokens,
        reprefill_ms: ms(reprefill),
        speedup: ms(reprefill) / median_ms,
    })
}

/// Removes a query's length of tokens near the start of the long context, in both ways.
fn prune(bench: &mut Bench, sizes: &Sizes, reps: usize) -> anyhow::Result<Prune> {
    let data = prompt(sizes.long, bench.vocab_size, 12);
    let range = sizes.long / 7..sizes.long / 7 + sizes.query;
    let (whole, session) = (SessionId(1), SessionId(2));
    let (mut recompute_ms, mut keep_ms) = (Vec::new(), Vec::new());
    bench.with_engine(
        // What the cache has of earlier rounds would make computing again look cheap.
        |config| config.prefix_cache = false,
        |engine| {
            engine.append_session(whole, TenantId(0), data.clone())?;
            Times::default().run(engine, |_| false);
            for _ in 0..reps {
                for (all, keep) in [(&mut recompute_ms, false), (&mut keep_ms, true)] {
                    engine.fork_session(whole, session)?;
                    let started = Instant::now();
                    if keep {
                        engine.prune_session_keeping(session, range.clone())?;
                    } else {
                        engine.prune_session(session, range.clone())?;
                    }
                    Times::default().run(engine, |_| false);
                    all.push(ms(started.elapsed()));
                    engine.close_session(session)?;
                }
            }
            Ok(())
        },
    )?;
    let of = |all: &[f64]| median(all).unwrap_or(f64::NAN);
    let (recompute_ms, keep_ms) = (of(&recompute_ms), of(&keep_ms));
    let speedup = recompute_ms / keep_ms;
    Ok(Prune { context: sizes.long, removed: range.len(), recompute_ms, keep_ms, speedup })
}

fn interfere(
    bench: &mut Bench,
    sizes: &Sizes,
    chunking: Chunking,
) -> anyhow::Result<Interference> {
    let vocab_size = bench.vocab_size;
    let long = prompt(sizes.prompt, vocab_size, 21);
    let alone = bench
        .with_engine(|_| {}, |engine| first_token(engine, request(long.clone(), 1)))
        .map(|(time, _)| time)?;
    bench.with_engine(
        |config| config.chunking = chunking,
        |engine| {
            let output = sizes.decoder() - sizes.depth - 1;
            for i in 0..sizes.decoders as u64 {
                let tokens = prompt(sizes.depth, vocab_size, 30 + i);
                engine.submit(request(tokens, output))?;
            }
            let mut times = Times::default();
            let have = |times: &Times, count: usize| {
                times.tokens.len() == sizes.decoders
                    && times.tokens.values().all(|t| t.len() >= count)
            };
            times.run(engine, |times| have(times, 4));
            let calm = Instant::now();
            times.run(engine, |times| have(times, 4 + sizes.unloaded));
            let arrival = Instant::now();
            let id = engine.submit(request(long, 1))?;
            times.run(engine, |times| times.first(id).is_some());
            let first = times.first(id);
            let first = first.ok_or_else(|| anyhow::anyhow!("the prompt gave no token"))?;
            let unloaded = times.gaps(None, calm, arrival);
            let loaded = times.gaps(Some(id), arrival, first);
            let of = |gaps: &[Duration], part| quantile(gaps, part).map_or(f64::NAN, ms);
            let unloaded_median_ms = of(&unloaded, 0.5);
            let loaded_p99_ms = of(&loaded, 0.99);
            let beside = first - arrival;
            Ok(Interference {
                chunking: chunking.to_string(),
                unloaded_median_ms,
                unloaded_p99_ms: of(&unloaded, 0.99),
                loaded_median_ms: of(&loaded, 0.5),
                loaded_p99_ms,
                loaded_max_ms: of(&loaded, 1.0),
                p99_ratio: loaded_p99_ms / unloaded_median_ms,
                ttft_alone_ms: ms(alone),
                ttft_beside_ms: ms(beside),
                ttft_ratio: ms(beside) / ms(alone),
            })
        },
    )
}

impl Report {
    fn table(&self) -> String {
        let mut lines = vec![format!("{}, {} threads", self.setting.model, self.setting.threads)];
        for q in &self.queries {
            lines.push(format!(
                "query of {} tokens after {}: first token in {:.1} ms; re-prefill {:.0} ms; {:.1} \
                 times",
                self.sizes.query, q.context, q.median_ms, q.reprefill_ms, q.speedup
            ));
        }
        let p = &self.prune;
        lines.push(format!(
            "{} of {} tokens pruned: {:.0} ms with the later ones computed again, {:.0} ms with \
             their KV kept ({:.1} times)",
            p.removed, p.context, p.recompute_ms, p.keep_ms, p.speedup
        ));
        for i in &self.interference {
            lines.push(format!(
                "{} decoders beside a prompt of {} (chunks: {}): {:.1} ms a token alone, p99 \
                 {:.1} ms beside ({:.2} times); the prompt's first token {:.0} ms alone, {:.0} ms \
                 beside ({:.2} times)",
                self.sizes.decoders,
                self.sizes.prompt,
                i.chunking,
                i.unloaded_median_ms,
                i.loaded_p99_ms,
                i.p99_ratio,
                i.ttft_alone_ms,
                i.ttft_beside_ms,
                i.ttft_ratio
            ));
        }
        lines.join("\n")
    }
}
