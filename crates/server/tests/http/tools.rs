//! Tools, through all protocols.

use dunlin_server::service::{Finish, Input};
use serde_json::{Value, json};

use crate::fake::{Server, answer, model};

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}},
    }})
}

/// An answer that says something and calls twice.
fn calling() -> Server {
    Server::new().script(answer(
        &[
            "Let me",
            " see.\n<tool",
            "_call>{\"name\": \"weather\", \"argu",
            "ments\": {\"at\": \"Ab\"}}</tool_call>",
            "\n<tool_call>{\"name\":\"weather\",\"arguments\":{}}",
            "</tool_call>",
        ],
        Finish::StopToken,
    ))
}

#[test]
fn openai() {
    let server = calling();
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "tools": [weather()], "seed": 1,
        "tool_choice": "auto",
    });
    let choice =
        server.post("/v1/chat/completions", body.to_string()).json()["choices"][0].to_string();
    // The answer's own name is made first, then those of its calls.
    assert_eq!(
        choice,
        r#"{"index":0,"message":{"role":"assistant","content":"Let me see.","refusal":null,"tool_calls":[{"id":"call_0000000000000002","type":"function","function":{"name":"weather","arguments":"{\"at\": \"Ab\"}"}},{"id":"call_0000000000000003","type":"function","function":{"name":"weather","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}"#
    );
    let Input::Chat(chat) = server.fake.asked().input else { panic!() };
    assert_eq!(chat.tools, [weather()]);
    body["stream"] = true.into();
    let server = calling();
    let text = server.post("/v1/chat/completions", body.to_string()).text().to_string();
    let deltas: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: {"))
        .map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap())
        .map(|event| event["choices"][0].to_string())
        .collect();
    assert_eq!(
        deltas,
        [
            r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}"#,
            r#"{"index":0,"delta":{"content":"Let me"},"logprobs":null,"finish_reason":null}"#,
            r#"{"index":0,"delta":{"content":" see."},"logprobs":null,"finish_reason":null}"#,
            r#"{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_0000000000000002","type":"function","function":{"name":"weather","arguments":"{\"at\": \"Ab\"}"}}]},"logprobs":null,"finish_reason":null}"#,
            r#"{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_0000000000000003","type":"function","function":{"name":"weather","arguments":"{}"}}]},"logprobs":null,"finish_reason":null}"#,
            r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}"#,
        ]
    );
}

#[test]
fn anthropic() {
    let body = json!({
        "model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    });
    let answer = calling().post("/v1/messages", body.to_string()).json();
    assert_eq!(
        answer["content"],
        json!([
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_0000000000000003", "name": "weather", "input": {"at": "Ab"}},
            {"type": "tool_use", "id": "call_0000000000000004", "name": "weather", "input": {}},
        ])
    );
    assert_eq!(answer["stop_reason"], "tool_use");
    let mut body = body;
    body["stream"] = true.into();
    let text = calling().post("/v1/messages", body.to_string()).text().to_string();
    let blocks: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| data.contains("content_block"))
        .collect();
    assert_eq!(
        blocks[4..],
        [
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"call_0000000000000003","name":"weather","input":{}}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"at\": \"Ab\"}"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"call_0000000000000004","name":"weather","input":{}}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#,
            r#"{"type":"content_block_stop","index":2}"#,
        ]
    );
    assert!(text.contains(r#""stop_reason":"tool_use""#));
}

#[test]
fn ollama() {
    let body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [weather()],
        "stream": false,
    });
    let answer = calling().post("/api/chat", body.to_string()).json();
    assert_eq!(
        answer["message"],
        json!({"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"at": "Ab"}}},
            {"function": {"name": "weather", "arguments": {}}},
        ]})
    );
}

#[test]
fn a_call_that_is_cut_off_is_text() {
    let cut = "<tool_call>{\"name\": \"weather\", \"arguments\": {\"at\": ";
    let server = Server::new().script(answer(&[cut], Finish::Length));
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [weather()]});
    let choice = &server.post("/v1/chat/completions", body.to_string()).json()["choices"][0];
    assert_eq!(choice["message"]["content"], cut);
    assert_eq!(choice["message"].get("tool_calls"), None);
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn without_tools_nothing_is_taken_apart() {
    let said = "<tool_call>{\"name\":\"f\"}</tool_call>";
    let server = Server::new().script(answer(&[said], Finish::StopToken));
    for tools in [json!({}), json!({"tools": [weather()], "tool_choice": "none"})] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(tools.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", body.to_string()).json();
        assert_eq!(answer["choices"][0]["message"]["content"], said);
    }
    let Input::Chat(chat) = &server.fake.seen.lock().unwrap()[1].input else { panic!() };
    assert_eq!(chat.tools, Vec::<Value>::new());
}

#[test]
fn mistral_needs_its_control_tokens() {
    let server = Server::new();
    *server.fake.models.lock().unwrap() =
        vec![model("tiny", Some("{% if tools %}[TOOL_CALLS]{% endif %}"))];
    *server.fake.script.lock().unwrap() =
        answer(&["[TOOL_CALLS]", "[{\"name\":\"weather\",\"arguments\":{}}]"], Finish::StopToken);
    let body =
        json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [weather()], "seed": 1});
    let answer = server.post("/v1/chat/completions", body.to_string()).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    // Its templates take ids of nine letters and digits.
    assert_eq!(message["tool_calls"][0]["id"], "000000002");
    assert!(server.fake.asked().show_special);
}

#[test]
fn tools_that_cannot_be_used() {
    let server = Server::new();
    let post = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.post("/v1/chat/completions", body.to_string());
        assert_eq!(answer.status, 400, "{extra}: {}", answer.text());
        answer.json()["error"]["param"].as_str().unwrap().to_string()
    };
    assert_eq!(post(json!({"tools": [{"type": "function"}]})), "tools[0].function.name");
    assert_eq!(post(json!({"tools": [{"type": "x"}]})), "tools[0].type");
    assert_eq!(post(json!({"tools": [7]})), "tools[0].type");
    assert_eq!(post(json!({"tool_choice": "auto"})), "tool_choice");
    assert_eq!(post(json!({"tools": [weather()], "tool_choice": "often"})), "tool_choice");
    assert_eq!(post(json!({"tool_choice": "required"})), "tool_choice");
    for choice in [json!({"type": "function", "function": {"name": "storm"}}), json!({})] {
        let body = json!({"tools": [weather()], "tool_choice": choice});
        assert_eq!(post(body), "tool_choice.function.name");
    }
    *server.fake.models.lock().unwrap() = vec![model("tiny", Some("{{ messages }}"))];
    assert_eq!(post(json!({"tools": [weather()]})), "tools");
}
