//! Two sides of the same traffic, compared.

use dunlin_units::Time;
use serde::Serialize;

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimes {
    /// Its place in the traffic, from 0.
    pub number: u64,
    /// When it arrived.
    pub arrival: Time,
    /// When it got its first token.
    pub first_token: Option<Time>,
    /// When it ended.
    pub end: Time,
    /// Tokens that it got.
    pub output_tokens: u32,
}

impl RequestTimes {
    fn ttft_ns(&self) -> Option<f64> {
        self.first_token.map(|at| at.since(self.arrival) as f64)
    }

    fn tpot_ns(&self) -> Option<f64> {
        let gaps = f64::from(self.output_tokens.checked_sub(1).filter(|&n| n > 0)?);
        Some(self.end.since(self.first_token?) as f64 / gaps)
    }

    fn e2e_ns(&self) -> Option<f64> {
        Some(self.end.since(self.arrival) as f64)
    }
}

/// A latency on both sides, in milliseconds, and how far apart they are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Comparison {
    pub real_ms: f64,
    pub simulated_ms: f64,
    /// Simulated over real, less one.
    pub error_percent: f64,
}

impl Comparison {
    fn new(real_ns: f64, simulated_ns: f64) -> Self {
        Self {
            real_ms: real_ns / 1e6,
            simulated_ms: simulated_ns / 1e6,
            error_percent: percent(real_ns, simulated_ns),
        }
    }
}

/// One latency over all requests: its mean and percentiles on both sides, and request by request the
/// absolute relative error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Figures {
    pub requests: usize,
    pub mean: Comparison,
    pub p50: Comparison,
    pub p90: Comparison,
    pub p99: Comparison,
    pub per_request_mean_percent: f64,
    pub per_request_p50_percent: f64,
    pub per_request_p90_percent: f64,
    pub per_request_max_percent: f64,
}

/// Both sides of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Sides {
    pub requests: usize,
    pub real_seconds: f64,
    pub simulated_seconds: f64,
    /// Output tokens a second, from the first arrival to the last end.
    pub real_tokens_per_s: f64,
    pub simulated_tokens_per_s: f64,
    pub throughput_error_percent: f64,
    pub ttft: Option<Figures>,
    pub tpot: Option<Figures>,
    pub e2e: Option<Figures>,
}

impl Sides {
    /// Compares the requests that both sides have, which must be in order of their numbers.
    pub fn new(real: &[RequestTimes], simulated: &[RequestTimes]) -> Self {
        let find = |number| {
            simulated.binary_search_by_key(&number, |t| t.number).ok().map(|i| simulated[i])
        };
        let pairs: Vec<(RequestTimes, RequestTimes)> =
            real.iter().filter_map(|r| Some((*r, find(r.number)?))).collect();
        let seconds = |side: &dyn Fn(&(RequestTimes, RequestTimes)) -> RequestTimes| {
            let begin = pairs.iter().map(|p| side(p).arrival).min().unwrap_or_default();
            let end = pairs.iter().map(|p| side(p).end).max().unwrap_or_default();
            let tokens: u64 = pairs.iter().map(|p| u64::from(side(p).output_tokens)).sum();
            let seconds = end.since(begin) as f64 / 1e9;
            (seconds, if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 })
        };
        let (real_seconds, real_tokens_per_s) = seconds(&|p| p.0);
        let (simulated_seconds, simulated_tokens_per_s) = seconds(&|p| p.1);
        Self {
            requests: pairs.len(),
            real_seconds,
            simulated_seconds,
            real_tokens_per_s,
            simulated_tokens_per_s,
            throughput_error_percent: percent(real_tokens_per_s, simulated_tokens_per_s),
            ttft: figures(&pairs, RequestTimes::ttft_ns),
            tpot: figures(&pairs, RequestTimes::tpot_ns),
            e2e: figures(&pairs, RequestTimes::e2e_ns),
        }
    }
}

fn percent(real: f64, simulated: f64) -> f64 {
    if real > 0.0 { (simulated / real - 1.0) * 100.0 } else { 0.0 }
}

fn figures(
    pairs: &[(RequestTimes, RequestTimes)],
    of: impl Fn(&RequestTimes) -> Option<f64>,
) -> Option<Figures> {
    let values: Vec<(f64, f64)> =
        pairs.iter().filter_map(|(real, own)| Some((of(real)?, of(own)?))).collect();
    let n = values.len();
    if n == 0 {
        return None;
    }
    let sorted = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = values.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    let (real, own) = (sorted(&|v| v.0), sorted(&|v| v.1));
    let errors = sorted(&|v| percent(v.0, v.1).abs());
    let mean = |all: &[f64]| all.iter().sum::<f64>() / n as f64;
    // By nearest rank.
    let at = |all: &[f64], p: f64| all[((n as f64 * p).ceil() as usize).clamp(1, n) - 1];
    let both = |p| Comparison::new(at(&real, p), at(&own, p));
    Some(Figures {
        requests: n,
        mean: Comparison::new(mean(&real), mean(&own)),
        p50: both(0.5),
        p90: both(0.9),
        p99: both(0.99),
        per_request_mean_percent: mean(&errors),
        per_request_p50_percent: at(&errors, 0.5),
        per_request_p90_percent: at(&errors, 0.9),
        per_request_max_percent: at(&errors, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(number: u64, arrival: u64, first: u64, end: u64, output_tokens: u32) -> RequestTimes {
        RequestTimes {
            number,
            arrival: Time(arrival),
            first_token: Some(Time(first)),
            end: Time(end),
            output_tokens,
        }
    }

    #[test]
    fn errors_are_of_the_same_requests_on_both_sides() {
        let real = [times(0, 0, 100, 500, 5), times(1, 100, 300, 300, 1), times(3, 0, 1, 2, 2)];
        let own = [times(0, 0, 110, 510, 5), times(1, 100, 290, 290, 1)];
        let sides = Sides::new(&real, &own);
        assert_eq!(sides.requests, 2);
        assert_eq!((sides.real_seconds, sides.simulated_seconds), (500e-9, 510e-9));
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(sides.throughput_error_percent, (500.0 / 510.0 - 1.0) * 100.0));
        let ttft = sides.ttft.unwrap();
        assert!(close(ttft.mean.real_ms, 150e-6) && close(ttft.mean.simulated_ms, 150e-6));
        assert!(close(ttft.mean.error_percent, 0.0));
        // 10% too late and 5% too early.
        assert!(close(ttft.per_request_mean_percent, 7.5));
        assert!(close(ttft.per_request_max_percent, 10.0));
        assert!(close(ttft.p50.real_ms, 100e-6) && close(ttft.p99.real_ms, 200e-6));
        // Of two requests only one has gaps.
        assert_eq!(sides.tpot.map(|f| f.requests), Some(1));
        assert!(close(sides.e2e.unwrap().p99.error_percent, 2.0));
        assert_eq!(Sides::new(&real, &[]).ttft, None);
    }
}
