//! Clients that mean harm, or that break: what they hold is bounded, and others are served meanwhile.

use std::{
    io::{Read, Write},
    net::Shutdown,
    time::{Duration, Instant},
};

use dunlin_server::Config;
use serde_json::{Value, json};

use crate::{
    client::{Answer, read_until, request},
    fake::Server,
};

const CHAT: &str = "/v1/chat/completions";

fn chat(extra: &Value) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body.to_string()
}

#[test]
fn ten_thousand_stop_strings_are_refused_by_name() {
    let server = Server::new();
    let many: Vec<String> = (0..10_000).map(|i| format!("stop {i}")).collect();
    let message = json!([{"role": "user", "content": "Hi"}]);
    for (path, body, field) in [
        (CHAT, json!({"messages": message, "stop": many}), "stop"),
        ("/v1/completions", json!({"prompt": "Hi", "stop": many}), "stop"),
        (
            "/v1/messages",
            json!({"model": "tiny", "max_tokens": 1, "messages": message, "stop_sequences": many}),
            "stop_sequences",
        ),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": message, "options": {"stop": many}}),
            "stop",
        ),
        (CHAT, json!({"messages": message, "stop": "x".repeat(1 << 20)}), "stop"),
    ] {
        let answer = server.post(path, body.to_string());
        assert_eq!(answer.status, 400, "{path}");
        let text = answer.text();
        assert!(text.contains(field) && text.len() < 500, "{path}: {text}");
    }
    assert!(server.fake.seen.lock().unwrap().is_empty());
}

#[test]
fn extreme_numbers_are_refused_by_name_or_taken_as_they_are() {
    let server = Server::new();
    let raw = |field: &str, number: &str| {
        let body = chat(&json!({}));
        format!("{},\"{field}\":{number}}}", &body[..body.len() - 1])
    };
    for field in [
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    ] {
        for number in ["1e39", "-1e39", "1e308", "1e999"] {
            let answer = server.post(CHAT, raw(field, number));
            assert_eq!(answer.status, 400, "{field} {number}");
            assert_eq!(answer.json()["error"]["param"], field, "{number}: {}", answer.text());
        }
        for number in ["NaN", "Infinity", "-Infinity", "nan"] {
            assert_eq!(server.post(CHAT, raw(field, number)).status, 400, "{field} {number}");
        }
    }
    for (field, number) in [
        ("top_k", "-2"),
        ("top_k", "1e99"),
        ("n", "0"),
        ("n", "129"),
        ("n", "4294967296"),
        ("max_tokens", "-1"),
        ("max_tokens", "18446744073709551616"),
        ("seed", "1e30"),
        ("stop_token_ids", "[4294967296]"),
        ("top_logprobs", "1e9"),
    ] {
        let answer = server.post(CHAT, raw(field, number));
        assert_eq!(answer.status, 400, "{field} {number}");
        let param = answer.json()["error"]["param"].to_string();
        assert!(param.contains(field), "{field} {number}: {}", answer.text());
    }
    for (field, number) in
        [("max_tokens", "4294967295"), ("seed", "-9223372036854775808"), ("temperature", "1e-40")]
    {
        assert_eq!(server.post(CHAT, raw(field, number)).status, 200, "{field} {number}");
    }
}

#[test]
fn what_is_nested_deeply_is_refused_wherever_it_is() {
    let server = Server::new();
    let deep = |depth: usize| format!("{}1{}", r#"{"items":"#.repeat(depth), "}".repeat(depth));
    let listed = format!("[{}]", deep(5000));
    for (field, value) in [
        ("json_schema", deep(5000)),
        ("tools", listed),
        ("chat_template_kwargs", deep(5000)),
        ("structured_outputs", deep(5000)),
    ] {
        let body = chat(&json!({}));
        let body = format!("{},\"{field}\":{value}}}", &body[..body.len() - 1]);
        let answer = server.post(CHAT, body);
        assert_eq!(answer.status, 400, "{field}");
        assert!(answer.text().contains("nested too deeply"), "{field}: {}", answer.text());
    }
}

#[test]
fn those_who_drip_their_requests_are_let_go_and_others_are_served() {
    let server = Server::with(Config {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        ..Config::default()
    });
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n");
    let mut all: Vec<_> = (0..64).map(|_| server.connect()).collect();
    let started = Instant::now();
    // Half drip headers and half a body, each byte in time for the next.
    for at in 0..12 {
        for (i, stream) in all.iter_mut().enumerate() {
            let bytes: &[u8] = match (i % 2, at) {
                (0, _) => &b"GET /health HTTP/1.1\r\nX-Slow: aaaaaaaaaaaaaaaa"[at..=at],
                (_, 0) => head.as_bytes(),
                _ => b" ",
            };
            // Those that were let go of cannot be written to.
            let _ = stream.write_all(bytes);
        }
        assert_eq!(server.post(CHAT, chat(&json!({}))).status, 200);
        std::thread::sleep(Duration::from_millis(50));
    }
    for stream in &mut all {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || Answer::parse(&rest).status == 408);
    }
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn clients_that_close_half_or_all_at_any_moment_leave_nothing_behind() {
    let server = Server::new().holding();
    let body = chat(&json!({"stream": true}));
    let bytes = request("POST", CHAT, &[], body.as_bytes());
    // After each part of the request, and of the answer.
    for cut in [1, 10, bytes.len() / 2, bytes.len() - 1, bytes.len()] {
        for how in [Shutdown::Write, Shutdown::Both] {
            let mut stream = server.connect();
            stream.write_all(&bytes[..cut]).unwrap();
            let _ = stream.shutdown(how);
        }
    }
    for wanted in ["HTTP/1.1 200", "Hel", "lo"] {
        for how in [Shutdown::Write, Shutdown::Both] {
            let mut stream = server.connect();
            stream.write_all(&bytes).unwrap();
            read_until(&mut stream, wanted);
            let _ = stream.shutdown(how);
        }
    }
    server.fake.wait_for_live(0);
    let metrics = server.get("/metrics").text().to_string();
    assert!(metrics.contains("dunlin:requests_in_flight 0"), "{metrics}");
}

#[test]
fn a_flood_is_answered_and_leaves_nothing_behind() {
    let server = Server::with(Config { max_requests: 4, max_connections: 32, ..Config::default() });
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || {
            let mut statuses = Vec::new();
            for _ in 0..10 {
                statuses.push(server.post(CHAT, chat(&json!({}))).status);
            }
            statuses
        };
        let threads: Vec<_> = (0..40).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(statuses.len(), 400);
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200));
    server.fake.wait_for_live(0);
    assert_eq!(server.post(CHAT, chat(&json!({}))).status, 200);
}
