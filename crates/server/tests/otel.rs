//! Traces as a collector gets them. What is sent is taken apart by the numbers of the specification
//! (opentelemetry-proto, `trace/v1/trace.proto`), not by the library that wrote it.

#[path = "http/client.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod client;
#[path = "http/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod fake;

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::mpsc,
};

use client::{read_until, request};
use dunlin_server::{Telemetry, service::ServiceError};
use fake::Server;
use serde_json::{Value, json};

/// A field of a message of protocol buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(&self) -> &'a [u8] {
        let Field::Bytes(bytes) = self else { panic!("a number") };
        bytes
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }

    fn number(&self) -> u64 {
        let Field::Number(number) = self else { panic!("bytes") };
        *number
    }
}

/// The fields of a message, by their numbers.
fn fields(mut rest: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(rest: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = rest[0];
            *rest = &rest[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at(n);
            rest = left;
            taken
        };
        let field = match key & 7 {
            0 => Field::Number(varint(&mut rest)),
            1 => Field::Number(u64::from_le_bytes(take(8).try_into().unwrap())),
            2 => {
                let length = varint(&mut rest) as usize;
                let (bytes, left) = rest.split_at(length);
                rest = left;
                Field::Bytes(bytes)
            }
            5 => Field::Number(u64::from(u32::from_le_bytes(take(4).try_into().unwrap()))),
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, field));
    }
    found
}

fn all<'a>(message: &'a [u8], number: u64) -> impl Iterator<Item = Field<'a>> {
    fields(message).into_iter().filter(move |(n, _)| *n == number).map(|(_, field)| field)
}

#[derive(Debug, Clone, Default)]
struct Span {
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    name: String,
    kind: u64,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, Value>,
    /// 2 where it failed.
    status: u64,
}

fn any_value(value: &[u8]) -> Value {
    let (number, field) = fields(value).into_iter().next().unwrap();
    match number {
        1 => field.text().into(),
        2 => (field.number() == 1).into(),
        3 => field.number().cast_signed().into(),
        4 => f64::from_bits(field.number()).into(),
        5 => all(field.bytes(), 1).map(|item| any_value(item.bytes())).collect(),
        other => panic!("a value of kind {other}"),
    }
}

fn attribute(message: &[u8]) -> (String, Value) {
    let key = all(message, 1).next().unwrap().text();
    (key, any_value(all(message, 2).next().unwrap().bytes()))
}

/// The spans of an export, and the name of the service.
fn spans(export: &[u8]) -> (Vec<Span>, String) {
    let (mut found, mut service) = (Vec::new(), String::new());
    for of_resource in all(export, 1) {
        let resource = all(of_resource.bytes(), 1).next().unwrap();
        let mut of = all(resource.bytes(), 1).map(|field| attribute(field.bytes()));
        service = of.find(|(key, _)| key == "service.name").unwrap().1.as_str().unwrap().into();
        let scopes = all(of_resource.bytes(), 2);
        let messages = scopes
            .flat_map(|scope| all(scope.bytes(), 2).map(|span| span.bytes()).collect::<Vec<_>>());
        for message in messages {
            let mut span = Span::default();
            for (number, field) in fields(message) {
                match number {
                    1 => span.trace = field.bytes().into(),
                    2 => span.id = field.bytes().into(),
                    4 => span.parent = field.bytes().into(),
                    5 => span.name = field.text(),
                    6 => span.kind = field.number(),
                    7 => span.start = field.number(),
                    8 => span.end = field.number(),
                    9 => span.attributes.extend([attribute(field.bytes())]),
                    15 => {
                        span.status = all(field.bytes(), 3).next().map_or(0, |code| code.number())
                    }
                    _ => {}
                }
            }
            found.push(span);
        }
    }
    (found, service)
}

/// A collector that hands on what it is sent.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, exports) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let head = head.to_lowercase();
                    let length = head.split("content-length: ").nth(1).unwrap();
                    let length = length.split("\r\n").next().unwrap().parse().unwrap();
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let _ = sender.send((head, body));
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    (url, exports)
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One test: what collects is the whole process's.
#[test]
fn requests_are_told_to_a_collector() {
    assert!(Telemetry::start("no address").is_err());
    let (url, exports) = collector();
    let telemetry = Telemetry::start(&url).unwrap();
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "a s3cret"}], "max_tokens": 9,
        "temperature": 0.5, "seed": 3, "stop": ["s3cret"], "stream": true});
    let parent = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    let chat = "/v1/chat/completions";
    let answer = server.send("POST", chat, &[&parent], body.to_string().as_bytes());
    assert_eq!(answer.status, 200);
    // Refused by a field, and by the engine.
    server.post(chat, r#"{"messages":[{"role":"user","content":"Hi"}],"temperature":-1}"#);
    *server.fake.refusal.lock().unwrap() = Some(ServiceError::Overloaded);
    server.post(
        "/v1/messages",
        r#"{"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#,
    );
    *server.fake.refusal.lock().unwrap() = None;
    server.post("/v1/embeddings", r#"{"input":["a","b"]}"#);
    server.post("/v1/completions", r#"{"prompt":"a","n":1}"#);
    server.get("/v1/models");
    server.get("/metrics");
    // A client that leaves in the middle.
    let server = server.holding();
    let mut stream = server.connect();
    stream.write_all(&request("POST", chat, &[], body.to_string().as_bytes())).unwrap();
    read_until(&mut stream, "lo");
    drop(stream);
    server.fake.wait_for_live(0);
    drop(server);
    drop(telemetry);
    let mut found = Vec::new();
    for (head, export) in exports.try_iter() {
        assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        assert!(!String::from_utf8_lossy(&export).contains("s3cret"));
        let (spans, service) = spans(&export);
        assert_eq!(service, "dunlin");
        found.extend(spans);
    }
    let mut requests: Vec<&Span> = found.iter().filter(|span| span.kind == 2).collect();
    requests.sort_by_key(|span| span.start);
    let names: Vec<&str> = requests.iter().map(|span| span.name.as_str()).collect();
    let expected = [
        "chat tiny",
        "POST /v1/chat/completions",
        "chat tiny",
        "embeddings tiny",
        "text_completion tiny",
        "chat tiny",
    ];
    assert_eq!(names, expected);
    for span in &requests {
        let phases = found.iter().filter(|phase| phase.parent == span.id);
        let phases: Vec<(&str, u64)> =
            phases.map(|phase| (phase.name.as_str(), phase.end - phase.start)).collect();
        let whole =
            ["chat tiny", "text_completion tiny"].contains(&&*span.name) && span.status == 0;
        // As the scripted engine says.
        let expected: &[_] =
            if whole { &[("queue", 1), ("prefill", 20), ("decode", 300)] } else { &[] };
        assert_eq!(phases, expected, "{span:?}");
        assert!(span.start > 0 && span.end >= span.start);
    }
    let first = requests[0];
    assert_eq!((hex(&first.trace), hex(&first.parent)), (TRACE.into(), PARENT.into()));
    assert!(found.iter().filter(|s| s.trace == first.trace).count() == 4, "its phases are with it");
    let attributes: Value =
        first.attributes.clone().into_iter().collect::<serde_json::Map<_, _>>().into();
    assert_eq!(
        attributes,
        json!({
            "gen_ai.operation.name": "chat",
            "gen_ai.output.type": "text",
            "gen_ai.provider.name": "dunlin",
            "gen_ai.request.max_tokens": 9,
            "gen_ai.request.model": "tiny",
            "gen_ai.request.seed": 3,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 1.0,
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.response.model": "tiny",
            "gen_ai.usage.cache_read.input_tokens": 3,
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "http.route": chat,
        })
    );
    let failures: Vec<_> = requests
        .iter()
        .map(|span| {
            let status = span.attributes["http.response.status_code"].as_i64().unwrap();
            (span.status, status, span.attributes.get("error.type").and_then(Value::as_str))
        })
        .collect();
    let expected = [
        (0, 200, None),
        (2, 400, Some("invalid_request")),
        (2, 429, Some("rate_limit_exceeded")),
        (0, 200, None),
        (0, 200, None),
        (2, 200, Some("disconnected")),
    ];
    assert_eq!(failures, expected);
    assert_eq!(requests[3].attributes["gen_ai.usage.input_tokens"], 14);
}
