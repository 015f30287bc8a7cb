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

    /// A sequence is changed. What was drawn stays where the tokens before its place do: one that lost
    /// its KV must use what was drawn before, since what was drawn may be why it lost it.
    pub(crate) fn changed(&mut self, op: &SeqOp) {
        let (seq, stay) = match *op {
            // Another request has other noise.
            SeqOp::Assign { seq, .. } => (seq, 0),
            _ => match forgotten(op) {
                Some(changed) => changed,
                None => return,
            },
        };
        if let Some(nodes) = self.of.get_mut(&seq) {
            nodes.retain(|node| (1..=stay).contains(&node.length));
            if nodes.is_empty() {
                self.of.remove(&seq);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Weight, law};

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

    /// The distribution of what comes out where a sequence loses its KV or not, depending on the token
    /// that was drawn, and is drafted for once more, from another distribution: over all that may be
    /// drawn the first time and the second.
    fn over_all_draws(p: &[Weight], q: [&[Weight]; 2], preempts: fn(u32) -> bool) -> Vec<f64> {
        let (seq, length) = (SeqId(1), 2);
        let node = |token, from: &[Weight]| DrawnNode {
            seq,
            length,
            path: Vec::new(),
            drawn: Drawn { token, from: from.to_vec() },
        };
        let mut out = vec![0.0; p.len()];
        for &(first, drawn_with) in q[0] {
            let mut all = DrawnTokens::default();
            all.add([node(first, q[0])].into_iter(), |_| vec![7, 8]);
            let again = if preempts(first) {
                all.changed(&SeqOp::Truncate { seq, tokens: 2, blocks: 0 });
                q[1].to_vec()
            } else {
                vec![(0, 1.0)]
            };
            for (second, with) in again {
                let mut all = DrawnTokens { of: all.of.clone() };
                if preempts(first) {
                    all.add([node(second, q[1])].into_iter(), |_| vec![7, 8]);
                }
                let drawn = all.at(seq, &[7, 8]).expect("one was drawn");
                for (out, law) in out.iter_mut().zip(law(p, drawn)) {
                    *out += drawn_with * with * law;
                }
            }
        }
        out
    }

    #[test]
    fn whoever_is_preempted_because_of_what_was_drawn_keeps_the_models_distribution() {
        let p = [(0, 0.5), (1, 0.3), (2, 0.2)];
        let q = [(0, 0.2), (1, 0.7), (2, 0.1)];
        let other = [(0, 0.1), (1, 0.1), (2, 0.8)];
        let ways: [fn(u32) -> bool; 4] = [|_| false, |_| true, |t| t == 1, |t| t != 2];
        for preempts in ways {
            let out = over_all_draws(&p, [&q, &other], preempts);
            for (&(token, wanted), found) in p.iter().zip(&out) {
                assert!((wanted - found).abs() < 1e-12, "token {token}: {out:?}");
            }
        }
    }

    #[test]
    fn another_request_has_draws_of_its_own() {
        let (seq, from) = (SeqId(1), vec![(1, 1.0)]);
        let node = DrawnNode { seq, length: 2, path: vec![4], drawn: Drawn { token: 1, from } };
        for (op, stays) in [
            (SeqOp::Truncate { seq, tokens: 2, blocks: 1 }, true),
            (SeqOp::Truncate { seq, tokens: 1, blocks: 1 }, false),
            (SeqOp::Assign { seq, request: None, choice: 0 }, false),
            (SeqOp::End { seq: SeqId(2) }, true),
        ] {
            let mut all = DrawnTokens::default();
            all.add([node.clone()].into_iter(), |_| vec![7, 8]);
            all.changed(&op);
            assert_eq!(all.at(seq, &[7, 8, 4]).is_some(), stays, "{op:?}");
        }
    }
}
