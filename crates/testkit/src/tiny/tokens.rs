//! A vocabulary that every tiny model has: all bytes, some pairs, some control tokens, as byte-level
//! BPE.

use serde_json::{Value, json};

use super::MetaList;

/// Tokens of the vocabulary: a number that no block or lane count divides.
pub const VOCAB: usize = 299;

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The template of every tiny model.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// GPT-2's character for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + rank).expect("a valid character")
}

/// Pairs of letters that are joined, the most common first.
fn merges() -> Vec<(char, char)> {
    let pairs = "etaoinsh".chars().flat_map(|a| "rnedl".chars().map(move |b| (a, b)));
    pairs.take(VOCAB - 256 - CONTROL.len()).collect()
}

/// All tokens, by id: bytes, joined pairs, control tokens.
fn tokens() -> Vec<String> {
    let bytes = (0..=255).map(|b| byte_char(b).to_string());
    let pairs = merges().into_iter().map(|(a, b)| format!("{a}{b}"));
    let tokens: Vec<String> = bytes.chain(pairs).chain(CONTROL.map(String::from)).collect();
    assert_eq!(tokens.len(), VOCAB);
    tokens
}

/// The tokenizer as GGUF metadata.
pub fn gguf_metadata(list: &mut MetaList) {
    let types: Vec<i32> =
        (0..VOCAB).map(|i| if i < VOCAB - CONTROL.len() { 1 } else { 3 }).collect();
    let merges: Vec<String> = merges().iter().map(|(a, b)| format!("{a} {b}")).collect();
    list.add("tokenizer.ggml.model", "gpt2");
    list.add("tokenizer.ggml.pre", "gpt-2");
    list.add("tokenizer.ggml.tokens", tokens());
    list.add("tokenizer.ggml.token_type", types);
    list.add("tokenizer.ggml.merges", merges);
    list.add("tokenizer.ggml.eos_token_id", (VOCAB - 1) as u32);
    list.add("tokenizer.ggml.add_bos_token", false);
    list.add("tokenizer.chat_template", TEMPLATE);
}

/// `tokenizer.json`.
pub fn tokenizer_json() -> Value {
    let first = VOCAB - CONTROL.len();
    let vocab: serde_json::Map<String, Value> =
        tokens().into_iter().take(first).enumerate().map(|(i, t)| (t, json!(i))).collect();
    let added: Vec<Value> = CONTROL
        .iter()
        .enumerate()
        .map(|(i, content)| {
            json!({"id": first + i, "content": content, "special": true, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let merges: Vec<[String; 2]> =
        merges().iter().map(|(a, b)| [a.to_string(), b.to_string()]).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                            "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "ignore_merges": false, "vocab": vocab, "merges": merges},
    })
}

/// `tokenizer_config.json`.
pub fn tokenizer_config() -> Value {
    json!({"add_bos_token": false, "eos_token": CONTROL[2], "chat_template": TEMPLATE})
}
