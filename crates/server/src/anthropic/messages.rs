//! From Anthropic's messages and tools to what chat templates take.

use serde_json::{Map, Value, json};

use super::AnthropicTool;
use crate::{error::ApiError, service::ChatEnding};

/// The messages for a template, and whether the answer continues the last of them: an assistant's
/// last message is the beginning of its answer.
///
/// # Errors
/// The first field that cannot be used.
pub fn messages(
    system: Option<&Value>,
    given: &[Value],
) -> Result<(Vec<Value>, ChatEnding), ApiError> {
    if given.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one"));
    }
    let mut out = Vec::with_capacity(given.len() + 1);
    if let Some(system) = system.filter(|s| !s.is_null()) {
        out.push(json!({"role": "system", "content": text_of(system, "system")?}));
    }
    for (i, message) in given.iter().enumerate() {
        push_message(message, &format!("messages[{i}]"), &mut out)?;
    }
    let last = out.last().unwrap_or(&Value::Null);
    let continues = last["role"] == "assistant" && last.get("tool_calls").is_none();
    Ok((out, if continues { ChatEnding::Continue } else { ChatEnding::Generation }))
}

fn push_message(message: &Value, path: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let Value::Object(message) = message else {
        return Err(ApiError::field(path, "it must be an object"));
    };
    if let Some(key) = message.keys().find(|key| !["role", "content"].contains(&key.as_str())) {
        let key: String = key.chars().take(64).collect();
        return Err(ApiError::field(format!("{path}.{key}"), "there is no such field"));
    }
    let role = message.get("role").and_then(Value::as_str);
    let Some(role @ ("user" | "assistant")) = role else {
        return Err(ApiError::field(format!("{path}.role"), "it must be user or assistant"));
    };
    let path = format!("{path}.content");
    let blocks = match message.get("content") {
        None => return Err(ApiError::field(path, "it is missing")),
        Some(Value::String(text)) => {
            out.push(json!({"role": role, "content": text}));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        Some(_) => return Err(ApiError::field(path, "it must be a string or an array of blocks")),
    };
    let (mut texts, mut calls) = (Vec::new(), Vec::new());
    for (i, block) in blocks.iter().enumerate() {
        let path = format!("{path}[{i}]");
        match (block.get("type").and_then(Value::as_str), role) {
            (Some("text"), _) => texts.push(string(block, "text", &path)?),
            (Some("tool_use"), "assistant") => calls.push(tool_use(block, &path)?),
            (Some("tool_result"), "user") => out.push(tool_result(block, &path)?),
            // What the model thought is not part of what it is told.
            (Some("thinking" | "redacted_thinking"), "assistant") => {}
            (Some("image" | "document" | "search_result"), _) => {
                let problem = "this server takes text alone";
                return Err(ApiError::unsupported(format!("{path}.type"), problem));
            }
            _ => {
                let problem = match role {
                    "user" => "it must be text or tool_result",
                    _ => "it must be text or tool_use",
                };
                return Err(ApiError::field(format!("{path}.type"), problem));
            }
        }
    }
    if texts.is_empty() && calls.is_empty() {
        // Results of tools are messages of their own.
        let only_results = !blocks.is_empty() && role == "user";
        return if only_results { Ok(()) } else { Err(ApiError::field(path, "it is empty")) };
    }
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    message.insert("content".into(), texts.concat().into());
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    out.push(message.into());
    Ok(())
}

fn string<'a>(object: &'a Value, key: &str, path: &str) -> Result<&'a str, ApiError> {
    let text = object.get(key).and_then(Value::as_str);
    text.ok_or_else(|| ApiError::field(format!("{path}.{key}"), "it must be a string"))
}

fn tool_use(block: &Value, path: &str) -> Result<Value, ApiError> {
    let id = string(block, "id", path)?;
    let name = string(block, "name", path)?;
    match block.get("input") {
        Some(input @ Value::Object(_)) => Ok(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": input},
        })),
        _ => Err(ApiError::field(format!("{path}.input"), "it must be an object")),
    }
}

fn tool_result(block: &Value, path: &str) -> Result<Value, ApiError> {
    let id = string(block, "tool_use_id", path)?;
    let content = match block.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(content) => text_of(content, &format!("{path}.content"))?,
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

/// The text of a string or of blocks that are all text.
fn text_of(content: &Value, path: &str) -> Result<String, ApiError> {
    let blocks = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::field(path, "it must be a string or an array of text blocks")),
    };
    let text = |(i, block): (usize, &Value)| {
        let path = format!("{path}[{i}]");
        match block.get("type").and_then(Value::as_str) {
            Some("text") => string(block, "text", &path).map(ToString::to_string),
            _ => Err(ApiError::field(format!("{path}.type"), "it must be text")),
        }
    };
    blocks.iter().enumerate().map(text).collect()
}

/// Tools as OpenAI describes them, which is how templates take them.
///
/// # Errors
/// The first that cannot be used.
pub fn tools(given: &[AnthropicTool]) -> Result<Vec<Value>, ApiError> {
    let tool = |(i, tool): (usize, &AnthropicTool)| {
        let path = format!("tools[{i}]");
        if tool.r#type.as_deref().is_some_and(|kind| kind != "custom") {
            let problem = "this server has no tools of its own; it must be custom";
            return Err(ApiError::unsupported(format!("{path}.type"), problem));
        }
        if tool.name.is_empty() {
            return Err(ApiError::field(format!("{path}.name"), "it is empty"));
        }
        let Some(schema @ Value::Object(_)) = &tool.input_schema else {
            return Err(ApiError::field(format!("{path}.input_schema"), "it must be an object"));
        };
        let mut function = Map::new();
        function.insert("name".into(), tool.name.clone().into());
        if let Some(description) = &tool.description {
            function.insert("description".into(), description.clone().into());
        }
        function.insert("parameters".into(), schema.clone());
        Ok(json!({"type": "function", "function": function}))
    };
    given.iter().enumerate().map(tool).collect()
}
