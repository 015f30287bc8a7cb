//! `dunlin bench`: the speed of a model on this machine, beside the machine's limits and, if asked,
//! beside other engines on the same file in the same run.
//!
//! Rows run on the backend itself, one step after another, with the greedy choice of a token as a
//! real decode would make it; scheduling, sampling and text are not in them (the workloads `batch` and
//! `session` go through the engine). Repetitions are
//! interleaved: each goes through all rows, ours and the peers', so that what drifts on a shared
//! machine drifts for all.

mod batch;
mod child;
mod grammar;
mod limits;
mod machine;
mod open;
mod ours;
mod peer_batch;
mod peers;
mod report;
mod row;
mod serve;
mod session;
mod setup;
mod spec;
mod summary;
pub mod workload;

use std::{collections::BTreeMap, io::Write as _, path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use dunlin_checkpoint::ModelFile;
use dunlin_tensor::Backend;

use crate::{load::model_path, model_args::ModelArgs, note, outcome::unusable};
use child::{Child, FOOTPRINT_CONTEXT};
use limits::Work;
use machine::MachineProbe;
use ours::{Runner, kv_tokens};
use peers::{Attention, Peer};
use report::{Report, Setting};
use row::Row;
use setup::PEERS;

/// Larger than any block of KV: rows are given whole blocks.
const MAX_BLOCK_TOKENS: usize = 256;
/// Between two measurements: threads that spin for a while after their work go to sleep.
const SETTLE: Duration = Duration::from_millis(50);

/// Measure speed beside this machine's limits, and beside other engines
///
/// Rows: ppN is a prompt of N tokens; tgN generates N tokens from empty, tgN@DEPTH after DEPTH
/// tokens; bS is 32 steps of S sequences that hold 128 tokens each.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    server: Option<Server>,

    /// Measure a workload of many requests instead of rows
    #[arg(value_enum, value_name = "WORKLOAD")]
    workload: Option<Workload>,

    #[command(flatten)]
    model: ModelArgs,

    /// What to measure
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    #[arg(default_value = "pp512,tg128,tg16@2048,b16")]
    rows: Vec<Row>,

    /// Repetitions [default: 3 of each row, 1 of a workload]
    #[arg(long, value_name = "N")]
    reps: Option<usize>,

    /// Divide all lengths of a workload by this, for a quick look
    #[arg(long, value_name = "N", default_value_t = 1, requires = "workload")]
    scale: usize,

    /// Measure ik_llama.cpp and llama.cpp too, from their Python packages (set up on first use), or
    /// one of them: `--compare=ik`, which comes compiled
    #[arg(long, value_name = "PEER", num_args = 0..=1, require_equals = true,
          default_missing_value = "all", value_parser = ["all", "ik", "llama"])]
    compare: Option<String>,

    /// Measure how long a start takes, and the peak of memory
    #[arg(long)]
    startup: bool,

    /// Memory that the read tests go over, many times any cache; they hold twice as much
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    read_mib: u32,

    /// Write one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    spec: spec::SpecArgs,

    /// Be a process whose start or memory is measured.
    #[arg(long, hide = true)]
    child: Option<Child>,
}

/// What has settings of its own.
#[derive(Debug, clap::Subcommand)]
enum Server {
    Serve(Box<serve::Args>),
}

/// Many requests through the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// 64 requests at once, with prompts of their own and with a common prefix
    Batch,
    /// Queries on a session that holds a long context, and a prompt beside decoders
    Session,
    /// Answers of several kinds with drafts, against plain decoding
    Spec,
    /// Answers that must fit a JSON schema, against free decoding
    Grammar,
}

impl Args {
    fn reps(&self) -> usize {
        self.reps.unwrap_or(if self.workload.is_some() { 1 } else { 3 })
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Server::Serve(args)) = args.server.take() {
        return serve::run(*args);
    }
    let path = model_path(&args.model)?;
    if let Some(child) = args.child {
        child::run(child, &args.model, &path)?;
        return Ok(ExitCode::SUCCESS);
    }
    let reps = args.reps();
    if reps == 0 || args.scale == 0 {
        return Err(unusable("--reps or --scale is 0: nothing to measure"));
    }
    match args.workload {
        Some(Workload::Batch) => {
            let (peers, _) = start_peers(&args, &path, args.model.threads()?)?;
            batch::run(&args.model, &path, args.scale, reps, args.json, peers)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Workload::Session) => {
            session::run(&args.model, &path, args.scale, reps, args.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Workload::Grammar) => {
            grammar::run(&args.model, &path, args.scale, reps, args.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Workload::Spec) => {
            spec::run(&args.model, &args.spec, reps, args.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let file = ModelFile::open(&path)?;
    let work = Work::of(&file);
    let file_bytes = file.files().into_iter().map(|f| Ok(std::fs::metadata(f)?.len()));
    let file_bytes: u64 = file_bytes.sum::<std::io::Result<u64>>()?;
    drop(file);

    // Before the model is in memory, and before anything spins.
    let startup = args.startup.then(|| child::startup(&args.model, &path, reps.max(5)));
    let startup = startup.transpose()?;
    let memory =
        args.startup.then(|| child::footprint(&args.model, &path, file_bytes)).transpose()?;

    let mut report = measure(&args, &path, &work, file_bytes)?;
    report.startup = startup;
    report.memory = memory;
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        note!("{}", report.table());
    } else {
        write!(out, "{}", report.table())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// All rows, all repetitions.
fn measure(args: &Args, path: &Path, work: &Work, file_bytes: u64) -> anyhow::Result<Report> {
    let threads = args.model.threads()?;
    let mut rows = args.rows.clone();
    let mut seen = std::collections::BTreeSet::new();
    rows.retain(|row| seen.insert(*row));
    let longest = rows.iter().map(|r| r.length()).max().unwrap_or(1);
    let kv = kv_tokens(&rows, MAX_BLOCK_TOKENS);
    let mut loaded = open::open(&args.model, path, Some(longest), kv)?;
    let backend = &mut loaded.backend;
    let kv_bytes_per_token = backend.block_bytes() as f64 / backend.block_tokens() as f64;
    let kv_values = backend.spec().kv_values_per_token().max(1) as f64;
    let setting = Setting {
        model: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        file_bytes,
        threads,
        activations: args.model.activations.to_string(),
        kv_type: args.model.kv_type()?.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        weight_bytes_per_step: work.bytes_per_step,
        kv_bytes_per_token,
    };
    let mut probe = MachineProbe::new(threads, (args.read_mib as usize) << 20)?;
    let mut runner = Runner::new(backend, &rows)?;
    let (mut peers, errors) = start_peers(args, path, threads)?;
    let mut found: Vec<(Row, Vec<f64>)> = rows.iter().map(|&row| (row, Vec::new())).collect();
    for repetition in 0..args.reps() {
        note!("repetition {} of {}", repetition + 1, args.reps());
        probe.measure();
        for (index, (row, speeds)) in found.iter_mut().enumerate() {
            speeds.push(runner.run(index)?);
            std::thread::sleep(SETTLE);
            for peer in &mut peers {
                for attention in Attention::ALL {
                    peer.run(*row, attention)?;
                    std::thread::sleep(SETTLE);
                }
            }
        }
    }
    if args.startup {
        for peer in &mut peers {
            peer.measure_footprint(FOOTPRINT_CONTEXT)
                .with_context(|| format!("{}'s memory", peer.package().title))?;
        }
    }
    let peers: BTreeMap<_, _> = peers.into_iter().map(|p| (p.package().name, p.finish())).collect();
    let machine = probe.machine().clone();
    let screening = loaded.backend.screening();
    let kv_bytes_per_value = kv_bytes_per_token / kv_values;
    let activations = args.model.activations;
    let mut report =
        Report::new(setting, found, machine, work, activations, kv_bytes_per_value, peers);
    report.peer_errors = errors;
    report.screening = screening.map(Into::into);
    Ok(report)
}

/// The peers that can be had, and why the others cannot.
#[allow(clippy::type_complexity, reason = "two lists")]
fn start_peers(
    args: &Args,
    path: &Path,
    threads: usize,
) -> anyhow::Result<(Vec<Peer>, BTreeMap<&'static str, String>)> {
    let (mut peers, mut errors) = (Vec::new(), BTreeMap::new());
    let wanted = |name| args.compare.as_deref().is_some_and(|peer| peer == "all" || peer == name);
    for package in PEERS.iter().filter(|p| wanted(p.name)) {
        match Peer::start(package, path, threads) {
            Ok(peer) => peers.push(peer),
            Err(error) => {
                note!("{error:#}");
                errors.insert(package.name, format!("{error:#}"));
            }
        }
    }
    if args.compare.is_some() && peers.is_empty() {
        anyhow::bail!("no peer could be set up");
    }
    Ok((peers, errors))
}
