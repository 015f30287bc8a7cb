//! Opens models.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dunlin_executor::generate::Generator;
use dunlin_model::{LoadOptions, LoadedModel, ModelError};
use dunlin_tensor::Backend;
use dunlin_tokenizer::{ChatTemplate, Tokenizer};
use serde_json::Value;

use crate::{
    commands::pull, model_args::ModelArgs, note, outcome::unusable, prompt::encode_chat,
    report::About,
};

/// A model ready to generate.
pub struct Engine {
    /// The generation loop over the model's backend.
    pub generator: Generator<Box<dyn Backend>>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template's source, the model's or one that was given.
    template: Option<String>,
    /// The template, compiled at its first use.
    compiled: Option<ChatTemplate>,
    /// The model file's name.
    pub name: String,
    /// What the reports of all its requests say alike.
    pub about: About,
}

impl Engine {
    /// Whether there is a chat template.
    pub fn chats(&self) -> bool {
        self.template.is_some()
    }

    /// The tokens of a conversation up to the start of the assistant's answer.
    ///
    /// # Errors
    /// Without a template, and where it refuses the conversation.
    pub fn encode_chat(&mut self, messages: &[Value]) -> anyhow::Result<Vec<u32>> {
        if self.compiled.is_none() {
            let source = self.template.as_deref().ok_or_else(|| {
                unusable(
                    "the model has no chat template: use --raw to continue a prompt as it is, or \
                     give one with --chat-template",
                )
            })?;
            self.compiled = Some(ChatTemplate::new(source).map_err(unusable)?);
        }
        match &self.compiled {
            Some(template) => encode_chat(&self.tokenizer, template, messages),
            None => unreachable!("it was compiled above"),
        }
    }
}

/// Loads the model that the flags name, with KV for `parallel` full contexts. `template` replaces
/// the model's chat template.
///
/// # Errors
/// Models that cannot be had or opened, and settings that cannot be used.
pub fn engine(
    args: &ModelArgs,
    parallel: usize,
    template: Option<String>,
    verbose: bool,
) -> anyhow::Result<Engine> {
    let path = model_path(args)?;
    let model = open(&path, &options(args, parallel)?)?;
    let context = args.context(model.spec().context_length);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    for text in &model.notes {
        note!("dunlin: {text}");
    }
    if verbose {
        note!(
            "{name}: {} threads, {} activations, {} KV, context {context}, loaded in {:.0} ms",
            model.backend.threads(),
            args.activations,
            args.kv_type()?,
            model.load_ns as f64 / 1e6,
        );
    }
    let template = template.or_else(|| model.chat_template().map(Into::into));
    let LoadedModel { backend, tokenizer, load_ns, .. } = model;
    let backend: Box<dyn Backend> = Box::new(backend);
    Ok(Engine {
        generator: Generator::new(backend, Some(tokenizer.clone()), context),
        tokenizer,
        template,
        compiled: None,
        name,
        about: About { activations: args.activations, kv_type: args.kv_type()?, load_ns },
    })
}

/// Loads only the tokenizer of the model that the flags name; no weights are packed for it.
///
/// # Errors
/// Models that cannot be had or opened.
pub fn tokenizer(args: &ModelArgs) -> anyhow::Result<Tokenizer> {
    let path = model_path(args)?;
    let folder = dunlin_model::default_pack_folder();
    dunlin_model::load_tokenizer(&path, folder.as_deref()).context("cannot load the tokenizer")
}

/// The model's path: the one given, or the default model's, which is fetched if need be.
pub fn model_path(args: &ModelArgs) -> anyhow::Result<PathBuf> {
    pull::resolve(args.model.as_deref())
}

fn options(args: &ModelArgs, parallel: usize) -> anyhow::Result<LoadOptions> {
    // Where the model's own context decides, it does so when the file has been read.
    let context = args.context(usize::MAX);
    Ok(LoadOptions {
        threads: Some(args.threads()?),
        activations: args.activations,
        kv_type: args.kv_type()?,
        context: args.context.filter(|&c| c != 0),
        kv_tokens: (context != usize::MAX).then(|| context.saturating_mul(parallel)),
        sequences: parallel,
        ..LoadOptions::default()
    })
}

/// Opens a model's file.
///
/// # Errors
/// Models that cannot be opened, and settings that cannot be used.
pub fn open(path: &Path, options: &LoadOptions) -> anyhow::Result<LoadedModel> {
    dunlin_model::load(path, options).map_err(|error| match error {
        error @ ModelError::BadContext { .. } => unusable(error),
        error => anyhow::Error::new(error).context("cannot load the model"),
    })
}
