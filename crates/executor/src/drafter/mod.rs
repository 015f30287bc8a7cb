//! Who proposes how a sequence may go on.
//!
//! A [`Drafter`] sees tokens and proposes a tree of tokens after them, each with its confidence. It
//! decides nothing: how much is asked of it, and how much of what it says is verified, is the
//! scheduler's business, and whatever it says, outputs are what they would be without it. One file
//! or folder a drafter.

pub mod lookup;
pub mod model;
pub mod store;
mod vocabulary;

pub use vocabulary::{VocabularyMap, VocabularyMismatch};

use dunlin_scheduler::{DraftWork, DrafterKind, Proposal, SeqOp};
use dunlin_tensor::Backend;
use dunlin_units::SeqId;

use crate::sampler::SamplingParams;

/// A draft that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Of which sequence.
    pub seq: SeqId,
    /// All of its tokens.
    pub tokens: &'a [u32],
    /// Nodes at most.
    pub nodes: usize,
    /// The draft ends where the probability that all of it is right falls below this, in 1/65536.
    pub stop_below: u32,
    /// So many of the last tokens are to be looked at.
    pub context: usize,
    /// How the request's tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Tokens that are its prompt.
    pub prompt_len: usize,
    /// Which of its choices the sequence is.
    pub choice: u32,
}

/// Proposes continuations.
pub trait Drafter: Send {
    /// Which it is.
    fn kind(&self) -> DrafterKind;

    /// What a pass of it is expected to cost, in 1/1000 of a step of this model.
    fn pass_permille(&self, model: &dyn Backend) -> u32;

    /// A sequence is changed; nothing needs to be done where what is kept of it stays true.
    fn changed(&mut self, op: &SeqOp);

    /// Proposes for each of these sequences, and says what that took. Sequences of which nothing can
    /// be said are left out.
    fn propose(&mut self, wanted: &[Wanted<'_>], proposals: &mut Vec<Proposal>) -> DraftWork;
}

/// The sequence that an operation makes anew or changes other than by appending, and how many of its
/// tokens stay.
pub(crate) fn forgotten(op: &SeqOp) -> Option<(SeqId, usize)> {
    match *op {
        SeqOp::Start { seq, .. } | SeqOp::End { seq } | SeqOp::Fork { to: seq, .. } => {
            Some((seq, 0))
        }
        SeqOp::Truncate { seq, tokens, .. } => Some((seq, tokens as usize)),
        SeqOp::Assign { .. }
        | SeqOp::Append { .. }
        | SeqOp::Block { .. }
        | SeqOp::Replace { .. }
        | SeqOp::Copy { .. }
        | SeqOp::Fill { .. } => None,
    }
}
