//! Measurements that need a process of their own: how long a start takes, and the peak of memory.
//!
//! The benchmark starts itself with the hidden flag `--child`; the child prints one JSON line.

use std::{
    io::Write as _,
    path::Path,
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};
use dunlin_tokenizer::EncodeOptions;
use serde::{Deserialize, Serialize};

use super::{open::open, row::tokens, summary::median};
use crate::model_args::ModelArgs;

/// When the parent started the child, in nanoseconds since 1970: the children's clock and the
/// parent's are the same one.
const SPAWNED: &str = "DUNLIN_BENCH_SPAWNED_NS";
/// The prompt whose prefill ends a start.
const PROMPT: &str = "The capital of France is";
/// The context at which memory is measured.
pub const FOOTPRINT_CONTEXT: usize = 1024;

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Child {
    /// Loads the model and a prompt, and says when the first prefill began.
    Startup,
    /// Fills a context of [`FOOTPRINT_CONTEXT`] tokens and says what memory it took.
    Footprint,
}

impl Child {
    fn name(self) -> &'static str {
        match self {
            Child::Startup => "startup",
            Child::Footprint => "footprint",
        }
    }
}

/// Starts, from a process that does not exist yet to the call that computes the first prefill.
#[derive(Debug, Clone, Serialize)]
pub struct Startup {
    /// Milliseconds of each start; files were in the system's cache and the pack was there.
    pub ms: Vec<f64>,
    /// Of them, loading alone.
    pub load_ms: Vec<f64>,
    /// The median of `ms`.
    pub median_ms: f64,
}

/// Peak memory with a context of 1024 tokens, filled.
#[derive(Debug, Clone, Serialize)]
pub struct Footprint {
    /// The peak of resident memory.
    pub peak_rss_bytes: u64,
    /// The model's file or files.
    pub file_bytes: u64,
    /// Keys and values of 1024 tokens.
    pub kv_bytes: u64,
    /// What is left: code, buffers, and anything that is there twice.
    pub over_bytes: i64,
    /// At the end: resident pages of files, and others.
    pub rss_file_bytes: Option<u64>,
    /// Pages that are no file's.
    pub rss_anon_bytes: Option<u64>,
}

/// The line that a child prints.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    startup_ns: u64,
    load_ns: u64,
    kv_bytes: u64,
    peak_rss_bytes: Option<u64>,
    rss_file_bytes: Option<u64>,
    rss_anon_bytes: Option<u64>,
}

/// What a child does and says.
///
/// # Errors
/// Models that cannot be loaded or computed.
pub fn run(child: Child, args: &ModelArgs, path: &Path) -> anyhow::Result<()> {
    let loaded = open(args, path, None, FOOTPRINT_CONTEXT)?;
    let mut backend = loaded.backend;
    let options = EncodeOptions { add_special: true, parse_special: true };
    let prompt = loaded.tokenizer.encode(PROMPT, options).context("cannot tokenize the prompt")?;
    let startup_ns = now_ns().saturating_sub(spawned_ns().unwrap_or_default());
    let mut logits = Vec::new();
    match child {
        Child::Startup => step(&mut backend, &prompt, 0, &mut logits)?,
        Child::Footprint => {
            let spec = backend.spec();
            let ids = tokens(FOOTPRINT_CONTEXT.min(spec.context_length), spec.vocab_size, 1);
            let (prompt, last) = ids.split_at(ids.len() - 1);
            let most = backend.max_step_tokens().max(1);
            for (i, chunk) in prompt.chunks(most).enumerate() {
                step(&mut backend, chunk, i * most, &mut logits)?;
            }
            step(&mut backend, last, prompt.len(), &mut logits)?;
        }
    }
    let blocks = FOOTPRINT_CONTEXT.div_ceil(backend.block_tokens());
    let answer = Answer {
        startup_ns,
        load_ns: loaded.load_ns,
        kv_bytes: (blocks * backend.block_bytes()) as u64,
        peak_rss_bytes: status_bytes("VmHWM"),
        rss_file_bytes: status_bytes("RssFile"),
        rss_anon_bytes: status_bytes("RssAnon"),
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&answer)?)?;
    Ok(())
}

fn step(
    backend: &mut impl Backend,
    ids: &[u32],
    first_position: usize,
    logits: &mut Vec<f32>,
) -> anyhow::Result<()> {
    let blocks = (first_position + ids.len()).div_ceil(backend.block_tokens());
    let table: Vec<u32> = (0..blocks as u32).collect();
    let input = SequenceInput {
        tokens: ids,
        first_position,
        block_table: &table,
        logits: LogitsWanted::Last,
        branch_of: None,
    };
    Ok(backend.forward(&[input], logits)?)
}

/// Measures starts: one that is not counted, then `count`.
///
/// # Errors
/// Children that fail.
pub fn startup(args: &ModelArgs, path: &Path, count: usize) -> anyhow::Result<Startup> {
    spawn(Child::Startup, args, path)?;
    let mut found = Startup { ms: Vec::new(), load_ms: Vec::new(), median_ms: 0.0 };
    for _ in 0..count {
        let answer = spawn(Child::Startup, args, path)?;
        found.ms.push(answer.startup_ns as f64 / 1e6);
        found.load_ms.push(answer.load_ns as f64 / 1e6);
    }
    found.median_ms = median(&found.ms).unwrap_or_default();
    Ok(found)
}

/// Measures the peak of memory.
///
/// # Errors
/// Children that fail, and systems that do not tell.
pub fn footprint(args: &ModelArgs, path: &Path, file_bytes: u64) -> anyhow::Result<Footprint> {
    let answer = spawn(Child::Footprint, args, path)?;
    let peak = answer.peak_rss_bytes.context("this system does not tell the peak of memory")?;
    Ok(Footprint {
        peak_rss_bytes: peak,
        file_bytes,
        kv_bytes: answer.kv_bytes,
        // Sizes of memory and files fit.
        over_bytes: peak as i64 - file_bytes as i64 - answer.kv_bytes as i64,
        rss_file_bytes: answer.rss_file_bytes,
        rss_anon_bytes: answer.rss_anon_bytes,
    })
}

fn spawn(child: Child, args: &ModelArgs, path: &Path) -> anyhow::Result<Answer> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["bench", "--child", child.name(), "--model"]).arg(path);
    command.args(["--threads", &args.threads()?.to_string()]);
    command.args(["--activations", &args.activations.to_string()]);
    command.args(["--kv-type", &args.kv_type()?.to_string()]);
    let output = command
        .env(SPAWNED, now_ns().to_string())
        .output()
        .context("cannot start a second process")?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!(
            "a process for the {} ended with {}: {}",
            child.name(),
            output.status,
            errors.trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("a child's answer cannot be understood")
}

fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn spawned_ns() -> Option<u64> {
    std::env::var(SPAWNED).ok()?.parse().ok()
}

/// A size in this process's status (Linux).
fn status_bytes(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    value.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}
