//! Model files: GGUF and Hugging Face folders in, one [`ModelFile`] out.
//!
//! A [`ModelFile`] is a spec, tensors by role, a tokenizer's description and a chat template,
//! whatever the container was. Everything that a file says is checked against its size before it is
//! believed; bad files give errors, never panics or large allocations. Weights stay where they are:
//! views hand out blocks of the mapped file. Dequantizing, repacking and computing happen elsewhere,
//! and nothing here is downloaded.
#![deny(unsafe_code)]

mod arch;
mod container;
mod error;
mod fingerprint;
pub mod gguf;
pub mod hf;
mod inspect;
mod matrix;
mod model_file;
mod place;
mod role;
#[allow(unsafe_code, reason = "memory mapping is the one thing here that needs it")]
pub mod source;
mod tokenizer_source;

pub use error::CheckpointError;
pub use fingerprint::{Fingerprint, fingerprint};
pub use inspect::{
    Inspection, KvBytes, MemoryEstimate, MetadataEntry, Sizes, TensorEntry, TypeTotal,
    kv_bytes_per_token,
};
pub use matrix::MatrixView;
pub use model_file::ModelFile;
pub use role::Role;
pub use tokenizer_source::{GgufTokenizer, HfTokenizer, TokenizerSource};
