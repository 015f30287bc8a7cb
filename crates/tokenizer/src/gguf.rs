//! From the `tokenizer.ggml.*` metadata of GGUF files to a plain vocabulary.
//!
//! The file itself is read elsewhere; this module sees it through [`GgufMeta`].

use crate::TokenizerError;
use crate::pretok::PreTokenizer;
use crate::source::{SpacePrefix, SpecialIds, TokenType, VocabKind, VocabSource};

/// Access to a GGUF file's metadata. Each method returns `None` when the key is absent or holds
/// another type.
pub trait GgufMeta {
    /// A string.
    fn string(&self, key: &str) -> Option<&str>;
    /// An unsigned integer of any width, or a non-negative signed one.
    fn uint(&self, key: &str) -> Option<u64>;
    /// A boolean.
    fn boolean(&self, key: &str) -> Option<bool>;
    /// An array of strings, as bytes.
    fn strings(&self, key: &str) -> Option<Vec<&[u8]>>;
    /// An array of 32-bit floats.
    fn floats(&self, key: &str) -> Option<Vec<f32>>;
    /// An array of integers that fit 32 bits.
    fn ints(&self, key: &str) -> Option<Vec<i32>>;
}

/// Tokens that end a generation by what they are called, for files that do not name them by id.
const END_NAMES: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

const EOT_NAMES: &[&str] = &["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"];

/// Pre-tokenizers whose files take a word as it is when it is a token, and begin with `bos` unless
/// they say otherwise.
const WHOLE_WORDS_AND_BOS: &[&str] = &[
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
];

/// Reads a vocabulary from GGUF metadata. `pre` replaces the file's own pre-tokenizer name, for
/// old files that have none.
///
/// # Errors
/// When the tokenizer model is not `gpt2`, `llama` or `gemma4`, or something it needs is missing.
pub fn vocab_from_gguf<'a>(
    meta: &'a dyn GgufMeta,
    pre: Option<&str>,
) -> Result<VocabSource<'a>, TokenizerError> {
    let missing = |key| TokenizerError::MissingMetadata { key };
    let model = meta.string("tokenizer.ggml.model").ok_or(missing("tokenizer.ggml.model"))?;
    let mut whole_words_and_bos = false;
    let kind = match model {
        "gpt2" => {
            let pre = pre.or_else(|| meta.string("tokenizer.ggml.pre"));
            let name = pre.ok_or(missing("tokenizer.ggml.pre"))?;
            whole_words_and_bos = WHOLE_WORDS_AND_BOS.contains(&name);
            VocabKind::Bpe { pre: PreTokenizer::from_name(name)? }
        }
        "llama" => VocabKind::Spm,
        "gemma4" => VocabKind::BpeChars { pre: PreTokenizer::Lines },
        _ => {
            return Err(TokenizerError::UnknownModel {
                name: model.to_string(),
                supported: "gpt2, llama, gemma4".to_string(),
            });
        }
    };
    let tokens = meta.strings("tokenizer.ggml.tokens").ok_or(missing("tokenizer.ggml.tokens"))?;
    let mut source = VocabSource::new(kind, tokens);
    source.scores = meta.floats("tokenizer.ggml.scores");
    source.token_types = meta
        .ints("tokenizer.ggml.token_type")
        .map(|types| types.into_iter().map(TokenType::from_gguf).collect());
    source.merges = match meta.strings("tokenizer.ggml.merges") {
        Some(lines) => Some(
            lines.iter().enumerate().map(|(i, line)| merge(i, line)).collect::<Result<_, _>>()?,
        ),
        None => None,
    };
    read_ids(meta, &mut source)?;
    read_rules(meta, &mut source, whole_words_and_bos);
    let strips =
        source.kind == VocabKind::Spm && meta.string("general.architecture") == Some("phi3");
    find_named(&mut source, strips);
    Ok(source)
}

/// `left right`; the left part may itself start with a space.
fn merge(index: usize, line: &[u8]) -> Result<(&[u8], &[u8]), TokenizerError> {
    let space = line.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
    match space.filter(|&at| at + 1 < line.len()) {
        Some(at) => Ok((&line[..at], &line[at + 1..])),
        None => {
            let merge = String::from_utf8_lossy(line).into_owned();
            Err(TokenizerError::BadMerge { index, merge })
        }
    }
}

fn read_ids(meta: &dyn GgufMeta, source: &mut VocabSource<'_>) -> Result<(), TokenizerError> {
    let n_tokens = source.tokens.len() as u32;
    let id = |what, key: &str| match meta.uint(key) {
        Some(id) if id >= u64::from(n_tokens) => Err(TokenizerError::IdOutOfRange {
            what,
            id: u32::try_from(id).unwrap_or(u32::MAX),
            n_tokens,
        }),
        Some(id) => Ok(Some(id as u32)),
        None => Ok(None),
    };
    source.ids = SpecialIds {
        bos: id("tokenizer.ggml.bos_token_id", "tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_id")?,
        eot: id("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eot_token_id")?,
        eom: id("tokenizer.ggml.eom_token_id", "tokenizer.ggml.eom_token_id")?,
        unk: id("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.unknown_token_id")?,
        // Nothing depends on padding, and files get it wrong.
        pad: id("", "tokenizer.ggml.padding_token_id").unwrap_or(None),
    };
    if source.kind == VocabKind::Spm {
        // What SentencePiece numbers them when the file says nothing.
        let or = |known: Option<u32>, id: u32| known.or(Some(id).filter(|&id| id < n_tokens));
        source.ids.unk = or(source.ids.unk, 0);
        source.ids.bos = or(source.ids.bos, 1);
        source.ids.eos = or(source.ids.eos, 2);
    }
    Ok(())
}

fn read_rules(meta: &dyn GgufMeta, source: &mut VocabSource<'_>, whole_words_and_bos: bool) {
    let (bos, whole_words, prefix) = match source.kind {
        VocabKind::Bpe { pre } => {
            let whole_words =
                whole_words_and_bos || matches!(pre, PreTokenizer::MiniCpm5 | PreTokenizer::Youtu);
            (whole_words_and_bos, whole_words, false)
        }
        VocabKind::Spm => (true, false, true),
        VocabKind::BpeChars { .. } => (true, false, false),
    };
    source.ignore_merges = whole_words;
    source.add_bos = meta.boolean("tokenizer.ggml.add_bos_token").unwrap_or(bos);
    source.add_eos = meta.boolean("tokenizer.ggml.add_eos_token").unwrap_or(false);
    if source.kind == VocabKind::Spm
        && meta.boolean("tokenizer.ggml.add_space_prefix").unwrap_or(prefix)
    {
        source.space_prefix = SpacePrefix::EverySegment;
        source.strip_leading_space = true;
    }
}

/// Finds what files leave out: tokens that end a generation and, with `strips`, control tokens
/// that swallow the white space behind them.
pub(crate) fn find_named(source: &mut VocabSource<'_>, strips: bool) {
    let ids = source.ids;
    let roles = [ids.bos, ids.eos, ids.eot, ids.eom];
    let mut types = source.token_types.take();
    for (at, &text) in source.tokens.iter().enumerate() {
        let id = at as u32;
        // Names are short; this keeps a quarter of a million comparisons cheap.
        if !matches!(text.first(), Some(b'<' | b'[')) || text.len() > 32 {
            continue;
        }
        let named = |names: &[&str]| names.iter().any(|name| name.as_bytes() == text);
        let ends = named(END_NAMES);
        if ends {
            source.end_ids.push(id);
        }
        if named(EOT_NAMES) && source.ids.eot.is_none() {
            source.ids.eot = Some(id);
        }
        let Some(kind) = types.as_mut().and_then(|types| types.get_mut(at)) else { continue };
        // Some files mark their control tokens as ordinary text.
        if *kind == TokenType::Normal && (ends || roles.contains(&Some(id))) {
            *kind = TokenType::Control;
        }
        let plain = [&b"<unk>"[..], b"<s>", b"<|endoftext|>"];
        if strips && *kind == TokenType::Control && !plain.contains(&text) {
            source.rstrip_ids.push(id);
        }
    }
    // With both of these, `<|end|>` only ends a part of an answer.
    let has = |name: &str, source: &VocabSource<'_>| {
        source.end_ids.iter().any(|&id| source.tokens[id as usize] == name.as_bytes())
    };
    if has("<|return|>", source) && has("<|call|>", source) {
        source.end_ids.retain(|&id| source.tokens[id as usize] != b"<|end|>");
        source.ids.eot = source.ids.eot.filter(|&id| source.tokens[id as usize] != b"<|end|>");
    }
    source.token_types = types;
}
