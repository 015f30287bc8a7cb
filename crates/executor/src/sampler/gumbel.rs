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
///
/// Of most tokens it computes only the noise's bits: with `-ln(1 - v) >= v`, a token needs
/// `v < e^-(best - score)`, which the position of the highest set bit nearly always refutes.
pub(super) fn choose_of_all(logits: &[f32], argmax: u32, temperature: f32, noise: &Noise) -> u32 {
    let max = f64::from(logits[argmax as usize]);
    let temperature = f64::from(temperature);
    let per_bit = std::f64::consts::LOG2_E / temperature;
    let mut best = gumbel(noise.u64_at(argmax));
    let mut chosen = argmax;
    for (group, chunk) in logits.chunks(4).enumerate() {
        let words = noise.group(group as u32);
        for (within, (&word, &logit)) in words.iter().zip(chunk).enumerate() {
            // v >= word / 2^32 >= 2^(magnitude - 32); the slack covers the rounding here.
            let magnitude = 31.0 - f64::from((word | 1).leading_zeros());
            let deficit =
                best * std::f64::consts::LOG2_E + (max - f64::from(logit)) * per_bit - 1e-6;
            if word != 0 && magnitude - 32.0 >= -deficit {
                continue;
            }
            let token = (group * 4 + within) as u32;
            let value = (f64::from(logit) - max) / temperature + gumbel(noise.u64_at(token));
            if value > best || (value == best && token < chosen) {
                (best, chosen) = (value, token);
            }
        }
    }
    chosen
}
