//! The plain form of a vocabulary that the builder takes: slices and numbers, no file format.

use crate::pretok::PreTokenizer;

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabKind {
    /// Byte-level BPE: tokens are spelt in the printable alphabet of GPT-2, text is first cut by a
    /// pre-tokenizer, then merged by rank.
    Bpe {
        /// How text is cut.
        pre: PreTokenizer,
    },
    /// SentencePiece BPE: U+2581 stands for a space, merged by score, bytes as a fallback.
    Spm,
    /// Merges by rank over characters, U+2581 standing for a space, bytes as a fallback: the form
    /// in which `tokenizer.json` files hold SentencePiece vocabularies. Special tokens are found
    /// as they are spelt, before spaces are escaped.
    BpeChars {
        /// How text is cut.
        pre: PreTokenizer,
    },
}

/// What a token is for. The numbers are those of GGUF's `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenType {
    /// Ordinary text.
    Normal = 1,
    /// Stands for what the vocabulary cannot spell.
    Unknown = 2,
    /// Carries no text: begin, end, turn marks.
    Control = 3,
    /// Text that is matched whole before anything else, and is shown to the reader.
    UserDefined = 4,
    /// Fills a row of the embedding.
    Unused = 5,
    /// One byte.
    Byte = 6,
}

impl TokenType {
    /// From GGUF's number; numbers that GGUF does not define read as [`TokenType::Normal`].
    pub fn from_gguf(value: i32) -> TokenType {
        match value {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }

    pub(crate) fn from_bits(bits: u8) -> TokenType {
        TokenType::from_gguf(i32::from(bits & 7))
    }
}

/// When a SentencePiece-style tokenizer puts a space before text that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum SpacePrefix {
    /// Never.
    #[default]
    Never = 0,
    /// Before the text and before each stretch of text that follows a special token.
    EverySegment = 1,
    /// As [`SpacePrefix::EverySegment`], unless the stretch starts with a space already.
    EverySegmentWithoutSpace = 2,
    /// Only before text that stands at the very start, and only if it does not start with a space.
    StartWithoutSpace = 3,
}

impl SpacePrefix {
    pub(crate) fn from_code(code: u32) -> Option<SpacePrefix> {
        Some(match code {
            0 => SpacePrefix::Never,
            1 => SpacePrefix::EverySegment,
            2 => SpacePrefix::EverySegmentWithoutSpace,
            3 => SpacePrefix::StartWithoutSpace,
            _ => return None,
        })
    }
}

/// The tokens that have a role. All ids must lie inside the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpecialIds {
    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of a turn in a chat.
    pub eot: Option<u32>,
    /// End of a message that expects a tool's answer.
    pub eom: Option<u32>,
    /// What cannot be spelt.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

/// A vocabulary in plain form.
#[derive(Debug, Clone)]
pub struct VocabSource<'a> {
    /// How text becomes tokens.
    pub kind: VocabKind,
    /// The tokens as the file spells them, by id. They need not be valid UTF-8. When two are
    /// spelt the same, the lower id is the one that text becomes.
    pub tokens: Vec<&'a [u8]>,
    /// One type per token; all [`TokenType::Normal`] when absent.
    pub token_types: Option<Vec<TokenType>>,
    /// One score per token; needed by [`VocabKind::Spm`].
    pub scores: Option<Vec<f32>>,
    /// Merge rules in order of rank; needed by the BPE kinds. Rules may build pieces that are no
    /// tokens; such a piece is spelt in bytes if it is left over.
    pub merges: Option<Vec<(&'a [u8], &'a [u8])>>,
    /// Tokens with a role.
    pub ids: SpecialIds,
    /// More tokens that end a generation, besides `eos`, `eot` and `eom`.
    pub end_ids: Vec<u32>,
    /// Whether [`crate::EncodeOptions::add_special`] puts `bos` in front.
    pub add_bos: bool,
    /// Whether [`crate::EncodeOptions::add_special`] puts `eos` at the end.
    pub add_eos: bool,
    /// The rule for a space in front of text (SentencePiece kinds only).
    pub space_prefix: SpacePrefix,
    /// Whether the detokenizer takes one space off the start of a text (SentencePiece kinds only).
    pub strip_leading_space: bool,
    /// BPE: take a whole word that is a token as it is, even if merges would not reach it.
    pub ignore_merges: bool,
    /// Whether text is put into Unicode's normal form C first.
    pub nfc: bool,
    /// Special tokens that also swallow the white space before them.
    pub lstrip_ids: Vec<u32>,
    /// Special tokens that also swallow the white space after them.
    pub rstrip_ids: Vec<u32>,
}

impl<'a> VocabSource<'a> {
    /// A vocabulary with nothing but its tokens; fill in the other fields as needed.
    pub fn new(kind: VocabKind, tokens: Vec<&'a [u8]>) -> VocabSource<'a> {
        VocabSource {
            kind,
            tokens,
            token_types: None,
            scores: None,
            merges: None,
            ids: SpecialIds::default(),
            end_ids: Vec::new(),
            add_bos: false,
            add_eos: false,
            space_prefix: SpacePrefix::Never,
            strip_leading_space: false,
            ignore_merges: false,
            nfc: false,
            lstrip_ids: Vec::new(),
            rstrip_ids: Vec::new(),
        }
    }
}
