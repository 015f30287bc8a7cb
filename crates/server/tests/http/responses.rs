//! OpenAI's responses: exact bytes, and what is asked of the engine.

use dunlin_server::service::{Finish, Input};
use serde_json::{Value, json};

use crate::fake::{Server, answer};

const PATH: &str = "/v1/responses";
const ECHO: &str = r#""model":"tiny","instructions":null,"max_output_tokens":9,"temperature":1.0,"top_p":1.0,"tools":[],"tool_choice":"auto","parallel_tool_calls":true,"text":{"format":{"type":"text"}},"truncation":"disabled","store":false,"previous_response_id":null,"metadata":{}"#;

#[test]
fn whole() {
    let server = Server::new().script(answer(&["Hel", "lo"], Finish::Length));
    let answer = server.post(PATH, r#"{"input":"Hi","max_output_tokens":9}"#);
    assert_eq!(
        answer.text(),
        format!(
            r#"{{"id":"resp_0000000000000002","object":"response","created_at":1767323045,"status":"incomplete","error":null,"incomplete_details":{{"reason":"max_output_tokens"}},"output":[{{"type":"message","id":"msg_0000000000000003","status":"incomplete","role":"assistant","content":[{{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}}]}}],"usage":{{"input_tokens":7,"input_tokens_details":{{"cached_tokens":3}},"output_tokens":2,"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":9}},{ECHO}}}"#
        )
    );
    assert_eq!(server.fake.asked().max_tokens, Some(9));
}

#[test]
fn stream() {
    let server = Server::new();
    let answer = server.post(PATH, r#"{"input":"Hi","max_output_tokens":9,"stream":true}"#);
    let begun = format!(
        r#"{{"id":"resp_0000000000000002","object":"response","created_at":1767323045,"status":"in_progress","error":null,"incomplete_details":null,"output":[],"usage":null,{ECHO}}}"#
    );
    let message = r#"{"type":"message","id":"msg_0000000000000003","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}]}"#;
    let usage = r#"{"input_tokens":7,"input_tokens_details":{"cached_tokens":3},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":10}"#;
    let ended = begun
        .replace("in_progress", "completed")
        .replace(r#""output":[]"#, &format!(r#""output":[{message}]"#))
        .replace(r#""usage":null"#, &format!(r#""usage":{usage}"#));
    let place = r#""item_id":"msg_0000000000000003","output_index":0,"content_index":0"#;
    let events = [
        ("response.created", format!(r#""response":{begun}"#)),
        ("response.in_progress", format!(r#""response":{begun}"#)),
        (
            "response.output_item.added",
            r#""output_index":0,"item":{"type":"message","id":"msg_0000000000000003","status":"in_progress","role":"assistant","content":[]}"#.into(),
        ),
        (
            "response.content_part.added",
            format!(r#"{place},"part":{{"type":"output_text","text":"","annotations":[],"logprobs":[]}}"#),
        ),
        ("response.output_text.delta", format!(r#"{place},"delta":"Hel","logprobs":[]"#)),
        ("response.output_text.delta", format!(r#"{place},"delta":"lo","logprobs":[]"#)),
        ("response.output_text.done", format!(r#"{place},"text":"Hello","logprobs":[]"#)),
        (
            "response.content_part.done",
            format!(r#"{place},"part":{{"type":"output_text","text":"Hello","annotations":[],"logprobs":[]}}"#),
        ),
        ("response.output_item.done", format!(r#""output_index":0,"item":{message}"#)),
        ("response.completed", format!(r#""response":{ended}"#)),
    ];
    let expected = events.iter().enumerate().map(|(i, (name, fields))| {
        format!("event: {name}\ndata: {{\"type\":\"{name}\",{fields},\"sequence_number\":{i}}}\n\n")
    });
    assert_eq!(answer.text(), expected.collect::<String>());
}

#[test]
fn calls() {
    let said = "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": 1}}</tool_call>";
    let server = Server::new().script(answer(&[said], Finish::StopToken));
    let tool = json!({"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
    let mut body = json!({"input": "Hi", "tools": [tool]});
    let response = server.post(PATH, body.to_string()).json();
    assert_eq!(
        response["output"].to_string(),
        r#"[{"type":"function_call","id":"fc_0000000000000004","call_id":"call_0000000000000004","name":"f","arguments":"{\"x\": 1}","status":"completed"}]"#
    );
    let Input::Chat(chat) = server.fake.asked().input else { panic!() };
    assert_eq!(
        json!(chat.tools),
        json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])
    );
    body["stream"] = true.into();
    let text = server.post(PATH, body.to_string()).text().to_string();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(
        names[2..],
        [
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
}

#[test]
fn items_become_messages() {
    let server = Server::new();
    let body = json!({"instructions": "Be brief.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]});
    assert_eq!(server.post(PATH, body.to_string()).status, 200);
    let Input::Chat(chat) = server.fake.asked().input else { panic!() };
    assert_eq!(
        json!(chat.messages),
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ])
    );
}

#[test]
fn what_cannot_be_used() {
    let server = Server::new();
    for (body, field) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": [5]}), "input[0]"),
        (json!({"input": [{"role": "king", "content": "a"}]}), "input[0].role"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"type": "web_search_call"}]}), "input[0].type"),
        (
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}),
            "input[0].arguments",
        ),
        (json!({"input": "a", "previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": "a", "text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
        (json!({"input": "a", "text": {"format": {"type": "xml"}}}), "text.format"),
        (json!({"input": "a", "tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"input": "a", "tool_choice": "required"}), "tool_choice"),
        (json!({"input": "a", "temperature": -1}), "temperature"),
        (json!({"input": "a", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "a", "max_tokens": 5}), "max_tokens"),
    ] {
        let answer = server.post(PATH, body.to_string());
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], field, "{body}");
    }
    let failing = Server::new().script(answer(&["a"], Finish::Failed("broken".into())));
    let text = failing.post(PATH, r#"{"input":"a","stream":true}"#).text().to_string();
    let last: Value =
        serde_json::from_str(text.lines().rev().find_map(|l| l.strip_prefix("data: ")).unwrap())
            .unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(
        last["response"]["error"],
        json!({"code": "generation_failed", "message": "broken"})
    );
}
