//! Errors, told in the shape of the protocol that was spoken.
//!
//! A handler returns an [`ApiError`] and knows no shape; [`shape`] writes the body afterwards, by
//! the request's path. So what axum itself refuses (an unknown path, a wrong method) and what is
//! refused before a handler (a missing key) have the right shape too.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::service::ServiceError;

/// Whose shapes and names a path uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's, and those of all endpoints that nobody has standardized.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Protocol {
    /// The protocol of a path.
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

/// A request that was not served, and why. Messages never show prompts, keys or paths.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// OpenAI's code for it, or one in its manner.
    pub code: Option<&'static str>,
    /// The field at fault, as a path: `messages[0].content`.
    pub field: Option<String>,
    /// What is wrong, for a person.
    pub message: String,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code: Some(code), field: None, message: message.into() }
    }

    /// A field that cannot be used. The message goes on from the field's name: "it must be ...".
    pub fn field(field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let field = field.into();
        let message = format!("{field}: {problem}");
        Self { status: StatusCode::BAD_REQUEST, code: None, field: Some(field), message }
    }

    /// A field that asks for what is not there yet.
    pub fn unsupported(field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self { code: Some("unsupported"), ..Self::field(field, problem) }
    }

    /// An answer that failed after it was begun.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "generation_failed", message)
    }

    /// The engine is not there: not yet, no longer, or not for new requests.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// What is named is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// Too much is going on.
    pub fn overloaded() -> Self {
        let message = "too many requests are under way or waiting, or too much is kept for \
                       sessions or grammars; try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
    }

    /// The error as a protocol writes it.
    pub fn body(&self, protocol: Protocol) -> Value {
        match protocol {
            Protocol::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.field,
                "code": self.code,
            }}),
            Protocol::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.message},
            }),
            Protocol::Ollama => json!({"error": self.message}),
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            501 => "not_implemented_error",
            503 => "service_unavailable_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        let message = error.to_string();
        match error {
            ServiceError::Unusable { field, .. } => Self {
                status: StatusCode::BAD_REQUEST,
                code: None,
                field: field.map(Into::into),
                message,
            },
            ServiceError::ContextExceeded { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
            }
            ServiceError::NotFound(_) => Self::not_found(message),
            ServiceError::Conflict(_) => Self::new(StatusCode::CONFLICT, "conflict", message),
            ServiceError::Storage(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "storage", message)
            }
            ServiceError::Overloaded => Self::overloaded(),
            ServiceError::Unavailable => Self::unavailable(message),
            ServiceError::Failed(_) => Self::failed(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the body of an answer that is an [`ApiError`]; others pass.
pub fn shape(mut response: Response, protocol: Protocol) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    match error.status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // What is left of the body is not read, so nothing can follow it.
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    // Clients of OpenAI and Anthropic retry by status unless they are told otherwise.
    if error.status == StatusCode::NOT_IMPLEMENTED {
        let name = HeaderName::from_static("x-should-retry");
        headers.insert(name, HeaderValue::from_static("false"));
    }
    *response.body_mut() = Body::from(error.body(protocol).to_string());
    response.headers_mut().remove(header::CONTENT_LENGTH);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_protocols() {
        for (path, protocol) in [
            ("/v1/chat/completions", Protocol::OpenAi),
            ("/v1/messages", Protocol::Anthropic),
            ("/v1/messages/count_tokens", Protocol::Anthropic),
            ("/v1/messagesx", Protocol::OpenAi),
            ("/api/chat", Protocol::Ollama),
            ("/", Protocol::OpenAi),
        ] {
            assert_eq!(Protocol::of_path(path), protocol, "{path}");
        }
    }

    #[test]
    fn each_protocol_has_its_shape() {
        let error = ApiError::field("n", "it must be 1 or more");
        assert_eq!(
            error.body(Protocol::OpenAi).to_string(),
            r#"{"error":{"message":"n: it must be 1 or more","type":"invalid_request_error","param":"n","code":null}}"#
        );
        assert_eq!(
            error.body(Protocol::Anthropic).to_string(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"n: it must be 1 or more"}}"#
        );
        assert_eq!(
            error.body(Protocol::Ollama).to_string(),
            r#"{"error":"n: it must be 1 or more"}"#
        );
    }
}
