//! Counts of what was drafted and accepted, for metrics and reports.

use serde::{Deserialize, Serialize};

use super::DrafterKind;

/// Positions of drafts that are counted apart; the last stands for all after it.
pub const POSITIONS: usize = 32;

/// Lengths of the answer so far that are told apart: below so many tokens each, and any above.
pub const OUTPUTS: [u32; 6] = [16, 32, 64, 128, 256, 512];

/// What came of one drafter's drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DrafterStats {
    /// Drafts of which anything was verified.
    pub drafts: u64,
    /// Nodes proposed, over all drafts.
    pub proposed: u64,
    /// Nodes verified.
    pub verified: u64,
    /// Nodes accepted.
    pub accepted: u64,
    /// Draft steps, and their nanoseconds.
    pub steps: u64,
    /// Nanoseconds of draft steps.
    pub step_ns: u64,
    /// Forward passes of the drafter.
    pub passes: u64,
    /// By position in the draft: those whose ancestors were all accepted, and of those the accepted.
    pub by_position: [(u64, u64); POSITIONS],
    /// The same over all positions, by the tokens that the answer had before (see [`OUTPUTS`]).
    pub by_output: [(u64, u64); OUTPUTS.len() + 1],
}

/// What came of all drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SpeculationStats {
    /// By [`DrafterKind`].
    pub drafters: [DrafterStats; DrafterKind::ALL.len()],
    /// Steps of sequences that decode, with prompts or without.
    pub decode_steps: u64,
    /// Of those, the ones that verified drafts.
    pub verify_steps: u64,
    /// Nanoseconds of steps that verified drafts.
    pub verify_ns: u64,
}

impl DrafterStats {
    /// A place for which something was proposed, its ancestors being accepted, was looked at: so deep
    /// in the draft, after so many tokens of the answer.
    pub(crate) fn see(&mut self, depth: usize, output: u32, accepted: bool) {
        let class = OUTPUTS.iter().position(|&end| output < end).unwrap_or(OUTPUTS.len());
        for (tried, taken) in
            [&mut self.by_position[depth.min(POSITIONS - 1)], &mut self.by_output[class]]
        {
            *tried += 1;
            *taken += u64::from(accepted);
        }
    }
}

impl SpeculationStats {
    /// One drafter's.
    pub fn of(&self, kind: DrafterKind) -> &DrafterStats {
        &self.drafters[kind.index()]
    }

    pub(crate) fn of_mut(&mut self, kind: DrafterKind) -> &mut DrafterStats {
        &mut self.drafters[kind.index()]
    }
}
