//! What a request's grammar leaves no choice about: names of a schema's properties, the marks between
//! them, the rest of a word of which there is no other. How the text is cut into tokens is the model's
//! choice, which is mostly the longest token each time; a token may also go on beyond what is forced.
//!
//! Costs microseconds a token. Jump-forward decoding (SGLang) and fast-forward tokens (llguidance) put
//! such tokens behind the text unverified, which can change how a text is cut into tokens, and with it
//! what comes after. Here they are drafts like others (contract `exact`).

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DrafterKind};

use super::Wanted;
use crate::constraint::Constraint;

/// How often a token is the one that the model chooses, the last of a draft and those before it. The
/// scheduler learns what is true of a text.
const CONFIDENCE: (f64, f64) = (0.7, 0.97);

/// A chain of what must follow; none where there is a choice. `output` is the sequence's tokens after
/// its prompt.
pub(crate) fn forced(
    constraint: &Constraint,
    output: &[u32],
    wanted: &Wanted<'_>,
) -> Vec<DraftNode> {
    let tokens = constraint.forced_after(output, wanted.nodes);
    let last = tokens.len().saturating_sub(1);
    let node = |(place, token)| {
        let parent = if place == 0 { DraftNode::ROOT } else { place as u32 - 1 };
        let sure = if place == last { CONFIDENCE.0 } else { CONFIDENCE.1 };
        let confidence = (sure * f64::from(CONFIDENCE_ONE)) as u32;
        DraftNode { token, parent, confidence, drafter: DrafterKind::Grammar }
    };
    tokens.into_iter().enumerate().map(node).collect()
}
