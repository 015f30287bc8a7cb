//! `POST /v1/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    fields::{refuse, request},
    types::{ErrorBody, UsageBody, finish_reason, finite, token_text, wants_usage},
};
use crate::{
    app::{App, json},
    error::{ApiError, Protocol},
    reply::{Piece, Reply, WholeChoice, whole},
    service::{Generate, InSession, Input, ModelInfo, TokenLogprobs},
    sessions::KeepOf,
    stream::{Encoder, push_data, respond},
};

/// The most tokens of a choice where the request does not say, as OpenAI has it.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// The most alternatives of a token, as OpenAI has it.
const TOP_LOGPROBS: u32 = 5;

/// A prompt: text, or token ids.
#[derive(Debug, Clone, PartialEq, Eq, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Prompt;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string, an array with one string, or an array of token ids")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_string()))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
                let bad = || de::Error::invalid_type(de::Unexpected::Seq, &self);
                let (mut texts, mut tokens) = (Vec::new(), Vec::new());
                while let Some(item) = list.next_element::<Value>()? {
                    match item {
                        Value::String(text) => texts.push(text),
                        item => {
                            let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                            tokens.push(id.ok_or_else(bad)?);
                        }
                    }
                }
                match (texts.pop(), tokens.is_empty()) {
                    (None, _) => Ok(Prompt::Tokens(tokens)),
                    (Some(text), true) if texts.is_empty() => Ok(Prompt::Text(text)),
                    _ => Err(bad()),
                }
            }
        }
        from.deserialize_any(Visitor)
    }
}

request! {
    /// A text to be continued.
    pub struct CompletionRequest {
        /// The text, or its token ids. One prompt a request.
        prompt: Option<Prompt>,
        /// Log-probabilities, with this many best alternatives of each token, up to 5.
        logprobs: Option<u32>,
        /// Whether the answer repeats the prompt in front.
        echo: Option<bool>,
        /// 1, or as `n`.
        best_of: Option<u32>,
        /// Not supported.
        suffix: Option<Value>,
        /// In queries of sessions: what the session keeps, `all`, `prompt` or `none`.
        keep: Option<KeepOf>,
    }
}

/// A text, continued.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Its name.
    id: String,
    /// Always `text_completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model that answered.
    model: String,
    /// The samples; in streams what is new of them.
    choices: Vec<CompletionChoice>,
    /// Tokens that were used. In streams null up to the last chunk, and only there where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

/// One sample.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Its number.
    index: u32,
    /// Its text.
    text: String,
    /// Where asked for.
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; in streams null up to the last chunk.
    finish_reason: Option<&'static str>,
}

/// Log-probabilities of a sample's tokens.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The tokens' texts, invalid UTF-8 replaced.
    tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    token_logprobs: Vec<f32>,
    /// The best tokens at each place.
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Map<String, Value>>,
    /// Where each token's text begins, in characters of the choice's text.
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    fn push(&mut self, token: &TokenLogprobs, offset: usize) {
        self.tokens.push(token_text(&token.chosen));
        self.token_logprobs.push(finite(token.chosen.logprob));
        let top = token.top.iter().map(|t| (token_text(t), finite(t.logprob).into()));
        self.top_logprobs.push(top.collect());
        self.text_offset.push(offset);
    }
}

/// Continues a text.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionRequest,
    responses(
        (status = 200, description = "The text, or its stream", content(
            (Completion = "application/json"), (Completion = "text/event-stream"),
        )),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is no such model", body = ErrorBody),
        (status = 429, description = "Too much is going on", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: CompletionRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    answer(&app, model, request, None).await
}

/// Answers a request, in a session where one is named.
///
/// # Errors
/// Requests that are not taken, and answers that fail before they are begun.
pub(crate) async fn answer(
    app: &Arc<App>,
    model: ModelInfo,
    request: CompletionRequest,
    session: Option<String>,
) -> Result<Response, ApiError> {
    let streams = request.stream.unwrap_or(false);
    let wants_usage = wants_usage(request.stream_options, streams)?;
    let logprobs = request.logprobs.is_some();
    let echo = request.echo.unwrap_or(false);
    let generate = plan(request, &model, app, session)?;
    let echoed = match &generate.input {
        _ if !echo => String::new(),
        Input::Text(text) => text.clone(),
        Input::Tokens(tokens) => {
            let (id, tokens) = (model.id.clone(), tokens.clone());
            app.call(move |service| service.decode(&id, &tokens)).await?
        }
        Input::Chat(_) => String::new(),
    };
    let reply = Reply::start(app, generate, None).await?;
    let stream = CompletionStream::new(app, model, reply.choices(), echoed, wants_usage);
    write(app, reply, stream, streams, logprobs).await
}

/// Writes an answer that has been asked for.
///
/// # Errors
/// Answers that fail before they are begun.
pub(crate) async fn respond_with(
    app: &App,
    model: ModelInfo,
    reply: Reply,
    streams: bool,
) -> Result<Response, ApiError> {
    let stream = CompletionStream::new(app, model, reply.choices(), String::new(), false);
    write(app, reply, stream, streams, false).await
}

async fn write(
    app: &App,
    reply: Reply,
    mut stream: CompletionStream,
    streams: bool,
    logprobs: bool,
) -> Result<Response, ApiError> {
    if streams {
        return Ok(respond(reply, stream, app.config.keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choices = (0..).zip(choices).map(|(i, c)| whole_choice(i, c, &stream.echoed, logprobs));
    stream.usage = true;
    Ok(json(&stream.body(choices.collect(), Some((&usage).into()))))
}

/// What the engine is asked for, in a session where one is named.
///
/// # Errors
/// The first field that cannot be used.
pub(crate) fn plan(
    mut request: CompletionRequest,
    model: &ModelInfo,
    app: &App,
    session: Option<String>,
) -> Result<Generate, ApiError> {
    if request.keep.is_some() && session.is_none() {
        return Err(ApiError::field("keep", "it is for queries of sessions"));
    }
    request.refuse_shared()?;
    refuse(&[("suffix", request.suffix.as_ref(), &[])])?;
    let constraint = request.constraint()?;
    if request.best_of.is_some_and(|best_of| best_of != request.n.unwrap_or(1)) {
        return Err(ApiError::unsupported("best_of", "it can only be the same as n"));
    }
    if request.logprobs.is_some_and(|top| top > TOP_LOGPROBS) {
        return Err(ApiError::field("logprobs", format!("it must be from 0 to {TOP_LOGPROBS}")));
    }
    if request.echo == Some(true) && request.logprobs.is_some() {
        let problem = "it cannot be combined with logprobs: those of a prompt are not computed";
        return Err(ApiError::unsupported("echo", problem));
    }
    let input = match request.prompt.take() {
        None => return Err(ApiError::field("prompt", "it is missing")),
        Some(Prompt::Text(text)) => Input::Text(text),
        Some(Prompt::Tokens(tokens)) => {
            if let Some(id) = tokens.iter().find(|&&id| id as usize >= model.vocab_size) {
                let problem =
                    format!("token {id} is outside the vocabulary of {}", model.vocab_size);
                return Err(ApiError::field("prompt", problem));
            }
            Input::Tokens(tokens)
        }
    };
    let mut generate = Generate::new(model.id.clone(), input);
    generate.logprobs = request.logprobs.map(|top| top as usize);
    generate.constraint = constraint;
    let keep = request.keep.unwrap_or_default().into();
    generate.session = session.map(|id| InSession { id, keep });
    request.max_tokens = request.max_tokens.or(Some(DEFAULT_MAX_TOKENS));
    request.shared().apply(&mut generate, &app.identity, model.vocab_size)?;
    Ok(generate)
}

fn whole_choice(index: u32, choice: WholeChoice, echoed: &str, logprobs: bool) -> CompletionChoice {
    let logprobs = logprobs.then(|| {
        let mut all = CompletionLogprobs::default();
        for (token, &offset) in choice.logprobs.iter().zip(&choice.offsets) {
            all.push(token, offset);
        }
        all
    });
    CompletionChoice {
        index,
        text: format!("{echoed}{}", choice.text),
        logprobs,
        finish_reason: choice.finish.as_ref().map(|finish| finish_reason(finish, 0)),
    }
}

struct CompletionStream {
    id: String,
    created: u64,
    model: String,
    /// Whether the usage is wanted.
    usage: bool,
    /// Characters so far, of each choice.
    offsets: Vec<usize>,
    /// The prompt, where it is repeated.
    echoed: String,
}

impl CompletionStream {
    fn new(app: &App, model: ModelInfo, choices: u32, echoed: String, usage: bool) -> Self {
        Self {
            id: app.identity.id("cmpl-"),
            created: app.identity.unix_seconds(),
            model: model.id,
            usage,
            offsets: vec![echoed.chars().count(); choices as usize],
            echoed,
        }
    }

    fn body(&self, choices: Vec<CompletionChoice>, usage: Option<UsageBody>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            choices,
            usage: self.usage.then_some(usage),
        }
    }
}

impl Encoder for CompletionStream {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, out: &mut Vec<u8>) {
        let echoed = std::mem::take(&mut self.echoed);
        if echoed.is_empty() {
            return;
        }
        for index in 0..self.offsets.len() as u32 {
            let text = echoed.clone();
            let choice = CompletionChoice { index, text, logprobs: None, finish_reason: None };
            push_data(out, &self.body(vec![choice], None));
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { choice: index, text, logprobs } => {
                let offset = &mut self.offsets[index as usize];
                let logprobs = logprobs.map(|token| {
                    let mut one = CompletionLogprobs::default();
                    one.push(&token, *offset);
                    one
                });
                *offset += text.chars().count();
                let choice = CompletionChoice { index, text, logprobs, finish_reason: None };
                push_data(out, &self.body(vec![choice], None));
            }
            // There are no tools here.
            Piece::Call { .. } => {}
            Piece::End { choice: index, finish, .. } => {
                let finish_reason = Some(finish_reason(&finish, 0));
                let (text, logprobs) = (String::new(), None);
                let choice = CompletionChoice { index, text, logprobs, finish_reason };
                push_data(out, &self.body(vec![choice], None));
            }
            Piece::Done(usage) => {
                if self.usage {
                    push_data(out, &self.body(Vec::new(), Some((&usage).into())));
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Piece::Failed(error) => {
                push_data(out, &error.body(Protocol::OpenAi));
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
        }
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": keep-alive\n\n");
    }
}
