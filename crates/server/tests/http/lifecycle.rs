//! Clients that leave, floods, keep-alives, and the end of the server.

use std::{
    io::{Read as _, Write as _},
    thread,
    time::Duration,
};

use dunlin_server::{Config, Ended};

use crate::{
    client::{Answer, read_until, request},
    fake::{Server, token},
};

const CHAT: &str = "/v1/chat/completions";
const WHOLE: &str = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;
const STREAM: &str = r#"{"messages":[{"role":"user","content":"Hi"}],"stream":true}"#;

#[test]
fn a_client_that_leaves_ends_its_request() {
    let streams = [
        (CHAT, STREAM),
        ("/v1/completions", r#"{"prompt":"Hi","stream":true}"#),
        (
            "/v1/messages",
            r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":true}"#,
        ),
        ("/api/chat", r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}"#),
        ("/api/generate", r#"{"model":"tiny","prompt":"Hi"}"#),
    ];
    let server = Server::new().holding();
    for (path, body) in streams {
        let mut stream = server.connect();
        stream.write_all(&request("POST", path, &[], body.as_bytes())).unwrap();
        read_until(&mut stream, "lo");
        server.fake.wait_for_live(1);
        drop(stream);
        server.fake.wait_for_live(0);
    }
    // Before the first byte of an answer, too: it is not streamed, so nothing has been written.
    for body in [WHOLE, r#"{"messages":[{"role":"user","content":"Hi"}],"n":2}"#] {
        let mut stream = server.connect();
        stream.write_all(&request("POST", CHAT, &[], body.as_bytes())).unwrap();
        server.fake.wait_for_live(1);
        drop(stream);
        server.fake.wait_for_live(0);
    }
    let metrics = server.get("/metrics");
    assert!(metrics.text().contains("\ndunlin:disconnects_total 7\n"), "{}", metrics.text());
    assert!(metrics.text().contains("\ndunlin:requests_in_flight 0\n"));
}

#[test]
fn floods_are_told_to_come_back() {
    let server = Server::with(Config { max_requests: 2, ..Config::default() }).holding();
    let hold = || {
        let mut stream = server.connect();
        stream.write_all(&request("POST", CHAT, &[], STREAM.as_bytes())).unwrap();
        read_until(&mut stream, "lo");
        stream
    };
    let (first, _second) = (hold(), hold());
    let refused = server.post(CHAT, WHOLE);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let body = r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#;
    assert_eq!(server.post("/v1/messages", body).json()["error"]["type"], "rate_limit_error");
    // What does not generate is served, and a place that is given up is there for the next.
    assert_eq!(server.get("/v1/models").status, 200);
    drop(first);
    server.fake.wait_for_live(1);
    hold();
}

#[test]
fn silent_streams_say_that_they_are_alive() {
    let config = Config { keep_alive: Duration::from_millis(20), ..Config::default() };
    let server = Server::with(config).holding();
    for (path, body, sign) in [
        (CHAT, STREAM, ": keep-alive\n\n"),
        (
            "/v1/messages",
            r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":true}"#,
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        ),
    ] {
        let mut stream = server.connect();
        stream.write_all(&request("POST", path, &[], body.as_bytes())).unwrap();
        read_until(&mut stream, sign);
    }
}

#[test]
fn answers_have_a_limit_in_time() {
    let timeout = Some(Duration::from_millis(100));
    let server = Server::with(Config { request_timeout: timeout, ..Config::default() }).holding();
    let answer = server.post(CHAT, WHOLE);
    assert_eq!(answer.status, 504);
    assert_eq!(answer.json()["error"]["code"], "request_timeout");
    let text = server.post(CHAT, STREAM).text().to_string();
    assert!(text.contains("request_timeout") && text.ends_with("data: [DONE]\n\n"), "{text}");
    server.fake.wait_for_live(0);
}

#[test]
fn a_slow_reader_gets_everything() {
    let chunks: Vec<_> = (0..3000).map(|i| token(&format!("{i:0>60} "))).collect();
    let mut script = chunks;
    script.push(crate::fake::end(dunlin_server::service::Finish::StopToken));
    script.push(crate::fake::usage(7, 0, 3000));
    let server = Server::new().script(script);
    let mut stream = server.connect();
    stream
        .write_all(&request("POST", "/v1/completions", &[], br#"{"prompt":"Hi","stream":true}"#))
        .unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        thread::sleep(Duration::from_millis(2));
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            n => all.extend_from_slice(&buffer[..n]),
        }
    }
    let answer = Answer::parse(&all);
    for i in [0, 1499, 2999] {
        assert!(answer.text().contains(&format!("{i:0>60} ")), "{i}");
    }
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
}

#[test]
fn a_client_that_stops_reading_is_let_go_of() {
    let timeout = Duration::from_millis(200);
    let chunks = (0..100_000).map(|_| token(&"x".repeat(200))).collect();
    let server =
        Server::with(Config { write_timeout: timeout, ..Config::default() }).script(chunks);
    let mut stream = server.connect();
    stream.write_all(&request("POST", CHAT, &[], STREAM.as_bytes())).unwrap();
    read_until(&mut stream, "xxx");
    server.fake.wait_for_live(0);
    assert!(server.get("/metrics").text().contains("\ndunlin:disconnects_total 1\n"));
}

#[test]
fn requests_under_way_are_answered_before_the_end() {
    let mut server = Server::new().holding();
    let mut stream = server.connect();
    stream.write_all(&request("POST", CHAT, &[], STREAM.as_bytes())).unwrap();
    read_until(&mut stream, "lo");
    // A connection that is kept open is served until then.
    let mut idle = server.connect();
    idle.write_all(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    read_until(&mut idle, "ok");
    server.stop();
    // Its end is seen by those who wait on it.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // Nothing new is taken.
    while let Ok(mut late) = std::net::TcpStream::connect(server.address) {
        // It may have been in the system's queue; then it is closed unheard.
        let _ = late.write_all(&request("GET", "/health", &[], b""));
        let mut bytes = Vec::new();
        let _ = late.read_to_end(&mut bytes);
        assert!(bytes.is_empty(), "{}", String::from_utf8_lossy(&bytes));
    }
    // The one under way goes on until it ends.
    assert_eq!(server.fake.live.load(std::sync::atomic::Ordering::SeqCst), 1);
    drop(stream);
    assert_eq!(server.join(), Ended::Drained);
}

#[test]
fn a_request_that_does_not_end_is_cut_off() {
    let config = Config { drain_timeout: Duration::from_millis(100), ..Config::default() };
    let mut server = Server::with(config).holding();
    let mut stream = server.connect();
    stream.write_all(&request("POST", CHAT, &[], STREAM.as_bytes())).unwrap();
    read_until(&mut stream, "lo");
    assert_eq!(server.join(), Ended::CutOff);
    server.fake.wait_for_live(0);
}

#[test]
fn connections_are_kept_and_used_again() {
    let server = Server::new();
    let mut stream = server.connect();
    for _ in 0..3 {
        let body = WHOLE;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        read_until(&mut stream, "cached_tokens");
        stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        read_until(&mut stream, "path_not_found");
    }
}
