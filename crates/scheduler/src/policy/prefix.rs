//! Prefix-aware grouping: among those that wait, whoever has the largest part of its tokens cached
//! goes first, so that requests with a common prefix run together while its KV is there, and their
//! attention reads it once (the grouping of PackInfer and of session engines).

use dunlin_units::Time;

use super::{MAX_SLACK_NS, Policy};
use crate::event::Submission;

/// Takes off the cached part of [`MAX_SLACK_NS`].
#[derive(Debug)]
pub(super) struct Prefix;

impl Policy for Prefix {
    fn slack_ns(&mut self, _now: Time, _request: &Submission) -> u64 {
        0
    }

    fn cache_bonus_ns(&self, cached: usize, tokens: usize) -> u64 {
        MAX_SLACK_NS / tokens.max(1) as u64 * cached as u64
    }

    fn looks_at_cache(&self) -> bool {
        true
    }
}
