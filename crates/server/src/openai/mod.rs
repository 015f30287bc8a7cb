//! OpenAI's protocol, with the fields that other servers made common.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod types;
