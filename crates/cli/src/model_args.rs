//! The flags that say which model is loaded, and how; shared by all commands that load one.

use std::path::PathBuf;

use dunlin_spec::{ActivationPrecision, KvType};

use crate::{outcome::unusable, threads};

/// Contexts above this are not the default: their KV would surprise.
const DEFAULT_CONTEXT: usize = 8192;

/// Which model, with which settings.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A GGUF file, or a folder in Hugging Face's layout [default: SmolLM2-135M-Instruct, fetched
    /// on first use]
    #[arg(short, long, env = "DUNLIN_MODEL", value_name = "PATH")]
    pub model: Option<PathBuf>,

    /// The most tokens of a sequence, prompt and answer together; 0 is what the model was trained
    /// for [default: the same, but at most 8192]
    #[arg(short, long, alias = "ctx-size", env = "DUNLIN_CONTEXT", value_name = "TOKENS")]
    pub context: Option<usize>,

    /// Threads [default: one for each physical core that this process may use]
    #[arg(short, long, env = "DUNLIN_THREADS", value_name = "N")]
    pub threads: Option<usize>,

    /// Precision of the activations that meet quantized weights: f32, split or int8
    #[arg(long, env = "DUNLIN_ACTIVATIONS", default_value_t, value_name = "TYPE")]
    pub activations: ActivationPrecision,

    /// How keys and values are stored: f32, f16 or int8 [default: f16]
    #[arg(long, env = "DUNLIN_KV_TYPE", value_name = "TYPE")]
    pub kv_type: Option<KvType>,

    /// The same as llama-server spells it; also -ctk
    #[arg(long, env = "DUNLIN_CACHE_TYPE_K", value_name = "TYPE", hide = true)]
    pub cache_type_k: Option<KvType>,

    /// The same as llama-server spells it; also -ctv
    #[arg(long, env = "DUNLIN_CACHE_TYPE_V", value_name = "TYPE", hide = true)]
    pub cache_type_v: Option<KvType>,
}

impl ModelArgs {
    /// The KV type that all three flags agree on.
    ///
    /// # Errors
    /// Flags that disagree.
    pub fn kv_type(&self) -> anyhow::Result<KvType> {
        let given = [self.kv_type, self.cache_type_k, self.cache_type_v];
        let mut types = given.into_iter().flatten();
        let first = types.next().unwrap_or_default();
        match types.find(|&other| other != first) {
            None => Ok(first),
            Some(other) => Err(unusable(format!(
                "keys and values are stored alike, but both {first} and {other} were asked for"
            ))),
        }
    }

    /// How many threads to run on.
    ///
    /// # Errors
    /// None at all.
    pub fn threads(&self) -> anyhow::Result<usize> {
        match self.threads {
            Some(0) => Err(unusable("--threads is 0; at least one is needed")),
            Some(threads) => Ok(threads),
            None => Ok(threads::default_threads()),
        }
    }

    /// The context for a model trained for `trained` tokens.
    pub fn context(&self, trained: usize) -> usize {
        match self.context {
            Some(0) => trained,
            Some(context) => context,
            None => trained.min(DEFAULT_CONTEXT),
        }
    }
}
