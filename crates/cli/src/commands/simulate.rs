//! `dunlin simulate`: a cluster under a virtual clock.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::Context as _;
use dunlin_engine::CancelFlag;
use dunlin_sim::{
    RunOptions, SiteFootprint, Summary,
    chrome::ChromeTrace,
    config::{ConfigFileError, SimConfig},
    csv::{RequestCsv, Tee},
    events::EventSink,
    html,
    recorded::{Comparison, Observed},
    simulate,
};
use serde::Serialize;

use crate::{
    interrupt, note,
    outcome::{INTERRUPTED, unusable},
};

/// Simulate a cluster that serves a workload
///
/// The scheduler and the KV cache are those of the engine; what a step costs is asked of a cost
/// model, and time is virtual. The same file and seed give the same result. Ctrl-C ends the
/// workload, and what was taken on is finished and reported.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The simulation: a TOML file (see the folder `examples`)
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// The seed, in place of the file's
    #[arg(long)]
    seed: Option<u64>,

    /// Threads, in place of the file's; the result is the same
    #[arg(long)]
    threads: Option<usize>,

    /// Write one JSON object
    #[arg(long)]
    json: bool,

    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write a row of comma-separated values for each request
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,

    /// Write what happened, in the trace event format of Chrome and Perfetto
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

/// What is written.
#[derive(Debug, Serialize)]
struct Output {
    name: String,
    seed: u64,
    #[serde(flatten)]
    summary: Summary,
    /// What it comes to where the cluster stands, if the file says where.
    #[serde(skip_serializing_if = "Option::is_none")]
    footprint: Option<SiteFootprint>,
    /// The recorded run that the file names, beside this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Comparison>,
    run: Run,
}

/// The run itself: the only part that is not the same each time.
#[derive(Debug, Serialize)]
struct Run {
    threads: usize,
    wall_s: f64,
    sequence_steps_per_s: f64,
    requests_per_s: f64,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = SimConfig::read(&args.config).map_err(unusable)?;
    config.seed = args.seed.unwrap_or(config.seed);
    config.threads = args.threads.unwrap_or(config.threads);
    let cluster = config.cluster().map_err(unusable)?;
    let site = config.site().map_err(unusable)?;
    let requests = config.requests().map_err(unusable)?;
    let recording = config.recording().map_err(unusable)?;
    let mut events = create(args.events.as_deref())?.map(ChromeTrace::new);
    let mut rows = create(args.requests.as_deref())?.map(RequestCsv::new);
    let mut observed = recording.is_some().then(Observed::default);
    let mut sinks = Tee::default();
    sinks.0.extend(events.as_mut().map(|e| e as &mut dyn EventSink));
    sinks.0.extend(rows.as_mut().map(|r| r as &mut dyn EventSink));
    sinks.0.extend(observed.as_mut().map(|o| o as &mut dyn EventSink));
    let flag = CancelFlag::default();
    interrupt::listen();
    interrupt::arm(Some(&flag));
    let mut stop = |_| flag.is_cancelled();
    let begin = Instant::now();
    let options = RunOptions {
        seed: config.seed,
        threads: config.threads,
        events: (!sinks.0.is_empty()).then_some(&mut sinks as &mut dyn EventSink),
        stop: Some(&mut stop),
        ..RunOptions::default()
    };
    let report = simulate(&cluster, requests, options).map_err(unusable)?;
    let wall_s = begin.elapsed().as_secs_f64();
    let recorded = match (&recording, observed) {
        (Some(recording), Some(observed)) => {
            let problem = |problem| unusable(ConfigFileError::value("recorded", problem));
            Some(recording.compare(&observed).map_err(problem)?)
        }
        _ => None,
    };
    interrupt::arm(None);
    if let (Some(events), Some(path)) = (events, &args.events) {
        events.finish().with_context(|| path.display().to_string())?;
    }
    if let (Some(rows), Some(path)) = (rows, &args.requests) {
        rows.finish().with_context(|| path.display().to_string())?;
    }
    let footprint = site.map(|site| report.footprint(&site));
    if let Some(path) = &args.report {
        std::fs::write(path, html::page(&report, &config.name, footprint.as_ref()))
            .with_context(|| path.display().to_string())?;
    }
    let per_s = |count: u64| count as f64 / wall_s.max(1e-9);
    let run = Run {
        threads: config.threads.max(1),
        wall_s,
        sequence_steps_per_s: per_s(report.metrics.sequence_steps),
        requests_per_s: per_s(report.metrics.arrived),
    };
    let output = Output {
        name: config.name,
        seed: config.seed,
        summary: report.summary(),
        footprint,
        recorded,
        run,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &output)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(&output))?;
    }
    out.flush()?;
    if report.stopped {
        note!("dunlin: interrupted; the report is on the requests taken until then");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// A file to write to, if one is wanted.
fn create(path: Option<&Path>) -> anyhow::Result<Option<BufWriter<File>>> {
    let Some(path) = path else { return Ok(None) };
    let file = File::create(path).with_context(|| path.display().to_string())?;
    Ok(Some(BufWriter::with_capacity(1 << 20, file)))
}

/// A recorded run beside the simulated one.
fn compared(t: &mut String, c: &Comparison) {
    use std::fmt::Write as _;
    let _ = writeln!(
        t,
        "{:>20} {:>12} {:>12} {:>8}   of {} requests, from arrival",
        "ms", "recorded", "simulated", "error", c.requests
    );
    for (name, l) in [("TTFT", &c.ttft), ("TPOT", &c.tpot), ("end to end", &c.e2e)] {
        for (which, p) in [("mean", l.mean), ("p50", l.p50), ("p90", l.p90), ("p99", l.p99)] {
            let _ = writeln!(
                t,
                "{:>20} {:>12.2} {:>12.2} {:>+7.2}%",
                format!("{name} {which}"),
                p.recorded_ms,
                p.simulated_ms,
                p.error * 100.0
            );
        }
    }
}

/// The same for people.
fn text(output: &Output) -> String {
    use std::fmt::Write as _;
    let (s, mut t) = (&output.summary, String::new());
    let r = &s.requests;
    let _ = writeln!(
        t,
        "{} requests, {} finished, {} rejected, {} failed, on {} replicas in {:.1} s of simulated time",
        r.arrived, r.finished, r.rejected, r.failed, s.replicas.count, s.duration_s
    );
    if let Some(why) = &r.first_rejection {
        let _ = writeln!(t, "first rejection: {why}");
    }
    let _ = writeln!(
        t,
        "{:.2} requests/s, {:.0} output tokens/s; {:.1}% kept their goals",
        s.throughput.requests_per_s,
        s.throughput.output_tokens_per_s,
        s.goodput.share * 100.0
    );
    let _ = writeln!(t, "{:>20} {:>10} {:>10} {:>10} {:>10}", "ms", "mean", "p50", "p90", "p99");
    let l = &s.latency;
    for (name, stats) in [
        ("first token", l.ttft),
        ("between tokens", l.tpot),
        ("last token", l.e2e),
        ("queue", l.queue),
        ("KV reserved", l.reserve),
        ("hand-over", l.handoff),
    ] {
        if let Some(d) = stats {
            let _ = writeln!(
                t,
                "{name:>20} {:>10.2} {:>10.2} {:>10.2} {:>10.2}",
                d.mean_ms, d.p50_ms, d.p90_ms, d.p99_ms
            );
        }
    }
    let _ = writeln!(
        t,
        "KV {:.1}% in use, {:.1}% at most; {:.1}% of prompt tokens cached; {} preemptions",
        s.kv.mean_use * 100.0,
        s.kv.peak_use * 100.0,
        s.kv.prefix_hit_share * 100.0,
        s.kv.preemptions
    );
    let _ = writeln!(
        t,
        "{} steps of {:.1} sequences and {:.2} ms; replicas {:.1}% busy; {:.3} J an output token",
        s.steps.steps,
        s.steps.mean_sequences,
        s.steps.mean_ms,
        s.steps.busy_share * 100.0,
        s.energy.joules_per_output_token
    );
    if let Some(f) = &output.footprint {
        let _ = writeln!(
            t,
            "{:.1} kJ at the meter; {:.1} g CO2-eq ({:.1} of them of making the machines) and {:.2} \
             litres of water: {:.1} g and {:.2} litres a million output tokens",
            f.meter_joules / 1e3,
            f.operational_gco2 + f.embodied_gco2,
            f.embodied_gco2,
            f.water_litres,
            f.gco2_per_mtok,
            f.water_litres_per_mtok
        );
    }
    if let Some(c) = &output.recorded {
        compared(&mut t, c);
    }
    if s.steps.extrapolated > 0 {
        let _ = writeln!(t, "{} steps lay beyond what the cost model knows", s.steps.extrapolated);
    }
    let _ = writeln!(
        t,
        "{:.2} s of real time, {:.1} million sequence-steps a second; event log {}",
        output.run.wall_s,
        output.run.sequence_steps_per_s / 1e6,
        s.event_digest
    );
    t
}
