//! How much is speculated: which drafters are asked, and how much of their drafts is verified.
//!
//! Drafters propose (the executor's business); here is decided what is done with it, from nothing
//! but what steps cost and what was accepted, both measured as the run goes on:
//!
//! - [`columns`]: what a step of so many tokens costs;
//! - [`acceptance`]: how often a node of a draft is what the model chooses, by drafter and by the
//!   drafter's own confidence, for all and for the sequence;
//! - [`widths`]: how many nodes of a drafter's drafts are verified at each depth;
//! - [`tree`]: how a draft is cut into branches, and what blocks these need;
//! - [`budget`]: which nodes of all the drafts of a batch are worth verifying together;
//! - [`energy`]: what energy is worth, where a token may take only so much of it on average;
//! - [`ledger`]: how far each sequence is ahead of plain decoding, which is what it may risk;
//! - [`drafting`]: whether a step of a drafter that costs time is worth it, and how long.
//!
//! Whatever is decided, outputs are the same: a draft token counts only where it is the token that
//! plain decoding chooses (contract `exact`), but for requests that ask for residual sampling (contract
//! `distribution`; the executor's business).

pub(crate) mod acceptance;
pub(crate) mod budget;
pub(crate) mod columns;
pub(crate) mod drafting;
pub(crate) mod energy;
pub(crate) mod ledger;
mod stats;
pub(crate) mod tree;
pub(crate) mod widths;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use energy::EnergyBudget;
pub use stats::{DrafterStats, OUTPUTS, POSITIONS, SpeculationStats};
pub use tree::{Branch, TreeLayout};

/// Who proposes drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DrafterKind {
    /// What followed the same tokens earlier in the prompt or the output. Costs no step.
    Lookup,
    /// A smaller model.
    Model,
    /// The model itself without some of its layers.
    Layers,
    /// What followed the same tokens in earlier answers of the same tenant, or in a corpus. Costs no
    /// step.
    Store,
    /// What the request's grammar leaves no choice about. Costs no step.
    Grammar,
}

impl DrafterKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Lookup, Self::Model, Self::Layers, Self::Store, Self::Grammar];

    /// Its name on command lines and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Model => "draft",
            Self::Layers => "layers",
            Self::Store => "store",
            Self::Grammar => "grammar",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Which drafters a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Speculate {
    /// None.
    #[default]
    Off,
    /// Whichever pays.
    Auto,
    /// This one, where it pays.
    Only(DrafterKind),
}

impl Speculate {
    /// Whether it may use this one.
    pub fn allows(self, drafter: DrafterKind) -> bool {
        match self {
            Self::Off => false,
            Self::Auto => true,
            Self::Only(kind) => kind == drafter,
        }
    }
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Only(kind) => kind.name(),
        })
    }
}

/// Not a way to speculate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be auto, off, lookup, store, grammar, draft or layers")]
pub struct ParseSpeculateError;

impl FromStr for Speculate {
    type Err = ParseSpeculateError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let all = [Self::Off, Self::Auto].into_iter().chain(DrafterKind::ALL.map(Self::Only));
        let found = all.into_iter().find(|speculate| speculate.to_string() == s);
        found.ok_or(ParseSpeculateError)
    }
}

/// How drafts are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DraftControl {
    /// By measured costs and acceptance, such that no sequence falls behind plain decoding by much.
    #[default]
    Adaptive,
    /// Not at all: drafters that cost steps are always asked, for drafts as long as may be, and all
    /// of what is proposed is verified.
    Fixed,
}

/// The experts of a mixture's layers, as far as the cost of a step depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts that a token may be routed to.
    pub count: u32,
    /// Those that each is.
    pub used: u32,
    /// Of what a step with one token takes, what they take, in 1/1000.
    pub permille: u32,
}

/// Settings of speculation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeculationConfig {
    /// How drafts are cut.
    pub control: DraftControl,
    /// Drafters that there are besides lookup, with what a pass of one costs to begin with, in 1/1000
    /// of a step of the model.
    pub drafters: Vec<(DrafterKind, u32)>,
    /// By how much a sequence may fall behind plain decoding, in 1/1000 of its time.
    pub slack_permille: u32,
    /// The model's experts, where it has them.
    pub experts: Option<Experts>,
    /// What energy the tokens of those that decode may take on average, if it is limited.
    pub energy: Option<EnergyBudget>,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self {
            control: DraftControl::default(),
            drafters: Vec::new(),
            slack_permille: 15,
            experts: None,
            energy: None,
        }
    }
}

/// A draft that a [`StepKind::Draft`](crate::StepKind::Draft) step asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftWanted {
    /// Whose.
    pub seq: dunlin_units::SeqId,
    /// From whom.
    pub drafter: DrafterKind,
    /// Nodes at most.
    pub nodes: u32,
    /// Nodes of its longest path at most.
    pub depth: u32,
    /// Branches at most.
    pub branches: u32,
    /// The draft ends where the probability that all of it is right falls below this, in 1/65536.
    pub stop_below: u32,
    /// Of the sequence's tokens, the drafter needs to look at so many of the last.
    pub context: u32,
}

/// What a draft step took of its drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DraftWork {
    /// Forward passes.
    pub passes: u32,
    /// Tokens that went through them.
    pub tokens: u32,
}

/// One in the unit of confidences.
pub const CONFIDENCE_ONE: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_speculate_are_read_as_they_are_written() {
        let all = [Speculate::Off, Speculate::Auto];
        for way in all.into_iter().chain(DrafterKind::ALL.map(Speculate::Only)) {
            assert_eq!(way.to_string().parse(), Ok(way));
        }
        for bad in ["", "on", "Auto", "lookup,draft", "model"] {
            assert!(bad.parse::<Speculate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_are_in_the_order_of_their_indices() {
        for (i, kind) in DrafterKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), i);
        }
    }
}
