//! Images and vocabularies made to deceive: nothing may panic, hang or name a token that is not.

use std::sync::Arc;

use crate::layout::{HEADER_LEN, VERSION};
use crate::pretok::PreTokenizer;
use crate::{
    DetokenizeOptions, Detokenizer, EncodeOptions, SpacePrefix, SpecialIds, TokenType, Tokenizer,
    TokenizerError, VocabKind, VocabSource, build_image, hash,
};

/// SplitMix64, seeded from `DUNLIN_TEST_SEED` or a fixed number, which is printed.
struct Rng(u64);

impl Rng {
    fn seeded() -> Rng {
        let seed = std::env::var("DUNLIN_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
        println!("DUNLIN_TEST_SEED={seed}");
        Rng(seed)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn text(&mut self, longest: usize) -> String {
        const CHARS: &[char] = &[
            'a', 'b', 'c', ' ', ' ', '\n', '1', '<', '>', 's', 'é', '中', '\u{2581}', '👍',
            '\u{301}',
        ];
        let len = self.below(longest + 1);
        (0..len).map(|_| CHARS[self.below(CHARS.len())]).collect()
    }

    /// A token: short text, now and then of bytes that are no text, or a name with a meaning.
    fn token(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => (0..self.below(4)).map(|_| self.below(256) as u8).collect(),
            1 => format!("<0x{:02X}>", self.below(256)).into_bytes(),
            2 => b"<s>".to_vec(),
            3 => "\u{2581}".as_bytes()[..1 + self.below(3)].to_vec(),
            4 => "Ġa".as_bytes().to_vec(),
            _ => self.text(3).into_bytes(),
        }
    }
}

/// Everything a tokenizer can be asked, on some texts.
fn exercise(tokenizer: &Tokenizer, rng: &mut Rng) {
    let n = tokenizer.n_tokens();
    for round in 0..6 {
        let text = rng.text(if round == 0 { 300 } else { 20 });
        let options =
            EncodeOptions { add_special: rng.below(2) == 0, parse_special: rng.below(2) == 0 };
        let ids = tokenizer.encode(&text, options).unwrap();
        assert!(ids.iter().all(|&id| id < n), "{ids:?}");
        tokenizer.decode(&ids, rng.below(2) == 0).unwrap();
        let options =
            DetokenizeOptions { skip_special: rng.below(2) == 0, at_start: rng.below(2) == 0 };
        let mut detokenizer = Detokenizer::new(tokenizer, options);
        let mut out = String::new();
        for id in ids {
            detokenizer.push(id, &mut out).unwrap();
            assert!(detokenizer.held_bytes() <= 3);
        }
        assert!(detokenizer.push(n, &mut out).is_err());
        detokenizer.finish(&mut out);
        tokenizer.token_id(&text);
    }
    for id in [0, n - 1, n, u32::MAX] {
        tokenizer.token_bytes(id);
        tokenizer.token_type(id);
    }
    tokenizer.end_ids();
    tokenizer.special_ids();
}

fn random_source<'a>(
    rng: &mut Rng,
    tokens: &'a [Vec<u8>],
    merges: &'a [(Vec<u8>, Vec<u8>)],
) -> VocabSource<'a> {
    let pres = [PreTokenizer::Gpt2, PreTokenizer::Qwen2, PreTokenizer::Whole, PreTokenizer::Words];
    let pre = pres[rng.below(pres.len())];
    let kind = match rng.below(3) {
        0 => VocabKind::Bpe { pre },
        1 => VocabKind::Spm,
        _ => VocabKind::BpeChars { pre },
    };
    let n = tokens.len();
    let mut source = VocabSource::new(kind, tokens.iter().map(Vec::as_slice).collect());
    let types = (0..n).map(|_| TokenType::from_gguf(rng.below(9) as i32)).collect();
    source.token_types = Some(types).filter(|_| rng.below(4) > 0);
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, -1.0, 1.0, f32::MAX];
    source.scores = Some((0..n).map(|_| odd[rng.below(odd.len())]).collect());
    source.merges = Some(merges.iter().map(|(l, r)| (l.as_slice(), r.as_slice())).collect());
    let id = |rng: &mut Rng| (rng.below(3) == 0).then(|| rng.below(n.max(1)) as u32);
    source.ids = SpecialIds {
        bos: id(rng),
        eos: id(rng),
        eot: id(rng),
        eom: id(rng),
        unk: id(rng),
        pad: id(rng),
    };
    source.lstrip_ids.extend(id(rng));
    source.rstrip_ids.extend(id(rng));
    source.end_ids.extend(id(rng));
    source.add_bos = rng.below(2) == 0;
    source.add_eos = rng.below(4) == 0;
    source.space_prefix = SpacePrefix::from_code(rng.below(4) as u32).unwrap();
    source.strip_leading_space = rng.below(2) == 0;
    source.ignore_merges = rng.below(2) == 0;
    source.nfc = rng.below(2) == 0;
    source
}

fn random_image(rng: &mut Rng) -> Option<Vec<u8>> {
    let n = rng.below(40);
    let tokens: Vec<Vec<u8>> = (0..n).map(|_| rng.token()).collect();
    let merges: Vec<_> = (0..rng.below(40)).map(|_| (rng.token(), rng.token())).collect();
    build_image(&random_source(rng, &tokens, &merges)).ok()
}

#[test]
fn strange_vocabularies_work_or_are_refused() {
    let mut rng = Rng::seeded();
    let mut built = 0;
    for _ in 0..3000 {
        if let Some(image) = random_image(&mut rng) {
            built += 1;
            exercise(&Tokenizer::from_image(Arc::new(image)).unwrap(), &mut rng);
        }
    }
    assert!(built > 500, "{built}");
}

/// Puts the right checksum on a header.
fn seal(image: &mut [u8]) {
    if image.len() >= HEADER_LEN {
        let sum = hash::bytes(u64::from(VERSION), &image[..HEADER_LEN - 8]);
        image[HEADER_LEN - 8..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn broken_images_work_or_are_refused() {
    let mut rng = Rng::seeded();
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..400 {
        let Some(image) = random_image(&mut rng) else { continue };
        for _ in 0..20 {
            let mut broken = image.clone();
            // Below, all of the header that has a meaning; above, the arrays.
            let end = if rng.below(2) == 0 { 288 } else { broken.len() };
            for _ in 0..1 + rng.below(8) {
                let at = rng.below(end);
                broken[at] = match rng.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => broken[at] ^ (1 << rng.below(8)),
                    _ => rng.below(256) as u8,
                };
            }
            if rng.below(8) == 0 {
                broken.truncate(rng.below(broken.len()));
            }
            seal(&mut broken);
            match Tokenizer::from_image(Arc::new(broken)) {
                Ok(tokenizer) => {
                    opened += 1;
                    exercise(&tokenizer, &mut rng);
                }
                Err(TokenizerError::BadImage { .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(opened > 500 && refused > 500, "{opened} opened, {refused} refused");
}

#[test]
fn an_image_that_was_not_sealed_is_refused() {
    let mut source = VocabSource::new(VocabKind::Spm, vec![b"a"]);
    source.scores = Some(vec![0.0]);
    let image = build_image(&source).unwrap();
    for at in 0..HEADER_LEN {
        let mut broken = image.clone();
        broken[at] ^= 1;
        assert!(Tokenizer::from_image(Arc::new(broken)).is_err(), "byte {at}");
    }
    for len in [0, 1, HEADER_LEN - 1, HEADER_LEN, image.len() - 1] {
        assert!(Tokenizer::from_image(Arc::new(image[..len].to_vec())).is_err(), "length {len}");
    }
}

#[test]
fn what_is_missing_or_out_of_range_is_named() {
    let bpe = VocabKind::Bpe { pre: PreTokenizer::Gpt2 };
    let message = |source: &VocabSource<'_>| build_image(source).unwrap_err().to_string();
    assert!(message(&VocabSource::new(bpe, Vec::new())).contains("empty"));
    assert!(message(&VocabSource::new(bpe, vec![b"a"])).contains("merges"));
    assert!(message(&VocabSource::new(VocabKind::Spm, vec![b"a"])).contains("scores"));
    let mut source = VocabSource::new(bpe, vec![b"a", b"b"]);
    source.merges = Some(Vec::new());
    assert!(build_image(&source).is_ok());
    source.ids.eos = Some(2);
    assert!(message(&source).contains("eos is token 2"));
    source.ids.eos = Some(u32::MAX);
    assert!(message(&source).contains("eos is token 4294967295"));
    source.ids.eos = None;
    source.end_ids = vec![7];
    assert!(message(&source).contains("token 7"));
    source.end_ids.clear();
    source.add_bos = true;
    assert!(message(&source).contains("bos"));
    source.add_bos = false;
    source.token_types = Some(vec![TokenType::Normal]);
    assert!(message(&source).contains("token types has 1 entries for 2 tokens"));
    source.token_types = None;
    source.scores = Some(vec![0.0; 3]);
    assert!(message(&source).contains("scores has 3 entries for 2 tokens"));
}

#[test]
fn of_equal_tokens_the_first_is_used() {
    let mut source =
        VocabSource::new(VocabKind::Spm, vec![b"a", b"b", b"ab", b"ab", b"a", b"<x>", b"<x>"]);
    source.scores = Some(vec![0.0; 7]);
    let mut types = vec![TokenType::Normal; 7];
    types[5] = TokenType::Control;
    types[6] = TokenType::UserDefined;
    source.token_types = Some(types);
    let tokenizer = Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap();
    let options = EncodeOptions { add_special: false, parse_special: true };
    assert_eq!(tokenizer.encode("aba<x>", options).unwrap(), [2, 0, 5]);
    assert_eq!(tokenizer.decode(&[3, 4, 6], true).unwrap(), b"aba<x>");
}

#[test]
fn pieces_that_are_no_tokens_are_spelt_in_bytes() {
    // a b makes a piece that is no token, but leads to one.
    let mut source = VocabSource::new(
        VocabKind::Bpe { pre: PreTokenizer::Gpt2 },
        vec![b"a", b"b", b"c", b"abc"],
    );
    source.merges =
        Some(vec![(b"a", b"b"), (b"ab", b"c"), (b"b", b"\xff"), ("中".as_bytes(), b"a")]);
    let tokenizer = Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap();
    let options = EncodeOptions { add_special: false, parse_special: true };
    assert_eq!(tokenizer.encode("abcab", options).unwrap(), [3, 0, 1]);
    // A byte without a token cannot be spelt.
    assert_eq!(tokenizer.encode("azb", options).unwrap(), [0, 1]);
    assert_eq!(tokenizer.token_of_byte(b'z'), None);
}

#[test]
fn long_words_take_n_log_n() {
    let len = 1 << 20;
    let words = ["a".repeat(len), "ab".repeat(len / 2), {
        let mut rng = Rng::seeded();
        (0..len).map(|_| char::from(b'a' + rng.below(3) as u8)).collect()
    }];
    let tokens: Vec<&[u8]> = vec![b"a", b"b", b"c", b"aa", b"ab", b"aaaa", b"abab", b"cab"];
    let merges: Vec<(&[u8], &[u8])> =
        vec![(b"a", b"a"), (b"a", b"b"), (b"aa", b"aa"), (b"ab", b"ab"), (b"c", b"ab")];
    let kinds = [
        VocabKind::Bpe { pre: PreTokenizer::Gpt2 },
        VocabKind::Spm,
        VocabKind::BpeChars { pre: PreTokenizer::Whole },
    ];
    let options = EncodeOptions { add_special: false, parse_special: true };
    for kind in kinds {
        let mut source = VocabSource::new(kind, tokens.clone());
        source.merges = Some(merges.clone());
        source.scores = Some((0..8).map(|i| -(i as f32)).collect());
        let tokenizer = Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap();
        for word in &words {
            let ids = tokenizer.encode(word, options).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), word.as_bytes());
            assert!(ids.len() < len);
        }
    }
}
