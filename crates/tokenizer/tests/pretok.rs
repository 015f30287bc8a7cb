//! Every pre-tokenizer beside the published regular expressions it stands for.

mod common;

use common::{Rng, seed};
use dunlin_tokenizer::PreTokenizer;
use fancy_regex::Regex;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\x{1f5f}-\x{1f7d}ᾀ-ᾴᾶ-ᾼ\x{1fbe}ῂ-ῄῆ-ῌ\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const CJK_WIDE: &str = r"[一-龥ࠀ-一가-\x{d7ff}]+";
const CJK_KANA: &str = r"[一-龥\x{3040}-ゟ゠-ヿ]+";

/// Each pre-tokenizer by one of its names, and its expressions, applied one after the other.
const PUBLISHED: &[(&str, &[&str])] = &[
    ("gpt-2", &[GPT2]),
    ("smollm", &[r"\p{N}", GPT2]),
    ("llama-bpe", &[LLAMA3]),
    ("qwen2", &[QWEN2]),
    (
        "qwen35",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    ("tekken", &[TEKKEN]),
    ("gpt-4o", &[GPT4O]),
    (
        "deepseek-llm",
        &[
            r"[\r\n]",
            LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
            r"\s+$",
            CJK_WIDE,
            r"\p{N}+",
        ],
    ),
    ("deepseek-coder", &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_WIDE, r"\p{N}"]),
    ("deepseek-v3", &[r"\p{N}{1,3}", CJK_KANA, DEEPSEEK_V3]),
    ("falcon", &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    ("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    ("bloom", &[BLOOM]),
    ("viking", &[BLOOM, r"\p{N}"]),
    (
        "seed-coder",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "minicpm5",
        &[
            r"\p{N}{1,3}",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "ufakzeka",
        &[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    ),
    (
        "jais-2",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        ],
    ),
    (
        "exaone-moe",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
    (
        "youtu",
        &[
            r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[ㄅ-ㄯ]+|[一-龥\x{3040}-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    ("laguna", &[r"[^\n]+|[\n]+", QWEN2]),
    (
        "bailingmoe",
        &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
    ),
];

/// Cuts each piece at the matches of `regex`.
fn cut<'t>(regex: &Regex, pieces: Vec<&'t str>) -> Vec<&'t str> {
    let mut out = Vec::new();
    for piece in pieces {
        let mut at = 0;
        for found in regex.find_iter(piece) {
            let found = found.unwrap();
            out.push(&piece[at..found.start()]);
            out.push(found.as_str());
            at = found.end();
        }
        out.push(&piece[at..]);
    }
    out.retain(|piece| !piece.is_empty());
    out
}

fn check(name: &str, pre: PreTokenizer, regexes: &[Regex], text: &str) {
    let expected = regexes.iter().fold(vec![text], |pieces, regex| cut(regex, pieces));
    let mut got = Vec::new();
    pre.split(text, |range| got.push(&text[range]));
    assert_eq!(
        got,
        expected.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>(),
        "{name}: {text:?}"
    );
}

#[test]
fn scanners_cut_as_the_published_patterns_do() {
    let mut rng = Rng(seed());
    for (name, patterns) in PUBLISHED {
        let pre = PreTokenizer::from_name(name).unwrap();
        let regexes: Vec<Regex> = patterns.iter().map(|p| Regex::new(p).unwrap()).collect();
        for text in EDGES {
            check(name, pre, &regexes, text);
        }
        for _ in 0..1500 {
            check(name, pre, &regexes, &rng.text(24));
        }
        for spaces in [3, 4, 5, 7, 8, 9, 31, 32, 33, 511, 512, 513, 1030] {
            check(name, pre, &regexes, &format!("a{}", " ".repeat(spaces)));
            check(name, pre, &regexes, &format!("{}a", "\u{3000}".repeat(spaces)));
        }
        check(name, pre, &regexes, &rng.text(2000));
    }
}

#[test]
fn every_pre_tokenizer_is_compared() {
    for name in PreTokenizer::known_names() {
        let pre = PreTokenizer::from_name(name).unwrap();
        assert!(
            PUBLISHED.iter().any(|(n, _)| PreTokenizer::from_name(n).unwrap() == pre),
            "{name} has no published pattern here"
        );
    }
}

#[test]
fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
    let error = PreTokenizer::from_name("llama-4711").unwrap_err().to_string();
    assert!(error.contains("llama-4711") && error.contains("qwen2"), "{error}");
}

const EDGES: &[&str] = &[
    "",
    " ",
    "  ",
    "\n",
    " \n",
    "\n ",
    "a b",
    "a  b",
    "a   b",
    "a \n b",
    "a\r\nb",
    "a \r\n\r\n  b",
    "   \n   ",
    "don't DON'T don'T 'S 'ſ 'll 'LL 'lL 'l 're 'RE 'r 've it'd",
    "'",
    "''s",
    " 's",
    "x'sy",
    "1234567890",
    "1 22 333 4444 55555",
    "a1b22c333",
    "½²Ⅷ٣٤٥٦",
    "3.14 1,000 0xFF 1e-9",
    "HelloWorld HELLOworld helloWORLD HeLLo",
    "ǅungla ʰword aʰb Aʰb",
    "e\u{301}te\u{301} \u{301}a A\u{301}B \u{301}\u{301}",
    "中文字符 一二三 日本語のテキスト 한국어",
    "你好，世界。！？",
    "Привет мир",
    "path/to/file//\n/x",
    "a/b\n\n/c",
    "!!!\n\n\n???",
    " !a .b -c",
    "#include <stdio.h>",
    "{\"a\": [1, 2]}",
    "\u{3000}\u{3000}a\u{3000}。b",
    "tab\tx\t\ty",
    "\t\t\n\t",
    "👋🏽🌍👨‍👩‍👧‍👦",
    "a\u{200b}b",
    "\0\u{1}\u{7f}",
    "end ",
    "end  ",
    "end\t ",
    "x\u{85}y\u{2028}z\u{b}",
    "  12  34",
    "a.b,c!d?e…f。g，h、i।j۔k،l(m)n|o",
];
