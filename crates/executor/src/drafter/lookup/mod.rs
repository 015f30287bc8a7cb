//! What followed the same tokens earlier in the prompt or in the output: prompt lookup and n-gram
//! speculation, with the longest match there is instead of n-grams of fixed length.
//!
//! Costs microseconds a token, and memory in proportion to the sequence. Its confidence is a table
//! of match length and of how many different tokens have followed; what that is worth for a text
//! the scheduler learns. Where different tokens have followed, a draft has branches (`grow`).

mod automaton;
mod grow;

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DraftWork, DrafterKind, Proposal, SeqOp};

use dunlin_tensor::Backend;

use self::{automaton::SuffixAutomaton, grow::Source};
use super::{Drafter, Wanted, forgotten};

/// Tokens of a sequence that are indexed at most; then its older half is forgotten.
const MOST_TOKENS: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub struct LookupDrafter {
    /// By sequence.
    texts: Vec<Option<Box<Text>>>,
}

/// What is known of a sequence.
#[derive(Debug)]
struct Text {
    automaton: SuffixAutomaton,
    /// The sequence's tokens that were forgotten.
    start: usize,
}

impl Text {
    fn new(start: usize) -> Self {
        Self { automaton: SuffixAutomaton::new(), start }
    }

    /// Takes in the tokens that are new.
    fn read(&mut self, tokens: &[u32]) {
        let fed = self.start + self.automaton.len();
        if tokens.len() - self.start > MOST_TOKENS {
            *self = Self::new(tokens.len() - MOST_TOKENS / 2);
            return self.read(tokens);
        }
        for &token in &tokens[fed..] {
            self.automaton.push(token);
        }
    }

    /// What may come after the tokens that were read, behind what is proposed already.
    fn draft(&self, wanted: &Wanted<'_>, nodes: Vec<DraftNode>) -> Vec<DraftNode> {
        let source = Source {
            automaton: &self.automaton,
            tokens: wanted.tokens,
            start: self.start,
            nodes: wanted.nodes,
            branches: wanted.branches,
            stop_below: f64::from(wanted.stop_below) / f64::from(CONFIDENCE_ONE),
        };
        grow::grow(&source, nodes)
    }
}

/// How often what followed a match of this length follows again, where `ways` different tokens have
/// followed it.
pub(super) fn confidence(len: usize, ways: u32) -> f64 {
    // The last that followed is one of so many.
    grow::confidence(len) * 2.0 / (1.0 + f64::from(ways.max(1)))
}

/// What is known to have followed.
pub(crate) struct Found {
    /// The last tokens that it followed.
    pub(crate) matched: usize,
    pub(crate) proposal: Proposal,
}

impl LookupDrafter {
    /// A sequence's text, up to date.
    fn text(&mut self, wanted: &Wanted<'_>) -> &Text {
        let slot = wanted.seq.0 as usize;
        if slot >= self.texts.len() {
            self.texts.resize_with(slot + 1, || None);
        }
        let text = self.texts[slot].get_or_insert_with(|| Box::new(Text::new(0)));
        text.read(wanted.tokens);
        text
    }

    /// What another drafter proposes, with what followed the same tokens before wherever its tree goes:
    /// as many nodes more as are wanted.
    pub fn graft(&mut self, wanted: &Wanted<'_>, nodes: Vec<DraftNode>) -> Vec<DraftNode> {
        self.text(wanted).draft(wanted, nodes)
    }

    /// What may follow a sequence.
    pub(crate) fn look_up(&mut self, wanted: &Wanted<'_>) -> Option<Found> {
        let text = self.text(wanted);
        let nodes = text.draft(wanted, Vec::new());
        let proposal = Proposal { seq: wanted.seq, drafter: DrafterKind::Lookup, nodes };
        let matched = text.automaton.longest_match().map_or(0, |found| found.len as usize);
        (!proposal.nodes.is_empty()).then_some(Found { matched, proposal })
    }
}

impl Drafter for LookupDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Lookup
    }

    fn pass_permille(&self, _: &dyn Backend) -> u32 {
        0
    }

    fn changed(&mut self, op: &SeqOp) {
        let Some((seq, stay)) = forgotten(op) else { return };
        if let Some(text) = self.texts.get_mut(seq.0 as usize)
            && text.as_ref().is_some_and(|t| t.start + t.automaton.len() > stay)
        {
            *text = None;
        }
    }

    fn propose(&mut self, wanted: &[Wanted<'_>], proposals: &mut Vec<Proposal>) -> DraftWork {
        let found = wanted.iter().filter_map(|wanted| self.look_up(wanted));
        proposals.extend(found.map(|found| found.proposal));
        DraftWork::default()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_units::SeqId;

    use super::*;
    use crate::sampler::SamplingParams;

    fn tree(
        drafter: &mut LookupDrafter,
        seq: u32,
        tokens: &[u32],
        (nodes, branches): (usize, usize),
    ) -> Vec<DraftNode> {
        let mut proposals = Vec::new();
        let wanted = Wanted {
            seq: SeqId(seq),
            tokens,
            nodes,
            depth: nodes,
            branches,
            stop_below: 0,
            context: usize::MAX,
            sampling: &SamplingParams::greedy(),
            prompt_len: 0,
            choice: 0,
            draws: false,
        };
        drafter.propose(&[wanted], &mut proposals);
        proposals.pop().map_or(Vec::new(), |p| p.nodes)
    }

    /// A draft without branches.
    fn draft(drafter: &mut LookupDrafter, seq: u32, tokens: &[u32], nodes: usize) -> Vec<u32> {
        let nodes = tree(drafter, seq, tokens, (nodes, 1));
        for (node, i) in nodes.iter().zip(0u32..) {
            assert_eq!(node.parent, i.checked_sub(1).unwrap_or(DraftNode::ROOT));
            assert!(node.confidence <= CONFIDENCE_ONE);
        }
        nodes.iter().map(|n| n.token).collect()
    }

    #[test]
    fn what_followed_before_follows_again() {
        let mut drafter = LookupDrafter::default();
        assert_eq!(draft(&mut drafter, 0, &[1, 2, 3], 8), [0u32; 0]);
        assert_eq!(draft(&mut drafter, 0, &[1, 2, 3, 7, 8, 9, 1, 2, 3], 3), [7, 8, 9]);
        // The last time counts.
        let tokens = [1, 2, 3, 7, 8, 9, 1, 2, 3, 7, 5, 5, 6, 2, 3, 7];
        assert_eq!(draft(&mut drafter, 0, &tokens, 2), [5, 5]);
        // Past the end it repeats itself.
        assert_eq!(draft(&mut drafter, 1, &[4, 5, 6, 4, 5, 6], 7), [4, 5, 6, 4, 5, 6, 4]);
        assert_eq!(draft(&mut drafter, 2, &[9, 9], 4), [9, 9, 9, 9]);
    }

    #[test]
    fn where_several_tokens_have_followed_there_are_branches() {
        let mut drafter = LookupDrafter::default();
        let text = [1, 2, 3, 7, 8, 1, 2, 3, 5, 6, 1, 2, 3];
        let nodes = tree(&mut drafter, 0, &text, (6, 8));
        let paths = |nodes: &[DraftNode]| -> Vec<Vec<u32>> {
            (0..nodes.len())
                .map(|mut at| {
                    let mut path = vec![nodes[at].token];
                    while nodes[at].parent != DraftNode::ROOT {
                        at = nodes[at].parent as usize;
                        path.insert(0, nodes[at].token);
                    }
                    path
                })
                .collect()
        };
        let found = paths(&nodes);
        // The last that followed, then the one before, each with what came behind it.
        assert_eq!(found[0], [5]);
        for path in [vec![5, 6], vec![7], vec![7, 8]] {
            assert!(found.contains(&path), "{path:?}: {found:?}");
        }
        let sums: u32 =
            nodes.iter().filter(|n| n.parent == DraftNode::ROOT).map(|n| n.confidence).sum();
        assert!(sums <= CONFIDENCE_ONE);
        // No more branches than are wanted.
        let chain = tree(&mut drafter, 0, &text, (5, 1));
        assert!((1..).zip(&chain[1..]).all(|(i, n)| n.parent == i - 1));
    }

    #[test]
    fn any_tree_is_in_order_within_its_bounds_and_grafts_keep_what_is_there() {
        for seed in 0..200 {
            let mut random = dunlin_units::SeedTree::root(seed).child("trees").stream();
            let alphabet = 2 + random.next_below(4);
            let length = 2 + random.next_below(80);
            let text: Vec<u32> = (0..length).map(|_| random.next_below(alphabet) as u32).collect();
            let (nodes, branches) =
                (1 + random.next_below(20) as usize, 1 + random.next_below(6) as usize);
            let mut drafter = LookupDrafter::default();
            let found = tree(&mut drafter, 0, &text, (nodes, branches));
            let check = |found: &[DraftNode]| {
                assert!(found.len() <= nodes, "seed {seed}");
                let mut leaves = found.len();
                for (i, node) in (0..).zip(found) {
                    assert!(node.parent == DraftNode::ROOT || node.parent < i, "seed {seed}");
                    let twins =
                        found.iter().filter(|n| (n.parent, n.token) == (node.parent, node.token));
                    assert_eq!(twins.count(), 1, "seed {seed}");
                    leaves -= usize::from(found.iter().any(|n| n.parent == i));
                }
                assert!(leaves <= branches, "seed {seed}: {leaves} of {branches}");
            };
            check(&found);
            // A part of a tree is grown to the whole again, or to something else of its size.
            let stem: Vec<DraftNode> = found[..found.len() / 2].to_vec();
            let wanted = Wanted {
                seq: SeqId(0),
                tokens: &text,
                nodes,
                depth: nodes,
                branches,
                stop_below: 0,
                context: usize::MAX,
                sampling: &SamplingParams::greedy(),
                prompt_len: 0,
                choice: 0,
                draws: false,
            };
            let grown = drafter.graft(&wanted, stem.clone());
            check(&grown);
            assert_eq!(grown[..stem.len()], stem, "seed {seed}");
            assert!(found.is_empty() || grown.len() >= stem.len());
        }
    }

    #[test]
    fn a_sequence_that_changes_is_read_again() {
        let mut drafter = LookupDrafter::default();
        let seq = SeqId(3);
        assert_eq!(draft(&mut drafter, 3, &[1, 2, 1], 1), [2]);
        drafter.changed(&SeqOp::Truncate { seq, tokens: 1, blocks: 1 });
        assert_eq!(draft(&mut drafter, 3, &[1, 6, 1], 1), [6]);
        drafter.changed(&SeqOp::End { seq });
        drafter.changed(&SeqOp::Start { seq, request: None, choice: 0 });
        assert_eq!(draft(&mut drafter, 3, &[5, 1], 1), [0u32; 0]);
        // What it has not read yet may go.
        drafter.changed(&SeqOp::Truncate { seq, tokens: 2, blocks: 1 });
        assert!(drafter.texts[3].is_some());
    }

    #[test]
    fn long_texts_keep_their_later_half() {
        let mut drafter = LookupDrafter::default();
        let mut tokens: Vec<u32> = (0..MOST_TOKENS as u32).collect();
        assert_eq!(draft(&mut drafter, 0, &tokens, 4), [0u32; 0]);
        tokens.extend([60_000, 60_001]);
        assert_eq!(draft(&mut drafter, 0, &tokens, 2), [60_002, 60_003]);
        let text = drafter.texts[0].as_ref().unwrap();
        assert_eq!(text.automaton.len(), MOST_TOKENS / 2);
        tokens.extend([10, 11]);
        assert_eq!(draft(&mut drafter, 0, &tokens, 2), [0u32; 0]);
    }
}
