//! OpenAI's protocol: exact bytes, and what is asked of the engine.

use dunlin_engine::{DrafterKind, Speculate};
use dunlin_executor::sampler::SamplingParams;
use dunlin_server::service::{ChatEnding, Chunk, Finish, Input, Usage};
use serde_json::{Value, json};

use crate::fake::{Server, answer, end, logprobs, token, usage};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[test]
fn chat() {
    let server = Server::new();
    let answer = server.post(CHAT, r#"{"messages":[{"role":"user","content":"Hi"}],"seed":1}"#);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.text(),
        r#"{"id":"chatcmpl-0000000000000001","object":"chat.completion","created":1767323045,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}"#
    );
}

#[test]
fn chat_stream() {
    let server = Server::new().script(answer(&["Hel", "", "lo"], Finish::Length));
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"seed":1,"stream":true,"stream_options":{"include_usage":true}}"#;
    let answer = server.post(CHAT, body);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let head = r#"data: {"id":"chatcmpl-0000000000000001","object":"chat.completion.chunk","created":1767323045,"model":"tiny","choices":["#;
    let expected = [
        r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{"content":"lo"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
        r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}"#,
        r#"],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}"#,
    ];
    let expected: String = expected.iter().map(|rest| format!("{head}{rest}\n\n")).collect();
    assert_eq!(answer.text(), expected + "data: [DONE]\n\n");
    // Without the option there is no word of usage.
    let body = r#"{"messages":[{"role":"user","content":"Hi"}],"stream":true}"#;
    assert!(!server.post(CHAT, body).text().contains("usage"));
}

#[test]
fn choices_are_told_apart() {
    let of = |choice, text: &str| Chunk::Token { choice, text: text.into(), logprobs: None };
    let ends = |choice, finish| Chunk::End { choice, finish };
    let script = vec![
        of(0, "a"),
        of(1, "b"),
        of(0, "c"),
        ends(1, Finish::Length),
        ends(0, Finish::StopString("x".into())),
        usage(7, 0, 3),
    ];
    let server = Server::new().script(script);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 2});
    let answer = server.post(CHAT, body.to_string()).json();
    let said = |i: usize| {
        let choice = &answer["choices"][i];
        (
            choice["index"].clone(),
            choice["message"]["content"].clone(),
            choice["finish_reason"].clone(),
        )
    };
    assert_eq!(said(0), (json!(0), json!("ac"), json!("stop")));
    assert_eq!(said(1), (json!(1), json!("b"), json!("length")));
    assert_eq!(server.fake.asked().choices, 2);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "n": 2, "stream": true});
    let text = server.post(CHAT, body.to_string()).text().to_string();
    let events: Vec<serde_json::Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    for (index, said, reason) in [(0, "ac", "stop"), (1, "b", "length")] {
        let own = events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index);
        let own: Vec<_> = own.collect();
        let content = own.iter().filter_map(|c| c["delta"]["content"].as_str());
        assert_eq!(content.collect::<String>(), said);
        assert_eq!(own[0]["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["finish_reason"], reason);
    }
}

#[test]
fn chat_logprobs() {
    let script = vec![
        Chunk::Token {
            choice: 0,
            text: String::new(),
            logprobs: logprobs("\u{e9}", -0.5, &[(b"\xc3", -0.25), (b"a", f32::NEG_INFINITY)]),
        },
        end(Finish::StopToken),
        usage(7, 0, 1),
    ];
    let server = Server::new().script(script);
    let content = r#"{"content":[{"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":[{"token":"�","logprob":-0.25,"bytes":[195]},{"token":"a","logprob":-9999.0,"bytes":[97]}]}]}"#;
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "logprobs": true, "top_logprobs": 2,
    });
    let answer = server.post(CHAT, body.to_string());
    assert!(answer.text().contains(&format!("\"logprobs\":{content}")), "{}", answer.text());
    assert_eq!(server.fake.asked().logprobs, Some(2));
    body["stream"] = true.into();
    let answer = server.post(CHAT, body.to_string());
    assert!(
        answer.text().contains(&format!("\"delta\":{{\"content\":\"\"}},\"logprobs\":{content}")),
        "{}",
        answer.text()
    );
}

#[test]
fn completion() {
    let server = Server::new();
    let answer = server.post(TEXT, r#"{"model":"tiny","prompt":"Hi","seed":1,"echo":true}"#);
    assert_eq!(
        answer.text(),
        r#"{"id":"cmpl-0000000000000001","object":"text_completion","created":1767323045,"model":"tiny","choices":[{"index":0,"text":"HiHello","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}"#
    );
    let asked = server.fake.asked();
    assert_eq!(asked.input, Input::Text("Hi".into()));
    assert_eq!(asked.max_tokens, Some(16));
}

#[test]
fn drafts() {
    let done = Chunk::Done(Usage {
        prompt_tokens: 7,
        output_tokens: 3,
        drafted_tokens: 5,
        accepted_tokens: 2,
        speculation_contract: "exact",
        ..Usage::default()
    });
    let server = Server::new().script(vec![token("x"), end(Finish::Length), done]);
    let answer = server.post(TEXT, r#"{"prompt":"Hi","speculate":"lookup"}"#);
    let details = r#""completion_tokens_details":{"accepted_prediction_tokens":2,"rejected_prediction_tokens":3,"speculation_contract":"exact"}"#;
    assert!(answer.text().contains(details), "{}", answer.text());
    let lookup = Speculate::Only(DrafterKind::Lookup);
    assert_eq!(server.fake.asked().speculate, Some(lookup));
    let metrics = server.get("/metrics");
    let metrics = metrics.text();
    for line in [
        "vllm:spec_decode_num_draft_tokens_total{model_name=\"tiny\"} 5",
        "vllm:spec_decode_num_accepted_tokens_total{model_name=\"tiny\"} 2",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let answer = server.post(TEXT, r#"{"prompt":"Hi","speculate":"maybe"}"#);
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("auto, off, lookup, store, grammar, draft or layers"),
        "{}",
        answer.text()
    );
}

#[test]
fn completion_stream() {
    let script = vec![
        Chunk::Token {
            choice: 0,
            text: "é".into(),
            logprobs: logprobs("é", -1.0, &[(b"b", -2.0)]),
        },
        Chunk::Token { choice: 0, text: "x".into(), logprobs: logprobs("x", -1.5, &[]) },
        end(Finish::Length),
        usage(7, 0, 2),
    ];
    let server = Server::new().script(script);
    let body = r#"{"prompt":[72,105],"seed":1,"stream":true,"logprobs":1}"#;
    let head = r#"data: {"id":"cmpl-0000000000000001","object":"text_completion","created":1767323045,"model":"tiny","choices":[{"index":0,"#;
    let expected = [
        r#""text":"é","logprobs":{"tokens":["é"],"token_logprobs":[-1.0],"top_logprobs":[{"b":-2.0}],"text_offset":[0]},"finish_reason":null}]}"#,
        r#""text":"x","logprobs":{"tokens":["x"],"token_logprobs":[-1.5],"top_logprobs":[{}],"text_offset":[1]},"finish_reason":null}]}"#,
        r#""text":"","logprobs":null,"finish_reason":"length"}]}"#,
    ];
    let expected: String = expected.iter().map(|rest| format!("{head}{rest}\n\n")).collect();
    assert_eq!(server.post(TEXT, body).text(), expected + "data: [DONE]\n\n");
    assert_eq!(server.fake.asked().input, Input::Tokens(vec![72, 105]));
}

#[test]
fn every_field_reaches_the_engine() {
    let server = Server::new();
    let body = json!({
        "model": "tiny", "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "ann"},
            {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ],
        "n": 3, "max_completion_tokens": 5, "stop": ["x", "y"], "stop_token_ids": [9],
        "ignore_eos": true, "skip_special_tokens": false, "temperature": 0.5, "top_p": 0.25,
        "top_k": 7, "min_p": 0.125, "typical_p": 0.75, "repeat_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"5": -100, "6": 2.5},
        "seed": -1, "chat_template_kwargs": {"enable_thinking": false}, "user": "u",
        "response_format": {"type": "text"}, "tools": [], "store": false,
        "parallel_tool_calls": true, "logprobs": null,
    });
    let answer = server.post(CHAT, body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked = server.fake.asked();
    assert_eq!(
        asked.sampling,
        SamplingParams {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.25,
            min_p: 0.125,
            typical_p: 0.75,
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            frequency_penalty: -0.5,
            penalty_window: None,
            logit_bias: vec![(5, f32::NEG_INFINITY), (6, 2.5)],
            seed: u64::MAX,
        }
    );
    assert_eq!((asked.choices, asked.max_tokens, asked.logprobs), (3, Some(5), None));
    assert_eq!(asked.stop_strings, ["x", "y"]);
    assert_eq!(asked.stop_token_ids, [9]);
    assert!(asked.ignore_eos && asked.show_special);
    let Input::Chat(chat) = asked.input else { panic!("{asked:?}") };
    assert_eq!(chat.ending, ChatEnding::Generation);
    assert_eq!(json!(chat.variables), json!({"enable_thinking": false}));
    assert_eq!(
        json!(chat.messages),
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ])
    );
}

#[test]
fn defaults_are_openais() {
    let server = Server::new();
    server.post(CHAT, r#"{"messages":[{"role":"user","content":"Hi"}],"seed":4}"#);
    let asked = server.fake.asked();
    assert_eq!(asked.sampling, SamplingParams { seed: 4, ..SamplingParams::default() });
    assert_eq!((asked.choices, asked.max_tokens), (1, None));
    assert!(!asked.ignore_eos && !asked.show_special);
    // Requests without a seed have seeds of their own.
    for _ in 0..2 {
        server.post(CHAT, r#"{"messages":[{"role":"user","content":"Hi"}]}"#);
    }
    let seen = server.fake.seen.lock().unwrap();
    assert_ne!(seen[1].sampling.seed, seen[2].sampling.seed);
}

#[test]
fn failures_while_generating() {
    let script =
        vec![token("a"), end(Finish::Failed("no token could be chosen".into())), usage(7, 0, 1)];
    let server = Server::new().script(script);
    let error = r#"{"error":{"message":"no token could be chosen","type":"server_error","param":null,"code":"generation_failed"}}"#;
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let answer = server.post(CHAT, body.to_string());
    assert_eq!((answer.status, answer.text()), (500, error));
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true});
    let text = server.post(CHAT, body.to_string()).text().to_string();
    assert!(text.ends_with(&format!("data: {error}\n\ndata: [DONE]\n\n")), "{text}");
    // An engine that dies leaves its streams without an end.
    let server = Server::new().script(vec![token("a")]);
    let text = server.post(CHAT, body.to_string()).text().to_string();
    assert!(text.contains("the engine has stopped"), "{text}");
    server.fake.wait_for_live(0);
}

#[test]
fn models() {
    let server = Server::new();
    let model = r#"{"id":"tiny","object":"model","created":1700000000,"owned_by":"dunlin","max_model_len":128}"#;
    assert_eq!(server.get("/v1/models").text(), format!(r#"{{"object":"list","data":[{model}]}}"#));
    assert_eq!(server.get("/v1/models/tiny").text(), model);
    let answer = server.get("/v1/models/other");
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
}

/// The scripted engine's hidden state is (3, 0, -4).
#[test]
fn embeddings_are_unit_vectors() {
    let server = Server::new();
    let post = |body: &str| server.post("/v1/embeddings", body).text().to_string();
    let one = r#"{"object":"embedding","index":0,"embedding":[0.6,0.0,-0.8]}"#;
    let usage = r#""model":"tiny","usage":{"prompt_tokens":7,"total_tokens":7}}"#;
    for input in [r#""a""#, r#"["a"]"#, "[97]", "[[97]]"] {
        let answer = post(&format!(r#"{{"input":{input},"model":"tiny"}}"#));
        assert_eq!(answer, format!(r#"{{"object":"list","data":[{one}],{usage}"#));
    }
    assert!(server.fake.seen.lock().unwrap().iter().all(|g| g.hidden && g.max_tokens == Some(1)));
    let cut: Value = serde_json::from_str(&post(r#"{"input":"a","dimensions":2}"#)).unwrap();
    assert_eq!(cut["data"][0]["embedding"], json!([1.0, 0.0]));
    let answer = post(r#"{"input":["a","b","c"],"encoding_format":"base64"}"#);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    // 0.6, 0 and -0.8 as 32-bit floats, by Python's base64 and struct.
    for index in 0..3 {
        let data = &answer["data"][index];
        assert_eq!(
            (&data["embedding"], &data["index"]),
            (&json!("mpkZPwAAAADNzEy/"), &json!(index))
        );
    }
    assert_eq!(answer["usage"]["total_tokens"], 21);
    for (body, field) in [
        (r#"{"input":[]}"#, "input"),
        (r#"{"input":""}"#, "input"),
        (r#"{"input":["a",""]}"#, "input"),
        (r#"{"input":["a",5]}"#, "input"),
        (r#"{"input":[-1]}"#, "input"),
        (r#"{"input":{"a":1}}"#, "input"),
        (r#"{"input":"a","dimensions":0}"#, "dimensions"),
        (r#"{"input":"a","dimensions":4}"#, "dimensions"),
        (r#"{"input":"a","encoding_format":"hex"}"#, "encoding_format"),
        (r#"{"input":"a","task":"x"}"#, "task"),
        ("{}", "input"),
    ] {
        let answer = server.post("/v1/embeddings", body);
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(field)),
            "{body}"
        );
    }
}

/// What sglang-router 0.3.2 makes of plain requests.
#[test]
fn routers_add_fields_of_their_own() {
    let server = Server::new();
    for (path, body) in [
        (
            CHAT,
            r#"{"messages":[{"role":"user","content":"Hi"}],"model":"tiny","logprobs":false,"max_completion_tokens":5,"stream":false,"no_stop_trim":false,"ignore_eos":false,"continue_final_message":false,"skip_special_tokens":true,"separate_reasoning":true,"stream_reasoning":true,"return_hidden_states":false}"#,
        ),
        (
            TEXT,
            r#"{"model":"tiny","prompt":"Hi","max_tokens":5,"stream":false,"echo":false,"no_stop_trim":false,"ignore_eos":false,"skip_special_tokens":true,"return_hidden_states":false}"#,
        ),
    ] {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
