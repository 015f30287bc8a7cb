//! Fields that chat and plain completions share, and what they mean.

use std::collections::BTreeMap;

use dunlin_engine::{Speculate, drafter::ParseAcceptanceError};
use dunlin_executor::sampler::SamplingParams;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{OneOfBuilder, RefOr, Schema},
};

use crate::{error::ApiError, identity::Identity, service::Generate};

/// The most stop strings, and the most bytes of all of them.
const STOP_STRINGS: usize = 64;
const STOP_BYTES: usize = 16 << 10;
/// The most choices of a request.
const CHOICES: u32 = 128;
/// The most alternatives of a token.
pub(super) const TOP_LOGPROBS: u32 = 20;

/// One stop string or several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stop(pub Vec<String>);

impl PartialSchema for Stop {
    fn schema() -> RefOr<Schema> {
        let either = OneOfBuilder::new().item(String::schema()).item(Vec::<String>::schema());
        Schema::from(either).into()
    }
}

impl ToSchema for Stop {}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Stop;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or an array of strings")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop(vec![text.to_string()]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Stop, A::Error> {
                let mut stops = Vec::new();
                while let Some(stop) = list.next_element()? {
                    stops.push(stop);
                }
                Ok(Stop(stops))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// Stop strings that can be used.
///
/// # Errors
/// Too many, too long or empty ones, told as a problem of `field`.
pub fn checked_stops(stops: Vec<String>, field: &str) -> Result<Vec<String>, ApiError> {
    if stops.len() > STOP_STRINGS || stops.iter().map(String::len).sum::<usize>() > STOP_BYTES {
        let problem =
            format!("there can be at most {STOP_STRINGS} strings of {STOP_BYTES} bytes together");
        return Err(ApiError::field(field, problem));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::field(field, "a stop string is empty"));
    }
    Ok(stops)
}

/// Declares a request with its own fields and those that all share.
macro_rules! request {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$own])* pub $field: $type,)*
            /// The model's id; the default model's where it is missing.
            pub model: Option<String>,
            /// Whether the answer is streamed as server-sent events.
            pub stream: Option<bool>,
            /// What a stream holds besides the answer.
            pub stream_options: Option<$crate::openai::types::StreamOptions>,
            /// Samples wanted.
            pub n: Option<u32>,
            /// The most tokens of each choice.
            pub max_tokens: Option<u32>,
            /// Strings that end a choice; its text ends before them.
            pub stop: Option<$crate::openai::fields::Stop>,
            /// Tokens that end a choice.
            pub stop_token_ids: Option<Vec<u32>>,
            /// Go on past the model's own end tokens.
            pub ignore_eos: Option<bool>,
            /// Whether control tokens are left out of the text; they are unless this is false.
            pub skip_special_tokens: Option<bool>,
            /// Logits are divided by this; 0 takes the best token.
            pub temperature: Option<f32>,
            /// Only the best tokens that together have this probability stay.
            pub top_p: Option<f32>,
            /// Only this many best tokens stay; 0 and -1 are off.
            pub top_k: Option<i64>,
            /// Only tokens with at least this share of the best one's probability stay.
            pub min_p: Option<f32>,
            /// Only the most typical tokens that together have this probability stay.
            pub typical_p: Option<f32>,
            /// Logits of tokens in prompt or output are weakened by this factor.
            #[serde(alias = "repeat_penalty")]
            pub repetition_penalty: Option<f32>,
            /// Subtracted from the logits of tokens in the output.
            pub presence_penalty: Option<f32>,
            /// Subtracted from the logits of tokens in the output for each time they are in it.
            pub frequency_penalty: Option<f32>,
            /// Added to logits, by token id; -100 and less ban a token.
            pub logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            /// The same seed gives the same answer.
            pub seed: Option<i64>,
            /// Who drafts tokens for the model to verify: auto, off, lookup or draft. Changes how fast
            /// the answer comes and nothing else; the server's own setting where it is missing.
            pub speculate: Option<String>,
            /// How drafted tokens come to be accepted: coupled changes nothing of the answer, residual
            /// gives another one of the same distribution, and accepts more where a model drafts.
            pub speculate_accept: Option<String>,
            /// False alone: text ends before what stopped it.
            pub include_stop_str_in_output: Option<serde_json::Value>,
            /// The same under another name, as routers send it.
            pub no_stop_trim: Option<serde_json::Value>,
            /// False alone.
            pub return_hidden_states: Option<serde_json::Value>,
            /// False alone.
            pub use_beam_search: Option<serde_json::Value>,
            /// 0 alone.
            pub min_tokens: Option<serde_json::Value>,
            /// Has no effect: equal prefixes are always found.
            #[serde(rename = "cache_prompt")]
            pub _cache_prompt: Option<serde_json::Value>,
            /// What the answer must be: `text`, `json_object` or `json_schema`.
            pub response_format: Option<serde_json::Value>,
            /// A JSON schema that the answer must fit, as an object or as its text.
            #[serde(alias = "guided_json")]
            pub json_schema: Option<serde_json::Value>,
            /// A regular expression that the whole answer must match.
            #[serde(alias = "guided_regex")]
            pub regex: Option<serde_json::Value>,
            /// A grammar, in Lark or GBNF, of which the answer must be a sentence.
            #[serde(alias = "guided_grammar", alias = "ebnf")]
            pub grammar: Option<serde_json::Value>,
            /// Texts of which the answer must be one.
            pub guided_choice: Option<serde_json::Value>,
            /// The same as an object, which has one of `json`, `regex`, `choice`, `grammar` and
            /// `json_object`.
            pub structured_outputs: Option<serde_json::Value>,
            /// A router's name for the request; has no effect.
            #[serde(rename = "rid", alias = "request_id")]
            pub _rid: Option<serde_json::Value>,
            /// The caller's name for its user; has no effect.
            #[serde(rename = "user")]
            pub _user: Option<serde_json::Value>,
        }

        impl $name {
            /// Refuses what the shared fields ask for and the server does not have.
            fn refuse_shared(&self) -> Result<(), $crate::error::ApiError> {
                let stop = self.include_stop_str_in_output.as_ref();
                $crate::openai::fields::refuse(&[
                    ("include_stop_str_in_output", stop, &[]),
                    ("no_stop_trim", self.no_stop_trim.as_ref(), &[]),
                    ("return_hidden_states", self.return_hidden_states.as_ref(), &[]),
                    ("use_beam_search", self.use_beam_search.as_ref(), &[]),
                    ("min_tokens", self.min_tokens.as_ref(), &["0"]),
                ])
            }

            /// What the answer must be.
            fn constraint(
                &self,
            ) -> Result<Option<$crate::constraint::Constraint>, $crate::error::ApiError> {
                use dunlin_tokenizer::grammar::GrammarSource;
                let mut fields = $crate::constraint::Fields::default();
                fields.response_format(self.response_format.as_ref())?;
                fields.schema("json_schema", self.json_schema.as_ref())?;
                fields.text("regex", self.regex.as_ref(), GrammarSource::Regex)?;
                fields.text("grammar", self.grammar.as_ref(), GrammarSource::Grammar)?;
                fields.choice("guided_choice", self.guided_choice.as_ref())?;
                fields.structured_outputs(self.structured_outputs.as_ref())?;
                let constraint = fields.into_constraint();
                if constraint.is_some() && self.ignore_eos == Some(true) {
                    let problem = "an answer that is constrained ends where it is complete";
                    return Err($crate::error::ApiError::field("ignore_eos", problem));
                }
                Ok(constraint)
            }

            /// Takes the shared fields out.
            fn shared(&mut self) -> $crate::openai::fields::Shared {
                $crate::openai::fields::Shared {
                    n: self.n,
                    max_tokens: self.max_tokens,
                    stop: self.stop.take(),
                    stop_token_ids: self.stop_token_ids.take(),
                    ignore_eos: self.ignore_eos,
                    skip_special_tokens: self.skip_special_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    logit_bias: self.logit_bias.take(),
                    seed: self.seed,
                    speculate: self.speculate.take(),
                    speculate_accept: self.speculate_accept.take(),
                }
            }
        }
    };
}
pub(super) use request;

/// See [`request`].
#[derive(Debug)]
pub struct Shared {
    pub n: Option<u32>,
    pub max_tokens: Option<u32>,
    pub stop: Option<Stop>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub ignore_eos: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
    pub seed: Option<i64>,
    pub speculate: Option<String>,
    pub speculate_accept: Option<String>,
}

impl Shared {
    /// Puts the fields into a request, with OpenAI's defaults for those that are missing.
    ///
    /// # Errors
    /// The first field that cannot be used.
    pub fn apply(
        self,
        request: &mut Generate,
        identity: &Identity,
        vocab_size: usize,
    ) -> Result<(), ApiError> {
        request.speculate = speculate(self.speculate.as_deref())?;
        let accept = self.speculate_accept.as_deref().map(str::parse).transpose();
        request.acceptance = accept.map_err(|error: ParseAcceptanceError| {
            ApiError::field("speculate_accept", error.to_string())
        })?;
        request.choices = self.n.unwrap_or(1);
        if !(1..=CHOICES).contains(&request.choices) {
            return Err(ApiError::field("n", format!("it must be from 1 to {CHOICES}")));
        }
        if self.max_tokens == Some(0) {
            return Err(ApiError::field("max_tokens", "it must be 1 or more"));
        }
        request.max_tokens = self.max_tokens.map(|n| n as usize);
        request.stop_strings = checked_stops(self.stop.unwrap_or_default().0, "stop")?;
        request.stop_token_ids = self.stop_token_ids.unwrap_or_default();
        if let Some(id) = request.stop_token_ids.iter().find(|&&id| id as usize >= vocab_size) {
            let problem = format!("token {id} is outside the vocabulary of {vocab_size}");
            return Err(ApiError::field("stop_token_ids", problem));
        }
        request.ignore_eos = self.ignore_eos.unwrap_or(false);
        request.show_special = self.skip_special_tokens == Some(false);
        let top_k = match self.top_k.unwrap_or(0) {
            -1 => 0,
            k => {
                usize::try_from(k).map_err(|_| ApiError::field("top_k", "it must be -1 or more"))?
            }
        };
        request.sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(1.0),
            top_k,
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            typical_p: self.typical_p.unwrap_or(1.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            penalty_window: None,
            logit_bias: biases(self.logit_bias.unwrap_or_default())?,
            seed: self.seed.map_or_else(|| identity.seed(), i64::cast_unsigned),
        };
        check_sampling(&request.sampling, vocab_size)
    }
}

/// Who is asked to draft.
///
/// # Errors
/// A name that is none.
pub fn speculate(asked: Option<&str>) -> Result<Option<Speculate>, ApiError> {
    let parse = |name: &str| name.parse::<Speculate>();
    let parsed = asked.map(parse).transpose();
    parsed.map_err(|error| ApiError::field("speculate", error.to_string()))
}

/// Checks sampling parameters, by their names on the wire.
///
/// # Errors
/// The first that cannot be used.
pub fn check_sampling(sampling: &SamplingParams, vocab_size: usize) -> Result<(), ApiError> {
    sampling.validate(vocab_size).map_err(|error| {
        let problem = format!("{} is out of range; {}", error.value, error.allowed);
        ApiError::field(error.field, problem)
    })
}

/// Biases by token id. OpenAI's scale ends at -100, which bans a token.
fn biases(given: BTreeMap<String, f32>) -> Result<Vec<(u32, f32)>, ApiError> {
    let bias = |(id, bias): (String, f32)| {
        let id = id.parse().map_err(|_| {
            ApiError::field("logit_bias", "its keys must be token ids, as strings of digits")
        })?;
        Ok((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias }))
    };
    given.into_iter().map(bias).collect()
}

/// Refuses fields whose effect the server does not have, unless they ask for nothing.
///
/// # Errors
/// The first that asks for something.
pub fn refuse(fields: &[(&str, Option<&Value>, &[&str])]) -> Result<(), ApiError> {
    for (name, value, harmless) in fields {
        let Some(value) = value else { continue };
        let text = value.to_string();
        let nothing = ["null", "false", "[]", "{}", "\"\""].contains(&text.as_str());
        if !nothing && !harmless.contains(&text.as_str()) {
            return Err(ApiError::unsupported(*name, "this server does not support it"));
        }
    }
    Ok(())
}
