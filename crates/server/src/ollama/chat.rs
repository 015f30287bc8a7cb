//! `POST /api/chat`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::fields::{Cost, OllamaError, Options, check_images, done_reason, format, think};
use crate::{
    app::{self, App},
    error::{ApiError, Protocol},
    openai::{chat::tool_format, messages::tool_names},
    reply::{Piece, Reply, Tools, whole},
    service::{Chat, ChatEnding, Finish, Generate, Input, ModelInfo, Usage},
    stream::{Encoder, push_json, respond},
    tools::{ToolCall, ToolChoice},
};

/// A conversation to be answered.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaChatRequest {
    /// The model's name.
    model: String,
    /// The conversation; without one the model is only loaded.
    #[serde(default)]
    messages: Vec<OllamaMessage>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    /// What the answer must be: `json`, or a JSON schema.
    format: Option<Value>,
    /// How tokens are chosen, and how many.
    options: Option<Options>,
    /// Whether the answer is streamed as lines of JSON; it is unless this is false.
    stream: Option<bool>,
    /// Sets the template's `enable_thinking`.
    think: Option<Value>,
}

/// A message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaMessage {
    /// `system`, `user`, `assistant` or `tool`.
    role: String,
    /// Its text.
    #[serde(default)]
    content: String,
    /// Not supported.
    #[schema(value_type = Option<Vec<Object>>)]
    images: Option<Vec<Value>>,
    /// Calls that the assistant made.
    tool_calls: Option<Vec<OllamaCall>>,
    /// The tool whose result this is.
    tool_name: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OllamaCall {
    /// What is called.
    function: OllamaFunction,
}

/// A function and its arguments.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OllamaFunction {
    /// Its name.
    name: String,
    /// The arguments.
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
}

/// An answer, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaChat {
    /// The model that answers.
    model: String,
    /// When, as RFC 3339 has it.
    created_at: String,
    /// What the assistant says; in streams what is new of it.
    message: OllamaAnswer,
    /// `stop`, `length` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    /// Whether this is the last line.
    done: bool,
    /// In the last line.
    #[serde(flatten)]
    cost: Cost,
}

/// What the assistant says.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaAnswer {
    /// Always `assistant`.
    role: &'static str,
    /// Its text.
    content: String,
    /// Its calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OllamaCall>,
}

/// Answers a conversation.
#[utoipa::path(post, path = "/api/chat", tag = "Ollama", request_body = OllamaChatRequest,
    responses(
        (status = 200, description = "The answer, or its lines", content(
            (OllamaChat = "application/json"), (OllamaChat = "application/x-ndjson"),
        )),
        (status = 400, description = "A field cannot be used", body = OllamaError),
        (status = 404, description = "There is no such model", body = OllamaError),
    )
)]
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: OllamaChatRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let streams = request.stream.unwrap_or(true);
    let mut stream =
        ChatStream { app: app.clone(), model: request.model.clone(), finish: None, started: None };
    if request.messages.is_empty() {
        return Ok(app::json(&stream.line(String::new(), Vec::new(), Some("load"), None)));
    }
    let (generate, tools) = plan(request, &model, &app)?;
    let reply = Reply::start(&app, generate, tools).await?;
    stream.started = Some(std::time::Instant::now() - reply.elapsed());
    if streams {
        let keep_alive = app.config.keep_alive;
        return Ok(respond(reply, stream, keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choice = choices.into_iter().next().unwrap_or_default();
    let calls = choice.calls.into_iter().map(|(_, call)| call_body(call)).collect();
    let reason = done_reason(choice.finish.as_ref().unwrap_or(&Finish::StopToken));
    Ok(app::json(&stream.line(choice.text, calls, Some(reason), Some(&usage))))
}

/// What the engine is asked for.
fn plan(
    request: OllamaChatRequest,
    model: &ModelInfo,
    app: &App,
) -> Result<(Generate, Option<Tools>), ApiError> {
    let constraint = format(request.format.as_ref())?;
    let described = request.tools.unwrap_or_default();
    let names = tool_names(&described)?;
    let tools = match names.is_empty() {
        true => None,
        false => {
            let (choice, form) = (ToolChoice::May { several: true }, constraint.clone());
            let format = tool_format(model, "tools")?;
            Some(Tools::new(format, names, choice, &described, form))
        }
    };
    let messages = request.messages.into_iter().enumerate();
    let messages: Vec<Value> = messages.map(|(i, m)| message(i, m)).collect::<Result<_, _>>()?;
    let last = messages.last().unwrap_or(&Value::Null);
    let continues = last["role"] == "assistant" && last.get("tool_calls").is_none();
    let chat = Chat {
        messages,
        tools: described,
        variables: think(request.think.as_ref())?,
        ending: if continues { ChatEnding::Continue } else { ChatEnding::Generation },
    };
    let mut generate = Generate::new(model.id.clone(), Input::Chat(chat));
    generate.constraint = tools.as_ref().map_or(constraint, |tools| tools.constraint.clone());
    request.options.unwrap_or_default().apply(&mut generate, model, app)?;
    Ok((generate, tools))
}

/// A message as templates take it.
fn message(index: usize, message: OllamaMessage) -> Result<Value, ApiError> {
    let path = format!("messages[{index}]");
    check_images(message.images.as_deref(), &format!("{path}.images"))?;
    if !["system", "user", "assistant", "tool"].contains(&message.role.as_str()) {
        let problem = "it must be system, user, assistant or tool";
        return Err(ApiError::field(format!("{path}.role"), problem));
    }
    let mut out = Map::new();
    out.insert("role".into(), message.role.into());
    out.insert("content".into(), message.content.into());
    if let Some(calls) = message.tool_calls.filter(|calls| !calls.is_empty()) {
        let calls =
            calls.into_iter().map(|call| json!({"type": "function", "function": call.function}));
        out.insert("tool_calls".into(), calls.collect());
    }
    if let Some(name) = message.tool_name {
        out.insert("name".into(), name.into());
    }
    Ok(out.into())
}

fn call_body(call: ToolCall) -> OllamaCall {
    // The parser passes JSON objects alone.
    let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
    OllamaCall { function: OllamaFunction { name: call.name, arguments } }
}

struct ChatStream {
    app: Arc<App>,
    /// The model, as the request names it.
    model: String,
    finish: Option<Finish>,
    started: Option<std::time::Instant>,
}

impl ChatStream {
    fn line(
        &self,
        content: String,
        tool_calls: Vec<OllamaCall>,
        done_reason: Option<&'static str>,
        usage: Option<&Usage>,
    ) -> OllamaChat {
        let total = self.started.map_or(0, |started| started.elapsed().as_nanos() as u64);
        OllamaChat {
            model: self.model.clone(),
            created_at: self.app.identity.rfc3339(),
            message: OllamaAnswer { role: "assistant", content, tool_calls },
            done: done_reason.is_some(),
            done_reason,
            cost: Cost::new(usage, total),
        }
    }
}

impl Encoder for ChatStream {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => return,
            Piece::Text { text, .. } => push_json(out, &self.line(text, Vec::new(), None, None)),
            Piece::Call { call, .. } => {
                push_json(out, &self.line(String::new(), vec![call_body(call)], None, None));
            }
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                return;
            }
            Piece::Done(usage) => {
                let reason = done_reason(self.finish.as_ref().unwrap_or(&Finish::StopToken));
                push_json(out, &self.line(String::new(), Vec::new(), Some(reason), Some(&usage)));
            }
            Piece::Failed(error) => push_json(out, &error.body(Protocol::Ollama)),
        }
        out.push(b'\n');
    }

    /// Readers of lines skip empty ones.
    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.push(b'\n');
    }
}
