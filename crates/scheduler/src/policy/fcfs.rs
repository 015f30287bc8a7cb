//! First come, first served.

use dunlin_units::Time;

use super::Policy;
use crate::event::Submission;

/// Keeps the order of arrival.
#[derive(Debug)]
pub(super) struct Fcfs;

impl Policy for Fcfs {
    fn slack_ns(&mut self, _now: Time, _request: &Submission) -> u64 {
        0
    }
}
