//! A cost fitted to steps that ran: non-negative least squares on physical terms.
//!
//! The terms are those of [`LinearCost`]. Each step weighs one over the square of its time, so that
//! relative errors count and short steps are not drowned by long ones.

use serde::{Deserialize, Serialize};

use crate::{
    LinearCost, StepCost, StepPrice, StepShape, Totals,
    error::{CostError, above_zero},
    linear::{TERMS, terms},
    nnls::nnls,
};

/// What a step cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSample {
    /// Its shape.
    pub totals: Totals,
    /// Nanoseconds that it took.
    pub time_ns: f64,
}

/// A fitted cost, with what it was fitted to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FittedCost {
    /// The coefficients.
    pub cost: LinearCost,
    /// Steps that it was fitted to.
    pub steps: u64,
    /// Mean of the absolute relative errors over these steps.
    pub mean_error: f64,
    /// The most tokens of one of them.
    pub most_tokens: u64,
    /// The most sequences that decoded.
    pub most_decode_seqs: u64,
    /// The most KV positions that those read.
    pub most_kv: u64,
    /// The most pairs of a prompt's token and a position.
    pub most_pairs: u64,
}

impl FittedCost {
    /// Fits a cost to these steps. `power_watts` is what the machine draws during a step; 0 where
    /// nobody knows.
    ///
    /// # Errors
    /// No steps, or times that are not finite and above zero.
    pub fn fit(samples: &[StepSample], power_watts: f64) -> Result<Self, CostError> {
        if samples.is_empty() {
            return Err(CostError::new("samples", "there are none; record some steps first"));
        }
        for sample in samples {
            above_zero("time_ns", sample.time_ns)?;
        }
        let rows: Vec<[f64; TERMS]> = samples.iter().map(|s| terms(&s.totals)).collect();
        let y: Vec<f64> = samples.iter().map(|s| s.time_ns).collect();
        let weights: Vec<f64> = y.iter().map(|y| 1.0 / (y * y)).collect();
        let cost = LinearCost::from_terms(nnls(&rows, &y, &weights), power_watts);
        let error = |s: &StepSample| (cost.time_ns(&s.totals) - s.time_ns).abs() / s.time_ns;
        let most = |f: fn(&Totals) -> u64| samples.iter().map(|s| f(&s.totals)).max().unwrap_or(0);
        Ok(Self {
            cost,
            steps: samples.len() as u64,
            mean_error: samples.iter().map(error).sum::<f64>() / samples.len() as f64,
            most_tokens: most(|t| t.tokens),
            most_decode_seqs: most(|t| t.decode_seqs),
            most_kv: most(|t| t.decode_kv),
            most_pairs: most(|t| t.prefill_pairs),
        })
    }

    /// Whether the coefficients can be.
    ///
    /// # Errors
    /// The coefficient that is negative or not finite.
    pub fn validate(&self) -> Result<(), CostError> {
        self.cost.validate().map_err(|e| e.within("cost"))
    }
}

impl StepCost for FittedCost {
    fn price(&self, shape: &StepShape) -> StepPrice {
        let t = shape.totals();
        let extrapolated = t.tokens > self.most_tokens
            || t.decode_seqs > self.most_decode_seqs
            || t.decode_kv > self.most_kv
            || t.prefill_pairs > self.most_pairs;
        StepPrice { extrapolated, ..self.cost.price_totals(&t) }
    }

    fn least_ns(&self) -> u64 {
        self.cost.least_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, SeqShape};
    use dunlin_units::SeedTree;

    #[test]
    fn a_machine_of_known_costs_is_found() {
        let truth = LinearCost {
            fixed_ns: 2e6,
            token_ns: 8e4,
            decode_seq_ns: 1e4,
            kv_position_ns: 30.0,
            prefill_pair_ns: 5.0,
            sampled_ns: 4e4,
            ..LinearCost::default()
        };
        let mut dice = SeedTree::root(3).child("fit").stream();
        let mut draw = |most: u32| (dice.next_unit() * f64::from(most)) as u32;
        let mut samples = Vec::new();
        for _ in 0..300 {
            let mut shape = StepShape::default();
            for _ in 0..draw(12) {
                let context = draw(3000);
                shape.seqs.push(SeqShape { new_tokens: 1, context, phase: Phase::Decode });
            }
            if draw(3) == 0 || shape.seqs.is_empty() {
                let (new_tokens, context) = (1 + draw(200), draw(1000));
                shape.seqs.push(SeqShape { new_tokens, context, phase: Phase::Prefill });
            }
            shape.sampled = shape.seqs.len() as u32 - u32::from(draw(2) == 0);
            let noise = 1.0 + 0.02 * (f64::from(draw(1000)) / 500.0 - 1.0);
            let time_ns = truth.price(&shape).time_ns as f64 * noise;
            samples.push(StepSample { totals: shape.totals(), time_ns });
        }
        let (fit_on, held_out) = samples.split_at(200);
        let fitted = FittedCost::fit(fit_on, 0.0).unwrap();
        assert!(fitted.mean_error < 0.012, "{fitted:?}");
        let error = |s: &StepSample| (fitted.cost.time_ns(&s.totals) / s.time_ns - 1.0).abs();
        let mean = held_out.iter().map(error).sum::<f64>() / held_out.len() as f64;
        assert!(mean < 0.013, "{mean}");
        let mut wide = StepShape::default();
        wide.seqs.push(SeqShape { new_tokens: 5000, context: 0, phase: Phase::Prefill });
        assert!(fitted.price(&wide).extrapolated);
    }

    #[test]
    fn bad_steps_are_refused() {
        assert!(FittedCost::fit(&[], 0.0).is_err());
        for time_ns in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let sample = StepSample { totals: Totals::default(), time_ns };
            assert!(FittedCost::fit(&[sample], 0.0).is_err(), "{time_ns}");
        }
    }
}
