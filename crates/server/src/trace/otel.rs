//! A request as a span of OpenTelemetry, with the attributes that its conventions for generative AI
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>) give to model servers, and with its phases
//! as spans below it.
//!
//! What prompts and answers say is in none of them, nor are stop strings.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use axum::http::{HeaderMap, Method};
use opentelemetry::{
    Array, Context, KeyValue, StringValue, Value, global,
    propagation::TextMapPropagator as _,
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _},
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::service::{Finish, Generate, Usage};

/// Whose spans they are.
const SCOPE: &str = "dunlin";

/// The span of a request; it ends when the last clone is dropped, which is when the request's answer
/// has been given or given up. Nothing for requests that are no work for a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace(Option<Arc<Request>>);

#[derive(Debug)]
struct Request {
    /// Holds the span.
    context: Context,
    operation: &'static str,
    /// When the engine was asked.
    asked: OnceLock<SystemTime>,
    /// Why the choices ended.
    finishes: Mutex<Vec<&'static str>>,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.context.span().end();
    }
}

/// The convention's name for what a route does; none of routes that do no work for a model.
fn operation(route: &str) -> Option<&'static str> {
    Some(match route {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/api/chat" => "chat",
        "/v1/completions"
        | "/api/generate"
        | "/v1/sessions/{id}/append"
        | "/v1/sessions/{id}/query"
        | "/v1/sessions/{id}/questions/{question}/ask" => "text_completion",
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        _ => return None,
    })
}

impl Trace {
    /// A request has come; its headers may name the span that it is a part of (`traceparent`).
    pub fn begin(method: &Method, route: &str, headers: &HeaderMap) -> Self {
        let Some(operation) = operation(route).filter(|_| method == Method::POST) else {
            return Self(None);
        };
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let tracer = global::tracer(SCOPE);
        let builder = tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_string()),
                KeyValue::new("http.route", route.to_string()),
                KeyValue::new("gen_ai.operation.name", operation),
                KeyValue::new("gen_ai.provider.name", "dunlin"),
            ]);
        let span = tracer.build_with_context(builder, &parent);
        if !span.span_context().is_valid() {
            // Nobody collects.
            return Self(None);
        }
        Self(Some(Arc::new(Request {
            context: parent.with_span(span),
            operation,
            asked: OnceLock::new(),
            finishes: Mutex::default(),
        })))
    }

    fn set(&self, key: &'static str, value: impl Into<Value>) {
        if let Some(request) = &self.0 {
            request.context.span().set_attribute(KeyValue::new(key, value));
        }
    }

    /// The engine is asked for this.
    pub fn asked(&self, generate: &Generate) {
        let Some(request) = &self.0 else { return };
        // Of several texts the first tells.
        if request.asked.set(SystemTime::now()).is_err() {
            return;
        }
        request.context.span().update_name(format!("{} {}", request.operation, generate.model));
        self.set("gen_ai.request.model", generate.model.clone());
        self.set("gen_ai.response.model", generate.model.clone());
        if generate.hidden {
            return;
        }
        let sampling = &generate.sampling;
        self.set("gen_ai.output.type", if generate.constraint.is_some() { "json" } else { "text" });
        self.set("gen_ai.request.temperature", f64::from(sampling.temperature));
        self.set("gen_ai.request.top_p", f64::from(sampling.top_p));
        self.set("gen_ai.request.seed", sampling.seed.cast_signed());
        if sampling.top_k > 0 {
            self.set("gen_ai.request.top_k", sampling.top_k as f64);
        }
        for (key, value) in [
            ("gen_ai.request.frequency_penalty", sampling.frequency_penalty),
            ("gen_ai.request.presence_penalty", sampling.presence_penalty),
        ] {
            if value != 0.0 {
                self.set(key, f64::from(value));
            }
        }
        if generate.choices != 1 {
            self.set("gen_ai.request.choice.count", i64::from(generate.choices));
        }
        if let Some(most) = generate.max_tokens {
            self.set("gen_ai.request.max_tokens", integer(most));
        }
    }

    /// A choice ended, after so many calls of tools.
    pub fn choice_ended(&self, finish: &Finish, calls: usize) {
        let Some(request) = &self.0 else { return };
        let name = match finish {
            Finish::StopToken if calls > 0 => "tool_call",
            finish => finish.label(),
        };
        request.finishes.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }

    /// All is done, at this cost.
    pub fn done(&self, usage: &Usage) {
        let Some(request) = &self.0 else { return };
        self.set("gen_ai.usage.input_tokens", integer(usage.prompt_tokens));
        self.set("gen_ai.usage.cache_read.input_tokens", integer(usage.cached_tokens));
        self.set("gen_ai.usage.output_tokens", integer(usage.output_tokens));
        let finishes =
            std::mem::take(&mut *request.finishes.lock().unwrap_or_else(PoisonError::into_inner));
        if !finishes.is_empty() {
            let names = finishes.into_iter().map(StringValue::from).collect();
            self.set("gen_ai.response.finish_reasons", Value::Array(Array::String(names)));
        }
        let Some(&asked) = request.asked.get() else { return };
        let tracer = global::tracer(SCOPE);
        let mut at = asked;
        for (phase, ns) in
            [("queue", usage.queue_ns), ("prefill", usage.prefill_ns), ("decode", usage.decode_ns)]
        {
            let end = at + Duration::from_nanos(ns);
            // A request that was answered from what was computed ahead has no phases.
            if ns > 0 {
                let builder = tracer.span_builder(phase).with_start_time(at);
                let mut span = tracer.build_with_context(builder, &request.context);
                span.end_with_timestamp(end);
            }
            at = end;
        }
    }

    /// It failed, was refused, or was given up.
    pub fn failed(&self, kind: &str) {
        let Some(request) = &self.0 else { return };
        self.set("error.type", kind.to_string());
        request.context.span().set_status(Status::Error { description: Cow::Borrowed("") });
    }

    /// The status of the answer.
    pub fn answered(&self, status: u16) {
        self.set("http.response.status_code", i64::from(status));
    }
}

fn integer(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
