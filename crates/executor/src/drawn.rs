//! Tokens that drafters drew, until it is known what came in their places.
//!
//! Residual sampling must use a token that was drawn for a place whether or not it is verified, and
//! whoever decided that: else what comes out would depend on how it looked (see
//! [`crate::sampler`]'s residual sampling). So what was drawn is kept here and not in drafts, which are
//! cut.

use std::collections::HashMap;

use dunlin_scheduler::SeqOp;
use dunlin_units::SeqId;

use crate::{
    drafter::{DrawnNode, forgotten},
    sampler::Drawn,
};

/// By sequence.
#[derive(Debug, Default)]
pub(crate) struct DrawnTokens {
    of: HashMap<SeqId, Vec<DrawnNode>>,
}

impl DrawnTokens {
    /// Takes up what was drawn. A place that has a token keeps it.
    pub(crate) fn add(
        &mut self,
        nodes: impl Iterator<Item = DrawnNode>,
        tokens: impl Fn(SeqId) -> Vec<u32>,
    ) {
        let mut of_seq: Option<(SeqId, Vec<u32>)> = None;
        for node in nodes {
            if of_seq.as_ref().is_none_or(|(seq, _)| *seq != node.seq) {
                of_seq = Some((node.seq, tokens(node.seq)));
            }
            let (_, tokens) = of_seq.as_ref().expect("set above");
            let place = [&tokens[..node.length.min(tokens.len())], &node.path].concat();
            if self.at(node.seq, &place).is_none() {
                self.of.entry(node.seq).or_default().push(node);
            }
        }
    }

    /// The token that was drawn to follow these tokens of a sequence.
    pub(crate) fn at(&self, seq: SeqId, tokens: &[u32]) -> Option<&Drawn> {
        let here = |node: &&DrawnNode| {
            node.length + node.path.len() == tokens.len() && tokens[node.length..] == node.path
        };
        self.of.get(&seq)?.iter().find(here).map(|node| &node.drawn)
    }

    /// Forgets what was drawn for places that will not be: these are the sequence's tokens.
    pub(crate) fn settle(&mut self, seq: SeqId, tokens: &[u32]) {
        let Some(nodes) = self.of.get_mut(&seq) else { return };
        nodes.retain(|node| {
            let place = node.length + node.path.len();
            let known = tokens.len().saturating_sub(node.length).min(node.path.len());
            place >= tokens.len() && node.path[..known] == tokens[node.length..][..known]
        });
        if nodes.is_empty() {
            self.of.remove(&seq);
        }
    }

    /// A sequence is changed.
    pub(crate) fn changed(&mut self, op: &SeqOp) {
        if let Some((seq, _)) = forgotten(op) {
            self.of.remove(&seq);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stays_until_its_place_is_taken_or_missed() {
        let seq = SeqId(1);
        let node = |path: &[u32], token| DrawnNode {
            seq,
            length: 2,
            path: path.into(),
            drawn: Drawn { token, from: vec![(token, 1.0)] },
        };
        let mut all = DrawnTokens::default();
        let tokens = vec![7, 8];
        all.add([node(&[], 1), node(&[1], 2), node(&[1, 2], 3), node(&[5], 4)].into_iter(), |_| {
            tokens.clone()
        });
        let at = |all: &DrawnTokens, tokens: &[u32]| all.at(seq, tokens).map(|d| d.token);
        assert_eq!(at(&all, &[7, 8]), Some(1));
        assert_eq!((at(&all, &[7, 8, 5]), at(&all, &[7, 8, 6])), (Some(4), None));
        all.settle(seq, &[7, 8, 1]);
        assert_eq!((at(&all, &[7, 8]), at(&all, &[7, 8, 5])), (None, None));
        assert_eq!(at(&all, &[7, 8, 1]), Some(2));
        // Drawn anew for the same place: the first counts.
        let mut again = node(&[], 9);
        again.length = 3;
        all.add([again].into_iter(), |_| vec![7, 8, 1]);
        assert_eq!(at(&all, &[7, 8, 1]), Some(2));
        assert_eq!(at(&all, &[7, 8, 1, 2]), Some(3));
        all.settle(seq, &[7, 8, 1, 9]);
        assert!(all.of.is_empty());
        all.add([node(&[], 1)].into_iter(), |_| tokens.clone());
        all.changed(&SeqOp::End { seq });
        assert_eq!(at(&all, &[7, 8]), None);
    }
}
