//! What a trace or a generated workload is like, computed row by row in bounded memory.
//!
//! | figure | how |
//! |---|---|
//! | counts, sums, means, extremes, inter-arrival CV | exact: whole numbers, summed in 128 bits |
//! | percentiles | nearest rank; of lengths exact below 16,384 tokens and within 2^-14 above, of gaps within 2^-10 ([`Histogram`]) |
//! | dispersion over windows | exact ([`Windows`]) |
//! | prefix sharing | exact up to a number of distinct prefixes, then from a sample of them ([`Sharing`]) |
//! | requests by client | exact for the first 65,536 clients to appear; those of others are counted together |

mod dispersion;
mod histogram;
mod sharing;

use std::collections::BTreeMap;

use dunlin_units::Time;
use serde::Serialize;

pub use dispersion::{WindowStats, Windows};
pub use histogram::Histogram;
pub use sharing::{Sharing, SharingStats};

use crate::request::{ClientId, Request, Wait};

/// The most clients that are counted one by one.
const MAX_CLIENTS: usize = 1 << 16;
/// Leading bits that tell lengths and gaps apart.
const LENGTH_BITS: u32 = 14;
const GAP_BITS: u32 = 10;

/// What to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryOptions {
    /// Windows over which arrivals are counted, in nanoseconds.
    pub windows_ns: Vec<u64>,
    /// Distinct prefixes that are remembered at most; about 50 bytes each.
    pub max_prefixes: usize,
}

impl Default for SummaryOptions {
    /// Windows of 1, 10 and 60 seconds; two million prefixes.
    fn default() -> Self {
        let second = 1_000_000_000;
        Self { windows_ns: vec![second, 10 * second, 60 * second], max_prefixes: 2_000_000 }
    }
}

/// Collects statistics of requests in order of arrival.
#[derive(Debug, Clone)]
pub struct Summary {
    requests: u64,
    first: Option<Time>,
    last: Time,
    prompt: Totals,
    output: Totals,
    gaps: Totals,
    /// Requests with an arrival before the one before them.
    unsorted: u64,
    waiting: u64,
    sessions: u64,
    in_sessions: u64,
    clients: BTreeMap<ClientId, u64>,
    other_clients: u64,
    windows: Vec<Windows>,
    sharing: Sharing,
}

/// Whole numbers, summed.
#[derive(Debug, Clone)]
struct Totals {
    count: u64,
    sum: u128,
    squares: u128,
    min: u64,
    max: u64,
    histogram: Histogram,
}

impl Totals {
    fn new(bits: u32) -> Self {
        let histogram = Histogram::new(bits);
        Self { count: 0, sum: 0, squares: 0, min: u64::MAX, max: 0, histogram }
    }

    fn add(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.squares = self.squares.saturating_add(u128::from(value) * u128::from(value));
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.histogram.add(value);
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// Standard deviation (of the population, not a sample) over mean. None where the mean is zero.
    fn cv(&self) -> Option<f64> {
        if self.sum == 0 {
            return None;
        }
        let n = u128::from(self.count);
        // n * sum of squares - square of sum, as long as 128 bits hold it.
        let exact = n
            .checked_mul(self.squares)
            .zip(self.sum.checked_mul(self.sum))
            .map(|(a, b)| a.saturating_sub(b) as f64);
        let scaled = exact.unwrap_or_else(|| {
            let (n, sum) = (n as f64, self.sum as f64);
            (n * self.squares as f64 - sum * sum).max(0.0)
        });
        Some(scaled.sqrt() / self.sum as f64)
    }

    fn stats(&self) -> Option<Stats> {
        (self.count > 0).then(|| {
            let at = |p| self.histogram.percentile(p).clamp(self.min, self.max);
            Stats {
                sum: self.sum as f64,
                mean: self.mean(),
                cv: self.cv(),
                min: self.min,
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                max: self.max,
            }
        })
    }
}

/// Statistics of a number: tokens, or nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// All together.
    pub sum: f64,
    /// The mean.
    pub mean: f64,
    /// Standard deviation over mean.
    pub cv: Option<f64>,
    /// The least.
    pub min: u64,
    /// Percentiles by nearest rank.
    pub p50: u64,
    /// The 90th.
    pub p90: u64,
    /// The 99th.
    pub p99: u64,
    /// The 99.9th.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

/// What [`Summary`] found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Requests.
    pub requests: u64,
    /// Nanoseconds from the first arrival to the last.
    pub span_ns: u64,
    /// Requests per second: gaps over the span.
    pub rate_per_s: Option<f64>,
    /// Tokens of prompts.
    pub prompt_tokens: Option<Stats>,
    /// Tokens of answers.
    pub output_tokens: Option<Stats>,
    /// Nanoseconds between arrivals.
    pub gaps_ns: Option<Stats>,
    /// Arrivals counted over windows.
    pub windows: Vec<WindowStats>,
    /// Requests earlier than the one before them; their gap counts as zero.
    pub unsorted: u64,
    /// Requests that wait for others, whose arrival is the earliest possible.
    pub waiting: u64,
    /// Sessions.
    pub sessions: u64,
    /// Requests that belong to a session, over sessions.
    pub turns_per_session: Option<f64>,
    /// Clients that were told apart.
    pub clients: u64,
    /// Requests of clients beyond those.
    pub other_clients: u64,
    /// The fewest clients that send half of the requests, and nine tenths.
    pub clients_for_half: u64,
    /// As above.
    pub clients_for_most: u64,
    /// Tokens that a prefix cache without limits would have had.
    pub sharing: SharingStats,
}

impl Summary {
    /// Nothing seen yet.
    pub fn new(options: &SummaryOptions) -> Self {
        Self {
            requests: 0,
            first: None,
            last: Time(0),
            prompt: Totals::new(LENGTH_BITS),
            output: Totals::new(LENGTH_BITS),
            gaps: Totals::new(GAP_BITS),
            unsorted: 0,
            waiting: 0,
            sessions: 0,
            in_sessions: 0,
            clients: BTreeMap::new(),
            other_clients: 0,
            windows: options.windows_ns.iter().map(|&ns| Windows::new(ns)).collect(),
            sharing: Sharing::new(options.max_prefixes),
        }
    }

    /// Takes the next request.
    pub fn add(&mut self, request: &Request) {
        self.requests += 1;
        let at = request.arrival;
        match self.first {
            None => self.first = Some(at),
            Some(_) => {
                self.unsorted += u64::from(at < self.last);
                self.gaps.add(at.since(self.last));
            }
        }
        self.last = self.last.max(at);
        let first = self.first.unwrap_or(at);
        for windows in &mut self.windows {
            windows.add(self.last.since(first));
        }
        self.prompt.add(u64::from(request.prompt_tokens));
        self.output.add(u64::from(request.output_tokens));
        self.waiting += u64::from(request.wait != Wait::Nothing);
        if request.session.is_some() {
            self.in_sessions += 1;
            self.sessions += u64::from(request.turn == 0);
        }
        let room = self.clients.len() < MAX_CLIENTS;
        match self.clients.get_mut(&request.client) {
            Some(count) => *count += 1,
            None if room => {
                self.clients.insert(request.client, 1);
            }
            None => self.other_clients += 1,
        }
        self.sharing.add(request);
    }

    /// What was found so far.
    pub fn report(&self) -> Report {
        let span_ns = self.first.map_or(0, |first| self.last.since(first));
        let seconds = span_ns as f64 / 1e9;
        let mut counts: Vec<u64> = self.clients.values().copied().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let least = |share: f64| {
            let wanted = share * self.requests as f64;
            let mut sum = 0u64;
            let enough = counts.iter().position(|count| {
                sum += count;
                sum as f64 >= wanted
            });
            enough.map_or(counts.len(), |at| at + 1) as u64
        };
        Report {
            requests: self.requests,
            span_ns,
            rate_per_s: (span_ns > 0).then(|| (self.requests - 1) as f64 / seconds),
            prompt_tokens: self.prompt.stats(),
            output_tokens: self.output.stats(),
            gaps_ns: self.gaps.stats(),
            windows: self.windows.iter().map(Windows::stats).collect(),
            unsorted: self.unsorted,
            waiting: self.waiting,
            sessions: self.sessions,
            turns_per_session: (self.sessions > 0)
                .then(|| self.in_sessions as f64 / self.sessions as f64),
            clients: counts.len() as u64,
            other_clients: self.other_clients,
            clients_for_half: least(0.5),
            clients_for_most: least(0.9),
            sharing: self.sharing.stats(),
        }
    }
}
