//! Opens the model with KV for what the benchmark needs.

use std::path::Path;

use dunlin_model::{LoadOptions, LoadedModel};

use crate::{load, model_args::ModelArgs, note};

/// Loads the model for sequences of up to `longest` tokens (`None`: as many as it was trained for),
/// with KV for `kv_tokens` in all.
///
/// # Errors
/// Models that cannot be opened, and a length that the model does not take.
pub fn open(
    args: &ModelArgs,
    path: &Path,
    longest: Option<usize>,
    kv_tokens: usize,
) -> anyhow::Result<LoadedModel> {
    let options = LoadOptions {
        threads: Some(args.threads()?),
        activations: args.activations,
        kv_type: args.kv_type()?,
        context: longest,
        kv_tokens: Some(kv_tokens),
        ..LoadOptions::default()
    };
    let loaded = load::open(path, &options)?;
    for text in &loaded.notes {
        note!("dunlin: {text}");
    }
    Ok(loaded)
}
