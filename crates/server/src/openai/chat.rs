//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    fields::{TOP_LOGPROBS, refuse, request},
    messages::{messages, tool_names},
    types::{ChatLogprob, ChatLogprobs, ErrorBody, UsageBody, finish_reason, wants_usage},
};
use crate::{
    app::{App, json},
    constraint::Constraint,
    error::{ApiError, Protocol},
    reply::{Piece, Reply, Tools, WholeChoice, whole},
    service::{Chat, ChatEnding, Generate, Input, ModelInfo},
    stream::{Encoder, push_data, respond},
    tools::{Forced, ToolCall, ToolChoice, ToolFormat},
};

request! {
    /// A conversation to be answered.
    pub struct ChatRequest {
        /// The conversation.
        #[schema(value_type = Vec<Object>)]
        messages: Vec<Value>,
        /// The same as `max_tokens`, under its newer name.
        max_completion_tokens: Option<u32>,
        /// Whether log-probabilities are wanted.
        logprobs: Option<bool>,
        /// Best alternatives of each token, up to 20.
        top_logprobs: Option<u32>,
        /// Functions that the model may call.
        #[schema(value_type = Option<Vec<Object>>)]
        tools: Option<Vec<Value>>,
        /// `auto`, `none`, `required`, or the function that must be called.
        tool_choice: Option<Value>,
        /// Whether an answer that must call may do so several times; it may unless this is false or
        /// the function is named.
        parallel_tool_calls: Option<bool>,
        /// Further variables of the chat template.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Whether the prompt ends with the start of the assistant's turn; it does unless this is
        /// false.
        add_generation_prompt: Option<bool>,
        /// Whether the answer continues the last message.
        continue_final_message: Option<bool>,
        /// `text` alone.
        modalities: Option<Value>,
        /// Not supported.
        audio: Option<Value>,
        /// Not supported; `tools` replaced it.
        functions: Option<Value>,
        /// Not supported; `tool_choice` replaced it.
        function_call: Option<Value>,
        /// Not supported.
        web_search_options: Option<Value>,
        /// Has no effect: what a model thinks is not told apart.
        #[serde(rename = "separate_reasoning")]
        _separate_reasoning: Option<Value>,
        /// Has no effect.
        #[serde(rename = "stream_reasoning")]
        _stream_reasoning: Option<Value>,
        /// Has no effect.
        #[serde(rename = "metadata")]
        _metadata: Option<Value>,
        /// Has no effect: nothing is stored.
        #[serde(rename = "store")]
        _store: Option<Value>,
        /// Has no effect.
        #[serde(rename = "service_tier")]
        _service_tier: Option<Value>,
        /// Has no effect.
        #[serde(rename = "prediction")]
        _prediction: Option<Value>,
        /// Has no effect.
        #[serde(rename = "reasoning_effort")]
        _reasoning_effort: Option<Value>,
        /// Has no effect.
        #[serde(rename = "verbosity")]
        _verbosity: Option<Value>,
        /// Has no effect.
        #[serde(rename = "prompt_cache_key")]
        _prompt_cache_key: Option<Value>,
        /// Has no effect.
        #[serde(rename = "prompt_cache_retention")]
        _prompt_cache_retention: Option<Value>,
        /// Has no effect.
        #[serde(rename = "safety_identifier")]
        _safety_identifier: Option<Value>,
    }
}

/// An answer to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Its name.
    id: String,
    /// Always `chat.completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model that answered.
    model: String,
    /// The samples.
    choices: Vec<ChatChoice>,
    /// Tokens that were used.
    usage: UsageBody,
}

/// One sample.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its number.
    index: usize,
    /// What the assistant says.
    message: ChatMessage,
    /// Where asked for.
    logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: &'static str,
}

/// What the assistant says.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatMessage {
    /// Always `assistant`.
    role: &'static str,
    /// Its text; none where it only calls tools.
    content: Option<String>,
    /// Always null.
    refusal: Option<String>,
    /// Its calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallBody>,
}

/// A call of a tool.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolCallBody {
    /// In streams: its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// Its name.
    id: String,
    /// Always `function`.
    r#type: &'static str,
    /// What is called.
    function: FunctionBody,
}

/// A function and its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunctionBody {
    /// Its name.
    name: String,
    /// The text of a JSON object.
    arguments: String,
}

/// A part of a streamed answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunk {
    /// The answer's name.
    id: String,
    /// Always `chat.completion.chunk`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The model that answers.
    model: String,
    /// What is new; empty in the chunk of the usage.
    choices: Vec<ChunkChoice>,
    /// Null up to the last chunk; only there where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
}

/// What is new of a sample.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkChoice {
    /// Its number.
    index: u32,
    /// What comes to its message.
    delta: Delta,
    /// Where asked for.
    logprobs: Option<ChatLogprobs>,
    /// In a sample's last chunk.
    finish_reason: Option<&'static str>,
}

/// What comes to a message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// More text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// A call, whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallBody>,
}

impl ToolCallBody {
    fn new(index: Option<usize>, id: String, call: ToolCall) -> Self {
        let function = FunctionBody { name: call.name, arguments: call.arguments };
        Self { index, id, r#type: "function", function }
    }
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest,
    responses(
        (status = 200, description = "The answer, or its stream", content(
            (ChatCompletion = "application/json"), (ChatChunk = "text/event-stream"),
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
    let request: ChatRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let streams = request.stream.unwrap_or(false);
    let usage = wants_usage(request.stream_options, streams)?;
    let logprobs = request.logprobs.unwrap_or(false);
    let (generate, tools) = plan(request, &model, &app)?;
    let choices = generate.choices;
    let reply = Reply::start(&app, generate, tools).await?;
    let head = Head {
        id: app.identity.id("chatcmpl-"),
        created: app.identity.unix_seconds(),
        model: model.id,
    };
    if streams {
        let keep_alive = app.config.keep_alive;
        return Ok(respond(reply, ChatStream { head, choices, usage }, keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choices = choices.into_iter().enumerate();
    Ok(json(&ChatCompletion {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        choices: choices.map(|(i, choice)| whole_choice(i, choice, logprobs)).collect(),
        usage: (&usage).into(),
    }))
}

/// What the engine is asked for.
fn plan(
    mut request: ChatRequest,
    model: &ModelInfo,
    app: &App,
) -> Result<(Generate, Option<Tools>), ApiError> {
    request.refuse_shared()?;
    refuse(&[
        ("modalities", request.modalities.as_ref(), &[r#"["text"]"#]),
        ("audio", request.audio.as_ref(), &[]),
        ("functions", request.functions.as_ref(), &[]),
        ("function_call", request.function_call.as_ref(), &[]),
        ("web_search_options", request.web_search_options.as_ref(), &[]),
    ])?;
    match (request.max_tokens, request.max_completion_tokens) {
        (Some(a), Some(b)) if a != b => {
            let problem = "max_completion_tokens says something else";
            return Err(ApiError::field("max_tokens", problem));
        }
        (_, Some(0)) => {
            return Err(ApiError::field("max_completion_tokens", "it must be 1 or more"));
        }
        (a, b) => request.max_tokens = b.or(a),
    }
    let logprobs = match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            return Err(ApiError::field("top_logprobs", "it needs logprobs to be true"));
        }
    };
    if logprobs.is_some_and(|top| top > TOP_LOGPROBS) {
        return Err(ApiError::field(
            "top_logprobs",
            format!("it must be from 0 to {TOP_LOGPROBS}"),
        ));
    }
    let ending = match (request.add_generation_prompt, request.continue_final_message) {
        (Some(true), Some(true)) => {
            let problem = "add_generation_prompt must be false with it";
            return Err(ApiError::field("continue_final_message", problem));
        }
        (_, Some(true)) => ChatEnding::Continue,
        (Some(false), _) => ChatEnding::Closed,
        _ => ChatEnding::Generation,
    };
    let form = request.constraint()?;
    let (tools, described) = tools(&request, model, form.clone())?;
    let chat = Chat {
        messages: messages(&request.messages)?,
        tools: described,
        variables: request.chat_template_kwargs.take().unwrap_or_default(),
        ending,
    };
    let mut generate = Generate::new(model.id.clone(), Input::Chat(chat));
    generate.logprobs = logprobs.map(|top| top as usize);
    generate.constraint = tools.as_ref().map_or(form, |tools| tools.constraint.clone());
    request.shared().apply(&mut generate, &app.identity, model.vocab_size)?;
    Ok((generate, tools))
}

/// The tools that may be called, and their descriptions for the template.
fn tools(
    request: &ChatRequest,
    model: &ModelInfo,
    form: Option<Constraint>,
) -> Result<(Option<Tools>, Vec<Value>), ApiError> {
    let given = request.tools.as_deref().unwrap_or_default();
    let names = tool_names(given)?;
    let choice = request.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let several = request.parallel_tool_calls != Some(false);
    let choice = match choice.map(|choice| choice.as_str().unwrap_or("one")) {
        Some("none") => return Ok((None, Vec::new())),
        None if given.is_empty() => return Ok((None, Vec::new())),
        Some(_) if given.is_empty() => {
            return Err(ApiError::field("tool_choice", "it needs tools"));
        }
        None | Some("auto") => ToolChoice::May { several },
        Some("required") => ToolChoice::Must(Forced { only: None, several }),
        Some("one") => {
            let name = choice.and_then(|c| c.get("function")?.get("name")?.as_str());
            ToolChoice::Must(one_of(&names, name, "tool_choice.function.name")?)
        }
        Some(_) => {
            let problem = "it must be auto, none, required or a function";
            return Err(ApiError::field("tool_choice", problem));
        }
    };
    let format = tool_format(model, "tools")?;
    Ok((Some(Tools::new(format, names, choice, given, form)), given.to_vec()))
}

/// A call of the tool of this name, which must be there.
///
/// # Errors
/// No name, or that of no tool, told as a problem of `field`.
pub(crate) fn one_of(
    names: &[String],
    name: Option<&str>,
    field: &str,
) -> Result<Forced, ApiError> {
    let known = name.filter(|name| names.iter().any(|known| known == name));
    let only = known.ok_or_else(|| ApiError::field(field, "it must be the name of a tool"))?;
    Ok(Forced { only: Some(only.into()), several: false })
}

/// How a model writes calls.
///
/// # Errors
/// Models that were not taught to, told as a problem of `field`.
pub(crate) fn tool_format(model: &ModelInfo, field: &str) -> Result<ToolFormat, ApiError> {
    let format = model.template.as_deref().and_then(ToolFormat::of_template);
    format.ok_or_else(|| {
        ApiError::unsupported(field, "the model's chat template has no notation for calls of tools")
    })
}

fn whole_choice(index: usize, choice: WholeChoice, logprobs: bool) -> ChatChoice {
    let finish = choice.finish.as_ref();
    let finish_reason = finish.map_or("error", |f| finish_reason(f, choice.calls.len()));
    let only_calls = choice.text.is_empty() && !choice.calls.is_empty();
    let calls = choice.calls.into_iter().map(|(id, call)| ToolCallBody::new(None, id, call));
    ChatChoice {
        index,
        message: ChatMessage {
            role: "assistant",
            content: (!only_calls).then_some(choice.text),
            refusal: None,
            tool_calls: calls.collect(),
        },
        logprobs: logprobs.then(|| ChatLogprobs {
            content: choice.logprobs.iter().map(ChatLogprob::from).collect(),
        }),
        finish_reason,
    }
}

/// What all chunks of an answer say alike.
struct Head {
    id: String,
    created: u64,
    model: String,
}

struct ChatStream {
    head: Head,
    choices: u32,
    /// Whether the usage is wanted.
    usage: bool,
}

impl ChatStream {
    fn push(&self, choices: Vec<ChunkChoice>, usage: Option<UsageBody>, out: &mut Vec<u8>) {
        let chunk = ChatChunk {
            id: self.head.id.clone(),
            object: "chat.completion.chunk",
            created: self.head.created,
            model: self.head.model.clone(),
            choices,
            usage: self.usage.then_some(usage),
        };
        push_data(out, &chunk);
    }

    fn push_delta(&self, index: u32, delta: Delta, out: &mut Vec<u8>) {
        let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
        self.push(vec![choice], None, out);
    }
}

impl Encoder for ChatStream {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices {
            let delta =
                Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            self.push_delta(index, delta, out);
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { choice, text, logprobs } => {
                let logprobs =
                    logprobs.map(|l| ChatLogprobs { content: vec![ChatLogprob::from(&l)] });
                let delta = Delta { content: Some(text), ..Delta::default() };
                let choice = ChunkChoice { index: choice, delta, logprobs, finish_reason: None };
                self.push(vec![choice], None, out);
            }
            Piece::Call { choice, index, id, call } => {
                let call = ToolCallBody::new(Some(index), id, call);
                let delta = Delta { tool_calls: vec![call], ..Delta::default() };
                self.push_delta(choice, delta, out);
            }
            Piece::End { choice, finish, calls } => {
                let finish_reason = Some(finish_reason(&finish, calls));
                let delta = Delta::default();
                let choice = ChunkChoice { index: choice, delta, logprobs: None, finish_reason };
                self.push(vec![choice], None, out);
            }
            Piece::Done(usage) => {
                if self.usage {
                    self.push(Vec::new(), Some((&usage).into()), out);
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
