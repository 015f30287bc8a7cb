//! Opens a model for measuring: one sequence, all KV its own.

use dunlin_model::LoadOptions;
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_tensor::Backend;
use dunlin_tokenizer::Tokenizer;

use crate::{load, model_args::ModelArgs, note};

/// A model's backend and tokenizer.
pub struct Opened {
    /// With KV for the tokens that were asked for.
    pub backend: Box<dyn Backend>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
}

/// Opens the model that the flags name, with these settings whatever the flags say, and with KV for
/// one sequence of `tokens`.
///
/// # Errors
/// Models that cannot be had or opened.
pub fn open(
    args: &ModelArgs,
    activations: ActivationPrecision,
    kv_type: KvType,
    tokens: usize,
) -> anyhow::Result<Opened> {
    let path = load::model_path(args)?;
    let options = LoadOptions {
        threads: Some(args.threads()?),
        activations,
        kv_type,
        context: Some(tokens),
        kv_tokens: Some(tokens),
        ..LoadOptions::default()
    };
    let loaded = load::open(&path, &options)?;
    for text in &loaded.notes {
        note!("dunlin: {text}");
    }
    Ok(Opened { backend: Box::new(loaded.backend), tokenizer: loaded.tokenizer })
}
