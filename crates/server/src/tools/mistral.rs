//! `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and the newer
//! `[TOOL_CALLS]name[ARGS]{...}` once for each call.

use super::{Part, ToolCall, certain, push_text};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";

/// See [`super::ToolFormat::Mistral`].
#[derive(Debug, Default)]
pub struct Parser {
    held: String,
    in_calls: bool,
}

impl Parser {
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.held.push_str(text);
        if self.in_calls {
            return;
        }
        match self.held.find(OPEN) {
            Some(at) => {
                let solid = self.held[..at].trim_end().len();
                push_text(parts, &self.held[..solid]);
                self.held.drain(..solid);
                self.in_calls = true;
            }
            None => {
                let end = self.held[..certain(&self.held, OPEN)].trim_end().len();
                push_text(parts, &self.held[..end]);
                self.held.drain(..end);
            }
        }
    }

    pub fn finish(&mut self, parts: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        match calls(&held) {
            Some(calls) if self.in_calls => parts.extend(calls.into_iter().map(Part::Call)),
            _ => push_text(parts, &held),
        }
    }
}

/// All of the text, from the first mark on, as calls.
fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let after = text.trim_start().strip_prefix(OPEN)?.trim();
    if after.starts_with('[') {
        return ToolCall::list_from_json(after);
    }
    let mut calls = Vec::new();
    let mut rest = after;
    loop {
        let (name, arguments) = rest.split_once(ARGS)?;
        let mut values = serde_json::Deserializer::from_str(arguments)
            .into_iter::<&serde_json::value::RawValue>();
        let value = values.next()?.ok()?;
        calls.push(ToolCall::new(name.trim(), value.get())?);
        rest = arguments[values.byte_offset()..].trim_start();
        if rest.is_empty() {
            return Some(calls);
        }
        rest = rest.strip_prefix(OPEN)?;
    }
}
