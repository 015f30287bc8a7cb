//! Requests, and what they must give.

use std::collections::BTreeMap;

use dunlin_engine::{Completion, Engine, EngineConfig, Event, Request};
use dunlin_executor::sampler::{SamplePlace, Sampler, SamplingParams};
use dunlin_testkit::toy::Toy;
use dunlin_units::RequestId;

/// What a request must give after a session's tokens, from the plainest loop there is.
pub fn reference_after(context: &[u32], request: &Request, choice: u32) -> Vec<u32> {
    let mut tokens = [context, &request.prompt].concat();
    let prompt_len = tokens.len();
    let mut sampler = Sampler::new();
    loop {
        let mut logits = Toy::logits_after(&tokens);
        let place = SamplePlace { tokens: &tokens, prompt_len, choice };
        let token = sampler.sample(&request.sampling, place, &mut logits, None).unwrap().token;
        tokens.push(token);
        let made = tokens.len() - prompt_len;
        if request.stop_tokens.contains(&token) || Some(made) == request.max_tokens {
            return tokens.split_off(prompt_len);
        }
    }
}

/// What a request must give.
pub fn reference(request: &Request, choice: u32) -> Vec<u32> {
    reference_after(&[], request, choice)
}

pub fn request(seed: u64, prompt_len: usize, max_tokens: usize) -> Request {
    let sampling = SamplingParams {
        seed,
        temperature: if seed.is_multiple_of(3) { 0.0 } else { 1.0 },
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    Request::new(Toy::prompt(seed, prompt_len), sampling, Some(max_tokens))
}

/// An engine over a toy of its own.
pub fn engine(blocks: usize, block_tokens: usize, max_step: usize, context: usize) -> Engine<Toy> {
    engine_over(Toy::new(blocks, block_tokens, max_step), EngineConfig::new(context))
}

pub fn engine_over(toy: Toy, config: EngineConfig) -> Engine<Toy> {
    Engine::new(toy, None, config).unwrap()
}

/// Runs until nothing is left to do; the completions by request. What was streamed must be what is
/// returned.
pub fn drain(engine: &mut Engine<Toy>) -> BTreeMap<RequestId, Completion> {
    let mut done = BTreeMap::new();
    let mut streamed: BTreeMap<(RequestId, u32), Vec<u32>> = BTreeMap::new();
    engine.run(|event| match event {
        Event::Token { request, choice, token, logprobs, .. } => {
            assert!(logprobs.is_none_or(|l| l.chosen.token == token));
            streamed.entry((request, choice)).or_default().push(token);
        }
        Event::Text { .. } => {}
        Event::Finished { request, completion } => {
            assert!(done.insert(request, completion).is_none());
        }
    });
    for (id, completion) in &done {
        for (n, choice) in completion.choices.iter().enumerate() {
            let streamed = streamed.remove(&(*id, n as u32)).unwrap_or_default();
            assert_eq!(streamed, choice.token_ids, "what was streamed is what is returned");
        }
    }
    engine.core().check().unwrap();
    done
}

/// Runs requests together; the completions in order of submission.
pub fn run_all(engine: &mut Engine<Toy>, requests: &[Request]) -> Vec<Completion> {
    let ids: Vec<RequestId> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let mut done = drain(engine);
    ids.iter().map(|id| done.remove(id).unwrap()).collect()
}

/// Runs one request.
pub fn run_one(engine: &mut Engine<Toy>, request: &Request) -> Completion {
    run_all(engine, std::slice::from_ref(request)).remove(0)
}

pub fn assert_as_reference(requests: &[Request], completions: &[Completion]) {
    for (request, completion) in requests.iter().zip(completions) {
        assert_eq!(completion.choices.len(), request.choices as usize);
        for (n, choice) in completion.choices.iter().enumerate() {
            assert_eq!(choice.token_ids, reference(request, n as u32), "choice {n}");
        }
    }
}

/// Blocks that no request or session holds.
pub fn free_blocks(engine: &Engine<Toy>) -> u64 {
    engine.stats().load.available_blocks
}
