//! How often a node of a draft is the token that the model chooses, given that those before it are.
//!
//! A drafter states a confidence with each node. What that is worth is learned: rates by drafter and
//! confidence over all sequences, and a sequence's own, which is believed after a few nodes, since
//! texts differ (and since a text may be made so that a drafter is wrong: Mistletoe, A032).
//! For drafters whose confidence is known only once they have drafted there are rates by depth.
//!
//! Free of charge where a draft costs nothing: a node that was proposed and not verified is still
//! compared with the token that came.

use super::{CONFIDENCE_ONE, DrafterKind};

/// Upper borders of the classes of confidence, in 1/1000.
const BORDERS: [u32; 11] = [50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 960];
const CLASSES: usize = BORDERS.len() + 1;
/// Which class of a sequence's own rates each class belongs to.
const OWN_CLASS: [usize; CLASSES] = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4];
const OWN_CLASSES: usize = 5;
/// Depths that are told apart.
const DEPTHS: usize = 8;
/// Nodes for which the drafter's word counts before rates of all sequences.
const PRIOR_NODES: f64 = 6.0;
/// Nodes for which the rates of all count before the sequence's own.
const OWN_PRIOR_NODES: f64 = 5.0;
/// What is left of a node's weight a node later.
const KEEP: f64 = 0.998;
/// The same for a sequence's own: some sixteen nodes count.
const OWN_KEEP: f64 = 0.94;
/// What is left of what is known of a drafter's depths a step later in which it was not asked, of a
/// sequence's own and of all: what was bad once is tried again.
const OWN_MEMORY: f64 = 0.97;
const MEMORY: f64 = 0.998;
/// Of a drafter that was never asked: optimistic, so that it is.
const UNKNOWN: f64 = 0.7;

/// Accepted ones of those tried, fading.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    accepted: f64,
    tried: f64,
}

impl Rate {
    fn see(&mut self, accepted: bool, keep: f64) {
        self.accepted = self.accepted * keep + f64::from(u8::from(accepted));
        self.tried = self.tried * keep + 1.0;
    }

    fn fade(&mut self, keep: f64) {
        self.accepted *= keep;
        self.tried *= keep;
    }

    /// The rate, where `prior` counts as so many nodes.
    fn with(self, prior: f64, nodes: f64) -> f64 {
        (prior * nodes + self.accepted) / (nodes + self.tried)
    }
}

const KINDS: usize = DrafterKind::ALL.len();

/// Rates of all sequences.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acceptance {
    /// Of the first node of a draft, and of those after it.
    by_confidence: [[[Rate; CLASSES]; 2]; KINDS],
    by_depth: [[Rate; DEPTHS]; KINDS],
}

/// Rates of one sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnAcceptance {
    by_confidence: [[[Rate; OWN_CLASSES]; 2]; KINDS],
    by_depth: [[Rate; 2]; KINDS],
}

fn class(confidence: u32) -> usize {
    let permille = u64::from(confidence) * 1000 / u64::from(CONFIDENCE_ONE);
    BORDERS.iter().position(|&b| permille < u64::from(b)).unwrap_or(CLASSES - 1)
}

impl Acceptance {
    /// A node of this confidence, at this depth from 0, those before it being right, was or was not
    /// what the model chose.
    pub(crate) fn see(
        &mut self,
        own: &mut OwnAcceptance,
        kind: DrafterKind,
        (confidence, depth): (u32, usize),
        accepted: bool,
    ) {
        let (k, class) = (kind.index(), class(confidence));
        let later = depth.min(1);
        self.by_confidence[k][later][class].see(accepted, KEEP);
        own.by_confidence[k][later][OWN_CLASS[class]].see(accepted, OWN_KEEP);
    }

    /// One of the nodes that followed what was right up to this depth, from 0, was or was not what
    /// the model chose.
    pub(crate) fn see_depth(
        &mut self,
        own: &mut OwnAcceptance,
        kind: DrafterKind,
        depth: usize,
        accepted: bool,
    ) {
        let k = kind.index();
        self.by_depth[k][depth.min(DEPTHS - 1)].see(accepted, KEEP);
        own.by_depth[k][depth.min(1)].see(accepted, OWN_KEEP);
    }

    /// A sequence had a step without a draft of this drafter.
    pub(crate) fn not_asked(&mut self, own: &mut OwnAcceptance, kind: DrafterKind) {
        let k = kind.index();
        self.by_depth[k].iter_mut().for_each(|rate| rate.fade(MEMORY));
        own.by_depth[k].iter_mut().for_each(|rate| rate.fade(OWN_MEMORY));
    }

    /// The probability that a node of this confidence at this depth is accepted where those before it
    /// are.
    pub(crate) fn of_node(
        &self,
        own: &OwnAcceptance,
        kind: DrafterKind,
        (confidence, depth): (u32, usize),
    ) -> f64 {
        let (k, class, later) = (kind.index(), class(confidence), depth.min(1));
        let said = f64::from(confidence.min(CONFIDENCE_ONE)) / f64::from(CONFIDENCE_ONE);
        let all = self.by_confidence[k][later][class].with(said, PRIOR_NODES);
        own.by_confidence[k][later][OWN_CLASS[class]].with(all, OWN_PRIOR_NODES)
    }

    /// The probability that a node at this depth is accepted where those before it are, when its
    /// confidence is not known yet.
    pub(crate) fn at_depth(&self, own: &OwnAcceptance, kind: DrafterKind, depth: usize) -> f64 {
        let rates = &self.by_depth[kind.index()];
        let mut all = UNKNOWN;
        for rate in &rates[..=depth.min(DEPTHS - 1)] {
            // Depths that were never reached are like those before them.
            all = rate.with(all, PRIOR_NODES);
        }
        own.by_depth[kind.index()][depth.min(1)].with(all, OWN_PRIOR_NODES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: DrafterKind = DrafterKind::Lookup;
    const SURE: u32 = CONFIDENCE_ONE / 100 * 95;

    #[test]
    fn a_drafter_is_believed_until_there_is_something_to_go_by() {
        let (mut all, mut own) = (Acceptance::default(), OwnAcceptance::default());
        assert!((all.of_node(&own, KIND, (SURE, 0)) - 0.95).abs() < 0.01);
        for _ in 0..200 {
            all.see(&mut own, KIND, (SURE, 0), false);
        }
        assert!(all.of_node(&own, KIND, (SURE, 0)) < 0.01);
        // Another sequence knows from that one, and finds out for itself.
        let mut other = OwnAcceptance::default();
        assert!(all.of_node(&other, KIND, (SURE, 0)) < 0.05);
        for _ in 0..20 {
            all.see(&mut other, KIND, (SURE, 0), true);
        }
        assert!(all.of_node(&other, KIND, (SURE, 0)) > 0.7);
        assert!(all.of_node(&own, KIND, (SURE, 0)) < 0.1);
    }

    #[test]
    fn a_sequence_that_turns_is_noticed_within_some_nodes() {
        let (mut all, mut own) = (Acceptance::default(), OwnAcceptance::default());
        for _ in 0..1000 {
            all.see(&mut own, KIND, (SURE, 0), true);
        }
        for _ in 0..10 {
            all.see(&mut own, KIND, (SURE, 0), false);
        }
        assert!(all.of_node(&own, KIND, (SURE, 0)) < 0.65);
        for _ in 0..20 {
            all.see(&mut own, KIND, (SURE, 0), false);
        }
        assert!(all.of_node(&own, KIND, (SURE, 0)) < 0.35);
    }

    #[test]
    fn depths_have_rates_of_their_own() {
        let (mut all, mut own) = (Acceptance::default(), OwnAcceptance::default());
        assert!((all.at_depth(&own, KIND, 5) - UNKNOWN).abs() < 1e-9);
        for _ in 0..300 {
            all.see_depth(&mut own, KIND, 0, true);
            all.see_depth(&mut own, KIND, 1, false);
        }
        assert!(all.at_depth(&own, KIND, 0) > 0.97 && all.at_depth(&own, KIND, 1) < 0.05);
        assert!(all.at_depth(&own, KIND, 7) < 0.05);
        // Hope returns.
        for _ in 0..3000 {
            all.not_asked(&mut own, KIND);
        }
        assert!(all.at_depth(&own, KIND, 1) > 0.6);
    }
}
