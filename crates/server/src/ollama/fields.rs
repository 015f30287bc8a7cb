//! Fields that Ollama's endpoints share.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    app::App,
    constraint::{Constraint, Fields},
    error::ApiError,
    openai::fields::{Stop, check_sampling, checked_stops},
    service::{Finish, Generate, ModelInfo, Usage},
};

/// How tokens are chosen, and how many.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub struct Options {
    /// Logits are divided by this; 0 takes the best token.
    pub temperature: Option<f32>,
    /// Only this many best tokens stay; 0 is off.
    pub top_k: Option<i64>,
    /// Only the best tokens that together have this probability stay.
    pub top_p: Option<f32>,
    /// Only tokens with at least this share of the best one's probability stay.
    pub min_p: Option<f32>,
    /// Only the most typical tokens that together have this probability stay.
    pub typical_p: Option<f32>,
    /// Logits of tokens in prompt or output are weakened by this factor.
    pub repeat_penalty: Option<f32>,
    /// The penalties look at this many last tokens; -1 is all.
    pub repeat_last_n: Option<i64>,
    /// Subtracted from the logits of tokens in the output.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens in the output for each time they are in it.
    pub frequency_penalty: Option<f32>,
    /// The same seed gives the same answer.
    pub seed: Option<i64>,
    /// Strings that end the answer.
    pub stop: Option<Stop>,
    /// The most tokens of the answer; -1 and -2 are up to the context's end.
    pub num_predict: Option<i64>,
}

impl Options {
    /// Puts the options into a request, with Ollama's defaults for those that are missing.
    ///
    /// # Errors
    /// The first that cannot be used.
    pub fn apply(
        self,
        request: &mut Generate,
        model: &ModelInfo,
        app: &App,
    ) -> Result<(), ApiError> {
        request.stop_strings = checked_stops(self.stop.unwrap_or_default().0, "options.stop")?;
        request.max_tokens = match self.num_predict.unwrap_or(-1) {
            -2 | -1 => None,
            n => match usize::try_from(n) {
                Ok(n) if n > 0 => Some(n),
                _ => {
                    let problem = "it must be 1 or more, or -1";
                    return Err(ApiError::field("options.num_predict", problem));
                }
            },
        };
        let count = |value: i64, field: &str| {
            usize::try_from(value).map_err(|_| ApiError::field(field, "it must be 0 or more"))
        };
        let sampling = &mut request.sampling;
        sampling.temperature = self.temperature.unwrap_or(0.8);
        sampling.top_k = count(self.top_k.unwrap_or(40), "options.top_k")?;
        sampling.top_p = self.top_p.unwrap_or(0.9);
        sampling.min_p = self.min_p.unwrap_or(0.0);
        sampling.typical_p = self.typical_p.unwrap_or(1.0);
        sampling.repetition_penalty = self.repeat_penalty.unwrap_or(1.1);
        sampling.presence_penalty = self.presence_penalty.unwrap_or(0.0);
        sampling.frequency_penalty = self.frequency_penalty.unwrap_or(0.0);
        sampling.penalty_window = match self.repeat_last_n.unwrap_or(64) {
            -1 => None,
            n => Some(count(n, "options.repeat_last_n")?),
        };
        sampling.seed = self.seed.map_or_else(|| app.identity.seed(), i64::cast_unsigned);
        check_sampling(&request.sampling, model.vocab_size)
    }
}

/// An error.
#[derive(Debug, Serialize, ToSchema)]
pub struct OllamaError {
    /// What is wrong.
    pub error: String,
}

/// What an answer cost; only the last object of an answer has it. Times are nanoseconds.
#[derive(Debug, Clone, Copy, Default, Serialize, ToSchema)]
pub struct Cost {
    /// From the request's arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_duration: Option<u64>,
    /// Always 0: the model was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<usize>,
    /// The time they took.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_duration: Option<u64>,
    /// Tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_count: Option<usize>,
    /// The time they took.
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_duration: Option<u64>,
}

impl Cost {
    /// The cost of an answer that took `total_ns`; nothing where it is not over.
    pub fn new(usage: Option<&Usage>, total_ns: u64) -> Self {
        usage.map_or_else(Self::default, |usage| Self {
            total_duration: Some(total_ns),
            load_duration: Some(0),
            prompt_eval_count: Some(usage.prompt_tokens),
            prompt_eval_duration: Some(usage.prefill_ns),
            eval_count: Some(usage.output_tokens),
            eval_duration: Some(usage.decode_ns),
        })
    }
}

/// Ollama's name for why an answer ended.
pub fn done_reason(finish: &Finish) -> &'static str {
    if *finish == Finish::Length { "length" } else { "stop" }
}

/// What the answer must be.
///
/// # Errors
/// A name that is not `json`.
pub fn format(format: Option<&Value>) -> Result<Option<Constraint>, ApiError> {
    match format {
        Some(Value::String(name)) if !["", "json"].contains(&name.as_str()) => {
            Err(ApiError::field("format", "it must be json or a schema"))
        }
        format => {
            let mut fields = Fields::default();
            fields.schema("format", format)?;
            Ok(fields.into_constraint())
        }
    }
}

/// Refuses images.
///
/// # Errors
/// Any.
pub fn check_images(images: Option<&[Value]>, path: &str) -> Result<(), ApiError> {
    match images {
        None | Some([]) => Ok(()),
        Some(_) => Err(ApiError::unsupported(path, "this server takes text alone")),
    }
}

/// The variables of a template that `think` sets.
///
/// # Errors
/// What is neither a boolean nor a level.
pub fn think(value: Option<&Value>) -> Result<serde_json::Map<String, Value>, ApiError> {
    let on = match value {
        None | Some(Value::Null) => return Ok(serde_json::Map::new()),
        Some(Value::Bool(on)) => *on,
        Some(Value::String(_)) => true,
        Some(_) => return Err(ApiError::field("think", "it must be a boolean or a level")),
    };
    Ok(serde_json::Map::from_iter([("enable_thinking".to_string(), on.into())]))
}
