//! `GET /live`: what the page's live view draws, in one small object.
//!
//! Totals are since the start, so that whoever asks twice knows what happened in between; times to
//! first tokens and between tokens are percentiles of the last minute, which a histogram cannot
//! give.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{extract::State, response::Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    app::{App, json},
    error::ApiError,
    openai::types::ErrorBody,
    process::Process,
    service::Usage,
};

/// What happened within this time is recent.
const WINDOW: Duration = Duration::from_secs(60);
/// More recent requests than this are not held: the oldest are let go of.
const HELD: usize = 4096;

/// Values of the last minute.
#[derive(Debug, Default)]
struct Recent<T>(VecDeque<(Instant, T)>);

impl<T: Copy> Recent<T> {
    fn add(&mut self, now: Instant, value: T) {
        if self.0.len() == HELD {
            self.0.pop_front();
        }
        self.0.push_back((now, value));
    }

    fn values(&mut self, now: Instant) -> Vec<T> {
        while self.0.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.0.pop_front();
        }
        self.0.iter().map(|(_, value)| *value).collect()
    }
}

/// What requests did lately.
#[derive(Debug)]
pub struct Live {
    started: Instant,
    output_tokens: AtomicU64,
    recent: Mutex<Windows>,
}

#[derive(Debug, Default)]
struct Windows {
    ttft_ms: Recent<f64>,
    tpot_ms: Recent<f64>,
    /// (prompt, cached) tokens.
    prompts: Recent<(usize, usize)>,
}

impl Live {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self { started: Instant::now(), output_tokens: AtomicU64::new(0), recent: Mutex::default() }
    }

    fn recent(&self) -> std::sync::MutexGuard<'_, Windows> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token came.
    pub fn token(&self) {
        self.output_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// A request's first token came.
    pub fn first_token(&self, after: Duration) {
        self.recent().ttft_ms.add(Instant::now(), after.as_secs_f64() * 1e3);
    }

    /// A request ended by itself; `token_seconds` is the mean time between its tokens.
    pub fn finished(&self, usage: &Usage, token_seconds: Option<f64>) {
        let now = Instant::now();
        let mut recent = self.recent();
        recent.prompts.add(now, (usage.prompt_tokens, usage.cached_tokens));
        if let Some(seconds) = token_seconds {
            recent.tpot_ms.add(now, seconds * 1e3);
        }
    }
}

/// How recent values are distributed.
#[derive(Debug, Serialize, ToSchema)]
pub struct Percentiles {
    /// How many there are.
    count: usize,
    /// Half of them are at most this.
    p50_ms: f64,
    /// 95% of them are at most this.
    p95_ms: f64,
}

impl Percentiles {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = ((values.len() as f64 * part).ceil() as usize).saturating_sub(1);
            values.get(index).copied()
        };
        Some(Self { count: values.len(), p50_ms: at(0.5)?, p95_ms: at(0.95)? })
    }
}

/// What the server does.
#[derive(Debug, Serialize, ToSchema)]
pub struct LiveBody {
    /// Seconds since the start.
    time_s: f64,
    /// The default model's id.
    model: String,
    /// Requests that have a part in steps.
    running: usize,
    /// Requests that wait for their first step.
    waiting: usize,
    /// KV blocks in all.
    kv_blocks: usize,
    /// KV blocks that requests hold.
    kv_blocks_used: usize,
    /// Steps run.
    steps: u64,
    /// Token positions that went through the model.
    computed_tokens: u64,
    /// Tokens generated.
    output_tokens: u64,
    /// Seconds spent in steps.
    step_seconds: f64,
    /// Energy of all steps.
    joules: f64,
    /// Where joules come from.
    joules_source: &'static str,
    /// Memory of the process in RAM, mapped files included; null where the system does not tell.
    resident_bytes: Option<u64>,
    /// Processor time of the process since it began; null where the system does not tell.
    cpu_seconds: Option<f64>,
    /// Tokens of the prompts of requests that ended within the last minute.
    recent_prompt_tokens: usize,
    /// Of those, the ones whose KV was there already.
    recent_cached_tokens: usize,
    /// Times to first tokens within the last minute.
    ttft: Option<Percentiles>,
    /// Mean times between tokens, of requests that ended within the last minute.
    tpot: Option<Percentiles>,
}

/// What the server does now and did lately, for the page's live view.
#[utoipa::path(get, path = "/live", tag = "Operation", responses(
    (status = 200, description = "What it does", body = LiveBody),
    (status = 503, description = "The model is being loaded", body = ErrorBody),
))]
pub(crate) async fn live(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model(None)?;
    let stats = app.call(|service| Ok(service.stats())).await?;
    let live = &app.metrics.live;
    // The moment that the engine's numbers are of: they came when a step had ended.
    let now = Instant::now();
    let (ttft, tpot, prompts) = {
        let mut recent = live.recent();
        (recent.ttft_ms.values(now), recent.tpot_ms.values(now), recent.prompts.values(now))
    };
    let process = Process::now();
    Ok(json(&LiveBody {
        time_s: now.duration_since(live.started).as_secs_f64(),
        model: model.id,
        running: stats.running,
        waiting: stats.waiting,
        kv_blocks: stats.kv_blocks,
        kv_blocks_used: stats.kv_blocks_used,
        steps: stats.steps,
        computed_tokens: stats.computed_tokens,
        output_tokens: live.output_tokens.load(Ordering::Relaxed),
        step_seconds: stats.step_ns as f64 / 1e9,
        joules: stats.microjoules as f64 / 1e6,
        joules_source: stats.energy_source,
        resident_bytes: process.map(|process| process.resident_bytes),
        cpu_seconds: process.map(|process| process.cpu_seconds),
        recent_prompt_tokens: prompts.iter().map(|p| p.0).sum(),
        recent_cached_tokens: prompts.iter().map(|p| p.1).sum(),
        ttft: Percentiles::of(ttft),
        tpot: Percentiles::of(tpot),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_values_are_bounded_in_time_and_number() {
        let mut recent = Recent::default();
        let start = Instant::now();
        for i in 0..2 * HELD {
            recent.add(start, i as f64);
        }
        assert_eq!(recent.0.len(), HELD);
        recent.add(start + Duration::from_secs(50), 7.0);
        assert_eq!(recent.values(start + Duration::from_secs(55)).len(), HELD);
        assert_eq!(recent.values(start + Duration::from_secs(70)), [7.0]);
        assert!(recent.values(start + Duration::from_secs(111)).is_empty());
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let p = Percentiles::of((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!((p.count, p.p50_ms, p.p95_ms), (100, 50.0, 95.0));
        assert!(Percentiles::of(Vec::new()).is_none());
    }
}
