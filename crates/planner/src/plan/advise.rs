//! How large a batch should be, and what a token can cost at best.
//!
//! Decoding gains less and less from a larger batch while every sequence takes KV memory. The advice
//! ("BCA" has it so) is the smallest batch that reaches nearly all of the plateau; the KV memory that
//! is left over may hold another model or more replicas.

use dunlin_costmodel::{Bound, Phase, SeqShape, StepCost, StepShape};
use serde::Serialize;

/// Of the most that any batch gives, what is nearly all.
const NEARLY_ALL: f64 = 0.95;

/// Batches and what they give.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchAdvice {
    /// KV positions before each sequence's token.
    pub context: u32,
    /// The largest batch that was looked at: what memory or settings allow.
    pub largest: u32,
    /// Tokens a second at the best batch of all.
    pub plateau_tokens_per_s: f64,
    /// The smallest batch that gives 95% of that.
    pub batch: u32,
    /// What it gives.
    pub tokens_per_s: f64,
    /// Milliseconds of its steps.
    pub step_ms: f64,
    /// Of the KV memory that the largest batch takes, the share that it leaves free.
    pub memory_left_share: f64,
    /// What bounds its steps.
    pub bound: Bound,
}

/// Advises on decoding at this context, for batches of up to `largest`. None where steps take no
/// time.
pub fn batch_advice(cost: &dyn StepCost, context: u32, largest: u32) -> Option<BatchAdvice> {
    let largest = largest.max(1);
    let seq = SeqShape { new_tokens: 1, context, phase: Phase::Decode };
    let mut shape = StepShape::default();
    let mut steps = Vec::with_capacity(largest as usize);
    for n in 1..=largest {
        shape.seqs.push(seq);
        shape.sampled = n;
        steps.push(cost.price(&shape));
    }
    let rate = |n: u32| f64::from(n) / steps[n as usize - 1].time_ns as f64 * 1e9;
    if steps.iter().any(|s| s.time_ns == 0) {
        return None;
    }
    let plateau = (1..=largest).map(rate).fold(0.0, f64::max);
    let batch = (1..=largest).find(|&n| rate(n) >= NEARLY_ALL * plateau)?;
    let step = steps[batch as usize - 1];
    Some(BatchAdvice {
        context,
        largest,
        plateau_tokens_per_s: plateau,
        batch,
        tokens_per_s: rate(batch),
        step_ms: step.time_ns as f64 / 1e6,
        memory_left_share: 1.0 - f64::from(batch) / f64::from(largest),
        bound: step.bound,
    })
}

/// Operations a second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct FlopsPerSecond(pub f64);

/// Operations for a token.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct FlopsPerToken(pub f64);

/// Watts at the meter.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Watts(pub f64);

/// Joules of the machines for a token.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct JoulesPerToken(pub f64);

/// Tokens a second.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
pub struct TokensPerSecond(pub f64);

impl std::ops::Div<FlopsPerToken> for FlopsPerSecond {
    type Output = TokensPerSecond;
    fn div(self, each: FlopsPerToken) -> TokensPerSecond {
        TokensPerSecond(self.0 / each.0)
    }
}

impl std::ops::Div<JoulesPerToken> for Watts {
    type Output = TokensPerSecond;
    fn div(self, each: JoulesPerToken) -> TokensPerSecond {
        TokensPerSecond(self.0 / each.0)
    }
}

/// What limits how many tokens come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Arithmetic.
    Compute,
    /// Power.
    Power,
}

/// The most tokens a second of a place with so much arithmetic and so much power, of which
/// `utilization` is drawn and `1 / pue` reaches the machines: the lesser of what either allows (the
/// "token production function").
pub fn token_rate(
    compute: FlopsPerSecond,
    each: FlopsPerToken,
    power: Watts,
    utilization: f64,
    pue: f64,
    energy: JoulesPerToken,
) -> (TokensPerSecond, Limit) {
    let by_compute = compute / each;
    let by_power = Watts(power.0 * utilization / pue) / energy;
    if by_compute <= by_power { (by_compute, Limit::Compute) } else { (by_power, Limit::Power) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_costmodel::LinearCost;

    #[test]
    fn the_advice_is_the_smallest_batch_of_a_sweep() {
        // A fixed part and a part of each sequence: n / (a + b n), with a plateau at the largest.
        for (fixed_ns, each) in [(1e6, 1e4), (5e6, 2e3), (1e5, 1e5)] {
            let cost = LinearCost { fixed_ns, decode_seq_ns: each, ..LinearCost::default() };
            let found = batch_advice(&cost, 500, 256).unwrap();
            let rate = |n: f64| n / (fixed_ns + each * n);
            let first = (1..=256).find(|&n| rate(f64::from(n)) >= 0.95 * rate(256.0)).unwrap();
            assert_eq!(found.batch, first);
            assert!((found.memory_left_share - (1.0 - f64::from(first) / 256.0)).abs() < 1e-12);
            assert!(
                (found.plateau_tokens_per_s - rate(256.0) * 1e9).abs()
                    < 1e-3 * found.plateau_tokens_per_s
            );
        }
        assert_eq!(batch_advice(&LinearCost::default(), 1, 4), None);
    }

    #[test]
    fn the_limit_changes_where_both_allow_the_same() {
        let of = |watts| {
            let (flops, each) = (FlopsPerSecond(1e15), FlopsPerToken(1e10));
            token_rate(flops, each, Watts(watts), 0.8, 1.25, JoulesPerToken(0.5))
        };
        // 100,000 tokens a second by arithmetic; by power 0.8 / 1.25 / 0.5 = 1.28 for a watt.
        let crossover = 100_000.0 / 1.28;
        assert_eq!(of(crossover * 1.000_001), (TokensPerSecond(100_000.0), Limit::Compute));
        let (rate, limit) = of(crossover * 0.5);
        assert_eq!(limit, Limit::Power);
        assert!((rate.0 - 50_000.0).abs() < 1e-6);
    }
}
