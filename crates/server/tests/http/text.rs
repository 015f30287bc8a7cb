//! `/tokenize`, `/detokenize` and `/apply-template`.

use crate::fake::Server;

#[test]
fn texts_and_tokens() {
    let server = Server::new();
    for (path, body, answer) in [
        (
            "/tokenize",
            r#"{"content":"Hi"}"#,
            r#"{"tokens":[72,105],"count":2,"max_model_len":128}"#,
        ),
        (
            "/tokenize",
            r#"{"prompt":"","model":"tiny"}"#,
            r#"{"tokens":[],"count":0,"max_model_len":128}"#,
        ),
        (
            "/tokenize",
            r#"{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}"#,
            r#"{"tokens":[117,115,101,114,58,32,34,97,34,10],"count":10,"max_model_len":128}"#,
        ),
        ("/detokenize", r#"{"tokens":[72,105,195]}"#, r#"{"content":"Hi�","prompt":"Hi�"}"#),
        (
            "/apply-template",
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
            r#"{"prompt":"user: \"a\"\nassistant:"}"#,
        ),
    ] {
        let got = server.post(path, body);
        assert_eq!((got.status, got.text()), (200, answer), "{path} {body}");
    }
}

#[test]
fn what_cannot_be_used() {
    let server = Server::new();
    for (path, body, field) in [
        ("/tokenize", "{}", "content"),
        ("/tokenize", r#"{"content":"a","prompt":"b"}"#, "content"),
        ("/tokenize", r#"{"content":1}"#, "content"),
        ("/tokenize", r#"{"text":"a"}"#, "text"),
        ("/detokenize", r#"{"tokens":[256]}"#, "tokens"),
        ("/detokenize", r#"{"tokens":[-1]}"#, "tokens[0]"),
        ("/apply-template", r#"{"messages":[{"role":"user","content":"raise"}]}"#, "messages"),
    ] {
        let got = server.post(path, body);
        assert_eq!(got.status, 400, "{body}: {}", got.text());
        assert_eq!(got.json()["error"]["param"], field, "{body}");
    }
}
