//! `GET /v1/models`.

use std::sync::Arc;

use axum::{
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    app::{App, json},
    error::ApiError,
    openai::types::ErrorBody,
    service::ModelInfo,
};

/// A model that is served.
#[derive(Debug, Serialize, ToSchema)]
pub struct Model {
    /// Its name in requests.
    id: String,
    /// Always `model`.
    object: &'static str,
    /// Seconds since 1970 at which its file was made.
    created: u64,
    /// Always `dunlin`.
    owned_by: &'static str,
    /// The most tokens of a sequence.
    max_model_len: usize,
}

/// The models that are served.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    object: &'static str,
    /// The default one first.
    data: Vec<Model>,
}

impl From<ModelInfo> for Model {
    fn from(model: ModelInfo) -> Self {
        Self {
            id: model.id,
            object: "model",
            created: model.created,
            owned_by: "dunlin",
            max_model_len: model.context,
        }
    }
}

/// The models that are served.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses(
    (status = 200, description = "The models", body = ModelList),
))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data = app.service.models().into_iter().map(Into::into).collect();
    json(&ModelList { object: "list", data })
}

/// One of the models.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI",
    params(("id" = String, Path, description = "The model's id")),
    responses(
        (status = 200, description = "The model", body = Model),
        (status = 404, description = "There is none of this id", body = ErrorBody),
    )
)]
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::field("id", "it is not UTF-8"))?;
    Ok(json(&Model::from(app.model(Some(&id))?)))
}
