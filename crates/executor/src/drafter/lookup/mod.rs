//! What followed the same tokens earlier in the prompt or in the output: prompt lookup and n-gram
//! speculation, with the longest match there is instead of n-grams of fixed length.
//!
//! Costs microseconds a token, and memory in proportion to the sequence. Its confidence is a table
//! of match length and of how many different tokens have followed; what that is worth for a text
//! the scheduler learns.

mod automaton;

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DraftWork, DrafterKind, Proposal, SeqOp};

use dunlin_tensor::Backend;

use self::automaton::SuffixAutomaton;
use super::{Drafter, Wanted, forgotten};

/// Tokens of a sequence that are indexed at most; then its older half is forgotten.
const MOST_TOKENS: usize = 1 << 16;
/// A draft ends where the probability that all of it is right falls below this.
const STOP_BELOW: f64 = 0.02;

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

    /// What may come after the tokens that were read.
    fn draft(&self, tokens: &[u32], wanted: &Wanted<'_>) -> Vec<DraftNode> {
        let mut nodes: Vec<DraftNode> = Vec::new();
        let Some(found) = self.automaton.longest_match() else { return nodes };
        let from = self.start + found.end as usize;
        let (mut state, mut ways) = (Some(found.state), found.ways);
        let mut all = 1.0;
        while nodes.len() < wanted.nodes {
            let i = nodes.len();
            // Past the end of the text it goes on with what it has just said.
            let token = match tokens.get(from + i) {
                Some(&token) => token,
                None => nodes[from + i - tokens.len()].token,
            };
            let sure = confidence(found.len as usize + i, ways);
            all *= sure;
            if all < STOP_BELOW.max(f64::from(wanted.stop_below) / f64::from(CONFIDENCE_ONE)) {
                break;
            }
            let parent = i.checked_sub(1).map_or(DraftNode::ROOT, |p| p as u32);
            let confidence = (sure * f64::from(CONFIDENCE_ONE)) as u32;
            nodes.push(DraftNode { token, parent, confidence });
            let after = state.and_then(|s| self.automaton.ways_after(s, token));
            (state, ways) = after.map_or((None, 1), |(state, ways)| (Some(state), ways));
        }
        nodes
    }
}

/// How often what followed a match of this length follows again, where `ways` different tokens have
/// followed it.
pub(super) fn confidence(len: usize, ways: u32) -> f64 {
    let alone = match len {
        0 | 1 => 0.35,
        2 => 0.5,
        3 => 0.62,
        4 => 0.7,
        5..=6 => 0.77,
        7..=9 => 0.84,
        10..=15 => 0.89,
        16..=31 => 0.94,
        _ => 0.97,
    };
    // The last that followed is one of so many.
    alone * 2.0 / (1.0 + f64::from(ways.max(1)))
}

/// What is known to have followed.
pub(crate) struct Found {
    /// The last tokens that it followed.
    pub(crate) matched: usize,
    pub(crate) proposal: Proposal,
}

impl LookupDrafter {
    /// What may follow a sequence.
    pub(crate) fn look_up(&mut self, wanted: &Wanted<'_>) -> Option<Found> {
        let slot = wanted.seq.0 as usize;
        if slot >= self.texts.len() {
            self.texts.resize_with(slot + 1, || None);
        }
        let text = self.texts[slot].get_or_insert_with(|| Box::new(Text::new(0)));
        text.read(wanted.tokens);
        let nodes = text.draft(wanted.tokens, wanted);
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

    fn draft(drafter: &mut LookupDrafter, seq: u32, tokens: &[u32], nodes: usize) -> Vec<u32> {
        let mut proposals = Vec::new();
        let wanted = Wanted {
            seq: SeqId(seq),
            tokens,
            nodes,
            stop_below: 0,
            context: usize::MAX,
            sampling: &SamplingParams::greedy(),
            prompt_len: 0,
            choice: 0,
        };
        drafter.propose(&[wanted], &mut proposals);
        let nodes = proposals.pop().map_or(Vec::new(), |p| p.nodes);
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
