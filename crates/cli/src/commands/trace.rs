//! `dunlin trace`: what is in a recorded trace of requests.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use dunlin_sim::config::open_trace;
use dunlin_workload::{
    stats::{Report, Stats, Summary, SummaryOptions, WindowStats},
    trace::{BadRows, ReadOptions, ReadReport, TraceKind},
};
use serde::Serialize;

use crate::outcome::unusable;

/// Look into recorded traces of requests
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TraceCommand {
    Stat(StatArgs),
}

/// Arrivals, lengths, burstiness and shared prefixes of a trace
///
/// Reads the formats of Azure, Mooncake, BurstGPT, ServeGen, Vidur and LLMServingSim and this
/// program's own, gzip or not; the format is found from the first line. Rows that cannot be are named
/// with line and column.
#[derive(Debug, clap::Args)]
struct StatArgs {
    /// The trace
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Leave rows out that cannot be, and count them, instead of ending at the first
    #[arg(long)]
    skip_bad_rows: bool,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What a trace is like.
#[derive(Debug, Serialize)]
struct Output {
    format: String,
    bad_rows: u64,
    failed_rows: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    first_bad_rows: Vec<String>,
    #[serde(flatten)]
    report: Report,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let TraceCommand::Stat(args) = args.command;
    let (kind, read, report) = stat(&args.file, args.skip_bad_rows)?;
    let output = Output {
        format: format!("{kind:?}"),
        bad_rows: read.bad,
        failed_rows: read.failed,
        first_bad_rows: read.described.iter().map(ToString::to_string).collect(),
        report,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &output)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(&output))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn stat(file: &Path, skip: bool) -> anyhow::Result<(TraceKind, ReadReport, Report)> {
    let bad_rows = if skip { BadRows::Skip } else { BadRows::Refuse };
    let options = ReadOptions { bad_rows, ..ReadOptions::default() };
    let mut reader = open_trace(file, options).map_err(unusable)?;
    let mut summary = Summary::new(&SummaryOptions::default());
    for row in reader.by_ref() {
        summary.add(&row.map_err(|e| unusable(format!("{}: {e}", file.display())))?);
    }
    Ok((reader.kind(), reader.report().clone(), summary.report()))
}

/// The same for people.
fn text(output: &Output) -> String {
    use std::fmt::Write as _;
    let (r, mut t) = (&output.report, String::new());
    let _ = writeln!(
        t,
        "{}: {} requests over {:.1} s{}",
        output.format,
        r.requests,
        r.span_ns as f64 / 1e9,
        r.rate_per_s.map_or(String::new(), |rate| format!(", {rate:.3} a second"))
    );
    if output.bad_rows + output.failed_rows > 0 {
        let _ = writeln!(
            t,
            "{} rows left out as bad, {} as failed requests",
            output.bad_rows, output.failed_rows
        );
        output.first_bad_rows.iter().for_each(|row| {
            let _ = writeln!(t, "  {row}");
        });
    }
    let _ = writeln!(
        t,
        "{:>14} {:>12} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "", "mean", "cv", "p50", "p90", "p99", "max"
    );
    let mut row = |name: &str, stats: &Option<Stats>, unit: f64| {
        if let Some(s) = stats {
            let at = |value: u64| format!("{:.1}", value as f64 / unit);
            let _ = writeln!(
                t,
                "{name:>14} {:>12.1} {:>8.2} {:>10} {:>10} {:>10} {:>10}",
                s.mean / unit,
                s.cv.unwrap_or(0.0),
                at(s.p50),
                at(s.p90),
                at(s.p99),
                at(s.max)
            );
        }
    };
    row("prompt tokens", &r.prompt_tokens, 1.0);
    row("output tokens", &r.output_tokens, 1.0);
    row("gaps, ms", &r.gaps_ns, 1e6);
    for window in &r.windows {
        let _ = writeln!(t, "{}", window_text(window));
    }
    if r.sessions > 0 {
        let turns = r.turns_per_session.unwrap_or(0.0);
        let _ = writeln!(t, "{} sessions of {turns:.1} turns", r.sessions);
    }
    if r.clients > 1 {
        let _ = writeln!(
            t,
            "{} clients; {} of them send half of the requests",
            r.clients, r.clients_for_half
        );
    }
    let _ = writeln!(
        t,
        "{:.1}% of prompt tokens repeat a prefix seen before",
        r.sharing.share * 100.0
    );
    t
}

/// How uneven arrivals are over windows: 1 is what independent arrivals give.
fn window_text(w: &WindowStats) -> String {
    let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2}"));
    format!(
        "in windows of {} s: {:.1} arrivals on average, {} at most; dispersion {}, correlation {}",
        w.width_ns as f64 / 1e9,
        w.mean,
        w.peak,
        number(w.dispersion),
        number(w.correlation)
    )
}
