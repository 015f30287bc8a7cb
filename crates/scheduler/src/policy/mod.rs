//! In which order requests are taken on.
//!
//! Every waiting sequence has a **key**, a moment; the smallest key goes first, and when memory runs
//! out, the largest key gives way. A key is the request's arrival plus a **slack** that depends on
//! its class and on the policy, and that is never more than [`MAX_SLACK_NS`] each.
//!
//! # Nobody starves
//! Claim: from some moment on, no request that arrives later goes before a given one.
//!
//! Proof: let a request (not of class `Idle`) have the key k. Slacks are never negative, so one that
//! arrives at time t has a key of at least t; even where a policy favours what is cached, it takes
//! off at most [`MAX_SLACK_NS`]. Requests that arrive after k + `MAX_SLACK_NS` therefore go behind
//! it, and k is at most its arrival + 2 * `MAX_SLACK_NS`. Those before it are finitely many, each
//! ends after at most `max_tokens` steps in which it has a part, and:
//!
//! - Memory goes to the smallest key: a victim has a larger key than whoever needs its blocks. A
//!   sequence gives way itself only where those behind it cannot, having a part in a step in flight or
//!   being of other tenants while its own is at its budget; then it is in the queue again.
//! - While the first of the queue lacks memory, nobody behind it is taken on. So those that run end
//!   one by one, and it gets on at the latest when nobody else runs: a request that could not run
//!   alone is rejected at submission. Where its tenant's budget is in the way, others pass it, and it
//!   gets on when those end that hold what is charged to its tenant.
//! - Whoever waits for another's prompt to be computed (see [`crate::Core`]) waits for one that
//!   runs, has the smaller key or got on already; it is skipped until then and not overtaken for
//!   ever, because that prompt gets at least one token into each step that has room.
//!
//! So a request waits at most for the requests that arrived within 3 * `MAX_SLACK_NS` after it and
//! for those that were there before. A test drives every policy with traffic made to overtake.
//!
//! Class `Idle` is the exception: it runs when nothing else does.

mod deadline;
mod fair;
mod fcfs;
mod prefix;
mod shortest;

use std::{fmt, str::FromStr};

use dunlin_units::Time;
use serde::{Deserialize, Serialize};

use crate::event::{Class, Submission};

/// The most that a class, and the most that a policy, moves a request back: ten seconds.
pub const MAX_SLACK_NS: u64 = 10_000_000_000;

/// Names a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum PolicyKind {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Those expected to be short first, by buckets of length.
    Shortest,
    /// Those due first.
    Deadline,
    /// Tenants get equal shares.
    Fair,
    /// Those whose prefix is cached first, so that its KV is used while it is there.
    Prefix,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Fcfs, Self::Shortest, Self::Deadline, Self::Fair, Self::Prefix];

    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Shortest => "shortest",
            Self::Deadline => "deadline",
            Self::Fair => "fair",
            Self::Prefix => "prefix",
        }
    }

    /// A policy of this kind, before its first request.
    pub(crate) fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Fcfs => Box::new(fcfs::Fcfs),
            Self::Shortest => Box::<shortest::Shortest>::default(),
            Self::Deadline => Box::new(deadline::Deadline),
            Self::Fair => Box::<fair::Fair>::default(),
            Self::Prefix => Box::new(prefix::Prefix),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no scheduling policy; use one of fcfs, shortest, deadline, fair, prefix")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name() == s).ok_or_else(|| UnknownPolicy(s.to_string()))
    }
}

/// Orders requests.
pub(crate) trait Policy: fmt::Debug + Send {
    /// Nanoseconds by which a request goes later than its arrival says. What exceeds
    /// [`MAX_SLACK_NS`] is cut off.
    fn slack_ns(&mut self, now: Time, request: &Submission) -> u64;

    /// A request has ended, with so many output tokens a choice.
    fn learn(&mut self, _prompt_tokens: u32, _output_tokens: u32) {}

    /// Nanoseconds by which a request goes earlier because `cached` of its `tokens` are cached. What
    /// exceeds [`MAX_SLACK_NS`] is cut off. Asked anew whenever requests are taken on, and only
    /// where [`Policy::looks_at_cache`].
    fn cache_bonus_ns(&self, _cached: usize, _tokens: usize) -> u64 {
        0
    }

    /// Whether [`Policy::cache_bonus_ns`] is ever more than 0.
    fn looks_at_cache(&self) -> bool {
        false
    }
}

/// The key of a request that arrives now.
pub(crate) fn key(policy: &mut dyn Policy, now: Time, request: &Submission) -> Time {
    let class_ns = match request.class {
        Class::High => 0,
        Class::Normal => MAX_SLACK_NS / 2,
        Class::Low | Class::Idle => MAX_SLACK_NS,
    };
    now.after(class_ns + policy.slack_ns(now, request).min(MAX_SLACK_NS))
}

/// The time that one token is taken to need where a policy weighs lengths against waiting.
const NS_PER_TOKEN: u64 = 5_000_000;
