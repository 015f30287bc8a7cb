//! Ollama's protocol. Like the original it takes no offence at fields that it does not know.

pub(crate) mod chat;
mod fields;
pub(crate) mod generate;
pub(crate) mod models;

pub(crate) use fields::OllamaError;
