//! The tokenizer: encoding and decoding straight from an image.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::TokenizerError;
use crate::builder::{KIND_BPE, KIND_BPE_CHARS, KIND_SPM};
use crate::hash;
use crate::layout::{
    FLAG_ADD_BOS, FLAG_ADD_EOS, FLAG_IGNORE_MERGES, FLAG_NFC, FLAG_STRIP_LEADING_SPACE, Layout,
    NONE, View, u32_at,
};
use crate::merge::{MergeScratch, merge_word};
use crate::pretok::PreTokenizer;
use crate::source::{SpacePrefix, SpecialIds, TokenType};
use crate::special::{self, Accept};
use crate::spm::{SpmScratch, merge_segment};

/// Whatever keeps an image's bytes alive: a vector, a memory map, a part of a larger file.
pub type ImageOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Texts from this size on are refused.
const TEXT_LIMIT: usize = 1 << 31;

/// What [`Tokenizer::encode`] does besides splitting text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put `bos` in front and `eos` behind, where the vocabulary says so.
    pub add_special: bool,
    /// Turn text that is spelt like a control token into that token. Tokens of type
    /// [`TokenType::UserDefined`] are found in any case.
    pub parse_special: bool,
}

/// A vocabulary ready for use. Cheap to clone; the image is shared.
#[derive(Clone)]
pub struct Tokenizer {
    image: ImageOwner,
    layout: Arc<Layout>,
    pre: PreTokenizer,
    space_prefix: SpacePrefix,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("n_tokens", &self.layout.n_tokens)
            .field("kind", &self.layout.kind)
            .field("pre", &self.pre)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Opens an image made by [`crate::build_image`]. Takes constant time; no array is read.
    ///
    /// # Errors
    /// [`TokenizerError::BadImage`] when the header or the arrays' lengths are not in order.
    pub fn from_image(image: ImageOwner) -> Result<Tokenizer, TokenizerError> {
        let layout = Layout::parse((*image).as_ref())?;
        let bad = |problem| TokenizerError::BadImage { problem };
        if layout.kind > KIND_BPE_CHARS {
            return Err(bad("unknown kind of vocabulary"));
        }
        let pre = PreTokenizer::from_code(layout.pre).ok_or(bad("unknown pre-tokenizer"))?;
        let space_prefix =
            SpacePrefix::from_code(layout.space_prefix).ok_or(bad("unknown space rule"))?;
        Ok(Tokenizer { image, layout: Arc::new(layout), pre, space_prefix })
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.layout.view((*self.image).as_ref())
    }

    /// Number of tokens; valid ids are below it.
    pub fn n_tokens(&self) -> u32 {
        self.layout.n_tokens
    }

    /// The tokens with a role.
    pub fn special_ids(&self) -> SpecialIds {
        let id = |at: usize| Some(self.layout.ids[at]).filter(|&id| id != NONE);
        SpecialIds { bos: id(0), eos: id(1), eot: id(2), eom: id(3), unk: id(4), pad: id(5) }
    }

    /// The tokens that end a generation, in ascending order.
    pub fn end_ids(&self) -> Vec<u32> {
        let view = self.view();
        (0..view.end_ids.len() / 4).filter_map(|at| u32_at(view.end_ids, at)).collect()
    }

    /// Whether [`EncodeOptions::add_special`] puts `bos` in front.
    pub fn adds_bos(&self) -> bool {
        self.flag(FLAG_ADD_BOS)
    }

    /// Whether [`EncodeOptions::add_special`] puts `eos` behind.
    pub fn adds_eos(&self) -> bool {
        self.flag(FLAG_ADD_EOS)
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.flag(FLAG_STRIP_LEADING_SPACE)
    }

    fn flag(&self, flag: u32) -> bool {
        self.layout.flags & flag != 0
    }

    /// A token's bytes as they appear in text (for a control token, its name), or `None` when
    /// there is no such token.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        (id < self.layout.n_tokens).then(|| self.view().symbol(id))
    }

    /// A token's type, or `None` when there is no such token.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        (id < self.layout.n_tokens).then(|| TokenType::from_bits(self.view().type_bits(id)))
    }

    /// The token that is `text` as a whole: a special token of that name, or else an ordinary one.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let view = self.view();
        special::find(&view, text, 0, Accept::All)
            .filter(|found| found.start == 0 && found.end == text.len())
            .map(|found| found.id)
            .or_else(|| view.find(text.as_bytes()))
    }

    /// The token of a single byte. A byte without one, in text that no longer token covers, is
    /// left out (byte-level BPE) or makes its character an unknown one (the other kinds).
    pub fn token_of_byte(&self, byte: u8) -> Option<u32> {
        self.view().byte_id(byte).filter(|&id| id < self.layout.n_tokens)
    }

    /// Turns text into token ids.
    ///
    /// # Errors
    /// [`TokenizerError::TooLarge`] for texts of 2 GiB and more.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        if text.len() >= TEXT_LIMIT {
            let (size, limit) = (text.len(), TEXT_LIMIT - 1);
            return Err(TokenizerError::TooLarge { what: "the text", size, limit });
        }
        let view = self.view();
        let plan = self.plan(&view, text, options.parse_special);
        let mut encoder = Encoder {
            view,
            pre: self.pre,
            ignore_merges: self.flag(FLAG_IGNORE_MERGES),
            out: Vec::with_capacity(plan.text.len() / 4 + 2),
            merge: MergeScratch::default(),
            spm: SpmScratch::default(),
            cache: WordCache::new(plan.text.len()),
            unknown_open: false,
        };
        let ids = self.special_ids();
        if options.add_special && self.adds_bos() {
            encoder.out.extend(ids.bos);
        }
        for item in &plan.items {
            match item {
                Item::Token(id) => encoder.out.push(*id),
                Item::Text(range) => encoder.text(&plan.text[range.clone()]),
            }
        }
        if options.add_special && self.adds_eos() {
            encoder.out.extend(ids.eos);
        }
        Ok(encoder.out)
    }

    /// Takes the special tokens out of `text` and normalizes what lies between them.
    fn plan<'t>(&self, view: &View<'_>, text: &'t str, parse_special: bool) -> Plan<'t> {
        let escaped = self.layout.kind != KIND_BPE && text.contains('\u{2581}');
        let accept = if parse_special { Accept::All } else { Accept::UserDefined };
        let mut items = Vec::new();
        if escaped && self.layout.kind == KIND_SPM {
            // Control tokens are found as they are spelt, tokens that stand for text as it reads
            // when U+2581 is a space.
            let mut outer = Vec::new();
            if parse_special {
                partition(view, text, 0..text.len(), Accept::Control, &mut outer);
            } else {
                outer.push(Item::Text(0..text.len()));
            }
            let outer = self.normalize(Cow::Borrowed(text), outer, true, SpacePrefix::Never);
            for item in outer.items {
                match item {
                    Item::Token(_) => items.push(item),
                    Item::Text(range) => {
                        partition(view, &outer.text, range, Accept::UserDefined, &mut items);
                    }
                }
            }
            return self.normalize(outer.text, items, false, self.space_prefix);
        }
        partition(view, text, 0..text.len(), accept, &mut items);
        self.normalize(Cow::Borrowed(text), items, escaped, self.space_prefix)
    }

    /// Puts the stretches of text into the form the vocabulary knows: normal form C if it wants
    /// that, spaces for U+2581 if `escaped`, and a space in front where the rule says so.
    fn normalize<'t>(
        &self,
        text: Cow<'t, str>,
        items: Vec<Item>,
        escaped: bool,
        prefix: SpacePrefix,
    ) -> Plan<'t> {
        let nfc = self.flag(FLAG_NFC) && is_nfc_quick(text.chars()) != IsNormalized::Yes;
        if !nfc && !escaped && prefix == SpacePrefix::Never {
            return Plan { text, items };
        }
        let mut out = String::with_capacity(text.len() + items.len());
        let mut plan = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let Item::Text(range) = item else {
                plan.push(item);
                continue;
            };
            let mut segment = Cow::Borrowed(&text[range]);
            if nfc {
                segment = Cow::Owned(segment.nfc().collect());
            }
            if escaped {
                segment = Cow::Owned(segment.replace('\u{2581}', " "));
            }
            let start = out.len();
            let wanted = match prefix {
                SpacePrefix::Never => false,
                SpacePrefix::EverySegment => true,
                SpacePrefix::EverySegmentWithoutSpace => !segment.starts_with(' '),
                SpacePrefix::StartWithoutSpace => index == 0 && !segment.starts_with(' '),
            };
            if wanted {
                out.push(' ');
            }
            out.push_str(&segment);
            plan.push(Item::Text(start..out.len()));
        }
        Plan { text: Cow::Owned(out), items: plan }
    }

    /// Turns token ids back into bytes, which need not be valid UTF-8 where a model broke a
    /// character. Applies the vocabulary's rule for the space at the start of a text.
    ///
    /// # Errors
    /// [`TokenizerError::IdOutOfRange`] for an id that is no token.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<Vec<u8>, TokenizerError> {
        let view = self.view();
        let mut out = Vec::new();
        let mut at_start = true;
        for &id in ids {
            let bytes = self.text_of(&view, id, skip_special)?;
            out.extend_from_slice(self.without_leading_space(bytes, &mut at_start));
        }
        Ok(out)
    }

    /// What the reader sees of a token.
    pub(crate) fn text_of<'v>(
        &self,
        view: &View<'v>,
        id: u32,
        skip_special: bool,
    ) -> Result<&'v [u8], TokenizerError> {
        let n_tokens = self.layout.n_tokens;
        if id >= n_tokens {
            return Err(TokenizerError::IdOutOfRange { what: "an id to decode", id, n_tokens });
        }
        let hidden = matches!(
            TokenType::from_bits(view.type_bits(id)),
            TokenType::Control | TokenType::Unknown | TokenType::Unused
        );
        Ok(if skip_special && hidden { &[] } else { view.symbol(id) })
    }

    /// Takes the space off the first text, if the vocabulary puts one there when encoding.
    pub(crate) fn without_leading_space<'b>(
        &self,
        bytes: &'b [u8],
        at_start: &mut bool,
    ) -> &'b [u8] {
        if !*at_start || bytes.is_empty() {
            return bytes;
        }
        *at_start = false;
        match bytes {
            [b' ', rest @ ..] if self.strips_leading_space() => rest,
            _ => bytes,
        }
    }
}

/// Text with its special tokens taken out.
struct Plan<'t> {
    text: Cow<'t, str>,
    items: Vec<Item>,
}

enum Item {
    Token(u32),
    Text(Range<usize>),
}

/// Cuts `text[range]` at special tokens.
fn partition(
    view: &View<'_>,
    text: &str,
    range: Range<usize>,
    accept: Accept,
    out: &mut Vec<Item>,
) {
    let piece = &text[range.clone()];
    let mut floor = 0;
    while let Some(found) = special::find(view, piece, floor, accept) {
        let (start, end) = special::extent(view, piece, floor, &found);
        if start > floor {
            out.push(Item::Text(range.start + floor..range.start + start));
        }
        out.push(Item::Token(found.id));
        floor = end;
    }
    if floor < piece.len() {
        out.push(Item::Text(range.start + floor..range.end));
    }
}

/// The state of one [`Tokenizer::encode`].
struct Encoder<'v, 't> {
    view: View<'v>,
    pre: PreTokenizer,
    ignore_merges: bool,
    out: Vec<u32>,
    merge: MergeScratch,
    spm: SpmScratch,
    cache: WordCache<'t>,
    /// Whether the last token stands for text that cannot be spelt; more of it joins that token.
    unknown_open: bool,
}

impl<'t> Encoder<'_, 't> {
    fn text(&mut self, text: &'t str) {
        self.unknown_open = false;
        let pre = self.pre;
        match self.view.layout.kind {
            KIND_BPE => pre.split(text, |range| self.cached(&text[range], Self::word)),
            KIND_SPM => self.segments(text, Self::spm_segment),
            // A whole piece may be a token that no merge makes; then it must stay whole.
            _ => pre.split(text, |range| {
                self.unknown_open = false;
                if self.ignore_merges {
                    self.cached(&text[range], Self::char_word);
                } else {
                    self.segments(&text[range], Self::char_word);
                }
            }),
        }
    }

    /// Encodes `word` with `encode`, or copies what it became earlier in the same text.
    fn cached(&mut self, word: &'t str, encode: fn(&mut Self, &str)) {
        // Behind unknown text a word that starts with more of it becomes something else.
        if self.unknown_open {
            return encode(self, word);
        }
        match self.cache.get(word) {
            Ok(ids) => self.out.extend_from_within(ids),
            Err(slot) => {
                let start = self.out.len();
                encode(self, word);
                if !self.unknown_open {
                    self.cache.put(slot, word, start..self.out.len());
                }
            }
        }
    }

    /// Cuts text where no token can reach across, and encodes the parts one by one.
    fn segments(&mut self, text: &'t str, encode: fn(&mut Self, &str)) {
        let bytes = text.as_bytes();
        let mut start = 0;
        for at in 1..bytes.len() {
            if !self.view.adjacent(bytes[at - 1], bytes[at]) && text.is_char_boundary(at) {
                self.cached(&text[start..at], encode);
                start = at;
            }
        }
        if start < bytes.len() {
            self.cached(&text[start..], encode);
        }
    }

    /// A word of byte-level BPE.
    fn word(&mut self, word: &str) {
        if self.ignore_merges
            && let Some(id) = self.view.find(word.as_bytes())
        {
            self.out.push(id);
            return;
        }
        // A byte without a symbol cannot be spelt in this vocabulary at all, and is left out.
        let symbols = word.bytes().filter_map(|byte| self.view.byte_id(byte));
        self.merge.symbols.clear();
        self.merge.symbols.extend(symbols);
        self.merge_symbols();
    }

    /// A word of BPE over characters.
    fn char_word(&mut self, word: &str) {
        if self.ignore_merges
            && let Some(id) = self.view.find(word.as_bytes())
        {
            self.out.push(id);
            self.unknown_open = false;
            return;
        }
        self.merge.symbols.clear();
        let unk = Some(self.view.layout.ids[4]).filter(|&id| id != NONE);
        let mut fused = self.unknown_open;
        for (start, c) in word.char_indices() {
            let bytes = &word.as_bytes()[start..start + c.len_utf8()];
            let symbols = &mut self.merge.symbols;
            if let Some(id) = self.view.find(bytes) {
                symbols.push(id);
                fused = false;
            } else if bytes.iter().all(|&byte| self.view.byte_id(byte).is_some()) {
                symbols.extend(bytes.iter().filter_map(|&byte| self.view.byte_id(byte)));
                fused = false;
            } else if !fused {
                symbols.extend(unk);
                fused = true;
            }
        }
        self.unknown_open = fused;
        self.merge_symbols();
    }

    /// Merges the symbols at hand and writes them out; pieces that are no tokens go as bytes.
    fn merge_symbols(&mut self) {
        merge_word(&self.view, &mut self.merge);
        let n_tokens = self.view.layout.n_tokens;
        for &symbol in &self.merge.symbols {
            if symbol < n_tokens {
                self.out.push(symbol);
                continue;
            }
            let bytes = self.view.symbol(symbol).iter();
            let ids = bytes.filter_map(|&byte| self.view.byte_id(byte));
            self.out.extend(ids.filter(|&id| id < n_tokens));
        }
    }

    fn spm_segment(&mut self, segment: &str) {
        merge_segment(&self.view, segment, &mut self.spm);
        for piece in &self.spm.pieces {
            if piece.id != NONE {
                self.out.push(piece.id);
                self.unknown_open = false;
                continue;
            }
            let start = piece.start as usize;
            let bytes = &segment.as_bytes()[start..start + piece.len as usize];
            if bytes.iter().all(|&byte| self.view.byte_id(byte).is_some()) {
                self.out.extend(bytes.iter().filter_map(|&byte| self.view.byte_id(byte)));
                self.unknown_open = false;
            } else if !self.unknown_open {
                let unk = self.view.layout.ids[4];
                self.out.extend(Some(unk).filter(|&id| id != NONE));
                self.unknown_open = true;
            }
        }
    }
}

/// What words became earlier in the same text: a direct-mapped table into the output.
struct WordCache<'t> {
    slots: Vec<(&'t str, u32, u32)>,
}

impl<'t> WordCache<'t> {
    const SLOTS: usize = 4096;
    const LONGEST: usize = 64;

    /// For short texts the cache would cost more than it saves.
    fn new(text_len: usize) -> WordCache<'t> {
        let slots = if text_len < 2048 { 0 } else { Self::SLOTS };
        WordCache { slots: vec![("", 0, 0); slots] }
    }

    /// Where in the output the word's tokens are, or the slot to put them in.
    fn get(&self, word: &str) -> Result<Range<usize>, usize> {
        if self.slots.is_empty() || word.len() > Self::LONGEST {
            return Err(usize::MAX);
        }
        let slot = hash::bytes(0, word.as_bytes()) as usize % Self::SLOTS;
        let (known, start, end) = self.slots[slot];
        if known == word { Ok(start as usize..end as usize) } else { Err(slot) }
    }

    fn put(&mut self, slot: usize, word: &'t str, ids: Range<usize>) {
        if let Some(entry) = self.slots.get_mut(slot)
            && ids.end <= u32::MAX as usize
        {
            *entry = (word, ids.start as u32, ids.end as u32);
        }
    }
}
