//! Models on the CPU: from a file to a [`Backend`](dunlin_tensor::Backend).
//!
//! [`load`] finds or makes the model's pack, maps it, assembles the spec into a program and starts
//! the threads. Nothing here decides what is computed when: that is the caller's, step by step.
#![forbid(unsafe_code)]

mod assemble;
mod cpu;
mod error;
mod pack;
mod vocabulary;
mod weights;

pub use cpu::CpuModel;
pub use error::ModelError;
pub use pack::PackSource;

use dunlin_checkpoint::ModelFile;
use dunlin_kernels_cpu::pool::SharedTeam;
use dunlin_spec::{ActivationPrecision, KvType, ModelSpec};
use dunlin_tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Threads that compute; `None` for as many as this process may use.
    pub threads: Option<usize>,
    /// The precision of activations in products with quantized weights.
    pub activations: ActivationPrecision,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// The longest sequence that will be run, in tokens; `None` for the model's own limit.
    pub context: Option<usize>,
    /// Tokens of KV over all sequences; `None` for `sequences` of the longest context.
    pub kv_tokens: Option<usize>,
    /// Sequences of the longest context that there is KV for, where `kv_tokens` does not say it.
    pub sequences: usize,
    /// The folder where packs are kept; `None` packs in memory at every start.
    pub pack_folder: Option<PathBuf>,
    /// The instruction set, where not the best one (or the one that `DUNLIN_ISA` names).
    pub cpu: Option<dunlin_kernels_cpu::CpuFeatures>,
    /// Layers that are left out: a model that guesses what the whole one says, from the same pack.
    pub skip_layers: Vec<usize>,
    /// The threads of another model, which this one then uses too; `threads` does not count.
    pub team: Option<SharedTeam>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            threads: None,
            activations: ActivationPrecision::default(),
            kv_type: KvType::default(),
            context: None,
            kv_tokens: None,
            sequences: 1,
            pack_folder: default_pack_folder(),
            cpu: None,
            skip_layers: Vec::new(),
            team: None,
        }
    }
}

/// Where dunlin keeps what can be made or fetched again: the folder that `DUNLIN_CACHE` names, or
/// else `dunlin` in the user's cache folder (`XDG_CACHE_HOME`, `~/.cache`). `None` where the
/// environment names none of them.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    folder("DUNLIN_CACHE").or_else(|| {
        let home = || folder("HOME").map(|home| home.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(home);
        cache.map(|cache| cache.join("dunlin"))
    })
}

/// Where packs are kept: `packs` in the [`cache_folder`].
pub fn default_pack_folder() -> Option<PathBuf> {
    cache_folder().map(|cache| cache.join("packs"))
}

/// A model ready to run.
pub struct LoadedModel {
    /// Computes steps.
    pub backend: CpuModel,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Chat templates by name; the usual one is called "default".
    pub chat_templates: Vec<(String, String)>,
    /// Where the packed weights came from.
    pub pack: PackSource,
    /// Bytes of the pack.
    pub pack_bytes: usize,
    /// Nanoseconds that loading took.
    pub load_ns: u64,
    /// What the user should know, in sentences.
    pub notes: Vec<String>,
}

impl LoadedModel {
    /// The usual chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_templates.iter().find(|(name, _)| name == "default").map(|(_, text)| &text[..])
    }

    /// The model's spec.
    pub fn spec(&self) -> &ModelSpec {
        dunlin_tensor::Backend::spec(&self.backend)
    }
}

/// Loads only the tokenizer of the model at `path`: from its pack where `pack_folder` has one, else
/// from the model file, without packing any weights.
///
/// # Errors
/// The file is bad, its architecture unknown, or it has no tokenizer.
pub fn load_tokenizer(path: &Path, pack_folder: Option<&Path>) -> Result<Tokenizer, ModelError> {
    let pack = match pack_folder {
        Some(folder) => pack::existing(path, folder)?,
        None => None,
    };
    let tokenizer = match pack {
        Some(pack) => Tokenizer::from_image(Arc::new(pack.tokenizer())),
        None => Tokenizer::from_image(Arc::new(vocabulary::tables(&ModelFile::open(path)?)?)),
    };
    tokenizer.map_err(|source| ModelError::Tokenizer { path: path.to_path_buf(), source })
}

/// Loads the model at `path`, a GGUF file or a Hugging Face folder.
///
/// # Errors
/// The file is bad, its architecture or one of its types unknown, or memory is short.
pub fn load(path: &Path, options: &LoadOptions) -> Result<LoadedModel, ModelError> {
    let start = Instant::now();
    let mut notes = Vec::new();
    let available = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = options.threads.unwrap_or_else(available).max(1);
    let folder = options.pack_folder.as_deref();
    let (pack, source) = pack::obtain(path, folder, threads, &mut notes)?;
    let tokenizer = Tokenizer::from_image(Arc::new(pack.tokenizer()))
        .map_err(|source| ModelError::Tokenizer { path: path.to_path_buf(), source })?;
    let chat_templates = pack.index.chat_templates.clone();
    let pack_bytes = pack.len();
    let backend = CpuModel::new(path, pack, threads, options)?;
    Ok(LoadedModel {
        backend,
        tokenizer,
        chat_templates,
        pack: source,
        pack_bytes,
        load_ns: u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        notes,
    })
}
