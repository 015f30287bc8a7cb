//! Real models against the float64 oracle's golden files, those of them that this machine has.

use dunlin_testkit::{golden, models};
use serde_json::json;

use crate::support::{Dunlin, numbers};

/// The models with golden files that are here.
fn real(test: &str) -> impl Iterator<Item = (golden::GoldenModel, Dunlin)> {
    golden::MODELS
        .into_iter()
        .filter_map(move |model| Some((model, Dunlin::with_model(models::find(model.file, test)?))))
}

/// Greedy continuations agree with the golden ones up to a step whose margin is below what the
/// numeric settings may move two logits by; behind such a step the texts may honestly differ.
fn assert_golden(test: &str, settings: &[&str], least_margin: f64) {
    for (model, dunlin) in real(test) {
        let prompts = model.prompts();
        let lines: Vec<_> = prompts.iter().map(|p| json!({"prompt": p.text})).collect();
        let args = ["-n", "24", "--temperature", "0", "--raw", "--ignore-eos", "-c", "256"];
        let results = dunlin.batch(&[&args[..], settings].concat(), &lines);
        let (mut compared, mut all) = (0, 0);
        for (prompt, result) in prompts.iter().zip(&results) {
            assert_eq!(result["bill"]["prompt_tokens"], prompt.ids.len(), "{}", prompt.text);
            let ids = numbers(result, "token_ids");
            assert_eq!(ids.len(), prompt.greedy.len());
            all += ids.len();
            for (step, (&ours, &theirs)) in ids.iter().zip(&prompt.greedy).enumerate() {
                if ours != theirs {
                    let margin = prompt.margins[step];
                    assert!(
                        margin < least_margin,
                        "{}, {:?}, step {step}: {ours} for {theirs}, whose margin is {margin}",
                        model.name,
                        prompt.text
                    );
                    break;
                }
                compared += 1;
            }
        }
        assert!(compared * 2 > all, "{}: only {compared} of {all} steps compared", model.name);
    }
}

#[test]
fn greedy_continuations_of_the_reference_settings_are_golden() {
    let test = "greedy_continuations_of_the_reference_settings_are_golden";
    assert_golden(test, &["--activations", "f32", "--kv-type", "f32"], 1e-3);
}

#[test]
fn greedy_continuations_of_the_default_settings_are_golden() {
    assert_golden("greedy_continuations_of_the_default_settings_are_golden", &[], 1.5);
}

#[test]
fn tokens_are_golden() {
    for (model, dunlin) in real("tokens_are_golden") {
        for case in model.tokens() {
            let ran = dunlin.feed("tokenize", &["--json"], case.text.as_bytes());
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            let ids = numbers(&serde_json::from_str(&ran.out).unwrap(), "ids");
            assert_eq!(ids, case.ids, "{}: {:?}", model.name, case.text);
            let back = dunlin.feed("detokenize", &[], ran.out.as_bytes());
            assert_eq!(back.out, case.text, "{}", model.name);
        }
    }
}

#[test]
fn the_default_model_knows_the_capital_of_france() {
    let Some((_, dunlin)) = real("the_default_model_knows_the_capital_of_france").next() else {
        return;
    };
    let args = ["-p", "The capital of France is", "-n", "8", "--temperature", "0", "--raw"];
    assert!(dunlin.run(&args).out.starts_with(" Paris"));
}
