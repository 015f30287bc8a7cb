//! Unicode classes as regular expressions name them: `\p{L}`, `\p{N}`, `\s` and the like.

use unicode_general_category::{GeneralCategory as Gc, get_general_category};

/// `\p{L}`.
pub(crate) const L: u16 = 1;
/// `\p{N}`.
pub(crate) const N: u16 = 1 << 1;
/// `\s`, the property White_Space.
pub(crate) const SPACE: u16 = 1 << 2;
/// `\p{M}`.
pub(crate) const M: u16 = 1 << 3;
/// `\p{P}`.
pub(crate) const P: u16 = 1 << 4;
/// `\p{S}`.
pub(crate) const S: u16 = 1 << 5;
/// `\r` and `\n`.
pub(crate) const NEWLINE: u16 = 1 << 6;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: what may stand in the upper-case part of a word.
pub(crate) const UPPER: u16 = 1 << 7;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: what may stand in the lower-case part of a word.
pub(crate) const LOWER: u16 = 1 << 8;

const ASCII: [u16; 128] = {
    let mut table = [0; 128];
    let mut code = 0;
    while code < 128 {
        let byte = code as u8;
        table[code] = match byte {
            b'\r' | b'\n' => SPACE | NEWLINE,
            b' ' | 9 | 11 | 12 => SPACE,
            b'0'..=b'9' => N,
            b'A'..=b'Z' => L | UPPER,
            b'a'..=b'z' => L | LOWER,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => S,
            b'!'..=b'/' | b':'..=b'@' | b'['..=b'_' | b'{'..=b'}' => P,
            _ => 0,
        };
        code += 1;
    }
    table
};

/// The classes of a character, as bits.
#[inline]
pub(crate) fn of(c: char) -> u16 {
    let code = c as u32;
    if code < 128 { ASCII[code as usize] } else { beyond_ascii(c) }
}

fn beyond_ascii(c: char) -> u16 {
    let space = if c.is_whitespace() { SPACE } else { 0 };
    let class = match get_general_category(c) {
        Gc::UppercaseLetter | Gc::TitlecaseLetter => L | UPPER,
        Gc::LowercaseLetter => L | LOWER,
        Gc::ModifierLetter | Gc::OtherLetter => L | UPPER | LOWER,
        Gc::NonspacingMark | Gc::SpacingMark | Gc::EnclosingMark => M | UPPER | LOWER,
        Gc::DecimalNumber | Gc::LetterNumber | Gc::OtherNumber => N,
        Gc::ConnectorPunctuation
        | Gc::DashPunctuation
        | Gc::OpenPunctuation
        | Gc::ClosePunctuation
        | Gc::InitialPunctuation
        | Gc::FinalPunctuation
        | Gc::OtherPunctuation => P,
        Gc::MathSymbol | Gc::CurrencySymbol | Gc::ModifierSymbol | Gc::OtherSymbol => S,
        _ => 0,
    };
    class | space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_regular_expressions() {
        let classes = [
            (L, r"\p{L}"),
            (N, r"\p{N}"),
            (SPACE, r"\s"),
            (M, r"\p{M}"),
            (P, r"\p{P}"),
            (S, r"\p{S}"),
            (NEWLINE, r"[\r\n]"),
            (UPPER, r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
            (LOWER, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
        ];
        // All characters in one text, so that each expression runs once.
        let all: String = ('\0'..=char::MAX).collect();
        for (bit, pattern) in classes {
            let expected: String = fancy_regex::Regex::new(pattern)
                .unwrap()
                .find_iter(&all)
                .map(|found| found.unwrap().as_str())
                .collect();
            let got: String = all.chars().filter(|&c| of(c) & bit != 0).collect();
            assert_eq!(got, expected, "{pattern}");
        }
    }
}
