//! The server over real connections, before a scripted engine.

mod anthropic;
mod client;
mod constraint;
mod fake;
mod faults;
mod hostile;
mod lifecycle;
mod ollama;
mod openai;
mod openapi;
mod operation;
mod responses;
mod text;
mod tls;
mod tools;
