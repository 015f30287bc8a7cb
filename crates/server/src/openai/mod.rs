//! OpenAI's protocol, with the fields that other servers made common.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod types;

use axum::{http::StatusCode, response::IntoResponse};

use crate::error::ApiError;

/// Embeddings need the model's inner states, which the engine does not give out yet.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", responses(
    (status = 501, description = "Not implemented", body = types::ErrorBody),
))]
pub(crate) async fn embeddings() -> impl IntoResponse {
    ApiError::new(
        StatusCode::NOT_IMPLEMENTED,
        "not_implemented",
        "embeddings are not implemented by this server",
    )
}
