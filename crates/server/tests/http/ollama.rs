//! Ollama's protocol: exact bytes, and what is asked of the engine.

use dunlin_server::service::{ChatEnding, Finish, Input};
use serde_json::{Value, json};

use crate::fake::{Server, answer, model};

/// Lines of JSON without the one number that a clock makes.
fn without_total(text: &str) -> String {
    let Some((before, rest)) = text.split_once("\"total_duration\":") else { return text.into() };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    assert!(digits > 0);
    format!("{before}\"total_duration\":0{}", &rest[digits..])
}

const HEAD: &str = r#"{"model":"tiny","created_at":"2026-01-02T03:04:05.678Z","#;
const COST: &str = r#""total_duration":0,"load_duration":0,"prompt_eval_count":7,"prompt_eval_duration":20,"eval_count":3,"eval_duration":300}"#;

#[test]
fn chat() {
    let server = Server::new();
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"stream":false}"#;
    let answer = server.post("/api/chat", body);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        without_total(answer.text()),
        format!(
            "{HEAD}\"message\":{{\"role\":\"assistant\",\"content\":\"Hello\"}},\"done_reason\":\"stop\",\"done\":true,{COST}"
        )
    );
}

#[test]
fn chat_stream() {
    let server = Server::new().script(answer(&["Hel", "", "lo"], Finish::Length));
    let body = r#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post("/api/chat", body);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let line = |content: &str, rest: &str| {
        format!("{HEAD}\"message\":{{\"role\":\"assistant\",\"content\":\"{content}\"}},{rest}\n")
    };
    let expected = line("Hel", "\"done\":false}")
        + &line("lo", "\"done\":false}")
        + &line("", &format!("\"done_reason\":\"length\",\"done\":true,{COST}"));
    assert_eq!(without_total(answer.text()), expected);
}

#[test]
fn generate() {
    let server = Server::new();
    let body = r#"{"model":"tiny:latest","prompt":"Hi","stream":false,"system":"S"}"#;
    let answer = server.post("/api/generate", body);
    let head = HEAD.replace("tiny", "tiny:latest");
    assert_eq!(
        without_total(answer.text()),
        format!("{head}\"response\":\"Hello\",\"done\":true,\"done_reason\":\"stop\",{COST}")
    );
    let Input::Chat(chat) = server.fake.asked().input else { panic!() };
    assert_eq!(
        json!(chat.messages),
        json!([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}])
    );
    let lines = server.post("/api/generate", r#"{"model":"tiny","prompt":"Hi","raw":true}"#);
    let expected = format!("{HEAD}\"response\":\"Hel\",\"done\":false}}\n")
        + &format!("{HEAD}\"response\":\"lo\",\"done\":false}}\n")
        + &format!("{HEAD}\"response\":\"\",\"done\":true,\"done_reason\":\"stop\",{COST}\n");
    assert_eq!(without_total(lines.text()), expected);
    let seen = server.fake.seen.lock().unwrap();
    assert_eq!(seen[1].input, Input::Text("Hi".into()));
}

#[test]
fn nothing_to_say_only_loads() {
    let server = Server::new();
    for (path, field) in [("/api/chat", "message"), ("/api/generate", "response")] {
        let answer = server.post(path, r#"{"model":"tiny"}"#).json();
        assert_eq!(answer["done_reason"], "load");
        assert!(answer.get(field).is_some());
    }
    assert!(server.fake.seen.lock().unwrap().is_empty());
}

#[test]
fn every_option_reaches_the_engine() {
    let server = Server::new();
    let body = json!({
        "model": "tiny", "stream": false, "keep_alive": "5m", "no_such_field": 1,
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
            {"role": "tool", "content": "42", "tool_name": "f"},
            {"role": "assistant", "content": "It is"},
        ],
        "think": false,
        "options": {
            "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "typical_p": 0.75,
            "repeat_penalty": 1.5, "repeat_last_n": 9, "presence_penalty": 0.5,
            "frequency_penalty": 0.25, "seed": 3, "stop": "x", "num_predict": 5, "num_ctx": 64,
        },
    });
    let answer = server.post("/api/chat", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let asked = server.fake.asked();
    let sampling = asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.5, 7, 0.25));
    assert_eq!((sampling.min_p, sampling.typical_p), (0.125, 0.75));
    assert_eq!((sampling.repetition_penalty, sampling.penalty_window), (1.5, Some(9)));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (0.5, 0.25));
    assert_eq!((sampling.seed, asked.max_tokens), (3, Some(5)));
    assert_eq!(asked.stop_strings, ["x"]);
    let Input::Chat(chat) = asked.input else { panic!() };
    assert_eq!(chat.ending, ChatEnding::Continue);
    assert_eq!(json!(chat.variables), json!({"enable_thinking": false}));
    assert_eq!(
        json!(chat.messages[1]),
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        ]})
    );
    assert_eq!(json!(chat.messages[2]), json!({"role": "tool", "content": "42", "name": "f"}));
}

#[test]
fn models() {
    let server = Server::new();
    let details = r#"{"parent_model":"","format":"gguf","family":"llama","families":["llama"],"parameter_size":"135.00M","quantization_level":"Q4_1"}"#;
    assert_eq!(
        server.get("/api/tags").text(),
        format!(
            r#"{{"models":[{{"name":"tiny","model":"tiny","modified_at":"2023-11-14T22:13:20Z","size":1234,"digest":"00ff","details":{details}}}]}}"#
        )
    );
    let running = server.get("/api/ps").json();
    assert_eq!(running["models"][0]["name"], "tiny");
    assert_eq!(running["models"][0]["context_length"], 128);
    let shown = server.post("/api/show", r#"{"model":"tiny"}"#).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
    assert_eq!(shown["model_info"]["llama.context_length"], 128);
    assert_eq!(shown["details"], serde_json::from_str::<Value>(details).unwrap());
    *server.fake.models.lock().unwrap() = vec![model("plain", None)];
    let shown = server.post("/api/show", r#"{"name":"plain"}"#).json();
    assert_eq!(shown["capabilities"], json!(["completion"]));
    let version = server.get("/api/version").json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
}

/// The scripted engine's hidden state is (3, 0, -4).
#[test]
fn embeddings() {
    let server = Server::new();
    let answer = server.post("/api/embed", r#"{"model":"tiny:latest","input":["a","b"]}"#);
    let expected = r#"{"model":"tiny:latest","embeddings":[[0.6,0.0,-0.8],[0.6,0.0,-0.8]],"total_duration":0,"load_duration":0,"prompt_eval_count":14}"#;
    assert_eq!(without_total(answer.text()), expected);
    let body = r#"{"model":"tiny","input":"a","dimensions":1,"truncate":false,"keep_alive":"5m"}"#;
    assert_eq!(server.post("/api/embed", body).json()["embeddings"], json!([[1.0]]));
    let answer = server.post("/api/embeddings", r#"{"model":"tiny","prompt":"a"}"#);
    assert_eq!(answer.text(), r#"{"embedding":[0.6,0.0,-0.8]}"#);
    assert!(server.fake.seen.lock().unwrap().iter().all(|asked| asked.hidden));
    for (path, body, error) in [
        ("/api/embed", r#"{"model":"tiny","input":["a",""]}"#, "input: a text is empty"),
        ("/api/embed", r#"{"model":"tiny"}"#, "input: it is missing"),
        (
            "/api/embed",
            r#"{"model":"tiny","input":"a","truncate":true}"#,
            "truncate: this server does not support it",
        ),
        ("/api/embeddings", r#"{"model":"tiny","prompt":""}"#, "prompt: the text is empty"),
    ] {
        let answer = server.post(path, body);
        assert_eq!((answer.status, answer.json()), (400, json!({"error": error})), "{body}");
    }
}

#[test]
fn errors_have_ollamas_shape() {
    let server = Server::new();
    for (path, body, status, error) in [
        (
            "/api/chat",
            r#"{"model":"x"}"#,
            404,
            "model: there is no model of this name; /v1/models lists those that there are",
        ),
        ("/api/chat", r#"{"messages":[]}"#, 400, "model: it is missing"),
        (
            "/api/chat",
            r#"{"model":"tiny","messages":[{"role":"king","content":"a"}]}"#,
            400,
            "messages[0].role: it must be system, user, assistant or tool",
        ),
        (
            "/api/chat",
            r#"{"model":"tiny","messages":[{"role":"user","content":"a","images":["x"]}]}"#,
            400,
            "messages[0].images: this server takes text alone",
        ),
        (
            "/api/chat",
            r#"{"model":"tiny","format":"yaml","messages":[{"role":"user","content":"a"}]}"#,
            400,
            "format: it must be json or a schema",
        ),
        (
            "/api/generate",
            r#"{"model":"tiny","prompt":"a","options":{"num_predict":0}}"#,
            400,
            "options.num_predict: it must be 1 or more, or -1",
        ),
        (
            "/api/generate",
            r#"{"model":"tiny","prompt":"a","options":{"temperature":"hot"}}"#,
            400,
            "options.temperature: it must be a number",
        ),
        (
            "/api/generate",
            r#"{"model":"tiny","prompt":"a","context":[1]}"#,
            400,
            "context: this server does not support it",
        ),
        ("/api/nothing", "{}", 404, "there is no such path"),
    ] {
        let answer = server.post(path, body);
        assert_eq!((answer.status, answer.json()), (status, json!({"error": error})), "{body}");
    }
}
