//! What can go wrong, in terms the user can act on.

/// An error of the tokenizer crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The vocabulary has no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// The tokenizer family is not one this crate knows.
    #[error("unknown tokenizer model '{name}'; supported: {supported}")]
    UnknownModel {
        /// The name the file gives.
        name: String,
        /// The names that are known, comma separated.
        supported: String,
    },
    /// The pre-tokenizer is not one this crate knows. It is never replaced by another one.
    #[error("unknown pre-tokenizer '{name}'; supported: {supported}")]
    UnknownPreTokenizer {
        /// The name the file gives.
        name: String,
        /// The names that are known, comma separated.
        supported: String,
    },
    /// A piece of metadata that the tokenizer needs is not in the file.
    #[error("the file has no '{key}', which its tokenizer needs")]
    MissingMetadata {
        /// The missing key or array.
        key: &'static str,
    },
    /// A merge rule is not of the form `left right`.
    #[error("merge {index} is not two tokens separated by a space: '{merge}'")]
    BadMerge {
        /// Position of the rule in the list.
        index: usize,
        /// Its text, invalid UTF-8 replaced.
        merge: String,
    },
    /// An array that must have one entry per token has another length.
    #[error("{what} has {found} entries for {expected} tokens")]
    LengthMismatch {
        /// Which array.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// A token id that lies outside the vocabulary.
    #[error("{what} is token {id}, but the vocabulary has {n_tokens} tokens")]
    IdOutOfRange {
        /// What named the id.
        what: &'static str,
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        n_tokens: u32,
    },
    /// An input is larger than the tables can address.
    #[error("{what} is too large: {size}, at most {limit}")]
    TooLarge {
        /// Which input.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The largest size that works.
        limit: usize,
    },
    /// No hash seed spreads the vocabulary well enough; only a vocabulary made to collide does this.
    #[error("the vocabulary collides under every hash seed tried")]
    HashCollisions,
    /// A token image does not have the form this version writes.
    #[error("not a usable token image: {problem}")]
    BadImage {
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A chat template is not valid Jinja.
    #[error("chat template, line {line}: {problem}")]
    TemplateSyntax {
        /// The line, from 1; 0 when unknown.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A chat template refuses the conversation, in its own words.
    #[error("the chat template says: {message}")]
    TemplateRaised {
        /// What it gave to `raise_exception`.
        message: String,
    },
    /// A chat template fails on this conversation.
    #[error("chat template, line {line}: {problem}")]
    TemplateRender {
        /// The line, from 1; 0 when unknown.
        line: usize,
        /// What went wrong.
        problem: String,
    },
    /// A chat template does more work or makes more text than its input can call for.
    #[error("chat template, line {line}: it runs too long or makes too much text")]
    TemplateLimit {
        /// The line reached, from 1; 0 when unknown.
        line: usize,
    },
    /// A `tokenizer.json` is not what it should be.
    #[error("tokenizer.json: {problem}")]
    BadTokenizerJson {
        /// What is wrong.
        problem: String,
    },
    /// A `tokenizer.json` describes a pipeline of which a part is not known here.
    #[error(
        "tokenizer.json uses {what}, which is not supported (byte-level BPE with a known pattern \
         and BPE with U+2581 for spaces are)"
    )]
    UnsupportedTokenizerJson {
        /// The part.
        what: String,
    },
}
