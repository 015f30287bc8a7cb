//! A cost that is linear in sums over the step: the simplest model there is, with closed forms for
//! tests of simulators and planners.

use serde::{Deserialize, Serialize};

use crate::{Bound, StepCost, StepPrice, StepShape};

/// Nanoseconds and microjoules that are linear in the sums of [`Totals`](crate::Totals).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinearCost {
    /// Every step that is not empty.
    pub fixed_ns: f64,
    /// Each token that goes through the model.
    pub token_ns: f64,
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

impl StepCost for LinearCost {
    fn price(&self, shape: &StepShape) -> StepPrice {
        let t = shape.totals();
        if t.tokens == 0 {
            return StepPrice::default();
        }
        let time_ns = self.fixed_ns
            + self.token_ns * t.tokens as f64
            + self.decode_seq_ns * t.decode_seqs as f64
            + self.kv_position_ns * t.decode_kv as f64
            + self.prefill_pair_ns * t.prefill_pairs as f64
            + self.sampled_ns * t.sampled as f64;
        StepPrice {
            time_ns: libm::round(time_ns) as u64,
            energy_uj: libm::round(time_ns * self.power_watts * 1e-3) as u64,
            extrapolated: false,
            bound: Bound::Unknown,
        }
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
        assert_eq!(price.time_ns, 1_000_000 + 5_000 + 10 + 200 + (11 + 12 + 13 + 14) + 100);
        // 50 W for 1.00536 ms.
        assert_eq!(price.energy_uj, 50_268);
        assert_eq!(cost.price(&StepShape::default()), StepPrice::default());
    }
}
