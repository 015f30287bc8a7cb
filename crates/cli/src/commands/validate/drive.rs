//! Sends requests to an engine when they are due.

use std::time::Duration;

use anyhow::Context as _;
use dunlin_engine::{CancelFlag, Engine};
use dunlin_model::CpuModel;
use dunlin_units::{RequestId, SeedTree, Time};
use dunlin_workload::Request;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::bench::workload::request as greedy;

/// From now to the first arrival.
const LEAD_NS: u64 = 20_000_000;
/// The longest sleep: Ctrl-C is looked at in between.
const NAP: Duration = Duration::from_millis(50);

/// Sends each request at its arrival (from zero) and waits for all to end. Returns them with their
/// arrivals on the engine's clock; `None` where it was stopped.
pub fn send(
    engine: &mut Engine<CpuModel>,
    requests: &[Request],
    vocab_size: usize,
    seed: u64,
    cancel: &CancelFlag,
) -> anyhow::Result<Option<Vec<Request>>> {
    let seeds = SeedTree::root(seed).child("prompts");
    let vocabulary = u32::try_from(vocab_size).context("the vocabulary is too large")?;
    // Made before the clock starts, so that making them delays nobody.
    let mut ready = Vec::with_capacity(requests.len());
    for (number, of) in requests.iter().enumerate() {
        let mut prompt = Vec::new();
        of.prompt_ids(seeds.child_at(number as u64).seed(), vocabulary, &mut prompt);
        ready.push(greedy(prompt, of.output_tokens as usize));
    }
    let bar = progress(requests.len() as u64);
    let base = engine.now().after(LEAD_NS);
    let moved = |r: &Request| Request { arrival: base.after(r.arrival.0), ..r.clone() };
    let sent: Vec<Request> = requests.iter().map(moved).collect();
    let mut coming = sent.iter().zip(ready).enumerate().peekable();
    loop {
        if cancel.is_cancelled() {
            bar.finish_and_clear();
            return Ok(None);
        }
        let now = engine.now();
        while let Some((number, (_, request))) = coming.next_if(|(_, (r, _))| r.arrival <= now) {
            let id = engine.submit(request)?;
            assert_eq!(id, RequestId(number as u64), "a fresh engine counts from zero");
        }
        if engine.is_busy() {
            let mut ended = 0;
            engine.step(&mut |event| {
                ended += u64::from(matches!(event, dunlin_engine::Event::Finished { .. }));
            });
            bar.inc(ended);
            continue;
        }
        let Some((_, (next, _))) = coming.peek() else { break };
        sleep_until(engine, next.arrival);
    }
    bar.finish_and_clear();
    engine.flush_record().context("cannot record the run")?;
    Ok(Some(sent))
}

/// Sleeps, and spins for the last bit, which a sleep would overshoot.
fn sleep_until(engine: &Engine<CpuModel>, at: Time) {
    let left = Duration::from_nanos(at.since(engine.now()));
    if let Some(long) = left.checked_sub(Duration::from_micros(500)) {
        std::thread::sleep(long.min(NAP));
    }
    while left < NAP && engine.now() < at {
        std::hint::spin_loop();
    }
}

fn progress(total: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{wide_bar} {pos} of {len} requests [{elapsed} + {eta}]");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
