//! What goes wrong when a model is loaded.

use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The model file cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] dunlin_checkpoint::CheckpointError),
    /// The tokenizer cannot be built.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The model.
        path: PathBuf,
        /// What is wrong with its tokenizer.
        source: dunlin_tokenizer::TokenizerError,
    },
    /// The model has no tokenizer.
    #[error("{} has no tokenizer", path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// The kernels refuse a setting or lack memory.
    #[error(transparent)]
    Kernels(#[from] dunlin_kernels_cpu::KernelError),
    /// A tensor that the architecture needs.
    #[error("{}: tensor {name} is missing or has the wrong shape", path.display())]
    MissingTensor {
        /// The model.
        path: PathBuf,
        /// The tensor's role and place.
        name: String,
    },
    /// A model too large to be packed.
    #[error("{}: the packed model would need {bytes} bytes, which this machine cannot hold", path.display())]
    TooLarge {
        /// The model.
        path: PathBuf,
        /// The bytes needed.
        bytes: u64,
    },
    /// A context longer than the model's, or none at all.
    #[error("a context of {context} tokens was asked for; {} takes 1 to {limit}", path.display())]
    BadContext {
        /// The model.
        path: PathBuf,
        /// What was asked for.
        context: usize,
        /// The most that the model takes.
        limit: usize,
    },
}
