//! Residual sampling: a token that was drawn from a drafter's distribution is taken or replaced such
//! that what comes out has the model's distribution (Leviathan et al., arXiv 2211.17192; Chen et al.,
//! arXiv 2302.01318): contract `distribution`.
//!
//! With the model's probabilities `p` and a token `x` drawn from `q`, `x` is taken with probability
//! `min(1, p(x) / q(x))`, and else a token is drawn from the residual `max(0, p - q)`. The result has
//! the distribution `p` whatever `q` is, as long as nothing that decides whether this is done depends
//! on `x`. So it does not matter which other tokens were proposed beside `x`, or whether any of them
//! is verified: they are accepted where they are what came out.
//!
//! That is what shapes the proposals ([`Sampler::draw_proposals`]): all but one of a node's tokens are
//! the drafter's best, which need no luck, and the last is drawn from what is left of its distribution.
//! A token that is refused so leaves a residual with the drafter's best tokens in it, which are
//! proposed, too (the setting of ResiSpec, B015). The probability that one is accepted is `p` of the
//! best tokens and `sum min(p, q)` over the others: more than with all of them drawn one after the
//! other (recursive rejection sampling).

use std::cmp::Reverse;

use dunlin_units::{Noise, Purpose};

use super::{Choice, SampleError, SamplePlace, Sampled, Sampler, SamplingParams, truncate};
use crate::math::exp_nonpositive;

/// Tokens that a proposal is drawn from at most: the drafter's best.
const DRAWN_FROM: usize = 64;
/// How sure a drawn token is of being taken, where it is the only one: what two models that are much
/// alike have in common.
const SURE: f64 = 0.75;

/// A token and its probability.
pub(crate) type Weight = (u32, f64);

/// A token that was drawn, and what from.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// The probabilities that it was drawn with, by token; they sum to 1.
    pub from: Vec<(u32, f64)>,
}

impl Drawn {
    /// The same in other tokens, each of which has one of its own.
    pub(crate) fn renamed(mut self, name: impl Fn(u32) -> u32) -> Self {
        self.token = name(self.token);
        self.from.iter_mut().for_each(|w| w.0 = name(w.0));
        self.from.sort_unstable_by_key(|w| w.0);
        self
    }

    fn probability(&self, token: u32) -> f64 {
        self.from.binary_search_by_key(&token, |w| w.0).map_or(0.0, |at| self.from[at].1)
    }
}

/// The probability with which a drawn token is taken.
fn acceptance(p: &[Weight], drawn: &Drawn) -> f64 {
    let of = p.iter().find(|w| w.0 == drawn.token).map_or(0.0, |w| w.1);
    match drawn.probability(drawn.token) {
        q if q > of => of / q,
        _ => 1.0,
    }
}

/// What is left of `p` for tokens that come in the place of a drawn one; not normed.
fn residual<'a>(p: &'a [Weight], drawn: &'a Drawn) -> impl Iterator<Item = Weight> + Clone + 'a {
    p.iter().map(|&(token, of)| (token, (of - drawn.probability(token)).max(0.0)))
}

/// The token at `unit`, from 0 to 1, of the way through weights whose sum is above zero.
fn pick(weights: impl Iterator<Item = Weight> + Clone, unit: f64) -> Option<u32> {
    let total: f64 = weights.clone().map(|w| w.1).sum();
    let mut left = unit * total;
    let mut last = None;
    for (token, weight) in weights.filter(|w| w.1 > 0.0) {
        last = Some(token);
        if left < weight {
            break;
        }
        left -= weight;
    }
    last
}

/// The token that comes out, of the model's probabilities and of one that was drawn.
fn verify(p: &[Weight], drawn: &Drawn, accept: f64, replace: f64) -> Option<u32> {
    if accept < acceptance(p, drawn) {
        return Some(drawn.token);
    }
    // Nothing is left where both are the same, and then the token is taken but for rounding.
    pick(residual(p, drawn), replace).or(Some(drawn.token))
}

impl Sampler {
    /// [`Sampler::sample_allowed`] where a token was drawn for this place.
    ///
    /// # Errors
    /// As there.
    pub fn sample_drawn(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        logprobs: Option<usize>,
        allowed: Option<&[u32]>,
        drawn: &Drawn,
    ) -> Result<Sampled, SampleError> {
        if params.temperature == 0.0 {
            return self.sample_allowed(params, place, logits, logprobs, allowed);
        }
        let max = self.scan(place, logits)?;
        let log_sum = logprobs.map(|count| self.rank_logprobs(logits, max, count));
        let mut weights = std::mem::take(&mut self.weights);
        self.edited(params, place, logits, allowed, |sampler, logits| {
            sampler.probabilities(params, logits, &mut weights);
        });
        let position = place.tokens.len();
        let unit =
            |purpose| Noise::new(params.seed, place.choice, position as u64, purpose).unit_f64(0);
        let token = if weights.is_empty() {
            None
        } else {
            verify(&weights, drawn, unit(Purpose::Accept), unit(Purpose::Resample))
        };
        self.weights = weights;
        let token = token.ok_or(SampleError::NothingLeft { position })?;
        let logprob = log_sum.map(|log_sum| f64::from(logits[token as usize]) - log_sum);
        Ok(Sampled { token, logprob })
    }

    /// Tokens to propose at a place, `count` at most, of those that are `sayable`: the best, and a last
    /// one that is drawn from what is left, if anything is.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn draw_proposals(
        &mut self,
        params: &SamplingParams,
        place: SamplePlace<'_>,
        logits: &mut [f32],
        count: usize,
        sayable: impl Fn(u32) -> bool,
        to: &mut Vec<Choice>,
    ) -> Result<Option<Drawn>, SampleError> {
        to.clear();
        self.scan(place, logits)?;
        let mut weights = std::mem::take(&mut self.weights);
        self.edited(params, place, logits, None, |sampler, logits| {
            sampler.probabilities(params, logits, &mut weights);
        });
        weights.retain(|w| sayable(w.0));
        weights.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let best = count.saturating_sub(1).min(weights.len());
        to.extend(weights[..best].iter().map(|&(token, sure)| Choice { token, sure }));
        let mut from: Vec<Weight> = weights[best..].iter().take(DRAWN_FROM).copied().collect();
        self.weights = weights;
        let left: f64 = from.iter().map(|w| w.1).sum();
        if left <= 0.0 {
            return Ok(None);
        }
        from.sort_unstable_by_key(|w| w.0);
        from.iter_mut().for_each(|w| w.1 /= left);
        let position = place.tokens.len() as u64;
        let noise = Noise::new(params.seed, place.choice, position, Purpose::Draft);
        let Some(token) = pick(from.iter().copied(), noise.unit_f64(0)) else { return Ok(None) };
        to.push(Choice { token, sure: SURE * left });
        to.sort_by_key(|choice| Reverse((choice.sure * f64::from(u32::MAX)) as u64));
        Ok(Some(Drawn { token, from }))
    }

    /// The probabilities of all tokens that steps 3 to 7 leave of edited logits, temperature above 0.
    fn probabilities(&mut self, params: &SamplingParams, logits: &[f32], to: &mut Vec<Weight>) {
        to.clear();
        let max = self.maxima.max();
        if max == f32::NEG_INFINITY {
            return;
        }
        if truncate::truncates(params, logits.len()) {
            let left = self.truncation.candidates(params, logits, max, &mut self.maxima);
            to.extend(left.iter().map(|c| (c.rank.token(), c.weight)));
        } else {
            let temperature = f64::from(params.temperature);
            let weight =
                |&logit: &f32| exp_nonpositive((f64::from(logit) - f64::from(max)) / temperature);
            to.extend((0..).zip(logits.iter().map(weight)));
        }
        let total: f64 = to.iter().map(|w| w.1).sum();
        to.iter_mut().for_each(|w| w.1 /= total);
    }
}

/// The distribution of [`verify`]: `p[i]` is of token `i`.
#[cfg(test)]
pub(crate) fn law(p: &[Weight], drawn: &Drawn) -> Vec<f64> {
    let taken = acceptance(p, drawn);
    let left: f64 = residual(p, drawn).map(|w| w.1).sum();
    let refused = |of: f64| if taken < 1.0 { (1.0 - taken) * of / left } else { 0.0 };
    let mut out: Vec<f64> = residual(p, drawn).map(|w| refused(w.1)).collect();
    out[drawn.token as usize] += taken;
    out
}

#[cfg(test)]
mod tests {
    use dunlin_units::{SeedTree, Stream};

    use super::*;

    fn distribution(random: &mut Stream, size: u32) -> Vec<Weight> {
        // Peaks and zeros among them.
        let mut all: Vec<Weight> = (0..size)
            .map(|token| {
                let x = random.next_unit();
                (token, if x < 0.2 { 0.0 } else { x.powi(4) })
            })
            .collect();
        all[random.next_below(u64::from(size)) as usize].1 += 0.1;
        let total: f64 = all.iter().map(|w| w.1).sum();
        all.iter_mut().for_each(|w| w.1 /= total);
        all
    }

    /// The best `count - 1` of `q`, and the rest of it, normed.
    fn shaped(q: &[Weight], count: usize) -> (Vec<u32>, Vec<Weight>) {
        let mut sorted = q.to_vec();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        let best: Vec<u32> = sorted[..count - 1].iter().map(|w| w.0).collect();
        let mut rest: Vec<Weight> = q.iter().filter(|w| !best.contains(&w.0)).copied().collect();
        let left: f64 = rest.iter().map(|w| w.1).sum();
        rest.iter_mut().for_each(|w| w.1 /= left.max(1e-300));
        (best, rest)
    }

    #[test]
    fn what_comes_out_has_the_models_distribution_by_enumeration() {
        for seed in 0..2000 {
            let mut random = SeedTree::root(seed).child("pairs").stream();
            let size = 2 + random.next_below(7) as u32;
            let (p, q) = (distribution(&mut random, size), distribution(&mut random, size));
            let count = 1 + random.next_below(u64::from(size.min(4))) as usize;
            let (_, from) = shaped(&q, count);
            if from.iter().map(|w| w.1).sum::<f64>() < 0.5 {
                continue;
            }
            let mut out = vec![0.0; size as usize];
            for &(token, drawn_with) in from.iter().filter(|w| w.1 > 0.0) {
                let law = law(&p, &Drawn { token, from: from.clone() });
                out.iter_mut().zip(law).for_each(|(out, law)| *out += drawn_with * law);
            }
            for (&(token, wanted), found) in p.iter().zip(&out) {
                assert!((wanted - found).abs() < 1e-12, "seed {seed}, token {token}");
            }
        }
    }

    #[test]
    fn units_are_used_up_evenly() {
        // A grid of units stands for the two noises: shares of it are probabilities.
        let (p, q) = (vec![(0, 0.5), (1, 0.3), (2, 0.2)], vec![(0, 0.2), (1, 0.7), (2, 0.1)]);
        const GRID: u32 = 400;
        let unit = |i: u32| (f64::from(i) + 0.5) / f64::from(GRID);
        let mut counts = [0.0; 3];
        for &(token, drawn_with) in &q {
            let drawn = Drawn { token, from: q.clone() };
            for i in 0..GRID {
                for j in 0..GRID {
                    let out = verify(&p, &drawn, unit(i), unit(j)).unwrap();
                    counts[out as usize] += drawn_with / f64::from(GRID * GRID);
                }
            }
        }
        for (&(_, wanted), found) in p.iter().zip(counts) {
            assert!((wanted - found).abs() < 2.0 / f64::from(GRID), "{counts:?}");
        }
    }

    /// How often recursive rejection sampling accepts one of `count` tokens drawn from `q` one after
    /// the other, without putting back.
    fn recursive(p: &[Weight], q: &[Weight], count: usize) -> f64 {
        let total = |w: &[Weight]| w.iter().map(|w| w.1).sum::<f64>();
        let (p_total, q_total) = (total(p), total(q));
        if count == 0 || p_total <= 1e-15 || q_total <= 1e-15 {
            return 0.0;
        }
        let mut accepted = 0.0;
        for (i, &(_, x)) in q.iter().enumerate().filter(|(_, w)| w.1 > 0.0) {
            let (px, qx) = (p[i].1 / p_total, x / q_total);
            let taken = (px / qx).min(1.0);
            let rest: Vec<Weight> = p
                .iter()
                .zip(q)
                .map(|(p, q)| (p.0, (p.1 / p_total - q.1 / q_total).max(0.0)))
                .collect();
            let mut without = q.to_vec();
            without[i].1 = 0.0;
            accepted += qx * (taken + (1.0 - taken) * recursive(&rest, &without, count - 1));
        }
        accepted
    }

    #[test]
    fn more_is_accepted_than_by_recursive_rejection() {
        for count in [2, 3] {
            let (mut ours, mut theirs, mut better, mut pairs) = (0.0, 0.0, 0, 0);
            for seed in 0..400 {
                let mut random = SeedTree::root(seed).child("pairs").stream();
                let p = distribution(&mut random, 6);
                // A drafter that is much like the model.
                let mix = random.next_unit();
                let other = distribution(&mut random, 6);
                let q: Vec<Weight> = p
                    .iter()
                    .zip(&other)
                    .map(|(p, o)| (p.0, mix * p.1 + (1.0 - mix) * o.1))
                    .collect();
                let (best, from) = shaped(&q, count);
                let of_best: f64 = p.iter().filter(|w| best.contains(&w.0)).map(|w| w.1).sum();
                let drawn: f64 = from.iter().map(|q| q.1.min(p[q.0 as usize].1)).sum::<f64>();
                let (own, recursive) = (of_best + drawn, recursive(&p, &q, count));
                (ours, theirs) = (ours + own, theirs + recursive);
                better += u32::from(own >= recursive - 1e-12);
                pairs += 1;
            }
            println!(
                "{count} tokens: {:.4} accepted, recursive rejection {:.4}; as good or better in \
                 {better} of {pairs}",
                ours / f64::from(pairs),
                theirs / f64::from(pairs)
            );
            assert!(ours > theirs * 1.005, "{count}: {ours} {theirs}");
        }
    }

    /// Chi-square of counts against probabilities, classes below five expected put together.
    fn chi_square(p: &[Weight], counts: &[u32]) -> (f64, usize) {
        let n: f64 = counts.iter().map(|&c| f64::from(c)).sum();
        let (mut sum, mut classes, mut rest) = (0.0, 0, (0.0, 0.0));
        for (&(token, p), _) in p.iter().zip(0..) {
            let (expected, found) = (p * n, f64::from(counts[token as usize]));
            if expected < 5.0 {
                rest = (rest.0 + expected, rest.1 + found);
            } else {
                sum += (found - expected).powi(2) / expected;
                classes += 1;
            }
        }
        if rest.0 > 0.0 {
            sum += (rest.1 - rest.0).powi(2) / rest.0;
            classes += 1;
        }
        (sum, classes - 1)
    }

    #[test]
    fn a_million_draws_of_a_large_vocabulary_have_the_models_distribution() {
        const VOCAB: usize = 500;
        const DRAWS: u64 = 1_000_000;
        let mut random = SeedTree::root(7).child("logits").stream();
        let mut logits = |scale: f64| -> Vec<f32> {
            (0..VOCAB).map(|_| (random.next_unit() * scale) as f32).collect()
        };
        let mut model = logits(9.0);
        // The draft model's logits are the model's with noise.
        let mut draft: Vec<f32> = logits(1.5).iter().zip(&model).map(|(a, b)| a + b).collect();
        for (top_p, count) in [(1.0, 1), (1.0, 3), (0.9, 2)] {
            let (mut sampler, mut choices) = (Sampler::new(), Vec::new());
            let params = SamplingParams { top_p, temperature: 0.9, ..SamplingParams::default() };
            let mut p = Vec::new();
            let place = SamplePlace { tokens: &[], prompt_len: 0, choice: 0 };
            sampler.scan(place, &model).unwrap();
            sampler.probabilities(&params, &model, &mut p);
            // The drafter's distribution is looked at once; its draws have the seeds' noise.
            let mut drawn = sampler
                .draw_proposals(&params, place, &mut draft, count, |_| true, &mut choices)
                .unwrap()
                .unwrap();
            let mut counts = vec![0u32; VOCAB];
            for seed in 0..DRAWS {
                let unit = |purpose| Noise::new(seed, 0, 0, purpose).unit_f64(0);
                drawn.token = pick(drawn.from.iter().copied(), unit(Purpose::Draft)).unwrap();
                let (accept, replace) = (unit(Purpose::Accept), unit(Purpose::Resample));
                counts[verify(&p, &drawn, accept, replace).unwrap() as usize] += 1;
            }
            let (found, degrees) = chi_square(&p, &counts);
            // Its mean is the degrees of freedom, its variance twice that: five deviations.
            let limit = degrees as f64 + 5.0 * (2.0 * degrees as f64).sqrt();
            println!("chi-square {found:.1} of {degrees} degrees, at most {limit:.1}");
            assert!(found < limit);
            // The whole way through the sampler gives the same.
            for seed in 0..20 {
                let params = SamplingParams { seed, ..params.clone() };
                let drawn = sampler
                    .draw_proposals(&params, place, &mut draft, count, |_| true, &mut choices)
                    .unwrap()
                    .unwrap();
                assert!(choices.len() <= count && choices.iter().any(|c| c.token == drawn.token));
                let out =
                    sampler.sample_drawn(&params, place, &mut model, None, None, &drawn).unwrap();
                let unit = |purpose| Noise::new(seed, 0, 0, purpose).unit_f64(0);
                let (accept, replace) = (unit(Purpose::Accept), unit(Purpose::Resample));
                assert_eq!(Some(out.token), verify(&p, &drawn, accept, replace));
            }
        }
    }
}
