//! `dunlin plan`: which configuration keeps the goals.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Context as _;
use dunlin_costmodel::CostFile;
use dunlin_engine::CancelFlag;
use dunlin_planner::{
    plan::{CostFiles, Plan, PlanConfig, Progress, csv, html, plan},
    workload::replications,
};
use dunlin_spec::ModelSpec;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    interrupt, note,
    outcome::{INTERRUPTED, unusable},
};

/// Search configurations that keep goals of latency, cost, energy, carbon and water
///
/// Rules out by closed forms what cannot keep the goals, simulates the rest round by round with the
/// same requests, and tells which configurations no other beats, each with confidence intervals,
/// what binds it and how to launch it, and the smallest cluster. Where none keeps the goals it says
/// which goal breaks and who comes nearest (exit code 1). Ctrl-C ends the search with what it has.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The question: a TOML file (see the folder `examples`)
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// The seed, in place of the file's
    #[arg(long)]
    seed: Option<u64>,

    /// Threads, in place of the file's; the answer is the same
    #[arg(long)]
    threads: Option<usize>,

    /// Write one JSON object
    #[arg(long)]
    json: bool,

    /// Write the front as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write a page with the answer
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&args.config)
        .with_context(|| format!("cannot read {}", args.config.display()))?;
    let bad = |e: &dyn std::fmt::Display| unusable(format!("{}: {e}", args.config.display()));
    let mut config = PlanConfig::parse(&text).map_err(|e| bad(&e))?;
    config.seed = args.seed.unwrap_or(config.seed);
    config.search.threads = args.threads.unwrap_or(config.search.threads);
    let folder = args.config.parent().unwrap_or(Path::new("."));
    let model = model(&config, folder)?;
    let files = cost_files(&config, folder)?;
    let search = &config.search;
    let replications = replications(
        &config.workload,
        folder,
        config.seed,
        search.requests,
        search.replications,
    )
    .map_err(|e| bad(&e))?;
    let flag = CancelFlag::new();
    interrupt::listen();
    interrupt::arm(Some(&flag));
    let bar = progress();
    let most = AtomicUsize::new(0);
    let watch = |p: Progress| {
        // Threads may tell out of order.
        if most.fetch_max(p.done, Ordering::Relaxed) <= p.done {
            bar.set_length(p.total as u64);
            bar.set_position(p.done as u64);
            bar.set_message(format!("{} left", p.left));
        }
        !flag.is_cancelled()
    };
    let found = plan(&config, &model, &files, &replications, &watch).map_err(|e| bad(&e))?;
    bar.finish_and_clear();
    interrupt::arm(None);
    if let Some(path) = &args.csv {
        std::fs::write(path, csv(&found)).with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &args.report {
        std::fs::write(path, html(&found)).with_context(|| path.display().to_string())?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &found)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", table(&found))?;
    }
    out.flush()?;
    if found.stopped_early {
        note!("dunlin: interrupted; the answer is of the simulations until then");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(if found.feasible { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The model, in numbers or from its file.
fn model(config: &PlanConfig, folder: &Path) -> anyhow::Result<ModelSpec> {
    match (&config.model.shape, &config.model.file) {
        (Some(shape), _) => {
            shape.spec().map_err(|e| unusable(format!("model.shape.{}: {}", e.field, e.problem)))
        }
        (None, Some(file)) => {
            let path = folder.join(file);
            let opened = dunlin_checkpoint::ModelFile::open(&path)
                .with_context(|| format!("model.file: {}", path.display()))?;
            Ok(opened.spec().clone())
        }
        (None, None) => unreachable!("checked when the file was read"),
    }
}

/// The cost models that the hardware names.
fn cost_files(config: &PlanConfig, folder: &Path) -> anyhow::Result<CostFiles> {
    let mut files = CostFiles::new();
    for name in config.hardware.iter().filter_map(|h| h.cost_file.as_ref()) {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cost_file: {}", path.display()))?;
        let file: CostFile =
            toml::from_str(&text).map_err(|e| unusable(format!("{}: {e}", path.display())))?;
        let cost = file.build().map_err(|e| unusable(format!("{}: {e}", path.display())))?;
        files.insert(name.clone(), Arc::new(cost));
    }
    Ok(files)
}

/// A bar on standard error with the time left, where that is a terminal.
fn progress() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{wide_bar} {pos} of at most {len} simulations, {msg} [{elapsed} + {eta}]",
    );
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The answer for people.
fn table(plan: &Plan) -> String {
    use std::fmt::Write as _;
    let mut t = format!(
        "{:.2} requests/s; {} configurations, {} ruled out by closed forms, {} simulated in {} runs\n",
        plan.rate_per_s,
        plan.candidates,
        plan.pruned.values().sum::<usize>(),
        plan.simulated,
        plan.simulations
    );
    if let Some(refused) = &plan.refused {
        let _ = writeln!(t, "no configuration keeps the goals: {}", refused.why);
        return t;
    }
    for point in &plan.front {
        let f = &point.figures;
        let _ = writeln!(
            t,
            "{}\n    {:.2}% good; TTFT p99 {:.0} ms (+-{:.0}), TPOT p99 {:.1} ms; {:.2}/h, {:.3}/Mtok; \
             {:.3} J/token, {:.1} gCO2/Mtok, {:.2} l/Mtok; {:.0}% busy, bound by {}{}",
            point.what,
            f.good_share.mean * 100.0,
            f.ttft_p99_ms.mean,
            f.ttft_p99_ms.half_width,
            f.tpot_p99_ms.mean,
            f.cost_per_hour.mean,
            f.cost_per_mtok.mean,
            f.joules_per_token.mean,
            f.gco2_per_mtok.mean,
            f.litres_per_mtok.mean,
            f.busy_share * 100.0,
            point.binding.resource,
            point.binding.goal.map_or(String::new(), |goal| format!(", nearest goal {goal}"))
        );
    }
    if let Some(fewest) = &plan.smallest {
        let _ = writeln!(t, "smallest: {} ({} devices)", fewest.what, fewest.configuration.devices);
        for line in &fewest.launch {
            let _ = writeln!(t, "    {line}");
        }
    }
    t
}
