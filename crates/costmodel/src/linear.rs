//! A cost that is linear in sums over the step: the simplest model there is, with closed forms for
//! tests of simulators and planners.

use serde::{Deserialize, Serialize};

use crate::{
    Bound, StepCost, StepPrice, StepShape, Totals,
    error::{CostError, not_negative},
};

/// Nanoseconds and microjoules that are linear in the sums of [`Totals`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinearCost {
    /// Every step that is not empty.
    pub fixed_ns: f64,
    /// Each token that goes through the model.
    pub token_ns: f64,
    /// Each token of a prompt, on top.
    pub prefill_token_ns: f64,
    /// Each sequence that decodes or verifies.
    pub decode_seq_ns: f64,
    /// Each KV position that such a sequence reads.
    pub kv_position_ns: f64,
    /// Each pair of a prompt's token and a position that it attends to.
    pub prefill_pair_ns: f64,
    /// Each row that needs the head.
    pub sampled_ns: f64,
    /// What the devices draw during a step.
    pub power_watts: f64,
}

/// Terms of a linear cost.
pub(crate) const TERMS: usize = 7;

/// What each coefficient is multiplied with.
pub(crate) fn terms(t: &Totals) -> [f64; TERMS] {
    [
        1.0,
        t.tokens as f64,
        t.prefill_tokens as f64,
        t.decode_seqs as f64,
        t.decode_kv as f64,
        t.prefill_pairs as f64,
        t.sampled as f64,
    ]
}

impl LinearCost {
    pub(crate) fn from_terms(c: [f64; TERMS], power_watts: f64) -> Self {
        let [fixed, token, prefill_token, decode_seq, kv_position, prefill_pair, sampled] = c;
        Self {
            fixed_ns: fixed,
            token_ns: token,
            prefill_token_ns: prefill_token,
            decode_seq_ns: decode_seq,
            kv_position_ns: kv_position,
            prefill_pair_ns: prefill_pair,
            sampled_ns: sampled,
            power_watts,
        }
    }

    fn coefficients(&self) -> [f64; TERMS] {
        [
            self.fixed_ns,
            self.token_ns,
            self.prefill_token_ns,
            self.decode_seq_ns,
            self.kv_position_ns,
            self.prefill_pair_ns,
            self.sampled_ns,
        ]
    }

    /// Nanoseconds of a step that is not empty.
    pub(crate) fn time_ns(&self, t: &Totals) -> f64 {
        self.coefficients().iter().zip(terms(t)).map(|(c, x)| c * x).sum()
    }

    pub(crate) fn price_totals(&self, t: &Totals) -> StepPrice {
        if t.tokens == 0 {
            return StepPrice::default();
        }
        let time_ns = self.time_ns(t);
        StepPrice {
            time_ns: libm::round(time_ns) as u64,
            energy_uj: libm::round(time_ns * self.power_watts * 1e-3) as u64,
            extrapolated: false,
            bound: Bound::Unknown,
        }
    }

    /// Whether the coefficients can be.
    ///
    /// # Errors
    /// The coefficient that is negative or not finite.
    pub fn validate(&self) -> Result<(), CostError> {
        let names = [
            "fixed_ns",
            "token_ns",
            "prefill_token_ns",
            "decode_seq_ns",
            "kv_position_ns",
            "prefill_pair_ns",
            "sampled_ns",
        ];
        for (name, value) in names.into_iter().zip(self.coefficients()) {
            not_negative(name, value)?;
        }
        not_negative("power_watts", self.power_watts)
    }
}

impl StepCost for LinearCost {
    fn price(&self, shape: &StepShape) -> StepPrice {
        self.price_totals(&shape.totals())
    }

    fn least_ns(&self) -> u64 {
        libm::round(self.fixed_ns + self.token_ns) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, SeqShape};

    #[test]
    fn each_term_counts_what_it_says() {
        let cost = LinearCost {
            fixed_ns: 1e6,
            token_ns: 1e3,
            prefill_token_ns: 7.0,
            decode_seq_ns: 10.0,
            kv_position_ns: 2.0,
            prefill_pair_ns: 1.0,
            sampled_ns: 100.0,
            power_watts: 50.0,
        };
        let shape = StepShape {
            seqs: vec![
                SeqShape { new_tokens: 4, context: 10, phase: Phase::Prefill },
                SeqShape { new_tokens: 1, context: 99, phase: Phase::Decode },
            ],
            sampled: 1,
            experts: None,
        };
        let price = cost.price(&shape);
        let wanted = 1_000_000 + 5_000 + 28 + 10 + 200 + (11 + 12 + 13 + 14) + 100;
        assert_eq!(price.time_ns, wanted);
        // 50 W for 1.005388 ms.
        assert_eq!(price.energy_uj, 50_269);
        assert_eq!(cost.price(&StepShape::default()), StepPrice::default());
        assert_eq!(LinearCost { token_ns: -1.0, ..cost }.validate().unwrap_err().field, "token_ns");
    }
}
