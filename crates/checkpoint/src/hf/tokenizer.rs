//! `tokenizer_config.json`: special tokens and chat templates.

use serde::Deserialize;

/// What is read of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TokenizerConfig {
    #[serde(default)]
    pub bos_token: Option<Token>,
    #[serde(default)]
    pub eos_token: Option<Token>,
    #[serde(default)]
    pub add_bos_token: Option<bool>,
    #[serde(default)]
    pub add_eos_token: Option<bool>,
    #[serde(default)]
    pub chat_template: Option<Templates>,
}

/// A special token: its text, or an object that has it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

/// One chat template, or several with names.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

/// A chat template for a purpose ("default", "tool_use", ...).
#[derive(Debug, Deserialize)]
pub(super) struct NamedTemplate {
    pub name: String,
    pub template: String,
}

impl Templates {
    /// Every template with its name, in the order of the file.
    pub fn all(self) -> Vec<(String, String)> {
        match self {
            Self::One(template) => vec![("default".into(), template)],
            Self::Named(list) => list.into_iter().map(|t| (t.name, t.template)).collect(),
        }
    }
}
