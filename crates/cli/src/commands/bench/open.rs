//! Opens the model with KV for what the benchmark needs.

use std::path::Path;

use anyhow::Context as _;
use dunlin_model::{LoadOptions, LoadedModel};

use crate::model_args::ModelArgs;

/// Loads the model for sequences of up to `tokens` tokens, with KV for one of them.
///
/// # Errors
/// Models that cannot be opened.
pub fn load(args: &ModelArgs, path: &Path, tokens: usize) -> anyhow::Result<LoadedModel> {
    load_for(args, path, tokens, tokens)
}

/// Loads the model for sequences of up to `longest` tokens, with KV for `kv_tokens` in all.
///
/// # Errors
/// Models that cannot be opened.
pub fn load_for(
    args: &ModelArgs,
    path: &Path,
    longest: usize,
    kv_tokens: usize,
) -> anyhow::Result<LoadedModel> {
    let options = LoadOptions {
        threads: Some(args.threads()?),
        activations: args.activations,
        kv_type: args.kv_type()?,
        context: Some(longest),
        kv_tokens: Some(kv_tokens),
        ..LoadOptions::default()
    };
    dunlin_model::load(path, &options)
        .with_context(|| format!("cannot load the model {}", path.display()))
}
