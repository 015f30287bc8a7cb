//! What Anthropic's endpoints take and answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A conversation to be answered.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    /// The model's id.
    pub model: String,
    /// The most tokens of the answer.
    pub max_tokens: u32,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// The system's prompt: a string, or blocks of text.
    pub system: Option<Value>,
    /// Whether the answer is streamed as server-sent events.
    pub stream: Option<bool>,
    /// Strings that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Logits are divided by this; 0 takes the best token.
    pub temperature: Option<f32>,
    /// Only the best tokens that together have this probability stay.
    pub top_p: Option<f32>,
    /// Only this many best tokens stay.
    pub top_k: Option<u32>,
    /// Tools that the model may call.
    pub tools: Option<Vec<AnthropicTool>>,
    /// `auto`, `any`, `none`, or the tool that must be called.
    pub tool_choice: Option<Value>,
    /// `disabled` or `adaptive`.
    pub thinking: Option<Value>,
    /// How hard to try has no effect; `format` is what the answer must be: `json_schema`.
    pub output_config: Option<Value>,
    /// Not supported.
    pub container: Option<Value>,
    /// Not supported.
    pub mcp_servers: Option<Value>,
    /// Not supported.
    pub context_management: Option<Value>,
    /// Has no effect: prefixes are cached as they are.
    #[serde(rename = "cache_control")]
    pub _cache_control: Option<Value>,
    /// Has no effect.
    #[serde(rename = "inference_geo")]
    pub _inference_geo: Option<Value>,
    /// Has no effect.
    #[serde(rename = "speed")]
    pub _speed: Option<Value>,
    /// Has no effect.
    #[serde(rename = "metadata")]
    pub _metadata: Option<Value>,
    /// Has no effect.
    #[serde(rename = "service_tier")]
    pub _service_tier: Option<Value>,
}

/// A conversation whose tokens are counted.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    /// The model's id.
    pub model: String,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// The system's prompt: a string, or blocks of text.
    pub system: Option<Value>,
    /// Tools that the model may call.
    pub tools: Option<Vec<AnthropicTool>>,
    /// `auto` or `none`.
    pub tool_choice: Option<Value>,
    /// Has no effect.
    #[serde(rename = "thinking")]
    pub _thinking: Option<Value>,
    /// Has no effect.
    #[serde(rename = "output_config")]
    pub _output_config: Option<Value>,
    /// Has no effect.
    #[serde(rename = "cache_control")]
    pub _cache_control: Option<Value>,
    /// Has no effect.
    #[serde(rename = "speed")]
    pub _speed: Option<Value>,
}

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnthropicTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub input_schema: Option<Value>,
    /// `custom` alone: this server has no tools of its own.
    pub r#type: Option<String>,
    /// Has no effect: prefixes are cached as they are.
    #[serde(rename = "cache_control")]
    pub _cache_control: Option<Value>,
}

/// The tokens of a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// How many there are.
    pub input_tokens: usize,
}

/// An answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicMessage {
    /// Its name.
    pub id: String,
    /// Always `message`.
    pub r#type: &'static str,
    /// Always `assistant`.
    pub role: &'static str,
    /// The model that answered.
    pub model: String,
    /// Its text and its calls.
    pub content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<&'static str>,
    /// The stop string that ended it.
    pub stop_sequence: Option<String>,
    /// Tokens that were used.
    pub usage: AnthropicUsage,
}

/// A part of an answer.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A call of a tool.
    ToolUse {
        /// The call's name.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments.
        #[schema(value_type = Object)]
        input: Value,
    },
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct AnthropicUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: usize,
    /// Always 0: what is computed here is kept without asking.
    pub cache_creation_input_tokens: usize,
    /// Tokens of the prompt whose keys and values were there already.
    pub cache_read_input_tokens: usize,
    /// Tokens generated.
    pub output_tokens: usize,
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicError {
    /// Always `error`.
    pub r#type: String,
    /// What is wrong.
    pub error: AnthropicErrorDetail,
}

/// What is wrong with a request, or went wrong with it.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnthropicErrorDetail {
    /// Its kind.
    pub r#type: String,
    /// For a person.
    pub message: String,
}

/// An event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamEvent {
    MessageStart { message: AnthropicMessage },
    ContentBlockStart { index: usize, content_block: ContentBlock },
    Ping,
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageEnd, usage: AnthropicUsage },
    MessageStop,
}

impl StreamEvent {
    /// The name in the event's line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::Ping => "ping",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

/// What comes to a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    TextDelta { text: String },
    InputJsonDelta { partial_json: String },
}

/// How a message ended.
#[derive(Debug, Serialize)]
pub struct MessageEnd {
    pub stop_reason: &'static str,
    pub stop_sequence: Option<String>,
}
