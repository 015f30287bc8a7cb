//! The alternatives of which pre-tokenizer patterns are made, as hand-written matchers.
//!
//! Each [`Alt`] documents the expression it stands for and matches exactly what a leftmost-first
//! backtracking engine would. A [`Stage`] is an ordered list of alternatives, applied to a piece
//! of text from left to right; what no alternative matches becomes a piece of its own.

use std::ops::Range;

use super::classes::{self, L, LOWER, M, N, NEWLINE, P, S, SPACE, UPPER};

/// A class of characters.
#[derive(Clone, Copy)]
pub(crate) enum Class {
    /// Any of these bits.
    Any(u16),
    /// None of these bits.
    Not(u16),
    /// A function of the character.
    Custom(fn(char) -> bool),
}

impl Class {
    #[inline]
    fn has(self, c: char) -> bool {
        match self {
            Class::Any(bits) => classes::of(c) & bits != 0,
            Class::Not(bits) => classes::of(c) & bits == 0,
            Class::Custom(test) => test(c),
        }
    }
}

/// One alternative of a pattern.
#[derive(Clone, Copy)]
pub(crate) enum Alt {
    /// `'s|'t|'re|'ve|'m|'ll|'d`
    Contraction,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
    ContractionAnyCase,
    /// ` ?X+`
    SpaceThen(Class),
    /// ` ?X+T*`, no character being in both `X` and what may follow unmatched.
    SpaceThenTail(Class, fn(char) -> bool),
    /// ` ?X+T?` likewise.
    SpaceThenOne(Class, fn(char) -> bool),
    /// `\s?X+`
    AnySpaceThen(Class),
    /// `Y?X+`
    PrefixThen(Class, Class),
    /// `X{1,n}`
    UpTo(Class, usize),
    /// `X+`
    Run(Class),
    /// `\s+(?!\S)`
    SpacesBeforeLast,
    /// `\s+`
    Spaces,
    /// `\s+$`
    SpacesAtEnd,
    /// `\s*[\r\n]+`
    SpacesToNewline,
    /// `[^\r\n\p{L}\p{N}]?U*W+C?` with [`UPPER`], [`LOWER`] and, if true, a contraction behind.
    UpperThenLower(bool),
    /// `[^\r\n\p{L}\p{N}]?U+W*C?` likewise.
    UppersThenLower(bool),
    /// `` [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+ ``
    PunctuationThenAscii,
    /// `X{3}`
    Three(Class),
    /// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: letters, single spaces between them.
    SpacedLetters,
    /// `\s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`
    SpacesByPowers,
}

/// An ordered list of alternatives.
pub(crate) type Stage = &'static [Alt];

#[inline]
fn char_at(text: &str, at: usize) -> Option<char> {
    let byte = *text.as_bytes().get(at)?;
    if byte < 128 { Some(char::from(byte)) } else { text[at..].chars().next() }
}

/// The end of the run of `class` that starts at `at`.
#[inline]
fn run(text: &str, mut at: usize, class: Class) -> usize {
    while let Some(c) = char_at(text, at).filter(|&c| class.has(c)) {
        at += c.len_utf8();
    }
    at
}

fn nonempty(start: usize, end: usize) -> Option<usize> {
    (end > start).then_some(end)
}

impl Alt {
    /// The end of this alternative's match at `at`, which is before the end of `text`.
    #[inline]
    fn matches(self, text: &str, at: usize, c: char) -> Option<usize> {
        match self {
            Alt::Contraction => contraction(text, at, false),
            Alt::ContractionAnyCase => contraction(text, at, true),
            Alt::SpaceThen(class) => {
                let start = if c == ' ' { at + 1 } else { at };
                nonempty(start, run(text, start, class))
            }
            Alt::SpaceThenTail(class, tail) => {
                let start = if c == ' ' { at + 1 } else { at };
                let end = nonempty(start, run(text, start, class))?;
                Some(run(text, end, Class::Custom(tail)))
            }
            Alt::SpaceThenOne(class, tail) => {
                let start = if c == ' ' { at + 1 } else { at };
                let end = nonempty(start, run(text, start, class))?;
                Some(end + char_at(text, end).filter(|&c| tail(c)).map_or(0, char::len_utf8))
            }
            Alt::AnySpaceThen(class) => prefix_then(text, at, c, Class::Any(SPACE), class),
            Alt::PrefixThen(prefix, class) => prefix_then(text, at, c, prefix, class),
            Alt::UpTo(class, most) => {
                let mut end = at;
                for _ in 0..most {
                    match char_at(text, end).filter(|&c| class.has(c)) {
                        Some(c) => end += c.len_utf8(),
                        None => break,
                    }
                }
                nonempty(at, end)
            }
            Alt::Run(class) => nonempty(at, run(text, at, class)),
            Alt::Spaces => nonempty(at, run(text, at, Class::Any(SPACE))),
            Alt::SpacesBeforeLast => spaces_before_last(text, at),
            Alt::SpacesAtEnd => spaces_at_end(text, at),
            Alt::SpacesToNewline => spaces_to_newline(text, at),
            Alt::UpperThenLower(tail) => cased_word(text, at, c, tail, upper_then_lower),
            Alt::UppersThenLower(tail) => cased_word(text, at, c, tail, uppers_then_lower),
            Alt::PunctuationThenAscii => {
                if !c.is_ascii_punctuation() {
                    return None;
                }
                let letters = Class::Custom(|c| c.is_ascii_alphabetic());
                nonempty(at + 1, run(text, at + 1, letters))
            }
            Alt::SpacedLetters => {
                let prefixed = Class::Not(NEWLINE | L | N).has(c);
                spaced_letters(text, if prefixed { at + c.len_utf8() } else { at })
            }
            Alt::SpacesByPowers => spaces_by_powers(text, at),
            Alt::Three(class) => {
                let mut end = at;
                for _ in 0..3 {
                    end += char_at(text, end).filter(|&c| class.has(c))?.len_utf8();
                }
                Some(end)
            }
        }
    }
}

/// `\s+(?!\S)`
fn spaces_before_last(text: &str, at: usize) -> Option<usize> {
    let end = run(text, at, Class::Any(SPACE));
    if end == text.len() {
        return nonempty(at, end);
    }
    // Text follows, so the last space goes with it.
    let last = text[at..end].chars().next_back()?;
    nonempty(at, end - last.len_utf8())
}

/// `\s+$`
fn spaces_at_end(text: &str, at: usize) -> Option<usize> {
    // Had the run before reached the end, it would have been taken there.
    if text[..at].ends_with(char::is_whitespace) {
        return None;
    }
    let end = run(text, at, Class::Any(SPACE));
    nonempty(at, end).filter(|&end| end == text.len())
}

/// `\s*[\r\n]+`
fn spaces_to_newline(text: &str, at: usize) -> Option<usize> {
    let end = run(text, at, Class::Any(SPACE));
    let newline = text[at..end].rfind(['\r', '\n'])?;
    Some(at + newline + 1)
}

/// `Y?X+`: with the prefix if that works, else without.
fn prefix_then(text: &str, at: usize, c: char, prefix: Class, class: Class) -> Option<usize> {
    if prefix.has(c) {
        let start = at + c.len_utf8();
        if let Some(end) = nonempty(start, run(text, start, class)) {
            return Some(end);
        }
    }
    nonempty(at, run(text, at, class))
}

/// `'s|'t|'re|'ve|'m|'ll|'d`. Without regard to case, `s` includes the long s, as Unicode's simple
/// case folding has it.
fn contraction(text: &str, at: usize, any_case: bool) -> Option<usize> {
    let rest = text.as_bytes().get(at..)?;
    if rest.first() != Some(&b'\'') {
        return None;
    }
    let letter = |index: usize| {
        let byte = rest.get(index).copied().unwrap_or(0);
        if any_case { byte.to_ascii_lowercase() } else { byte }
    };
    match (letter(1), letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
        _ if any_case && rest[1..].starts_with("\u{17f}".as_bytes()) => Some(at + 3),
        _ => None,
    }
}

/// An optional prefix `[^\r\n\p{L}\p{N}]?`, a word, and an optional contraction behind it.
fn cased_word(
    text: &str,
    at: usize,
    c: char,
    tail: bool,
    word: fn(&str, usize) -> Option<usize>,
) -> Option<usize> {
    let with_prefix =
        if Class::Not(NEWLINE | L | N).has(c) { word(text, at + c.len_utf8()) } else { None };
    let end = with_prefix.or_else(|| word(text, at))?;
    let behind = if tail { contraction(text, end, true) } else { None };
    Some(behind.unwrap_or(end))
}

/// `\p{L}\p{M}*(?: ?\p{L}\p{M}*)*`
fn spaced_letters(text: &str, at: usize) -> Option<usize> {
    let letter = |at: usize| {
        let c = char_at(text, at).filter(|&c| Class::Any(L).has(c))?;
        Some(run(text, at + c.len_utf8(), Class::Any(M)))
    };
    let mut end = letter(at)?;
    loop {
        let space = usize::from(text.as_bytes().get(end) == Some(&b' '));
        match letter(end + space) {
            Some(next) => end = next,
            None => return Some(end),
        }
    }
}

/// The longest power of two of spaces, 512 at most, that is not followed by text.
fn spaces_by_powers(text: &str, at: usize) -> Option<usize> {
    // Where each of the first 512 spaces ends.
    let mut ends = [0; 512];
    let (mut n, mut end) = (0, at);
    while let Some(c) = char_at(text, end).filter(|&c| n < 512 && Class::Any(SPACE).has(c)) {
        end += c.len_utf8();
        ends[n] = end;
        n += 1;
    }
    let text_follows = |end: usize| char_at(text, end).is_some_and(|c| !Class::Any(SPACE).has(c));
    let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
    let fits = sizes.into_iter().find(|&size| size <= n && !text_follows(ends[size - 1]));
    // The last space goes by itself if text follows.
    fits.or((n > 0).then_some(1)).map(|size| ends[size - 1])
}

/// `U*W+`.
fn upper_then_lower(text: &str, at: usize) -> Option<usize> {
    let uppers = run(text, at, Class::Any(UPPER));
    let end = run(text, uppers, Class::Any(LOWER));
    if end > uppers {
        return Some(end);
    }
    // Give back characters until one of them can be the lower-case part by itself.
    let tail = text[at..uppers].char_indices().rev().find(|&(_, c)| Class::Any(LOWER).has(c));
    tail.map(|(offset, c)| at + offset + c.len_utf8())
}

/// `U+W*`.
fn uppers_then_lower(text: &str, at: usize) -> Option<usize> {
    let uppers = nonempty(at, run(text, at, Class::Any(UPPER)))?;
    Some(run(text, uppers, Class::Any(LOWER)))
}

/// Cuts `text[range]` by `stages`, one after the other, and hands the pieces out in order.
pub(crate) fn split(
    stages: &[Stage],
    text: &str,
    range: Range<usize>,
    out: &mut dyn FnMut(Range<usize>),
) {
    let Some((stage, rest)) = stages.split_first() else {
        if !range.is_empty() {
            out(range);
        }
        return;
    };
    // A stage sees its piece as if it were the whole text.
    let piece = &text[range.clone()];
    let (mut at, mut gap) = (0, 0);
    while let Some(c) = char_at(piece, at) {
        match stage.iter().find_map(|alt| alt.matches(piece, at, c)) {
            Some(end) => {
                if gap < at {
                    split(rest, text, range.start + gap..range.start + at, out);
                }
                split(rest, text, range.start + at..range.start + end, out);
                at = end;
                gap = end;
            }
            None => at += c.len_utf8(),
        }
    }
    if gap < at {
        split(rest, text, range.start + gap..range.start + at, out);
    }
}

/// Alternatives and stages that several patterns share.
pub(crate) mod parts {
    use super::*;

    pub const LETTERS: Class = Class::Any(L);
    pub const NUMBERS: Class = Class::Any(N);
    pub const OTHERS: Class = Class::Not(SPACE | L | N);
    pub const WORD_PREFIX: Class = Class::Not(NEWLINE | L | N);
    pub const OTHERS_NO_MARKS: Class = Class::Not(SPACE | L | M | N);
    pub const LETTERS_MARKS: Class = Class::Any(L | M);
    pub const PUNCTUATION: Class = Class::Any(P);
    pub const PUNCTUATION_SYMBOLS: Class = Class::Any(P | S);
    pub const PREFIX_NO_LPS: Class = Class::Not(NEWLINE | L | P | S);
    pub const ASCII_DIGITS: Class = Class::Custom(|c| c.is_ascii_digit());

    /// `[\r\n]*` behind punctuation.
    pub fn newlines(c: char) -> bool {
        matches!(c, '\r' | '\n')
    }

    /// `[\r\n/]*` behind punctuation.
    pub fn newlines_slashes(c: char) -> bool {
        matches!(c, '\r' | '\n' | '/')
    }
}
