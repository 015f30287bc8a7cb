//! Texts cut into chunks whose second halves are scored, as llama.cpp's perplexity does it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use dunlin_tokenizer::{EncodeOptions, Tokenizer};

use crate::outcome::unusable;

/// Which text, and how much of it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Text")]
pub struct CorpusArgs {
    /// The text, in UTF-8
    #[arg(short, long, value_name = "PATH")]
    pub file: PathBuf,

    /// The most chunks of --context tokens that are scored [default: all whole ones]
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
}

/// A text's chunks of equal length, with BOS as the first token of each where the model adds one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// The chunks' tokens.
    pub chunks: Vec<Vec<u32>>,
    /// Tokens of the whole text.
    pub text_tokens: usize,
}

impl Corpus {
    /// Reads and cuts the text. Chunks are `length` tokens (at least 4).
    ///
    /// # Errors
    /// A file that cannot be read or is no UTF-8, or a text that does not fill one chunk.
    pub fn read(args: &CorpusArgs, tokenizer: &Tokenizer, length: usize) -> anyhow::Result<Self> {
        let text = read_text(&args.file)?;
        let options = EncodeOptions { add_special: true, parse_special: false };
        let tokens = tokenizer.encode(&text, options).context("cannot tokenize the text")?;
        let bos = tokenizer.special_ids().bos.filter(|_| tokenizer.adds_bos());
        Self::cut(&tokens, bos, length, args.chunks)
    }

    /// Cuts tokens into chunks; `bos` replaces the first token of each.
    ///
    /// # Errors
    /// As [`Corpus::read`].
    pub fn cut(
        tokens: &[u32],
        bos: Option<u32>,
        length: usize,
        most: Option<usize>,
    ) -> anyhow::Result<Self> {
        if length < 4 {
            return Err(unusable(format!("a context of {length} tokens has nothing to score")));
        }
        if tokens.len() < length {
            return Err(unusable(format!(
                "the text has {} tokens, which do not fill one chunk of {length}; give more text or \
                 a smaller --context",
                tokens.len()
            )));
        }
        let mut chunks: Vec<Vec<u32>> = tokens
            .chunks_exact(length)
            .take(most.unwrap_or(usize::MAX))
            .map(<[u32]>::to_vec)
            .collect();
        if chunks.is_empty() {
            return Err(unusable("--chunks is 0: nothing to score"));
        }
        for (chunk, bos) in chunks.iter_mut().zip(std::iter::repeat(bos)) {
            if let Some(bos) = bos {
                chunk[0] = bos;
            }
        }
        Ok(Self { chunks, text_tokens: tokens.len() })
    }
}

/// The first position of a chunk whose prediction (of the token after it) is scored: every scored
/// token has at least half a chunk of context.
pub fn first_scored(length: usize) -> usize {
    length / 2
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        unusable(format!("{} is not UTF-8: byte {at} begins no character", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_chunks_count() {
        let tokens: Vec<u32> = (10..31).collect();
        let corpus = Corpus::cut(&tokens, Some(1), 5, None).unwrap();
        assert_eq!(corpus.chunks.len(), 4, "the last token is left over");
        assert_eq!(corpus.chunks[0], [1, 11, 12, 13, 14]);
        assert_eq!(corpus.chunks[3], [1, 26, 27, 28, 29]);
        let corpus = Corpus::cut(&tokens, None, 5, Some(2)).unwrap();
        assert_eq!(corpus.chunks, [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]);
        assert!(Corpus::cut(&tokens, None, 22, None).is_err());
        assert!(Corpus::cut(&tokens, None, 5, Some(0)).is_err());
        assert!(Corpus::cut(&tokens, None, 3, None).is_err());
    }
}
