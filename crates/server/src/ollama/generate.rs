//! `POST /api/generate`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::fields::{Cost, OllamaError, Options, check_images, done_reason, format, think};
use crate::{
    app::{self, App},
    error::{ApiError, Protocol},
    openai::fields::refuse,
    reply::{Piece, Reply, whole},
    service::{Chat, Finish, Generate, Input, ModelInfo, Usage},
    stream::{Encoder, push_json, respond},
};

/// A prompt to be answered.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct OllamaGenerateRequest {
    /// The model's name.
    model: String,
    /// The prompt; without one the model is only loaded.
    #[serde(default)]
    prompt: String,
    /// The system's message.
    system: Option<String>,
    /// Whether the prompt is continued as it is, without the chat template.
    raw: Option<bool>,
    /// Not supported.
    suffix: Option<Value>,
    /// Not supported.
    template: Option<Value>,
    /// Not supported: `/api/chat` holds conversations.
    context: Option<Value>,
    /// Not supported.
    #[schema(value_type = Option<Vec<Object>>)]
    images: Option<Vec<Value>>,
    /// What the answer must be: `json`, or a JSON schema.
    format: Option<Value>,
    /// How tokens are chosen, and how many.
    options: Option<Options>,
    /// Whether the answer is streamed as lines of JSON; it is unless this is false.
    stream: Option<bool>,
    /// Sets the template's `enable_thinking`.
    think: Option<Value>,
}

/// An answer, or a line of it.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaGenerate {
    /// The model that answers.
    model: String,
    /// When, as RFC 3339 has it.
    created_at: String,
    /// The text; in streams what is new of it.
    response: String,
    /// Whether this is the last line.
    done: bool,
    /// `stop`, `length` or `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    /// In the last line.
    #[serde(flatten)]
    cost: Cost,
}

/// Answers a prompt.
#[utoipa::path(post, path = "/api/generate", tag = "Ollama", request_body = OllamaGenerateRequest,
    responses(
        (status = 200, description = "The answer, or its lines", content(
            (OllamaGenerate = "application/json"), (OllamaGenerate = "application/x-ndjson"),
        )),
        (status = 400, description = "A field cannot be used", body = OllamaError),
        (status = 404, description = "There is no such model", body = OllamaError),
    )
)]
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: OllamaGenerateRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let streams = request.stream.unwrap_or(true);
    let mut stream = GenerateStream {
        app: app.clone(),
        model: request.model.clone(),
        finish: None,
        started: None,
    };
    if request.prompt.is_empty() {
        return Ok(app::json(&stream.line(String::new(), Some("load"), None)));
    }
    let generate = plan(request, &model, &app)?;
    let reply = Reply::start(&app, generate, None).await?;
    stream.started = Some(std::time::Instant::now() - reply.elapsed());
    if streams {
        let keep_alive = app.config.keep_alive;
        return Ok(respond(reply, stream, keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choice = choices.into_iter().next().unwrap_or_default();
    let reason = done_reason(choice.finish.as_ref().unwrap_or(&Finish::StopToken));
    Ok(app::json(&stream.line(choice.text, Some(reason), Some(&usage))))
}

/// What the engine is asked for.
fn plan(
    request: OllamaGenerateRequest,
    model: &ModelInfo,
    app: &App,
) -> Result<Generate, ApiError> {
    let constraint = format(request.format.as_ref())?;
    check_images(request.images.as_deref(), "images")?;
    refuse(&[
        ("suffix", request.suffix.as_ref(), &[]),
        ("template", request.template.as_ref(), &[]),
        ("context", request.context.as_ref(), &[]),
    ])?;
    let input = if request.raw.unwrap_or(false) || model.template.is_none() {
        if request.system.is_some_and(|system| !system.is_empty()) {
            return Err(ApiError::field("system", "a prompt that is continued as it is has none"));
        }
        Input::Text(request.prompt)
    } else {
        let system = request.system.filter(|system| !system.is_empty());
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": request.prompt});
        Input::Chat(Chat {
            messages: system.into_iter().chain([user]).collect(),
            variables: think(request.think.as_ref())?,
            ..Chat::default()
        })
    };
    let mut generate = Generate::new(model.id.clone(), input);
    generate.constraint = constraint;
    request.options.unwrap_or_default().apply(&mut generate, model, app)?;
    Ok(generate)
}

struct GenerateStream {
    app: Arc<App>,
    /// The model, as the request names it.
    model: String,
    finish: Option<Finish>,
    started: Option<std::time::Instant>,
}

impl GenerateStream {
    fn line(
        &self,
        response: String,
        done_reason: Option<&'static str>,
        usage: Option<&Usage>,
    ) -> OllamaGenerate {
        let total = self.started.map_or(0, |started| started.elapsed().as_nanos() as u64);
        OllamaGenerate {
            model: self.model.clone(),
            created_at: self.app.identity.rfc3339(),
            response,
            done: done_reason.is_some(),
            done_reason,
            cost: Cost::new(usage, total),
        }
    }
}

impl Encoder for GenerateStream {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => return,
            Piece::Text { text, .. } => push_json(out, &self.line(text, None, None)),
            // There are no tools here.
            Piece::Call { .. } => return,
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                return;
            }
            Piece::Done(usage) => {
                let reason = done_reason(self.finish.as_ref().unwrap_or(&Finish::StopToken));
                push_json(out, &self.line(String::new(), Some(reason), Some(&usage)));
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
