//! Text to token ids and back.
//!
//! Work is cut in two. A *builder* ([`build_image`]) reads a vocabulary once, from whatever file
//! it came in, and writes a flat byte image; a [`Tokenizer`] then works straight from that image,
//! which may be a memory-mapped file, so that opening one parses nothing and costs microseconds
//! even for a quarter of a million tokens.
//!
//! The crate knows byte-level BPE with the pre-tokenizers that GGUF files name, and
//! SentencePiece-style vocabularies with scores and byte fallback. It also holds what stands
//! between ids and a reader: an incremental detokenizer and a matcher of stop strings; and
//! [`grammar`], which says what tokens may come next where a text must have a form.
//!
//! It reads no model files and does no I/O; it never replaces what it does not know by something
//! similar, because a wrong pre-tokenizer costs quality without any visible sign.
#![forbid(unsafe_code)]

mod builder;
mod chat;
mod detok;
mod error;
mod gguf;
pub mod grammar;
mod hash;
mod hf_json;
#[cfg(test)]
mod hostile_tests;
mod layout;
mod merge;
mod pretok;
mod source;
mod special;
mod spm;
mod stop;
mod tokenizer;

pub use builder::build_image;
pub use chat::{ChatInput, ChatTemplate, LocalTime};
pub use detok::{DetokenizeOptions, Detokenizer};
pub use error::TokenizerError;
pub use gguf::{GgufMeta, vocab_from_gguf};
pub use hf_json::{HfConfig, HfVocab};
pub use pretok::PreTokenizer;
pub use source::{SpacePrefix, SpecialIds, TokenType, VocabKind, VocabSource};
pub use stop::{StopHit, StopMatcher, StopStrings};
pub use tokenizer::{EncodeOptions, ImageOwner, Tokenizer};
