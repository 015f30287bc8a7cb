//! A run that was recorded on a real system, beside the simulation of it.
//!
//! The recording is a CSV file with a row for each request, in the order of the workload, and at least
//! the columns `arrival_ns`, `first_token_ns`, `last_token_ns` and `output_tokens`. Times count from
//! the first arrival. Both sides are measured alike: from a request's arrival, queueing included.

use std::path::Path;

use serde::Serialize;

use crate::{
    config::ConfigFileError,
    events::{EventSink, LogEvent, What},
};

/// When a request came and got its first and last token, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestTimes {
    /// When it arrived.
    pub arrival_ns: u64,
    /// When its first token came.
    pub first_token_ns: u64,
    /// When its last token came.
    pub last_token_ns: u64,
    /// Tokens of its answer.
    pub output_tokens: u64,
}

impl RequestTimes {
    fn ttft_ms(&self) -> f64 {
        self.first_token_ns.saturating_sub(self.arrival_ns) as f64 / 1e6
    }

    /// None for answers of a single token.
    fn tpot_ms(&self) -> Option<f64> {
        let steps = self.output_tokens.checked_sub(1).filter(|n| *n > 0)?;
        Some(self.last_token_ns.saturating_sub(self.first_token_ns) as f64 / 1e6 / steps as f64)
    }

    fn e2e_ms(&self) -> f64 {
        self.last_token_ns.saturating_sub(self.arrival_ns) as f64 / 1e6
    }
}

/// Collects the times of a simulation's requests from its events.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    times: Vec<RequestTimes>,
    complete: Vec<bool>,
}

impl Observed {
    fn at(&mut self, request: u64) -> &mut RequestTimes {
        let place = request as usize;
        if place >= self.times.len() {
            self.times.resize(place + 1, RequestTimes::default());
            self.complete.resize(place + 1, false);
        }
        &mut self.times[place]
    }
}

impl EventSink for Observed {
    fn event(&mut self, event: &LogEvent) {
        match event.what {
            What::Arrive { request } => self.at(request).arrival_ns = event.at.0,
            What::FirstToken { request } => self.at(request).first_token_ns = event.at.0,
            What::End { request, tokens, complete, .. } => {
                let times = self.at(request);
                times.last_token_ns = event.at.0;
                times.output_tokens = u64::from(tokens);
                self.complete[request as usize] = complete;
            }
            _ => {}
        }
    }
}

/// A recorded run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording(Vec<RequestTimes>);

/// A recorded and a simulated value, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Pair {
    /// As recorded.
    pub recorded_ms: f64,
    /// As simulated.
    pub simulated_ms: f64,
    /// The difference, of the recorded value.
    pub error: f64,
}

/// A latency on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct LatencyPairs {
    pub mean: Pair,
    pub p50: Pair,
    pub p90: Pair,
    pub p99: Pair,
}

/// A recorded run against its simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    /// Requests on both sides.
    pub requests: u64,
    /// To the first token.
    pub ttft: LatencyPairs,
    /// Between tokens, on average; answers of one token are left out.
    pub tpot: LatencyPairs,
    /// To the last token.
    pub e2e: LatencyPairs,
    /// From the first arrival to the last token.
    pub makespan: Pair,
    /// Over requests: the mean of the absolute errors of the end-to-end latency.
    pub mean_request_error: f64,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// A file that cannot be read, lacks a column or rows, or has a row that cannot be.
    pub fn read(path: &Path) -> Result<Self, ConfigFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigFileError::Io { path: path.into(), source })?;
        Self::parse(&text).map_err(|message| ConfigFileError::Toml { path: path.into(), message })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or("").split(',').map(str::trim).collect();
        let column = |name: &str| {
            names.iter().position(|n| *n == name).ok_or_else(|| format!("no column `{name}`"))
        };
        let columns = [
            column("arrival_ns")?,
            column("first_token_ns")?,
            column("last_token_ns")?,
            column("output_tokens")?,
        ];
        let mut rows = Vec::new();
        for (number, line) in lines.enumerate().filter(|l| !l.1.trim().is_empty()) {
            let number = number + 2;
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let value = |column: usize| {
                let field = fields.get(column).copied().unwrap_or("");
                field.parse::<u64>().map_err(|_| {
                    format!("line {number}: `{}` is {field:?} and no whole number", names[column])
                })
            };
            let row = RequestTimes {
                arrival_ns: value(columns[0])?,
                first_token_ns: value(columns[1])?,
                last_token_ns: value(columns[2])?,
                output_tokens: value(columns[3])?,
            };
            let ordered = row.arrival_ns <= row.first_token_ns
                && row.first_token_ns <= row.last_token_ns
                && row.output_tokens > 0;
            if !ordered {
                let problem =
                    "it should arrive, get its first and then its last token, one at least";
                return Err(format!("line {number}: {problem}"));
            }
            rows.push(row);
        }
        if rows.is_empty() {
            return Err("there are no rows".into());
        }
        Ok(Self(rows))
    }

    /// The recording beside what was observed of its simulation. Requests that the simulation did not
    /// finish, and rows that it did not come to, are left out on both sides.
    ///
    /// # Errors
    /// Nothing in common, and answers of other lengths: another workload.
    pub fn compare(&self, observed: &Observed) -> Result<Comparison, String> {
        let pairs: Vec<(&RequestTimes, &RequestTimes)> = self
            .0
            .iter()
            .zip(observed.times.iter().zip(&observed.complete))
            .filter_map(|(was, (is, complete))| complete.then_some((was, is)))
            .collect();
        if pairs.is_empty() {
            return Err("no recorded request was simulated to its end".into());
        }
        if let Some(i) = pairs.iter().position(|(was, is)| was.output_tokens != is.output_tokens) {
            let (was, is) = pairs[i];
            return Err(format!(
                "request {i} has {} recorded and {} simulated output tokens: another workload",
                was.output_tokens, is.output_tokens
            ));
        }
        let both = |f: &dyn Fn(&RequestTimes) -> Option<f64>| {
            let was: Vec<f64> = pairs.iter().filter_map(|p| f(p.0)).collect();
            let is: Vec<f64> = pairs.iter().filter_map(|p| f(p.1)).collect();
            latency(was, is)
        };
        let error = |(was, is): &(&RequestTimes, &RequestTimes)| {
            (is.e2e_ms() - was.e2e_ms()).abs() / was.e2e_ms().max(1e-9)
        };
        let last = |f: fn(&(&RequestTimes, &RequestTimes)) -> u64| {
            pairs.iter().map(f).max().unwrap_or(0) as f64 / 1e6
        };
        Ok(Comparison {
            requests: pairs.len() as u64,
            ttft: both(&|t| Some(t.ttft_ms())),
            tpot: both(&RequestTimes::tpot_ms),
            e2e: both(&|t| Some(t.e2e_ms())),
            makespan: pair(last(|p| p.0.last_token_ns), last(|p| p.1.last_token_ns)),
            mean_request_error: pairs.iter().map(error).sum::<f64>() / pairs.len() as f64,
        })
    }
}

fn pair(recorded_ms: f64, simulated_ms: f64) -> Pair {
    let error = if recorded_ms > 0.0 { simulated_ms / recorded_ms - 1.0 } else { 0.0 };
    Pair { recorded_ms, simulated_ms, error }
}

/// Means, and percentiles by the nearest rank.
fn latency(mut was: Vec<f64>, mut is: Vec<f64>) -> LatencyPairs {
    was.sort_by(f64::total_cmp);
    is.sort_by(f64::total_cmp);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let rank = |v: &[f64], share: f64| {
        let rank = (v.len() as f64 * share).ceil() as usize;
        v.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    LatencyPairs {
        mean: pair(mean(&was), mean(&is)),
        p50: pair(rank(&was, 0.5), rank(&is, 0.5)),
        p90: pair(rank(&was, 0.9), rank(&is, 0.9)),
        p99: pair(rank(&was, 0.99), rank(&is, 0.99)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::Time;

    const TEXT: &str = "arrival_ns,queued_ns,first_token_ns,last_token_ns,output_tokens\n\
                        0,1,2000000,6000000,3\n\
                        1000000,1,5000000,5000000,1\n";

    fn observe(events: &[(u64, What)]) -> Observed {
        let mut observed = Observed::default();
        for &(at, what) in events {
            let event = LogEvent { at: Time(at), class: 0, replica: 0, sequence: 0, what };
            observed.event(&event);
        }
        observed
    }

    #[test]
    fn both_sides_are_measured_alike() {
        let recording = Recording::parse(TEXT).unwrap();
        let ends = |request, tokens| What::End { request, tokens, energy_uj: 0, complete: true };
        let observed = observe(&[
            (0, What::Arrive { request: 0 }),
            (1_000_000, What::Arrive { request: 1 }),
            (3_000_000, What::FirstToken { request: 0 }),
            (5_000_000, What::FirstToken { request: 1 }),
            (5_000_000, ends(1, 1)),
            (9_000_000, ends(0, 3)),
        ]);
        let c = recording.compare(&observed).unwrap();
        // Recorded 2 and 4 ms, simulated 3 and 4 ms.
        assert_eq!((c.ttft.mean.recorded_ms, c.ttft.mean.simulated_ms), (3.0, 3.5));
        // One answer of more than one token: 4 ms and 6 ms for two of them.
        assert_eq!((c.tpot.mean.recorded_ms, c.tpot.mean.simulated_ms), (2.0, 3.0));
        assert_eq!((c.e2e.p99.recorded_ms, c.e2e.p99.simulated_ms), (6.0, 9.0));
        assert_eq!((c.makespan.error, c.mean_request_error), (0.5, 0.25));
        let other = observe(&[(0, What::Arrive { request: 0 }), (1, ends(0, 2))]);
        assert!(recording.compare(&other).unwrap_err().contains("another workload"));
        assert!(recording.compare(&Observed::default()).is_err());
    }

    #[test]
    fn bad_recordings_are_refused_with_the_line() {
        let head = "arrival_ns,first_token_ns,last_token_ns,output_tokens\n";
        for (rows, wanted) in [
            ("", "no rows"),
            ("5,1,7,2\n", "line 2"),
            ("1,2,3,2\n1,2,3,0\n", "line 3"),
            ("1,2,NaN,2\n", "last_token_ns"),
            ("1,2\n", "last_token_ns"),
            ("-1,2,3,4\n", "arrival_ns"),
        ] {
            let error = Recording::parse(&format!("{head}{rows}")).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(Recording::parse("a,b\n1,2\n").unwrap_err().contains("arrival_ns"));
        assert!(Recording::parse("").is_err());
    }
}
