//! `dunlin serve` as clients meet it: a tiny random model for what needs no sense, the default model
//! where this machine has it.

mod bench;
mod faults;

#[path = "../run/support.rs"]
#[allow(dead_code, reason = "shared with the tests of `dunlin run`")]
mod support;

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use support::Dunlin;

/// A server process; it is killed when dropped.
struct Server {
    child: Child,
    address: String,
    model: String,
}

impl Server {
    fn start(dunlin: &Dunlin, args: &[&str]) -> Self {
        let mut command = dunlin.command("serve");
        let mut child =
            command.args(["--port", "0"]).args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (model, address) = loop {
            let line = lines.next().expect("the server starts").unwrap();
            let told =
                line.strip_prefix("dunlin: ").and_then(|l| l.split_once(" is served on http://"));
            if let Some((model, address)) = told {
                break (model.to_string(), address.to_string());
            }
        };
        // What it still has to say must not block it.
        thread::spawn(move || lines.count());
        Self { child, address, model }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(120)))
            .build()
            .into();
        let answer = agent
            .post(format!("http://{}{path}", self.address))
            .header("content-type", "application/json")
            .send(body.to_string());
        let text = answer.unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Sends a request and leaves its answer to be read.
    fn open(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// A gauge or counter of the metrics.
    fn metric(&self, name: &str) -> f64 {
        let text = ureq::get(format!("http://{}/metrics", self.address)).call().unwrap();
        let text = text.into_body().read_to_string().unwrap();
        let line = text.lines().find(|line| line.split(['{', ' ']).next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn wait_for(&self, name: &str, value: f64) {
        let started = Instant::now();
        while self.metric(name) != value {
            assert!(started.elapsed() < Duration::from_secs(60), "{name}: {}", self.metric(name));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text of a streamed answer.
fn streamed(mut stream: TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(all.contains("data: [DONE]"), "{all}");
    let events = all.lines().filter_map(|line| line.strip_prefix("data: {"));
    let events = events.map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap());
    let text = events.map(|event| {
        let choice = &event["choices"][0];
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        text.unwrap_or_default().to_string()
    });
    text.collect()
}

#[test]
fn answers_are_those_of_the_command_line() {
    let dunlin = Dunlin::tiny();
    let server = Server::start(&dunlin, &[]);
    let told = ["-p", "heron", "--raw", "--temperature", "0", "-n", "20", "--ignore-eos"];
    let run = dunlin.json(&told);
    let body = json!({
        "prompt": "heron", "temperature": 0, "max_tokens": 20, "ignore_eos": true, "logprobs": 1,
    });
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer["model"], server.model);
    assert_eq!(answer["choices"][0]["text"], run["text"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 20);
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    // Sampled, in a chat, with a seed: the same text again, streamed or not, alone or beside others.
    let chat = [
        "-p",
        "heron",
        "--temperature",
        "0.9",
        "--seed",
        "7",
        "-n",
        "20",
        "--top-k",
        "0",
        "--top-p",
        "1",
        "--min-p",
        "0",
        "--penalty-window",
        "-1",
    ];
    let run = dunlin.json(&chat);
    let mut body = json!({
        "messages": [{"role": "user", "content": "heron"}], "temperature": 0.9, "seed": 7,
        "max_tokens": 20,
    });
    let answer = server.post("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], run["text"]);
    body["stream"] = true.into();
    let streams: Vec<_> = (0..4).map(|_| server.open("/v1/chat/completions", &body)).collect();
    for stream in streams {
        assert_eq!(streamed(stream), run["text"].as_str().unwrap());
    }
    // The prompt's KV was there for all but the first.
    let again =
        server.post("/v1/completions", &json!({"prompt": "a".repeat(100), "max_tokens": 1}));
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let again =
        server.post("/v1/completions", &json!({"prompt": "a".repeat(100), "max_tokens": 1}));
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    // All protocols end at the same text.
    let body = json!({
        "model": server.model, "max_tokens": 5, "temperature": 0,
        "messages": [{"role": "user", "content": "heron"}],
    });
    let anthropic = server.post("/v1/messages", &body);
    let openai = server.post("/v1/chat/completions", &body);
    let text = &openai["choices"][0]["message"]["content"];
    assert_eq!(anthropic["content"][0]["text"], *text);
    let ollama = json!({
        "model": server.model, "stream": false, "messages": body["messages"],
        "options": {"temperature": 0, "num_predict": 5, "repeat_penalty": 1},
    });
    assert_eq!(server.post("/api/chat", &ollama)["message"]["content"], *text);
}

#[test]
fn the_context_is_a_limit() {
    let server = Server::start(&Dunlin::tiny(), &["-c", "64"]);
    let error = server.post("/v1/completions", &json!({"prompt": "a".repeat(200)}));
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("200") && message.contains("64"), "{message}");
    // More tokens than fit end where the context does.
    let body = json!({"prompt": "a", "max_tokens": 1000, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["total_tokens"], 64);
}

#[test]
fn a_client_that_leaves_frees_what_it_held() {
    let server = Server::start(&Dunlin::tiny(), &["--no-prefix-cache", "--parallel", "40"]);
    let body = json!({"prompt": "heron", "max_tokens": 100_000, "ignore_eos": true, "stream": true, "n": 2});
    for _ in 0..3 {
        let mut stream = server.open("/v1/completions", &body);
        let mut some = [0; 2000];
        stream.read_exact(&mut some).unwrap();
        drop(stream);
        server.wait_for("vllm:num_requests_running", 0.0);
        server.wait_for("vllm:kv_cache_usage_perc", 0.0);
    }
    // One that has not got a byte yet.
    let whole = json!({"prompt": "heron", "max_tokens": 100_000, "ignore_eos": true, "n": 32});
    let stream = server.open("/v1/completions", &whole);
    server.wait_for("dunlin:requests_in_flight", 1.0);
    drop(stream);
    server.wait_for("vllm:num_requests_running", 0.0);
    server.wait_for("dunlin:requests_in_flight", 0.0);
    server.wait_for("dunlin:disconnects_total", 4.0);
    server.wait_for("vllm:kv_cache_usage_perc", 0.0);
}

#[cfg(unix)]
#[test]
fn sigterm_lets_answers_end() {
    let mut server = Server::start(&Dunlin::tiny(), &[]);
    let body = json!({"prompt": "heron", "max_tokens": 120, "ignore_eos": true, "stream": true});
    let mut stream = server.open("/v1/completions", &body);
    let mut begin = [0; 400];
    stream.read_exact(&mut begin).unwrap();
    let kill = Command::new("kill").arg("-TERM").arg(server.child.id().to_string()).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"),
        "{rest}"
    );
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let dunlin = Dunlin::tiny();
    let empty = dunlin.file("keys", "\n \n");
    let ran = dunlin.feed("serve", &["--api-key-file", empty.to_str().unwrap()], b"");
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = dunlin.feed("serve", &["--port", &port], b"");
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("cannot listen"), "{}", ran.err);
    let nowhere = dunlin.feed("serve", &["--port", "0", "--chat-template", "/nowhere"], b"");
    assert_eq!(nowhere.code, Some(1));
}

#[test]
fn the_default_model_chats() {
    const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let Some(model) = dunlin_testkit::models::find(FILE, "the_default_model_chats") else { return };
    let dunlin = Dunlin::with_model(model);
    let server = Server::start(&dunlin, &["-c", "512"]);
    let prompts = ["What is the capital of France?", "Count from one to five."];
    let bodies = prompts.map(|prompt| {
        json!({
            "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 24,
            "stream": true,
        })
    });
    // Both at once; each as if it were alone.
    let streams = bodies.each_ref().map(|body| server.open("/v1/chat/completions", body));
    for (prompt, stream) in prompts.into_iter().zip(streams) {
        let run = dunlin.json(&["-p", prompt, "--temperature", "0", "-n", "24", "-c", "512"]);
        assert_eq!(streamed(stream), run["text"].as_str().unwrap(), "{prompt}");
    }
}
