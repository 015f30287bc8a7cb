//! From OpenAI's messages and tools to what chat templates take.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// Keys of a message that templates see.
const PASSED_ON: [&str; 5] = ["name", "tool_call_id", "reasoning_content", "role", "content"];
/// Keys that come back from answers, and mean nothing in a prompt.
const IGNORED: [&str; 6] =
    ["refusal", "annotations", "audio", "function_call", "reasoning", "weight"];

/// Messages for a template: the developer's role is the system's, arguments of calls are objects.
///
/// # Errors
/// The first field that cannot be used.
pub fn messages(given: &[Value]) -> Result<Vec<Value>, ApiError> {
    if given.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one"));
    }
    let each = given.iter().enumerate();
    each.map(|(i, message)| one_message(message, &format!("messages[{i}]"))).collect()
}

fn one_message(message: &Value, path: &str) -> Result<Value, ApiError> {
    let Value::Object(message) = message else {
        return Err(ApiError::field(path, "it must be an object"));
    };
    let role = match message.get("role").map(|role| role.as_str()) {
        Some(Some("developer" | "system")) => "system",
        Some(Some(role @ ("user" | "assistant" | "tool"))) => role,
        None => return Err(ApiError::field(format!("{path}.role"), "it is missing")),
        _ => {
            let problem = "it must be system, developer, user, assistant or tool";
            return Err(ApiError::field(format!("{path}.role"), problem));
        }
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
    let content = message.get("content").unwrap_or(&Value::Null);
    if content.is_null() && (role != "assistant" || calls.is_none()) {
        let problem = if message.contains_key("content") {
            "it must be a string or an array of parts"
        } else {
            "it is missing"
        };
        return Err(ApiError::field(format!("{path}.content"), problem));
    }
    out.insert("content".into(), content_of(content, &format!("{path}.content"))?);
    if let Some(calls) = calls {
        let path = format!("{path}.tool_calls");
        if role != "assistant" {
            return Err(ApiError::field(path, "only the assistant calls tools"));
        }
        out.insert("tool_calls".into(), tool_calls(calls, &path)?);
    }
    for (key, value) in message {
        if key == "tool_calls" || out.contains_key(key) {
            continue;
        }
        if !PASSED_ON.contains(&key.as_str()) {
            if IGNORED.contains(&key.as_str()) {
                continue;
            }
            return Err(unknown(path, key));
        }
        if value.is_string() {
            out.insert(key.clone(), value.clone());
        } else if !value.is_null() {
            return Err(ApiError::field(format!("{path}.{key}"), "it must be a string"));
        }
    }
    Ok(out.into())
}

fn unknown(path: &str, key: &str) -> ApiError {
    // A key is the caller's, and may be long.
    let key: String = key.chars().take(64).collect();
    ApiError {
        code: Some("unknown_field"),
        ..ApiError::field(format!("{path}.{key}"), "there is no such field")
    }
}

/// Content: a string, or parts of which all are text.
fn content_of(content: &Value, path: &str) -> Result<Value, ApiError> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(content.clone()),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::field(path, "it must be a string or an array of parts")),
    };
    let mut out = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let kind = part.get("type").and_then(Value::as_str);
        match (kind, part.get("text")) {
            (Some("text"), Some(text @ Value::String(_))) => {
                out.push(serde_json::json!({"type": "text", "text": text}));
            }
            (Some("text"), _) => {
                return Err(ApiError::field(format!("{path}.text"), "it must be a string"));
            }
            (Some("image_url" | "input_audio" | "file" | "video_url"), _) => {
                return Err(ApiError::unsupported(
                    format!("{path}.type"),
                    "this server takes text alone",
                ));
            }
            _ => return Err(ApiError::field(format!("{path}.type"), "it must be text")),
        }
    }
    Ok(out.into())
}

/// Calls of tools as templates take them.
fn tool_calls(calls: &Value, path: &str) -> Result<Value, ApiError> {
    let Value::Array(calls) = calls else {
        return Err(ApiError::field(path, "it must be an array"));
    };
    let each = calls.iter().enumerate().map(|(i, call)| {
        let path = format!("{path}[{i}].function");
        let function = call.get("function");
        let Some(name) = function.and_then(|f| f.get("name")).and_then(Value::as_str) else {
            return Err(ApiError::field(format!("{path}.name"), "it must be a string"));
        };
        let arguments = match function.and_then(|f| f.get("arguments")) {
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            Some(object @ Value::Object(_)) => Some(object.clone()),
            None => Some(Value::Object(Map::new())),
            _ => None,
        };
        let Some(arguments @ Value::Object(_)) = arguments else {
            let problem = "it must be a string that holds a JSON object";
            return Err(ApiError::field(format!("{path}.arguments"), problem));
        };
        let mut out = Map::new();
        if let Some(id @ Value::String(_)) = call.get("id") {
            out.insert("id".into(), id.clone());
        }
        out.insert("type".into(), "function".into());
        out.insert("function".into(), serde_json::json!({"name": name, "arguments": arguments}));
        Ok(out.into())
    });
    each.collect::<Result<Vec<Value>, ApiError>>().map(Into::into)
}

/// The names of tools, which must be functions.
///
/// # Errors
/// The first that is none.
pub fn tool_names(tools: &[Value]) -> Result<Vec<String>, ApiError> {
    let name = |(i, tool): (usize, &Value)| {
        let path = format!("tools[{i}]");
        if tool.get("type").and_then(Value::as_str) != Some("function") {
            return Err(ApiError::field(format!("{path}.type"), "it must be function"));
        }
        let function = tool.get("function");
        let name = function.and_then(|f| f.get("name")).and_then(Value::as_str);
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            ApiError::field(
                format!("{path}.function.name"),
                "it must be a string that is not empty",
            )
        })?;
        if function
            .and_then(|f| f.get("parameters"))
            .is_some_and(|p| !p.is_object() && !p.is_null())
        {
            return Err(ApiError::field(
                format!("{path}.function.parameters"),
                "it must be an object",
            ));
        }
        Ok(name.to_string())
    };
    tools.iter().enumerate().map(name).collect()
}
