//! Anthropic's protocol: `POST /v1/messages` and the count of its tokens.

mod messages;
mod types;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde_json::Value;

pub(crate) use types::{
    AnthropicError, AnthropicMessage, AnthropicTool, AnthropicUsage, ContentBlock, CountRequest,
    MessagesRequest, TokenCount,
};

use crate::{
    app::{App, json},
    constraint::{Constraint, Fields},
    error::{ApiError, Protocol},
    openai::{
        chat::{one_of, tool_format},
        fields::{check_sampling, checked_stops, refuse},
    },
    reply::{Piece, Reply, Tools, WholeChoice, whole},
    service::{Chat, Finish, Generate, Input, ModelInfo, Usage},
    stream::{Encoder, push_event, respond},
    tools::{Forced, ToolChoice},
};
use types::{BlockDelta, MessageEnd, StreamEvent};

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body = MessagesRequest,
    responses(
        (status = 200, description = "The answer, or its stream", content(
            (AnthropicMessage = "application/json"), (AnthropicMessage = "text/event-stream"),
        )),
        (status = 400, description = "A field cannot be used", body = AnthropicError),
        (status = 404, description = "There is no such model", body = AnthropicError),
        (status = 429, description = "Too much is going on", body = AnthropicError),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: MessagesRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let streams = request.stream.unwrap_or(false);
    let (generate, tools) = plan(request, &model, &app)?;
    let reply = Reply::start(&app, generate, tools).await?;
    let id = app.identity.id("msg_");
    if streams {
        let keep_alive = app.config.keep_alive;
        let prompt_tokens = reply.prompt_tokens;
        let stream = MessageStream {
            id,
            model: model.id,
            prompt_tokens,
            block: Block::None,
            index: 0,
            end: None,
        };
        return Ok(respond(reply, stream, keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choice = choices.into_iter().next().unwrap_or_default();
    Ok(json(&message(id, model.id, choice, &usage)))
}

/// Counts the tokens of a conversation.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic",
    request_body = CountRequest,
    responses(
        (status = 200, description = "The count", body = TokenCount),
        (status = 400, description = "A field cannot be used", body = AnthropicError),
    )
)]
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: CountRequest = app.read(request).await?;
    let model = app.model(Some(&request.model))?;
    let (chat, _) = conversation(
        request.system.as_ref(),
        &request.messages,
        request.tools.as_deref(),
        request.tool_choice.as_ref(),
        &model,
        None,
    )?;
    let tokens = app.call(move |s| s.encode(&model.id, &Input::Chat(chat))).await?;
    Ok(json(&TokenCount { input_tokens: tokens.len() }))
}

/// The conversation for the template, and the tools that may be called.
fn conversation(
    system: Option<&Value>,
    given: &[Value],
    tools: Option<&[AnthropicTool]>,
    tool_choice: Option<&Value>,
    model: &ModelInfo,
    form: Option<Constraint>,
) -> Result<(Chat, Option<Tools>), ApiError> {
    let (messages, ending) = messages::messages(system, given)?;
    let mut chat = Chat { messages, ending, ..Chat::default() };
    let given = tools.unwrap_or_default();
    let choice = tool_choice.and_then(|c| c.get("type")).and_then(Value::as_str);
    let names: Vec<String> = given.iter().map(|tool| tool.name.clone()).collect();
    let single = tool_choice.and_then(|c| c.get("disable_parallel_tool_use"));
    let several = single != Some(&Value::Bool(true));
    let choice = match (choice, tool_choice.is_some_and(|c| !c.is_null())) {
        (Some("none"), _) => return Ok((chat, None)),
        (Some("auto"), _) | (None, false) if given.is_empty() => return Ok((chat, None)),
        (Some("auto"), _) | (None, false) => ToolChoice::May { several },
        (Some("any" | "tool"), _) if given.is_empty() => {
            return Err(ApiError::field("tool_choice", "it needs tools"));
        }
        (Some("any"), _) => ToolChoice::Must(Forced { only: None, several }),
        (Some("tool"), _) => {
            let name = tool_choice.and_then(|c| c.get("name")).and_then(Value::as_str);
            ToolChoice::Must(one_of(&names, name, "tool_choice.name")?)
        }
        _ => {
            let problem = "it must be auto, any, tool or none";
            return Err(ApiError::field("tool_choice.type", problem));
        }
    };
    let format = tool_format(model, "tools")?;
    chat.tools = messages::tools(given)?;
    let tools = Tools::new(format, names, choice, &chat.tools, form);
    Ok((chat, Some(tools)))
}

/// What the engine is asked for.
fn plan(
    request: MessagesRequest,
    model: &ModelInfo,
    app: &App,
) -> Result<(Generate, Option<Tools>), ApiError> {
    if request.max_tokens == 0 {
        return Err(ApiError::field("max_tokens", "it must be 1 or more"));
    }
    // A model that never thinks is one that may and does not.
    let harmless = [r#"{"type":"disabled"}"#, r#"{"type":"adaptive"}"#];
    let format = request.output_config.as_ref().and_then(|config| config.get("format"));
    let mut fields = Fields::default();
    fields.format(format, "output_config.format", "output_config.format.schema")?;
    let form = fields.into_constraint();
    refuse(&[
        ("thinking", request.thinking.as_ref(), &harmless),
        ("container", request.container.as_ref(), &[]),
        ("mcp_servers", request.mcp_servers.as_ref(), &[]),
        ("context_management", request.context_management.as_ref(), &[]),
    ])?;
    if request.temperature.is_some_and(|t| !(0.0..=1.0).contains(&t)) {
        return Err(ApiError::field("temperature", "it must be from 0 to 1"));
    }
    let (chat, tools) = conversation(
        request.system.as_ref(),
        &request.messages,
        request.tools.as_deref(),
        request.tool_choice.as_ref(),
        model,
        form.clone(),
    )?;
    let mut generate = Generate::new(model.id.clone(), Input::Chat(chat));
    generate.constraint = tools.as_ref().map_or(form, |tools| tools.constraint.clone());
    generate.max_tokens = Some(request.max_tokens as usize);
    let stops = request.stop_sequences.unwrap_or_default();
    generate.stop_strings = checked_stops(stops, "stop_sequences")?;
    let sampling = &mut generate.sampling;
    sampling.temperature = request.temperature.unwrap_or(1.0);
    sampling.top_p = request.top_p.unwrap_or(1.0);
    sampling.top_k = request.top_k.unwrap_or(0) as usize;
    sampling.seed = app.identity.seed();
    check_sampling(&generate.sampling, model.vocab_size)?;
    Ok((generate, tools))
}

fn usage_body(usage: &Usage) -> AnthropicUsage {
    AnthropicUsage {
        input_tokens: usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: usage.cached_tokens,
        output_tokens: usage.output_tokens,
    }
}

/// Anthropic's name for why an answer ended, and the stop string that ended it.
fn stop_reason(finish: &Finish, calls: usize) -> (&'static str, Option<String>) {
    match finish {
        Finish::Length => ("max_tokens", None),
        Finish::StopString(text) => ("stop_sequence", Some(text.clone())),
        _ if calls > 0 => ("tool_use", None),
        _ => ("end_turn", None),
    }
}

fn message(id: String, model: String, choice: WholeChoice, usage: &Usage) -> AnthropicMessage {
    let finish = choice.finish.unwrap_or(Finish::Length);
    let (stop_reason, stop_sequence) = stop_reason(&finish, choice.calls.len());
    let text = (!choice.text.is_empty()).then_some(ContentBlock::Text { text: choice.text });
    let calls = choice.calls.into_iter().map(|(id, call)| ContentBlock::ToolUse {
        id,
        name: call.name,
        // The parser passes JSON objects alone.
        input: serde_json::from_str(&call.arguments).unwrap_or_default(),
    });
    AnthropicMessage {
        id,
        r#type: "message",
        role: "assistant",
        model,
        content: text.into_iter().chain(calls).collect(),
        stop_reason: Some(stop_reason),
        stop_sequence,
        usage: usage_body(usage),
    }
}

/// The content block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    Text,
}

struct MessageStream {
    id: String,
    model: String,
    prompt_tokens: usize,
    block: Block,
    /// The next block's number.
    index: usize,
    /// Why the answer ended; told with the usage.
    end: Option<(&'static str, Option<String>)>,
}

impl MessageStream {
    fn push(event: &StreamEvent, out: &mut Vec<u8>) {
        push_event(out, event.name(), event);
    }

    fn close_block(&mut self, out: &mut Vec<u8>) {
        if self.block == Block::Text {
            self.block = Block::None;
            Self::push(&StreamEvent::ContentBlockStop { index: self.index }, out);
            self.index += 1;
        }
    }
}

impl Encoder for MessageStream {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn begin(&mut self, out: &mut Vec<u8>) {
        let usage = Usage { prompt_tokens: self.prompt_tokens, ..Usage::default() };
        let message = AnthropicMessage {
            id: self.id.clone(),
            r#type: "message",
            role: "assistant",
            model: self.model.clone(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: usage_body(&usage),
        };
        Self::push(&StreamEvent::MessageStart { message }, out);
    }

    fn piece(&mut self, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } if text.is_empty() => {}
            Piece::Text { text, .. } => {
                let index = self.index;
                if self.block == Block::None {
                    self.block = Block::Text;
                    let content_block = ContentBlock::Text { text: String::new() };
                    Self::push(&StreamEvent::ContentBlockStart { index, content_block }, out);
                }
                let delta = BlockDelta::TextDelta { text };
                Self::push(&StreamEvent::ContentBlockDelta { index, delta }, out);
            }
            Piece::Call { id, call, .. } => {
                self.close_block(out);
                let index = self.index;
                self.index += 1;
                let input = Value::Object(serde_json::Map::new());
                let content_block = ContentBlock::ToolUse { id, name: call.name, input };
                Self::push(&StreamEvent::ContentBlockStart { index, content_block }, out);
                let delta = BlockDelta::InputJsonDelta { partial_json: call.arguments };
                Self::push(&StreamEvent::ContentBlockDelta { index, delta }, out);
                Self::push(&StreamEvent::ContentBlockStop { index }, out);
            }
            Piece::End { finish, calls, .. } => {
                self.close_block(out);
                self.end = Some(stop_reason(&finish, calls));
            }
            Piece::Done(usage) => {
                let (stop_reason, stop_sequence) = self.end.take().unwrap_or(("end_turn", None));
                let delta = MessageEnd { stop_reason, stop_sequence };
                let event = StreamEvent::MessageDelta { delta, usage: usage_body(&usage) };
                Self::push(&event, out);
                Self::push(&StreamEvent::MessageStop, out);
            }
            Piece::Failed(error) => push_event(out, "error", &error.body(Protocol::Anthropic)),
        }
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        Self::push(&StreamEvent::Ping, out);
    }
}
