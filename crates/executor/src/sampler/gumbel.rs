//! The Gumbel-max choice: the token with the largest `score + noise`, where each token's noise is
//! its own Gumbel variable, is a sample of the softmax of the scores (Gumbel 1954; Yellott 1977).
//!
//! The noise is keyed by token id, so truncation changes the choice only where it removes the
//! chosen token, and a draft model that uses the same noise proposes the same token wherever the
//! two models nearly agree.

use dunlin_units::Noise;

use super::truncate::Candidate;
use crate::math::ln;

/// The Gumbel variable of 64 uniform bits: `-ln(-ln(1 - v))` with `v` their fraction of 2^64 (at
/// the middle of the step). Falls as the bits rise.
pub(super) fn gumbel(bits: u64) -> f64 {
    let v = (bits as f64 + 0.5) * (0.5f64.powi(64));
    -ln(-libm::log1p(-v.min(1.0 - f64::EPSILON / 2.0)))
}

/// The chosen one of some candidates; `None` of none.
pub(super) fn choose(candidates: &[Candidate], noise: &Noise) -> Option<u32> {
    let mut best: Option<(f64, u32)> = None;
    for candidate in candidates {
        let token = candidate.rank.token();
        let value = candidate.score + gumbel(noise.u64_at(token));
        if best.is_none_or(|(v, t)| value > v || (value == v && token < t)) {
            best = Some((value, token));
        }
    }
    best.map(|(_, token)| token)
}

/// The chosen one of the whole vocabulary, whose largest logit is that of `argmax`. The same token
/// as [`choose`] gives for all of it.
pub(super) fn choose_of_all(logits: &[f32], argmax: u32, temperature: f32, noise: &Noise) -> u32 {
    let base = logits[argmax as usize];
    let mut search = Search::new(logits, argmax, base, temperature, noise);
    for (group, chunk) in logits.chunks(4).enumerate() {
        search.look(group, chunk, 0b1111);
    }
    search.chosen
}

/// The chosen one of the tokens whose bits are set, the largest of whose logits is that of `argmax`.
/// Scores are taken from `base`, at least that logit: with the largest of all tokens' as base, every
/// token's value is the same as in [`choose_of_all`], so that its token is chosen here too where it
/// is allowed.
pub(super) fn choose_of_allowed(
    logits: &[f32],
    allowed: &[u32],
    argmax: u32,
    base: f32,
    temperature: f32,
    noise: &Noise,
) -> u32 {
    let mut search = Search::new(logits, argmax, base, temperature, noise);
    for (word, (&bits, chunk)) in allowed.iter().zip(logits.chunks(32)).enumerate() {
        if bits == 0 {
            continue;
        }
        for (group, chunk) in chunk.chunks(4).enumerate() {
            let bits = bits >> (4 * group) & 0b1111;
            if bits != 0 {
                search.look(word * 8 + group, chunk, bits);
            }
        }
    }
    search.chosen
}

/// The best value so far on the way through the tokens.
///
/// Of most tokens it computes only the noise's bits: with `-ln(1 - v) >= v`, a token needs
/// `v < e^-(best - score)`, which the position of the highest set bit nearly always refutes.
struct Search<'a> {
    noise: &'a Noise,
    base: f64,
    /// The largest logit that may be met.
    max: f64,
    temperature: f64,
    /// Binary digits of the noise that a logit of 1 is worth.
    per_bit: f64,
    /// Digits that rounding may be worth.
    slack: f64,
    best: f64,
    /// The best value as it is with `max` as base.
    ahead: f64,
    chosen: u32,
}

impl<'a> Search<'a> {
    fn new(logits: &[f32], argmax: u32, base: f32, temperature: f32, noise: &'a Noise) -> Self {
        let (max, base) = (f64::from(logits[argmax as usize]), f64::from(base));
        let temperature = f64::from(temperature);
        let per_bit = std::f64::consts::LOG2_E / temperature;
        let ahead = gumbel(noise.u64_at(argmax));
        // Values far from 0 are rounded more coarsely.
        let slack = 1e-6 + 1e-12 * (base - max) * per_bit;
        let best = (max - base) / temperature + ahead;
        Self { noise, base, max, temperature, per_bit, slack, best, ahead, chosen: argmax }
    }

    /// Looks at those of four tokens whose bits are set.
    #[inline(always)]
    fn look(&mut self, group: usize, logits: &[f32], bits: u32) {
        let words = self.noise.group(group as u32);
        for (within, (&word, &logit)) in words.iter().zip(logits).enumerate() {
            if bits >> within & 1 == 0 {
                continue;
            }
            let logit = f64::from(logit);
            // v >= word / 2^32 >= 2^(magnitude - 32).
            let magnitude = 31.0 - f64::from((word | 1).leading_zeros());
            let deficit = self.ahead * std::f64::consts::LOG2_E + (self.max - logit) * self.per_bit
                - self.slack;
            if word != 0 && magnitude - 32.0 >= -deficit {
                continue;
            }
            self.compare((group * 4 + within) as u32, logit);
        }
    }

    fn compare(&mut self, token: u32, logit: f64) {
        let noise = gumbel(self.noise.u64_at(token));
        let value = (logit - self.base) / self.temperature + noise;
        if value > self.best || (value == self.best && token < self.chosen) {
            self.best = value;
            self.ahead = (logit - self.max) / self.temperature + noise;
            self.chosen = token;
        }
    }
}
