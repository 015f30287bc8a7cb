//! When requests arrive: a renewal process run by a clock of its own.
//!
//! Gaps of mean 1 (constant, exponential, gamma, Weibull) are laid end to end in *operational time*,
//! which passes at the arrival rate; a rate that changes, by the hour ([`RateSpec::Profile`]) or at
//! random ([`RateSpec::Markov`]), stretches them. Exponential gaps thus give the Poisson process,
//! the inhomogeneous Poisson process and the Markov-modulated Poisson process exactly; gamma and
//! Weibull gaps the bursty processes that production traffic fits (ServeGen, NSDI 2026), at any
//! profile of rates (Gerhardt and Nelson, "Transforming renewal processes for simulation of
//! nonstationary arrival processes", INFORMS Journal on Computing 21, 2009).

mod clock;

use dunlin_units::{SeedTree, Stream, Time};
use serde::{Deserialize, Serialize};

use crate::dist::{Dist, DistSpec, unit_exponential};
use crate::error::SpecError;
use clock::Clock;

/// When requests, or the first requests of sessions, arrive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalSpec {
    /// Whatever becomes of those before them.
    Open {
        /// The gaps between arrivals, apart from their mean.
        #[serde(default)]
        gaps: GapSpec,
        /// How many arrive per second.
        rate: RateSpec,
    },
    /// All at once at the start. With sessions whose turns wait for each other this is a closed
    /// loop: so many users, each with one request at a time. Without, it is a batch. (Turns without
    /// any gap between them all have the same earliest arrival, so give sessions an end.)
    ClosedLoop {
        /// How many.
        users: u32,
    },
}

/// The shape of the gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum GapSpec {
    /// All the same.
    Constant,
    /// A Poisson process.
    #[default]
    Exponential,
    /// Gamma: bursts for a cv above 1, more regular than Poisson below.
    Gamma {
        /// Standard deviation over mean of the gaps.
        cv: f64,
    },
    /// Weibull: as gamma, with heavier tails in bursts.
    Weibull {
        /// Standard deviation over mean of the gaps.
        cv: f64,
    },
}

/// How many arrive per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RateSpec {
    /// Always as many.
    Constant {
        /// Arrivals per second.
        per_s: f64,
    },
    /// By the time of day, or any other plan.
    Profile {
        /// (seconds from the start, arrivals per second), the first at 0 seconds, in order of time.
        points: Vec<(f64, f64)>,
        /// What holds between points.
        #[serde(default)]
        shape: Shape,
        /// After so many seconds it begins anew. Without, the last point's rate stays.
        #[serde(default)]
        period_s: Option<f64>,
    },
    /// A state that changes at random and with it the rate. It begins in the first.
    Markov {
        /// The states.
        states: Vec<MarkovState>,
    },
}

/// What holds between the points of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The point's rate, until the next point.
    Steps,
    /// A straight line to the next point; with a period, from the last to the first.
    #[default]
    Linear,
}

/// A state of a Markov-modulated process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkovState {
    /// Arrivals per second.
    pub per_s: f64,
    /// How long it stays, in seconds: exponential with this mean.
    pub mean_s: f64,
    /// Weights of the states that may follow, one for each state. Empty: the next in the list,
    /// after the last the first.
    #[serde(default)]
    pub next: Vec<f64>,
}

impl ArrivalSpec {
    /// Poisson arrivals.
    pub const fn poisson(per_s: f64) -> Self {
        Self::Open { gaps: GapSpec::Exponential, rate: RateSpec::Constant { per_s } }
    }

    /// The arrivals from `start` on, seeded at `seeds`.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn build(&self, start: Time, seeds: SeedTree) -> Result<Arrivals, SpecError> {
        Ok(Arrivals(match self {
            Self::Open { gaps, rate } => Kind::Open {
                gaps: gaps.build().map_err(|e| e.within("gaps"))?,
                clock: Clock::new(rate, start, seeds.child("rate"))
                    .map_err(|e| e.within("rate"))?,
                random: seeds.child("gaps").stream(),
            },
            Self::ClosedLoop { users } => Kind::Closed { at: start, left: *users },
        }))
    }
}

#[derive(Debug, Clone)]
enum Gaps {
    Constant,
    Exponential,
    Other(Dist),
}

impl GapSpec {
    fn build(self) -> Result<Gaps, SpecError> {
        Ok(match self {
            Self::Constant => Gaps::Constant,
            Self::Exponential => Gaps::Exponential,
            Self::Gamma { cv } => Gaps::Other(DistSpec::Gamma { mean: 1.0, cv }.build()?),
            Self::Weibull { cv } => Gaps::Other(DistSpec::Weibull { mean: 1.0, cv }.build()?),
        })
    }
}

/// Moments of arrival, in order. It ends only where the rate stays at zero.
#[derive(Debug, Clone)]
pub struct Arrivals(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Open { gaps: Gaps, clock: Clock, random: Stream },
    Closed { at: Time, left: u32 },
}

impl Iterator for Arrivals {
    type Item = Time;

    #[inline]
    fn next(&mut self) -> Option<Time> {
        match &mut self.0 {
            Kind::Open { gaps, clock, random } => {
                let gap = match gaps {
                    Gaps::Constant => 1.0,
                    Gaps::Exponential => unit_exponential(random),
                    Gaps::Other(dist) => dist.draw(random),
                };
                clock.advance(gap)
            }
            Kind::Closed { at, left } => {
                *left = left.checked_sub(1)?;
                Some(*at)
            }
        }
    }
}
