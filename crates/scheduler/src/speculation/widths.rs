//! How many nodes drafts have at each depth, once it was decided what of them is verified: what a draft
//! that is asked for will cost to verify.

use super::{DrafterKind, tree};
use crate::event::DraftNode;

/// Depths that are told apart.
const DEPTHS: usize = 8;
/// What is left of a draft's weight a draft later.
const KEEP: f64 = 0.98;

/// Nodes, and drafts that have any; fading.
#[derive(Debug, Clone, Copy, Default)]
struct Width {
    nodes: f64,
    drafts: f64,
}

/// By drafter, of drafts that may have branches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Widths {
    of: [[Width; DEPTHS]; DrafterKind::ALL.len()],
}

impl Widths {
    /// These nodes of a draft, parents first, are verified.
    pub(crate) fn see(&mut self, kind: DrafterKind, nodes: &[DraftNode]) {
        let depths = tree::depths(nodes);
        for (depth, width) in (1..).zip(&mut self.of[kind.index()]) {
            let here = depths.iter().filter(|&&d| d == depth).count();
            if here > 0 {
                width.nodes = width.nodes * KEEP + here as f64;
                width.drafts = width.drafts * KEEP + 1.0;
            }
        }
    }

    /// Nodes at a depth, from 0, of a draft that is so deep. Depths that were never reached are like
    /// those before them, and before there was any draft it is a chain.
    pub(crate) fn at_depth(&self, kind: DrafterKind, depth: usize) -> f64 {
        let seen = self.of[kind.index()][..=depth.min(DEPTHS - 1)].iter().rev();
        let last = seen.clone().find(|width| width.drafts > 0.0);
        last.map_or(1.0, |width| width.nodes / width.drafts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_means_of_the_drafts_that_are_so_deep() {
        let kind = DrafterKind::Model;
        let tree = |parents: &[u32]| -> Vec<DraftNode> {
            let node = |&parent| DraftNode { token: 0, parent, confidence: 1, drafter: kind };
            parents.iter().map(node).collect()
        };
        let mut widths = Widths::default();
        assert_eq!(widths.at_depth(kind, 3), 1.0);
        const ROOT: u32 = DraftNode::ROOT;
        for _ in 0..500 {
            // Two, then three, then one; and one alone.
            widths.see(kind, &tree(&[ROOT, ROOT, 0, 0, 1, 2]));
            widths.see(kind, &tree(&[ROOT]));
        }
        let at = |depth| widths.at_depth(kind, depth);
        assert!((at(0) - 1.5).abs() < 0.02, "{}", at(0));
        assert!((at(1) - 3.0).abs() < 1e-9 && (at(2) - 1.0).abs() < 1e-9);
        assert_eq!(at(2), at(20));
        assert_eq!(widths.at_depth(DrafterKind::Layers, 1), 1.0);
    }
}
