//! `dunlin calibrate`: what steps cost on this machine, as a cost model for simulation.

mod design;

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use dunlin_costmodel::{CostFile, CostSpec};
use dunlin_engine::{CancelFlag, Engine, recorder::Calls};
use dunlin_model::CpuModel;
use dunlin_planner::calibrate::{
    Calibration, GroupError, Outlier, StepReader, StepTrace, calibrate, medians,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::bench::workload::{Bench, Setting, prompt, request};
use crate::{
    interrupt, load::model_path, model_args::ModelArgs, note, outcome::INTERRUPTED,
    outcome::unusable,
};
use design::{Limits, Point, points};

/// Before it counts, every so manieth point is run.
const WARM_UP: usize = 8;

/// Learn what steps cost on this machine, for `dunlin simulate` and `dunlin plan`
///
/// Runs prompts of several lengths, decoding batches of several sizes and depths, and mixtures of
/// both through the engine; fits a cost model to the steps that its recorder saw; and tells the
/// model's error on steps that the fit did not see, by kind of step. Run it on an idle machine. The
/// same settings of model, threads and types should be given as to the server that is planned for.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Where the cost model is written (TOML)
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,

    /// Repetitions of everything; the fit is to the medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    reps: usize,

    /// The most sequences that decode together
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_batch: usize,

    /// The most KV positions in use at once
    #[arg(long, value_name = "TOKENS", default_value_t = 8192)]
    max_kv: usize,

    /// Write one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// What a calibration found.
#[derive(Debug, Serialize)]
struct Report {
    setting: Setting,
    repetitions: usize,
    points: usize,
    /// Watts on average while steps ran, and where they come from.
    watts: f64,
    watts_source: &'static str,
    /// The coefficients.
    cost: dunlin_costmodel::LinearCost,
    /// Errors on the steps of the fit and on those held out.
    fitted: Vec<GroupError>,
    held_out: Vec<GroupError>,
    /// The engine's own part of a step: from the end of a forward pass to the beginning of the next,
    /// in microseconds (median).
    host_us: f64,
    /// Steps that took 1.5 times their median or more.
    outliers: Vec<NamedOutlier>,
}

#[derive(Debug, Serialize)]
struct NamedOutlier {
    point: String,
    #[serde(flatten)]
    outlier: Outlier,
}

/// Where the steps of each point are in a repetition.
struct Repetition {
    steps: Vec<StepTrace>,
    /// The first step of each point.
    begins: Vec<usize>,
    microjoules: u64,
    energy: &'static str,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.reps == 0 || args.max_batch == 0 {
        return Err(unusable("--reps or --max-batch is 0: nothing to measure"));
    }
    let path = model_path(&args.model)?;
    let trained = dunlin_checkpoint::ModelFile::open(&path)?.spec().context_length;
    let context = args.model.context(trained).min(trained);
    let limits = Limits { context, batch: args.max_batch, kv_tokens: args.max_kv };
    let points = points(limits);
    if points.iter().all(|p| p.held_out) {
        return Err(unusable("--context, --max-batch or --max-kv leaves nothing to measure"));
    }
    // Blocks are not shared, so each sequence fills its last one in part.
    let kv_tokens = args.max_kv + (args.max_batch + 9) * 64;
    let mut bench = Bench::open(&args.model, &path, context, kv_tokens)?;
    let folder = tempfile::tempdir().context("cannot make a folder for the record")?;
    let record = folder.path().join("calibration.log");
    let cancel = CancelFlag::new();
    interrupt::listen();
    interrupt::arm(Some(&cancel));
    // What is first touched, mapped and decoded takes longer; that is not a step's cost.
    let warm_up: Vec<Point> = points.iter().step_by(WARM_UP).cloned().collect();
    let bar = progress((points.len() * args.reps + warm_up.len()) as u64);
    repetition(&mut bench, &warm_up, &record, &cancel, &bar)?;
    let mut repetitions = Vec::new();
    for _ in 0..args.reps {
        match repetition(&mut bench, &points, &record, &cancel, &bar)? {
            Some(found) => repetitions.push(found),
            None => break,
        }
    }
    bar.finish_and_clear();
    interrupt::arm(None);
    if repetitions.is_empty() {
        note!("dunlin: stopped before the first repetition was complete; nothing is written");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let (report, calibration) = fit(&bench, &points, repetitions)?;
    write_cost(&args.out, &report, &calibration)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        writeln!(out, "{}", report.table())?;
    }
    note!("dunlin: the cost model is in {}", args.out.display());
    out.flush()?;
    Ok(if cancel.is_cancelled() { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// A bar on standard error with the time left, where that is a terminal.
fn progress(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} points [{elapsed} + {eta}]");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Runs all points on one engine; `None` where it was stopped.
fn repetition(
    bench: &mut Bench,
    points: &[Point],
    record: &Path,
    cancel: &CancelFlag,
    bar: &ProgressBar,
) -> anyhow::Result<Option<Repetition>> {
    let vocab_size = bench.vocab_size;
    let mut ends = Vec::new();
    let (microjoules, energy) = bench.with_engine(
        |config| config.record = Some(record.into()),
        |engine| {
            let mut seed = 0;
            for point in points {
                if cancel.is_cancelled() {
                    break;
                }
                run_point(engine, point, vocab_size, &mut seed)?;
                ends.push(engine.stats().totals.steps);
                bar.inc(1);
            }
            engine.flush_record().context("cannot record the run")?;
            let energy = engine.stats().totals.energy;
            Ok((energy.microjoules, energy.source.label()))
        },
    )?;
    if ends.len() < points.len() {
        return Ok(None);
    }
    let (mut reader, mut steps) = (StepReader::default(), Vec::new());
    for call in Calls::open(record)? {
        let call = call?;
        reader.call(call.now, &call.events, &call.effects, &mut steps);
    }
    let begins = std::iter::once(0).chain(ends).map(|n| n as usize).collect();
    Ok(Some(Repetition { steps, begins, microjoules, energy }))
}

/// Runs one point to its end.
fn run_point(
    engine: &mut Engine<CpuModel>,
    point: &Point,
    vocab_size: usize,
    seed: &mut u64,
) -> anyhow::Result<()> {
    let before = engine.stats().totals.steps;
    let mut coming = point.requests.iter().peekable();
    loop {
        let ran = engine.stats().totals.steps - before;
        while let Some(next) =
            coming.next_if(|r| r.after_steps <= ran || !engine.is_busy())
        {
            // Prompts that begin alike would find each other's KV.
            *seed += 1;
            engine.submit(request(prompt(next.prompt, vocab_size, *seed), next.output))?;
        }
        if !engine.step(&mut |_| {}) && coming.peek().is_none() {
            return Ok(());
        }
    }
}

/// Medians, the fit, and its errors.
fn fit(
    bench: &Bench,
    points: &[Point],
    repetitions: Vec<Repetition>,
) -> anyhow::Result<(Report, Calibration)> {
    let (count, begins) = (repetitions.len(), repetitions[0].begins.clone());
    let energy = repetitions[0].energy;
    let microjoules: u64 = repetitions.iter().map(|r| r.microjoules).sum();
    let runs: Vec<Vec<StepTrace>> = repetitions.into_iter().map(|r| r.steps).collect();
    let forward_ns: u64 = runs.iter().flatten().map(|s| s.forward_ns).sum();
    let (steps, outliers) =
        medians(&runs).context("the engine ran different steps when asked for the same")?;
    let point_of = |step: usize| begins.partition_point(|&b| b <= step).saturating_sub(1);
    let (mut fit_on, mut held) = (Vec::new(), Vec::new());
    for (i, step) in steps.iter().enumerate() {
        let into = if points[point_of(i)].held_out { &mut held } else { &mut fit_on };
        into.push(step.clone());
    }
    // Millionths of joules over billionths of seconds.
    let watts = microjoules as f64 * 1e3 / forward_ns.max(1) as f64;
    let calibration = calibrate(&fit_on, &held, watts)?;
    let mut host: Vec<u64> =
        steps.iter().map(|s| s.time_ns().saturating_sub(s.forward_ns)).collect();
    host.sort_unstable();
    let first = steps.first().map_or(0, |s| s.step.0);
    let named = outliers.into_iter().map(|outlier| NamedOutlier {
        point: points[point_of((outlier.step - first) as usize)].name.clone(),
        outlier,
    });
    let report = Report {
        setting: bench.setting(1),
        repetitions: count,
        points: points.len(),
        watts,
        watts_source: energy,
        cost: calibration.cost.cost,
        fitted: calibration.fitted.clone(),
        held_out: calibration.held_out.clone(),
        host_us: host.get(host.len() / 2).map_or(0.0, |&ns| ns as f64 / 1e3),
        outliers: named.collect(),
    };
    Ok((report, calibration))
}

/// Writes the cost model, with how good it is.
fn write_cost(path: &Path, report: &Report, calibration: &Calibration) -> anyhow::Result<()> {
    let Setting { model, threads, activations, kv_type, version, .. } = &report.setting;
    let source = format!(
        "dunlin {version} calibrate: {model}, {threads} threads, {activations} activations, \
         {kv_type} KV, medians of {} repetitions; power: {}",
        report.repetitions, report.watts_source
    );
    let file = CostFile::new(source, CostSpec::Fitted(calibration.cost));
    let errors: String = report.held_out.iter().fold(String::new(), |mut text, e| {
        let group = format!("{:?}", e.group).to_lowercase();
        let _ = writeln!(
            text,
            "# {group} steps held out: {:.1}% off on average, {:+.1}% in sum ({} steps)",
            e.mean_percent, e.bias_percent, e.steps
        );
        text
    });
    let text = format!("{errors}\n{}", toml::to_string(&file)?);
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!(
            "{}: {} points, {} repetitions; {:.1} W ({}); {:.0} us between steps\n",
            self.setting.model,
            self.points,
            self.repetitions,
            self.watts,
            self.watts_source,
            self.host_us
        );
        text += "                    steps     mean    error on average   p50     p90     worst   in sum\n";
        for (name, errors) in [("fitted", &self.fitted), ("held out", &self.held_out)] {
            for e in errors {
                let group = format!("{:?}", e.group).to_lowercase();
                let _ = writeln!(
                    text,
                    "{name:9} {group:9} {:5} {:7.2} ms {:16.2}% {:6.2}% {:6.2}% {:7.2}% {:+7.2}%",
                    e.steps,
                    e.mean_ms,
                    e.mean_percent,
                    e.p50_percent,
                    e.p90_percent,
                    e.max_percent,
                    e.bias_percent
                );
            }
        }
        let shown = self.outliers.iter().take(5);
        for NamedOutlier { point, outlier } in shown {
            let _ = writeln!(
                text,
                "odd: {point}, step {} took {:.1} ms in repetition {}, usually {:.1} ms",
                outlier.step,
                outlier.time_ms,
                outlier.repetition + 1,
                outlier.median_ms
            );
        }
        if self.outliers.len() > 5 {
            let _ = writeln!(text, "and {} more such steps", self.outliers.len() - 5);
        }
        text
    }
}
