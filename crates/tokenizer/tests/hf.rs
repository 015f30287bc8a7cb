//! `tokenizer.json` files beside the `tokenizers` crate, on vocabularies learnt from random text
//! and, where the models are at hand, on real ones.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Meta, PARSED, Rng, open, seed};
use dunlin_tokenizer::{
    DetokenizeOptions, Detokenizer, EncodeOptions, GgufMeta, HfConfig, HfVocab, Tokenizer,
    TokenizerError, build_image,
};
use serde_json::{Value, json};
use tokenizers::Tokenizer as Reference;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn ours(json: &Value, config: &HfConfig<'_>) -> Result<Tokenizer, TokenizerError> {
    let vocab = HfVocab::parse(json.to_string().as_bytes(), config)?;
    Ok(open(&build_image(&vocab.source())?))
}

fn reference(json: &Value) -> Reference {
    Reference::from_bytes(json.to_string()).unwrap()
}

/// Learns merges from words spelt as lists of symbols: the most frequent pair first.
fn learn(words: &mut [Vec<String>], n: usize) -> Vec<(String, String)> {
    let mut merges = Vec::new();
    for _ in 0..n {
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for word in words.iter() {
            for pair in word.windows(2) {
                *counts.entry((pair[0].clone(), pair[1].clone())).or_default() += 1;
            }
        }
        let Some((pair, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { break };
        for word in words.iter_mut() {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == pair.0 && word[at + 1] == pair.1 {
                    let right = word.remove(at + 1);
                    word[at].push_str(&right);
                }
                at += 1;
            }
        }
        merges.push(pair);
    }
    merges
}

/// The characters in which byte-level BPE spells bytes, found from the reference itself.
fn byte_chars() -> Vec<char> {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}

fn added(id: usize, content: &str, special: bool, lstrip: bool, rstrip: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip,
           "rstrip": rstrip, "normalized": false, "special": special})
}

/// Adds special tokens behind a vocabulary.
fn specials(n: usize) -> Value {
    json!([
        added(n, "<s>", true, false, false),
        added(n + 1, "</s>", true, false, false),
        added(n + 2, "<tool>", false, false, false),
        added(n + 3, "<tool>x", false, false, false),
        added(n + 4, "<left>", true, true, false),
        added(n + 5, "<right>", true, false, true),
    ])
}

fn byte_level_json(rng: &mut Rng, normalizer: Value, pre: Value, ignore_merges: bool) -> Value {
    let chars = byte_chars();
    let mut words: Vec<Vec<String>> = (0..300)
        .map(|_| rng.text(8).bytes().map(|b| chars[usize::from(b)].to_string()).collect())
        .collect();
    let merges = learn(&mut words, 250);
    let mut tokens: Vec<String> = chars.iter().map(|c| c.to_string()).collect();
    let mut seen: BTreeSet<String> = tokens.iter().cloned().collect();
    for (left, right) in &merges {
        let joined = format!("{left}{right}");
        if seen.insert(joined.clone()) {
            tokens.push(joined);
        }
    }
    if ignore_merges {
        // Tokens that no merge reaches.
        for _ in 0..50 {
            let token: String = rng.text(4).bytes().map(|b| chars[usize::from(b)]).collect();
            if !token.is_empty() && seen.insert(token.clone()) {
                tokens.push(token);
            }
        }
    }
    let vocab: BTreeMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let merges: Vec<Value> = merges.iter().map(|(l, r)| json!([l, r])).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": specials(tokens.len()),
        "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
                  "vocab": vocab, "merges": merges}
    })
}

fn split(regex: &str) -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]})
}

/// A random text with special tokens strewn in.
fn text(rng: &mut Rng) -> String {
    let mut text = rng.text(12);
    for _ in 0..rng.below(4) {
        text.push_str(
            rng.pick::<&str>(&[
                "<s>", "</s>", "<tool>", "<tool>x", "<left>", "<right>", "<to", " ",
            ]),
        );
        text.push_str(&rng.text(12));
    }
    text
}

/// Compares ids, the decoded text and the incremental text.
fn compare(what: &str, json: &Value, rng: &mut Rng, rounds: usize) {
    let expected = reference(json);
    let tokenizer = ours(json, &HfConfig::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    for _ in 0..rounds {
        let text = text(rng);
        let encoding = expected.encode(text.as_str(), false).unwrap();
        let ids = tokenizer.encode(&text, PARSED).unwrap();
        assert_eq!(ids, encoding.get_ids(), "{what}: {text:?}");
        for skip_special in [false, true] {
            let plain = String::from_utf8_lossy(&tokenizer.decode(&ids, skip_special).unwrap())
                .into_owned();
            let options = DetokenizeOptions { skip_special, at_start: true };
            let mut detokenizer = Detokenizer::new(&tokenizer, options);
            let mut streamed = String::new();
            for &id in &ids {
                detokenizer.push(id, &mut streamed).unwrap();
            }
            detokenizer.finish(&mut streamed);
            assert_eq!(streamed, plain, "{what}: {text:?}");
            // With special tokens shown, the reference joins pieces in ways of its own.
            if skip_special {
                assert_eq!(plain, expected.decode(&ids, true).unwrap(), "{what}: {text:?}");
            }
        }
    }
}

#[test]
fn byte_level_vocabularies() {
    let mut rng = Rng(seed());
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let plain = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let whole = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let removed = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Removed", "invert": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    let nfc = json!({"type": "NFC"});
    for (what, normalizer, pre, ignore_merges) in [
        ("gpt2", Value::Null, plain, false),
        ("gpt2 as a split", Value::Null, split(GPT2), false),
        ("digits", Value::Null, digits, false),
        ("llama3", Value::Null, split(LLAMA3), true),
        ("removed", Value::Null, removed, false),
        ("qwen2", nfc, split(QWEN2), false),
        ("whole", Value::Null, whole, false),
    ] {
        let json = byte_level_json(&mut rng, normalizer, pre, ignore_merges);
        compare(what, &json, &mut rng, 300);
    }
}

fn char_json(
    rng: &mut Rng,
    normalizer: Value,
    pre: Value,
    decoder: Value,
    byte_fallback: bool,
) -> Value {
    let mut words: Vec<Vec<String>> = (0..300)
        .map(|_| rng.text(8).replace(' ', "\u{2581}").chars().map(|c| c.to_string()).collect())
        .collect();
    let mut tokens = vec!["<unk>".to_string()];
    if byte_fallback {
        tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    }
    let mut seen: BTreeSet<String> = tokens.iter().cloned().collect();
    // Most characters that occur, but not all.
    for symbol in words.iter().flatten() {
        if (symbol == "\u{2581}" || rng.below(4) > 0) && seen.insert(symbol.clone()) {
            tokens.push(symbol.clone());
        }
    }
    for word in &mut words {
        word.retain(|symbol| seen.contains(symbol));
    }
    let merges = learn(&mut words, 200);
    for (left, right) in &merges {
        let joined = format!("{left}{right}");
        if seen.insert(joined.clone()) {
            tokens.push(joined);
        }
    }
    let vocab: BTreeMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let merges: Vec<Value> = merges.iter().map(|(l, r)| json!(format!("{l} {r}"))).collect();
    let mut added_tokens = specials(tokens.len());
    added_tokens.as_array_mut().unwrap().push(added(0, "<unk>", true, false, false));
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": true, "byte_fallback": byte_fallback,
                  "vocab": vocab, "merges": merges}
    })
}

#[test]
fn character_vocabularies() {
    let mut rng = Rng(seed());
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let prepend = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u{2581}"}, replace.clone()]});
    let back = json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "});
    let decoder = |strip: bool| {
        let mut steps =
            vec![back.clone(), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if strip {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({"type": "Sequence", "decoders": steps})
    };
    let gemma = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    for byte_fallback in [true, false] {
        for (what, normalizer, pre, strip) in [
            ("replace", replace.clone(), Value::Null, false),
            ("replace and split", replace.clone(), gemma.clone(), false),
            ("prepend", prepend.clone(), Value::Null, true),
        ] {
            let json = char_json(&mut rng, normalizer, pre, decoder(strip), byte_fallback);
            compare(what, &json, &mut rng, 300);
        }
        for scheme in ["always", "first", "never"] {
            for split in [true, false] {
                let pre = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split});
                let strip = scheme != "never";
                let json = char_json(&mut rng, Value::Null, pre, decoder(strip), byte_fallback);
                compare(&format!("metaspace {scheme} {split}"), &json, &mut rng, 200);
            }
        }
    }
}

#[test]
fn what_surrounds_a_text() {
    let mut rng = Rng(seed());
    let pre = split(QWEN2);
    let mut json = byte_level_json(&mut rng, Value::Null, pre, false);
    let n = json["model"]["vocab"].as_object().unwrap().len();
    json["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]},
                            "</s>": {"id": "</s>", "ids": [n + 1], "tokens": ["</s>"]}}}]});
    let tokenizer = ours(&json, &HfConfig::default()).unwrap();
    let expected = reference(&json);
    let options = EncodeOptions { add_special: true, parse_special: true };
    for text in ["", "a b", "<s>"] {
        let ids = tokenizer.encode(text, options).unwrap();
        assert_eq!(ids, expected.encode(text, true).unwrap().get_ids());
    }
    assert_eq!(tokenizer.special_ids().bos, Some(n as u32));
    assert_eq!(tokenizer.end_ids(), [n as u32 + 1]);

    json["post_processor"] = Value::Null;
    let config = HfConfig {
        bos_token: Some("<s>"),
        add_bos: Some(true),
        eos_ids: &[3, 4_000_000_000],
        ..Default::default()
    };
    let tokenizer = ours(&json, &config).unwrap();
    assert_eq!(tokenizer.encode("", options).unwrap(), [n as u32]);
    assert_eq!(tokenizer.end_ids(), [3]);
}

#[test]
fn what_is_not_known_is_named() {
    let mut rng = Rng(seed());
    let good = byte_level_json(&mut rng, Value::Null, split(QWEN2), false);
    let cases: &[(&str, Value, &str)] = &[
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/model/merges", Value::Null, "merges"),
        ("/model/merges/0", json!("x"), "merge 0"),
        ("/model/vocab", json!([]), "vocab"),
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/normalizer", json!({"type": "Lowercase"}), "Lowercase"),
        ("/pre_tokenizer", json!({"type": "Whitespace"}), "Whitespace"),
        ("/pre_tokenizer", Value::Null, "without"),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("a+"), "a+"),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("Contiguous"), "Contiguous"),
        ("/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true), "add_prefix_space"),
        ("/added_tokens/0/single_word", json!(true), "single_word"),
        ("/added_tokens/0/id", json!(4_000_000_000u64), "too large"),
        ("/post_processor", json!({"type": "BertProcessing"}), "BertProcessing"),
    ];
    for (path, value, named) in cases {
        let mut json = good.clone();
        *json.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        let error = ours(&json, &HfConfig::default()).unwrap_err().to_string();
        assert!(error.contains(named), "{path}: {error}");
    }
    for bytes in [&b""[..], b"{", b"[]", b"null", b"{\"model\":{}}", b"\xff"] {
        assert!(HfVocab::parse(bytes, &HfConfig::default()).is_err());
    }
}

/// A `tokenizer.json` made from a GGUF file's byte-level vocabulary.
fn json_of(meta: &Meta, pre: Value) -> Value {
    let tokens = meta.strings("tokenizer.ggml.tokens").unwrap();
    let types = meta.ints("tokenizer.ggml.token_type").unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut vocab = serde_json::Map::new();
    let mut added_tokens = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        match types[id] {
            1 => {
                vocab.insert(text(token), json!(id));
            }
            3 | 4 => added_tokens.push(added(id, &text(token), types[id] == 3, false, false)),
            _ => {}
        }
    }
    let merges = meta.strings("tokenizer.ggml.merges").unwrap();
    let merges: Vec<Value> = merges.iter().map(|merge| json!(text(merge))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": null, "pre_tokenizer": pre, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges}
    })
}

#[test]
fn real_vocabularies() {
    let digits = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    for (file, pre) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", digits),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", split(QWEN2)),
    ] {
        let Some(path) = dunlin_testkit::models::find(file, "real_vocabularies") else { continue };
        let meta = Meta::read(&path);
        let json = json_of(&meta, pre);
        let expected = reference(&json);
        let from_json = ours(&json, &HfConfig::default()).unwrap();
        let from_gguf = common::real(file, "real_vocabularies").unwrap();
        let mut rng = Rng(seed());
        for _ in 0..500 {
            let text = rng.text(60);
            let encoding = expected.encode(text.as_str(), false).unwrap();
            assert_eq!(from_json.encode(&text, PARSED).unwrap(), encoding.get_ids(), "{text:?}");
            assert_eq!(from_gguf.encode(&text, PARSED).unwrap(), encoding.get_ids(), "{text:?}");
        }
    }
}

/// Gemma's scores as merges, in the way its `tokenizer.json` was made: for each token, by falling
/// score, every pair of tokens it can be joined from.
fn merges_of_scores(tokens: &[&str], scores: &[f32], types: &[i32]) -> Vec<Value> {
    let ids: BTreeMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut by_score: Vec<usize> = (0..tokens.len()).filter(|&id| types[id] == 1).collect();
    by_score.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut merges = Vec::new();
    for id in by_score {
        let token = tokens[id];
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        let mut pairs: Vec<(usize, usize)> = cuts
            .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?)))
            .filter(|&(left, right)| types[left] == 1 && types[right] == 1)
            .collect();
        pairs.sort_unstable();
        merges.extend(pairs.iter().map(|&(left, right)| json!([tokens[left], tokens[right]])));
    }
    merges
}

#[test]
fn a_real_vocabulary_with_scores() {
    let file = "gemma-3-270m-q4_k_m.gguf";
    let test = "a_real_vocabulary_with_scores";
    let Some(path) = dunlin_testkit::models::find(file, test) else { return };
    let meta = Meta::read(&path);
    let tokens = meta.strings("tokenizer.ggml.tokens").unwrap();
    let tokens: Vec<&str> = tokens.iter().map(|t| std::str::from_utf8(t).unwrap()).collect();
    let types = meta.ints("tokenizer.ggml.token_type").unwrap();
    let scores = meta.floats("tokenizer.ggml.scores").unwrap();
    let merges = merges_of_scores(&tokens, &scores, &types);
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    let added_tokens: Vec<Value> = (0..tokens.len())
        .filter(|&id| types[id] == 3 || types[id] == 4)
        .map(|id| added(id, tokens[id], types[id] == 3, false, false))
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges}
    });
    let expected = reference(&json);
    let from_json = ours(&json, &HfConfig::default()).unwrap();
    let from_gguf = common::real(file, test).unwrap();
    let mut rng = Rng(seed());
    let words = ["the", "House", "naïve", "中文", "данные", "fn", "x1", "don't", "=>", "<b>"];
    for round in 0..400 {
        let text = if round % 2 == 0 {
            rng.text(60).replace('\u{2581}', "_")
        } else {
            (0..30).map(|_| *rng.pick(&words)).collect::<Vec<_>>().join(" ")
        };
        let encoding = expected.encode(text.as_str(), false).unwrap();
        assert_eq!(from_json.encode(&text, PARSED).unwrap(), encoding.get_ids(), "{text:?}");
        assert_eq!(from_gguf.encode(&text, PARSED).unwrap(), encoding.get_ids(), "{text:?}");
    }
}
