//! Ids to text, piece by piece, never splitting a character.

use crate::{Tokenizer, TokenizerError};

/// How a [`Detokenizer`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Leave out control tokens, which carry no text.
    pub skip_special: bool,
    /// Whether what comes is the start of a text. Some vocabularies put a space there when
    /// encoding, which is then taken off again; a continuation keeps its space.
    pub at_start: bool,
}

/// Turns a stream of token ids into text. Bytes that may still become a character are held back
/// (three at most); bytes that cannot are written as U+FFFD.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    at_start: bool,
    held: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the start of its stream.
    pub fn new(tokenizer: &Tokenizer, options: DetokenizeOptions) -> Detokenizer {
        Detokenizer {
            tokenizer: tokenizer.clone(),
            skip_special: options.skip_special,
            at_start: options.at_start,
            held: Vec::new(),
        }
    }

    /// Takes the next token and appends the text that is complete to `out`.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] for an id that is no token; nothing changes then.
    pub fn push(&mut self, id: u32, out: &mut String) -> Result<(), TokenizerError> {
        let view = self.tokenizer.view();
        let bytes = self.tokenizer.text_of(&view, id, self.skip_special)?;
        let bytes = self.tokenizer.without_leading_space(bytes, &mut self.at_start);
        self.held.extend_from_slice(bytes);
        let mut rest = &self.held[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, broken) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    rest = broken;
                    let Some(len) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[len..];
                }
            }
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
        Ok(())
    }

    /// Number of bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Ends the stream: bytes still held back are written as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}
