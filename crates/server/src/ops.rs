//! What probes, routers and dashboards ask.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    app::{App, json},
    error::ApiError,
    openai::types::ErrorBody,
};

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthBody {
    /// Always `ok`.
    status: &'static str,
}

/// What the server holds.
#[derive(Debug, Serialize, ToSchema)]
pub struct ServerInfo {
    /// The program's version.
    version: &'static str,
    /// The default model's id.
    model_path: String,
    /// The same.
    served_model_name: String,
    /// The most tokens of a sequence.
    max_model_len: usize,
    /// Requests that may generate or wait to, at once.
    max_running_requests: usize,
    /// Tokens that all KV holds.
    max_total_num_tokens: usize,
    /// Tokens in a KV block.
    page_size: usize,
    /// Independent copies of the engine.
    dp_size: usize,
}

/// What the default model is.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelInfoBody {
    /// Its id.
    model_path: String,
    /// The same.
    served_model_name: String,
    /// The same: it brings its own tokenizer.
    tokenizer_path: String,
    /// Always true.
    is_generation: bool,
    /// The most tokens of a sequence.
    max_context_length: usize,
    /// Tokens in its vocabulary.
    vocab_size: usize,
}

/// Whether the engine lives: not before the model is loaded, and not after the engine has died.
#[utoipa::path(get, path = "/health", tag = "Operation", responses(
    (status = 200, description = "The engine lives", body = HealthBody),
    (status = 503, description = "It does not", body = ErrorBody),
))]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.service.health().problem() {
        None => Ok(json(&HealthBody { status: "ok" })),
        Some(problem) => Err(ApiError::unavailable(problem)),
    }
}

/// Whether new requests should be sent here: the engine lives and the server is not about to stop.
#[utoipa::path(get, path = "/ready", tag = "Operation", responses(
    (status = 200, description = "They should", body = HealthBody),
    (status = 503, description = "They should not", body = ErrorBody),
))]
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.is_draining() {
        return Err(ApiError::unavailable("the server is stopping"));
    }
    health(State(app)).await
}

/// Counters and gauges for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "Operation", responses(
    (status = 200, description = "Text in the OpenMetrics format", body = String,
        content_type = "application/openmetrics-text"),
))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.service.models().into_iter().next();
    let stats = app.call(|service| Ok(service.stats())).await?;
    let text = app.metrics.render(model.as_ref(), &stats, app.requests_under_way());
    let content_type =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// What the server holds, as routers ask for it.
#[utoipa::path(get, path = "/server_info", tag = "Operation", responses(
    (status = 200, description = "What it holds", body = ServerInfo),
    (status = 503, description = "The model is being loaded", body = ErrorBody),
))]
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model(None)?;
    let stats = app.call(|service| Ok(service.stats())).await?;
    Ok(json(&ServerInfo {
        version: env!("CARGO_PKG_VERSION"),
        model_path: model.id.clone(),
        served_model_name: model.id,
        max_model_len: model.context,
        max_running_requests: app.config.max_requests,
        max_total_num_tokens: stats.kv_blocks * stats.block_tokens,
        page_size: stats.block_tokens,
        dp_size: 1,
    }))
}

/// What the default model is, as routers ask for it.
#[utoipa::path(get, path = "/model_info", tag = "Operation", responses(
    (status = 200, description = "What it is", body = ModelInfoBody),
    (status = 503, description = "The model is being loaded", body = ErrorBody),
))]
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model(None)?;
    Ok(json(&ModelInfoBody {
        model_path: model.id.clone(),
        served_model_name: model.id.clone(),
        tokenizer_path: model.id,
        is_generation: true,
        max_context_length: model.context,
        vocab_size: model.vocab_size,
    }))
}
