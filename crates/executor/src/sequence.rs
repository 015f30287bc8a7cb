//! The executor's sequences: tokens and block tables, changed by the core's operations alone.

use dunlin_scheduler::SeqOp;
use dunlin_units::{RequestId, SeqId};

/// One stream of tokens and the blocks of its KV.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Whether it was started and has not ended.
    live: bool,
    /// Whose parameters sample it.
    pub(crate) request: Option<RequestId>,
    /// Which of the request's choices it is.
    pub(crate) choice: u32,
    /// All of its tokens, those whose KV is not there yet included.
    pub(crate) tokens: Vec<u32>,
    /// Block `i` holds positions `i * block_tokens ..`.
    pub(crate) table: Vec<u32>,
}

/// All sequences, by id. Ids are small and used again, and so is the memory of those that ended.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    slots: Vec<Sequence>,
}

impl Sequences {
    /// The sequence of this name.
    ///
    /// # Panics
    /// Where there is none: the core and the executor have come apart.
    pub(crate) fn get(&self, seq: SeqId) -> &Sequence {
        match self.slots.get(seq.0 as usize) {
            Some(slot) if slot.live => slot,
            _ => panic!("{seq:?} is not there"),
        }
    }

    /// The sequence of this name, to be changed.
    ///
    /// # Panics
    /// As [`Sequences::get`].
    pub(crate) fn get_mut(&mut self, seq: SeqId) -> &mut Sequence {
        match self.slots.get_mut(seq.0 as usize) {
            Some(slot) if slot.live => slot,
            _ => panic!("{seq:?} is not there"),
        }
    }

    /// Carries out an operation on sequences; [`SeqOp::Copy`] and [`SeqOp::Fill`] are none.
    ///
    /// # Panics
    /// On operations on sequences that are not there, or that do not hold what is named.
    pub(crate) fn apply(&mut self, op: &SeqOp) {
        match *op {
            SeqOp::Start { seq, request, choice } => {
                let slot = self.start(seq);
                (slot.request, slot.choice) = (request, choice);
            }
            SeqOp::Fork { from, to, tokens, blocks, request, choice } => {
                self.fork(from, to, tokens as usize, blocks as usize);
                let slot = self.get_mut(to);
                (slot.request, slot.choice) = (request, choice);
            }
            SeqOp::Assign { seq, request, choice } => {
                let slot = self.get_mut(seq);
                (slot.request, slot.choice) = (request, choice);
            }
            SeqOp::Append { seq, ref tokens } => {
                self.get_mut(seq).tokens.extend_from_slice(tokens);
            }
            SeqOp::Truncate { seq, tokens, blocks } => {
                let slot = self.get_mut(seq);
                slot.tokens.truncate(tokens as usize);
                slot.table.truncate(blocks as usize);
            }
            SeqOp::Block { seq, block } => self.get_mut(seq).table.push(block),
            SeqOp::Replace { seq, index, block } => {
                self.get_mut(seq).table[index as usize] = block;
            }
            SeqOp::End { seq } => self.get_mut(seq).live = false,
            SeqOp::Copy { .. } | SeqOp::Fill { .. } => {}
        }
    }

    fn start(&mut self, seq: SeqId) -> &mut Sequence {
        let index = seq.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Sequence::default);
        }
        let slot = &mut self.slots[index];
        assert!(!slot.live, "{seq:?} is there already");
        slot.live = true;
        slot.tokens.clear();
        slot.table.clear();
        slot
    }

    fn fork(&mut self, from: SeqId, to: SeqId, tokens: usize, blocks: usize) {
        // Taken out and put back: two slots of one vector.
        let mut fork = std::mem::take(self.start(to));
        let source = self.get(from);
        fork.tokens.extend_from_slice(&source.tokens[..tokens]);
        fork.table.extend_from_slice(&source.table[..blocks]);
        self.slots[to.0 as usize] = fork;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeqId = SeqId(0);
    const B: SeqId = SeqId(3);

    fn start(seq: SeqId) -> SeqOp {
        SeqOp::Start { seq, request: Some(RequestId(7)), choice: 0 }
    }

    #[test]
    fn operations_change_tokens_and_tables() {
        let mut all = Sequences::default();
        let (request, choice) = (Some(RequestId(7)), 2);
        for op in [
            start(A),
            SeqOp::Append { seq: A, tokens: [1, 2, 3].into() },
            SeqOp::Block { seq: A, block: 9 },
            SeqOp::Block { seq: A, block: 8 },
            SeqOp::Append { seq: A, tokens: [4].into() },
            SeqOp::Fork { from: A, to: B, tokens: 3, blocks: 1, request, choice },
            SeqOp::Replace { seq: A, index: 1, block: 5 },
            SeqOp::Truncate { seq: A, tokens: 2, blocks: 2 },
            SeqOp::Assign { seq: A, request: None, choice: 0 },
        ] {
            all.apply(&op);
        }
        let (a, b) = (all.get(A), all.get(B));
        assert_eq!((&a.tokens[..], &a.table[..], a.request), (&[1, 2][..], &[9, 5][..], None));
        assert_eq!((&b.tokens[..], &b.table[..]), (&[1, 2, 3][..], &[9][..]));
        assert_eq!((b.request, b.choice), (request, choice));
        // A name that is used again starts from nothing.
        all.apply(&SeqOp::End { seq: B });
        all.apply(&start(B));
        assert_eq!((all.get(B).tokens.len(), all.get(B).table.len()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "is there already")]
    fn a_name_has_one_sequence() {
        let mut all = Sequences::default();
        all.apply(&start(A));
        all.apply(&start(A));
    }

    #[test]
    #[should_panic(expected = "is not there")]
    fn what_has_ended_is_not_there() {
        let mut all = Sequences::default();
        all.apply(&start(A));
        all.apply(&SeqOp::End { seq: A });
        all.get(A);
    }
}
