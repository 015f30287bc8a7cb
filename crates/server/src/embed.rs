//! Texts as vectors: the model's final hidden state at a text's last token, as a unit vector.
//!
//! That is what models trained for embeddings with last-token pooling want. Of a model trained for
//! chats it is a rough likeness of meaning and no more.

use std::sync::Arc;

use crate::{
    app::App,
    error::ApiError,
    service::{Chunk, Finish, Generate, Generation, Input, ModelInfo, Usage},
    trace::Trace,
};

/// The most texts of a request, as OpenAI has it.
const MAX_INPUTS: usize = 2048;
/// Texts handed to the engine at once.
const AT_ONCE: usize = 32;

/// A vector of length 1 for each text, cut to `dimensions` first, and the tokens of all texts.
///
/// # Errors
/// No texts, too many, empty ones, more dimensions than there are, and whatever the engine refuses.
pub(crate) async fn embed(
    app: &Arc<App>,
    model: &ModelInfo,
    inputs: Vec<Input>,
    dimensions: Option<u32>,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        return Err(ApiError::field("input", format!("it must have 1 to {MAX_INPUTS} texts")));
    }
    let empty = |input: &Input| match input {
        Input::Text(text) => text.is_empty(),
        Input::Tokens(tokens) => tokens.is_empty(),
        Input::Chat(_) => false,
    };
    if inputs.iter().any(empty) {
        return Err(ApiError::field("input", "a text is empty"));
    }
    if dimensions == Some(0) {
        return Err(ApiError::field("dimensions", "it must be 1 or more"));
    }
    let (_place, trace) = (app.admit()?, Trace::current());
    // What the texts say is in no trace.
    trace.asked(&Generate::hidden(model.id.clone(), Input::Tokens(Vec::new())));
    let (mut vectors, mut prompt_tokens) = (Vec::with_capacity(inputs.len()), 0);
    let mut inputs = inputs.into_iter();
    loop {
        let some: Vec<Input> = inputs.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            trace.done(&Usage { prompt_tokens, ..Usage::default() });
            return Ok((vectors, prompt_tokens));
        }
        let (id, tenant) = (model.id.clone(), app.tenant());
        let generations = app.call(move |service| {
            let ask = |input| {
                let request = Generate { tenant, ..Generate::hidden(id.clone(), input) };
                service.generate(request)
            };
            some.into_iter().map(ask).collect::<Result<Vec<_>, _>>()
        });
        for generation in generations.await? {
            prompt_tokens += generation.prompt_tokens;
            let mut vector = hidden_state(generation).await?;
            if let Some(dimensions) = dimensions {
                if dimensions as usize > vector.len() {
                    let problem = format!("the model has {}", vector.len());
                    return Err(ApiError::field("dimensions", problem));
                }
                vector.truncate(dimensions as usize);
            }
            normalize(&mut vector);
            vectors.push(vector);
        }
    }
}

/// Waits for the state that a request was for.
async fn hidden_state(mut generation: Generation) -> Result<Vec<f32>, ApiError> {
    let mut state = None;
    while let Some(chunk) = generation.chunks.recv().await {
        match chunk {
            Chunk::Hidden(hidden) => state = Some(hidden),
            Chunk::End { finish: Finish::Failed(message) | Finish::Stuck(message), .. } => {
                return Err(ApiError::failed(message));
            }
            Chunk::Done(_) => {
                return state.ok_or_else(|| ApiError::failed("the backend has no hidden states"));
            }
            Chunk::Token { .. } | Chunk::End { .. } => {}
        }
    }
    Err(ApiError::unavailable("the engine has stopped"))
}

/// Gives a vector the length 1. A vector of zeros keeps its length.
fn normalize(vector: &mut [f32]) {
    // In one order, so that equal texts have equal bits.
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        for x in vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}
