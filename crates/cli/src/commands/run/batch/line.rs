//! A line of a batch: a prompt, and what differs for it from the command line.

use std::collections::BTreeMap;

use dunlin_executor::sampler::SamplingParams;
use serde::Deserialize;
use serde_json::Value;

/// A prompt and what differs for it from the command line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub(super) id: Option<Value>,
    pub(super) prompt: Option<String>,
    pub(super) messages: Option<Vec<Value>>,
    pub(super) max_tokens: Option<usize>,
    pub(super) n: Option<u32>,
    pub(super) stop: Option<Stop>,
    pub(super) stop_token_ids: Option<Vec<u32>>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) logprobs: Option<usize>,
    pub(super) temperature: Option<f32>,
    pub(super) top_k: Option<usize>,
    pub(super) top_p: Option<f32>,
    pub(super) min_p: Option<f32>,
    pub(super) typical_p: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub(super) repetition_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    /// As OpenAI has it: from token ids, as strings, to biases.
    pub(super) logit_bias: Option<BTreeMap<u32, f32>>,
    pub(super) seed: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    One(String),
    Many(Vec<String>),
}

/// What a line may be.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum LineForm {
    Prompt(String),
    Full(serde_json::Map<String, Value>),
}

/// Reads a line.
pub(super) fn parse_line(line: &str) -> Result<Line, String> {
    let form = serde_json::from_str(line).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => "it is neither a string nor an object".to_string(),
        _ => format!("it is no JSON: {e}"),
    })?;
    let fields = match form {
        LineForm::Full(fields) => fields,
        LineForm::Prompt(prompt) => {
            serde_json::Map::from_iter([("prompt".to_string(), prompt.into())])
        }
    };
    let line: Line = serde_json::from_value(fields.into()).map_err(|e| e.to_string())?;
    match (&line.prompt, &line.messages) {
        (Some(_), Some(_)) => Err("it has both `prompt` and `messages`".into()),
        (None, None) => Err("it has neither `prompt` nor `messages`".into()),
        _ => Ok(line),
    }
}

/// The command line's sampling, changed by what the line says.
pub(super) fn line_sampling(base: &SamplingParams, line: &Line) -> SamplingParams {
    SamplingParams {
        temperature: line.temperature.unwrap_or(base.temperature),
        top_k: line.top_k.unwrap_or(base.top_k),
        top_p: line.top_p.unwrap_or(base.top_p),
        min_p: line.min_p.unwrap_or(base.min_p),
        typical_p: line.typical_p.unwrap_or(base.typical_p),
        repetition_penalty: line.repetition_penalty.unwrap_or(base.repetition_penalty),
        presence_penalty: line.presence_penalty.unwrap_or(base.presence_penalty),
        frequency_penalty: line.frequency_penalty.unwrap_or(base.frequency_penalty),
        penalty_window: base.penalty_window,
        logit_bias: match &line.logit_bias {
            None => base.logit_bias.clone(),
            Some(biases) => biases.iter().map(|(&token, &bias)| (token, bias)).collect(),
        },
        seed: line.seed.unwrap_or(base.seed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_strings_or_objects() {
        assert_eq!(parse_line("\"Hi\"").unwrap().prompt.as_deref(), Some("Hi"));
        let line = r#"{"prompt":"a","id":7,"stop":"x","logit_bias":{"5":-1.5},"n":2}"#;
        let line = parse_line(line).unwrap();
        assert_eq!(line.logit_bias, Some(BTreeMap::from([(5, -1.5)])));
        assert_eq!(line.n, Some(2));
        let chat = parse_line(r#"{"messages":[{"role":"user","content":"a"}]}"#).unwrap();
        assert_eq!(chat.messages.unwrap(), [crate::prompt::message("user", "a")]);
        for (bad, says) in [
            ("{", "no JSON"),
            ("5", "neither a string nor an object"),
            ("{}", "neither `prompt` nor `messages`"),
            (r#"{"prompt":"a","messages":[]}"#, "both"),
            (r#"{"promt":"a"}"#, "unknown field `promt`"),
            (r#"{"prompt":"a","temperature":"hot"}"#, "hot"),
        ] {
            let error = parse_line(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
