//! What a model that is much like this one would choose: tokens to draft, best first.

use std::cmp::Reverse;

use super::{SampleError, SamplePlace, Sampler, SamplingParams, gumbel, truncate};
use crate::math::{exp_nonpositive, sum_exp};

/// The best tokens that are looked at where a token is drawn from the whole vocabulary.
const LOOKED_AT: usize = 64;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// How sure it is, from 0 to 1; together at most 1. Of a greedy choice, the token's probability;
    /// of a drawn one, how far it is ahead of the others with the noise that decides.
    pub sure: f64,
}

impl Sampler {
    /// The `count` tokens (at least one) that come first in the choice that [`Sampler::sample`] makes,
    /// best first: the first is the one that it takes.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn choices(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        count: usize,
        to: &mut Vec<Choice>,
    ) -> Result<(), SampleError> {
        to.clear();
        self.scan(place, logits)?;
        self.edited(params, place, logits, None, |sampler, logits| {
            if params.temperature == 0.0 {
                sampler.rank_greedy(logits, count, to);
            } else {
                sampler.rank_drawn(params, place, logits, to);
            }
        });
        to.truncate(count.max(1));
        if to.is_empty() {
            return Err(SampleError::NothingLeft { position: place.tokens.len() });
        }
        Ok(())
    }

    fn rank_greedy(&mut self, logits: &[f32], count: usize, to: &mut Vec<Choice>) {
        let max = self.maxima.max();
        self.maxima.best(logits, count.max(1), f64::NEG_INFINITY, &mut self.alternatives);
        self.alternatives.sort_unstable_by_key(|&r| Reverse(r));
        let total = sum_exp(logits, max, 1.0);
        to.extend(self.alternatives.iter().map(|r| Choice {
            token: r.token(),
            sure: exp_nonpositive(f64::from(r.logit()) - f64::from(max)) / total,
        }));
    }

    fn rank_drawn(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &[f32],
        to: &mut Vec<Choice>,
    ) {
        let Some(chosen) = self.choose(params, place, logits) else { return };
        let noise = place.noise(params.seed);
        let max = self.maxima.max();
        let temperature = f64::from(params.temperature);
        let value = |token: u32| {
            let logit = f64::from(logits[token as usize]);
            (logit - f64::from(max)) / temperature + gumbel::gumbel(noise.u64_at(token))
        };
        let mut add = |token: u32| to.push(Choice { token, sure: value(token) });
        if truncate::truncates(params, logits.len()) {
            let left = self.truncation.candidates(params, logits, max, &mut self.maxima);
            left.iter().for_each(|candidate| add(candidate.rank.token()));
        } else {
            self.maxima.best(logits, LOOKED_AT, f64::NEG_INFINITY, &mut self.alternatives);
            let others = self.alternatives.iter().map(|r| r.token()).filter(|&t| t != chosen);
            others.chain([chosen]).for_each(add);
        }
        to.sort_unstable_by(|a, b| b.sure.total_cmp(&a.sure).then(a.token.cmp(&b.token)));
        let best = to[0].sure;
        to.iter_mut().for_each(|choice| choice.sure = exp_nonpositive(choice.sure - best));
        let total: f64 = to.iter().map(|choice| choice.sure).sum();
        to.iter_mut().for_each(|choice| choice.sure /= total);
    }
}
