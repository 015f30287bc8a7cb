//! What an answer must be, as each protocol says it.

use dunlin_server::{constraint::Constraint, service::Finish};
use dunlin_tokenizer::grammar::GrammarSource::{self, Choice, Grammar, JsonSchema, Regex};
use serde_json::{Value, json};

use crate::fake::{Server, answer};

/// What the engine was asked for by the last request.
fn asked(server: &Server, path: &str, body: &Value) -> Option<Constraint> {
    let answer = server.post(path, body.to_string());
    assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    server.fake.seen.lock().unwrap().last().unwrap().constraint.clone()
}

fn with(body: &Value, extra: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn openai() {
    let server = Server::new();
    let schema = r#"{"type":"object","properties":{"b":{},"a":{}}}"#;
    let object: Value = serde_json::from_str(schema).unwrap();
    let json = || JsonSchema(schema.into());
    let any = GrammarSource::json_object;
    for (extra, expected) in [
        (json!({}), None),
        (json!({"response_format": null, "regex": null, "json_schema": null}), None),
        (json!({"response_format": {"type": "text"}}), None),
        (json!({"response_format": {"type": "json_object"}}), Some((any(), "response_format"))),
        (
            json!({"response_format": {"type": "json_schema", "json_schema":
                {"name": "n", "strict": true, "schema": object}}}),
            Some((json(), "response_format.json_schema.schema")),
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": object}}),
            Some((json(), "response_format.schema")),
        ),
        (json!({"json_schema": schema}), Some((json(), "json_schema"))),
        (json!({"guided_json": object}), Some((json(), "json_schema"))),
        (json!({"guided_regex": "a+"}), Some((Regex("a+".into()), "regex"))),
        (json!({"regex": "a+"}), Some((Regex("a+".into()), "regex"))),
        (json!({"grammar": "g"}), Some((Grammar("g".into()), "grammar"))),
        (json!({"ebnf": "g"}), Some((Grammar("g".into()), "grammar"))),
        (
            json!({"guided_choice": ["a", "b"]}),
            Some((Choice(vec!["a".into(), "b".into()]), "guided_choice")),
        ),
        (
            json!({"structured_outputs": {"json": object}}),
            Some((json(), "structured_outputs.json")),
        ),
        (
            json!({"structured_outputs": {"json_object": true}}),
            Some((any(), "structured_outputs.json_object")),
        ),
        (
            json!({"structured_outputs": {"grammar": "g", "regex": null}}),
            Some((Grammar("g".into()), "structured_outputs.grammar")),
        ),
        (
            json!({"structured_outputs": {"choice": ["x"]}}),
            Some((Choice(vec!["x".into()]), "structured_outputs.choice")),
        ),
    ] {
        let expected = expected.map(|(source, field)| Constraint { source, field });
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let seen = asked(&server, "/v1/chat/completions", &with(&chat, &extra));
        assert_eq!(seen, expected, "{extra}");
        let seen = asked(&server, "/v1/completions", &with(&json!({"prompt": "Hi"}), &extra));
        assert_eq!(seen, expected, "{extra}");
    }
    let format = json!({"format": {"type": "json_schema", "name": "n", "schema": object}});
    let seen = asked(&server, "/v1/responses", &json!({"input": "Hi", "text": format}));
    assert_eq!(seen, Some(Constraint { source: json(), field: "text.format.schema" }));
    let body = json!({"input": "Hi", "text": format}).to_string();
    assert_eq!(server.post("/v1/responses", body).json()["text"], format);
}

#[test]
fn anthropic_and_ollama() {
    let server = Server::new();
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]});
    let schema = json!({"type": "array"});
    let config = json!({"max_tokens": 5, "output_config":
        {"effort": "low", "format": {"type": "json_schema", "schema": schema}}});
    let seen = asked(&server, "/v1/messages", &with(&chat, &config));
    let source = JsonSchema(r#"{"type":"array"}"#.into());
    let field = "output_config.format.schema";
    assert_eq!(seen, Some(Constraint { source: source.clone(), field }));
    for (format, expected) in [
        (json!("json"), Some(GrammarSource::json_object())),
        (json!(""), None),
        (Value::Null, None),
        (schema, Some(source)),
    ] {
        let expected = expected.map(|source| Constraint { source, field: "format" });
        let format = json!({"format": format, "stream": false});
        assert_eq!(asked(&server, "/api/chat", &with(&chat, &format)), expected);
        let generate = json!({"model": "tiny", "prompt": "Hi"});
        assert_eq!(asked(&server, "/api/generate", &with(&generate, &format)), expected);
    }
}

#[test]
fn calls_that_must_be_made_are_grammars() {
    let server = Server::new();
    let function = |name: &str| {
        json!({"type": "function", "function": {"name": name, "parameters":
            {"type": "object", "properties": {"at": {"type": "string"}}}}})
    };
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}],
        "tools": [function("f"), function("g")]});
    let grammar = |extra: Value| {
        let constraint = asked(&server, "/v1/chat/completions", &with(&chat, &extra));
        let constraint = constraint.unwrap();
        assert_eq!(constraint.field, "tools");
        let Grammar(text) = constraint.source else { panic!("{:?}", constraint.source) };
        text
    };
    let several = grammar(json!({"tool_choice": "required"}));
    assert!(several.contains("{0,7}") && several.contains("args0") && several.contains("args1"));
    let one = grammar(json!({"tool_choice": "required", "parallel_tool_calls": false}));
    assert!(!one.contains("{0,7}") && one.contains("args0") && one.contains("args1"), "{one}");
    let named = json!({"type": "function", "function": {"name": "g"}});
    let named = grammar(json!({"tool_choice": named}));
    assert!(!named.contains("{0,7}") && !named.contains("args0"), "{named}");
    // The other protocols ask for the same.
    let tool = |name: &str| json!({"name": name, "input_schema": function(name)["function"]["parameters"]});
    let body = json!({"model": "tiny", "max_tokens": 5, "tools": [tool("f"), tool("g")],
        "messages": [{"role": "user", "content": "Hi"}], "tool_choice": {"type": "any"}});
    let source = |constraint: Option<Constraint>| match constraint.unwrap().source {
        Grammar(text) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(source(asked(&server, "/v1/messages", &body)), several);
    let choice = json!({"tool_choice": {"type": "tool", "name": "g"}});
    assert_eq!(source(asked(&server, "/v1/messages", &with(&body, &choice))), named);
    let flat = |name: &str| with(&function(name)["function"], &json!({"type": "function"}));
    let body = json!({"input": "Hi", "tools": [flat("f"), flat("g")], "tool_choice": "required"});
    assert_eq!(source(asked(&server, "/v1/responses", &body)), several);
    let choice = json!({"tool_choice": {"type": "function", "name": "g"}});
    assert_eq!(source(asked(&server, "/v1/responses", &with(&body, &choice))), named);
}

#[test]
fn a_form_and_tools_together_are_either() {
    let server = Server::new();
    let parameters = json!({"type": "object"});
    let function = json!({"name": "f", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    let schema = json!({"type": "array"});
    let message = json!([{"role": "user", "content": "Hi"}]);
    let alternatives = |path: &str, body: &Value, field: &str| {
        let constraint = asked(&server, path, body).unwrap();
        assert_eq!(constraint.field, field, "{path}");
        let GrammarSource::Either(sources) = constraint.source else {
            panic!("{:?}", constraint.source)
        };
        assert_eq!(sources[0], JsonSchema(r#"{"type":"array"}"#.into()), "{path}");
        let [_, Grammar(calls)] = &sources[..] else { panic!("{sources:?}") };
        assert!(calls.contains("<tool_call>") && calls.contains("args0"), "{path}: {calls}");
        calls.contains("{0,7}")
    };
    let field = "response_format.json_schema.schema";
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let chat = json!({"messages": message, "tools": tools, "response_format": format});
    assert!(alternatives("/v1/chat/completions", &chat, field));
    let single = with(&chat, &json!({"tool_choice": "auto", "parallel_tool_calls": false}));
    assert!(!alternatives("/v1/chat/completions", &single, field), "one call at most");
    let body = json!({"model": "tiny", "max_tokens": 5, "messages": message,
        "tools": [{"name": "f", "input_schema": parameters}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    assert!(alternatives("/v1/messages", &body, "output_config.format.schema"));
    let body = json!({"input": "Hi", "tools": [with(&function, &json!({"type": "function"}))],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}});
    assert!(alternatives("/v1/responses", &body, "text.format.schema"));
    let body = json!({"model": "tiny", "messages": message, "tools": tools, "format": schema,
        "stream": false});
    assert!(alternatives("/api/chat", &body, "format"));
    // Where a call is demanded there is no text that could have a form, and without calls no other.
    let must = with(&chat, &json!({"tool_choice": "required"}));
    let constraint = asked(&server, "/v1/chat/completions", &must).unwrap();
    assert!(matches!(constraint.source, Grammar(_)), "{constraint:?}");
    let none = with(&chat, &json!({"tool_choice": "none"}));
    let constraint = asked(&server, "/v1/chat/completions", &none).unwrap();
    assert_eq!(constraint.source, JsonSchema(r#"{"type":"array"}"#.into()));
}

#[test]
fn an_answer_that_cannot_go_on_is_the_requests_fault() {
    let server = Server::new().script(answer(&["{"], Finish::Stuck("too complex".into())));
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "regex": "a"});
    let failed = server.post("/v1/chat/completions", body.to_string());
    assert_eq!(
        (failed.status, &failed.json()["error"]["code"]),
        (400, &json!("constraint_failed"))
    );
    assert_eq!(failed.json()["error"]["message"], "too complex");
}
