//! Calls of tools in what a model says.
//!
//! Each family of chat templates teaches its models a notation of its own. A [`ToolParser`] takes
//! the text of one choice as it comes, passes on what is certain to be plain text, and gives out
//! each call when it is complete. The arguments of a call are always a JSON object: what looks like
//! a call and is none (unfinished, no JSON, arguments that are no object) comes out as the text that
//! it is, so nothing is lost and nothing malformed is handed on as a call.

mod call;
mod forced;
mod hermes;
mod llama3;
mod mistral;

pub use call::ToolCall;
pub use forced::{Forced, ToolChoice};

/// How a family writes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times: Hermes, Qwen.
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole answer: Llama 3.
    Llama3,
    /// `[TOOL_CALLS]` and a list, or `[TOOL_CALLS]name[ARGS]{...}`: Mistral.
    Mistral,
}

impl ToolFormat {
    /// The format that a chat template teaches; none where it has no place for tools.
    pub fn of_template(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            None
        } else if template.contains("[TOOL_CALLS]") {
            Some(Self::Mistral)
        } else if template.contains("<tool_call>") {
            Some(Self::Hermes)
        } else if template.contains("<|python_tag|>") || template.contains("\"parameters\":") {
            Some(Self::Llama3)
        } else {
            None
        }
    }

    /// Whether the notation has control tokens that must show in the text.
    pub fn needs_special(self) -> bool {
        self == Self::Mistral
    }

    /// A name for a call, in the form that the family's templates accept.
    pub fn call_id(self, random: &str) -> String {
        match self {
            // Mistral's templates refuse ids that are not nine letters or digits.
            Self::Mistral => random[random.len().saturating_sub(9)..].to_string(),
            _ => format!("call_{random}"),
        }
    }
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Plain text.
    Text(String),
    /// A complete call.
    Call(ToolCall),
}

/// Takes the text of one choice apart.
#[derive(Debug)]
pub enum ToolParser {
    /// See [`ToolFormat::Hermes`].
    Hermes(hermes::Parser),
    /// See [`ToolFormat::Llama3`].
    Llama3(llama3::Parser),
    /// See [`ToolFormat::Mistral`].
    Mistral(mistral::Parser),
}

impl ToolParser {
    /// A parser at the start of an answer that may call the tools of these names.
    pub fn new(format: ToolFormat, names: &[String]) -> Self {
        match format {
            ToolFormat::Hermes => Self::Hermes(hermes::Parser::default()),
            ToolFormat::Llama3 => Self::Llama3(llama3::Parser::new(names.to_vec())),
            ToolFormat::Mistral => Self::Mistral(mistral::Parser::default()),
        }
    }

    /// Takes the next text and appends the parts that are certain.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        match self {
            Self::Hermes(parser) => parser.push(text, parts),
            Self::Llama3(parser) => parser.push(text, parts),
            Self::Mistral(parser) => parser.push(text, parts),
        }
    }

    /// Ends the answer and appends what is left of it.
    pub fn finish(&mut self, parts: &mut Vec<Part>) {
        match self {
            Self::Hermes(parser) => parser.finish(parts),
            Self::Llama3(parser) => parser.finish(parts),
            Self::Mistral(parser) => parser.finish(parts),
        }
    }
}

/// Appends text that is not empty.
fn push_text(parts: &mut Vec<Part>, text: &str) {
    match parts.last_mut() {
        _ if text.is_empty() => {}
        Some(Part::Text(last)) => last.push_str(text),
        _ => parts.push(Part::Text(text.to_string())),
    }
}

/// Where `text` ends in what may become `mark`: the length of what is certainly not part of it.
fn certain(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len() + 1) - 1;
    let held = (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&mark.as_bytes()[..n]));
    text.len() - held.unwrap_or(0)
}

#[cfg(test)]
mod tests;
