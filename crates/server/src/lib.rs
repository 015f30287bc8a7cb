//! HTTP: the protocols of OpenAI, Anthropic and Ollama over one internal request.
//!
//! A codec turns a protocol's request into a [`service::Generate`] and the [`service::Chunk`]s that
//! come of it into the protocol's answer; it knows nothing of engines. What stands behind
//! [`service::Service`] knows nothing of HTTP. Between them: admission ([`App`]), text and tool
//! calls of each choice (`reply`), streams that keep alive (`stream`), errors in the protocol's own
//! shape (`error`).
//!
//! A request is cancelled by dropping its [`service::Generation`], which happens whenever a client
//! goes away, whatever was being done for it.
//!
//! Prompts, answers and keys appear in no log and no error.
#![forbid(unsafe_code)]

mod anthropic;
mod app;
mod auth;
mod body;
mod config;
mod connection;
pub mod constraint;
mod embed;
pub mod engine;
mod error;
mod identity;
mod live;
mod metrics;
pub mod models;
mod ollama;
mod openai;
mod openapi;
mod ops;
mod process;
mod reply;
mod serve;
pub mod service;
mod sessions;
mod stream;
mod text;
mod tls;
mod tools;
mod trace;
mod web;

pub use app::{App, router};
pub use auth::hash_key;
pub use config::{Config, Tenant};
pub use identity::Identity;
pub use serve::{Ended, asked_to_stop, serve};
pub use tls::{Tls, TlsError};
#[cfg(feature = "otel")]
pub use trace::{Telemetry, TelemetryError};
