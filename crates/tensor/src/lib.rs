//! The contract between a step's batch and the backend that computes it.
//!
//! A [`Backend`] owns the weights and the physical KV blocks, in whatever layout suits it. Callers
//! name KV blocks by id only, and call [`Backend::forward`] once a step with everything that the
//! step computes: prefill chunks and decodes of any number of sequences, mixed, without padding.
//!
//! Every backend states what it holds to of "same prefix, same bits"; the CPU backend holds to all
//! of it.
#![forbid(unsafe_code)]

use dunlin_spec::ModelSpec;

/// Which positions of a sequence's new tokens get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None: a prefill chunk that is not the last.
    None,
    /// The last new token's.
    Last,
    /// Every new token's.
    All,
}

/// The largest of a position's logits: a greedy choice.
#[derive(Debug, Clone, Copy)]
pub struct Best {
    /// The token, the lowest id among equals; zero where a logit is NaN.
    pub token: u32,
    /// Its logit; NaN where any logit of the position is.
    pub logit: f32,
}

impl Best {
    /// What logits with a NaN among them give.
    pub const NOT_A_NUMBER: Best = Best { token: 0, logit: f32::NAN };
    /// What every other choice replaces.
    pub const NONE: Best = Best { token: u32::MAX, logit: f32::NEG_INFINITY };

    /// The best of a position's logits, in the order of the tokens.
    pub fn of(logits: &[f32]) -> Best {
        let each = (0..).zip(logits).map(|(token, &logit)| Best { token, logit });
        each.fold(Best::NONE, Best::or)
    }

    /// The better of two choices among different tokens of a position, whatever their order.
    #[must_use]
    pub fn or(self, other: Best) -> Best {
        if self.logit.is_nan() || other.logit.is_nan() {
            Best::NOT_A_NUMBER
        } else if other.logit > self.logit
            || (other.logit == self.logit && other.token < self.token)
        {
            other
        } else {
            self
        }
    }
}

/// How far looking for best tokens with a part of the head's bits went, over all positions so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Screening {
    /// Parts of the head that were looked at with their high bits.
    pub screened: u64,
    /// Those among them that had to be multiplied with all bits.
    pub exact: u64,
}

/// New tokens of one sequence in a step.
#[derive(Debug, Clone, Copy)]
pub struct SequenceInput<'a> {
    /// The new tokens, at least one.
    pub tokens: &'a [u32],
    /// The absolute position of the first new token; every earlier position's KV is stored already.
    pub first_position: usize,
    /// Physical blocks of this sequence, in position order: block `i` holds positions
    /// `i * block_tokens ..`. Covers the new tokens.
    pub block_table: &'a [u32],
    /// Which of the new tokens get logits.
    pub logits: LogitsWanted,
    /// An earlier sequence of the batch that this one is a **branch** of: all tokens before
    /// `first_position`, new ones among them, are that one's, and other tokens follow. So the paths
    /// of a tree are computed in one step, and what they have in common is computed once.
    ///
    /// A branch begins behind the first of its parent's new tokens. Its table has the parent's blocks
    /// as far as `first_position` fills them, then blocks of its own. In the first of these, the
    /// caller has put the KV of positions that were stored before the step; the backend stores that
    /// of the step's new tokens ([`inherited`]) in every block that they belong to.
    pub branch_of: Option<usize>,
}

/// The new tokens of other sequences that a branch has in the first of its own blocks: each with its
/// position and the sequence of the batch that computes it. `batch[index]` must be a branch as
/// [`SequenceInput::branch_of`] says; nothing for other sequences.
pub fn inherited<'a>(
    batch: &'a [SequenceInput<'a>],
    index: usize,
    block_tokens: usize,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    let branch = &batch[index];
    let end = branch.first_position;
    let start = end - end % block_tokens;
    let owner = move |position: usize| {
        let mut of = branch.branch_of?;
        while batch[of].first_position > position {
            of = batch[of].branch_of?;
        }
        Some((position, of))
    };
    (start..end).filter_map(owner)
}

impl SequenceInput<'_> {
    /// Positions whose logits are wanted.
    pub fn wanted(&self) -> usize {
        match self.logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => 1,
            LogitsWanted::All => self.tokens.len(),
        }
    }
}

/// Positions of a KV block, from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLanes {
    /// The block.
    pub block: u32,
    /// The first position within the block.
    pub first: usize,
}

/// What a backend answers when a step cannot be computed. The step's KV writes are undefined
/// afterwards; earlier positions are intact.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A token id at or above the vocabulary's size.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// The model's vocabulary size.
        vocab_size: usize,
    },
    /// A block table that is too short or names a block that does not exist.
    #[error("sequence {sequence}: {problem}")]
    BadBlockTable {
        /// Index in the step's batch.
        sequence: usize,
        /// What is wrong.
        problem: String,
    },
    /// KV that does not fit the block where it should go, or cannot be moved. Nothing was written.
    #[error("KV for block {block}: {problem}")]
    BadKv {
        /// The block.
        block: u32,
        /// What is wrong.
        problem: String,
    },
    /// The memory for the step or for its KV could not be had.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
}

/// Computes forward passes of one model.
pub trait Backend: Send {
    /// The model.
    fn spec(&self) -> &ModelSpec;

    /// Tokens in one KV block.
    fn block_tokens(&self) -> usize;

    /// Blocks that exist; ids are `0..block_count`.
    fn block_count(&self) -> usize;

    /// Bytes of KV in one block, over all layers.
    fn block_bytes(&self) -> usize;

    /// The most new tokens that one step may hold, over all sequences.
    fn max_step_tokens(&self) -> usize;

    /// Bytes of weights that one step reads, where the backend can tell (a mixture of experts reads
    /// those of the experts that a token uses).
    fn weight_bytes_per_step(&self) -> Option<u64> {
        None
    }

    /// Runs one step. `logits` is cleared and then filled with the wanted logits,
    /// `[n_wanted, vocab_size]`, row-major, in the order of the sequences and of their positions.
    ///
    /// # Errors
    /// Bad token ids, block tables and branches are refused before anything is computed.
    fn forward(
        &mut self,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError>;

    /// Runs one step of which the sequences marked in `greedy`, `[batch]`, want only the best token of
    /// each of their wanted positions. `logits` becomes what [`Backend::forward`] gives for the other
    /// sequences, `best` is cleared and filled with one entry for each wanted position of the marked
    /// ones, in their order: exactly [`Best::of`] what `forward` would give.
    ///
    /// # Errors
    /// As [`Backend::forward`].
    fn forward_best(
        &mut self,
        batch: &[SequenceInput<'_>],
        greedy: &[bool],
        logits: &mut Vec<f32>,
        best: &mut Vec<Best>,
    ) -> Result<(), BackendError> {
        assert_eq!(batch.len(), greedy.len(), "a mark for each sequence");
        best.clear();
        self.forward(batch, logits)?;
        let width = self.spec().vocab_size;
        let (mut from, mut to) = (0, 0);
        for (input, &greedy) in batch.iter().zip(greedy) {
            for _ in 0..input.wanted() {
                if greedy {
                    best.push(Best::of(&logits[from..from + width]));
                } else {
                    logits.copy_within(from..from + width, to);
                    to += width;
                }
                from += width;
            }
        }
        logits.truncate(to);
        Ok(())
    }

    /// How [`Backend::forward_best`] has looked so far; `None` where it computes all logits.
    fn screening(&self) -> Option<Screening> {
        None
    }

    /// Appends the final hidden states, after the last norm and before the head, of the positions
    /// that got logits in the last step: `[n_wanted, d_model]`, in the order of the logits. Says
    /// whether this backend has them.
    fn hidden_states(&self, to: &mut Vec<f32>) -> bool {
        let _ = to;
        false
    }

    /// Copies the first `tokens` positions of a block's KV to another block, in all layers
    /// (copy on write).
    fn copy_block(&mut self, from: u32, to: u32, tokens: usize);

    /// Bytes of one token's KV outside the backend, over all layers: a layout without padding that
    /// does not depend on the one in memory. Zero where KV cannot leave this backend.
    fn kv_token_bytes(&self) -> usize {
        0
    }

    /// A hash of all that the meaning of exported bytes depends on, but for the model that computed
    /// them: layout, types, layers, heads, features. Bytes from a backend with another value must
    /// not be imported.
    fn kv_layout_fingerprint(&self) -> u64 {
        0
    }

    /// Appends the KV of the first `tokens` positions of a block to `to`:
    /// `[tokens][kv_token_bytes]`.
    fn export_block(&self, block: u32, tokens: usize, to: &mut Vec<u8>) {
        let _ = (block, tokens, to);
    }

    /// Puts exported KV at the first positions of a block, as many as `from` holds; other positions
    /// keep what they hold. What is computed with it has the same bits as with the original.
    ///
    /// # Errors
    /// [`BackendError::BadKv`] where there is no such block, or `from` is not a whole number of
    /// tokens or too long for a block.
    fn import_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        let problem = format!("{} bytes, and this backend takes none", from.len());
        Err(BackendError::BadKv { block, problem })
    }

    /// Copies the KV of `tokens` positions of a block to positions of another block, as the KV of
    /// the same tokens standing `by` positions later (earlier where negative): keys are turned as
    /// rotary position embedding turns them, and rounded once more to how they are stored. With
    /// `by` zero the copy has the same bits.
    ///
    /// # Errors
    /// [`BackendError::BadKv`] where a block or a position does not exist, both blocks are one, or
    /// this backend cannot do it.
    fn move_kv(
        &mut self,
        from: KvLanes,
        to: KvLanes,
        tokens: usize,
        by: i64,
    ) -> Result<(), BackendError> {
        let _ = (from, tokens, by);
        let problem = "this backend cannot move single positions".to_string();
        Err(BackendError::BadKv { block: to.block, problem })
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn spec(&self) -> &ModelSpec {
        (**self).spec()
    }
    fn block_tokens(&self) -> usize {
        (**self).block_tokens()
    }
    fn block_count(&self) -> usize {
        (**self).block_count()
    }
    fn block_bytes(&self) -> usize {
        (**self).block_bytes()
    }
    fn max_step_tokens(&self) -> usize {
        (**self).max_step_tokens()
    }
    fn weight_bytes_per_step(&self) -> Option<u64> {
        (**self).weight_bytes_per_step()
    }
    fn forward(
        &mut self,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        (**self).forward(batch, logits)
    }
    fn forward_best(
        &mut self,
        batch: &[SequenceInput<'_>],
        greedy: &[bool],
        logits: &mut Vec<f32>,
        best: &mut Vec<Best>,
    ) -> Result<(), BackendError> {
        (**self).forward_best(batch, greedy, logits, best)
    }
    fn screening(&self) -> Option<Screening> {
        (**self).screening()
    }
    fn hidden_states(&self, to: &mut Vec<f32>) -> bool {
        (**self).hidden_states(to)
    }
    fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        (**self).copy_block(from, to, tokens);
    }
    fn kv_token_bytes(&self) -> usize {
        (**self).kv_token_bytes()
    }
    fn kv_layout_fingerprint(&self) -> u64 {
        (**self).kv_layout_fingerprint()
    }
    fn export_block(&self, block: u32, tokens: usize, to: &mut Vec<u8>) {
        (**self).export_block(block, tokens, to);
    }
    fn import_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        (**self).import_block(block, from)
    }
    fn move_kv(
        &mut self,
        from: KvLanes,
        to: KvLanes,
        tokens: usize,
        by: i64,
    ) -> Result<(), BackendError> {
        (**self).move_kv(from, to, tokens, by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(tokens: &[u32], first_position: usize, branch_of: Option<usize>) -> SequenceInput<'_> {
        let logits = LogitsWanted::All;
        SequenceInput { tokens, first_position, block_table: &[], logits, branch_of }
    }

    #[test]
    fn a_branch_has_what_its_ancestors_compute_in_its_first_block() {
        let batch = [
            input(&[1], 3, None),
            input(&[1, 2, 3, 4], 9, None),
            input(&[5, 6], 11, Some(1)),
            input(&[7], 12, Some(2)),
            input(&[8], 12, Some(1)),
        ];
        let of = |i, block| inherited(&batch, i, block).collect::<Vec<_>>();
        assert_eq!(of(1, 8), []);
        assert_eq!(of(2, 8), [(9, 1), (10, 1)]);
        assert_eq!(of(3, 8), [(9, 1), (10, 1), (11, 2)]);
        assert_eq!(of(4, 5), [(10, 1), (11, 1)]);
        assert_eq!(of(4, 4), []);
    }
}
