//! What a text must be, as the set of tokens that may come next.
//!
//! A [`Grammar`] is a JSON schema, a regular expression or a context-free grammar, compiled for one
//! vocabulary by a [`GrammarCompiler`]; a [`GrammarMatcher`] follows one text through it. The set of
//! tokens that are allowed after some tokens is those whose bytes can go on from there. It depends on
//! the tokens so far and on the grammar alone, so that batching, speculation and the order of
//! requests change nothing about what is allowed.
//!
//! The parsers are llguidance's (an Earley parser over derivatives of regular expressions). Here are
//! what it lacks for strangers' grammars: limits on size, nesting, time and memory, a cache that is
//! bounded, and errors fit to be shown. No token is forced: where one is the only one allowed, it is
//! chosen like any other. [`ForcedText`] guesses what such tokens will be, for drafts.

mod compile;
mod forced;
mod gbnf;
mod matcher;
#[cfg(test)]
mod tests;

pub use compile::{Grammar, GrammarCompiler};
pub use forced::ForcedText;
pub use matcher::GrammarMatcher;

/// What a text must be, as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GrammarSource {
    /// JSON that a schema (the text of one) describes.
    JsonSchema(String),
    /// A text that a regular expression (in the syntax of Rust's `regex`) matches as a whole.
    Regex(String),
    /// A sentence of a context-free grammar: Lark as llguidance extends it, or llama.cpp's GBNF,
    /// whose rules are written with `::=`.
    Grammar(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A control token, and then what the rule `rest` of a grammar in Lark describes. A vocabulary
    /// without such a token has its name spelt out.
    AfterToken {
        /// The token's name.
        token: String,
        /// The grammar, which has no `start`.
        grammar: String,
    },
    /// What any of these describes.
    Either(Vec<GrammarSource>),
}

impl GrammarSource {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(r#"{"type":"object"}"#.into())
    }

    /// Bytes of the source.
    fn len(&self) -> usize {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Grammar(text) => text.len(),
            Self::AfterToken { token, grammar } => token.len() + grammar.len(),
            Self::Either(sources) => sources.iter().map(Self::len).sum(),
            Self::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        }
    }
}

/// A grammar that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is none, or uses what is not supported. The message says where, and may quote the grammar.
    #[error("{0}")]
    Invalid(String),
    /// It is too long to be looked at.
    #[error("it has {bytes} bytes, and at most {limit} are allowed")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// Grammars in use take all the memory that grammars may have.
    #[error("too many large grammars are in use; try again later")]
    Busy,
    /// The vocabulary cannot be searched.
    #[error("this model's vocabulary is too large for grammars")]
    Vocabulary,
    /// It cannot be followed any further.
    #[error(
        "the schema or grammar cannot be followed after {tokens} tokens: it is too complex there, \
         or no token of the model's vocabulary can go on"
    )]
    Stuck {
        /// Tokens so far.
        tokens: usize,
    },
}
