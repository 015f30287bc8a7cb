//! `dunlin replay`: a recorded run, decided again.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use dunlin_engine::recorder::{ReplayError, replay};
use serde::Serialize;

use crate::{note, outcome::unusable};

/// Replay a recorded run and compare every decision of the scheduler
///
/// The record (of `dunlin run --record`) holds what the scheduler was told and what it decided. Here
/// a fresh scheduler is told the same; its decisions must be the same, byte for byte. The model is
/// not needed. Exit code 1 where they differ, with the first difference.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The record
    #[arg(value_name = "PATH")]
    record: PathBuf,

    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

/// What a replay found.
#[derive(Debug, Serialize)]
struct Report {
    same: bool,
    /// The record ends within a call, as it does when the process was killed.
    truncated: bool,
    model: String,
    calls: u64,
    events: u64,
    steps: u64,
    requests: u64,
    finished: u64,
    preemptions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = replay(&args.record).map_err(|error| match error {
        error @ ReplayError::NotARecord { .. } => unusable(error),
        error => error.into(),
    })?;
    let difference = found.difference;
    let report = Report {
        same: difference.is_none(),
        truncated: found.truncated,
        model: found.header.model,
        calls: found.calls,
        events: found.events,
        steps: found.steps,
        requests: found.requests,
        finished: found.finished,
        preemptions: found.preemptions,
        first_difference: difference.map(|d| format!("call {}:\n{}", d.call, d.text)),
    };
    let mut out = std::io::stdout().lock();
    if report.truncated {
        note!("dunlin: the record is cut short; it was replayed as far as it goes");
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let Report { calls, steps, requests, finished, preemptions, .. } = report;
        writeln!(
            out,
            "{calls} calls, {steps} steps, {requests} requests of which {finished} ended, \
             {preemptions} preemptions: {}",
            if report.same { "the same decisions, byte for byte" } else { "NOT the same decisions" }
        )?;
        if let Some(difference) = &report.first_difference {
            write!(out, "first difference (- on record, + now), {difference}")?;
        }
    }
    out.flush()?;
    Ok(if report.same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
