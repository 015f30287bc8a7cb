//! `dunlin eval`: measures of quality, each with its confidence interval.
//!
//! Each subcommand is a file of its own. None of them samples: logits come straight from the
//! backend, so that what is measured is the model under its numeric settings and nothing else.

mod bootstrap;
mod corpus;
mod forward;
mod golden;
mod kl;
mod logits;
mod needle;
mod npy;
mod open;
mod perplexity;
mod stats;

#[cfg(test)]
pub use forward::tests::Fake;

use std::{io::Write as _, process::ExitCode};

use dunlin_spec::KvType;
use serde::Serialize;

use crate::model_args::ModelArgs;

/// Measure a model's quality: perplexity, distance from the reference, retrieval, exact logits
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Logits(logits::Args),
    Perplexity(perplexity::Args),
    Kl(kl::Args),
    Needle(needle::Args),
    Golden(golden::Args),
}

/// Runs the measurement.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.what {
        What::Logits(args) => logits::run(&args),
        What::Perplexity(args) => perplexity::run(&args),
        What::Kl(args) => kl::run(&args),
        What::Needle(args) => needle::run(&args),
        What::Golden(args) => golden::run(&args),
    }
}

/// The KV type asked for; what measures against exact logits takes f32 unless one is named.
fn kv_type_or_f32(args: &ModelArgs) -> anyhow::Result<KvType> {
    let named = [args.kv_type, args.cache_type_k, args.cache_type_v].into_iter().flatten().next();
    if named.is_none() { Ok(KvType::F32) } else { args.kv_type() }
}

/// Writes a result to standard output: the JSON object, or the text that people read.
fn print(json: bool, result: &impl Serialize, text: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, result)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", text.trim_end())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
