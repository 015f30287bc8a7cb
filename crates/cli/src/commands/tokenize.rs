//! `dunlin tokenize`: text to token ids.

use std::{
    io::{self, Read as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use serde::Serialize;

use crate::{load, model_args::ModelArgs, outcome::unusable, prompt::encode};

/// Turn text on standard input into token ids
///
/// Nothing is added in front or behind, and control tokens are recognized by their names.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Write {"ids": [...]} instead of one token a line
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ids<'a> {
    ids: &'a [u32],
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        unusable(format!("standard input is not UTF-8: byte {at} begins no character"))
    })?;
    let tokenizer = load::tokenizer(&args.model)?;
    let ids = encode(&tokenizer, &text)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &Ids { ids: &ids })?;
        out.write_all(b"\n")?;
    } else {
        for id in ids {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            writeln!(out, "{id}\t{:?}", String::from_utf8_lossy(bytes))?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
