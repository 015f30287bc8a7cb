//! Holds every answer beside the one that the engine gives to the same request, alone on a machine
//! without a server: the text byte for byte, and the number of tokens.

use std::collections::BTreeMap;

use dunlin_engine::{ContextOverflow, Event, Request};
use dunlin_executor::{sampler::SamplingParams, text::TextOptions};
use serde::Serialize;

use super::{
    client::Endpoint,
    drive::Run,
    plan::{Ask, Prompt},
};
use crate::{
    engine_args::EngineArgs,
    load::{self, Model},
    model_args::ModelArgs,
    prompt::encode_prompt,
};

/// Answers that the engine makes at once.
const AT_ONCE: usize = 16;
/// Differences that are told in full.
const EXAMPLES: usize = 5;

/// How answers compare.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Answers that were compared: those that did not fail.
    pub compared: usize,
    pub equal: usize,
    /// The first few that are not.
    pub differences: Vec<Difference>,
}

/// An answer that is not the engine's.
#[derive(Debug, Serialize)]
pub struct Difference {
    pub request: usize,
    /// The first byte at which the texts differ, or the length of the shorter one.
    pub first_difference: usize,
    pub server_tokens: u64,
    pub engine_tokens: u64,
}

impl std::fmt::Display for Verified {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} answers are the engine's own", self.equal, self.compared)?;
        for d in &self.differences {
            write!(
                f,
                "\n  request {}: differs from byte {} on; {} tokens, the engine's has {}",
                d.request, d.first_difference, d.server_tokens, d.engine_tokens
            )?;
        }
        Ok(())
    }
}

/// How answers are asked for.
#[derive(Debug, Clone, Copy)]
pub struct How {
    pub endpoint: Endpoint,
    pub temperature: f32,
    pub ignore_eos: bool,
}

/// Runs all requests that were answered through an engine in this process.
///
/// # Errors
/// Models that cannot be loaded, and requests that the engine refuses.
pub fn verify(
    args: &ModelArgs,
    engine: &EngineArgs,
    how: How,
    run: &Run,
) -> anyhow::Result<Verified> {
    let mut model = load::model(args, engine, AT_ONCE, None, false)?;
    let mut found = BTreeMap::new();
    let answered = || run.outcomes.iter().filter(|o| o.failure.is_none());
    for outcome in answered() {
        let Some(ask) = run.asked.get(&outcome.index) else { continue };
        let request = request(&mut model, ask, how)?;
        found.insert(model.engine.submit(request)?, outcome.index);
    }
    let mut own = BTreeMap::new();
    model.engine.run(|event| {
        if let Event::Finished { request, completion } = event
            && let Some(index) = found.get(&request)
        {
            let tokens = completion.bill.output_tokens as u64;
            let text = completion.choices.into_iter().next().map(|choice| choice.text);
            own.insert(*index, (text.unwrap_or_default(), tokens));
        }
    });
    let mut verified = Verified { compared: own.len(), equal: 0, differences: Vec::new() };
    for outcome in answered() {
        let Some((text, tokens)) = own.get(&outcome.index) else { continue };
        // A stop token is one of the engine's; servers count it or do not.
        let counts = outcome.usage.is_none_or(|u| u.completion_tokens.abs_diff(*tokens) == 0);
        if *text == outcome.text && counts {
            verified.equal += 1;
        } else if verified.differences.len() < EXAMPLES {
            let pairs = text.bytes().zip(outcome.text.bytes());
            verified.differences.push(Difference {
                request: outcome.index,
                first_difference: pairs.take_while(|(a, b)| a == b).count(),
                server_tokens: outcome.output_tokens(),
                engine_tokens: *tokens,
            });
        }
    }
    Ok(verified)
}

fn request(model: &mut Model, ask: &Ask, how: How) -> anyhow::Result<Request> {
    let tokens = match (how.endpoint, &ask.prompt) {
        (Endpoint::Chat, prompt) => model.encode_chat(&prompt.messages())?,
        (Endpoint::Completions, Prompt::Tokens(tokens)) => tokens.clone(),
        (Endpoint::Completions, prompt) => encode_prompt(&model.tokenizer, &prompt.text())?,
    };
    let sampling =
        SamplingParams { temperature: how.temperature, seed: ask.seed, ..Default::default() };
    let ends: Vec<u32> = model.tokenizer.end_ids().to_vec();
    let begins_text = how.endpoint == Endpoint::Chat;
    Ok(Request {
        overflow: ContextOverflow::Stop,
        stop_tokens: if how.ignore_eos { Vec::new() } else { ends },
        text: TextOptions { begins_text, ..TextOptions::default() },
        ..Request::new(tokens, sampling, Some(ask.output_tokens as usize))
    })
}
