//! What the endpoint takes and answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::{openai::types::PromptTokensDetails, service::Usage};

/// An input to be answered.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponsesRequest {
    /// The model's id; the default model's where it is missing.
    pub model: Option<String>,
    /// A text, or items: messages, calls of functions and their outputs.
    pub input: Option<Value>,
    /// The system's message.
    pub instructions: Option<String>,
    /// Whether the answer is streamed as server-sent events.
    pub stream: Option<bool>,
    /// The most tokens of the answer.
    pub max_output_tokens: Option<u32>,
    /// Logits are divided by this; 0 takes the best token.
    pub temperature: Option<f32>,
    /// Only the best tokens that together have this probability stay.
    pub top_p: Option<f32>,
    /// Functions that the model may call.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or the function that must be called.
    pub tool_choice: Option<Value>,
    /// Its `format` is what the answer must be: `text`, `json_object` or `json_schema`.
    pub text: Option<Value>,
    /// Given back.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// Not supported: nothing is stored.
    pub previous_response_id: Option<Value>,
    /// Not supported: nothing is stored.
    pub conversation: Option<Value>,
    /// Not supported.
    pub prompt: Option<Value>,
    /// Not supported.
    pub background: Option<Value>,
    /// `disabled` alone: a prompt that does not fit is refused.
    pub truncation: Option<Value>,
    /// Has no effect: nothing is stored.
    #[serde(rename = "store")]
    pub _store: Option<Value>,
    /// Has no effect.
    #[serde(rename = "include")]
    pub _include: Option<Value>,
    /// Whether an answer that must call may do so several times.
    pub parallel_tool_calls: Option<Value>,
    /// Has no effect.
    #[serde(rename = "reasoning")]
    pub _reasoning: Option<Value>,
    /// Has no effect.
    #[serde(rename = "service_tier")]
    pub _service_tier: Option<Value>,
    /// Has no effect.
    #[serde(rename = "stream_options")]
    pub _stream_options: Option<Value>,
    /// Has no effect.
    #[serde(rename = "prompt_cache_key")]
    pub _prompt_cache_key: Option<Value>,
    /// Has no effect.
    #[serde(rename = "safety_identifier")]
    pub _safety_identifier: Option<Value>,
    /// Has no effect.
    #[serde(rename = "user")]
    pub _user: Option<Value>,
}

/// What an answer repeats of its request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Echo {
    /// The model that answers.
    model: String,
    /// The system's message.
    instructions: Option<String>,
    /// The most tokens of the answer.
    max_output_tokens: Option<u32>,
    /// Logits were divided by this.
    temperature: f32,
    /// Only the best tokens that together have this probability stayed.
    top_p: f32,
    /// Functions that the model may call.
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
    /// As it was given.
    tool_choice: Value,
    /// Whether there may be several calls.
    parallel_tool_calls: bool,
    /// The format, as it was given.
    text: Value,
    /// Always `disabled`.
    truncation: &'static str,
    /// Always false.
    store: bool,
    /// Always null.
    previous_response_id: Option<String>,
    /// As it was given.
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

impl Echo {
    /// What is repeated of a request.
    pub fn new(request: &ResponsesRequest, model: String) -> Self {
        Self {
            model,
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            temperature: request.temperature.unwrap_or(1.0),
            top_p: request.top_p.unwrap_or(1.0),
            tools: request.tools.clone().unwrap_or_default(),
            tool_choice: request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            parallel_tool_calls: request.parallel_tool_calls != Some(Value::Bool(false)),
            text: request
                .text
                .clone()
                .filter(|text| text.get("format").is_some_and(|format| !format.is_null()))
                .unwrap_or_else(|| json!({"format": {"type": "text"}})),
            truncation: "disabled",
            store: false,
            previous_response_id: None,
            metadata: request.metadata.clone().unwrap_or_default(),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Response {
    /// Its name.
    pub id: String,
    /// Always `response`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    pub status: &'static str,
    /// What went wrong.
    pub error: Option<Value>,
    /// Why it is incomplete.
    pub incomplete_details: Option<Value>,
    /// The message and the calls.
    pub output: Vec<OutputItem>,
    /// Tokens that were used; at the end.
    pub usage: Option<ResponseUsage>,
    /// What is repeated of the request.
    #[serde(flatten)]
    pub echo: Echo,
}

impl Response {
    /// One that has just begun.
    pub fn begun(id: String, created_at: u64, echo: Echo) -> Self {
        Self {
            id,
            object: "response",
            created_at,
            status: "in_progress",
            error: None,
            incomplete_details: None,
            output: Vec::new(),
            usage: None,
            echo,
        }
    }
}

/// A part of an answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// What the assistant says.
    Message {
        /// The message's name.
        id: String,
        /// `in_progress` or `completed`.
        status: &'static str,
        /// Always `assistant`.
        role: &'static str,
        /// Its text.
        content: Vec<OutputText>,
    },
    /// A call of a function.
    FunctionCall {
        /// The item's name.
        id: String,
        /// The call's name.
        call_id: String,
        /// The function's name.
        name: String,
        /// The text of a JSON object.
        arguments: String,
        /// `in_progress` or `completed`.
        status: &'static str,
    },
}

impl OutputItem {
    /// A message; without a text it has no part yet.
    pub fn message(id: String, status: &'static str, text: Option<String>) -> Self {
        let content = text.into_iter().map(OutputText::new).collect();
        Self::Message { id, status, role: "assistant", content }
    }
}

/// A text.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct OutputText {
    /// Always `output_text`.
    r#type: &'static str,
    /// The text.
    text: String,
    /// Always empty.
    annotations: Vec<String>,
    /// Always empty.
    logprobs: Vec<String>,
}

impl OutputText {
    /// A text.
    pub fn new(text: String) -> Self {
        Self { r#type: "output_text", text, annotations: Vec::new(), logprobs: Vec::new() }
    }
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    input_tokens: usize,
    /// More about the prompt's.
    input_tokens_details: PromptTokensDetails,
    /// Tokens generated.
    output_tokens: usize,
    /// More about those.
    output_tokens_details: OutputTokensDetails,
    /// Both.
    total_tokens: usize,
}

/// More about the tokens of an answer.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Always 0.
    reasoning_tokens: usize,
}

impl From<&Usage> for ResponseUsage {
    fn from(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            output_tokens: usage.output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: 0 },
            total_tokens: usage.prompt_tokens + usage.output_tokens,
        }
    }
}
