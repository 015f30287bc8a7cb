//! Opens models.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dunlin_engine::{Engine, EngineConfig, ModelIdentity, drafter::DraftAcceptance};
use dunlin_kernels_cpu::kv::BLOCK_TOKENS;
use dunlin_model::{LoadOptions, LoadedModel, ModelError};
use dunlin_tensor::Backend;
use dunlin_tokenizer::{ChatTemplate, Tokenizer, grammar::Grammar};
use serde_json::Value;

use crate::{
    commands::pull, engine_args::EngineArgs, model_args::ModelArgs, note, outcome::unusable,
    prompt::encode_chat, report::About, speculate_args::SpeculateArgs,
};

/// A model ready to generate.
pub struct Model {
    /// Runs requests on the model's backend.
    pub engine: Engine<Box<dyn Backend>>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template's source, the model's or one that was given.
    template: Option<String>,
    /// The template, compiled at its first use.
    compiled: Option<ChatTemplate>,
    /// What answers must be.
    pub grammar: Option<Grammar>,
    /// The model file's name.
    pub name: String,
    /// Draft tokens of a request that a step verifies at most, and their branches.
    pub max_draft: u32,
    pub max_branches: u32,
    /// How draft tokens come to be accepted.
    pub acceptance: DraftAcceptance,
    /// What the reports of all its requests say alike.
    pub about: About,
}

impl Model {
    /// Whether there is a chat template.
    pub fn chats(&self) -> bool {
        self.template.is_some()
    }

    /// The chat template's source.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
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
pub fn model(
    args: &ModelArgs,
    settings: &EngineArgs,
    parallel: usize,
    template: Option<String>,
    verbose: bool,
) -> anyhow::Result<Model> {
    let path = model_path(args)?;
    let options = options(args, parallel)?;
    let loaded = open(&path, &options)?;
    let context = args.context(loaded.spec().context_length);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    for text in &loaded.notes {
        note!("dunlin: {text}");
    }
    if verbose {
        note!(
            "{name}: {} threads, {} activations, {} KV, context {context}, loaded in {:.0} ms",
            loaded.backend.threads(),
            args.activations,
            args.kv_type()?,
            loaded.load_ns as f64 / 1e6,
        );
    }
    let template = template.or_else(|| loaded.chat_template().map(Into::into));
    let LoadedModel { backend, tokenizer, load_ns, .. } = loaded;
    let config = EngineConfig {
        model: identity(args, &path, name.clone())?,
        threads: args.threads()?,
        policy: settings.policy,
        eviction: settings.eviction,
        prefix_cache: !settings.no_prefix_cache,
        chunking: settings.chunking.unwrap_or_default(),
        disk: settings.disk(backend.block_bytes()),
        record: settings.record.clone(),
        budgets: settings
            .budgets
            .iter()
            .map(|&(tenant, tokens)| (tenant, tokens.div_ceil(BLOCK_TOKENS as u64)))
            .collect(),
        draft_store_tokens: usize::try_from(settings.speculation.speculate_store)?,
        energy_budget: settings.speculation.energy_budget(),
        ..EngineConfig::new(context)
    };
    let SpeculateArgs { speculate, speculate_max, speculate_branches, speculate_accept, .. } =
        settings.speculation;
    let drafters = settings.speculation.drafters(&path, &backend, &tokenizer, &options)?;
    let corpus = settings.speculation.corpus(&tokenizer)?;
    let backend: Box<dyn Backend> = Box::new(backend);
    let mut engine = Engine::with_drafters(backend, Some(tokenizer.clone()), config, drafters)?;
    if let Some(corpus) = corpus {
        engine.draft_store_mut().add_corpus(&corpus);
    }
    Ok(Model {
        engine,
        max_draft: speculate_max,
        max_branches: speculate_branches,
        acceptance: speculate_accept,
        tokenizer,
        template,
        compiled: None,
        grammar: None,
        name,
        about: About {
            activations: args.activations,
            kv_type: args.kv_type()?,
            load_ns,
            speculate,
        },
    })
}

/// What KV of this model depends on.
///
/// # Errors
/// Files that cannot be read, and flags that disagree.
pub fn identity(args: &ModelArgs, path: &Path, name: String) -> anyhow::Result<ModelIdentity> {
    Ok(ModelIdentity {
        name,
        fingerprint: dunlin_checkpoint::fingerprint(path)?.0,
        activations: args.activations.to_string(),
        kv_type: args.kv_type()?.to_string(),
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

/// KV for so many full contexts, and the blocks that copies on write hold for a moment.
pub fn kv_tokens(context: usize, parallel: usize) -> usize {
    context.saturating_add(BLOCK_TOKENS).saturating_mul(parallel)
}

fn options(args: &ModelArgs, parallel: usize) -> anyhow::Result<LoadOptions> {
    // Where the model's own context decides, it does so when the file has been read.
    let context = args.context(usize::MAX);
    Ok(LoadOptions {
        threads: Some(args.threads()?),
        activations: args.activations,
        kv_type: args.kv_type()?,
        context: args.context.filter(|&c| c != 0),
        kv_tokens: (context != usize::MAX).then(|| kv_tokens(context, parallel)),
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
