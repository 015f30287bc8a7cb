//! From prompts and conversations to tokens.

use anyhow::Context as _;
use dunlin_tokenizer::{ChatInput, ChatTemplate, EncodeOptions, LocalTime, Tokenizer};
use serde_json::{Value, json};

use crate::outcome::unusable;

/// One message of a conversation, as templates take it.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// A prompt as a conversation: the system message, where there is one, and the user's.
pub fn conversation(system: Option<&str>, prompt: &str) -> Vec<Value> {
    let system = system.map(|text| message("system", text));
    system.into_iter().chain([message("user", prompt)]).collect()
}

/// A text's tokens, with control tokens recognized by their names and nothing added.
///
/// # Errors
/// Texts that are too long for the tokenizer.
pub fn encode(tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Vec<u32>> {
    let options = EncodeOptions { add_special: false, parse_special: true };
    tokenizer.encode(text, options).context("cannot tokenize the text")
}

/// The tokens of a prompt that is continued as it is: BOS in front, where the model adds one and
/// the prompt does not.
///
/// # Errors
/// As [`encode`].
pub fn encode_prompt(tokenizer: &Tokenizer, prompt: &str) -> anyhow::Result<Vec<u32>> {
    let mut tokens = encode(tokenizer, prompt)?;
    if let Some(bos) = tokenizer.special_ids().bos
        && tokenizer.adds_bos()
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
    Ok(tokens)
}

/// The tokens of a conversation up to the start of the assistant's answer. The template decides
/// what stands in front, BOS included.
///
/// # Errors
/// Conversations that the template refuses or fails on.
pub fn encode_chat(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Value],
) -> anyhow::Result<Vec<u32>> {
    let ids = tokenizer.special_ids();
    let spelt = |id: Option<u32>| {
        let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let now = jiff::Zoned::now();
    let input = ChatInput {
        messages,
        add_generation_prompt: true,
        bos_token: &spelt(ids.bos),
        eos_token: &spelt(ids.eos),
        now: Some(LocalTime {
            unix_seconds: now.timestamp().as_second(),
            offset_seconds: now.offset().seconds(),
        }),
        ..ChatInput::default()
    };
    let text = template.render(&input).map_err(unusable)?;
    encode(tokenizer, &text)
}
