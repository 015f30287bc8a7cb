//! The flat image: a header and 64-byte-aligned arrays, all little-endian.
//!
//! Reading is safe on any bytes. [`Layout::parse`] checks the header and that every array lies
//! inside the image with the length the header's counts imply, in constant time. What the arrays
//! hold is believed only as far as each access is checked: [`View`]'s methods return `None` or an
//! empty slice for anything out of range and bound every probe, so that an image made to deceive
//! gives wrong tokens at worst.

use std::ops::Range;

use crate::TokenizerError;
use crate::hash;
use crate::source::TokenType;

pub(crate) const MAGIC: [u8; 8] = *b"dunlinTK";
/// Changes whenever the meaning of any byte of the image does.
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 512;
pub(crate) const ALIGN: usize = 64;
/// "No token", "no node".
pub(crate) const NONE: u32 = u32::MAX;
/// A probe run longer than this makes the builder try another seed.
pub(crate) const MAX_PROBE: usize = 128;

pub(crate) const TYPE_LSTRIP: u8 = 1 << 4;
pub(crate) const TYPE_RSTRIP: u8 = 1 << 5;

pub(crate) const FLAG_ADD_BOS: u32 = 1;
pub(crate) const FLAG_ADD_EOS: u32 = 2;
pub(crate) const FLAG_IGNORE_MERGES: u32 = 4;
pub(crate) const FLAG_STRIP_LEADING_SPACE: u32 = 8;
pub(crate) const FLAG_NFC: u32 = 16;

/// The arrays of an image, in file order.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Section {
    /// u32 `[n_symbols + 1]`: where each symbol's bytes start.
    Offsets,
    /// u8: the bytes of all symbols, as they appear in text.
    Bytes,
    /// u8 `[n_symbols]`: token type in the low three bits, strip flags above.
    Types,
    /// f32 `[n_tokens]`, or empty.
    Scores,
    /// u32 `[hash_cap]`: ids by hash of their bytes, [`NONE`] where free.
    Hash,
    /// (u32 left, u32 right, u32 rank, u32 result) `[pair_cap]`, left [`NONE`] where free.
    Pairs,
    /// u32 `[256]`: the symbol of each byte.
    ByteIds,
    /// u32 `[256]`: trie node of special tokens by first byte.
    TrieRoot,
    /// (u32 first edge, u32 edges, u32 id) per node.
    TrieNodes,
    /// (u32 byte, u32 node) per edge, ascending by byte within a node.
    TrieEdges,
    /// u32: tokens that end a generation, ascending.
    EndIds,
    /// bits `[65536]`: which pairs of adjacent bytes occur inside a mergeable token; or empty.
    Adjacent,
}

pub(crate) const N_SECTIONS: usize = 12;

/// The header, decoded.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub kind: u32,
    pub pre: u32,
    pub flags: u32,
    pub n_tokens: u32,
    pub n_symbols: u32,
    pub hash_cap: u32,
    pub pair_cap: u32,
    pub max_piece_len: u32,
    pub seed: u64,
    pub space_prefix: u32,
    /// bos, eos, eot, eom, unk, pad; [`NONE`] where absent.
    pub ids: [u32; 6],
    pub sections: [Range<usize>; N_SECTIONS],
}

fn bad(problem: &'static str) -> TokenizerError {
    TokenizerError::BadImage { problem }
}

#[inline]
pub(crate) fn u32_at(data: &[u8], index: usize) -> Option<u32> {
    let start = index.checked_mul(4)?;
    let word = data.get(start..start.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

fn u64_at(data: &[u8], byte: usize) -> Option<u64> {
    Some(u64::from_le_bytes(data.get(byte..byte + 8)?.try_into().ok()?))
}

impl Layout {
    /// Writes the header for an image of `total` bytes.
    pub fn write_header(&self, total: usize) -> [u8; HEADER_LEN] {
        let mut out = [0u8; HEADER_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(HEADER_LEN as u32).to_le_bytes());
        put(&(total as u64).to_le_bytes());
        put(&self.seed.to_le_bytes());
        for field in [
            self.kind,
            self.pre,
            self.flags,
            self.n_tokens,
            self.n_symbols,
            self.hash_cap,
            self.pair_cap,
            self.max_piece_len,
            self.space_prefix,
        ] {
            put(&field.to_le_bytes());
        }
        for id in self.ids {
            put(&id.to_le_bytes());
        }
        put(&[0; 4]);
        for section in &self.sections {
            put(&(section.start as u64).to_le_bytes());
            put(&(section.len() as u64).to_le_bytes());
        }
        let sum = hash::bytes(u64::from(VERSION), &out[..HEADER_LEN - 8]);
        out[HEADER_LEN - 8..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads and checks the header of `image`.
    pub fn parse(image: &[u8]) -> Result<Layout, TokenizerError> {
        let header = image.get(..HEADER_LEN).ok_or(bad("shorter than its header"))?;
        if header[..8] != MAGIC {
            return Err(bad("wrong magic number"));
        }
        let word = |index: usize| u32_at(header, index).unwrap_or(0);
        if word(2) != VERSION || word(3) as usize != HEADER_LEN {
            return Err(bad("written by another version"));
        }
        let sum = hash::bytes(u64::from(VERSION), &header[..HEADER_LEN - 8]);
        if u64_at(header, HEADER_LEN - 8) != Some(sum) {
            return Err(bad("header checksum differs"));
        }
        if u64_at(header, 16) != Some(image.len() as u64) {
            return Err(bad("length differs from the header's"));
        }
        let mut sections: [Range<usize>; N_SECTIONS] = std::array::from_fn(|_| 0..0);
        for (i, section) in sections.iter_mut().enumerate() {
            let at = 96 + 16 * i;
            let start = u64_at(header, at).and_then(|v| usize::try_from(v).ok());
            let len = u64_at(header, at + 8).and_then(|v| usize::try_from(v).ok());
            let (Some(start), Some(len)) = (start, len) else {
                return Err(bad("an array is out of range"));
            };
            let end = start.checked_add(len).filter(|&end| end <= image.len());
            *section = start..end.ok_or(bad("an array is out of range"))?;
        }
        let layout = Layout {
            kind: word(8),
            pre: word(9),
            flags: word(10),
            n_tokens: word(11),
            n_symbols: word(12),
            hash_cap: word(13),
            pair_cap: word(14),
            max_piece_len: word(15),
            seed: u64_at(header, 24).unwrap_or(0),
            space_prefix: word(16),
            ids: std::array::from_fn(|i| word(17 + i)),
            sections,
        };
        layout.check()?;
        Ok(layout)
    }

    /// Checks that counts and array lengths agree.
    fn check(&self) -> Result<(), TokenizerError> {
        let len = |section: Section| self.sections[section as usize].len() as u64;
        if self.n_tokens == 0 || self.n_symbols < self.n_tokens || self.n_symbols == NONE {
            return Err(bad("impossible token counts"));
        }
        let symbols = u64::from(self.n_symbols);
        let expected = [
            (Section::Offsets, 4 * (symbols + 1)),
            (Section::Types, symbols),
            (Section::Hash, 4 * u64::from(self.hash_cap)),
            (Section::Pairs, 16 * u64::from(self.pair_cap)),
            (Section::ByteIds, 1024),
            (Section::TrieRoot, 1024),
        ];
        if expected.iter().any(|&(section, want)| len(section) != want) {
            return Err(bad("an array's length does not fit the token count"));
        }
        let scores = len(Section::Scores);
        if scores != 0 && scores != 4 * u64::from(self.n_tokens) {
            return Err(bad("the scores' length does not fit the token count"));
        }
        if !matches!(len(Section::Adjacent), 0 | 8192) {
            return Err(bad("the adjacency table has a wrong length"));
        }
        let caps = [self.hash_cap, self.pair_cap];
        if caps.iter().any(|&cap| cap != 0 && !cap.is_power_of_two()) {
            return Err(bad("a table's size is no power of two"));
        }
        if self.ids.iter().any(|&id| id != NONE && id >= self.n_tokens) {
            return Err(bad("a special token is out of range"));
        }
        Ok(())
    }

    /// The arrays of `image`, which must be the bytes this layout was parsed from (of another
    /// image, arrays that do not fit read as empty).
    pub fn view<'a>(&'a self, image: &'a [u8]) -> View<'a> {
        let part = |section: Section| {
            image.get(self.sections[section as usize].clone()).unwrap_or_default()
        };
        View {
            layout: self,
            offsets: part(Section::Offsets),
            bytes: part(Section::Bytes),
            types: part(Section::Types),
            scores: part(Section::Scores),
            hash: part(Section::Hash),
            pairs: part(Section::Pairs),
            byte_ids: part(Section::ByteIds),
            trie_root: part(Section::TrieRoot),
            trie_nodes: part(Section::TrieNodes),
            trie_edges: part(Section::TrieEdges),
            end_ids: part(Section::EndIds),
            adjacent: part(Section::Adjacent),
        }
    }
}

/// Checked access to the arrays of an image.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub layout: &'a Layout,
    offsets: &'a [u8],
    bytes: &'a [u8],
    types: &'a [u8],
    scores: &'a [u8],
    hash: &'a [u8],
    pairs: &'a [u8],
    byte_ids: &'a [u8],
    pub trie_root: &'a [u8],
    pub trie_nodes: &'a [u8],
    pub trie_edges: &'a [u8],
    pub end_ids: &'a [u8],
    adjacent: &'a [u8],
}

impl<'a> View<'a> {
    /// The bytes of a symbol as they appear in text; empty for an id out of range.
    #[inline]
    pub fn symbol(&self, id: u32) -> &'a [u8] {
        let at = id as usize;
        match (u32_at(self.offsets, at), u32_at(self.offsets, at + 1)) {
            (Some(start), Some(end)) => {
                self.bytes.get(start as usize..end as usize).unwrap_or_default()
            }
            _ => &[],
        }
    }

    /// Type and strip flags of a symbol.
    #[inline]
    pub fn type_bits(&self, id: u32) -> u8 {
        self.types.get(id as usize).copied().unwrap_or(TokenType::Normal as u8)
    }

    /// Score of a token; 0 when there is none.
    #[inline]
    pub fn score(&self, id: u32) -> f32 {
        f32::from_bits(u32_at(self.scores, id as usize).unwrap_or(0))
    }

    /// The mergeable token that is spelt `text`.
    #[inline]
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.layout.max_piece_len as usize || self.hash.is_empty() {
            return None;
        }
        let mask = self.layout.hash_cap as usize - 1;
        let mut slot = hash::bytes(self.layout.seed, text) as usize & mask;
        for _ in 0..=MAX_PROBE {
            let id = u32_at(self.hash, slot)?;
            if id == NONE {
                return None;
            }
            if self.symbol(id) == text {
                return (id < self.layout.n_tokens).then_some(id);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// The merge of two symbols: (rank, resulting symbol).
    #[inline]
    pub fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        if self.pairs.is_empty() {
            return None;
        }
        let mask = self.layout.pair_cap as usize - 1;
        let mut slot = hash::pair(self.layout.seed, left, right) as usize & mask;
        for _ in 0..=MAX_PROBE {
            let entry = self.pairs.get(slot * 16..slot * 16 + 16)?;
            let found = u32_at(entry, 0)?;
            if found == NONE {
                return None;
            }
            if found == left && u32_at(entry, 1)? == right {
                let result = u32_at(entry, 3)?;
                return (result < self.layout.n_symbols).then_some((u32_at(entry, 2)?, result));
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// The symbol of a byte.
    #[inline]
    pub fn byte_id(&self, byte: u8) -> Option<u32> {
        u32_at(self.byte_ids, usize::from(byte)).filter(|&id| id < self.layout.n_symbols)
    }

    /// Whether `left` directly before `right` occurs inside a mergeable token.
    #[inline]
    pub fn adjacent(&self, left: u8, right: u8) -> bool {
        let bit = usize::from(left) << 8 | usize::from(right);
        self.adjacent.get(bit >> 3).is_none_or(|byte| byte >> (bit & 7) & 1 == 1)
    }
}
