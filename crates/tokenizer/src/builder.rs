//! Builds the flat image from a plain vocabulary. See [`crate::layout`] for the format.

use std::collections::BTreeMap;

use crate::TokenizerError;
use crate::hash;
use crate::layout::{
    ALIGN, FLAG_ADD_BOS, FLAG_ADD_EOS, FLAG_IGNORE_MERGES, FLAG_NFC, FLAG_STRIP_LEADING_SPACE,
    HEADER_LEN, Layout, MAX_PROBE, N_SECTIONS, NONE, Section, TYPE_LSTRIP, TYPE_RSTRIP,
};
use crate::pretok::PreTokenizer;
use crate::source::{TokenType, VocabKind, VocabSource};
use crate::special::TrieBuilder;

pub(crate) const KIND_BPE: u32 = 0;
pub(crate) const KIND_SPM: u32 = 1;
pub(crate) const KIND_BPE_CHARS: u32 = 2;

/// Seeds tried before a vocabulary is called hostile.
const SEEDS: u64 = 16;

/// Builds a token image that [`crate::Tokenizer::from_image`] accepts.
///
/// # Errors
/// When the vocabulary is empty, names a pre-tokenizer this crate does not know, lacks the merges
/// or scores its kind needs, has arrays of the wrong length, or names ids that do not exist.
pub fn build_image(source: &VocabSource<'_>) -> Result<Vec<u8>, TokenizerError> {
    let types = check(source)?;
    let (kind, pre) = match source.kind {
        VocabKind::Bpe { pre } => (KIND_BPE, pre),
        VocabKind::Spm => (KIND_SPM, PreTokenizer::Whole),
        VocabKind::BpeChars { pre } => (KIND_BPE_CHARS, pre),
    };
    let mut build = Build {
        kind,
        types,
        spelt: SpeltMap::new(source)?,
        offsets: vec![0],
        bytes: Vec::new(),
        findable: Vec::new(),
        byte_ids: [NONE; 256],
    };
    build.add_tokens(source)?;
    let merges = build.resolve_merges(source)?;
    build.write(source, pre, &merges)
}

/// Checks lengths and ids; gives every token a type.
fn check(source: &VocabSource<'_>) -> Result<Vec<TokenType>, TokenizerError> {
    let n = source.tokens.len();
    if n == 0 {
        return Err(TokenizerError::EmptyVocabulary);
    }
    // Half of u32 leaves room for the pieces that merges build on the way.
    let limit = (u32::MAX / 4) as usize;
    if n > limit {
        return Err(TokenizerError::TooLarge { what: "the vocabulary", size: n, limit });
    }
    let mismatch = |what, found| TokenizerError::LengthMismatch { what, found, expected: n };
    if let Some(scores) = &source.scores
        && scores.len() != n
    {
        return Err(mismatch("scores", scores.len()));
    }
    if let Some(types) = &source.token_types
        && types.len() != n
    {
        return Err(mismatch("token types", types.len()));
    }
    match source.kind {
        VocabKind::Spm if source.scores.is_none() => {
            return Err(TokenizerError::MissingMetadata { key: "tokenizer.ggml.scores" });
        }
        VocabKind::Bpe { .. } | VocabKind::BpeChars { .. } if source.merges.is_none() => {
            return Err(TokenizerError::MissingMetadata { key: "tokenizer.ggml.merges" });
        }
        _ => {}
    }
    let ids = source.ids;
    let named = [
        ("bos", ids.bos),
        ("eos", ids.eos),
        ("eot", ids.eot),
        ("eom", ids.eom),
        ("unk", ids.unk),
        ("pad", ids.pad),
    ];
    let lists = [
        ("an end token", &source.end_ids),
        ("a stripping token", &source.lstrip_ids),
        ("a stripping token", &source.rstrip_ids),
    ];
    let listed = lists.iter().flat_map(|(what, ids)| ids.iter().map(|&id| (*what, Some(id))));
    for (what, id) in named.into_iter().chain(listed) {
        if let Some(id) = id.filter(|&id| id as usize >= n) {
            return Err(TokenizerError::IdOutOfRange { what, id, n_tokens: n as u32 });
        }
    }
    if source.add_bos && ids.bos.is_none() {
        return Err(TokenizerError::MissingMetadata { key: "tokenizer.ggml.bos_token_id" });
    }
    if source.add_eos && ids.eos.is_none() {
        return Err(TokenizerError::MissingMetadata { key: "tokenizer.ggml.eos_token_id" });
    }
    Ok(source.token_types.clone().unwrap_or_else(|| vec![TokenType::Normal; n]))
}

/// Finds tokens by how the file spells them; ordinary tokens win over others, low ids over high.
struct SpeltMap<'a> {
    slots: Vec<u32>,
    texts: Vec<&'a [u8]>,
}

impl<'a> SpeltMap<'a> {
    fn new(source: &VocabSource<'a>) -> Result<SpeltMap<'a>, TokenizerError> {
        let cap = (source.tokens.len() * 2).next_power_of_two();
        let mut map = SpeltMap { slots: vec![NONE; cap], texts: source.tokens.clone() };
        let ordinary = |id: usize| match &source.token_types {
            Some(types) => matches!(types[id], TokenType::Normal | TokenType::Unused),
            None => true,
        };
        for want in [true, false] {
            for id in 0..map.texts.len() {
                if ordinary(id) == want {
                    map.insert(id as u32)?;
                }
            }
        }
        Ok(map)
    }

    /// The slot that holds `text`, or the free one where it would go.
    fn slot(&self, text: &[u8]) -> Result<usize, TokenizerError> {
        let mask = self.slots.len() - 1;
        let mut slot = hash::bytes(0, text) as usize & mask;
        // A run this long needs thousands of tokens made to collide under this one seed.
        for _ in 0..4096 {
            let id = self.slots[slot];
            if id == NONE || self.texts[id as usize] == text {
                return Ok(slot);
            }
            slot = (slot + 1) & mask;
        }
        Err(TokenizerError::HashCollisions)
    }

    fn insert(&mut self, id: u32) -> Result<(), TokenizerError> {
        let slot = self.slot(self.texts[id as usize])?;
        if self.slots[slot] == NONE {
            self.slots[slot] = id;
        }
        Ok(())
    }

    fn get(&self, text: &[u8]) -> Result<Option<u32>, TokenizerError> {
        let id = self.slots[self.slot(text)?];
        Ok((id != NONE).then_some(id))
    }
}

struct Build<'a> {
    kind: u32,
    types: Vec<TokenType>,
    spelt: SpeltMap<'a>,
    offsets: Vec<u32>,
    bytes: Vec<u8>,
    /// Tokens that text can become, in order of id.
    findable: Vec<u32>,
    byte_ids: [u32; 256],
}

impl Build<'_> {
    /// The bytes of symbol `id` as they appear in text.
    fn symbol(&self, id: u32) -> &[u8] {
        let at = id as usize;
        &self.bytes[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    fn close_symbol(&mut self) -> Result<(), TokenizerError> {
        let limit = u32::MAX as usize - 1;
        if self.bytes.len() > limit {
            let size = self.bytes.len();
            return Err(TokenizerError::TooLarge { what: "the vocabulary's text", size, limit });
        }
        self.offsets.push(self.bytes.len() as u32);
        Ok(())
    }

    /// Writes every token's bytes, and finds the tokens of single bytes.
    fn add_tokens(&mut self, source: &VocabSource<'_>) -> Result<(), TokenizerError> {
        let alphabet = ByteAlphabet::new();
        for (id, &text) in source.tokens.iter().enumerate() {
            let id = id as u32;
            let kind = self.types[id as usize];
            if kind == TokenType::Byte || (self.kind != KIND_BPE && kind == TokenType::Normal) {
                if let Some(byte) = byte_token(text) {
                    self.types[id as usize] = TokenType::Byte;
                    self.bytes.push(byte);
                    self.close_symbol()?;
                    let known = &mut self.byte_ids[usize::from(byte)];
                    if *known == NONE {
                        *known = id;
                    }
                    continue;
                }
                self.types[id as usize] = TokenType::Normal;
            }
            let findable = match (self.kind, self.types[id as usize]) {
                (_, TokenType::Control | TokenType::Unknown) => {
                    self.bytes.extend_from_slice(text);
                    false
                }
                (KIND_BPE, TokenType::UserDefined) => {
                    self.bytes.extend_from_slice(text);
                    false
                }
                // A token outside the alphabet is shown as it is spelt, and no text becomes it.
                (KIND_BPE, _) => alphabet.decode(text, &mut self.bytes),
                _ => {
                    unescape_spaces(text, &mut self.bytes);
                    true
                }
            };
            self.close_symbol()?;
            if findable && !self.symbol(id).is_empty() {
                self.findable.push(id);
            }
        }
        if self.kind == KIND_BPE {
            for byte in 0..=255u8 {
                let spelt = alphabet.chars[usize::from(byte)].to_string();
                let id = self.spelt.get(spelt.as_bytes())?.unwrap_or(NONE);
                self.byte_ids[usize::from(byte)] = id;
            }
        }
        Ok(())
    }

    /// Turns merge rules into (left, right, rank, result) over symbols, adding symbols for pieces
    /// that are no tokens. Of two rules for the same pair the first counts.
    fn resolve_merges(
        &mut self,
        source: &VocabSource<'_>,
    ) -> Result<Vec<[u32; 4]>, TokenizerError> {
        let rules: &[_] = match (&source.kind, &source.merges) {
            (VocabKind::Bpe { .. } | VocabKind::BpeChars { .. }, Some(rules)) => rules,
            _ => &[],
        };
        let limit = (u32::MAX / 4) as usize;
        if rules.len() > limit {
            let size = rules.len();
            return Err(TokenizerError::TooLarge { what: "the merge list", size, limit });
        }
        let mut made: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut out = Vec::with_capacity(rules.len());
        let mut joined = Vec::new();
        for (rank, &(left, right)) in rules.iter().enumerate() {
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let mut ids = [NONE; 3];
            for (id, text) in ids.iter_mut().zip([left, right, &joined[..]]) {
                *id = match self.spelt.get(text)? {
                    Some(id) => id,
                    None => match made.get(text) {
                        Some(&id) => id,
                        None => match self.add_piece(text)? {
                            Some(id) => *made.entry(text.to_vec()).or_insert(id),
                            None => NONE,
                        },
                    },
                };
            }
            // A rule with a part outside the byte alphabet can never apply.
            if !ids.contains(&NONE) {
                out.push([ids[0], ids[1], rank as u32, ids[2]]);
            }
        }
        Ok(out)
    }

    /// Adds a symbol for a piece that is no token; `None` when text can never hold it.
    fn add_piece(&mut self, spelt: &[u8]) -> Result<Option<u32>, TokenizerError> {
        let before = self.bytes.len();
        let reachable = if self.kind == KIND_BPE {
            ByteAlphabet::new().decode(spelt, &mut self.bytes)
        } else {
            unescape_spaces(spelt, &mut self.bytes);
            true
        };
        if !reachable || self.bytes.len() == before {
            self.bytes.truncate(before);
            return Ok(None);
        }
        let id = self.offsets.len() as u32 - 1;
        self.close_symbol()?;
        if self.kind == KIND_BPE
            && let [byte] = *self.symbol(id)
            && self.byte_ids[usize::from(byte)] == NONE
        {
            self.byte_ids[usize::from(byte)] = id;
        }
        self.types.push(TokenType::Unused);
        Ok(Some(id))
    }

    /// The table of tokens by hash, or `None` when a probe run is too long under `seed`.
    fn hash_table(&self, cap: usize, seed: u64) -> Option<Vec<u32>> {
        let mut table = vec![NONE; cap];
        'tokens: for &id in &self.findable {
            let text = self.symbol(id);
            let mut slot = hash::bytes(seed, text) as usize & (cap - 1);
            for _ in 0..MAX_PROBE {
                let found = table[slot];
                if found == NONE {
                    table[slot] = id;
                    continue 'tokens;
                }
                if self.symbol(found) == text {
                    continue 'tokens;
                }
                slot = (slot + 1) & (cap - 1);
            }
            return None;
        }
        Some(table)
    }

    /// Bits for the pairs of bytes that stand side by side inside what merges can make.
    fn adjacency(&self) -> Vec<u8> {
        let mut bits = vec![0u8; 8192];
        let made = self.spelt.texts.len() as u32..self.offsets.len() as u32 - 1;
        for id in self.findable.iter().copied().chain(made) {
            for pair in self.symbol(id).windows(2) {
                let bit = usize::from(pair[0]) << 8 | usize::from(pair[1]);
                bits[bit >> 3] |= 1 << (bit & 7);
            }
        }
        bits
    }

    /// Special tokens as text has them when they are looked for.
    fn special_trie(&self, source: &VocabSource<'_>) -> TrieBuilder {
        let mut specials = Vec::new();
        for (id, &spelt) in source.tokens.iter().enumerate() {
            let id = id as u32;
            let text = if self.kind == KIND_BPE_CHARS { spelt } else { self.symbol(id) };
            let kind = self.types[id as usize];
            if !matches!(kind, TokenType::Normal | TokenType::Unused | TokenType::Byte)
                && !text.is_empty()
            {
                specials.push((text, id));
            }
        }
        TrieBuilder::new(specials)
    }

    /// Type and strip flags of every symbol.
    fn type_bits(&self, source: &VocabSource<'_>) -> Vec<u8> {
        let mut type_bits: Vec<u8> = self.types.iter().map(|&kind| kind as u8).collect();
        for (ids, flag) in [(&source.lstrip_ids, TYPE_LSTRIP), (&source.rstrip_ids, TYPE_RSTRIP)] {
            for &id in ids {
                type_bits[id as usize] |= flag;
            }
        }
        type_bits
    }

    fn end_ids(source: &VocabSource<'_>) -> Vec<u32> {
        let ids = source.ids;
        let mut end: Vec<u32> = [ids.eos, ids.eot, ids.eom].into_iter().flatten().collect();
        end.extend_from_slice(&source.end_ids);
        end.sort_unstable();
        end.dedup();
        end
    }

    fn write(
        self,
        source: &VocabSource<'_>,
        pre: PreTokenizer,
        merges: &[[u32; 4]],
    ) -> Result<Vec<u8>, TokenizerError> {
        let n_tokens = source.tokens.len() as u32;
        let hash_cap = (self.findable.len() * 2).next_power_of_two();
        let pair_cap =
            if merges.is_empty() { 0 } else { (merges.len() * 3 / 2).next_power_of_two() };
        let (seed, hash_table, pairs) = (0..SEEDS)
            .find_map(|seed| {
                let table = self.hash_table(hash_cap, seed)?;
                Some((seed, table, pair_table(merges, pair_cap, seed)?))
            })
            .ok_or(TokenizerError::HashCollisions)?;

        let longest = self
            .findable
            .iter()
            .map(|&id| self.offsets[id as usize + 1] - self.offsets[id as usize]);
        let max_piece_len = longest.max().unwrap_or(0);
        let type_bits = self.type_bits(source);
        let trie = self.special_trie(source);
        let scores: Vec<u8> = match &source.scores {
            // -0.0 becomes 0.0, so that comparing bits and comparing numbers agree.
            Some(scores) => scores.iter().flat_map(|&s| (s + 0.0).to_le_bytes()).collect(),
            None => Vec::new(),
        };
        let adjacent = if self.kind == KIND_BPE { Vec::new() } else { self.adjacency() };
        let arrays: [Vec<u8>; N_SECTIONS] = [
            words(&self.offsets),
            self.bytes,
            type_bits,
            scores,
            words(&hash_table),
            pairs.iter().flat_map(|entry| words(entry)).collect(),
            words(&self.byte_ids),
            words(&trie.root),
            trie.nodes.iter().flat_map(|node| words(node)).collect(),
            trie.edges.iter().flat_map(|edge| words(edge)).collect(),
            words(&Self::end_ids(source)),
            adjacent,
        ];
        let flags = [
            (source.add_bos, FLAG_ADD_BOS),
            (source.add_eos, FLAG_ADD_EOS),
            (source.ignore_merges, FLAG_IGNORE_MERGES),
            (source.nfc, FLAG_NFC),
            (source.strip_leading_space, FLAG_STRIP_LEADING_SPACE),
        ];
        let ids = source.ids;
        let ids = [ids.bos, ids.eos, ids.eot, ids.eom, ids.unk, ids.pad];
        let mut layout = Layout {
            kind: self.kind,
            pre: pre.code(),
            flags: flags.iter().filter(|(on, _)| *on).map(|(_, flag)| flag).sum(),
            n_tokens,
            n_symbols: self.offsets.len() as u32 - 1,
            hash_cap: hash_cap as u32,
            pair_cap: pair_cap as u32,
            max_piece_len,
            seed,
            space_prefix: source.space_prefix as u32,
            ids: ids.map(|id| id.unwrap_or(NONE)),
            sections: std::array::from_fn(|_| 0..0),
        };
        Ok(assemble(&mut layout, &arrays))
    }
}

/// The table of merges by pair, or `None` when a probe run is too long under `seed`.
fn pair_table(merges: &[[u32; 4]], cap: usize, seed: u64) -> Option<Vec<[u32; 4]>> {
    let mut table = vec![[NONE; 4]; cap];
    'merges: for merge in merges {
        let mut slot = hash::pair(seed, merge[0], merge[1]) as usize & (cap - 1);
        for _ in 0..MAX_PROBE {
            if table[slot][0] == NONE {
                table[slot] = *merge;
                continue 'merges;
            }
            if table[slot][..2] == merge[..2] {
                continue 'merges;
            }
            slot = (slot + 1) & (cap - 1);
        }
        return None;
    }
    Some(table)
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Lays the arrays out behind the header, each at a multiple of [`ALIGN`].
fn assemble(layout: &mut Layout, arrays: &[Vec<u8>; N_SECTIONS]) -> Vec<u8> {
    let mut at = HEADER_LEN;
    for (range, array) in layout.sections.iter_mut().zip(arrays) {
        *range = at..at + array.len();
        at = (at + array.len()).next_multiple_of(ALIGN);
    }
    let mut image = Vec::with_capacity(at);
    image.extend_from_slice(&layout.write_header(at));
    for (range, array) in layout.sections.iter().zip(arrays) {
        image.resize(range.start, 0);
        image.extend_from_slice(array);
    }
    image.resize(at, 0);
    debug_assert_eq!(layout.sections[Section::Adjacent as usize].end.next_multiple_of(ALIGN), at);
    image
}

/// `<0xHH>` as the byte it names.
fn byte_token(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 || !hex.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

/// Appends `text` with U+2581 turned into spaces.
fn unescape_spaces(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix("\u{2581}".as_bytes()) {
            out.push(b' ');
            rest = tail;
        } else {
            out.push(byte);
            rest = tail;
        }
    }
}

/// The printable alphabet in which byte-level BPE spells bytes: printable Latin-1 stands for
/// itself, the other 68 bytes are, in order, U+0100 and up.
struct ByteAlphabet {
    chars: [char; 256],
}

/// The characters in which byte-level BPE spells the bytes 0 to 255.
pub(crate) fn byte_alphabet() -> [char; 256] {
    ByteAlphabet::new().chars
}

impl ByteAlphabet {
    fn new() -> ByteAlphabet {
        let mut next = 0x100u32;
        ByteAlphabet {
            chars: std::array::from_fn(|byte| {
                let byte = byte as u8;
                if is_printable(byte) {
                    char::from(byte)
                } else {
                    next += 1;
                    char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
            }),
        }
    }

    /// Appends the bytes that `spelt` stands for and returns true; or, if it holds a character
    /// outside the alphabet, appends it as it is and returns false.
    fn decode(&self, spelt: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let Ok(text) = std::str::from_utf8(spelt) else {
            out.extend_from_slice(spelt);
            return false;
        };
        for c in text.chars() {
            let code = c as u32;
            let byte = match code {
                0..0x100 if is_printable(code as u8) => Some(code as u8),
                // The bytes that are not printable: 0-32, 127-160 and 173.
                0x100..=0x120 => Some((code - 0x100) as u8),
                0x121..=0x142 => Some((code - 0x121 + 127) as u8),
                0x143 => Some(173),
                _ => None,
            };
            let Some(byte) = byte else {
                out.truncate(before);
                out.extend_from_slice(spelt);
                return false;
            };
            out.push(byte);
        }
        true
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_round_trips() {
        let alphabet = ByteAlphabet::new();
        for byte in 0..=255u8 {
            let mut out = Vec::new();
            let spelt = alphabet.chars[usize::from(byte)].to_string();
            assert!(alphabet.decode(spelt.as_bytes(), &mut out));
            assert_eq!(out, [byte]);
        }
        assert_eq!(alphabet.chars[usize::from(b' ')], 'Ġ');
        assert_eq!(alphabet.chars[usize::from(b'\n')], 'Ċ');
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        assert_eq!(byte_token(b"<0xfF>"), Some(255));
        for text in ["<0x>", "<0x1>", "<0x123>", "<0x+1>", "0x0A", ""] {
            assert_eq!(byte_token(text.as_bytes()), None, "{text}");
        }
    }
}
