//! Exact agreement with ids made by the models' own tokenizers.

mod common;

use common::{PARSED, PLAIN, Rng, real, seed};
use dunlin_testkit::golden::MODELS;
use dunlin_tokenizer::{DetokenizeOptions, Detokenizer, EncodeOptions};

#[test]
fn ids_agree_with_the_golden_file() {
    for model in MODELS {
        let Some(tokenizer) = real(model.file, "ids_agree_with_the_golden_file") else { continue };
        for case in model.tokens() {
            let ids = tokenizer.encode(&case.text, PARSED).unwrap();
            assert_eq!(ids, case.ids, "{}: {:?}", model.name, case.text);
        }
    }
}

#[test]
fn prompts_agree_with_the_golden_file() {
    let with_bos = EncodeOptions { add_special: true, parse_special: true };
    for model in MODELS {
        let Some(tokenizer) = real(model.file, "prompts_agree_with_the_golden_file") else {
            continue;
        };
        for prompt in model.prompts() {
            let ids = tokenizer.encode(&prompt.text, with_bos).unwrap();
            assert_eq!(ids, prompt.ids, "{}: {:?}", model.name, prompt.text);
        }
    }
}

#[test]
fn text_survives_the_round_trip() {
    let mut rng = Rng(seed());
    for model in MODELS {
        let Some(tokenizer) = real(model.file, "text_survives_the_round_trip") else { continue };
        let missing: Vec<u8> =
            (0..=255u8).filter(|&byte| tokenizer.token_of_byte(byte).is_none()).collect();
        println!("{}: bytes without a token: {missing:?}", model.name);
        for _ in 0..300 {
            let text = rng.text(60);
            // This vocabulary reads U+2581 as a space.
            let expected = match model.name.starts_with("gemma") {
                true => text.replace('\u{2581}', " "),
                false => text.clone(),
            };
            let expected: Vec<u8> =
                expected.bytes().filter(|byte| !missing.contains(byte)).collect();
            let ids = tokenizer.encode(&text, PLAIN).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), expected, "{text:?}");
            let options = DetokenizeOptions { skip_special: false, at_start: true };
            let mut detokenizer = Detokenizer::new(&tokenizer, options);
            let mut out = String::new();
            for id in ids {
                detokenizer.push(id, &mut out).unwrap();
                assert!(detokenizer.held_bytes() <= 3);
            }
            detokenizer.finish(&mut out);
            assert_eq!(out, String::from_utf8_lossy(&expected), "{text:?}");
        }
    }
}
