//! What OpenAI's endpoints answer.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::service::{Finish, TokenLogprob, TokenLogprobs, Usage};

/// What a stream holds besides the answer.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    pub include_usage: Option<bool>,
    /// Padding against observers of sizes; has no effect.
    #[serde(rename = "include_obfuscation")]
    pub _include_obfuscation: Option<bool>,
}

/// Whether a stream ends with the usage.
///
/// # Errors
/// Options of a stream where there is none.
pub(crate) fn wants_usage(options: Option<StreamOptions>, streams: bool) -> Result<bool, ApiError> {
    if options.is_some() && !streams {
        return Err(ApiError::field("stream_options", "it is for streams alone"));
    }
    Ok(options.and_then(|o| o.include_usage).unwrap_or(false))
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorDetail,
}

/// What is wrong with a request, or went wrong with it.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// For a person.
    pub message: String,
    /// Its kind.
    pub r#type: String,
    /// The field at fault.
    pub param: Option<String>,
    /// What it is, exactly.
    pub code: Option<String>,
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct UsageBody {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, over all choices.
    pub completion_tokens: usize,
    /// Both.
    pub total_tokens: usize,
    /// More about the prompt's.
    pub prompt_tokens_details: PromptTokensDetails,
    /// More about the generated ones, where any were drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// More about the tokens of an answer.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Those that a drafter had proposed.
    pub accepted_prediction_tokens: usize,
    /// Tokens that a drafter proposed and the model did not choose.
    pub rejected_prediction_tokens: usize,
    /// What drafts change of the answer: `exact` is nothing; with `distribution` it is another of the
    /// same distribution.
    pub speculation_contract: &'static str,
}

impl From<&Usage> for CompletionTokensDetails {
    fn from(usage: &Usage) -> Self {
        let (drafted, accepted) = (usage.drafted_tokens, usage.accepted_tokens);
        Self {
            accepted_prediction_tokens: accepted,
            rejected_prediction_tokens: drafted.saturating_sub(accepted),
            speculation_contract: usage.speculation_contract,
        }
    }
}

/// More about the tokens of a prompt.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those whose keys and values were there already.
    pub cached_tokens: usize,
}

impl From<&Usage> for UsageBody {
    fn from(usage: &Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: (usage.drafted_tokens > 0).then(|| usage.into()),
        }
    }
}

/// Log-probabilities of a chat's tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry a token.
    pub content: Vec<ChatLogprob>,
}

/// A token of a chat, and what else could have been.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatLogprob {
    /// Its text, invalid UTF-8 replaced.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The best tokens here.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the best tokens at a place.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its text, invalid UTF-8 replaced.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl From<&TokenLogprobs> for ChatLogprob {
    fn from(logprobs: &TokenLogprobs) -> Self {
        let top = |token: &TokenLogprob| TopLogprob {
            token: token_text(token),
            logprob: finite(token.logprob),
            bytes: token.bytes.clone(),
        };
        Self {
            token: token_text(&logprobs.chosen),
            logprob: finite(logprobs.chosen.logprob),
            bytes: logprobs.chosen.bytes.clone(),
            top_logprobs: logprobs.top.iter().map(top).collect(),
        }
    }
}

/// A token's text.
pub fn token_text(token: &TokenLogprob) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

/// JSON has no infinities; OpenAI writes -9999 for what was impossible.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// OpenAI's name for why a choice ended.
pub fn finish_reason(finish: &Finish, calls: usize) -> &'static str {
    match finish {
        Finish::Length => "length",
        _ if calls > 0 => "tool_calls",
        Finish::StopToken | Finish::StopString(_) => "stop",
        Finish::Cancelled | Finish::Failed(_) | Finish::Stuck(_) | Finish::Refused(_) => "error",
    }
}
