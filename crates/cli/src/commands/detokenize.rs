//! `dunlin detokenize`: token ids to text.

use std::{
    io::{self, Read as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use serde::Deserialize;

use crate::{load, model_args::ModelArgs, outcome::unusable};

/// Turn token ids into text
///
/// Ids are arguments, or on standard input: numbers between spaces, commas or lines, a JSON array,
/// or what `tokenize --json` writes. The bytes of the tokens are written as they are, and no newline
/// behind them.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Token ids; without any they are read from standard input
    #[arg(value_name = "ID")]
    ids: Vec<u32>,

    /// Leave out control tokens
    #[arg(long)]
    skip_special: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Input {
    List(Vec<u32>),
    Object { ids: Vec<u32> },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let ids = if args.ids.is_empty() {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        parse_ids(&text).map_err(unusable)?
    } else {
        args.ids
    };
    let tokenizer = load::tokenizer(&args.model)?;
    let text = tokenizer.decode(&ids, args.skip_special).map_err(unusable)?;
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    if text.trim_start().starts_with(['[', '{']) {
        return match serde_json::from_str(text) {
            Ok(Input::List(ids) | Input::Object { ids }) => Ok(ids),
            Err(error) => Err(format!("standard input holds no JSON token ids: {error}")),
        };
    }
    text.split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().map_err(|_| format!("{word:?} is no token id")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_every_form() {
        for text in ["1 2,3\n4", "[1, 2,3,4]", "{\"ids\":[1,2,3,4]}\n", " 1,2, 3 ,4,"] {
            assert_eq!(parse_ids(text), Ok(vec![1, 2, 3, 4]), "{text:?}");
        }
        assert_eq!(parse_ids(""), Ok(vec![]));
        for bad in ["1 x", "[1", "{\"id\":[1]}", "-1", "4294967296"] {
            assert!(parse_ids(bad).is_err(), "{bad:?}");
        }
    }
}
