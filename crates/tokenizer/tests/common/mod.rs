//! What the tests of this crate share: seeded random text and a reader of GGUF metadata that
//! knows just enough, written apart from the crate that does it properly.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use dunlin_tokenizer::{EncodeOptions, GgufMeta, Tokenizer, build_image, vocab_from_gguf};

/// The seed of the random tests: `DUNLIN_TEST_SEED`, or a fixed one. Printed, so that a failure
/// can be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("DUNLIN_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("DUNLIN_TEST_SEED={seed}");
    seed
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// A character: mostly what patterns treat specially, sometimes anything at all.
    pub fn char(&mut self) -> char {
        const SPECIAL: &[char] = &[
            ' ', ' ', ' ', '\n', '\n', '\r', '\t', '\u{a0}', '\u{3000}', '\u{2028}', '\u{85}',
            '\u{b}', '\'', '’', 'a', 's', 't', 'r', 'e', 'v', 'l', 'd', 'm', 'S', 'T', 'L', 'R',
            'E', 'ſ', 'K', 'Z', 'é', 'É', 'ß', 'ǅ', 'ʰ', 'ª', 'ا', '中', '一', '龥', 'あ', 'ア',
            '가', 'ㄱ', '\u{301}', '\u{20dd}', '0', '1', '2', '9', '٣', '½', '²', 'Ⅷ', '߀', '.',
            ',', '!', '?', '/', '-', '(', ')', '|', '$', '+', '<', '=', '>', '^', '~', '`', '_',
            '…', '。', '，', '、', '।', '“', '€', '™', '👍', '\u{200d}', '\u{200b}', '\0',
            '\u{7f}', '\u{2581}', 'Ｚ', '！', '𐐀', '\u{e000}', '\u{fffd}', 'µ', 'Ω', '\u{2126}',
        ];
        match self.below(8) {
            0 => loop {
                if let Some(c) = char::from_u32((self.next() % 0x11_0000) as u32) {
                    return c;
                }
            },
            1 => char::from((self.next() % 128) as u8),
            2 => char::from_u32((self.next() % 0x3000) as u32).unwrap_or('x'),
            _ => *self.pick(SPECIAL),
        }
    }

    /// A text of up to `longest` characters, with runs.
    pub fn text(&mut self, longest: usize) -> String {
        let len = self.below(longest + 1);
        let mut text = String::new();
        for _ in 0..len {
            let c = self.char();
            let repeat = if self.below(6) == 0 { 1 + self.below(5) } else { 1 };
            text.extend(std::iter::repeat_n(c, repeat));
        }
        text
    }
}

/// A value of GGUF metadata, as far as tokenizers need it.
#[derive(Debug)]
pub enum Value {
    Uint(u64),
    Bool(bool),
    Text(Vec<u8>),
    Texts(Vec<Vec<u8>>),
    Floats(Vec<f32>),
    Ints(Vec<i32>),
    Other,
}

/// The metadata of a GGUF file.
pub struct Meta(pub BTreeMap<String, Value>);

struct Reader<R>(R);

impl<R: Read> Reader<R> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("the file ends early");
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn string(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; self.u64() as usize];
        self.0.read_exact(&mut bytes).expect("the file ends early");
        bytes
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => Value::Uint(u64::from(self.take::<1>()[0])),
            1 => Value::Uint(u64::from(self.take::<1>()[0])),
            2 | 3 => Value::Uint(u64::from(u16::from_le_bytes(self.take()))),
            4 | 5 => Value::Uint(u64::from(self.u32())),
            6 => {
                self.u32();
                Value::Other
            }
            7 => Value::Bool(self.take::<1>()[0] != 0),
            8 => Value::Text(self.string()),
            9 => self.array(),
            10 | 11 => Value::Uint(self.u64()),
            _ => {
                self.u64();
                Value::Other
            }
        }
    }

    fn array(&mut self) -> Value {
        let kind = self.u32();
        let n = self.u64();
        match kind {
            8 => Value::Texts((0..n).map(|_| self.string()).collect()),
            6 => Value::Floats((0..n).map(|_| f32::from_bits(self.u32())).collect()),
            5 => Value::Ints((0..n).map(|_| self.u32() as i32).collect()),
            _ => {
                for _ in 0..n {
                    self.value(kind);
                }
                Value::Other
            }
        }
    }
}

impl Meta {
    pub fn read(path: &Path) -> Meta {
        let file = std::fs::File::open(path).expect("cannot open the model");
        let mut reader = Reader(std::io::BufReader::new(file));
        assert_eq!(&reader.take::<4>(), b"GGUF");
        reader.u32();
        reader.u64();
        let n = reader.u64();
        let mut map = BTreeMap::new();
        for _ in 0..n {
            let key = String::from_utf8(reader.string()).expect("a key is no UTF-8");
            let kind = reader.u32();
            map.insert(key, reader.value(kind));
        }
        Meta(map)
    }
}

impl GgufMeta for Meta {
    fn string(&self, key: &str) -> Option<&str> {
        match self.0.get(key)? {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    fn uint(&self, key: &str) -> Option<u64> {
        match self.0.get(key)? {
            Value::Uint(value) => Some(*value),
            _ => None,
        }
    }

    fn boolean(&self, key: &str) -> Option<bool> {
        match self.0.get(key)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    fn strings(&self, key: &str) -> Option<Vec<&[u8]>> {
        match self.0.get(key)? {
            Value::Texts(texts) => Some(texts.iter().map(|text| &text[..]).collect()),
            _ => None,
        }
    }

    fn floats(&self, key: &str) -> Option<Vec<f32>> {
        match self.0.get(key)? {
            Value::Floats(values) => Some(values.clone()),
            _ => None,
        }
    }

    fn ints(&self, key: &str) -> Option<Vec<i32>> {
        match self.0.get(key)? {
            Value::Ints(values) => Some(values.clone()),
            _ => None,
        }
    }
}

/// A real model's tokenizer, or `None` with a note when this machine does not have the file.
pub fn real(file: &str, test: &str) -> Option<Tokenizer> {
    let meta = Meta::read(&dunlin_testkit::models::find(file, test)?);
    let source = vocab_from_gguf(&meta, None).expect("the file has a vocabulary");
    Some(open(&build_image(&source).expect("the vocabulary builds")))
}

pub fn open(image: &[u8]) -> Tokenizer {
    Tokenizer::from_image(Arc::new(image.to_vec())).expect("the image opens")
}

/// Special tokens parsed, none added.
pub const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

/// Special tokens neither parsed nor added.
pub const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
