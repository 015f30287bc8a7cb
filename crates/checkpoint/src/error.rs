//! What can be wrong with a model file.

use std::{io, path::PathBuf};

use dunlin_spec::SpecError;

/// Why a model file could not be read or written. Every message names the place in the file and,
/// where there is a choice, what is supported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// An error in one of the model's files.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        #[source]
        source: Box<CheckpointError>,
    },
    /// The path names no model.
    #[error("{problem}")]
    NotAModel {
        /// What was found instead, and what to give.
        problem: String,
    },
    /// A GGUF file of another version or byte order.
    #[error("{found}; supported are little-endian GGUF versions 2 and 3")]
    UnsupportedVersion {
        /// What the file is.
        found: String,
    },
    /// A container whose structure contradicts itself or its size.
    #[error("corrupt at byte {offset}: {problem}")]
    Corrupt {
        /// Where in the file.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// The files of a split model do not fit together.
    #[error("split model: {problem}")]
    Split {
        /// What does not fit.
        problem: String,
    },
    /// A JSON file that is no JSON or has a value of the wrong kind.
    #[error("{problem}")]
    Json {
        /// What is wrong, with the key or the line.
        problem: String,
    },
    /// A tensor type that no kernel computes with.
    #[error("tensor {tensor} has type {type_name}; supported types: {supported}")]
    UnsupportedTensorType {
        /// The tensor.
        tensor: String,
        /// Its type.
        type_name: String,
        /// What is supported.
        supported: String,
    },
    /// An architecture that is not in the tables.
    #[error("architecture {name:?} is not supported{}; supported: {supported}",
            reason.map(|r| format!(" ({r})")).unwrap_or_default())]
    UnsupportedArchitecture {
        /// The name in the file.
        name: String,
        /// Why, where the architecture is known but refused.
        reason: Option<&'static str>,
        /// What is supported, for this kind of file.
        supported: String,
    },
    /// A variant of a known architecture that would be computed wrongly.
    #[error("{what} is not supported{}", if supported.is_empty() { String::new() } else { format!("; supported: {supported}") })]
    UnsupportedFeature {
        /// The feature, with its key and value.
        what: String,
        /// What is supported instead; may be empty.
        supported: String,
    },
    /// Metadata that must be there and is not.
    #[error("metadata key {key} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// Metadata of the wrong type or out of range.
    #[error("metadata key {key}: {problem}")]
    BadKey {
        /// The key.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// A tensor that the architecture needs and the file lacks.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// The name, or names, looked for.
        name: String,
    },
    /// A tensor whose shape, type or place is wrong.
    #[error("tensor {name}: {problem}")]
    BadTensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Values of the model's spec that contradict each other.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl CheckpointError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Says which file an error is about.
    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> Self {
        match self {
            named @ (Self::Io { .. } | Self::InFile { .. }) => named,
            other => Self::InFile { path: path.into(), source: Box::new(other) },
        }
    }

    /// The error itself, without the names of files around it.
    pub fn root(&self) -> &CheckpointError {
        match self {
            Self::InFile { source, .. } => source.root(),
            other => other,
        }
    }
}

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, CheckpointError>;
