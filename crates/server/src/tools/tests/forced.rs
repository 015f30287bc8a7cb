//! Answers that a forced call allows are read as calls with arguments that fit.

use std::sync::Arc;

use dunlin_tokenizer::{
    TokenType, Tokenizer, VocabKind, VocabSource, build_image, grammar::GrammarCompiler,
};
use serde_json::{Value, json};

use super::*;

/// The 256 bytes, a control token and the end.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> = (0..256).map(|b| format!("<0x{b:02X}>").into()).collect();
    tokens.extend([b"[TOOL_CALLS]".to_vec(), b"<end>".to_vec()]);
    let mut types = vec![TokenType::Byte; 256];
    types.extend([TokenType::Control; 2]);
    let mut source = VocabSource::new(VocabKind::Spm, tokens.iter().map(Vec::as_slice).collect());
    source.scores = Some(vec![0.0; tokens.len()]);
    source.token_types = Some(types);
    source.ids.eos = Some(257);
    source.end_ids = vec![257];
    Tokenizer::from_image(Arc::new(build_image(&source).unwrap())).unwrap()
}

fn tools() -> Vec<Value> {
    let parameters = json!({"type": "object", "required": ["city", "days"], "properties":
        {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "additionalProperties": false, "$defs": {"city": {"enum": ["Ab", "Cd"]}}});
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "g"}}),
    ]
}

/// Whether the grammar of a forced call takes a text as a whole.
fn takes(format: ToolFormat, forced: &Forced, text: &str) -> bool {
    let compiler = GrammarCompiler::new(&tokenizer()).unwrap();
    let mut matcher = compiler.compile(&forced.grammar(format, &tools())).unwrap().matcher();
    let (first, rest) = match text.strip_prefix("[TOOL_CALLS]") {
        Some(rest) => (Some(256), rest),
        None => (None, text),
    };
    let tokens: Vec<u32> = first.into_iter().chain(rest.bytes().map(u32::from)).collect();
    let has = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    (0..tokens.len()).all(|at| has(matcher.allowed(&tokens[..at]).unwrap(), tokens[at]))
        && has(matcher.allowed(&tokens).unwrap(), 257)
}

#[test]
fn grammars_take_the_calls_that_parsers_read() {
    let right = r#"{"city":"Ab", "days": 3}"#;
    let f = |arguments: &str| {
        (
            format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>"),
            format!("{{\"name\": \"f\", \"parameters\": {arguments}}}"),
            format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {arguments}}}]"),
        )
    };
    let any = Forced { only: None, several: true };
    for (arguments, fits) in [
        (right, true),
        (r#"{"city": "Cd", "days": 9}"#, true),
        (r#"{"city":"Ab"}"#, false),
        (r#"{"city":"Ef","days":3}"#, false),
        (r#"{"city":"Ab","days":30}"#, false),
        (r#"{"city":"Ab","days":3,"x":1}"#, false),
        ("[]", false),
    ] {
        let (hermes, llama3, mistral) = f(arguments);
        for (format, text) in [
            (ToolFormat::Hermes, hermes),
            (ToolFormat::Llama3, llama3),
            (ToolFormat::Mistral, mistral),
        ] {
            assert_eq!(takes(format, &any, &text), fits, "{format:?} {text}");
            if fits {
                assert_eq!(parse(format, &text), [call("f", arguments)]);
            }
        }
    }
}

#[test]
fn how_many_and_which() {
    let one = |name: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"city\": \"Ab\", \"days\": 1}}}}\n</tool_call>"
        )
    };
    let (f, g) = (one("f"), one("g"));
    let any = |several| Forced { only: None, several };
    let only = |name: &str| Forced { only: Some(name.into()), several: false };
    let takes = |forced: &Forced, text: &str| takes(ToolFormat::Hermes, forced, text);
    assert!(takes(&any(false), &f) && takes(&any(false), &g));
    assert!(takes(&only("g"), &g) && !takes(&only("g"), &f));
    let two = format!("{f}\n{g}");
    assert!(takes(&any(true), &two) && !takes(&any(false), &two));
    assert_eq!(parse(ToolFormat::Hermes, &two).len(), 2);
    let nine = vec![g; 9].join("\n");
    assert!(!takes(&any(true), &nine));
    assert!(!takes(&any(true), "") && !takes(&any(true), "I will not."));
}
