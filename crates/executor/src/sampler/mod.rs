//! From logits to a token.
//!
//! The chain, in this order (vLLM's, whose request fields the server will take; temperature comes
//! before truncation as OpenAI's and Hugging Face's APIs have it, while llama.cpp's default puts it
//! last):
//!
//! 0. what a grammar does not allow is left out,
//! 1. logit bias,
//! 2. repetition penalty (prompt and output), then presence and frequency penalties (output),
//! 3. temperature; 0 takes the best token here and ends the chain,
//! 4. min-p,
//! 5. top-k,
//! 6. typical-p,
//! 7. top-p, each within what the step before left, at least one token,
//! 8. the choice, by Gumbel-max with noise keyed by (seed, choice, position, token id).
//!
//! A token is a function of its sequence's tokens, the logits, the parameters and the choice's
//! number alone: batching, chunking and speculation cannot change it. Log-probabilities are those
//! of the model's own distribution, before step 0, whatever the chain does.
//!
//! Not here: what a grammar allows, and the verification of drafts.

mod choices;
mod edits;
mod gumbel;
mod params;
mod residual;
mod scan;
mod truncate;

pub use choices::Choice;
pub use params::{ParamError, SamplingParams};
pub use residual::Drawn;
#[cfg(test)]
pub(crate) use residual::{Weight, law};

use std::cmp::Reverse;

use dunlin_tensor::Best;
use dunlin_tokenizer::grammar::{GrammarError, GrammarMatcher};
use dunlin_units::{Noise, Purpose};

use crate::math::{ln, sum_exp};
use edits::Edits;
use scan::{BadLogits, BlockMaxima, Ranked};
use truncate::Truncation;

/// Logits that no token can be chosen from. Ends the sequence that they are of, and no other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// A logit is not a number.
    #[error(
        "the model produced NaN logits at position {position}: its weights hold NaN or it overflows"
    )]
    NotANumber {
        /// The position whose token was to be chosen.
        position: usize,
    },
    /// A logit is plus infinity, or all are minus infinity.
    #[error("the model produced infinite logits at position {position}: it overflows")]
    Infinite {
        /// The position whose token was to be chosen.
        position: usize,
    },
    /// The biases ban every token.
    #[error("logit_bias bans every token that is left at position {position}")]
    NothingLeft {
        /// The position whose token was to be chosen.
        position: usize,
    },
    /// The grammar has nothing to say about how to go on.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
}

/// Where in which sequence a token is chosen.
#[derive(Debug, Clone, Copy)]
pub struct SamplePlace<'a> {
    /// The tokens before it, prompt and output; their number is the new token's position.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// The number of this choice among the samples of one prompt.
    pub choice: u32,
}

impl<'a> SamplePlace<'a> {
    /// The tokens after the prompt.
    pub fn output(&self) -> &'a [u32] {
        &self.tokens[self.prompt_len.min(self.tokens.len())..]
    }

    /// What decides between tokens here.
    fn noise(&self, seed: u64) -> Noise {
        Noise::new(seed, self.choice, self.tokens.len() as u64, Purpose::Sample)
    }
}

/// A token and its log-probability under the model's own distribution (temperature 1, nothing
/// biased, penalized or truncated).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f64,
}

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability, where that was wanted.
    pub logprob: Option<f64>,
}

/// Chooses tokens. Holds nothing but scratch memory: any sampler gives the same answers.
#[derive(Debug, Default)]
pub struct Sampler {
    maxima: BlockMaxima,
    edits: Edits,
    truncation: Truncation,
    alternatives: Vec<Ranked>,
    top: Vec<TokenLogprob>,
    /// `[vocab_size]`: the logits with minus infinity where a token is not allowed.
    masked: Vec<f32>,
    /// Tokens and probabilities.
    weights: Vec<residual::Weight>,
}

impl Sampler {
    /// A sampler; it allocates at its first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a token from `logits`, `[vocab_size]`, which are left as they were. With `logprobs`,
    /// the log-probability is computed too, and that many best tokens are left in
    /// [`Sampler::top_logprobs`]. The parameters must have passed [`SamplingParams::validate`].
    ///
    /// # Errors
    /// Logits that are NaN or infinite, and biases that leave no token.
    pub fn sample(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        logprobs: Option<usize>,
    ) -> Result<Sampled, SampleError> {
        self.sample_allowed(params, place, logits, logprobs, None)
    }

    /// The same among the tokens whose bits are set in `allowed`: bit `i % 32` of word `i / 32` is
    /// token `i`, and tokens without a word are not allowed.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_allowed(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        logprobs: Option<usize>,
        allowed: Option<&[u32]>,
    ) -> Result<Sampled, SampleError> {
        self.sample_with(params, place, logits, logprobs, |sampler, logits| match allowed {
            None => Ok(sampler.choose(params, place, logits)),
            Some(allowed) => Ok(sampler.choose_allowed(params, place, logits, allowed)),
        })
    }

    /// The same among the tokens that a grammar allows after the output so far: what
    /// [`Sampler::sample_allowed`] chooses of them, and mostly without their having been found. The
    /// value that decides is a token's own, so what has the largest of all has the largest of those
    /// that are allowed, if it is one; the grammar is asked about it alone. (Truncation looks at all
    /// allowed tokens' probabilities, so they are found.)
    ///
    /// # Errors
    /// As [`Sampler::sample`], and what the grammar has to say.
    pub fn sample_following(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        logprobs: Option<usize>,
        grammar: &mut GrammarMatcher,
    ) -> Result<Sampled, SampleError> {
        let wants_all = params.wants_all_allowed(logits.len());
        self.sample_with(params, place, logits, logprobs, |sampler, logits| {
            let best = if wants_all { None } else { sampler.choose(params, place, logits) };
            if let Some(best) = best.filter(|&t| grammar.surely_allows(place.output(), t)) {
                return Ok(Some(best));
            }
            let allowed = grammar.allowed(place.output())?;
            Ok(sampler.choose_allowed(params, place, logits, allowed))
        })
    }

    /// Has a token chosen from the edited logits.
    fn sample_with(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        logprobs: Option<usize>,
        choose: impl FnOnce(&mut Self, &[f32]) -> Result<Option<u32>, SampleError>,
    ) -> Result<Sampled, SampleError> {
        let raw_max = self.scan(place, logits)?;
        let log_sum = logprobs.map(|count| self.rank_logprobs(logits, raw_max, count));
        let chosen = self.edited(params, place, logits, None, choose)?;
        let token = chosen.ok_or(SampleError::NothingLeft { position: place.tokens.len() })?;
        let logprob = log_sum.map(|log_sum| f64::from(logits[token as usize]) - log_sum);
        Ok(Sampled { token, logprob })
    }

    /// Looks at all logits; the largest.
    fn scan(&mut self, place: SamplePlace<'_>, logits: &[f32]) -> Result<f32, SampleError> {
        let position = place.tokens.len();
        self.top.clear();
        self.maxima.scan(logits).map_err(|bad| match bad {
            BadLogits::NotANumber => SampleError::NotANumber { position },
            BadLogits::Infinite => SampleError::Infinite { position },
        })?;
        let max = self.maxima.max();
        if max == f32::NEG_INFINITY {
            return Err(SampleError::Infinite { position });
        }
        Ok(max)
    }

    /// Steps 0 to 2 for as long as `look` looks, at logits that were scanned.
    fn edited<R>(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        allowed: Option<&[u32]>,
        look: impl FnOnce(&mut Self, &[f32]) -> R,
    ) -> R {
        let Some(allowed) = allowed else {
            self.edits.apply(params, place.tokens, place.prompt_len, logits, &mut self.maxima);
            let result = look(self, logits);
            self.edits.undo(logits);
            return result;
        };
        let mut masked = std::mem::take(&mut self.masked);
        mask(logits, allowed, &mut masked);
        // The logits were looked at before, and none was added.
        let _ = self.maxima.scan(&masked);
        let edits = &mut self.edits;
        edits.apply(params, place.tokens, place.prompt_len, &mut masked, &mut self.maxima);
        let result = look(self, &masked);
        self.masked = masked;
        result
    }

    /// The best tokens of the last [`Sampler::sample`], best first, the lower id among equals.
    pub fn top_logprobs(&self) -> &[TokenLogprob] {
        &self.top
    }

    /// Ranks the best alternatives, and returns the logits' log-sum-exp.
    fn rank_logprobs(&mut self, logits: &[f32], max: f32, count: usize) -> f64 {
        let log_sum = f64::from(max) + ln(sum_exp(logits, max, 1.0));
        let count = count.min(logits.len());
        self.maxima.best(logits, count, f64::NEG_INFINITY, &mut self.alternatives);
        self.alternatives.sort_unstable_by_key(|&r| Reverse(r));
        self.top.extend(
            self.alternatives.iter().map(|r| TokenLogprob {
                token: r.token(),
                logprob: f64::from(r.logit()) - log_sum,
            }),
        );
        log_sum
    }

    /// Steps 3 to 8 on edited logits; `None` where all of them are minus infinity.
    fn choose(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &[f32],
    ) -> Option<u32> {
        let max = self.maxima.max();
        if max == f32::NEG_INFINITY {
            return None;
        }
        let argmax = self.maxima.argmax(logits)?;
        if params.temperature == 0.0 {
            return Some(argmax);
        }
        let noise = place.noise(params.seed);
        if truncate::truncates(params, logits.len()) {
            let left = self.truncation.candidates(params, logits, max, &mut self.maxima);
            gumbel::choose(left, &noise)
        } else {
            Some(gumbel::choose_of_all(logits, argmax, params.temperature, &noise))
        }
    }

    /// The same among the tokens whose bits are set; `None` where all of those are minus infinity.
    fn choose_allowed(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &[f32],
        allowed: &[u32],
    ) -> Option<u32> {
        if params.wants_all_allowed(logits.len()) {
            let mut masked = std::mem::take(&mut self.masked);
            mask(logits, allowed, &mut masked);
            // The logits were looked at before, and none was added.
            let _ = self.maxima.scan(&masked);
            let chosen = self.choose(params, place, &masked);
            self.masked = masked;
            return chosen;
        }
        let argmax = self.maxima.argmax_of(logits, allowed)?;
        if params.temperature == 0.0 {
            return Some(argmax);
        }
        let base = Some(self.maxima.max()).filter(|max| max.is_finite());
        let base = base.unwrap_or(logits[argmax as usize]);
        let noise = place.noise(params.seed);
        let temperature = params.temperature;
        Some(gumbel::choose_of_allowed(logits, allowed, argmax, base, temperature, &noise))
    }
}

/// What [`Sampler::sample`] chooses where [`SamplingParams::wants_best_alone`], from the best of the
/// logits alone.
///
/// # Errors
/// As there.
pub fn sample_best(best: Best, place: SamplePlace<'_>) -> Result<Sampled, SampleError> {
    let position = place.tokens.len();
    if best.logit.is_nan() {
        Err(SampleError::NotANumber { position })
    } else if best.logit.is_infinite() {
        Err(SampleError::Infinite { position })
    } else {
        Ok(Sampled { token: best.token, logprob: None })
    }
}

/// Copies the logits of allowed tokens, and gives the others minus infinity.
fn mask(logits: &[f32], allowed: &[u32], masked: &mut Vec<f32>) {
    masked.clear();
    masked.reserve(logits.len());
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks(32).zip(words) {
        match word {
            0 => masked.extend(chunk.iter().map(|_| f32::NEG_INFINITY)),
            u32::MAX => masked.extend_from_slice(chunk),
            word => {
                masked.extend(chunk.iter().enumerate().map(|(bit, &logit)| {
                    if word >> bit & 1 == 1 { logit } else { f32::NEG_INFINITY }
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests;
