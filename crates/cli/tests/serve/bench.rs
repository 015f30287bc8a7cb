//! `dunlin bench serve` on our own server and on one that misbehaves in every way.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    Server,
    support::{Dunlin, Ran},
};

/// `dunlin bench serve --json` on a server; without a model of its own unless `verify`.
fn bench(dunlin: &Dunlin, address: &str, verify: bool, args: &[&str]) -> (Ran, Value) {
    let url = format!("http://{address}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    // What the tests' own command sets up, but for the model.
    for (name, value) in dunlin.command("bench").get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["bench", "serve", "--json", "--url", &url]).args(args);
    if verify {
        command.arg("-m").arg(&dunlin.model);
    }
    let ran: Ran = command.output().unwrap().into();
    let report = serde_json::from_str(&ran.out).unwrap_or(Value::Null);
    (ran, report)
}

#[test]
fn every_answer_is_the_engines_own() {
    let dunlin = Dunlin::tiny();
    let server = Server::start(&dunlin, &["-c", "512", "--api-key", "k"]);
    let key = ["--api-key", "k"];
    let lengths = ["--prompt-tokens", "5-40", "--output-tokens", "3-9"];
    let common = ["--shared-prefix-tokens", "70"];
    let rate = ["--rate", "200", "--requests", "24"];
    let clients = ["--clients", "5", "--requests", "15"];
    for args in [
        [&rate[..], &lengths].concat(),
        [&rate[..], &lengths, &common, &["--temperature", "0.8", "--burstiness", "3"]].concat(),
        [&clients[..], &lengths, &["--endpoint", "chat", "--temperature", "1"]].concat(),
        // A token for each byte of a word: they have to fit.
        [&clients[..], &["--text-prompts", "--prompt-tokens", "5-20", "--stop-at-eos"]].concat(),
    ] {
        let (ran, report) = bench(&dunlin, &server.address, true, &[&args[..], &key].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {} {report:#}", ran.err);
        let requests = &report["requests"];
        assert!(requests == 24 || requests == 15, "{report:#}");
        assert_eq!(report["failed"], 0, "{report:#}");
        assert_eq!(report["verified"]["equal"], *requests, "{report:#}");
        assert_eq!(report["setting"]["model"], server.model);
        for spread in ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"] {
            let s = &report[spread];
            let at = |name: &str| s[name].as_f64().unwrap();
            assert!(at("p50") > 0.0 && at("p50") <= at("p99") && at("p99") <= at("max"), "{s}");
        }
        assert!(report["output_tokens_per_s"].as_f64() > Some(0.0));
        if args.contains(&"--shared-prefix-tokens") {
            // The warm-up has computed the whole blocks of the 70 tokens.
            assert!(report["tokens"]["cached"].as_u64() >= Some(24 * 64), "{report:#}");
        }
    }
    // The key is needed, and not told.
    let (ran, _) = bench(&dunlin, &server.address, false, &["--rate", "9", "--api-key", "other"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("401") && !ran.err.contains("other"), "{}", ran.err);
}

#[test]
fn traces_keep_their_order_of_waiting() {
    let dunlin = Dunlin::tiny();
    let server = Server::start(&dunlin, &["-c", "512"]);
    // Two turns of a conversation: the second may only go when the first has ended.
    let turns = "{\"arrival_ns\":0,\"prompt_tokens\":64,\"output_tokens\":30,\"session\":7,\
                 \"pieces\":[[7,64]]}\n\
                 {\"arrival_ns\":1000,\"prompt_tokens\":128,\"output_tokens\":4,\"session\":7,\
                 \"turn\":1,\"wait\":\"previous_turn\",\"delay_ns\":1000,\"pieces\":[[7,128]]}\n";
    let orphan = "{\"arrival_ns\":2000,\"prompt_tokens\":4,\"output_tokens\":4,\"session\":9,\
                  \"turn\":1,\"wait\":\"previous_turn\"}\n";
    let trace = dunlin.file("turns.jsonl", format!("{turns}{orphan}"));
    let trace = trace.to_str().unwrap();
    let (ran, report) = bench(&dunlin, &server.address, true, &["--trace", trace]);
    assert_eq!(ran.code, Some(0), "{} {report:#}", ran.err);
    assert_eq!(report["errors"], json!({"never_ready": 1}), "{report:#}");
    assert_eq!((&report["succeeded"], &report["peak_concurrency"]), (&2.into(), &1.into()));
    assert_eq!(report["verified"]["equal"], 2);
    assert!(report["tokens"]["cached"].as_u64() >= Some(32), "{report:#}");
    // Lengths only, divided; all at once.
    let pairs =
        dunlin.file("pairs.csv", "num_prefill_tokens,num_decode_tokens\n80,16\n160,24\n40,8\n");
    let pairs = pairs.to_str().unwrap();
    let (_, report) = bench(&dunlin, &server.address, false, &["--trace", pairs, "--scale", "4"]);
    let tokens = &report["tokens"];
    assert_eq!((&tokens["prompt"], &tokens["output"]), (&70.into(), &12.into()), "{report:#}");
    let (ran, _) = bench(&dunlin, &server.address, false, &["--trace", "/nonexistent"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
}

/// How the stub answers a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Good,
    /// Closes without an answer.
    Drops,
    Status(u16),
    /// Ends the connection in the middle of a stream.
    Half,
    /// Ends the stream in good order, but without `[DONE]`.
    NoEnd,
    Html,
    /// A stream of lines that are no events.
    Lines,
    /// An event that is no JSON.
    NoJson,
    /// An error within the stream.
    Reports,
    NoReason,
    /// Fewer tokens than were asked for.
    Short,
    /// An answer without a token.
    Empty,
    /// Says nothing more after the first token.
    Silent,
}

/// A server that answers its requests in these ways, one after another, one at a time.
struct Stub {
    address: String,
}

impl Stub {
    fn start(ways: Vec<Way>, delay: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let posts = asked.clone();
                // Silence must not keep others from being answered.
                let next = ways[posts.load(Ordering::SeqCst) % ways.len()];
                let serve = move || {
                    let _ = answer(stream, next, delay, &posts);
                };
                if next == Way::Silent {
                    thread::spawn(serve);
                } else {
                    serve();
                }
            }
        });
        Self { address }
    }
}

fn answer(
    mut stream: TcpStream,
    way: Way,
    delay: Duration,
    posts: &AtomicUsize,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if !first.starts_with("POST") {
        let (status, text) = match first.split(' ').nth(1) {
            Some("/v1/models") => (200, r#"{"data": [{"id": "stub"}]}"#),
            _ => (404, "{}"),
        };
        return whole(&mut stream, status, "application/json", text);
    }
    posts.fetch_add(1, Ordering::SeqCst);
    thread::sleep(delay);
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let wanted = asked["max_tokens"].as_u64().unwrap();
    let piece = r#"data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}"#;
    let last = r#"data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}"#;
    let usage = |tokens: u64| {
        format!(
            r#"data: {{"choices": [], "usage": {{"prompt_tokens": 3, "completion_tokens": {tokens}}}}}"#
        )
    };
    let pieces = |n: u64| vec![piece.to_string(); n as usize];
    let end = |tokens| vec![last.to_string(), usage(tokens), "data: [DONE]".to_string()];
    let events = match way {
        Way::Drops => return Ok(()),
        Way::Status(status) => {
            return whole(&mut stream, status, "application/json", r#"{"error": "no"}"#);
        }
        Way::Html => return whole(&mut stream, 200, "text/html", "<html>"),
        Way::Good => [vec![": alive".into()], pieces(wanted), end(wanted)].concat(),
        Way::Half | Way::Silent | Way::NoEnd => pieces(1),
        Way::Lines => vec!["hello".into()],
        Way::NoJson => vec![piece.to_string(), "data: {\"choices\": [".into()],
        Way::Reports => vec![piece.to_string(), r#"data: {"error": {"message": "x"}}"#.into()],
        Way::NoReason => [pieces(wanted), vec!["data: [DONE]".to_string()]].concat(),
        Way::Short => [pieces(1), end(1)].concat(),
        Way::Empty => end(0),
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    for event in events {
        let event = format!("{event}\n\n");
        write!(stream, "{:x}\r\n{event}\r\n", event.len())?;
    }
    match way {
        Way::Half => return Ok(()),
        Way::Silent => thread::sleep(Duration::from_secs(20)),
        _ => write!(stream, "0\r\n\r\n")?,
    }
    Ok(())
}

fn whole(stream: &mut TcpStream, status: u16, kind: &str, text: &str) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{text}",
        text.len()
    )
}

#[test]
fn every_way_to_misbehave_has_a_name() {
    let ways = [
        (Way::Good, None),
        (Way::Drops, Some("connection")),
        (Way::Status(500), Some("http_500")),
        (Way::Status(429), Some("http_429")),
        (Way::Half, Some("cut_off")),
        (Way::NoEnd, Some("cut_off")),
        (Way::Html, Some("not_a_stream")),
        (Way::Lines, Some("malformed")),
        (Way::NoJson, Some("malformed")),
        (Way::Reports, Some("reported")),
        (Way::NoReason, Some("unfinished")),
        (Way::Short, Some("short")),
        (Way::Empty, Some("empty")),
        (Way::Silent, Some("timeout")),
        (Way::Good, None),
    ];
    let dunlin = Dunlin::tiny();
    let stub = Stub::start(ways.iter().map(|w| w.0).collect(), Duration::ZERO);
    let requests = ways.len().to_string();
    let args = [
        "--clients",
        "1",
        "--requests",
        &requests,
        "--warm-up",
        "0",
        "--output-tokens",
        "3",
        "--timeout",
        "4",
    ];
    let (ran, report) = bench(&dunlin, &stub.address, false, &args);
    assert_eq!(ran.code, Some(0), "{} {report:#}", ran.err);
    let mut expected = std::collections::BTreeMap::new();
    for (_, kind) in ways {
        if let Some(kind) = kind {
            *expected.entry(kind).or_insert(0) += 1;
        }
    }
    assert_eq!(report["errors"], json!(expected), "{report:#}");
    assert_eq!((&report["succeeded"], &report["tokens"]["output"]), (&2.into(), &6.into()));
    assert_eq!(report["goodput"]["requests"], 2);
    assert_eq!(report["setting"]["prompts_are_tokens"], false, "its vocabulary is not known");
    // What it answers is not what the engine does, which is told and is a failure.
    let stub = Stub::start(vec![Way::Good], Duration::ZERO);
    let args = ["--clients", "2", "--requests", "3", "--output-tokens", "3"];
    let (ran, report) = bench(&dunlin, &stub.address, true, &args);
    assert_eq!(ran.code, Some(1), "{report:#}");
    assert_eq!(report["verified"]["equal"], 0);
    assert_eq!(report["verified"]["differences"].as_array().unwrap().len(), 3);
}

/// Requests come faster than they are answered: the waits that pile up are in the times, whether
/// they are the server's or, with one request at a time, the client's own.
#[test]
fn no_wait_is_omitted() {
    let dunlin = Dunlin::tiny();
    let delay = Duration::from_millis(20);
    let args = ["--rate", "2000", "--requests", "20", "--output-tokens", "2", "--slo-ttft-ms"];
    for in_flight in ["100", "1"] {
        let stub = Stub::start(vec![Way::Good], delay);
        let args = [&args[..], &["150", "--max-in-flight", in_flight]].concat();
        let (ran, report) = bench(&dunlin, &stub.address, false, &args);
        assert_eq!(ran.code, Some(0), "{} {report:#}", ran.err);
        let max = report["ttft_ms"]["max"].as_f64().unwrap();
        // The last waits for 20 answers of 20 ms; the arrivals of all take about 10 ms.
        assert!(max > 250.0, "{report:#}");
        assert!(report["goodput"]["requests"].as_u64() < Some(15), "{report:#}");
        let late = report["late"]["requests"].as_u64();
        assert!(in_flight != "1" || late > Some(10), "{report:#}");
    }
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let dunlin = Dunlin::tiny();
    let stub = Stub::start(vec![Way::Good], Duration::ZERO);
    for (args, says) in [
        (&["--rate", "0"][..], "--rate"),
        (&["--rate", "nan"], "--rate"),
        (&["--rate", "1", "--clients", "2"], "cannot be used with"),
        (&[], "required"),
        (&["--clients", "0"], "--clients"),
        (&["--rate", "1", "--prompt-tokens", "x"], "64-256"),
        (&["--rate", "1", "--requests", "0"], "--requests"),
    ] {
        let (ran, _) = bench(&dunlin, &stub.address, false, args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
    }
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
    let (ran, _) = bench(&dunlin, &free, false, &["--rate", "1"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains(&free), "{}", ran.err);
}
