//! What a request may ask of the sampler, and the checks of it.

use super::truncate::truncates;

/// A sampling parameter that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {value} is out of range; {allowed}")]
pub struct ParamError {
    /// The field's name in [`SamplingParams`] (and on the wire).
    pub field: &'static str,
    /// What was given.
    pub value: String,
    /// What would be right.
    pub allowed: &'static str,
}

/// How tokens are chosen. The default samples from the model's own distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 takes the best token (the lowest id among equals).
    pub temperature: f32,
    /// Only the `top_k` best tokens stay; 0 is off.
    pub top_k: usize,
    /// Only the best tokens that together have this probability stay; 1 is off.
    pub top_p: f32,
    /// Only tokens with at least this share of the best token's probability stay; 0 is off.
    pub min_p: f32,
    /// Only the tokens nearest to the expected information that together have this probability
    /// stay (Meister et al., arXiv 2202.00666); 1 is off.
    pub typical_p: f32,
    /// Positive logits of tokens seen in prompt or output are divided by this, negative ones
    /// multiplied (Keskar et al., arXiv 1909.05858); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it is in the output; 0 is off.
    pub frequency_penalty: f32,
    /// The penalties look at this many last tokens; `None` looks at all.
    pub penalty_window: Option<usize>,
    /// Added to the logits of these tokens; minus infinity bans one.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the noise.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: None,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// The best token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every field against what it may hold, for a model of this vocabulary.
    ///
    /// # Errors
    /// The first field that cannot be used.
    pub fn validate(&self, vocab_size: usize) -> Result<(), ParamError> {
        let unit = "it must be from 0 to 1";
        let finite = "it must be a finite number";
        let checks = [
            (
                "temperature",
                self.temperature,
                self.temperature.is_finite() && self.temperature >= 0.0,
                "it must be a finite number, 0 or more",
            ),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), unit),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), unit),
            ("typical_p", self.typical_p, (0.0..=1.0).contains(&self.typical_p), unit),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "it must be a finite number above 0",
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.is_finite(),
                finite,
            ),
        ];
        for (field, value, good, allowed) in checks {
            if !good {
                return Err(ParamError { field, value: value.to_string(), allowed });
            }
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab_size {
                return Err(ParamError {
                    field: "logit_bias",
                    value: format!("token {token}"),
                    allowed: "token ids must be inside the vocabulary",
                });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(ParamError {
                    field: "logit_bias",
                    value: format!("{bias} for token {token}"),
                    allowed: "a bias must be a finite number or minus infinity",
                });
            }
        }
        Ok(())
    }

    /// Whether the choice is the largest logit's, whatever the tokens before.
    pub fn wants_best_alone(&self) -> bool {
        self.temperature == 0.0 && !self.penalizes() && self.logit_bias.is_empty()
    }

    /// Whether a choice under a grammar looks at all that is allowed: truncation goes by the allowed
    /// tokens' probabilities.
    pub(crate) fn wants_all_allowed(&self, vocab_size: usize) -> bool {
        self.temperature > 0.0 && truncates(self, vocab_size)
    }

    /// Whether any penalty is on.
    pub(crate) fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_fields_are_named() {
        let good = SamplingParams::default;
        let cases: [(&str, SamplingParams); 14] = [
            ("temperature", SamplingParams { temperature: f32::NAN, ..good() }),
            ("temperature", SamplingParams { temperature: -0.5, ..good() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..good() }),
            ("top_p", SamplingParams { top_p: 1.5, ..good() }),
            ("top_p", SamplingParams { top_p: f32::NAN, ..good() }),
            ("min_p", SamplingParams { min_p: -0.1, ..good() }),
            ("typical_p", SamplingParams { typical_p: 2.0, ..good() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..good() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: f32::NAN, ..good() }),
            ("presence_penalty", SamplingParams { presence_penalty: f32::INFINITY, ..good() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: f32::NAN, ..good() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(100, 0.0)], ..good() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::NAN)], ..good() }),
            ("logit_bias", SamplingParams { logit_bias: vec![(1, f32::INFINITY)], ..good() }),
        ];
        for (field, params) in cases {
            let error = params.validate(100).expect_err(field);
            assert_eq!(error.field, field);
            assert!(error.to_string().starts_with(field), "{error}");
        }
        good().validate(100).unwrap();
        let banned = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..good() };
        banned.validate(100).unwrap();
    }
}
