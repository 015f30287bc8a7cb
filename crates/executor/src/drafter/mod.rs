//! Who proposes how a sequence may go on.
//!
//! A [`Drafter`] sees tokens and proposes a tree of tokens after them, each with its confidence. It
//! decides nothing: how much is asked of it, and how much of what it says is verified, is the
//! scheduler's business, and whatever it says, outputs are what they would be without it. One file
//! or folder a drafter.

mod best_first;
pub(crate) mod grammar;
pub mod lookup;
pub mod model;
pub mod store;
mod vocabulary;

pub use vocabulary::{VocabularyMap, VocabularyMismatch};

use dunlin_scheduler::{DraftWork, DrafterKind, Proposal, SeqOp};
use dunlin_tensor::Backend;
use dunlin_units::SeqId;

use std::{fmt, str::FromStr};

use crate::sampler::{Drawn, SamplingParams};

/// A draft that is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Of which sequence.
    pub seq: SeqId,
    /// All of its tokens.
    pub tokens: &'a [u32],
    /// Nodes at most.
    pub nodes: usize,
    /// Nodes of the longest path at most.
    pub depth: usize,
    /// Branches at most: 1 for a chain.
    pub branches: usize,
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
    /// Whether a token of each node is drawn from the drafter's distribution, for residual sampling.
    pub draws: bool,
}

/// How a draft token comes to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftAcceptance {
    /// Where it is the token that plain decoding chooses with the same noise (contract `exact`).
    #[default]
    Coupled,
    /// By residual sampling: outputs have the distribution of plain decoding, and are others
    /// (contract `distribution`). Greedy choices are those of plain decoding all the same.
    Residual,
}

impl DraftAcceptance {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Coupled, Self::Residual];

    /// Its name on command lines and in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coupled => "coupled",
            Self::Residual => "residual",
        }
    }
}

impl fmt::Display for DraftAcceptance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not a way to accept drafts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be coupled or residual")]
pub struct ParseAcceptanceError;

impl FromStr for DraftAcceptance {
    type Err = ParseAcceptanceError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|way| way.name() == s);
        found.ok_or(ParseAcceptanceError)
    }
}

/// A token that a drafter drew to follow a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnNode {
    /// Which sequence.
    pub seq: SeqId,
    /// The sequence's tokens when it was drafted for.
    pub length: usize,
    /// Draft tokens behind these, in front of the drawn one.
    pub path: Vec<u32>,
    /// What was drawn.
    pub drawn: Drawn,
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

    /// Gives out what was drawn since it was last asked, proposed or not.
    fn take_drawn(&mut self, to: &mut Vec<DrawnNode>) {
        let _ = to;
    }
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
