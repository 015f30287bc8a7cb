//! Golden files: what the float64 oracle answers for three real models.
//!
//! `data/golden/README.md` says where they come from and what each field means.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A model with golden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoldenModel {
    /// The name in the golden files.
    pub name: &'static str,
    /// The model's file name.
    pub file: &'static str,
}

/// Every model with golden files; the first is the product's default.
pub const MODELS: [GoldenModel; 3] = [
    GoldenModel { name: "smollm2-135m-instruct-q4_1", file: "SmolLM2-135M-Instruct.Q4_1.gguf" },
    GoldenModel { name: "gemma-3-270m-q4_k_m", file: "gemma-3-270m-q4_k_m.gguf" },
    GoldenModel {
        name: "qwen2.5-coder-0.5b-instruct-q4_k_m",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    },
];

/// A text and its token ids (no BOS added, special tokens parsed).
#[derive(Debug, Clone, Deserialize)]
pub struct TokenCase {
    /// The text.
    pub text: String,
    /// Its ids.
    pub ids: Vec<u32>,
}

/// A short prompt: logits at every position and a greedy continuation.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// The prompt.
    pub text: String,
    /// Its ids, with BOS where the model adds one.
    pub ids: Vec<u32>,
    /// The 20 largest logits of the last position, largest first.
    pub top: Vec<(u32, f64)>,
    /// ln of the sum of e^logit at the last position.
    pub logsumexp: f64,
    /// The ids at which `probe_logits` are given.
    pub probe_ids: Vec<u32>,
    /// `[ids.len(), probe_ids.len()]`.
    pub probe_logits: Vec<Vec<f64>>,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// For each of `greedy`, the best logit minus the second best.
    pub margins: Vec<f64>,
}

/// A long prompt: logits at its last positions.
#[derive(Debug, Clone, Deserialize)]
pub struct Long {
    /// The prompt's ids.
    pub ids: Vec<u32>,
    /// How many positions at the end are given.
    pub last_positions: usize,
    /// The ids at which `probe_logits` are given.
    pub probe_ids: Vec<u32>,
    /// `[last_positions, probe_ids.len()]`.
    pub probe_logits: Vec<Vec<f64>>,
    /// The largest logit's id at each of the last positions.
    pub argmax: Vec<u32>,
    /// The best logit minus the second best at each of the last positions.
    pub margins: Vec<f64>,
}

impl GoldenModel {
    /// Texts and their ids.
    pub fn tokens(&self) -> Vec<TokenCase> {
        let mut all: std::collections::BTreeMap<String, Vec<TokenCase>> = load("tokens.json");
        all.remove(self.name).unwrap_or_else(|| panic!("tokens.json has no {}", self.name))
    }

    /// Short prompts.
    pub fn prompts(&self) -> Vec<Prompt> {
        load(&format!("logits-{}.json", self.name))
    }

    /// The long prompt.
    pub fn long(&self) -> Long {
        load(&format!("long-{}.json", self.name))
    }
}

fn load<T: DeserializeOwned>(name: &str) -> T {
    let path = crate::data_path("golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The relative L2 error of `found` against `expected`, over all values.
///
/// # Panics
/// Where the lengths differ or either holds a value that is not finite.
pub fn relative_l2(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "as many values as expected");
    let (mut error, mut norm) = (0.0f64, 0.0f64);
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        assert!(f.is_finite() && e.is_finite(), "value {i} is {f}, expected {e}");
        error += (f64::from(f) - e).powi(2);
        norm += e * e;
    }
    (error / norm).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_files_hold_what_they_say() {
        for model in MODELS {
            assert!(model.tokens().len() >= 40);
            for p in model.prompts() {
                assert_eq!(p.probe_logits.len(), p.ids.len());
                assert!(p.probe_logits.iter().all(|row| row.len() == p.probe_ids.len()));
                assert_eq!(p.greedy[0], p.top[0].0, "the first greedy token is the top one");
                assert_eq!(p.greedy.len(), p.margins.len());
                assert!((p.top[0].1 - p.top[1].1 - p.margins[0]).abs() < 1e-6);
            }
            let long = model.long();
            assert_eq!(long.probe_logits.len(), long.last_positions);
            assert_eq!(long.argmax.len(), long.last_positions);
        }
    }

    #[test]
    fn relative_error_by_hand() {
        let error = relative_l2(&[3.0, 4.0, 1.0], &[3.0, 4.0, 0.0]);
        assert!((error - 0.2).abs() < 1e-12);
    }
}
