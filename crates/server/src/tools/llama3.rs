//! `{"name": ..., "parameters": {...}}` as the whole answer, several with semicolons between.

use super::{Part, ToolCall, push_text};

/// See [`super::ToolFormat::Llama3`].
#[derive(Debug)]
pub struct Parser {
    /// The tools there are: other JSON objects are answers.
    names: Vec<String>,
    held: String,
    /// Whether the answer is plain text.
    plain: bool,
}

impl Parser {
    pub fn new(names: Vec<String>) -> Self {
        Self { names, held: String::new(), plain: false }
    }

    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        if self.plain {
            return push_text(parts, text);
        }
        self.held.push_str(text);
        if self.held.trim_start().starts_with(|first| first != '{') {
            self.plain = true;
            push_text(parts, &std::mem::take(&mut self.held));
        }
    }

    pub fn finish(&mut self, parts: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        match self.calls(&held) {
            Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
            None => push_text(parts, &held),
        }
    }

    /// All of the text as calls.
    fn calls(&self, text: &str) -> Option<Vec<ToolCall>> {
        let mut calls = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest)
                .into_iter::<&serde_json::value::RawValue>();
            let value = values.next()?.ok()?;
            let call = ToolCall::from_json(value.get())?;
            if !self.names.contains(&call.name) {
                return None;
            }
            calls.push(call);
            rest =
                rest[values.byte_offset()..].trim_start_matches([';', ',', ' ', '\n', '\r', '\t']);
        }
        (!calls.is_empty()).then_some(calls)
    }
}
