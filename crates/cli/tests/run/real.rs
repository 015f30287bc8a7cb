//! The default model against the float64 oracle's golden files.

use dunlin_testkit::{golden, models};
use serde_json::json;

use crate::support::{Dunlin, numbers};

/// The default model, where this machine has it.
fn real(test: &str) -> Option<(golden::GoldenModel, Dunlin)> {
    let model = golden::MODELS[0];
    models::find(model.file, test).map(|path| (model, Dunlin::with_model(path)))
}

/// Greedy continuations agree with the golden ones up to a step whose margin is below what the
/// numeric settings may move two logits by; behind such a step the texts may honestly differ.
fn assert_golden(settings: &[&str], least_margin: f64) {
    let Some((model, dunlin)) = real("greedy continuations") else { return };
    let prompts = model.prompts();
    let lines: Vec<_> = prompts.iter().map(|p| json!({"prompt": p.text})).collect();
    let args = ["-n", "24", "--temperature", "0", "--raw", "--ignore-eos", "-c", "256"];
    let results = dunlin.batch(&[&args[..], settings].concat(), &lines);
    let (mut compared, mut decided) = (0, 0);
    for (prompt, result) in prompts.iter().zip(&results) {
        assert_eq!(result["bill"]["prompt_tokens"], prompt.ids.len(), "{}", prompt.text);
        let ids = numbers(result, "token_ids");
        assert_eq!(ids.len(), prompt.greedy.len());
        decided += ids.len();
        for (step, (&ours, &theirs)) in ids.iter().zip(&prompt.greedy).enumerate() {
            if ours != theirs {
                let margin = prompt.margins[step];
                assert!(
                    margin < least_margin,
                    "{:?}, step {step}: {ours} for {theirs}, whose margin is {margin}",
                    prompt.text
                );
                break;
            }
            compared += 1;
        }
    }
    assert!(compared * 2 > decided, "only {compared} of {decided} steps could be compared");
}

#[test]
fn greedy_continuations_of_the_reference_settings_are_golden() {
    assert_golden(&["--activations", "f32", "--kv-type", "f32"], 1e-3);
}

#[test]
fn greedy_continuations_of_the_default_settings_are_golden() {
    assert_golden(&[], 1.5);
}

#[test]
fn tokens_are_golden() {
    let Some((model, dunlin)) = real("tokens_are_golden") else { return };
    for case in model.tokens() {
        let ran = dunlin.feed("tokenize", &["--json"], case.text.as_bytes());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let ids = numbers(&serde_json::from_str(&ran.out).unwrap(), "ids");
        assert_eq!(ids, case.ids, "{:?}", case.text);
        let back = dunlin.feed("detokenize", &[], ran.out.as_bytes());
        assert_eq!(back.out, case.text);
    }
}

#[test]
fn the_capital_of_france_is_paris() {
    let Some((_, dunlin)) = real("the_capital_of_france_is_paris") else { return };
    let args = ["-p", "The capital of France is", "-n", "8", "--temperature", "0", "--raw"];
    assert!(dunlin.run(&args).out.starts_with(" Paris"));
}
