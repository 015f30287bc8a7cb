//! `POST /v1/responses`, without what needs a memory of earlier answers or tools of the server's
//! own.

mod input;
mod stream;
mod types;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response as HttpResponse,
};
use serde_json::{Value, json};

pub(crate) use types::{OutputItem, Response, ResponsesRequest};

use super::{
    chat::{one_of, tool_format},
    fields::{check_sampling, refuse},
    types::ErrorBody,
};
use crate::{
    app::{App, json},
    constraint::{Constraint, Fields},
    error::ApiError,
    reply::{Reply, Tools, whole},
    service::{Chat, Finish, Generate, Input, ModelInfo, Usage},
    stream::respond,
    tools::{Forced, ToolCall, ToolChoice},
};
use stream::ResponseStream;
use types::{Echo, ResponseUsage};

/// Answers an input.
#[utoipa::path(post, path = "/v1/responses", tag = "OpenAI", request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The answer, or its stream", content(
            (Response = "application/json"), (Response = "text/event-stream"),
        )),
        (status = 400, description = "A field cannot be used", body = ErrorBody),
        (status = 404, description = "There is no such model", body = ErrorBody),
        (status = 429, description = "Too much is going on", body = ErrorBody),
    )
)]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<HttpResponse, ApiError> {
    let request: ResponsesRequest = app.read(request).await?;
    let model = app.model(request.model.as_deref())?;
    let streams = request.stream.unwrap_or(false);
    let echo = Echo::new(&request, model.id.clone());
    let (generate, tools) = plan(&request, &model, &app)?;
    let reply = Reply::start(&app, generate, tools).await?;
    let id = app.identity.id("resp_");
    let created_at = app.identity.unix_seconds();
    let message_id = app.identity.id("msg_");
    if streams {
        let keep_alive = app.config.keep_alive;
        let stream = ResponseStream::new(Response::begun(id, created_at, echo), message_id);
        return Ok(respond(reply, stream, keep_alive));
    }
    let (choices, usage) = whole(reply).await?;
    let choice = choices.into_iter().next().unwrap_or_default();
    let mut response = Response::begun(id, created_at, echo);
    if !choice.text.is_empty() || choice.calls.is_empty() {
        let cut = choice.finish == Some(Finish::Length);
        let status = if cut { "incomplete" } else { "completed" };
        response.output.push(OutputItem::message(message_id, status, Some(choice.text)));
    }
    let calls = choice.calls.into_iter();
    response.output.extend(calls.map(|(id, call)| OutputItem::call(id, call, "completed")));
    response.end(choice.finish.as_ref(), &usage);
    Ok(json(&response))
}

impl Response {
    /// Tells how it ended and what it cost.
    fn end(&mut self, finish: Option<&Finish>, usage: &Usage) {
        let whole = finish != Some(&Finish::Length);
        self.status = if whole { "completed" } else { "incomplete" };
        self.incomplete_details = (!whole).then(|| json!({"reason": "max_output_tokens"}));
        self.usage = Some(ResponseUsage::from(usage));
    }
}

impl OutputItem {
    /// A call of a tool, whose item is named after it.
    fn call(call_id: String, call: ToolCall, status: &'static str) -> Self {
        let id = call_id.replacen("call_", "fc_", 1);
        Self::FunctionCall { id, call_id, name: call.name, arguments: call.arguments, status }
    }
}

/// What the engine is asked for.
fn plan(
    request: &ResponsesRequest,
    model: &ModelInfo,
    app: &App,
) -> Result<(Generate, Option<Tools>), ApiError> {
    refuse(&[
        ("previous_response_id", request.previous_response_id.as_ref(), &[]),
        ("conversation", request.conversation.as_ref(), &[]),
        ("prompt", request.prompt.as_ref(), &[]),
        ("background", request.background.as_ref(), &[]),
        ("truncation", request.truncation.as_ref(), &[r#""disabled""#]),
    ])?;
    let mut fields = Fields::default();
    let format = request.text.as_ref().and_then(|text| text.get("format"));
    fields.format(format, "text.format", "text.format.schema")?;
    if request.max_output_tokens == Some(0) {
        return Err(ApiError::field("max_output_tokens", "it must be 1 or more"));
    }
    let form = fields.into_constraint();
    let (tools, described) = tools(request, model, form.clone())?;
    let chat = Chat {
        messages: input::messages(request.instructions.as_deref(), request.input.as_ref())?,
        tools: described,
        ..Chat::default()
    };
    let mut generate = Generate::new(model.id.clone(), Input::Chat(chat));
    generate.constraint = tools.as_ref().map_or(form, |tools| tools.constraint.clone());
    generate.max_tokens = request.max_output_tokens.map(|n| n as usize);
    generate.sampling.temperature = request.temperature.unwrap_or(1.0);
    generate.sampling.top_p = request.top_p.unwrap_or(1.0);
    generate.sampling.seed = app.identity.seed();
    check_sampling(&generate.sampling, model.vocab_size)?;
    Ok((generate, tools))
}

/// The tools that may be called, and their descriptions as templates take them.
fn tools(
    request: &ResponsesRequest,
    model: &ModelInfo,
    form: Option<Constraint>,
) -> Result<(Option<Tools>, Vec<Value>), ApiError> {
    let given = request.tools.as_deref().unwrap_or_default();
    let (mut names, mut described) = (Vec::new(), Vec::new());
    for (i, tool) in given.iter().enumerate() {
        let path = format!("tools[{i}]");
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            let problem = "this server has no tools of its own; it must be function";
            return Err(ApiError::unsupported(format!("{path}.type"), problem));
        }
        let name = tool.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let problem = "it must be a string that is not empty";
        let name = name.ok_or_else(|| ApiError::field(format!("{path}.name"), problem))?;
        let mut function = serde_json::Map::new();
        for key in ["name", "description", "parameters"] {
            if let Some(value) = tool.get(key).filter(|value| !value.is_null()) {
                function.insert(key.into(), value.clone());
            }
        }
        names.push(name.to_string());
        described.push(json!({"type": "function", "function": function}));
    }
    let choice = request.tool_choice.as_ref().filter(|choice| !choice.is_null());
    let several = request.parallel_tool_calls.as_ref() != Some(&Value::Bool(false));
    let choice = match choice.map(|choice| choice.as_str().unwrap_or("one")) {
        Some("none") => return Ok((None, Vec::new())),
        None | Some("auto") if names.is_empty() => return Ok((None, Vec::new())),
        None | Some("auto") => ToolChoice::May { several },
        Some(_) if names.is_empty() => {
            return Err(ApiError::field("tool_choice", "it needs tools"));
        }
        Some("required") => ToolChoice::Must(Forced { only: None, several }),
        Some("one") => {
            let name = choice.and_then(|choice| choice.get("name")).and_then(Value::as_str);
            ToolChoice::Must(one_of(&names, name, "tool_choice.name")?)
        }
        Some(_) => {
            let problem = "it must be auto, none, required or a function";
            return Err(ApiError::field("tool_choice", problem));
        }
    };
    let format = tool_format(model, "tools")?;
    Ok((Some(Tools::new(format, names, choice, &described, form)), described))
}
