//! What came of a run, as JSON and as a table.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{client::ms, drive::Run, server_side::ServerSide, verify::Verified};

/// A request that left later than this after it was due is late.
const LATE: Duration = Duration::from_millis(10);

/// Limits that a good answer keeps.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Slo {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2e_ms: Option<f64>,
}

/// What was run.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    pub url: String,
    pub model: String,
    pub endpoint: &'static str,
    /// `open` or `closed`.
    pub loop_kind: &'static str,
    /// Requests a second, where they came at a rate.
    pub rate_per_s: Option<f64>,
    /// Clients of a closed loop.
    pub clients: Option<usize>,
    /// The trace's file.
    pub trace: Option<String>,
    /// Whether prompts were token ids; otherwise words.
    pub prompts_are_tokens: bool,
    pub temperature: f32,
    pub seed: u64,
    pub warm_up_requests: usize,
    pub version: &'static str,
}

/// How a quantity is distributed over requests, or over gaps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    pub count: usize,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    /// Of these values; none of nothing. A percentile is a value that occurred.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
            values.get(index).copied().unwrap_or_default()
        };
        Some(Self {
            count: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            max: *values.last()?,
        })
    }
}

/// Answers that kept the limits.
#[derive(Debug, Serialize)]
pub struct Goodput {
    pub slo: Slo,
    pub requests: usize,
    /// Of all requests, failed ones too.
    pub share: f64,
    pub requests_per_s: f64,
    pub output_tokens_per_s: f64,
}

/// Requests that left late. Their waits are in the latencies all the same.
#[derive(Debug, Serialize)]
pub struct Late {
    /// More than 10 ms.
    pub requests: usize,
    pub lag_ms: Option<Spread>,
}

/// Tokens, as the server counts them where it does.
#[derive(Debug, Serialize)]
pub struct Tokens {
    pub prompt: u64,
    pub cached: u64,
    pub output: u64,
    /// Good answers without the server's count: the pieces of text were counted instead.
    pub uncounted_answers: usize,
}

/// The whole result. Latencies are of requests that did not fail, and count from the moment at which
/// a request was due. The time between pieces (ITL) is between texts as they came: several tokens in
/// one piece are one, and a token without text is none. TPOT counts tokens.
#[derive(Debug, Serialize)]
pub struct Report {
    pub setting: Setting,
    pub requests: usize,
    pub succeeded: usize,
    pub failed: usize,
    /// By kind.
    pub errors: BTreeMap<String, usize>,
    /// What was said of the first few.
    pub error_examples: Vec<String>,
    /// From when the first request was due to the last end.
    pub seconds: f64,
    pub requests_per_s: f64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    pub tokens: Tokens,
    pub ttft_ms: Option<Spread>,
    pub tpot_ms: Option<Spread>,
    pub itl_ms: Option<Spread>,
    pub e2e_ms: Option<Spread>,
    pub goodput: Goodput,
    pub late: Late,
    /// The most requests under way at once.
    pub peak_concurrency: usize,
    /// What the server says of itself, where it is one of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerSide>,
    /// Beside the engine's own answers, where a model was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
}

impl Report {
    /// Of a run.
    pub fn new(setting: Setting, run: &Run, slo: Slo) -> Self {
        let all = &run.outcomes;
        let good: Vec<_> = all.iter().filter(|o| o.failure.is_none()).collect();
        let begin = all.iter().map(|o| o.due).min().unwrap_or_default();
        let end = all.iter().map(|o| o.end).max().unwrap_or_default();
        let seconds = end.saturating_sub(begin).as_secs_f64();
        let per_s = |n: f64| if seconds > 0.0 { n / seconds } else { 0.0 };
        let mut errors = BTreeMap::new();
        let mut error_examples = Vec::new();
        for (failure, said) in all.iter().filter_map(|o| o.failure.as_ref()) {
            let seen = errors.entry(failure.to_string()).or_insert(0);
            *seen += 1;
            if *seen == 1 {
                error_examples.push(format!("{failure}: {said}"));
            }
        }
        let usage = || good.iter().filter_map(|o| o.usage);
        let tokens = Tokens {
            prompt: usage().map(|u| u.prompt_tokens).sum(),
            cached: usage().map(|u| u.cached_tokens).sum(),
            output: good.iter().map(|o| o.output_tokens()).sum(),
            uncounted_answers: good.iter().filter(|o| o.usage.is_none()).count(),
        };
        let keeps = |limit: Option<f64>, value: Option<f64>| match (limit, value) {
            (Some(limit), Some(value)) => value <= limit,
            // One token has no time between tokens; no text at all has kept no promise.
            (limit, None) => limit.is_none(),
            (None, _) => true,
        };
        let kept: Vec<_> = good
            .iter()
            .filter(|o| {
                keeps(slo.ttft_ms, o.ttft_ms())
                    && (o.output_tokens() < 2 || keeps(slo.tpot_ms, o.tpot_ms()))
                    && keeps(slo.e2e_ms, Some(o.e2e_ms()))
            })
            .collect();
        let sent = all.iter().filter(|o| o.sent > Duration::ZERO || o.end > Duration::ZERO);
        let lags: Vec<Duration> = sent.map(|o| o.sent.saturating_sub(o.due)).collect();
        Self {
            requests: all.len(),
            succeeded: good.len(),
            failed: all.len() - good.len(),
            errors,
            error_examples,
            seconds,
            requests_per_s: per_s(good.len() as f64),
            output_tokens_per_s: per_s(tokens.output as f64),
            total_tokens_per_s: per_s((tokens.output + tokens.prompt) as f64),
            ttft_ms: Spread::of(good.iter().filter_map(|o| o.ttft_ms()).collect()),
            tpot_ms: Spread::of(good.iter().filter_map(|o| o.tpot_ms()).collect()),
            itl_ms: Spread::of(good.iter().flat_map(|o| &o.gaps_ms).map(|&g| g.into()).collect()),
            e2e_ms: Spread::of(good.iter().map(|o| o.e2e_ms()).collect()),
            goodput: Goodput {
                slo,
                requests: kept.len(),
                share: kept.len() as f64 / all.len().max(1) as f64,
                requests_per_s: per_s(kept.len() as f64),
                output_tokens_per_s: per_s(kept.iter().map(|o| o.output_tokens() as f64).sum()),
            },
            late: Late {
                requests: lags.iter().filter(|&&lag| lag > LATE).count(),
                lag_ms: Spread::of(lags.into_iter().map(ms).collect()),
            },
            peak_concurrency: run.peak,
            verified: None,
            server: None,
            tokens,
            setting,
        }
    }

    /// The table that people read.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} at {}, {} loop: {} requests in {:.1} s, {} failed, at most {} at once\n",
            self.setting.model,
            self.setting.url,
            self.setting.loop_kind,
            self.requests,
            self.seconds,
            self.failed,
            self.peak_concurrency,
        );
        text += &format!(
            "{:.1} output tokens/s, {:.2} requests/s; {} prompt tokens ({} cached), {} output\n\n",
            self.output_tokens_per_s,
            self.requests_per_s,
            self.tokens.prompt,
            self.tokens.cached,
            self.tokens.output,
        );
        text += "ms       mean      p50      p90      p95      p99      max\n";
        let lines = [
            ("TTFT", &self.ttft_ms),
            ("TPOT", &self.tpot_ms),
            ("ITL", &self.itl_ms),
            ("e2e", &self.e2e_ms),
            ("late by", &self.late.lag_ms),
        ];
        for (name, spread) in lines {
            let Some(s) = spread else { continue };
            let values = [s.mean, s.p50, s.p90, s.p95, s.p99, s.max];
            let values: Vec<String> = values.iter().map(|v| format!("{v:9.2}")).collect();
            // The heading's first column holds the longest name.
            text += &format!("{name:<4}{}\n", values.join("").split_off(name.len().max(4) - 4));
        }
        let good = &self.goodput;
        text += &format!(
            "\ngoodput: {} requests ({:.1}%), {:.2} a second{}; {} left more than 10 ms late\n",
            good.requests,
            good.share * 100.0,
            good.requests_per_s,
            self.limits(),
            self.late.requests,
        );
        for (kind, count) in &self.errors {
            text += &format!("error {kind}: {count}\n");
        }
        for example in &self.error_examples {
            text += &format!("  {example}\n");
        }
        if let Some(server) = &self.server {
            text += &format!("{server}\n");
        }
        if let Some(verified) = &self.verified {
            text += &format!("{verified}\n");
        }
        text
    }

    fn limits(&self) -> String {
        let slo = &self.goodput.slo;
        let limits = [("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("e2e", slo.e2e_ms)];
        let limits: Vec<String> = limits
            .iter()
            .filter_map(|(name, limit)| Some(format!("{name} <= {} ms", (*limit)?)))
            .collect();
        if limits.is_empty() { String::new() } else { format!(" within {}", limits.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::serve::client::{Failure, Outcome, Usage};

    fn setting() -> Setting {
        Setting {
            url: String::new(),
            model: String::new(),
            endpoint: "completions",
            loop_kind: "open",
            rate_per_s: None,
            clients: None,
            trace: None,
            prompts_are_tokens: true,
            temperature: 0.0,
            seed: 0,
            warm_up_requests: 0,
            version: "",
        }
    }

    /// Due at `due`, sent `late` after, first text at `first`, then one token every 10 ms.
    fn outcome(due: u64, late: u64, first: u64, tokens: u64) -> Outcome {
        let at = Duration::from_millis;
        Outcome {
            due: at(due),
            sent: at(due + late),
            first: Some(at(first)),
            last: at(first + 10 * (tokens - 1)),
            end: at(first + 10 * (tokens - 1)),
            gaps_ms: vec![10.0; tokens as usize - 1],
            usage: Some(Usage { prompt_tokens: 7, completion_tokens: tokens, cached_tokens: 3 }),
            ..Outcome::default()
        }
    }

    #[test]
    fn times_count_from_when_requests_were_due() {
        let mut failed = outcome(0, 0, 10, 5);
        failed.failure = Some((Failure::Status(500), "no".into()));
        // A second that the client itself was late by is in the time to the first token.
        let outcomes = vec![outcome(0, 0, 100, 11), outcome(500, 1000, 1600, 11), failed];
        let run = Run { outcomes, asked: BTreeMap::new(), peak: 2 };
        let slo = Slo { ttft_ms: Some(200.0), tpot_ms: Some(10.0), e2e_ms: None };
        let report = Report::new(setting(), &run, slo);
        let ttft = report.ttft_ms.as_ref().unwrap();
        assert_eq!((ttft.p50, ttft.max), (100.0, 1100.0));
        assert_eq!(report.tpot_ms.as_ref().unwrap().max, 10.0);
        assert_eq!(report.itl_ms.as_ref().unwrap().count, 20);
        assert_eq!((report.late.requests, report.goodput.requests), (1, 1));
        assert_eq!(report.goodput.share, 1.0 / 3.0);
        assert_eq!(report.seconds, 1.7);
        assert_eq!(report.output_tokens_per_s, 22.0 / 1.7);
        assert_eq!((report.tokens.prompt, report.tokens.cached), (14, 6));
        assert_eq!(report.errors["http_500"], 1);
        assert!(report.table().contains("error http_500: 1"), "{}", report.table());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((spread.p50, spread.p90, spread.p99, spread.max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!(spread.mean, 50.5);
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
