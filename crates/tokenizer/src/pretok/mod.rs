//! Pre-tokenizers: how text is cut into words before BPE merges them.
//!
//! Patterns are published as regular expressions; here each is a list of hand-written matchers
//! (see [`scan`]), so that nothing is compiled at start-up. The tests run the published expression
//! over random text beside each of them.

mod classes;
mod ranges;
mod scan;

use std::ops::Range;

use crate::TokenizerError;
use ranges::{CJK_KANA, CJK_WIDE, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, in_ranges};
use scan::{Alt, Class, Stage, parts::*};

/// A way to cut text into words. Names that files use for the same way share one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// No cuts at all.
    Whole = 0,
    /// Runs of newlines and runs of anything else.
    Lines = 1,
    /// GPT-2.
    Gpt2 = 2,
    /// Single digits, then GPT-2: SmolLM, StarCoder, Command-R and others.
    DigitsGpt2 = 3,
    /// Llama 3: up to three digits.
    Llama3 = 4,
    /// Qwen 2: single digits.
    Qwen2 = 5,
    /// Qwen 3.5: as Qwen 2 with combining marks in words.
    Qwen35 = 6,
    /// Tekken (Mistral): words cut at changes of case, single digits.
    Tekken = 7,
    /// GPT-4o: words cut at changes of case, contractions kept, up to three digits.
    Gpt4o = 8,
    /// DeepSeek LLM.
    DeepSeekLlm = 9,
    /// DeepSeek Coder.
    DeepSeekCoder = 10,
    /// DeepSeek V3.
    DeepSeekV3 = 11,
    /// Falcon.
    Falcon = 12,
    /// What GGUF files call `default`.
    Default = 13,
    /// Bloom, Poro and GPT-3 Finnish.
    Bloom = 14,
    /// Viking: as Bloom with single digits.
    Viking = 15,
    /// Seed Coder.
    SeedCoder = 16,
    /// MiniCPM 5.
    MiniCpm5 = 17,
    /// Qwen 2 without contractions.
    Ufakzeka = 18,
    /// Qwen 2 within lines.
    Laguna = 19,
    /// Bailing.
    Bailing = 20,
    /// Before every space.
    Words = 21,
    /// Jais 2: as Llama 3, spaces cut into powers of two.
    Jais2 = 22,
    /// EXAONE MoE: letters with single spaces between them.
    ExaoneMoe = 23,
    /// Youtu: runs of each East Asian script, then words cut at changes of case.
    Youtu = 24,
}

const GPT2: Stage = &[
    Alt::Contraction,
    Alt::SpaceThen(LETTERS),
    Alt::SpaceThen(NUMBERS),
    Alt::SpaceThen(OTHERS),
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const ONE_NUMBER: Stage = &[Alt::UpTo(NUMBERS, 1)];
const THREE_NUMBERS: Stage = &[Alt::UpTo(NUMBERS, 3)];
const NUMBER_RUNS: Stage = &[Alt::Run(NUMBERS)];
const THREE_ASCII_DIGITS: Stage = &[Alt::Three(ASCII_DIGITS)];
const ONE_NEWLINE: Stage = &[Alt::UpTo(Class::Custom(newlines), 1)];
const LINES: Stage =
    &[Alt::Run(Class::Custom(|c| c != '\n')), Alt::Run(Class::Custom(|c| c == '\n'))];

const WORDS: Stage =
    &[Alt::SpaceThen(Class::Custom(|c| c != ' ')), Alt::UpTo(Class::Custom(|c| c == ' '), 1)];

/// The family of Llama 3 and Qwen 2, which differ in how many digits make a piece.
macro_rules! llama3_family {
    ($numbers:expr) => {
        &[
            Alt::ContractionAnyCase,
            Alt::PrefixThen(WORD_PREFIX, LETTERS),
            $numbers,
            Alt::SpaceThenTail(OTHERS, newlines),
            Alt::SpacesToNewline,
            Alt::SpacesBeforeLast,
            Alt::Spaces,
        ]
    };
}

const LLAMA3: Stage = llama3_family!(Alt::UpTo(NUMBERS, 3));
const QWEN2: Stage = llama3_family!(Alt::UpTo(NUMBERS, 1));
const MINICPM5: Stage = llama3_family!(Alt::Run(NUMBERS));

const QWEN35: Stage = &[
    Alt::ContractionAnyCase,
    Alt::PrefixThen(WORD_PREFIX, LETTERS_MARKS),
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThenTail(OTHERS_NO_MARKS, newlines),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const SEED_CODER: Stage = &[
    Alt::ContractionAnyCase,
    Alt::PrefixThen(WORD_PREFIX, LETTERS),
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThen(OTHERS),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const UFAKZEKA: Stage = &[
    Alt::PrefixThen(WORD_PREFIX, LETTERS),
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThenTail(OTHERS, newlines),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const JAIS2: Stage = &[
    Alt::ContractionAnyCase,
    Alt::PrefixThen(WORD_PREFIX, LETTERS),
    Alt::UpTo(NUMBERS, 3),
    Alt::SpaceThenTail(OTHERS, newlines),
    Alt::SpacesToNewline,
    Alt::SpacesByPowers,
];

const EXAONE_MOE: Stage = &[
    Alt::ContractionAnyCase,
    Alt::SpacedLetters,
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThenOne(OTHERS, newlines_slashes),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+`
const YOUTU_SCRIPTS: Stage = &[
    Alt::Run(Class::Custom(|c| matches!(c, '가'..='힣' | 'ㄱ'..='ㆎ'))),
    Alt::Run(Class::Custom(|c| {
        matches!(
            c,
            '！' | '…' | '“' | '”' | '‘' | '’' | '—' | '：' | '；' | '，'
                | '\u{3001}'..='\u{303f}' | '\u{fe30}'..='\u{fe4f}'
        )
    })),
    Alt::Run(Class::Custom(|c| matches!(c, 'ㄅ'..='ㄯ'))),
    Alt::Run(Class::Custom(|c| in_ranges(CJK_KANA, c))),
];

const YOUTU: Stage = &[
    Alt::UpperThenLower(true),
    Alt::UppersThenLower(true),
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThenTail(OTHERS, newlines_slashes),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const TEKKEN: Stage = &[
    Alt::UpperThenLower(false),
    Alt::UppersThenLower(false),
    Alt::UpTo(NUMBERS, 1),
    Alt::SpaceThenTail(OTHERS, newlines_slashes),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const GPT4O: Stage = &[
    Alt::UpperThenLower(true),
    Alt::UppersThenLower(true),
    Alt::UpTo(NUMBERS, 3),
    Alt::SpaceThenTail(OTHERS, newlines_slashes),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const DEEPSEEK_V3: Stage = &[
    Alt::PunctuationThenAscii,
    Alt::PrefixThen(PREFIX_NO_LPS, LETTERS_MARKS),
    Alt::SpaceThenTail(PUNCTUATION_SYMBOLS, newlines),
    Alt::SpacesToNewline,
    Alt::SpacesBeforeLast,
    Alt::Spaces,
];

const DEEPSEEK_LETTER_RUNS: Stage =
    &[Alt::AnySpaceThen(Class::Custom(|c| in_ranges(DEEPSEEK_LETTERS, c)))];
const DEEPSEEK_PUNCTUATION_RUNS: Stage =
    &[Alt::AnySpaceThen(Class::Custom(|c| in_ranges(DEEPSEEK_PUNCTUATION, c)))];
const CJK_WIDE_RUNS: Stage = &[Alt::Run(Class::Custom(|c| in_ranges(CJK_WIDE, c)))];
const CJK_KANA_RUNS: Stage = &[Alt::Run(Class::Custom(|c| in_ranges(CJK_KANA, c)))];

/// `` [\p{P}\$\+<=>\^~\|`]+ ``
const FALCON_PUNCTUATION: Stage = &[Alt::Run(Class::Custom(|c| {
    classes::of(c) & classes::P != 0
        || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|' | '`')
}))];
/// `[\p{P}\$\+<=>\^~\|]+`
const DEFAULT_PUNCTUATION: Stage = &[Alt::Run(Class::Custom(|c| {
    classes::of(c) & classes::P != 0 || matches!(c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
}))];

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
const BLOOM: Stage = &[Alt::SpaceThen(Class::Custom(|c| {
    !c.is_whitespace()
        && !matches!(
            c,
            '(' | '|' | '.' | ',' | '!' | '?' | '…' | '。' | '，' | '、' | '।' | '۔' | '،' | ')'
        )
}))];

impl PreTokenizer {
    fn stages(self) -> &'static [Stage] {
        match self {
            PreTokenizer::Whole => &[],
            PreTokenizer::Lines => &[LINES],
            PreTokenizer::Gpt2 => &[GPT2],
            PreTokenizer::DigitsGpt2 => &[ONE_NUMBER, GPT2],
            PreTokenizer::Llama3 => &[LLAMA3],
            PreTokenizer::Qwen2 => &[QWEN2],
            PreTokenizer::Qwen35 => &[QWEN35],
            PreTokenizer::Tekken => &[TEKKEN],
            PreTokenizer::Gpt4o => &[GPT4O],
            PreTokenizer::DeepSeekLlm => &[
                ONE_NEWLINE,
                DEEPSEEK_LETTER_RUNS,
                DEEPSEEK_PUNCTUATION_RUNS,
                &[Alt::SpacesAtEnd],
                CJK_WIDE_RUNS,
                NUMBER_RUNS,
            ],
            PreTokenizer::DeepSeekCoder => &[
                ONE_NEWLINE,
                &[Alt::AnySpaceThen(LETTERS)],
                &[Alt::AnySpaceThen(PUNCTUATION)],
                CJK_WIDE_RUNS,
                ONE_NUMBER,
            ],
            PreTokenizer::DeepSeekV3 => &[THREE_NUMBERS, CJK_KANA_RUNS, DEEPSEEK_V3],
            PreTokenizer::Falcon => &[FALCON_PUNCTUATION, GPT2, THREE_ASCII_DIGITS],
            PreTokenizer::Default => &[DEFAULT_PUNCTUATION, GPT2, NUMBER_RUNS, THREE_ASCII_DIGITS],
            PreTokenizer::Bloom => &[BLOOM],
            PreTokenizer::Viking => &[BLOOM, ONE_NUMBER],
            PreTokenizer::SeedCoder => &[SEED_CODER],
            PreTokenizer::MiniCpm5 => &[THREE_NUMBERS, MINICPM5],
            PreTokenizer::Ufakzeka => &[UFAKZEKA],
            PreTokenizer::Laguna => &[LINES, QWEN2],
            PreTokenizer::Bailing => &[QWEN2],
            PreTokenizer::Words => &[WORDS],
            PreTokenizer::Jais2 => &[JAIS2],
            PreTokenizer::ExaoneMoe => &[EXAONE_MOE],
            PreTokenizer::Youtu => &[YOUTU_SCRIPTS, YOUTU],
        }
    }

    /// The pre-tokenizer that GGUF files name `name`.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`], with the list of known names.
    pub fn from_name(name: &str) -> Result<PreTokenizer, TokenizerError> {
        NAMES.iter().find(|(_, names)| names.contains(&name)).map(|&(pre, _)| pre).ok_or_else(
            || TokenizerError::UnknownPreTokenizer {
                name: name.to_string(),
                supported: Self::known_names().collect::<Vec<_>>().join(", "),
            },
        )
    }

    /// Every name that [`PreTokenizer::from_name`] knows.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().flat_map(|(_, names)| names.iter().copied())
    }

    /// Cuts `text` and hands the pieces out in order, as byte ranges that cover all of it.
    pub fn split(self, text: &str, mut out: impl FnMut(Range<usize>)) {
        scan::split(self.stages(), text, 0..text.len(), &mut out);
    }

    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    pub(crate) fn from_code(code: u32) -> Option<PreTokenizer> {
        let nameless = [PreTokenizer::Whole, PreTokenizer::Lines, PreTokenizer::Words];
        let named = NAMES.iter().map(|&(pre, _)| pre);
        nameless.into_iter().chain(named).find(|pre| pre.code() == code)
    }
}

/// The names of `tokenizer.ggml.pre` and what they stand for.
const NAMES: &[(PreTokenizer, &[&str])] = &[
    (
        PreTokenizer::Gpt2,
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
        ],
    ),
    (
        PreTokenizer::DigitsGpt2,
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
    ),
    (
        PreTokenizer::Llama3,
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "dbrx",
            "smaug-bpe",
            "glm4",
            "chatglm-bpe",
        ],
    ),
    (
        PreTokenizer::Qwen2,
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "kormo",
            "f2llmv2",
            "solar-open",
            "grok-2",
        ],
    ),
    (PreTokenizer::Qwen35, &["qwen35"]),
    (PreTokenizer::Tekken, &["tekken"]),
    (PreTokenizer::Gpt4o, &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"]),
    (PreTokenizer::DeepSeekLlm, &["deepseek-llm"]),
    (PreTokenizer::DeepSeekCoder, &["deepseek-coder"]),
    (PreTokenizer::DeepSeekV3, &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"]),
    (PreTokenizer::Falcon, &["falcon"]),
    (PreTokenizer::Default, &["default"]),
    (PreTokenizer::Bloom, &["bloom", "poro-chat", "gpt3-finnish"]),
    (PreTokenizer::Viking, &["viking"]),
    (PreTokenizer::SeedCoder, &["seed-coder"]),
    (PreTokenizer::MiniCpm5, &["minicpm5"]),
    (PreTokenizer::Ufakzeka, &["ufakzeka"]),
    (PreTokenizer::Laguna, &["laguna"]),
    (PreTokenizer::Jais2, &["jais-2"]),
    (PreTokenizer::ExaoneMoe, &["exaone-moe"]),
    (PreTokenizer::Youtu, &["youtu"]),
    (PreTokenizer::Bailing, &["bailingmoe", "bailingmoe2", "llada-moe"]),
];
