//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use utoipa::ToSchema;

use super::types::ErrorBody;
use crate::{
    app::{App, json},
    embed,
    error::ApiError,
    service::Input,
};

/// What is to be embedded: a text or the ids of its tokens, or several of either.
#[derive(Debug, Clone, PartialEq, ToSchema)]
#[serde(untagged)]
pub enum EmbeddingInput {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// The ids of a text's tokens.
    Tokens(Vec<u32>),
    /// Those of several.
    TokenLists(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for EmbeddingInput {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let parsed = match &value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Array(items) => match items.first() {
                Some(Value::String(_)) => Vec::deserialize(&value).ok().map(Self::Texts),
                Some(Value::Number(_)) => Vec::deserialize(&value).ok().map(Self::Tokens),
                Some(Value::Array(_)) => Vec::deserialize(&value).ok().map(Self::TokenLists),
                _ => None,
            },
            _ => None,
        };
        let wanted = "a string, an array of strings, or token ids as an array or arrays";
        parsed.ok_or_else(|| de::Error::custom(format!("invalid type, expected {wanted}")))
    }
}

impl EmbeddingInput {
    /// One input for each text.
    pub fn into_inputs(self) -> Vec<Input> {
        match self {
            Self::Text(text) => vec![Input::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
            Self::Tokens(tokens) => vec![Input::Tokens(tokens)],
            Self::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
        }
    }
}

/// How numbers are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// As JSON.
    #[default]
    Float,
    /// As the base64 of 32-bit floats, little-endian.
    Base64,
}

/// Texts to be embedded.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingsRequest {
    /// The texts.
    input: EmbeddingInput,
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
    /// How the numbers are written.
    encoding_format: Option<EncodingFormat>,
    /// So many first numbers, as a unit vector again.
    dimensions: Option<u32>,
    /// The caller's name for its user; has no effect.
    #[serde(rename = "user")]
    _user: Option<Value>,
}

/// Texts, embedded.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embeddings {
    /// Always `list`.
    object: &'static str,
    /// One for each text, in their order.
    data: Vec<Embedding>,
    /// The model.
    model: String,
    /// Tokens that were used.
    usage: EmbeddingsUsage,
}

/// A text, embedded.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    object: &'static str,
    /// Its place among the texts.
    index: usize,
    /// The vector, of length 1.
    embedding: Numbers,
}

/// A vector.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Numbers {
    /// As JSON.
    Floats(Vec<f32>),
    /// As the base64 of 32-bit floats, little-endian.
    Base64(String),
}

/// Tokens that were used.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsUsage {
    /// Those of the texts.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingsRequest,
    responses(
        (status = 200, description = "The vectors", body = Embeddings),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is no such model", body = ErrorBody),
        (status = 429, description = "Too much is going on", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: EmbeddingsRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let inputs = request.input.into_inputs();
    let (vectors, prompt_tokens) = embed::embed(&app, &model, inputs, request.dimensions).await?;
    let numbers = |vector: Vec<f32>| match request.encoding_format.unwrap_or_default() {
        EncodingFormat::Float => Numbers::Floats(vector),
        EncodingFormat::Base64 => {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    let data = vectors.into_iter().enumerate();
    let data = data.map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: numbers(vector),
    });
    let usage = EmbeddingsUsage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(json(&Embeddings { object: "list", data: data.collect(), model: model.id, usage }))
}
