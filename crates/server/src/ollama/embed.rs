//! `POST /api/embed`, and `POST /api/embeddings` as it was before.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::OllamaError;
use crate::{
    app::{App, json},
    embed,
    error::ApiError,
    openai::{embeddings::EmbeddingInput, fields::refuse},
    service::Input,
};

/// Texts to be embedded.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaEmbedRequest {
    /// The model's name.
    model: String,
    /// The texts.
    input: EmbeddingInput,
    /// So many first numbers, as a unit vector again.
    dimensions: Option<u32>,
    /// False alone: a text that does not fit into the context is refused, with both counts.
    truncate: Option<Value>,
}

/// Texts, embedded.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaEmbedded {
    /// The model, as the request names it.
    model: String,
    /// A vector of length 1 for each text, in their order.
    embeddings: Vec<Vec<f32>>,
    /// Nanoseconds from the request's arrival.
    total_duration: u64,
    /// Always 0: the model was there.
    load_duration: u64,
    /// Tokens of the texts.
    prompt_eval_count: usize,
}

/// A text to be embedded.
#[derive(Debug, Deserialize, ToSchema)]
pub struct OllamaEmbeddingsRequest {
    /// The model's name.
    model: String,
    /// The text.
    prompt: String,
}

/// A text, embedded.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaEmbedding {
    /// A vector of length 1.
    embedding: Vec<f32>,
}

/// Embeds texts.
#[utoipa::path(post, path = "/api/embed", tag = "Ollama", request_body = OllamaEmbedRequest,
    responses(
        (status = 200, description = "The vectors", body = OllamaEmbedded),
        (status = 400, description = "A field cannot be used", body = OllamaError),
        (status = 404, description = "There is no such model", body = OllamaError),
    )
)]
pub(crate) async fn embed(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let request: OllamaEmbedRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    refuse(&[("truncate", request.truncate.as_ref(), &[])])?;
    let inputs = request.input.into_inputs();
    let (embeddings, prompt_eval_count) =
        embed::embed(&app, &model, inputs, request.dimensions).await?;
    Ok(json(&OllamaEmbedded {
        model: request.model,
        embeddings,
        total_duration: arrived.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count,
    }))
}

/// Embeds a text.
#[utoipa::path(post, path = "/api/embeddings", tag = "Ollama",
    request_body = OllamaEmbeddingsRequest,
    responses(
        (status = 200, description = "The vector", body = OllamaEmbedding),
        (status = 400, description = "A field cannot be used", body = OllamaError),
        (status = 404, description = "There is no such model", body = OllamaError),
    )
)]
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: OllamaEmbeddingsRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let inputs = vec![Input::Text(request.prompt)];
    let embedded = embed::embed(&app, &model, inputs, None).await;
    let embedded = embedded.map_err(|error| match error.field.as_deref() {
        // The same text has another name here.
        Some("input") => ApiError::field("prompt", "the text is empty"),
        _ => error,
    });
    let embedding = embedded?.0.into_iter().next().unwrap_or_default();
    Ok(json(&OllamaEmbedding { embedding }))
}
