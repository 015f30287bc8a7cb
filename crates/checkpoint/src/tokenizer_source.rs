//! Where a model's tokenizer is described; reading the description is the tokenizer's business.

use std::path::Path;

use crate::gguf::{Array, GgufParts, Strings, Value};
use crate::{CheckpointError, error::Result};

/// The tokenizer that comes with a model.
#[derive(Debug, Clone, Copy)]
pub enum TokenizerSource<'a> {
    /// Metadata keys `tokenizer.ggml.*`.
    Gguf(GgufTokenizer<'a>),
    /// A Hugging Face `tokenizer.json` and what goes with it.
    HfJson(HfTokenizer<'a>),
}

/// The tokenizer keys of a GGUF file. Every accessor borrows the file and converts nothing.
#[derive(Debug, Clone, Copy)]
pub struct GgufTokenizer<'a> {
    parts: &'a GgufParts,
}

/// The files of a Hugging Face tokenizer.
#[derive(Debug, Clone, Copy)]
pub struct HfTokenizer<'a> {
    /// The path of `tokenizer.json`.
    pub path: &'a Path,
    /// Its contents.
    pub json: &'a [u8],
    /// The contents of `tokenizer_config.json`, where there is one.
    pub config_json: Option<&'a [u8]>,
    /// The token that begins a text, where the configuration names one.
    pub bos_token: Option<&'a str>,
    /// The token that ends a text, where the configuration names one.
    pub eos_token: Option<&'a str>,
    /// The id of the token that begins a text, from `generation_config.json` or `config.json`.
    pub bos_id: Option<u32>,
    /// The ids of the tokens that end an answer, from the same.
    pub eos_ids: &'a [u32],
    /// Whether the configuration asks for a token in front of every text.
    pub add_bos: Option<bool>,
    /// Whether the configuration asks for a token behind every text.
    pub add_eos: Option<bool>,
}

impl<'a> GgufTokenizer<'a> {
    pub(crate) fn new(parts: &'a GgufParts) -> Self {
        Self { parts }
    }

    /// Any key, by its full name.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.parts.get(key)
    }

    fn key<T>(
        &self,
        key: &str,
        wanted: &str,
        convert: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| CheckpointError::BadKey {
            key: key.into(),
            problem: format!("is not {wanted}"),
        })
    }

    /// The kind of tokenizer: `gpt2` for byte-level BPE, `llama` for SentencePiece's.
    ///
    /// # Errors
    /// The key is missing or no string.
    pub fn model(&self) -> Result<&'a str> {
        let key = "tokenizer.ggml.model";
        self.key(key, "a string", |v| v.as_str())?
            .ok_or_else(|| CheckpointError::MissingKey { key: key.into() })
    }

    /// The name of the pre-tokenizer.
    ///
    /// # Errors
    /// The key is no string.
    pub fn pre(&self) -> Result<Option<&'a str>> {
        self.key("tokenizer.ggml.pre", "a string", |v| v.as_str())
    }

    /// The tokens' texts by id, as bytes (they need not be UTF-8).
    ///
    /// # Errors
    /// The key is missing or no list of strings.
    pub fn tokens(&self) -> Result<Strings<'a>> {
        let key = "tokenizer.ggml.tokens";
        self.strings(key)?.ok_or_else(|| CheckpointError::MissingKey { key: key.into() })
    }

    /// The merges of a BPE, in order of rank: two texts with a space between.
    ///
    /// # Errors
    /// The key is no list of strings.
    pub fn merges(&self) -> Result<Option<Strings<'a>>> {
        self.strings("tokenizer.ggml.merges")
    }

    fn strings(&self, key: &str) -> Result<Option<Strings<'a>>> {
        self.key(key, "a list of strings", |v| v.as_array()?.strings())
    }

    /// The tokens' scores by id.
    ///
    /// # Errors
    /// The key is no list of 32-bit floats.
    pub fn scores(&self) -> Result<Option<impl ExactSizeIterator<Item = f32> + use<'a>>> {
        self.key("tokenizer.ggml.scores", "a list of 32-bit floats", |v| v.as_array()?.f32s())
    }

    /// The tokens' kinds by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    ///
    /// # Errors
    /// The key is no list of 32-bit integers.
    pub fn token_types(&self) -> Result<Option<impl ExactSizeIterator<Item = i32> + use<'a>>> {
        self.key("tokenizer.ggml.token_type", "a list of 32-bit integers", |v| v.as_array()?.i32s())
    }

    /// A token id, by the last part of its key: `bos_token_id`, `eos_token_id`,
    /// `unknown_token_id`, `padding_token_id`, `eot_token_id`, `eom_token_id`, ...
    ///
    /// # Errors
    /// The key is no id.
    pub fn id(&self, name: &str) -> Result<Option<u32>> {
        self.key(&format!("tokenizer.ggml.{name}"), "a token id", |v| {
            u32::try_from(v.as_u64()?).ok()
        })
    }

    /// The token that begins a text.
    ///
    /// # Errors
    /// The key is no id.
    pub fn bos_id(&self) -> Result<Option<u32>> {
        self.id("bos_token_id")
    }

    /// The token that ends a text.
    ///
    /// # Errors
    /// The key is no id.
    pub fn eos_id(&self) -> Result<Option<u32>> {
        self.id("eos_token_id")
    }

    /// The token that ends a turn.
    ///
    /// # Errors
    /// The key is no id.
    pub fn eot_id(&self) -> Result<Option<u32>> {
        self.id("eot_token_id")
    }

    /// The token that ends a message to a tool.
    ///
    /// # Errors
    /// The key is no id.
    pub fn eom_id(&self) -> Result<Option<u32>> {
        self.id("eom_token_id")
    }

    /// The token for what has none.
    ///
    /// # Errors
    /// The key is no id.
    pub fn unknown_id(&self) -> Result<Option<u32>> {
        self.id("unknown_token_id")
    }

    /// The padding token.
    ///
    /// # Errors
    /// The key is no id.
    pub fn padding_id(&self) -> Result<Option<u32>> {
        self.id("padding_token_id")
    }

    /// A setting, by the last part of its key.
    ///
    /// # Errors
    /// The key is no bool.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.key(&format!("tokenizer.ggml.{name}"), "true or false", |v| v.as_bool())
    }

    /// Whether texts get a token in front.
    ///
    /// # Errors
    /// The key is no bool.
    pub fn add_bos(&self) -> Result<Option<bool>> {
        self.flag("add_bos_token")
    }

    /// Whether texts get a token behind.
    ///
    /// # Errors
    /// The key is no bool.
    pub fn add_eos(&self) -> Result<Option<bool>> {
        self.flag("add_eos_token")
    }

    /// Whether texts get a space in front.
    ///
    /// # Errors
    /// The key is no bool.
    pub fn add_space_prefix(&self) -> Result<Option<bool>> {
        self.flag("add_space_prefix")
    }

    /// Whether runs of spaces become one (`remove_extra_whitespaces`).
    ///
    /// # Errors
    /// The key is no bool.
    pub fn remove_extra_whitespaces(&self) -> Result<Option<bool>> {
        self.flag("remove_extra_whitespaces")
    }

    /// The compiled character map of a SentencePiece normalizer.
    pub fn precompiled_charsmap(&self) -> Option<Array<'a>> {
        self.get("tokenizer.ggml.precompiled_charsmap")?.as_array()
    }
}
