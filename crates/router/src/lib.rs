//! Which worker a request goes to.
//!
//! A [`Placement`] is told about each request ([`RequestView`]) and what is known of every worker
//! ([`WorkerView`]), and names one. It has no clock, threads or hidden randomness, so a gateway in
//! front of real servers and a simulator in front of simulated ones run this code and decide alike.
//!
//! One policy, one file:
//!
//! | policy | goes to |
//! |---|---|
//! | [`PlacementKind::RoundRobin`] | the next in turn |
//! | [`PlacementKind::LeastLoaded`] | the one with the least to do |
//! | [`PlacementKind::PowerOfTwo`] | the lesser loaded of two drawn at random |
//! | [`PlacementKind::PrefixAffine`] | the one that last had the longest part of the prompt, unless it has too much to do |
//! | [`PlacementKind::SessionSticky`] | the one that had the session's turn before |
//!
//! No policy sees how long an answer will be.
//!
//! Not here: connections, retries, health checks, and which model answers.
#![forbid(unsafe_code)]
#![deny(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    clippy::iter_over_hash_type
)]

mod least_loaded;
mod memory;
mod power_of_two;
mod prefix_affine;
mod prefix_keys;
mod round_robin;
mod session_sticky;

use std::{fmt, str::FromStr};

use dunlin_units::{SeedTree, SessionId};
use serde::{Deserialize, Serialize};

pub use least_loaded::LeastLoaded;
pub use power_of_two::PowerOfTwo;
pub use prefix_affine::PrefixAffine;
pub use prefix_keys::prefix_keys;
pub use round_robin::RoundRobin;
pub use session_sticky::SessionSticky;

/// What is known of a worker when a request is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerView {
    /// Whether it takes requests at all: it is up, and not about to leave.
    pub accepting: bool,
    /// Its speed beside the others', at least 1; loads are compared per unit of it.
    pub weight: u32,
    /// Requests placed on it that are not over.
    pub requests: u32,
    /// Tokens of the prompts of those.
    pub prompt_tokens: u64,
}

impl Default for WorkerView {
    fn default() -> Self {
        Self { accepting: true, weight: 1, requests: 0, prompt_tokens: 0 }
    }
}

impl WorkerView {
    /// Whether this worker has less to do than `other`: fewer requests, then fewer prompt tokens, per
    /// unit of weight.
    pub fn lighter_than(&self, other: &Self) -> bool {
        if self.weight == other.weight {
            // Nearly always: a router of many workers compares all of them for each request.
            return (self.requests, self.prompt_tokens) < (other.requests, other.prompt_tokens);
        }
        let per_weight = |value: u64, weight: u32| u128::from(value) * u128::from(weight.max(1));
        let own = (
            per_weight(u64::from(self.requests), other.weight),
            per_weight(self.prompt_tokens, other.weight),
        );
        let others = (
            per_weight(u64::from(other.requests), self.weight),
            per_weight(other.prompt_tokens, self.weight),
        );
        own < others
    }
}

/// What is known of a request when it is placed. Nothing tells how long its answer will be.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestView<'a> {
    /// A number that no other request has. It keys the noise of policies that draw.
    pub number: u64,
    /// The conversation that it belongs to.
    pub session: Option<SessionId>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Names of the prompt's beginnings, the shortest first ([`prefix_keys`]): equal where all tokens
    /// up to there are equal. May be empty where the policy does not
    /// [look at prefixes](Placement::looks_at_prefix).
    pub prefixes: &'a [u64],
}

/// Places requests on workers.
pub trait Placement: fmt::Debug + Send {
    /// The worker, by its place in `workers`, or none where none accepts. What it remembers of the
    /// request it remembers in this call.
    fn place(&mut self, request: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize>;

    /// Whether it reads [`RequestView::prefixes`].
    fn looks_at_prefix(&self) -> bool {
        false
    }

    /// Whether it reads how much workers have to do; others place without knowing.
    fn looks_at_load(&self) -> bool {
        true
    }
}

/// A policy by its name, with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    /// [`RoundRobin`].
    RoundRobin,
    /// [`LeastLoaded`].
    #[default]
    LeastLoaded,
    /// [`PowerOfTwo`].
    PowerOfTwo,
    /// [`PrefixAffine`].
    PrefixAffine,
    /// [`SessionSticky`].
    SessionSticky,
}

impl PlacementKind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::RoundRobin,
        Self::LeastLoaded,
        Self::PowerOfTwo,
        Self::PrefixAffine,
        Self::SessionSticky,
    ];

    /// Its name in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::LeastLoaded => "least-loaded",
            Self::PowerOfTwo => "power-of-two",
            Self::PrefixAffine => "prefix-affine",
            Self::SessionSticky => "session-sticky",
        }
    }

    /// The policy with its usual settings. Those that draw do so from `seeds`.
    pub fn build(self, seeds: SeedTree) -> Box<dyn Placement> {
        match self {
            Self::RoundRobin => Box::<RoundRobin>::default(),
            Self::LeastLoaded => Box::new(LeastLoaded),
            Self::PowerOfTwo => Box::new(PowerOfTwo::new(seeds)),
            Self::PrefixAffine => Box::<PrefixAffine>::default(),
            Self::SessionSticky => Box::<SessionSticky>::default(),
        }
    }
}

impl fmt::Display for PlacementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no placement policy; use one of round-robin, least-loaded, power-of-two, \
     prefix-affine, session-sticky"
)]
pub struct UnknownPlacement(String);

impl FromStr for PlacementKind {
    type Err = UnknownPlacement;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name() == s).ok_or_else(|| UnknownPlacement(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(requests: &[u32]) -> Vec<WorkerView> {
        requests.iter().map(|&requests| WorkerView { requests, ..WorkerView::default() }).collect()
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in PlacementKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("fastest".parse::<PlacementKind>().is_err());
    }

    #[test]
    fn nobody_goes_to_a_worker_that_takes_none() {
        for kind in PlacementKind::ALL {
            let mut policy = kind.build(SeedTree::root(1));
            let mut all = workers(&[0, 5, 9, 0]);
            for w in [0, 2, 3] {
                all[w].accepting = false;
            }
            for number in 0..200 {
                let session = Some(SessionId(number % 7));
                let keys = [number % 3, number];
                let request = RequestView { number, session, prompt_tokens: 10, prefixes: &keys };
                assert_eq!(policy.place(&request, &all), Some(1), "{kind}");
            }
            all[1].accepting = false;
            let request = RequestView { number: 1, ..RequestView::default() };
            assert_eq!(policy.place(&request, &all), None, "{kind}");
            assert_eq!(policy.place(&request, &[]), None, "{kind}");
        }
    }

    #[test]
    fn loads_are_compared_by_weight() {
        let worker = |weight, requests, prompt_tokens| WorkerView {
            weight,
            requests,
            prompt_tokens,
            accepting: true,
        };
        assert!(worker(4, 7, 0).lighter_than(&worker(1, 2, 0)));
        assert!(!worker(4, 8, 0).lighter_than(&worker(1, 2, 0)));
        assert!(worker(4, 8, 3).lighter_than(&worker(1, 2, 1)));
        assert!(!worker(1, 2, 1).lighter_than(&worker(1, 2, 1)));
    }
}
