//! `dunlin eval logits`: every position's logits, as a NumPy file.

use std::{fs::File, io::BufWriter, path::PathBuf, process::ExitCode};

use anyhow::Context as _;

use super::{forward::Scorer, kv_type_or_f32, npy::NpyWriter, open::open};
use crate::{model_args::ModelArgs, note, outcome::unusable};

/// Write the logits of given tokens to a NumPy file
///
/// The file holds a float32 matrix, one row for each token. Keys and values are f32 unless
/// --kv-type says otherwise.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Token ids, separated by commas; nothing is added to them
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,

    /// The file to write
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.tokens.is_empty() {
        return Err(unusable("--tokens names none"));
    }
    let kv_type = kv_type_or_f32(&args.model)?;
    let mut opened = open(&args.model, args.model.activations, kv_type, args.tokens.len())?;
    let mut scorer = Scorer::new(&mut *opened.backend);
    // Refused before a file is made.
    let vocab_size = scorer.vocab_size();
    if let Some(bad) = args.tokens.iter().find(|&&t| t as usize >= vocab_size) {
        return Err(unusable(format!("token {bad} is outside the vocabulary of {vocab_size}")));
    }
    let name = || format!("cannot write {}", args.out.display());
    let file = File::create(&args.out).with_context(name)?;
    let mut npy =
        NpyWriter::new(BufWriter::new(file), args.tokens.len(), vocab_size).with_context(name)?;
    scorer.run(&args.tokens, 0, 0, |_, logits| npy.write(logits).with_context(name))?;
    npy.finish().with_context(name)?;
    note!("{}: float32 [{}, {vocab_size}]", args.out.display(), args.tokens.len());
    Ok(ExitCode::SUCCESS)
}
