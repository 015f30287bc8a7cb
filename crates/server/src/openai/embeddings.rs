//! `POST /v1/embeddings`: the model's final hidden state at a text's last token, as a unit vector.
//!
//! That is what models trained for embeddings with last-token pooling want. Of a model trained for
//! chats it is a rough likeness of meaning and no more.

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
    error::ApiError,
    service::{Chunk, Finish, Generate, Generation, Input},
};

/// The most texts of a request, as OpenAI has it.
const MAX_INPUTS: usize = 2048;
/// Texts handed to the engine at once.
const AT_ONCE: usize = 32;

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
    fn into_inputs(self) -> Vec<Input> {
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
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        return Err(ApiError::field("input", format!("it must have 1 to {MAX_INPUTS} texts")));
    }
    let empty = |input: &Input| match input {
        Input::Text(text) => text.is_empty(),
        Input::Tokens(tokens) => tokens.is_empty(),
        Input::Chat(_) => false,
    };
    if inputs.iter().any(empty) {
        return Err(ApiError::field("input", "a text is empty"));
    }
    if request.dimensions == Some(0) {
        return Err(ApiError::field("dimensions", "it must be 1 or more"));
    }
    let _place = app.admit()?;
    let (mut data, mut prompt_tokens) = (Vec::with_capacity(inputs.len()), 0);
    let mut inputs = inputs.into_iter();
    loop {
        let some: Vec<Input> = inputs.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        let (id, tenant) = (model.id.clone(), app.tenant());
        let generations = app.call(move |service| {
            let ask = |input| {
                let request = Generate { tenant, ..Generate::hidden(id.clone(), input) };
                service.generate(request)
            };
            some.into_iter().map(ask).collect::<Result<Vec<_>, _>>()
        });
        for generation in generations.await? {
            prompt_tokens += generation.prompt_tokens;
            let mut vector = hidden_state(generation).await?;
            if let Some(dimensions) = request.dimensions {
                if dimensions as usize > vector.len() {
                    let problem = format!("the model has {}", vector.len());
                    return Err(ApiError::field("dimensions", problem));
                }
                vector.truncate(dimensions as usize);
            }
            normalize(&mut vector);
            let embedding = match request.encoding_format.unwrap_or_default() {
                EncodingFormat::Float => Numbers::Floats(vector),
                EncodingFormat::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Numbers::Base64(BASE64_STANDARD.encode(bytes))
                }
            };
            data.push(Embedding { object: "embedding", index: data.len(), embedding });
        }
    }
    let usage = EmbeddingsUsage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(json(&Embeddings { object: "list", data, model: model.id, usage }))
}

/// Waits for the state that a request was for.
async fn hidden_state(mut generation: Generation) -> Result<Vec<f32>, ApiError> {
    let mut state = None;
    while let Some(chunk) = generation.chunks.recv().await {
        match chunk {
            Chunk::Hidden(hidden) => state = Some(hidden),
            Chunk::End { finish: Finish::Failed(message) | Finish::Stuck(message), .. } => {
                return Err(ApiError::failed(message));
            }
            Chunk::Done(_) => {
                return state.ok_or_else(|| ApiError::failed("the backend has no hidden states"));
            }
            Chunk::Token { .. } | Chunk::End { .. } => {}
        }
    }
    Err(ApiError::unavailable("the engine has stopped"))
}

/// Gives a vector the length 1. A vector of zeros keeps its length.
fn normalize(vector: &mut [f32]) {
    // In one order, so that equal texts have equal bits.
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        for x in vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}
