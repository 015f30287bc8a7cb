//! From operational time, which passes at the arrival rate, to nanoseconds.

use dunlin_units::{SeedTree, Stream, Time};

use super::{MarkovState, RateSpec, Shape};
use crate::dist::{Alias, unit_exponential};
use crate::error::{SpecError, not_negative, positive};

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;
/// No arrival comes later: half of what [`Time`] can tell, 292 years.
const LAST: u64 = u64::MAX / 2;

/// The fewest arrivals that some state of a Markov process brings in its mean time: below, one could
/// wait forever for the next.
const LEAST: f64 = 1e-7;

/// A moment in whole nanoseconds, and the fraction that is left over: sums of many gaps lose nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    ns: u64,
    rest: f64,
}

impl Moment {
    const fn new(time: Time) -> Self {
        Self { ns: time.0, rest: 0.0 }
    }

    #[inline]
    fn add(&mut self, ns: f64) {
        let sum = self.rest + ns;
        let whole = sum as u64;
        self.ns = self.ns.saturating_add(whole);
        self.rest = sum - whole as f64;
    }

    #[inline]
    fn time(self) -> Option<Time> {
        (self.ns <= LAST).then_some(Time(self.ns))
    }
}

#[derive(Debug, Clone)]
pub(super) enum Clock {
    Constant { now: Moment, ns_per_unit: f64 },
    Profile(Profile),
    Markov(Markov),
}

impl Clock {
    pub(super) fn new(rate: &RateSpec, start: Time, seeds: SeedTree) -> Result<Self, SpecError> {
        let now = Moment::new(start);
        Ok(match rate {
            RateSpec::Constant { per_s } => {
                Self::Constant { now, ns_per_unit: SECOND / positive("per_s", *per_s)? }
            }
            RateSpec::Profile { points, shape, period_s } => {
                Self::Profile(Profile::new(points, *shape, *period_s, start)?)
            }
            RateSpec::Markov { states } => Self::Markov(Markov::new(states, now, seeds)?),
        })
    }

    /// The moment at which `units` of operational time have passed since the last.
    #[inline]
    pub(super) fn advance(&mut self, units: f64) -> Option<Time> {
        match self {
            Self::Constant { now, ns_per_unit } => {
                now.add(units * *ns_per_unit);
                now.time()
            }
            Self::Profile(profile) => profile.advance(units),
            Self::Markov(markov) => markov.advance(units),
        }
    }
}

/// A stretch of time in which the rate follows a straight line.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Seconds.
    length: f64,
    /// Arrivals per second at its start.
    rate: f64,
    /// Arrivals per second, per second.
    slope: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Profile {
    /// Without a period, the last has no end. With one, the first comes after it.
    stretches: Vec<Stretch>,
    /// Seconds of all stretches together, and the arrivals that they bring.
    period_s: f64,
    per_period: f64,
    current: usize,
    /// When the current stretch began.
    began: Moment,
    /// Seconds since then.
    offset: f64,
}

impl Profile {
    fn new(
        points: &[(f64, f64)],
        shape: Shape,
        period_s: Option<f64>,
        start: Time,
    ) -> Result<Self, SpecError> {
        if points.first().is_none_or(|p| p.0 != 0.0) {
            return Err(SpecError::new("points", "the first should be at 0 seconds"));
        }
        let last = points[points.len() - 1];
        let after = match period_s {
            Some(period) => (positive("period_s", period)?, points[0].1),
            None => (f64::INFINITY, last.1),
        };
        let mut stretches = Vec::with_capacity(points.len());
        for (i, &(at, rate)) in points.iter().enumerate() {
            let (next_at, next_rate) = points.get(i + 1).copied().unwrap_or(after);
            not_negative("points", rate)?;
            if next_at.is_nan() || next_at <= at {
                let problem = format!("{next_at} s should come after {at} s");
                return Err(SpecError::new("points", problem));
            }
            let slope = match shape {
                Shape::Linear if next_at.is_finite() => (next_rate - rate) / (next_at - at),
                _ => 0.0,
            };
            stretches.push(Stretch { length: next_at - at, rate, slope });
        }
        if points.iter().all(|p| p.1 == 0.0) {
            return Err(SpecError::new("points", "a rate of zero throughout brings no arrivals"));
        }
        let area = |s: &Stretch| s.length * (s.rate + s.slope * s.length / 2.0);
        Ok(Self {
            period_s: after.0,
            per_period: stretches.iter().map(area).sum(),
            stretches,
            current: 0,
            began: Moment::new(start),
            offset: 0.0,
        })
    }

    fn advance(&mut self, mut units: f64) -> Option<Time> {
        loop {
            let Stretch { length, rate, slope } = self.stretches[self.current];
            let (now, end) = (rate + slope * self.offset, rate + slope * length);
            let left = if length.is_finite() {
                (length - self.offset) * (now + end) / 2.0
            } else if rate > 0.0 {
                f64::INFINITY
            } else {
                return None;
            };
            if units < left {
                // The root of now d + slope d^2 / 2 = units, in the form without cancellation.
                let sum = now + (now * now + 2.0 * slope * units).max(0.0).sqrt();
                self.offset += if sum > 0.0 { 2.0 * units / sum } else { 0.0 };
                if self.offset <= length {
                    let mut at = self.began;
                    at.add(self.offset * SECOND);
                    return at.time();
                }
                // Rounding went beyond the end: it is the end.
                self.offset = length;
                units = 0.0;
            } else {
                units -= left;
            }
            self.began.add(length * SECOND);
            self.began.time()?;
            self.offset = 0.0;
            self.current += 1;
            if self.current == self.stretches.len() {
                self.current = 0;
                // Whole periods at once, however little they bring.
                let periods = (units / self.per_period).floor();
                units -= periods * self.per_period;
                self.began.add(periods * self.period_s * SECOND);
                self.began.time()?;
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Markov {
    states: Vec<State>,
    current: usize,
    now: Moment,
    /// Seconds until the state changes.
    left: f64,
    random: Stream,
}

#[derive(Debug, Clone)]
struct State {
    per_s: f64,
    mean_s: f64,
    /// Without, the next in the list follows.
    next: Option<Alias>,
}

/// A state from which none with [`LEAST`] arrivals can be reached.
fn without_arrivals(states: &[MarkovState]) -> Option<usize> {
    let mut reaches: Vec<bool> = states.iter().map(|s| s.per_s * s.mean_s >= LEAST).collect();
    for _ in states {
        for (i, state) in states.iter().enumerate() {
            reaches[i] |= match state.next.len() {
                0 => reaches[(i + 1) % states.len()],
                _ => state.next.iter().zip(&reaches).any(|(weight, &r)| *weight > 0.0 && r),
            };
        }
    }
    reaches.iter().position(|r| !r)
}

impl Markov {
    fn new(states: &[MarkovState], now: Moment, seeds: SeedTree) -> Result<Self, SpecError> {
        if !states.iter().any(|s| s.per_s * s.mean_s >= LEAST) {
            let problem = format!("none of them brings {LEAST} arrivals in the time it lasts");
            return Err(SpecError::new("states", problem));
        }
        let build = |(i, state): (usize, &MarkovState)| {
            let at = format!("states[{i}]");
            let next = match state.next.len() {
                0 => None,
                n if n == states.len() => Some(Alias::new(&state.next)),
                n => Some(Err(SpecError::new("next", format!("{n} weights for other states")))),
            };
            Ok(State {
                per_s: not_negative("per_s", state.per_s).map_err(|e| e.within(&at))?,
                mean_s: positive("mean_s", state.mean_s).map_err(|e| e.within(&at))?,
                next: next.transpose().map_err(|e| e.within(&at))?,
            })
        };
        if let Some(stuck) = without_arrivals(states) {
            let problem = "from here no state that brings arrivals can be reached";
            return Err(SpecError::new(format!("states[{stuck}]"), problem));
        }
        let states: Vec<State> = states.iter().enumerate().map(build).collect::<Result<_, _>>()?;
        let mut random = seeds.stream();
        let left = states[0].mean_s * unit_exponential(&mut random);
        Ok(Self { states, current: 0, now, left, random })
    }

    fn advance(&mut self, mut units: f64) -> Option<Time> {
        loop {
            let state = &self.states[self.current];
            let until_change = state.per_s * self.left;
            if units < until_change {
                let seconds = units / state.per_s;
                self.left -= seconds;
                self.now.add(seconds * SECOND);
                return self.now.time();
            }
            units -= until_change;
            self.now.add(self.left * SECOND);
            // States without arrivals that only lead to each other end here.
            self.now.time()?;
            self.current = match &state.next {
                Some(next) => next.draw(&mut self.random) as usize,
                None => (self.current + 1) % self.states.len(),
            };
            self.left = self.states[self.current].mean_s * unit_exponential(&mut self.random);
        }
    }
}
