//! Hugging Face model folders: `config.json`, safetensors in one file or several, and the
//! tokenizer's files.
//!
//! PyTorch's pickles (`.bin`) are not read: loading one runs code. Nothing is downloaded.

mod folder;
mod json;
mod safetensors;
mod tokenizer;

pub(crate) use folder::HfModel;
pub use folder::{Folder, MemoryFolder};
pub use safetensors::{Safetensors, SafetensorsTensor};
