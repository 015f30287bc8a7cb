//! Speculation as the simulator has it: how many draft tokens are proposed, and how many of them are
//! accepted.
//!
//! The core plans drafts and takes the outcome exactly as with a real drafter; only whether a draft
//! token is right is drawn, from an acceptance curve: the probability that the token at depth `i` is
//! accepted, given that those before it were. The draw is keyed by the request and the position, so
//! it depends neither on the batch nor on what else was drawn.

use std::sync::Arc;

use dunlin_scheduler::{DraftNode, DrafterKind, Proposal};
use dunlin_units::{Noise, Purpose, SeqId};
use dunlin_workload::stream_token;

/// A drafter, as its effect and its price.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Speculation {
    /// The acceptance curve in 1/65536: one for each draft token, so its length is how many are
    /// proposed.
    pub acceptance: Arc<[u32]>,
    /// Nanoseconds that a step's drafting takes, whatever the batch.
    pub step_ns: u64,
    /// Nanoseconds that drafting one token of one sequence takes on top.
    pub token_ns: u64,
}

/// One, in the unit of acceptance.
pub const CERTAIN: u32 = 1 << 16;

impl Speculation {
    /// A drafter with the same chance at every depth.
    ///
    /// # Panics
    /// Where the chance is not from 0 to 1.
    pub fn constant(draft_tokens: u32, acceptance: f64) -> Self {
        assert!((0.0..=1.0).contains(&acceptance), "{acceptance} is no chance");
        let each = (acceptance * f64::from(CERTAIN) + 0.5) as u32;
        Self { acceptance: vec![each; draft_tokens as usize].into(), step_ns: 0, token_ns: 0 }
    }

    /// Of `drafted` tokens that follow `position` in the request whose noise is seeded `seed`, how
    /// many are accepted.
    pub fn accepted(&self, seed: u64, position: u32, drafted: u32) -> u32 {
        let draw = |depth: u32| {
            let at = u64::from(position) + u64::from(depth);
            Noise::new(seed, 0, at, Purpose::Accept).u32_at(0) >> 16
        };
        let right = |depth: &u32| draw(*depth) < self.acceptance[*depth as usize];
        (0..drafted.min(self.acceptance.len() as u32)).take_while(right).count() as u32
    }

    /// The tokens that a step gives a sequence on average: the accepted ones and one.
    pub fn mean_tokens(&self) -> f64 {
        let mut all_before = 1.0;
        let mut mean = 1.0;
        for &chance in self.acceptance.iter() {
            all_before *= f64::from(chance) / f64::from(CERTAIN);
            mean += all_before;
        }
        mean
    }
}

/// The tokens that a sequence is going to get.
pub(crate) struct Ahead<'a> {
    pub(crate) stream: u64,
    /// Of the stream, where the head is used up.
    pub(crate) index: u32,
    /// Those before the stream's, the last first.
    pub(crate) head: &'a [u32],
    pub(crate) vocabulary: u32,
}

impl Ahead<'_> {
    /// The token after so many others.
    fn at(&self, depth: u32) -> u32 {
        match self.head.len().checked_sub(depth as usize + 1) {
            Some(at) => self.head[at],
            None => {
                let index = self.index + depth - self.head.len() as u32;
                stream_token(self.stream, index, self.vocabulary)
            }
        }
    }
}

/// A chain of draft tokens to follow position `end`: the right ones as far as they will be accepted,
/// then wrong ones, for the core compares what was proposed with what came.
pub(crate) fn propose(
    seq: SeqId,
    ahead: Ahead<'_>,
    end: u32,
    speculation: &Speculation,
) -> Proposal {
    let right = speculation.accepted(ahead.stream, end, u32::MAX);
    let node = |(depth, &confidence): (u32, &u32)| {
        let token = ahead.at(depth);
        DraftNode {
            token: if depth < right { token } else { (token + 1) % ahead.vocabulary },
            parent: depth.checked_sub(1).unwrap_or(DraftNode::ROOT),
            confidence,
            drafter: DrafterKind::Lookup,
        }
    };
    let nodes = (0..).zip(speculation.acceptance.iter()).map(node).collect();
    Proposal { seq, drafter: DrafterKind::Lookup, nodes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_accepted_as_the_curve_says() {
        let curve = Speculation {
            acceptance: [60_000, 40_000, 50_000, CERTAIN].into(),
            step_ns: 0,
            token_ns: 0,
        };
        let n = 200_000u32;
        let sum: u64 = (0..n).map(|p| u64::from(curve.accepted(7, p * 8, 4)) + 1).sum();
        let mean = sum as f64 / f64::from(n);
        // The count has a standard deviation below 1.7, so 5 of the mean's are below 0.02.
        assert!((mean - curve.mean_tokens()).abs() < 0.02, "{mean} {}", curve.mean_tokens());
        assert_eq!(Speculation::constant(5, 1.0).accepted(1, 2, 9), 5);
        assert_eq!(Speculation::constant(5, 0.0).accepted(1, 2, 5), 0);
        assert_eq!(Speculation::constant(3, 0.5).mean_tokens(), 1.875);
    }
}
