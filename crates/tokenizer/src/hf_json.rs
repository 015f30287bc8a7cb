//! From Hugging Face's `tokenizer.json` to a plain vocabulary.
//!
//! The file describes a pipeline; here the pipelines of language models are recognized and turned
//! into the tables this crate has: byte-level BPE behind a known pattern, and BPE over characters
//! with U+2581 for a space. Anything else is an error that says which part is not known, because a
//! pipeline that is nearly the same gives other tokens.

use serde_json::Value;

use crate::TokenizerError;
use crate::gguf::find_named;
use crate::pretok::PreTokenizer;
use crate::source::{SpacePrefix, SpecialIds, TokenType, VocabKind, VocabSource};

/// What stands beside `tokenizer.json`, in `tokenizer_config.json` and `generation_config.json`.
#[derive(Debug, Clone, Default)]
pub struct HfConfig<'a> {
    /// The text of the token that begins a text.
    pub bos_token: Option<&'a str>,
    /// The text of the token that ends a text.
    pub eos_token: Option<&'a str>,
    /// The id of the token that begins a text, where its text is not given.
    pub bos_id: Option<u32>,
    /// The ids of the tokens that end an answer.
    pub eos_ids: &'a [u32],
    /// Whether texts get a token in front; counts when `tokenizer.json` itself does not say.
    pub add_bos: Option<bool>,
    /// Whether texts get a token behind; likewise.
    pub add_eos: Option<bool>,
}

/// A vocabulary read from `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct HfVocab {
    kind: VocabKind,
    tokens: Vec<String>,
    types: Vec<TokenType>,
    merges: Vec<(String, String)>,
    ids: SpecialIds,
    end_ids: Vec<u32>,
    add_bos: bool,
    add_eos: bool,
    space_prefix: SpacePrefix,
    strip_leading_space: bool,
    ignore_merges: bool,
    nfc: bool,
    lstrip_ids: Vec<u32>,
    rstrip_ids: Vec<u32>,
}

fn bad(problem: impl Into<String>) -> TokenizerError {
    TokenizerError::BadTokenizerJson { problem: problem.into() }
}

fn unsupported(what: impl Into<String>) -> TokenizerError {
    TokenizerError::UnsupportedTokenizerJson { what: what.into() }
}

impl HfVocab {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::BadTokenizerJson`] when it is not what it should be,
    /// [`TokenizerError::UnsupportedTokenizerJson`] when a part of its pipeline is not known.
    pub fn parse(json: &[u8], config: &HfConfig<'_>) -> Result<HfVocab, TokenizerError> {
        let root: Value = serde_json::from_slice(json).map_err(|error| bad(error.to_string()))?;
        let model = &root["model"];
        check_model(model)?;
        let pipeline = Pipeline::read(&root)?;
        let mut vocab = HfVocab {
            kind: pipeline.kind,
            tokens: Vec::new(),
            types: Vec::new(),
            merges: merges(model)?,
            ids: SpecialIds::default(),
            end_ids: Vec::new(),
            add_bos: false,
            add_eos: false,
            space_prefix: pipeline.space_prefix,
            strip_leading_space: pipeline.strip_leading_space,
            ignore_merges: model["ignore_merges"] == true,
            nfc: pipeline.nfc,
            lstrip_ids: Vec::new(),
            rstrip_ids: Vec::new(),
        };
        vocab.read_tokens(model)?;
        vocab.check_unknown(model)?;
        vocab.read_added(&root["added_tokens"], pipeline.prepends)?;
        if let Some(unk) = model["unk_token"].as_str() {
            vocab.ids.unk = vocab.id_of(unk);
        }
        let known = |id: &u32| (*id as usize) < vocab.tokens.len();
        let bos = config.bos_token.and_then(|token| vocab.id_of(token));
        vocab.ids.bos = bos.or(config.bos_id.filter(known));
        vocab.ids.eos = config.eos_token.and_then(|token| vocab.id_of(token));
        vocab.read_post_processor(&root["post_processor"], config)?;
        let n_tokens = vocab.tokens.len();
        vocab.end_ids =
            config.eos_ids.iter().copied().filter(|&id| (id as usize) < n_tokens).collect();
        Ok(vocab)
    }

    /// The vocabulary in plain form.
    pub fn source(&self) -> VocabSource<'_> {
        let tokens = self.tokens.iter().map(|token| token.as_bytes()).collect();
        let merges = self.merges.iter().map(|(left, right)| (left.as_bytes(), right.as_bytes()));
        let mut source = VocabSource {
            token_types: Some(self.types.clone()),
            merges: Some(merges.collect()),
            ids: self.ids,
            end_ids: self.end_ids.clone(),
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            space_prefix: self.space_prefix,
            strip_leading_space: self.strip_leading_space,
            ignore_merges: self.ignore_merges,
            nfc: self.nfc,
            lstrip_ids: self.lstrip_ids.clone(),
            rstrip_ids: self.rstrip_ids.clone(),
            ..VocabSource::new(self.kind, tokens)
        };
        find_named(&mut source, false);
        source
    }

    /// Special tokens win over ordinary ones of the same spelling.
    fn id_of(&self, text: &str) -> Option<u32> {
        let named = |id: &usize| self.tokens[*id] == text;
        let special = |id: &usize| self.types[*id] != TokenType::Normal;
        let ids = 0..self.tokens.len();
        let id = ids.clone().filter(special).find(named).or_else(|| ids.clone().find(named));
        id.map(|id| id as u32)
    }

    fn put(&mut self, id: usize, text: &str, kind: TokenType) -> Result<(), TokenizerError> {
        // Ids are dense but for a few holes; a huge one is a mistake that must not cost memory.
        let limit = 16 << 20;
        if id >= limit {
            return Err(TokenizerError::TooLarge { what: "a token id", size: id, limit });
        }
        if id >= self.tokens.len() {
            self.tokens.resize(id + 1, String::new());
            self.types.resize(id + 1, TokenType::Unused);
        }
        self.tokens[id] = text.to_string();
        self.types[id] = kind;
        Ok(())
    }

    fn read_tokens(&mut self, model: &Value) -> Result<(), TokenizerError> {
        let vocab =
            model["vocab"].as_object().ok_or_else(|| bad("model.vocab is not an object"))?;
        self.tokens.reserve(vocab.len());
        for (text, id) in vocab {
            let id = id.as_u64().ok_or_else(|| bad(format!("the id of '{text}' is no number")))?;
            self.put(id as usize, text, TokenType::Normal)?;
        }
        Ok(())
    }

    /// Text that cannot be spelt is handled in one way here: bytes where all of them are tokens,
    /// one unknown token for a stretch otherwise; and never in byte-level vocabularies.
    fn check_unknown(&self, model: &Value) -> Result<(), TokenizerError> {
        let known: std::collections::BTreeSet<&str> =
            self.tokens.iter().map(|token| token.as_str()).collect();
        let bytes = (0..=255u8).filter(|byte| known.contains(format!("<0x{byte:02X}>").as_str()));
        let bytes = bytes.count();
        match self.kind {
            VocabKind::Bpe { .. } => {
                let spelt = crate::builder::byte_alphabet();
                let whole = spelt.iter().all(|c| known.contains(c.to_string().as_str()));
                if model["unk_token"].is_string() && !whole {
                    return Err(unsupported("model.unk_token where bytes have no token"));
                }
            }
            _ if model["byte_fallback"] == true && bytes == 256 => {}
            _ if bytes > 0 => return Err(unsupported("model.byte_fallback with some bytes only")),
            _ if model["unk_token"].is_string() && model["fuse_unk"] != true => {
                return Err(unsupported("model.unk_token without fuse_unk"));
            }
            _ => {}
        }
        Ok(())
    }

    fn read_added(&mut self, added: &Value, prepends: bool) -> Result<(), TokenizerError> {
        for token in added.as_array().into_iter().flatten() {
            let content = token["content"].as_str();
            let content = content.ok_or_else(|| bad("an added token has no content"))?;
            let id = token["id"].as_u64();
            let id = id.ok_or_else(|| bad(format!("the added token '{content}' has no id")))?;
            if token["single_word"] == true {
                return Err(unsupported(format!("single_word of the added token '{content}'")));
            }
            // Found in normalized text, where spaces read differently.
            let respelt = prepends || content.contains([' ', '\u{2581}']);
            if token["normalized"] == true
                && matches!(self.kind, VocabKind::BpeChars { .. })
                && respelt
            {
                return Err(unsupported(format!("normalized of the added token '{content}'")));
            }
            let special = token["special"] == true;
            let kind = if special { TokenType::Control } else { TokenType::UserDefined };
            self.put(id as usize, content, kind)?;
            if token["lstrip"] == true {
                self.lstrip_ids.push(id as u32);
            }
            if token["rstrip"] == true {
                self.rstrip_ids.push(id as u32);
            }
        }
        Ok(())
    }

    /// Which tokens the post-processor puts around a single text.
    fn read_post_processor(
        &mut self,
        processor: &Value,
        config: &HfConfig<'_>,
    ) -> Result<(), TokenizerError> {
        let steps = match processor["type"].as_str() {
            Some("Sequence") => processor["processors"].as_array().cloned().unwrap_or_default(),
            Some(_) => vec![processor.clone()],
            None => Vec::new(),
        };
        let mut says = false;
        for step in &steps {
            match step["type"].as_str().unwrap_or_default() {
                "ByteLevel" => {}
                "TemplateProcessing" => {
                    says = true;
                    self.read_template(step)?;
                }
                other => return Err(unsupported(format!("the post-processor {other}"))),
            }
        }
        if !says {
            self.add_bos = config.add_bos == Some(true) && self.ids.bos.is_some();
            self.add_eos = config.add_eos == Some(true) && self.ids.eos.is_some();
        }
        Ok(())
    }

    /// `[bos]? A [eos]?`
    fn read_template(&mut self, step: &Value) -> Result<(), TokenizerError> {
        let single = step["single"].as_array().ok_or_else(|| bad("a template without single"))?;
        let mut before = Vec::new();
        let mut after = Vec::new();
        let mut seen = false;
        for part in single {
            if part.get("Sequence").is_some() {
                seen = true;
            } else if let Some(name) = part["SpecialToken"]["id"].as_str() {
                if seen { &mut after } else { &mut before }.push(name);
            }
        }
        let one = |names: &[&str]| match names {
            [] => Ok(None),
            [name] => Ok(Some(name.to_string())),
            _ => Err(unsupported("several special tokens on one side of a text")),
        };
        if let Some(name) = one(&before)? {
            let id = self.id_of(&name).ok_or_else(|| bad(format!("no token '{name}'")))?;
            self.ids.bos = Some(id);
            self.add_bos = true;
        }
        if let Some(name) = one(&after)? {
            let id = self.id_of(&name).ok_or_else(|| bad(format!("no token '{name}'")))?;
            self.ids.eos = Some(id);
            self.add_eos = true;
        }
        Ok(())
    }
}

fn check_model(model: &Value) -> Result<(), TokenizerError> {
    match model["type"].as_str() {
        Some("BPE") => {}
        None if model.get("merges").is_some() => {}
        Some(other) => return Err(unsupported(format!("the model {other}"))),
        None => return Err(bad("model.type is missing")),
    }
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[affix].as_str().is_some_and(|affix| !affix.is_empty()) {
            return Err(unsupported(format!("model.{affix}")));
        }
    }
    if model["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("model.dropout"));
    }
    Ok(())
}

fn merges(model: &Value) -> Result<Vec<(String, String)>, TokenizerError> {
    let list = model["merges"].as_array();
    let list = list.ok_or(TokenizerError::MissingMetadata { key: "model.merges" })?;
    let read = |(index, merge): (usize, &Value)| {
        let pair = match merge {
            Value::String(line) => line.split_once(' '),
            Value::Array(pair) => match &pair[..] {
                [Value::String(left), Value::String(right)] => Some((&left[..], &right[..])),
                _ => None,
            },
            _ => None,
        };
        let pair = pair.filter(|(left, right)| !left.is_empty() && !right.is_empty());
        match pair {
            Some((left, right)) => Ok((left.to_string(), right.to_string())),
            None => Err(TokenizerError::BadMerge { index, merge: merge.to_string() }),
        }
    };
    list.iter().enumerate().map(read).collect()
}

/// What normalizer, pre-tokenizer and decoder together amount to.
struct Pipeline {
    kind: VocabKind,
    nfc: bool,
    space_prefix: SpacePrefix,
    strip_leading_space: bool,
    /// Whether a normalizer puts a space in front.
    prepends: bool,
}

/// The steps of a component, `Sequence` opened up.
fn steps<'a>(component: &'a Value, list: &str) -> Vec<&'a Value> {
    match component["type"].as_str() {
        None => Vec::new(),
        Some("Sequence") => {
            component[list].as_array().into_iter().flatten().flat_map(|s| steps(s, list)).collect()
        }
        Some(_) => vec![component],
    }
}

impl Pipeline {
    fn read(root: &Value) -> Result<Pipeline, TokenizerError> {
        let (mut nfc, mut prepends, mut replaces) = (false, false, false);
        for step in steps(&root["normalizer"], "normalizers") {
            match step["type"].as_str().unwrap_or_default() {
                "NFC" if !replaces && !prepends => nfc = true,
                "Prepend" if step["prepend"] == "\u{2581}" && !replaces => prepends = true,
                "Replace" if step["pattern"]["String"] == " " && step["content"] == "\u{2581}" => {
                    replaces = true;
                }
                other => return Err(unsupported(format!("the normalizer {other}"))),
            }
        }
        let pre = steps(&root["pre_tokenizer"], "pretokenizers");
        if pre.iter().any(|step| step["type"] == "ByteLevel") {
            if prepends || replaces {
                return Err(unsupported(
                    "a normalizer of spaces before the ByteLevel pre-tokenizer",
                ));
            }
            let kind = VocabKind::Bpe { pre: byte_level(&pre)? };
            let (space_prefix, strip_leading_space) = (SpacePrefix::Never, false);
            return Ok(Pipeline { kind, nfc, space_prefix, strip_leading_space, prepends });
        }
        let decoder = steps(&root["decoder"], "decoders");
        let strips =
            |step: &&Value| step["type"] == "Strip" && step["content"] == " " && step["start"] == 1;
        let mut pipeline = Pipeline {
            kind: VocabKind::BpeChars { pre: PreTokenizer::Whole },
            nfc,
            space_prefix: if prepends { SpacePrefix::EverySegment } else { SpacePrefix::Never },
            strip_leading_space: decoder.iter().any(strips),
            prepends,
        };
        if prepends && !replaces {
            return Err(unsupported("a normalizer that puts U+2581 in front and keeps spaces"));
        }
        match &pre[..] {
            [] if replaces => {}
            // With every space replaced, this finds nothing to split at.
            [step] if replaces && step["type"] == "Split" && step["pattern"]["String"] == " " => {}
            [step] if !replaces && step["type"] == "Metaspace" => pipeline.metaspace(step)?,
            [] => return Err(unsupported("a pipeline without ByteLevel, Metaspace or Replace")),
            [step, ..] => return Err(unsupported(format!("the pre-tokenizer {}", step["type"]))),
        }
        Ok(pipeline)
    }

    fn metaspace(&mut self, step: &Value) -> Result<(), TokenizerError> {
        if step["replacement"] != "\u{2581}" {
            return Err(unsupported("Metaspace with another replacement"));
        }
        let scheme = match (step["prepend_scheme"].as_str(), step["add_prefix_space"].as_bool()) {
            (Some(scheme), _) => scheme,
            (None, Some(false)) => "never",
            (None, _) => "always",
        };
        self.space_prefix = match scheme {
            "always" => SpacePrefix::EverySegmentWithoutSpace,
            "first" => SpacePrefix::StartWithoutSpace,
            "never" => SpacePrefix::Never,
            other => return Err(unsupported(format!("the prepend scheme {other}"))),
        };
        // The Metaspace decoder takes off what the pre-tokenizer put there.
        self.strip_leading_space |= scheme != "never";
        if step["split"] != false {
            self.kind = VocabKind::BpeChars { pre: PreTokenizer::Words };
        }
        Ok(())
    }
}

/// The pre-tokenizer that a list of steps ending in `ByteLevel` amounts to.
fn byte_level(steps: &[&Value]) -> Result<PreTokenizer, TokenizerError> {
    let Some((last, before)) = steps.split_last() else {
        return Err(unsupported("an empty pre-tokenizer"));
    };
    if last["type"] != "ByteLevel" {
        return Err(unsupported(format!("the pre-tokenizer {} behind ByteLevel", last["type"])));
    }
    if last["add_prefix_space"] == true {
        return Err(unsupported("add_prefix_space of the ByteLevel pre-tokenizer"));
    }
    let mut expressions = Vec::new();
    for step in before {
        match step["type"].as_str().unwrap_or_default() {
            "Digits" if step["individual_digits"] == true => expressions.push(r"\p{N}"),
            "Split" => {
                let expression = step["pattern"]["Regex"].as_str();
                let expression = expression.ok_or_else(|| unsupported("Split without Regex"))?;
                // Where a pattern leaves no gaps, these say the same.
                let isolated = step["behavior"] == "Isolated" && step["invert"] != true;
                let inverted = step["behavior"] == "Removed" && step["invert"] == true;
                if !(isolated || inverted && before.len() == 1) {
                    return Err(unsupported(format!("Split with behavior {}", step["behavior"])));
                }
                expressions.push(expression);
            }
            other => return Err(unsupported(format!("the pre-tokenizer {other}"))),
        }
    }
    if last["use_regex"] != false {
        expressions.push(GPT2);
    }
    PATTERNS
        .iter()
        .find(|(_, known)| *known == expressions)
        .map(|&(pre, _)| pre)
        .ok_or_else(|| unsupported(format!("the pattern {}", expressions.join(" then "))))
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Published patterns, as files spell them.
const PATTERNS: &[(PreTokenizer, &[&str])] = &[
    (PreTokenizer::Whole, &[]),
    (PreTokenizer::Gpt2, &[GPT2]),
    (PreTokenizer::DigitsGpt2, &[r"\p{N}", GPT2]),
    (
        PreTokenizer::Llama3,
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::Llama3,
        &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::Qwen2,
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::Qwen35,
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::Tekken,
        &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::Gpt4o,
        &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        PreTokenizer::DeepSeekV3,
        &[
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        ],
    ),
    (
        PreTokenizer::DeepSeekCoder,
        &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"],
    ),
];
