//! `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

use super::{Part, ToolCall, certain, push_text};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// See [`super::ToolFormat::Hermes`].
#[derive(Debug, Default)]
pub struct Parser {
    /// Text that is not given out yet.
    held: String,
    /// In a call: bytes of `held` that have been searched for its end.
    searched: Option<usize>,
    /// White space before the call.
    gap: String,
    /// Whether a call came last.
    after_call: bool,
}

impl Parser {
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.held.push_str(text);
        loop {
            let went_on = match self.searched {
                None => self.text(parts),
                Some(from) => self.call(from, parts),
            };
            if !went_on {
                break;
            }
        }
    }

    /// Gives out text up to the next call. True if there is one.
    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let open = self.held.find(OPEN);
        let end = open.unwrap_or_else(|| certain(&self.held, OPEN));
        // White space around calls belongs to the notation, and is held until it is known whether
        // one follows.
        let solid = self.held[..end].trim_end().len();
        if solid > 0 {
            self.push_text(solid, parts);
            self.held.drain(..solid);
        }
        let Some(at) = open else { return false };
        let at = at - solid;
        self.gap = self.held[..at].to_string();
        self.held.drain(..at + OPEN.len());
        self.searched = Some(0);
        true
    }

    /// Gives out the first `length` bytes of what is held.
    fn push_text(&mut self, length: usize, parts: &mut Vec<Part>) {
        let text = &self.held[..length];
        push_text(parts, if self.after_call { text.trim_start() } else { text });
        self.after_call = false;
    }

    /// Looks for the call's end. A closing tag inside of a string of the arguments is none: only
    /// where the JSON is complete does the call end. True if it did.
    fn call(&mut self, from: usize, parts: &mut Vec<Part>) -> bool {
        let mut from = from;
        while let Some(at) = self.held[from..].find(CLOSE) {
            let end = from + at;
            if let Some(call) = ToolCall::from_json(self.held[..end].trim()) {
                parts.push(Part::Call(call));
                self.held.drain(..end + CLOSE.len());
                self.searched = None;
                self.after_call = true;
                return true;
            }
            from = end + CLOSE.len();
        }
        // A tag may have begun at the end.
        self.searched = Some(from.max(certain(&self.held, CLOSE)));
        false
    }

    pub fn finish(&mut self, parts: &mut Vec<Part>) {
        if self.searched.take().is_none() {
            self.push_text(self.held.len(), parts);
        } else if let Some(call) = ToolCall::from_json(self.held.trim()) {
            // Models that end their turn may leave the tag open.
            parts.push(Part::Call(call));
        } else {
            push_text(parts, &format!("{}{OPEN}{}", self.gap, self.held));
        }
        self.held.clear();
    }
}
