//! Ollama's protocol. Like the original it takes no offence at fields that it does not know.

pub(crate) mod chat;
pub(crate) mod embed;
mod fields;
pub(crate) mod generate;
pub(crate) mod models;

pub(crate) use fields::OllamaError;
