//! `dunlin validate`: the engine beside its simulation, on traffic that the cost model never saw.

mod drive;
mod traffic;

use std::{fmt::Write as _, io::Write as _, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use dunlin_costmodel::{CostFile, CostModel};
use dunlin_engine::{
    CancelFlag,
    recorder::{Calls, replay},
};
use dunlin_planner::{
    calibrate::GroupError,
    validate::{Decisions, Figures, Recording, Sides, decisions, predict},
};
use dunlin_scheduler::{Chunking, policy::PolicyKind};
use dunlin_units::Time;
use dunlin_workload::Request;
use serde::Serialize;

use super::bench::workload::{Bench, Setting};
use crate::{
    interrupt, load::model_path, model_args::ModelArgs, note, outcome::INTERRUPTED,
    outcome::unusable,
};

/// Compare the engine with its simulation, decision by decision and millisecond by millisecond
///
/// Sends traffic to the engine on this machine as it would arrive, and simulates the same traffic
/// twice. With the recorded times of steps every decision must be the same: exit code 1 where one is
/// not. With the step times of the cost model (of `dunlin calibrate`) what differs is that model's
/// error alone. Run it on an idle machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The cost model
    #[arg(long, value_name = "PATH")]
    cost: PathBuf,

    /// A recorded trace to take lengths, prefixes and times from, instead of generated traffic;
    /// requests longer than the context are cut
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,

    /// Requests a second [default: what keeps the machine busy for --load of the time]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// Of what the machine can serve by the cost model, the share that arrives
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    load: f64,

    /// About how long requests arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    seconds: f64,

    /// The most requests
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: usize,

    /// The seed of the traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The most sequences that run at once
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_batch: u32,

    /// KV positions in memory [default: as many as --max-batch sequences of 1,024 tokens need]
    #[arg(long, value_name = "TOKENS")]
    kv_tokens: Option<usize>,

    /// In which order requests are taken on
    #[arg(long, default_value_t, value_name = "NAME")]
    policy: PolicyKind,

    /// How much of long prompts a step takes beside those that generate: full, or a number of tokens
    #[arg(long, default_value_t, value_name = "HOW")]
    chunking: Chunking,

    /// Keep the record of the engine's run in this file
    #[arg(long, value_name = "PATH")]
    record: Option<PathBuf>,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Traffic {
    from: String,
    requests: usize,
    per_second: f64,
    mean_prompt_tokens: f64,
    mean_output_tokens: f64,
    seed: u64,
}

/// The record, told again to a fresh core.
#[derive(Debug, Serialize)]
struct Replayed {
    calls: u64,
    /// Calls that a fresh core answers with other bytes: none, or replay ended there.
    differences: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    setting: Setting,
    traffic: Traffic,
    /// With recorded times of steps, by the simulator.
    decisions: Decisions,
    replay: Replayed,
    /// With the step times of the cost model.
    cost_model: Sides,
    /// The cost model on the steps of this run.
    steps: Vec<GroupError>,
    /// Steps whose cost was guessed beyond what the cost model knows.
    extrapolated_steps: u64,
    preemptions: u64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&args.cost)
        .with_context(|| format!("cannot read {}", args.cost.display()))?;
    let file: CostFile = toml::from_str(&text)
        .map_err(|e| unusable(format!("{} is no cost model: {e}", args.cost.display())))?;
    let cost = Arc::new(file.build().map_err(|e| unusable(format!("the cost model: {e}")))?);
    check(&args)?;
    let path = model_path(&args.model)?;
    let trained = dunlin_checkpoint::ModelFile::open(&path)?.spec().context_length;
    let context = args.model.context(trained).min(trained);
    let kv_tokens = args.kv_tokens.unwrap_or(args.max_batch as usize * 1024).max(context + 64);
    let mut bench = Bench::open(&args.model, &path, context, kv_tokens)?;
    let folder = tempfile::tempdir().context("cannot make a folder for the record")?;
    let record = args.record.clone().unwrap_or_else(|| folder.path().join("run.log"));
    let cancel = CancelFlag::new();
    interrupt::listen();
    interrupt::arm(Some(&cancel));
    let settings = |config: &mut dunlin_engine::EngineConfig| {
        config.max_running = args.max_batch;
        config.policy = args.policy;
        config.chunking = args.chunking;
    };
    let config = bench.with_engine(settings, |engine| Ok(engine.core().config().clone()))?;
    let (traffic, requests) = traffic(&args, context, &config, &cost)?;
    note!(
        "dunlin: {} requests in {:.0} s",
        requests.len(),
        requests.last().map_or(0.0, |r| r.arrival.0 as f64 / 1e9)
    );
    let vocab_size = bench.vocab_size;
    let sent = bench.with_engine(
        |config| {
            settings(config);
            config.record = Some(record.clone());
        },
        |engine| drive::send(engine, &requests, vocab_size, args.seed, &cancel),
    )?;
    interrupt::arm(None);
    let Some(sent) = sent else {
        note!("dunlin: stopped before all requests had ended; nothing to compare");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let setting = bench.setting(1);
    drop(bench);
    let report = compare(setting, traffic, &sent, &record, cost)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        writeln!(out, "{}", report.table())?;
    }
    out.flush()?;
    let same = report.decisions.differences() == 0 && report.replay.differences == 0;
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(args: &Args) -> anyhow::Result<()> {
    let positive = [
        ("--seconds", args.seconds),
        ("--load", args.load),
        ("--rate", args.rate.unwrap_or(1.0)),
    ];
    if let Some((name, value)) = positive.iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
        return Err(unusable(format!("{name} is {value}; it must be above zero")));
    }
    if args.requests == 0 || args.max_batch == 0 {
        return Err(unusable("--requests or --max-batch is 0: nothing to run"));
    }
    if matches!(args.chunking, Chunking::Slowdown { .. }) {
        return Err(unusable(
            "--chunking by a percentage follows the times that the engine measures inside of steps, \
             which are not those that a simulation has; give full or a number of tokens",
        ));
    }
    Ok(())
}

/// The requests to send, with their arrivals from zero.
fn traffic(
    args: &Args,
    context: usize,
    config: &dunlin_scheduler::CoreConfig,
    cost: &Arc<CostModel>,
) -> anyhow::Result<(Traffic, Vec<Request>)> {
    let mut requests = match &args.trace {
        Some(path) => traffic::from_trace(path, context, args.requests)?,
        None => traffic::generated(args.seed, context, args.requests.min(4000))?,
    };
    if requests.is_empty() {
        return Err(unusable("there are no requests"));
    }
    let rate = match args.rate {
        Some(rate) => rate,
        None => args.load * traffic::capacity(config, cost, &requests)?,
    };
    traffic::at_rate(&mut requests, rate, args.seconds);
    let count = requests.len() as f64;
    let mean = |of: fn(&Request) -> u32| requests.iter().map(|r| f64::from(of(r))).sum::<f64>() / count;
    let about = Traffic {
        from: args.trace.as_ref().map_or("generated".into(), |p| p.display().to_string()),
        requests: requests.len(),
        per_second: rate,
        mean_prompt_tokens: mean(|r| r.prompt_tokens),
        mean_output_tokens: mean(|r| r.output_tokens),
        seed: args.seed,
    };
    Ok((about, requests))
}

/// Everything that the record tells, beside the simulations.
fn compare(
    setting: Setting,
    traffic: Traffic,
    sent: &[Request],
    record: &std::path::Path,
    cost: Arc<CostModel>,
) -> anyhow::Result<Report> {
    let mut calls = Calls::open(record)?;
    let mut recording = Recording::new(calls.header().config.clone());
    for call in &mut calls {
        let call = call?;
        recording.call(call.now, &call.events, &call.effects);
    }
    let again = replay(record)?;
    let decisions = decisions(&recording, sent)?;
    let scheduled: Vec<Time> = sent.iter().map(|r| r.arrival).collect();
    let real = recording.times(&scheduled);
    let (simulated, report) = predict(&recording.config, cost.clone(), sent.to_vec())?;
    Ok(Report {
        setting,
        traffic,
        decisions,
        replay: Replayed {
            calls: again.calls,
            differences: u64::from(again.difference.is_some()),
        },
        cost_model: Sides::new(&real, &simulated),
        steps: GroupError::of(&*cost, &recording.steps),
        extrapolated_steps: report.metrics.extrapolated_steps,
        preemptions: again.preemptions,
    })
}

impl Report {
    fn table(&self) -> String {
        let Self { traffic, decisions, cost_model: sides, .. } = self;
        let mut text = format!(
            "{}: {} requests ({}), {:.2} a second, {:.0} + {:.0} tokens on average\n",
            self.setting.model,
            traffic.requests,
            traffic.from,
            traffic.per_second,
            traffic.mean_prompt_tokens,
            traffic.mean_output_tokens
        );
        let _ = writeln!(
            text,
            "decisions with recorded step times: {} differences in {} steps and {} requests; \
             replay: {} in {} calls",
            decisions.differences(),
            decisions.steps,
            decisions.requests,
            self.replay.differences,
            self.replay.calls
        );
        if let Some(first) = &decisions.first_difference {
            let _ = writeln!(text, "first difference: {first}");
        }
        let _ = writeln!(
            text,
            "throughput: {:.1} tokens/s, simulated {:.1} ({:+.2}%)",
            sides.real_tokens_per_s, sides.simulated_tokens_per_s, sides.throughput_error_percent
        );
        text += "           mean                       p50      p90      p99      by request: mean, p90\n";
        let latencies = [("TTFT", &sides.ttft), ("TPOT", &sides.tpot), ("end-to-end", &sides.e2e)];
        for (name, figures) in latencies {
            let Some(Figures { mean, p50, p90, p99, .. }) = figures else { continue };
            let figures = figures.as_ref().expect("looked at above");
            let _ = writeln!(
                text,
                "{name:10} {:8.2} ms {:8.2} ms {:+6.2}% {:+7.2}% {:+7.2}% {:+7.2}% {:14.2}% {:6.2}%",
                mean.real_ms,
                mean.simulated_ms,
                mean.error_percent,
                p50.error_percent,
                p90.error_percent,
                p99.error_percent,
                figures.per_request_mean_percent,
                figures.per_request_p90_percent
            );
        }
        for e in &self.steps {
            let group = format!("{:?}", e.group).to_lowercase();
            let _ = writeln!(
                text,
                "{group:8} steps: {:5} of {:.2} ms; {:.2}% off on average, {:+.2}% in sum",
                e.steps, e.mean_ms, e.mean_percent, e.bias_percent
            );
        }
        if self.extrapolated_steps > 0 {
            let _ = writeln!(text, "{} steps beyond what was calibrated", self.extrapolated_steps);
        }
        text
    }
}
