//! The shape of a step: all that its cost may depend on.

use serde::{Deserialize, Serialize};

/// What a sequence's new tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Part of a prompt.
    Prefill,
    /// One token that continues the sequence.
    Decode,
    /// The last token and draft nodes behind it, all of which the step verifies.
    Verify,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SeqShape {
    /// Tokens that go through the model.
    pub new_tokens: u32,
    /// KV positions before the new tokens.
    pub context: u32,
    /// What the new tokens are.
    pub phase: Phase,
}

/// Where a step's tokens go in the layers with experts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExpertLoad {
    /// Experts with at least one token, of one layer (the mean over layers).
    pub active: f32,
    /// Tokens of the busiest rank over the mean of all ranks; 1 is balanced.
    pub imbalance: f32,
}

impl ExpertLoad {
    /// The load of one layer from the tokens that each expert got, experts in order over `ranks`
    /// ranks of equal size (the last may have fewer). `None` without tokens or ranks.
    pub fn from_histogram(tokens: &[u32], ranks: usize) -> Option<Self> {
        let total: u64 = tokens.iter().map(|&t| u64::from(t)).sum();
        if total == 0 || ranks == 0 {
            return None;
        }
        let per_rank = tokens.len().div_ceil(ranks);
        let busiest = tokens
            .chunks(per_rank)
            .map(|rank| rank.iter().map(|&t| u64::from(t)).sum::<u64>())
            .max()
            .unwrap_or(0);
        let active = tokens.iter().filter(|&&t| t > 0).count();
        let mean = total as f64 / ranks as f64;
        Some(Self { active: active as f32, imbalance: (busiest as f64 / mean) as f32 })
    }
}

/// A step, as far as its cost depends on it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StepShape {
    /// Every sequence in the step.
    pub seqs: Vec<SeqShape>,
    /// Rows that need the head: tokens that are sampled or verified.
    pub sampled: u32,
    /// Where tokens go in the layers with experts, where it is known; models of cost assume balance
    /// otherwise.
    pub experts: Option<ExpertLoad>,
}

impl StepShape {
    /// Sums over the sequences, in one pass.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { sampled: u64::from(self.sampled), ..Totals::default() };
        for seq in &self.seqs {
            totals.add(seq);
        }
        totals
    }
}

/// Sums over a step's sequences. Each position attends to those before it and to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Tokens that go through the model.
    pub tokens: u64,
    /// Of those, tokens of prompts.
    pub prefill_tokens: u64,
    /// Sequences that are part of a prompt.
    pub prefill_seqs: u64,
    /// Sequences that decode or verify.
    pub decode_seqs: u64,
    /// Tokens of those: more than one each where drafts are verified.
    pub decode_tokens: u64,
    /// KV positions that sequences which decode or verify read: context and new tokens, once a
    /// sequence.
    pub decode_kv: u64,
    /// KV positions that parts of prompts read, once a sequence.
    pub prefill_kv: u64,
    /// Over tokens of prompts: pairs of a token and a position that it attends to.
    pub prefill_pairs: u64,
    /// The same over tokens of sequences that decode or verify.
    pub decode_pairs: u64,
    /// The most KV positions that a sequence which decodes or verifies reads.
    pub longest_decode: u64,
    /// The fewest; 0 where none decodes.
    pub shortest_decode: u64,
    /// Rows that need the head.
    pub sampled: u64,
}

impl Totals {
    /// Adds a sequence.
    pub fn add(&mut self, seq: &SeqShape) {
        let (new, context) = (u64::from(seq.new_tokens), u64::from(seq.context));
        // The i-th new token (from 0) attends to context + i + 1 positions.
        let pairs = new * context + new * (new + 1) / 2;
        self.tokens += new;
        if seq.phase == Phase::Prefill {
            self.prefill_seqs += 1;
            self.prefill_tokens += new;
            self.prefill_kv += context + new;
            self.prefill_pairs += pairs;
        } else {
            let read = context + new;
            let first = self.decode_seqs == 0;
            self.shortest_decode = if first { read } else { self.shortest_decode.min(read) };
            self.longest_decode = self.longest_decode.max(read);
            self.decode_seqs += 1;
            self.decode_tokens += new;
            self.decode_kv += read;
            self.decode_pairs += pairs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_those_counted_token_by_token() {
        let seq = |new_tokens, context, phase| SeqShape { new_tokens, context, phase };
        let shape = StepShape {
            seqs: vec![
                seq(7, 0, Phase::Prefill),
                seq(3, 100, Phase::Prefill),
                seq(1, 50, Phase::Decode),
                seq(4, 20, Phase::Verify),
            ],
            sampled: 6,
            experts: None,
        };
        let totals = shape.totals();
        let count = |of: &[usize]| -> u64 {
            of.iter()
                .flat_map(|&i| (0..shape.seqs[i].new_tokens).map(move |t| (i, t)))
                .map(|(i, t)| u64::from(shape.seqs[i].context + t + 1))
                .sum()
        };
        assert_eq!(totals.prefill_pairs, count(&[0, 1]));
        assert_eq!(totals.decode_pairs, count(&[2, 3]));
        assert_eq!((totals.tokens, totals.prefill_tokens, totals.decode_tokens), (15, 10, 5));
        assert_eq!((totals.prefill_kv, totals.decode_kv), (7 + 103, 51 + 24));
        assert_eq!((totals.shortest_decode, totals.longest_decode), (24, 51));
        assert_eq!((totals.prefill_seqs, totals.decode_seqs, totals.sampled), (2, 2, 6));
    }

    #[test]
    fn a_histogram_gives_active_experts_and_the_busiest_rank() {
        let load = ExpertLoad::from_histogram(&[4, 0, 2, 2], 2).unwrap();
        assert_eq!(load, ExpertLoad { active: 3.0, imbalance: 1.0 });
        let load = ExpertLoad::from_histogram(&[8, 0, 0, 0], 4).unwrap();
        assert_eq!(load, ExpertLoad { active: 1.0, imbalance: 4.0 });
        assert_eq!(ExpertLoad::from_histogram(&[0, 0], 2), None);
        assert_eq!(ExpertLoad::from_histogram(&[1], 0), None);
    }
}
