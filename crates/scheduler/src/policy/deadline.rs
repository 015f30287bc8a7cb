//! Earliest deadline first: the key is the moment at which the first token is due. A request without
//! one counts as due when its slack ends, so that it still has its turn.

use dunlin_units::Time;

use super::{MAX_SLACK_NS, Policy};
use crate::event::Submission;

/// Orders by [`Submission::due`].
#[derive(Debug)]
pub(super) struct Deadline;

impl Policy for Deadline {
    fn slack_ns(&mut self, now: Time, request: &Submission) -> u64 {
        request.due.map_or(MAX_SLACK_NS, |due| due.since(now))
    }
}
