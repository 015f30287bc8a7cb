//! Bodies of requests: read within limits, decoded with errors that name the field.

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use crate::{config::Config, error::ApiError};

/// Reads and decodes a JSON body.
///
/// # Errors
/// Bodies that are too large or too slow, are no JSON, or have fields of other types.
pub async fn read_json<T: DeserializeOwned>(
    request: Request<Body>,
    config: &Config,
) -> Result<T, ApiError> {
    decode(&read(request, config).await?)
}

async fn read(request: Request<Body>, config: &Config) -> Result<Vec<u8>, ApiError> {
    let limit = config.max_body_bytes;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    // Refused before it is sent, where the client waits for an answer to its headers.
    if length.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let encoding = request.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let message = "the body is compressed: this server reads plain bodies only";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::new(status, "compressed_body", message));
    }
    let body = Limited::new(request.into_body(), limit).collect();
    match tokio::time::timeout(config.body_timeout, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Ok(Err(_)) => {
            Err(ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", "the body is incomplete"))
        }
        Err(_) => {
            let message = "the body took too long to arrive";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than the {limit} bytes that are allowed");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

/// Decodes JSON; what is wrong with it is told without showing any of it.
///
/// # Errors
/// What is no JSON, and fields that are unknown, missing or of another type.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // The decoder would take an array for a struct's fields in their order.
    if body.trim_ascii_start().first() == Some(&b'[') {
        let message = "the body cannot be used: it must be an object";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let result = T::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    let result = result.and_then(|value| json.end().map(|()| value));
    result.map_err(|error| {
        let path = track.path().to_string();
        let path = if path == "." { "" } else { path.as_str() };
        explain(&error, path)
    })
}

/// An error of the decoder in our words. Its own quote the value.
fn explain(error: &serde_json::Error, path: &str) -> ApiError {
    if error.classify() != serde_json::error::Category::Data {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let problem = match text.split(" at line ").next() {
            Some("number out of range") if !path.is_empty() => {
                return ApiError::field(path, "the number is out of range");
            }
            Some("recursion limit exceeded") => "it is nested too deeply",
            Some("number out of range") => "a number is out of range",
            Some("invalid unicode code point") => "its text is not UTF-8",
            _ if error.is_eof() => "it ends too early",
            _ => "it is no JSON",
        };
        let message = format!("the body cannot be read: {problem} (line {line}, column {column})");
        return ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    }
    let text = error.to_string();
    // Names of fields are quoted in backticks.
    let named = |text: &str| text.split('`').nth(1).unwrap_or_default().to_string();
    let inside = |name: String| match path {
        "" => name,
        _ if path == name || path.ends_with(&format!(".{name}")) => path.to_string(),
        _ => format!("{path}.{name}"),
    };
    if text.starts_with("unknown field") {
        let field = inside(named(&text));
        let field = if field.len() > 100 { path.to_string() } else { field };
        return ApiError {
            code: Some("unknown_field"),
            ..ApiError::field(field, "there is no such field")
        };
    }
    if text.starts_with("missing field") {
        return ApiError::field(inside(named(&text)), "it is missing");
    }
    if text.starts_with("duplicate field") {
        return ApiError::field(inside(named(&text)), "it is given twice");
    }
    let wanted = text.rsplit_once(", expected ").map(|(_, wanted)| wanted);
    let wanted = wanted.and_then(|w| w.split(" at line ").next());
    let problem = match wanted {
        Some(wanted) => format!("it must be {}", kind(wanted)),
        None => "it cannot be used".to_string(),
    };
    match path {
        "" => {
            let message = format!("the body cannot be used: {problem}");
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
        }
        path => ApiError::field(path, problem),
    }
}

/// What the decoder calls a type, in JSON's words.
fn kind(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer, 0 or more, and not too large",
        "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        _ if wanted.starts_with("struct") || wanted == "a map" => "an object",
        _ if wanted.starts_with("a sequence") => "an array",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only decoded")]
    struct Inner {
        on: Option<bool>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only decoded")]
    struct Outer {
        name: String,
        count: Option<u32>,
        heat: Option<f32>,
        inner: Option<Inner>,
        list: Option<Vec<String>>,
    }

    #[test]
    fn errors_name_the_field_and_show_no_value() {
        for (body, field, message) in [
            (
                r#"{"name":"a","count":-1}"#,
                Some("count"),
                "count: it must be an integer, 0 or more, and not too large",
            ),
            (
                r#"{"name":"a","count":1.5}"#,
                Some("count"),
                "count: it must be an integer, 0 or more, and not too large",
            ),
            (
                r#"{"name":"a","heat":"secret, expected f32"}"#,
                Some("heat"),
                "heat: it must be a number",
            ),
            (r#"{"name":5}"#, Some("name"), "name: it must be a string"),
            (
                r#"{"name":"a","inner":{"on":"x"}}"#,
                Some("inner.on"),
                "inner.on: it must be a boolean",
            ),
            (
                r#"{"name":"a","inner":{"off":1}}"#,
                Some("inner.off"),
                "inner.off: there is no such field",
            ),
            (r#"{"name":"a","inner":7}"#, Some("inner"), "inner: it must be an object"),
            (r#"{"name":"a","list":["b",7]}"#, Some("list[1]"), "list[1]: it must be a string"),
            (r#"{"name":"a","nome":1}"#, Some("nome"), "nome: there is no such field"),
            (r#"{"name":"a","name":"b"}"#, Some("name"), "name: it is given twice"),
            (r#"{"count":1}"#, Some("name"), "name: it is missing"),
            (r#"[1]"#, None, "the body cannot be used: it must be an object"),
            (
                r#"{"name":"a""#,
                None,
                "the body cannot be read: it ends too early (line 1, column 11)",
            ),
            (
                r#"{"name":"a"} x"#,
                None,
                "the body cannot be read: it is no JSON (line 1, column 14)",
            ),
            (
                r#"{"name":"a","heat":NaN}"#,
                None,
                "the body cannot be read: it is no JSON (line 1, column 20)",
            ),
            (r#"{"name":"a","heat":1e999}"#, Some("heat"), "heat: the number is out of range"),
            ("", None, "the body cannot be read: it ends too early (line 1, column 0)"),
        ] {
            let error = decode::<Outer>(body.as_bytes()).expect_err(body);
            assert_eq!(
                (error.field.as_deref(), error.message.as_str()),
                (field, message),
                "{body}"
            );
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
        }
        let error = decode::<Outer>(b"{\"name\":\"\xff\"}").unwrap_err();
        assert!(error.message.contains("not UTF-8"), "{}", error.message);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let error = decode::<serde_json::Value>(deep.as_bytes()).unwrap_err();
        assert!(error.message.contains("nested too deeply"), "{}", error.message);
    }
}
