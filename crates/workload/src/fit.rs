//! From a recorded trace to clients that send alike: ServeGen's way (NSDI 2026), which composes a
//! workload of the clients that it was recorded from instead of imitating their sum.

use std::collections::BTreeMap;

use crate::arrival::{ArrivalSpec, GapSpec, RateSpec, Shape};
use crate::client::ClientSpec;
use crate::error::{SpecError, positive};
use crate::length::LengthsSpec;
use crate::request::{ClientId, Request};

/// What is kept of a client.
#[derive(Debug, Default)]
struct Seen {
    /// (arrival in nanoseconds, prompt, output).
    rows: Vec<(u64, u32, u32)>,
}

/// A client for each client of `requests` (in order of arrival), the most frequent first:
///
/// - its rate in steps of `window_s` seconds, from the start of time to the trace's end, which then
///   begins anew;
/// - gamma gaps, whose CV is that of its own gaps measured in operational time, so that a change of
///   rate does not pass for burstiness;
/// - its own pairs of lengths.
///
/// What prompts share is not fitted. The rows' lengths are held in memory.
///
/// # Errors
/// A window that is no number above zero; no requests.
pub fn fit_clients(
    requests: impl Iterator<Item = Request>,
    window_s: f64,
) -> Result<Vec<ClientSpec>, SpecError> {
    positive("window_s", window_s)?;
    let mut clients: BTreeMap<ClientId, Seen> = BTreeMap::new();
    let mut end = 0;
    for request in requests {
        end = request.arrival.0.max(end);
        let row = (request.arrival.0, request.prompt_tokens, request.output_tokens);
        clients.entry(request.client).or_default().rows.push(row);
    }
    if clients.is_empty() {
        return Err(SpecError::new("requests", "there are none to fit"));
    }
    // Whole windows, the last of which holds the last arrival.
    let windows = (end as f64 / 1e9 / window_s).floor() + 1.0;
    if windows > 1e6 {
        return Err(SpecError::new("window_s", format!("{windows} windows; at most a million")));
    }
    let mut clients: Vec<(ClientId, Seen)> = clients.into_iter().collect();
    clients.sort_by_key(|(id, seen)| (std::cmp::Reverse(seen.rows.len()), *id));
    let fit = |(id, seen): (ClientId, Seen)| {
        let mut counts = vec![0u64; windows as usize];
        let place = |ns: u64| ((ns as f64 / 1e9 / window_s) as usize).min(counts.len() - 1);
        let places: Vec<usize> = seen.rows.iter().map(|row| place(row.0)).collect();
        places.iter().for_each(|&p| counts[p] += 1);
        let rate = |window: usize| counts[window] as f64 / window_s;
        let points = (0..counts.len()).map(|w| (w as f64 * window_s, rate(w))).collect();
        let arrival = ArrivalSpec::Open {
            gaps: gaps(&operational(&seen.rows, &counts, window_s)),
            rate: RateSpec::Profile {
                points,
                shape: Shape::Steps,
                period_s: Some(windows * window_s),
            },
        };
        let lengths = LengthsSpec::Rows { rows: seen.rows.iter().map(|r| (r.1, r.2)).collect() };
        ClientSpec::new(format!("client {}", id.0), arrival, lengths)
    };
    Ok(clients.into_iter().map(fit).collect())
}

/// Arrivals in operational time: expected arrivals since the start.
fn operational(rows: &[(u64, u32, u32)], counts: &[u64], window_s: f64) -> Vec<f64> {
    let mut before = Vec::with_capacity(counts.len());
    let mut sum = 0u64;
    for count in counts {
        before.push(sum as f64);
        sum += count;
    }
    rows.iter()
        .map(|row| {
            let place = row.0 as f64 / 1e9 / window_s;
            let window = (place as usize).min(counts.len() - 1);
            before[window] + counts[window] as f64 * (place - window as f64)
        })
        .collect()
}

/// Gamma gaps of the same CV; exponential ones where there are too few arrivals to tell.
fn gaps(arrivals: &[f64]) -> GapSpec {
    const ENOUGH: usize = 10;
    if arrivals.len() < ENOUGH {
        return GapSpec::Exponential;
    }
    let gaps: Vec<f64> = arrivals.windows(2).map(|w| w[1] - w[0]).collect();
    let n = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / n;
    let variance = gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>() / (n - 1.0);
    let cv = variance.sqrt() / mean;
    if cv > 1e-3 && cv.is_finite() { GapSpec::Gamma { cv } } else { GapSpec::Constant }
}
