//! Anthropic's protocol: exact bytes, and what is asked of the engine.

use dunlin_server::service::{ChatEnding, Finish, Input};
use serde_json::json;

use crate::fake::{Server, answer};

const PATH: &str = "/v1/messages";

#[test]
fn message() {
    let server = Server::new().script(answer(&["Hel", "lo"], Finish::StopString("END".into())));
    let body = r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post(PATH, body);
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.text(),
        r#"{"id":"msg_0000000000000002","type":"message","role":"assistant","model":"tiny","content":[{"type":"text","text":"Hello"}],"stop_reason":"stop_sequence","stop_sequence":"END","usage":{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":2}}"#
    );
    assert_eq!(server.fake.asked().max_tokens, Some(9));
}

#[test]
fn stream() {
    let server = Server::new();
    let body = r#"{"model":"tiny","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post(PATH, body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let events = [
        (
            "message_start",
            r#"{"type":"message_start","message":{"id":"msg_0000000000000002","type":"message","role":"assistant","model":"tiny","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}"#,
        ),
        (
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        ),
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}"#,
        ),
        (
            "content_block_delta",
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"lo"}}"#,
        ),
        ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
        (
            "message_delta",
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":4,"cache_creation_input_tokens":0,"cache_read_input_tokens":3,"output_tokens":3}}"#,
        ),
        ("message_stop", r#"{"type":"message_stop"}"#),
    ];
    let expected: String =
        events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
    assert_eq!(answer.text(), expected);
}

#[test]
fn every_field_reaches_the_engine() {
    let server = Server::new();
    let body = json!({
        "model": "tiny", "max_tokens": 3, "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
                {"type": "text", "text": "c"},
            ]},
            {"role": "assistant", "content": "It is"},
        ],
        "stop_sequences": ["x"], "temperature": 0.5, "top_p": 0.25, "top_k": 7,
        "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    });
    let answer = server.post(PATH, body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked = server.fake.asked();
    assert_eq!(asked.stop_strings, ["x"]);
    let sampling = &asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.25, 7));
    let Input::Chat(chat) = asked.input else { panic!("{asked:?}") };
    assert_eq!(chat.ending, ChatEnding::Continue, "an answer that was begun is continued");
    assert_eq!(
        json!(chat.messages),
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
            ]},
            {"role": "tool", "tool_call_id": "t1", "content": "42"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "It is"},
        ])
    );
    assert_eq!(
        json!(chat.tools),
        json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])
    );
}

#[test]
fn tokens_are_counted() {
    let server = Server::new();
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post("/v1/messages/count_tokens", body);
    // user: "Hi"\nassistant:
    assert_eq!(answer.text(), r#"{"input_tokens":21}"#);
    assert!(server.fake.seen.lock().unwrap().is_empty());
}

#[test]
fn errors_have_anthropics_shape() {
    let server = Server::new();
    let message = json!([{"role": "user", "content": "Hi"}]);
    for (body, status, kind, message) in [
        (
            json!({"model": "tiny", "messages": message}),
            400,
            "invalid_request_error",
            "max_tokens: it is missing",
        ),
        (
            json!({"model": "tiny", "max_tokens": 0, "messages": message}),
            400,
            "invalid_request_error",
            "max_tokens: it must be 1 or more",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": message, "seed": 1}),
            400,
            "invalid_request_error",
            "seed: there is no such field",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": message, "temperature": 1.5}),
            400,
            "invalid_request_error",
            "temperature: it must be from 0 to 1",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": []}),
            400,
            "invalid_request_error",
            "messages: there must be at least one",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "system", "content": "a"}]}),
            400,
            "invalid_request_error",
            "messages[0].role: it must be user or assistant",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            400,
            "invalid_request_error",
            "messages[0].content[0].type: this server takes text alone",
        ),
        (
            json!({"model": "tiny", "max_tokens": 1, "messages": message, "stop_sequences": [""]}),
            400,
            "invalid_request_error",
            "stop_sequences: a stop string is empty",
        ),
        (
            json!({"model": "none", "max_tokens": 1, "messages": message}),
            404,
            "not_found_error",
            "model: there is no model of this name; /v1/models lists those that there are",
        ),
    ] {
        let answer = server.post(PATH, body.to_string());
        let expected = json!({"type": "error", "error": {"type": kind, "message": message}});
        assert_eq!((answer.status, answer.json()), (status, expected), "{body}");
    }
    assert!(server.fake.seen.lock().unwrap().is_empty());
}
