//! From a response's input to what chat templates take.

use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// The messages for a template.
///
/// # Errors
/// The first field that cannot be used.
pub fn messages(instructions: Option<&str>, input: Option<&Value>) -> Result<Vec<Value>, ApiError> {
    let mut out = Vec::new();
    if let Some(instructions) = instructions {
        out.push(json!({"role": "system", "content": instructions}));
    }
    match input {
        None | Some(Value::Null) => return Err(ApiError::field("input", "it is missing")),
        Some(Value::String(text)) => out.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) if items.is_empty() => {
            return Err(ApiError::field("input", "it is empty"));
        }
        Some(Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                push_item(item, &format!("input[{i}]"), &mut out)?;
            }
        }
        Some(_) => {
            return Err(ApiError::field("input", "it must be a string or an array of items"));
        }
    }
    Ok(out)
}

fn push_item(item: &Value, path: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    if !item.is_object() {
        return Err(ApiError::field(path, "it must be an object"));
    }
    match item.get("type").map_or(Some("message"), Value::as_str) {
        Some("message") => {
            let role = match item.get("role").and_then(Value::as_str) {
                Some("developer" | "system") => "system",
                Some(role @ ("user" | "assistant")) => role,
                _ => {
                    let problem = "it must be system, developer, user or assistant";
                    return Err(ApiError::field(format!("{path}.role"), problem));
                }
            };
            let content = text_of(item.get("content"), &format!("{path}.content"))?;
            out.push(json!({"role": role, "content": content}));
        }
        Some("function_call") => push_call(item, path, out)?,
        Some("function_call_output") => {
            let id = string(item, "call_id", path)?;
            let content = text_of(item.get("output"), &format!("{path}.output"))?;
            out.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        // What the model thought is not part of what it is told.
        Some("reasoning") => {}
        _ => {
            let problem = "it must be message, function_call or function_call_output";
            return Err(ApiError::unsupported(format!("{path}.type"), problem));
        }
    }
    Ok(())
}

/// A call joins the assistant's message before it.
fn push_call(item: &Value, path: &str, out: &mut Vec<Value>) -> Result<(), ApiError> {
    let (id, name) = (string(item, "call_id", path)?, string(item, "name", path)?);
    let arguments: Option<Map<String, Value>> =
        serde_json::from_str(string(item, "arguments", path)?).ok();
    let problem = "it must be a string that holds a JSON object";
    let arguments =
        arguments.ok_or_else(|| ApiError::field(format!("{path}.arguments"), problem))?;
    let call = json!({
        "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
    });
    match out.last_mut() {
        Some(Value::Object(last)) if last["role"] == "assistant" => {
            let calls = last.entry("tool_calls").or_insert_with(|| json!([]));
            if let Value::Array(calls) = calls {
                calls.push(call);
            }
        }
        _ => out.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
    }
    Ok(())
}

fn string<'a>(object: &'a Value, key: &str, path: &str) -> Result<&'a str, ApiError> {
    let text = object.get(key).and_then(Value::as_str);
    text.ok_or_else(|| ApiError::field(format!("{path}.{key}"), "it must be a string"))
}

/// The text of a string or of parts that are all text.
fn text_of(content: Option<&Value>, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        _ => return Err(ApiError::field(path, "it must be a string or an array of parts")),
    };
    let text = |(i, part): (usize, &Value)| {
        let path = format!("{path}[{i}]");
        match part.get("type").and_then(Value::as_str) {
            Some("input_text" | "output_text" | "text") => {
                string(part, "text", &path).map(ToString::to_string)
            }
            Some("input_image" | "input_file" | "input_audio") => {
                let problem = "this server takes text alone";
                Err(ApiError::unsupported(format!("{path}.type"), problem))
            }
            _ => Err(ApiError::field(format!("{path}.type"), "it must be input_text")),
        }
    };
    parts.iter().enumerate().map(text).collect()
}
