//! Requests that nobody should send. Each is refused in its protocol's shape, and nothing of it
//! reaches the engine or shows in the error.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    time::{Duration, Instant},
};

use dunlin_server::{
    Config,
    service::{Health, ServiceError},
};
use serde_json::{Value, json};

use crate::{
    client::{Answer, request},
    fake::Server,
};

const CHAT: &str = "/v1/chat/completions";

fn refused(server: &Server, path: &str, body: impl AsRef<[u8]>, status: u16) -> Value {
    let shown = String::from_utf8_lossy(body.as_ref()).chars().take(120).collect::<String>();
    let answer = server.post(path, body);
    assert_eq!(answer.status, status, "{shown}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.body.len() < 1000, "{}", answer.text());
    let error = answer.json()["error"].clone();
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    error
}

#[test]
fn fields_that_cannot_be_used_are_named() {
    let server = Server::new();
    for (extra, field) in [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": -0.1}), "min_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"n": 0}), "n"),
        (json!({"n": 1_000_000}), "n"),
        (json!({"n": -1}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_tokens"),
        (json!({"max_tokens": 99_999_999_999_u64}), "max_tokens"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ["a", 5]}), "stop[1]"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": vec!["x"; 10_000]}), "stop"),
        (json!({"stop": "x".repeat(100_000)}), "stop"),
        (json!({"stop_token_ids": [256]}), "stop_token_ids"),
        (json!({"stop_token_ids": [-1]}), "stop_token_ids[0]"),
        (json!({"logit_bias": {"256": 1}}), "logit_bias"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 1e39}}), "logit_bias"),
        (json!({"logit_bias": []}), "logit_bias"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": 1}), "logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"usage": true}}), "stream_options.usage"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"model": 5}), "model"),
        (json!({"temprature": 1}), "temprature"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": "json"}), "response_format.type"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"regex": 5}), "regex"),
        (json!({"regex": "a", "grammar": "start: \"a\""}), "grammar"),
        (json!({"regex": "a", "ignore_eos": true}), "ignore_eos"),
        (json!({"guided_choice": ["a", 5]}), "guided_choice"),
        (json!({"structured_outputs": {"regexp": "a"}}), "structured_outputs"),
        (json!({"structured_outputs": {"regex": "a", "json": {}}}), "structured_outputs.json"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"no_stop_trim": true}), "no_stop_trim"),
        (json!({"min_tokens": 5}), "min_tokens"),
        (
            json!({"add_generation_prompt": true, "continue_final_message": true}),
            "continue_final_message",
        ),
        (json!({"chat_template_kwargs": [1]}), "chat_template_kwargs"),
        (json!({"messages": "Hi"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [5]}), "messages[0]"),
        (json!({"messages": [{"content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": 5, "content": "a"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "a", "x": 1}]}), "messages[0].x"),
        (json!({"messages": [{"role": "user", "content": "a", "name": 1}]}), "messages[0].name"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": []}]}),
            "messages[0].tool_calls",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let error = refused(&server, CHAT, body.to_string(), 400);
        // Which of the two depends on how precisely the decoder reads numbers.
        let entry = (field == "logit_bias").then_some("logit_bias.5");
        let param = error["param"].as_str();
        assert!(param == Some(field) || param.is_some() && param == entry, "{extra}: {error}");
        assert!(error["message"].as_str().unwrap().starts_with(field), "{error}");
    }
    for (body, field) in [
        (json!({}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt"),
        (json!({"prompt": ["a", "b"]}), "prompt"),
        (json!({"prompt": [256]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": "a", "logprobs": 6}), "logprobs"),
        (json!({"prompt": "a", "echo": true, "logprobs": 1}), "echo"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "best_of": 2}), "best_of"),
    ] {
        assert_eq!(refused(&server, "/v1/completions", body.to_string(), 400)["param"], field);
    }
    assert!(server.fake.seen.lock().unwrap().is_empty());
}

#[test]
fn bodies_that_cannot_be_read() {
    let server = Server::new();
    for body in [
        &b"{"[..],
        b"[]",
        b"null",
        b"\"text\"",
        b"{\"messages\":[{\"role\":\"user\",\"content\":NaN}]}",
        b"{\"messages\":[],}",
        b"{\"messages\":[]}{}",
        b"\xff\xfe",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\x28\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}",
        b"{\"temperature\":1e999,\"messages\":[]}",
        b"{\"messages\":[],\"messages\":[]}",
    ] {
        refused(&server, CHAT, body, 400);
    }
    for depth in [200, 200_000] {
        let deep = format!("{{\"messages\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let error = refused(&server, CHAT, deep, 400);
        assert!(error["message"].as_str().unwrap().contains("nested too deeply"), "{error}");
    }
    let empty = server.send("POST", CHAT, &["Content-Length: 0"], b"");
    assert_eq!(empty.status, 400);
    for (encoding, status) in [("gzip", 415), ("br, gzip", 415), ("Identity", 200)] {
        let body = json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string();
        let header = format!("Content-Encoding: {encoding}");
        let answer = server.send("POST", CHAT, &[&header], body.as_bytes());
        assert_eq!(answer.status, status, "{encoding}: {}", answer.text());
    }
}

#[test]
fn errors_show_nothing_of_the_request() {
    let server = Server::new();
    for body in [
        json!({"messages": [{"role": "user", "content": "Hi"}], "temperature": "s3cret"}),
        json!({"messages": [{"role": "s3cret", "content": "Hi"}]}),
        json!({"messages": "s3cret"}),
        json!({"messages": [{"role": "user", "content": "Hi"}], "model": "s3cret"}),
        json!({"messages": [{"role": "user", "content": "Hi"}], "stop": {"s3cret": 1}}),
        json!({"messages": [{"role": "user", "content": "Hi"}], "speculate": "s3cret"}),
        json!({"messages": [{"role": "user", "content": "Hi"}], "speculate_accept": "s3cret"}),
        json!({"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"s3cret": 1}}),
    ] {
        let answer = server.post(CHAT, body.to_string());
        assert!((400..500).contains(&answer.status));
        assert!(!answer.text().contains("s3cret"), "{}", answer.text());
    }
    let broken = server.post(CHAT, r#"{"messages": "s3cret" oops"#);
    assert!(!broken.text().contains("s3cret"), "{}", broken.text());
}

#[test]
fn huge_bodies_are_refused_before_they_are_read() {
    let server = Server::with(Config { max_body_bytes: 1000, ..Config::default() });
    let error = refused(&server, CHAT, "x".repeat(1001), 413);
    assert_eq!(error["code"], "body_too_large");
    // In chunks, so that the length is not told in front.
    let mut chunked = request("POST", CHAT, &["Transfer-Encoding: chunked"], b"");
    for _ in 0..50 {
        chunked.extend_from_slice(b"40\r\n");
        chunked.extend_from_slice(&[b' '; 64]);
        chunked.extend_from_slice(b"\r\n");
    }
    assert_eq!(server.raw(&chunked).status, 413);
    // A length that is told and never sent: the answer comes at once.
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(server.raw(head.as_bytes()).status, 413);
    let anthropic = server.post("/v1/messages", "x".repeat(1001));
    assert_eq!(anthropic.json()["error"]["type"], "request_too_large");
    // Just small enough, it is only not JSON.
    refused(&server, CHAT, "x".repeat(1000), 400);
}

#[test]
fn headers_are_bounded_and_slow_clients_let_go() {
    let server = Server::with(Config {
        max_header_bytes: 8 << 10,
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_millis(200),
        ..Config::default()
    });
    let huge = format!("X-Huge: {}", "x".repeat(20 << 10));
    assert_eq!(server.send("GET", "/health", &[&huge], b"").status, 431);
    let many: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    assert_eq!(server.send("GET", "/health", &[many.trim_end()], b"").status, 431);
    // A body that does not come.
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{");
    let started = Instant::now();
    assert_eq!(server.raw(head.as_bytes()).status, 408);
    assert!(started.elapsed() >= Duration::from_millis(200));
    // Headers that do not come: the connection ends.
    let mut slow = server.connect();
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(rest.is_empty() || Answer::parse(&rest).status == 408);
    // A client that says no more after its head is gone.
    let mut half = server.connect();
    half.write_all(head.as_bytes()).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = half.read_to_end(&mut rest);
    assert!(rest.is_empty() || Answer::parse(&rest).status == 400);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn what_is_no_http_ends_the_connection() {
    let server = Server::new();
    for bytes in
        [&b"hello\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00", b"GET /\r\n\r\n", b"\r\n\r\n\r\n"]
    {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || Answer::parse(&rest).status == 400);
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn paths_and_methods() {
    let server = Server::new();
    for (method, path, status) in [
        ("GET", "/index.html", 404),
        ("GET", "/v1/../etc/passwd", 404),
        ("GET", "/v1/models/%2e%2e%2f", 404),
        ("GET", "/v1/models/%ff", 400),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/nothing", 404),
        ("PUT", "/v1/messages", 405),
    ] {
        let answer = server.send(method, path, &[], b"");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert!(answer.json()["error"]["message"].is_string(), "{path}: {}", answer.text());
    }
    assert_eq!(server.send("PUT", "/v1/messages", &[], b"").json()["type"], "error");
}

#[test]
fn what_the_engine_refuses() {
    let server = Server::new();
    let long = json!({"messages": [{"role": "user", "content": "a".repeat(5000)}]});
    let error = refused(&server, CHAT, long.to_string(), 400);
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("5019 tokens") && message.contains("128"), "both counts: {message}");
    let raise = json!({"messages": [{"role": "user", "content": "raise"}]});
    assert_eq!(refused(&server, CHAT, raise.to_string(), 400)["param"], "messages");
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string();
    for (refusal, status) in [
        (ServiceError::Overloaded, 429),
        (ServiceError::Unavailable, 503),
        (ServiceError::Failed("broken".into()), 500),
    ] {
        *server.fake.refusal.lock().unwrap() = Some(refusal);
        let answer = server.post(CHAT, &body);
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("retry-after").is_some(), status != 500);
    }
    *server.fake.refusal.lock().unwrap() = None;
    for health in [Health::Loading, Health::Dead, Health::Damaged] {
        *server.fake.health.lock().unwrap() = health;
        refused(&server, CHAT, &body, 503);
    }
    server.fake.models.lock().unwrap().clear();
    refused(&server, CHAT, &body, 503);
}

#[test]
fn queries_that_cannot_be_read_are_refused_like_fields() {
    let server = Server::new();
    for path in ["/v1/sessions", "/v1/sessions/a", "/v1/sessions/a/questions/q_1"] {
        let answer = server.get(&format!("{path}?model=a&model=b"));
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], "model", "{path}: {}", answer.text());
    }
}
