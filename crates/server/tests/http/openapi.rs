//! The description agrees with what the handlers take and answer.

use serde_json::{Value, json};

use crate::fake::{Server, answer};
use dunlin_server::service::Finish;

/// Objects of which a value is all at once, as one.
fn merged(api: &Value, parts: &[Value]) -> Value {
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for part in parts {
        let named = part.get("$ref").and_then(Value::as_str);
        let part = named.map_or(part, |name| api.pointer(&name[1..]).unwrap());
        properties.extend(part["properties"].as_object().unwrap().clone());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// What of `value` does not fit a schema.
fn misfits(api: &Value, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let target = api.pointer(&name[1..]).unwrap_or_else(|| panic!("{name} is not described"));
        return misfits(api, target, value, path, found);
    }
    if let Some(parts) = schema.get("allOf").and_then(Value::as_array) {
        return misfits(api, &merged(api, parts), value, path, found);
    }
    for kind in ["oneOf", "anyOf"] {
        if let Some(parts) = schema.get(kind).and_then(Value::as_array) {
            let fits = parts.iter().any(|part| {
                let mut own = Vec::new();
                misfits(api, part, value, path, &mut own);
                own.is_empty()
            });
            if !fits {
                found.push(format!("{path}: none of {kind} fits {value}"));
            }
            return;
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => return,
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let fits = kinds.contains(&kind) || kind == "integer" && kinds.contains(&"number");
    if !fits {
        found.push(format!("{path}: {kind} instead of {kinds:?}"));
    }
    if let (Value::Array(items), Some(schema)) = (value, schema.get("items")) {
        for (i, item) in items.iter().enumerate() {
            misfits(api, schema, item, &format!("{path}[{i}]"), found);
        }
    }
    if let (Value::Object(object), Some(Value::Object(known))) = (value, schema.get("properties")) {
        for (key, value) in object {
            match known.get(key) {
                Some(schema) => misfits(api, schema, value, &format!("{path}.{key}"), found),
                None => found.push(format!("{path}.{key}: not described")),
            }
        }
        for key in schema["required"].as_array().into_iter().flatten() {
            if object.get(key.as_str().unwrap()).is_none() {
                found.push(format!("{path}.{key}: missing"));
            }
        }
    }
}

fn api(server: &Server) -> Value {
    server.get("/openapi.json").json()
}

#[test]
fn every_described_path_is_served() {
    let server = Server::new();
    let api = api(&server);
    let paths = api["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 38);
    for (path, methods) in paths {
        let path = path.replace("{id}", "tiny");
        for method in methods.as_object().unwrap().keys() {
            let body: &[u8] = if method == "post" { b"{}" } else { b"" };
            let answer = server.send(&method.to_uppercase(), &path, &[], body);
            let code = serde_json::from_slice::<Value>(&answer.body).unwrap_or_default();
            assert_ne!(code["error"]["code"], "path_not_found", "{method} {path}");
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
}

#[test]
fn every_served_path_is_described() {
    let source =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/app.rs")).unwrap();
    let api = api(&Server::new());
    let routes: Vec<(&str, &str)> = source
        .split(".route(\"")
        .skip(1)
        .map(|rest| rest.split_once("\", ").unwrap())
        .map(|(path, rest)| (path, rest.split('(').next().unwrap()))
        .collect();
    assert!(routes.len() > 20);
    for (path, method) in routes {
        assert!(api["paths"][path].get(method).is_some(), "{method} {path}");
    }
}

#[test]
fn answers_are_what_is_described() {
    let call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    let server = Server::new().script(answer(&["a", call], Finish::StopToken));
    let api = api(&server);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let message = json!([{"role": "user", "content": "Hi"}]);
    for (method, path, body, status) in [
        ("post", "/v1/chat/completions", json!({"messages": message, "tools": [tool]}), 200),
        ("post", "/v1/chat/completions", json!({"messages": []}), 400),
        ("post", "/v1/completions", json!({"prompt": "a"}), 200),
        ("post", "/v1/completions", json!({"prompt": 5}), 400),
        (
            "post",
            "/v1/responses",
            json!({"input": "a", "tools": [{"type": "function", "name": "f"}]}),
            200,
        ),
        ("post", "/v1/responses", json!({"input": 5}), 400),
        ("post", "/v1/embeddings", json!({"input": "a"}), 200),
        ("get", "/live", Value::Null, 200),
        ("get", "/v1/models", Value::Null, 200),
        ("get", "/v1/models/{id}", Value::Null, 200),
        (
            "post",
            "/v1/messages",
            json!({"model": "tiny", "max_tokens": 5, "messages": message,
                "tools": [{"name": "f", "input_schema": {}}]}),
            200,
        ),
        ("post", "/v1/messages", json!({"model": "x", "max_tokens": 5, "messages": message}), 404),
        ("post", "/v1/messages/count_tokens", json!({"model": "tiny", "messages": message}), 200),
        (
            "post",
            "/api/chat",
            json!({"model": "tiny", "messages": message, "tools": [tool], "stream": false}),
            200,
        ),
        ("post", "/api/chat", json!({}), 400),
        ("post", "/api/generate", json!({"model": "tiny", "prompt": "a", "stream": false}), 200),
        ("post", "/api/embed", json!({"model": "tiny", "input": ["a", "b"]}), 200),
        ("post", "/api/embed", json!({"model": "tiny"}), 400),
        ("post", "/api/embeddings", json!({"model": "tiny", "prompt": "a"}), 200),
        ("get", "/api/tags", Value::Null, 200),
        ("post", "/api/show", json!({"model": "tiny"}), 200),
        ("get", "/api/ps", Value::Null, 200),
        ("get", "/api/version", Value::Null, 200),
        ("post", "/v1/embeddings", json!({"input": []}), 400),
        ("post", "/v1/sessions", json!({"id": "a"}), 200),
        ("post", "/v1/sessions", json!({"id": "../a"}), 400),
        ("get", "/v1/sessions", Value::Null, 200),
        ("get", "/v1/sessions/{id}", Value::Null, 200),
        ("delete", "/v1/sessions/{id}", Value::Null, 200),
        ("post", "/v1/sessions/{id}/append", json!({"input": [1, 2]}), 200),
        ("post", "/v1/sessions/{id}/query", json!({"prompt": "a", "keep": "none"}), 200),
        ("post", "/v1/sessions/{id}/query", json!({"prompt": "a", "keep": "some"}), 400),
        ("post", "/v1/sessions/{id}/fork", json!({"to": "b"}), 200),
        ("post", "/v1/sessions/{id}/rewind", json!({"tokens": 3}), 200),
        ("post", "/v1/sessions/{id}/prune", json!({"from": 1, "to": 3}), 200),
        ("post", "/v1/sessions/{id}/save", json!({"file": "a.b"}), 200),
        ("post", "/v1/sessions/{id}/restore", json!({"file": "a"}), 200),
        ("post", "/v1/sessions/{id}/questions", json!({"prompt": "a"}), 200),
        ("post", "/v1/sessions/{id}/questions", json!({"prompt": "a", "n": 2}), 400),
        ("get", "/v1/sessions/{id}/questions/{question}", Value::Null, 200),
        ("delete", "/v1/sessions/{id}/questions/{question}", Value::Null, 200),
        ("post", "/v1/sessions/{id}/questions/{question}/ask", json!({}), 200),
        ("post", "/tokenize", json!({"content": "a"}), 200),
        ("post", "/detokenize", json!({"tokens": [97]}), 200),
        ("post", "/apply-template", json!({"messages": message}), 200),
        ("get", "/health", Value::Null, 200),
        ("get", "/ready", Value::Null, 200),
        ("get", "/server_info", Value::Null, 200),
        ("get", "/model_info", Value::Null, 200),
    ] {
        let body_text = if body.is_null() { String::new() } else { body.to_string() };
        let real = path.replace("{id}", "tiny").replace("{question}", "q_7");
        let answer = server.send(&method.to_uppercase(), &real, &[], body_text.as_bytes());
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let described = &api["paths"][path][method];
        let schema =
            &described["responses"][status.to_string()]["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{path} {status} is not described");
        let mut found = Vec::new();
        misfits(&api, schema, &answer.json(), "answer", &mut found);
        if status == 200 && !body.is_null() {
            let schema = &described["requestBody"]["content"]["application/json"]["schema"];
            misfits(&api, schema, &body, "request", &mut found);
        }
        assert!(found.is_empty(), "{path}: {found:#?}");
    }
}
