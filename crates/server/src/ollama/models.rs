//! `GET /api/tags`, `POST /api/show`, `GET /api/ps` and `GET /api/version`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::OllamaError;
use crate::{
    app::{App, json},
    error::ApiError,
    identity::rfc3339,
    service::ModelInfo,
    tools::ToolFormat,
};

/// What a model is.
#[derive(Debug, Serialize, ToSchema)]
pub struct Details {
    /// Always empty.
    parent_model: &'static str,
    /// How its file is written.
    format: &'static str,
    /// Its architecture.
    family: String,
    /// The same.
    families: Vec<String>,
    /// Its parameters, in millions or billions.
    parameter_size: String,
    /// The commonest type of its weights.
    quantization_level: String,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaModel {
    /// Its name in requests.
    name: String,
    /// The same.
    model: String,
    /// When its file was made, as RFC 3339 has it.
    modified_at: String,
    /// Bytes of its file.
    size: u64,
    /// Hex digits that differ between files.
    digest: String,
    /// What it is.
    details: Details,
}

/// The models that are served.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tags {
    /// The default one first.
    models: Vec<OllamaModel>,
}

/// A model that is loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunningModel {
    /// Its name in requests.
    name: String,
    /// The same.
    model: String,
    /// Bytes of its file.
    size: u64,
    /// Hex digits that differ between files.
    digest: String,
    /// What it is.
    details: Details,
    /// When it will be unloaded: never, as far as this server knows.
    expires_at: String,
    /// Bytes on accelerators.
    size_vram: u64,
    /// The most tokens of a sequence.
    context_length: usize,
}

/// The models that are loaded.
#[derive(Debug, Serialize, ToSchema)]
pub struct Running {
    /// The default one first.
    models: Vec<RunningModel>,
}

/// Which model is to be shown.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ShowRequest {
    /// The model's name.
    #[serde(alias = "name")]
    model: String,
}

/// A model, shown.
#[derive(Debug, Serialize, ToSchema)]
pub struct Shown {
    /// Its chat template.
    template: String,
    /// What it is.
    details: Details,
    /// Its sizes, by the keys of GGUF.
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// `completion` and, where its template knows them, `tools`.
    capabilities: Vec<&'static str>,
    /// When its file was made, as RFC 3339 has it.
    modified_at: String,
}

/// The server's version.
#[derive(Debug, Serialize, ToSchema)]
pub struct Version {
    /// As in `dunlin --version`.
    version: &'static str,
}

fn details(model: &ModelInfo) -> Details {
    let millions = model.parameters as f64 / 1e6;
    Details {
        parent_model: "",
        format: "gguf",
        family: model.architecture.clone(),
        families: vec![model.architecture.clone()],
        parameter_size: if millions >= 1000.0 {
            format!("{:.1}B", millions / 1000.0)
        } else {
            format!("{millions:.2}M")
        },
        quantization_level: model.quantization.clone(),
    }
}

fn made_at(model: &ModelInfo) -> String {
    rfc3339(i128::from(model.created) * 1_000_000_000)
}

/// The models that are served.
#[utoipa::path(get, path = "/api/tags", tag = "Ollama", responses(
    (status = 200, description = "The models", body = Tags),
))]
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let model = |model: ModelInfo| OllamaModel {
        modified_at: made_at(&model),
        size: model.size_bytes,
        digest: model.digest.clone(),
        details: details(&model),
        name: model.id.clone(),
        model: model.id,
    };
    json(&Tags { models: app.service.models().into_iter().map(model).collect() })
}

/// The models that are loaded.
#[utoipa::path(get, path = "/api/ps", tag = "Ollama", responses(
    (status = 200, description = "The models", body = Running),
))]
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    let model = |model: ModelInfo| RunningModel {
        size: model.size_bytes,
        digest: model.digest.clone(),
        details: details(&model),
        // As far ahead as all readers of dates can go.
        expires_at: "2318-01-01T00:00:00Z".into(),
        size_vram: 0,
        context_length: model.context,
        name: model.id.clone(),
        model: model.id,
    };
    json(&Running { models: app.service.models().into_iter().map(model).collect() })
}

/// One of the models.
#[utoipa::path(post, path = "/api/show", tag = "Ollama", request_body = ShowRequest, responses(
    (status = 200, description = "The model", body = Shown),
    (status = 404, description = "There is none of this name", body = OllamaError),
))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: ShowRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let mut capabilities = vec!["completion"];
    if model.template.as_deref().and_then(ToolFormat::of_template).is_some() {
        capabilities.push("tools");
    }
    let architecture = &model.architecture;
    let model_info = Map::from_iter([
        ("general.architecture".to_string(), architecture.clone().into()),
        ("general.parameter_count".to_string(), model.parameters.into()),
        (format!("{architecture}.context_length"), model.context.into()),
        (format!("{architecture}.vocab_size"), model.vocab_size.into()),
    ]);
    Ok(json(&Shown {
        details: details(&model),
        modified_at: made_at(&model),
        template: model.template.unwrap_or_default(),
        model_info,
        capabilities,
    }))
}

/// The server's version.
#[utoipa::path(get, path = "/api/version", tag = "Ollama", responses(
    (status = 200, description = "The version", body = Version),
))]
pub(crate) async fn version() -> Response {
    json(&Version { version: env!("CARGO_PKG_VERSION") })
}
