//! `/tokenize`, `/detokenize` and `/apply-template`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{
    app::{App, json},
    error::ApiError,
    openai::{
        chat::tool_format,
        messages::{messages, tool_names},
        types::ErrorBody,
    },
    service::{Chat, ChatEnding, Input, ModelInfo},
};

/// A text or a conversation whose tokens are wanted; one of `content`, `prompt` and `messages`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
    /// A text.
    content: Option<String>,
    /// The same, under another name.
    prompt: Option<String>,
    /// A conversation.
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Value>>,
    /// For conversations: functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// For conversations: whether they end with the start of the assistant's turn; they do unless
    /// this is false.
    add_generation_prompt: Option<bool>,
    /// For conversations: further variables of the chat template.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// The tokens of a text.
#[derive(Debug, Serialize, ToSchema)]
pub struct Tokenized {
    /// Their ids, BOS in front where the model adds it.
    tokens: Vec<u32>,
    /// How many there are.
    count: usize,
    /// The most tokens of a sequence.
    max_model_len: usize,
}

/// Tokens whose text is wanted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
    /// The tokens' ids.
    tokens: Vec<u32>,
}

/// The text of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub struct Detokenized {
    /// The text, invalid UTF-8 replaced.
    content: String,
    /// The same, under another name.
    prompt: String,
}

/// A conversation to be rendered.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateRequest {
    /// The model's id; the default model's where it is missing.
    model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// Whether the prompt ends with the start of the assistant's turn; it does unless this is false.
    add_generation_prompt: Option<bool>,
    /// Further variables of the chat template.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// A conversation as the model sees it.
#[derive(Debug, Serialize, ToSchema)]
pub struct Templated {
    /// The text.
    prompt: String,
}

fn chat(
    given: &[Value],
    tools: Option<Vec<Value>>,
    generation: Option<bool>,
    variables: Option<Map<String, Value>>,
    model: &ModelInfo,
) -> Result<Chat, ApiError> {
    let tools = tools.unwrap_or_default();
    if !tool_names(&tools)?.is_empty() {
        tool_format(model, "tools")?;
    }
    let ending = match generation {
        Some(false) => ChatEnding::Closed,
        _ => ChatEnding::Generation,
    };
    let variables = variables.unwrap_or_default();
    Ok(Chat { messages: messages(given)?, tools, variables, ending })
}

/// The tokens of a text or of a conversation.
#[utoipa::path(post, path = "/tokenize", tag = "Text", request_body = TokenizeRequest, responses(
    (status = 200, description = "The tokens", body = Tokenized),
    (status = 400, description = "A field cannot be used", body = ErrorBody),
))]
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: TokenizeRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let input = match (request.content, request.prompt, request.messages) {
        (Some(text), None, None) | (None, Some(text), None) => Input::Text(text),
        (None, None, Some(messages)) => Input::Chat(chat(
            &messages,
            request.tools,
            request.add_generation_prompt,
            request.chat_template_kwargs,
            &model,
        )?),
        _ => {
            let problem = "exactly one of content, prompt and messages is needed";
            return Err(ApiError::field("content", problem));
        }
    };
    let tokens = app.call(move |service| service.encode(&model.id, &input)).await?;
    Ok(json(&Tokenized { count: tokens.len(), tokens, max_model_len: model.context }))
}

/// The text of tokens.
#[utoipa::path(post, path = "/detokenize", tag = "Text", request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text", body = Detokenized),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
    )
)]
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: DetokenizeRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    if let Some(id) = request.tokens.iter().find(|&&id| id as usize >= model.vocab_size) {
        let problem = format!("token {id} is outside the vocabulary of {}", model.vocab_size);
        return Err(ApiError::field("tokens", problem));
    }
    let content = app.call(move |service| service.decode(&model.id, &request.tokens)).await?;
    Ok(json(&Detokenized { prompt: content.clone(), content }))
}

/// A conversation as the model sees it.
#[utoipa::path(post, path = "/apply-template", tag = "Text", request_body = TemplateRequest,
    responses(
        (status = 200, description = "The text", body = Templated),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
    )
)]
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: TemplateRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let chat = chat(
        &request.messages,
        request.tools,
        request.add_generation_prompt,
        request.chat_template_kwargs,
        &model,
    )?;
    let prompt = app.call(move |service| service.render(&model.id, &chat)).await?;
    Ok(json(&Templated { prompt }))
}
