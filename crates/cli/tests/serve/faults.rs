//! What must not happen to a server: that it loses memory or KV to clients that mean harm, that others'
//! answers change meanwhile, and that a model's file takes it along.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::{Value, json};

use super::{Server, streamed, support::Dunlin};

/// Sends bytes, and gives back what comes until the connection ends.
fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request's bytes, after which the connection ends.
fn bytes(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Answers that go on for long.
fn long(prompt: &str, extra: &Value) -> Vec<u8> {
    let mut body =
        json!({"prompt": prompt, "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    bytes("/v1/completions", body.to_string().as_bytes())
}

/// Requests that cannot be used; each is the request's own fault.
fn useless(server: &Server) {
    let deep = format!("{{\"prompt\":{}{}}}", "[".repeat(9000), "]".repeat(9000));
    let stops = json!({"prompt": "a", "stop": vec!["x"; 10_000]}).to_string();
    for body in [&b"{"[..], b"\xff\xfe", b"[]", deep.as_bytes(), stops.as_bytes()] {
        assert_eq!(status(&raw(server, &bytes("/v1/completions", body))), 400);
    }
    let branches = |depth: usize| {
        (0..depth).fold(json!({"type": "null"}), |inner, _| json!({"anyOf": [inner, inner]}))
    };
    let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}});
    for form in [
        json!({"json_schema": {"type": "nothing"}}),
        json!({"json_schema": {"type": "object", "patternProperties": {"(": {}}}}),
        json!({"json_schema": {"type": "string", "pattern": "(?=a)"}}),
        json!({"json_schema": {"not": {}}}),
        json!({"json_schema": endless}),
        json!({"json_schema": {"type": "string", "pattern": "((a{1,99}){1,99}){1,99}b"}}),
        json!({"regex": "(a{1,1000}){1,1000}{1,1000}"}),
        json!({"regex": "("}),
        json!({"grammar": "start: start"}),
        json!({"grammar": "root ::= nothing"}),
        json!({"json_schema": branches(10)}),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 4});
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let answer = raw(server, &bytes("/v1/completions", body.to_string().as_bytes()));
        // Refused or followed, and never let go of.
        let code = status(&answer);
        assert!(code == 400 || code == 200, "{form}: {answer}");
        assert!(code == 400 || form.get("grammar").is_none(), "{form}: {answer}");
    }
}

/// Clients that leave: while they send, while they wait for a place, while their prompt is computed,
/// and while they read.
fn leavers(server: &Server) {
    let prompt = "heron ".repeat(60);
    let requests = [
        long(&prompt, &json!({})),
        long(&prompt, &json!({"n": 2})),
        long("a", &json!({"stream": false})),
        long("a", &json!({"regex": "[a-z]{2,}"})),
    ];
    let mut open = Vec::new();
    for request in &requests {
        for cut in [10, request.len() / 2, request.len()] {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(&request[..cut]).unwrap();
            open.push(stream);
        }
    }
    for (i, mut stream) in open.into_iter().enumerate() {
        match i % 4 {
            0 => drop(stream),
            1 => stream.shutdown(Shutdown::Both).unwrap(),
            // Closed by half; the rest when this ends.
            2 => stream.shutdown(Shutdown::Write).unwrap(),
            _ => {
                let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(20)));
                let _ = stream.read(&mut [0; 300]);
            }
        }
    }
}

fn flood(server: &Server) {
    let body = json!({"prompt": "heron", "max_tokens": 3}).to_string();
    let request = bytes("/v1/completions", body.as_bytes());
    thread::scope(|scope| {
        let asking: Vec<_> =
            (0..24).map(|_| scope.spawn(|| status(&raw(server, &request)))).collect();
        for asked in asking {
            let status = asked.join().unwrap();
            assert!(status == 200 || status == 429, "{status}");
        }
    });
}

#[test]
fn nothing_is_lost_to_clients_that_mean_harm() {
    let args = ["-c", "512", "--no-prefix-cache", "--max-requests", "12", "--parallel", "4"];
    let server = Server::start(&Dunlin::tiny(), &args);
    let witness = json!({"prompt": "heron", "max_tokens": 60, "ignore_eos": true, "stream": true,
        "temperature": 0.9, "seed": 5});
    let witness = bytes("/v1/completions", witness.to_string().as_bytes());
    let ask = || {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(&witness).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        // A flood may have taken all places.
        (head == *b"HTTP/1.1 200").then(|| streamed(stream))
    };
    let alone = ask().unwrap();
    assert!(!alone.is_empty());
    let (files, mut held) = (server.metric("process_open_fds"), Vec::new());
    for _ in 0..8 {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let same = scope.spawn(|| {
                let mut answers = 0;
                while !over.load(Ordering::Relaxed) || answers == 0 {
                    if let Some(text) = ask() {
                        assert_eq!(text, alone, "others do not change an answer");
                        answers += 1;
                    }
                }
            });
            useless(&server);
            leavers(&server);
            flood(&server);
            over.store(true, Ordering::Relaxed);
            same.join().unwrap();
        });
        for gauge in [
            "dunlin:requests_in_flight",
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
        ] {
            server.wait_for(gauge, 0.0);
        }
        held.push(server.metric("process_resident_memory_bytes"));
    }
    server.wait_for("process_open_fds", files);
    // What the first rounds made once and for all stays.
    let more = (held[7] - held[2]) / f64::from(1 << 20);
    assert!(more < 16.0, "{more:.1} MiB more than five rounds before: {held:?}");
}

/// The files that a server has mapped.
fn mapped(dunlin: &Dunlin) -> Vec<PathBuf> {
    let packs = dunlin.packs();
    assert!(!packs.is_empty());
    packs.into_iter().chain([dunlin.model.clone()]).collect()
}

fn answer(server: &Server) -> Value {
    server.post("/v1/completions", &json!({"prompt": "heron", "max_tokens": 9, "temperature": 0}))
}

#[test]
fn a_model_whose_files_vanish_is_served_on() {
    let dunlin = Dunlin::tiny();
    let server = Server::start(&dunlin, &[]);
    let before = answer(&server)["choices"].clone();
    for path in mapped(&dunlin) {
        fs::remove_file(&path).unwrap();
        // Another takes the name.
        fs::write(&path, b"no model").unwrap();
    }
    assert_eq!(answer(&server)["choices"], before);
    assert!(before[0]["text"].is_string(), "{before}");
}

#[cfg(unix)]
#[test]
fn a_file_that_is_shortened_is_told_of() {
    let dunlin = Dunlin::tiny();
    let server = Server::start(&dunlin, &[]);
    assert!(answer(&server)["choices"].is_array());
    let shorten = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let packs = dunlin.packs();
    packs.iter().for_each(|path| shorten(path));
    let error = answer(&server);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("shortened"), "{error}");
    assert!(!message.contains('/'), "no path: {error}");
    let health = raw(&server, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(status(&health), 503, "{health}");
}
