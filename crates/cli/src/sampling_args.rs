//! The flags of sampling. Defaults are llama.cpp's.

use dunlin_executor::sampler::SamplingParams;

use crate::outcome::unusable;

/// How tokens are chosen.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling", allow_negative_numbers = true)]
pub struct SamplingArgs {
    /// Logits are divided by this; 0 takes the best token each time
    #[arg(long, visible_alias = "temp", env = "DUNLIN_TEMPERATURE", default_value_t = 0.8)]
    #[arg(value_name = "T")]
    pub temperature: f32,

    /// Only the K best tokens stay; 0 is off
    #[arg(long, env = "DUNLIN_TOP_K", default_value_t = 40, value_name = "K")]
    pub top_k: usize,

    /// Only the best tokens with this probability together stay; 1 is off
    #[arg(long, env = "DUNLIN_TOP_P", default_value_t = 0.95, value_name = "P")]
    pub top_p: f32,

    /// Only tokens with this share of the best one's probability stay; 0 is off
    #[arg(long, env = "DUNLIN_MIN_P", default_value_t = 0.05, value_name = "P")]
    pub min_p: f32,

    /// Only the most typical tokens with this probability together stay; 1 is off
    #[arg(long, visible_alias = "typical", env = "DUNLIN_TYPICAL_P", default_value_t = 1.0)]
    #[arg(value_name = "P")]
    pub typical_p: f32,

    /// Logits of tokens in prompt or answer are weakened by this factor; 1 is off
    #[arg(long, visible_alias = "repeat-penalty", env = "DUNLIN_REPETITION_PENALTY")]
    #[arg(default_value_t = 1.0, value_name = "R")]
    pub repetition_penalty: f32,

    /// Subtracted from the logits of tokens in the answer
    #[arg(long, env = "DUNLIN_PRESENCE_PENALTY", default_value_t = 0.0, value_name = "A")]
    pub presence_penalty: f32,

    /// Subtracted from the logits of tokens in the answer, for each time they are in it
    #[arg(long, env = "DUNLIN_FREQUENCY_PENALTY", default_value_t = 0.0, value_name = "A")]
    pub frequency_penalty: f32,

    /// The penalties look at this many last tokens; -1 is all of them
    #[arg(long, visible_alias = "repeat-last-n", env = "DUNLIN_PENALTY_WINDOW")]
    #[arg(default_value_t = 64, value_name = "TOKENS")]
    pub penalty_window: i64,

    /// Added to a token's logit, as ID=BIAS; -inf bans it. May be given many times
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,

    /// The seed of the noise; the same seed gives the same text [default: a random one]
    #[arg(short, long, env = "DUNLIN_SEED")]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// The parameters, checked as far as they can be without a model.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn params(&self) -> anyhow::Result<SamplingParams> {
        let penalty_window = match self.penalty_window {
            -1 => None,
            window => Some(usize::try_from(window).map_err(|_| {
                unusable(format!("penalty_window: {window} is out of range; it must be -1 or more"))
            })?),
        };
        let params = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
        };
        params.validate(usize::MAX).map_err(unusable)?;
        Ok(params)
    }
}

/// A seed that differs from run to run, small enough for every JSON reader's numbers.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    // The standard library's hasher is keyed from the system's randomness.
    RandomState::new().hash_one(0u8) >> 32
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (token, bias) = text.split_once('=').ok_or("it is not of the form ID=BIAS")?;
    let token = token.trim().parse().map_err(|_| format!("{token:?} is no token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("{bias:?} is no number"))?;
    Ok((token, bias))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read() {
        assert_eq!(parse_bias("5=1.5"), Ok((5, 1.5)));
        assert_eq!(parse_bias("5=-inf"), Ok((5, f32::NEG_INFINITY)));
        for bad in ["", "5", "=1", "5=", "-1=2", "x=1"] {
            assert!(parse_bias(bad).is_err(), "{bad:?}");
        }
    }
}
