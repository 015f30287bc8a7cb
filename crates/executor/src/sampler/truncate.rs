//! Which tokens stay in the running: min-p, top-k, typical-p, top-p.

use std::cmp::Reverse;

use super::{
    SamplingParams,
    scan::{BlockMaxima, Ranked},
};
use crate::math::{exp_nonpositive, ln, sum_exp};

/// A token that may still be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) rank: Ranked,
    /// The logit's distance from the largest, divided by the temperature: 0 or less.
    pub(super) score: f64,
    /// `e^score`: the probability up to a common factor.
    pub(super) weight: f64,
}

/// Whether any truncation is on.
pub(super) fn truncates(params: &SamplingParams, vocab_size: usize) -> bool {
    params.min_p > 0.0
        || (params.top_k > 0 && params.top_k < vocab_size)
        || params.typical_p < 1.0
        || params.top_p < 1.0
}

#[derive(Debug, Default)]
pub(super) struct Truncation {
    ranked: Vec<Ranked>,
    candidates: Vec<Candidate>,
}

impl Truncation {
    /// The tokens that the parameters leave, at least one. `max` is the largest logit, finite.
    pub(super) fn candidates(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        max: f32,
        maxima: &mut BlockMaxima,
    ) -> &[Candidate] {
        let temperature = f64::from(params.temperature);
        let min_p = f64::from(params.min_p);
        let k = if params.top_k == 0 { logits.len() } else { params.top_k.min(logits.len()) };
        let narrowed = min_p > 0.0 || k < logits.len() || params.typical_p < 1.0;
        if narrowed {
            let threshold = if min_p > 0.0 {
                f64::from(max) + temperature * ln(min_p)
            } else {
                f64::NEG_INFINITY
            };
            maxima.best(logits, k, threshold, &mut self.ranked);
            self.fill(max, temperature);
            if params.typical_p < 1.0 {
                self.keep_typical(f64::from(params.typical_p));
            }
            if params.top_p < 1.0 {
                let total = self.candidates.iter().map(|c| c.weight).sum();
                self.keep_nucleus(f64::from(params.top_p), total);
            }
        } else {
            let total = sum_exp(logits, max, 1.0 / temperature);
            self.collect_nucleus(params, logits, max, maxima, total);
            self.keep_nucleus(f64::from(params.top_p), total);
        }
        &self.candidates
    }

    /// Makes candidates of what was ranked, best first.
    fn fill(&mut self, max: f32, temperature: f64) {
        self.ranked.sort_unstable_by_key(|&r| Reverse(r));
        self.candidates.clear();
        self.candidates.extend(self.ranked.iter().map(|&rank| {
            let score = (f64::from(rank.logit()) - f64::from(max)) / temperature;
            Candidate { rank, score, weight: exp_nonpositive(score) }
        }));
    }

    /// Collects a superset of the nucleus of the whole vocabulary, by lowering a threshold until
    /// what lies above it has the mass.
    fn collect_nucleus(
        &mut self,
        params: &SamplingParams,
        logits: &[f32],
        max: f32,
        maxima: &BlockMaxima,
        total: f64,
    ) {
        let temperature = f64::from(params.temperature);
        for depth in [2.0, 4.0, 6.0, 9.0, 13.0, 20.0, f64::INFINITY] {
            self.ranked.clear();
            let ranked = &mut self.ranked;
            maxima.for_each_above(logits, f64::from(max) - depth * temperature, |token, x| {
                ranked.push(Ranked::new(token, x));
            });
            self.fill(max, temperature);
            let mass: f64 = self.candidates.iter().map(|c| c.weight).sum();
            if mass >= f64::from(params.top_p) * total {
                break;
            }
        }
    }

    /// Cuts the candidates, best first, where their mass reaches `p` of `total`.
    fn keep_nucleus(&mut self, p: f64, total: f64) {
        self.candidates.sort_unstable_by_key(|c| Reverse(c.rank));
        keep_mass(&mut self.candidates, p * total);
    }

    /// Keeps the candidates whose information is nearest to its expectation. With scores `s` and
    /// probabilities `w/Z`, a token's information is `ln Z - s`, so its distance from the entropy is
    /// the distance of `s` from its own mean.
    fn keep_typical(&mut self, p: f64) {
        let (mut total, mut mean) = (0.0, 0.0);
        for c in &self.candidates {
            total += c.weight;
            mean += c.weight * c.score;
        }
        mean /= total;
        self.candidates.sort_unstable_by(|a, b| {
            let distance = |c: &Candidate| (c.score - mean).abs();
            distance(a).total_cmp(&distance(b)).then(b.rank.cmp(&a.rank))
        });
        keep_mass(&mut self.candidates, p * total);
    }
}

/// Keeps the shortest head that has `mass`, at least one candidate.
fn keep_mass(candidates: &mut Vec<Candidate>, mass: f64) {
    let mut sum = 0.0;
    let kept = candidates.iter().position(|c| {
        sum += c.weight;
        sum >= mass
    });
    if let Some(last) = kept {
        candidates.truncate(last + 1);
    }
}
