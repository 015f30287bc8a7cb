//! What is counted, in Prometheus' format.
//!
//! `vllm:*` are the names that routers and dashboards read, with that project's meanings; `dunlin:*`
//! is what they lack. Gauges of the engine are read when somebody asks.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{
    live::Live,
    process::Process,
    service::{Finish, ModelInfo, Stats, Usage},
};

/// Seconds of latencies that users wait for: first tokens, whole answers.
const LATENCY_SECONDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0];
/// Seconds between tokens.
const TOKEN_SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    model_name: String,
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
    status: u16,
}

/// Joules that were measured and joules of a model are not added up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Energy {
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheConfig {
    model_name: String,
    block_size: usize,
    num_gpu_blocks: usize,
    num_cpu_blocks: usize,
}

/// A counter of what is not whole.
type Seconds = Counter<f64, AtomicU64>;
type PerModel = Family<Model, Counter>;
type Level = Family<Model, Gauge<f64, AtomicU64>>;
type Times = Family<Model, Histogram, fn() -> Histogram>;

/// Everything that is counted.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    running: Level,
    waiting: Level,
    kv_usage: Level,
    cache_config: Family<CacheConfig, Gauge>,
    preemptions: PerModel,
    prompt_tokens: PerModel,
    generation_tokens: PerModel,
    prefix_queries: PerModel,
    prefix_hits: PerModel,
    draft_tokens: PerModel,
    accepted_tokens: PerModel,
    finished: Family<Finished, Counter>,
    first_token: Times,
    between_tokens: Times,
    end_to_end: Times,
    queue: Times,
    answers: Family<Route, Counter>,
    answer_seconds: Histogram,
    disconnects: Counter,
    in_flight: Gauge,
    steps: Counter,
    computed_tokens: Counter,
    step_seconds: Seconds,
    energy: Family<Energy, Seconds>,
    resident: Gauge,
    cpu_seconds: Seconds,
    open_files: Gauge,
    /// What the live view shows.
    pub live: Live,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn latencies() -> Histogram {
    Histogram::new(LATENCY_SECONDS)
}

fn token_times() -> Histogram {
    Histogram::new(TOKEN_SECONDS)
}

impl Metrics {
    pub fn new() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::default()),
            running: Level::default(),
            waiting: Level::default(),
            kv_usage: Level::default(),
            cache_config: Family::default(),
            preemptions: PerModel::default(),
            prompt_tokens: PerModel::default(),
            generation_tokens: PerModel::default(),
            prefix_queries: PerModel::default(),
            prefix_hits: PerModel::default(),
            draft_tokens: PerModel::default(),
            accepted_tokens: PerModel::default(),
            finished: Family::default(),
            first_token: Times::new_with_constructor(latencies),
            between_tokens: Times::new_with_constructor(token_times),
            end_to_end: Times::new_with_constructor(latencies),
            queue: Times::new_with_constructor(latencies),
            answers: Family::default(),
            answer_seconds: latencies(),
            disconnects: Counter::default(),
            in_flight: Gauge::default(),
            steps: Counter::default(),
            computed_tokens: Counter::default(),
            step_seconds: Seconds::default(),
            energy: Family::default(),
            resident: Gauge::default(),
            cpu_seconds: Seconds::default(),
            open_files: Gauge::default(),
            live: Live::new(),
        };
        let mut registry = Registry::default();
        let m = &metrics;
        let mut add =
            |name: &str, help: &str, what: &dyn Register| what.register(&mut registry, name, help);
        add("vllm:num_requests_running", "Requests that have a part in steps", &m.running);
        add("vllm:num_requests_waiting", "Requests that wait for their first step", &m.waiting);
        add("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1", &m.kv_usage);
        add("vllm:gpu_cache_usage_perc", "The same under its older name", &m.kv_usage);
        add("vllm:cache_config_info", "Sizes of the KV cache", &m.cache_config);
        add("vllm:num_preemptions", "Requests that gave way to others, ever", &m.preemptions);
        add("vllm:prompt_tokens", "Tokens of prompts", &m.prompt_tokens);
        add("vllm:generation_tokens", "Tokens generated", &m.generation_tokens);
        add(
            "vllm:prefix_cache_queries",
            "Tokens of prompts looked up in the prefix cache",
            &m.prefix_queries,
        );
        add("vllm:prefix_cache_hits", "Of those, the ones that were there", &m.prefix_hits);
        add(
            "vllm:spec_decode_num_draft_tokens",
            "Draft tokens that were verified",
            &m.draft_tokens,
        );
        add(
            "vllm:spec_decode_num_accepted_tokens",
            "Of those, the ones that became output",
            &m.accepted_tokens,
        );
        add("vllm:request_success", "Requests that ended, by why", &m.finished);
        add("vllm:time_to_first_token_seconds", "From arrival to the first token", &m.first_token);
        add(
            "vllm:time_per_output_token_seconds",
            "Mean time between a request's tokens",
            &m.between_tokens,
        );
        add("vllm:e2e_request_latency_seconds", "From arrival to the end", &m.end_to_end);
        add("vllm:request_queue_time_seconds", "From arrival to the first step", &m.queue);
        add("dunlin:http_responses", "Answers, by route and status", &m.answers);
        add(
            "dunlin:http_response_seconds",
            "From a request's headers to its answer's",
            &m.answer_seconds,
        );
        add(
            "dunlin:disconnects",
            "Clients that left before their answer was complete",
            &m.disconnects,
        );
        add("dunlin:requests_in_flight", "Requests that hold a place", &m.in_flight);
        add("dunlin:steps", "Steps run", &m.steps);
        add("dunlin:computed_tokens", "Token positions computed", &m.computed_tokens);
        add("dunlin:step_seconds", "Time spent in steps", &m.step_seconds);
        add("dunlin:energy_joules", "Energy of all steps, by where it comes from", &m.energy);
        add("process_resident_memory_bytes", "Memory of the process in RAM", &m.resident);
        add("process_cpu_seconds", "Processor time of the process", &m.cpu_seconds);
        add("process_open_fds", "Files and connections that are open", &m.open_files);
        metrics.registry.lock().map(|mut r| *r = registry).ok();
        metrics
    }

    /// An answer's head was written.
    pub fn answered(&self, route: &str, status: StatusCode, after: Duration) {
        let route = Route { route: route.to_string(), status: status.as_u16() };
        self.answers.get_or_create(&route).inc();
        self.answer_seconds.observe(after.as_secs_f64());
    }

    /// A request's first token came.
    pub fn first_token(&self, model: &str, after: Duration) {
        self.live.first_token(after);
        self.first_token
            .get_or_create(&Model { model_name: model.into() })
            .observe(after.as_secs_f64());
    }

    /// A request ended by itself.
    pub fn finished(&self, model: &str, usage: &Usage, choices: u32, after: Duration) {
        let label = Model { model_name: model.into() };
        self.prompt_tokens.get_or_create(&label).inc_by(usage.prompt_tokens as u64);
        self.prefix_queries.get_or_create(&label).inc_by(usage.prompt_tokens as u64);
        self.prefix_hits.get_or_create(&label).inc_by(usage.cached_tokens as u64);
        self.generation_tokens.get_or_create(&label).inc_by(usage.output_tokens as u64);
        self.draft_tokens.get_or_create(&label).inc_by(usage.drafted_tokens as u64);
        self.accepted_tokens.get_or_create(&label).inc_by(usage.accepted_tokens as u64);
        self.end_to_end.get_or_create(&label).observe(after.as_secs_f64());
        self.queue.get_or_create(&label).observe(usage.queue_ns as f64 / 1e9);
        // Each choice but its first token, which prefill brought.
        let gaps = usage.output_tokens.saturating_sub(choices as usize);
        let mean = (gaps > 0).then(|| {
            let per_choice = gaps as f64 / f64::from(choices.max(1));
            usage.decode_ns as f64 / 1e9 / per_choice
        });
        if let Some(mean) = mean {
            self.between_tokens.get_or_create(&label).observe(mean);
        }
        self.live.finished(usage, mean);
    }

    /// A choice ended.
    pub fn choice_finished(&self, model: &str, finish: &Finish) {
        let label = Finished { model_name: model.into(), finished_reason: finish.label() };
        self.finished.get_or_create(&label).inc();
    }

    /// A client left before its answer was complete.
    pub fn disconnected(&self) {
        self.disconnects.inc();
    }

    /// Everything, as text in the OpenMetrics format.
    pub fn render(&self, model: Option<&ModelInfo>, stats: &Stats, in_flight: usize) -> String {
        if let Some(model) = model {
            let label = Model { model_name: model.id.clone() };
            self.running.get_or_create(&label).set(stats.running as f64);
            self.waiting.get_or_create(&label).set(stats.waiting as f64);
            let usage = stats.kv_blocks_used as f64 / stats.kv_blocks.max(1) as f64;
            self.kv_usage.get_or_create(&label).set(usage);
            let preemptions = self.preemptions.get_or_create(&label);
            preemptions.inner().store(stats.preemptions, Ordering::Relaxed);
            let config = CacheConfig {
                model_name: model.id.clone(),
                block_size: stats.block_tokens,
                num_gpu_blocks: stats.kv_blocks,
                num_cpu_blocks: 0,
            };
            self.cache_config.get_or_create(&config).set(1);
        }
        self.in_flight.set(in_flight as i64);
        // The engine counts these; nobody else adds to them.
        self.steps.inner().store(stats.steps, Ordering::Relaxed);
        self.computed_tokens.inner().store(stats.computed_tokens, Ordering::Relaxed);
        let seconds = stats.step_ns as f64 / 1e9;
        self.step_seconds.inner().store(seconds.to_bits(), Ordering::Relaxed);
        if !stats.energy_source.is_empty() {
            let source = stats.energy_source.split(':').next().unwrap_or_default();
            let joules = self.energy.get_or_create(&Energy { source });
            joules.inner().store((stats.microjoules as f64 / 1e6).to_bits(), Ordering::Relaxed);
        }
        if let Some(process) = Process::now() {
            self.resident.set(process.resident_bytes.cast_signed());
            self.cpu_seconds.inner().store(process.cpu_seconds.to_bits(), Ordering::Relaxed);
            self.open_files.set(process.open_files.cast_signed());
        }
        let mut out = String::new();
        let registry = self.registry.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

/// What a registry takes; one call for all kinds.
trait Register {
    fn register(&self, registry: &mut Registry, name: &str, help: &str);
}

impl<M: prometheus_client::registry::Metric + Clone> Register for M {
    fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.clone());
    }
}
