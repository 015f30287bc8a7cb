//! The generation loop over a toy backend whose logits are a hash of the whole prefix as its KV
//! blocks hold it: a wrong block table, a lost or doubly used block or a wrong position changes
//! them.

use std::collections::BTreeMap;

use dunlin_spec::ModelSpec;
use dunlin_units::SeedTree;

use super::*;
use crate::sampler::SamplingParams;

const VOCAB: usize = 50;
const EMPTY: u32 = u32::MAX;

/// A "model" whose KV of a token is the token itself.
struct Toy {
    spec: ModelSpec,
    block_tokens: usize,
    max_step_tokens: usize,
    /// `[blocks][block_tokens]`
    kv: Vec<Vec<u32>>,
    /// The step sizes seen.
    steps: Vec<usize>,
    /// Sequences that ever hold this token make the step fail.
    fails_on: Option<u32>,
    /// After this token the logits are NaN.
    nan_after: Option<u32>,
}

impl Toy {
    fn new(blocks: usize, block_tokens: usize, max_step_tokens: usize) -> Self {
        let spec = ModelSpec {
            architecture: "toy".into(),
            name: None,
            vocab_size: VOCAB,
            d_model: 1,
            context_length: 1 << 20,
            norm_eps: 1e-5,
            embed_scale: None,
            tied_head: true,
            logit_softcap: None,
            logit_scale: None,
            layers: Vec::new(),
        };
        Self {
            spec,
            block_tokens,
            max_step_tokens,
            kv: vec![vec![EMPTY; block_tokens]; blocks],
            steps: Vec::new(),
            fails_on: None,
            nan_after: None,
        }
    }

    /// Logits after a prefix; the same function that the tests' reference uses.
    fn logits_after(prefix: &[u32]) -> Vec<f32> {
        let mut node = SeedTree::root(0x70E);
        for &token in prefix {
            node = node.child_at(u64::from(token));
        }
        let mut stream = node.stream();
        (0..VOCAB).map(|_| (stream.next_unit() * 6.0) as f32).collect()
    }
}

impl Backend for Toy {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }
    fn block_tokens(&self) -> usize {
        self.block_tokens
    }
    fn block_count(&self) -> usize {
        self.kv.len()
    }
    fn block_bytes(&self) -> usize {
        4 * self.block_tokens
    }
    fn max_step_tokens(&self) -> usize {
        self.max_step_tokens
    }
    fn weight_bytes_per_step(&self) -> Option<u64> {
        Some(1000)
    }

    fn forward(
        &mut self,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        logits.clear();
        let size: usize = batch.iter().map(|s| s.tokens.len()).sum();
        assert!(size > 0 && size <= self.max_step_tokens, "a step of {size} tokens");
        assert!(batch.iter().all(|s| !s.tokens.is_empty()));
        self.steps.push(size);
        // All KV of the step is written before anything is read, so that sequences that write to
        // the same slot are seen.
        for seq in batch {
            for (i, &token) in seq.tokens.iter().enumerate() {
                if Some(token) == self.fails_on {
                    return Err(BackendError::OutOfMemory("as the test wants".into()));
                }
                let position = seq.first_position + i;
                let block = seq.block_table[position / self.block_tokens] as usize;
                self.kv[block][position % self.block_tokens] = token;
            }
        }
        for seq in batch {
            let end = seq.first_position + seq.tokens.len();
            assert!(seq.block_table.len() * self.block_tokens >= end);
            if seq.logits == LogitsWanted::None {
                continue;
            }
            let prefix: Vec<u32> = (0..end)
                .map(|p| {
                    let block = seq.block_table[p / self.block_tokens] as usize;
                    self.kv[block][p % self.block_tokens]
                })
                .collect();
            assert!(!prefix.contains(&EMPTY), "KV that was never written is read");
            let mut row = Self::logits_after(&prefix);
            if self.nan_after.is_some() && prefix.last().copied() == self.nan_after {
                row[7] = f32::NAN;
            }
            logits.extend(row);
        }
        Ok(())
    }

    fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        assert!(tokens > 0 && tokens < self.block_tokens, "full blocks are never copied");
        let copied = self.kv[from as usize][..tokens].to_vec();
        // What the copy does not hold is garbage, as it may be in a real backend.
        self.kv[to as usize].fill(EMPTY);
        self.kv[to as usize][..tokens].copy_from_slice(&copied);
    }
}

/// What a request must give, from the plainest loop there is.
fn reference(request: &Request, choice: u32) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    let mut sampler = Sampler::new();
    loop {
        let mut logits = Toy::logits_after(&tokens);
        let prompt_len = request.prompt.len();
        let place = SamplePlace { tokens: &tokens, prompt_len, choice };
        let token = sampler.sample(&request.sampling, place, &mut logits, None).unwrap().token;
        tokens.push(token);
        let made = tokens.len() - prompt_len;
        if request.stop_tokens.contains(&token) || Some(made) == request.max_tokens {
            return tokens.split_off(prompt_len);
        }
    }
}

fn request(seed: u64, prompt_len: usize, max_tokens: usize) -> Request {
    let mut random = SeedTree::root(seed).child("prompt").stream();
    let prompt = (0..prompt_len).map(|_| random.next_below(VOCAB as u64) as u32).collect();
    let sampling = SamplingParams {
        seed,
        temperature: if seed.is_multiple_of(3) { 0.0 } else { 1.0 },
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    };
    Request::new(prompt, sampling, Some(max_tokens))
}

/// Runs requests together; the completions in order of submission.
fn run_all(generator: &mut Generator<Toy>, requests: &[Request]) -> Vec<Completion> {
    let ids: Vec<RequestId> =
        requests.iter().map(|r| generator.submit(r.clone()).unwrap()).collect();
    let mut done = BTreeMap::new();
    let mut streamed: BTreeMap<(RequestId, u32), Vec<u32>> = BTreeMap::new();
    generator.run(|event| match event {
        Event::Token { request, choice, token, .. } => {
            streamed.entry((request, choice)).or_default().push(token);
        }
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
    ids.iter().map(|id| done.remove(id).unwrap()).collect()
}

fn assert_as_reference(requests: &[Request], completions: &[Completion]) {
    for (request, completion) in requests.iter().zip(completions) {
        assert_eq!(completion.choices.len(), request.choices as usize);
        for (n, choice) in completion.choices.iter().enumerate() {
            assert_eq!(choice.token_ids, reference(request, n as u32), "choice {n}");
        }
    }
}

#[test]
fn every_small_shape_gives_the_reference_tokens() {
    for block_tokens in [1, 2, 4] {
        for max_step in [3, 4, 16] {
            for prompt_len in 1..=9 {
                for max_tokens in 1..=5 {
                    for choices in 1..=3 {
                        let mut request =
                            request((prompt_len * 5 + max_tokens) as u64, prompt_len, max_tokens);
                        request.choices = choices;
                        let mut generator =
                            Generator::new(Toy::new(64, block_tokens, max_step), None, 64);
                        let done = run_all(&mut generator, std::slice::from_ref(&request));
                        assert_as_reference(std::slice::from_ref(&request), &done);
                        assert_eq!(generator.free_blocks(), 64, "blocks leak");
                        let widest = generator.backend().steps.iter().max();
                        assert!(widest <= Some(&max_step));
                    }
                }
            }
        }
    }
}

#[test]
fn mixed_batches_give_what_each_request_gives_alone() {
    let requests: Vec<Request> = (0..40u64)
        .map(|seed| {
            let mut random = SeedTree::root(seed).child("shape").stream();
            let prompt_len = 1 + random.next_below(30) as usize;
            let mut request = request(seed, prompt_len, 1 + random.next_below(20) as usize);
            request.choices = 1 + random.next_below(4) as u32;
            request.stop_tokens = vec![3, 4];
            request
        })
        .collect();
    // From room for everything down to room for little more than the largest request.
    for (blocks, block_tokens, max_step) in
        [(2000, 4, 512), (2000, 4, 9), (60, 4, 64), (50, 4, 4), (26, 8, 20), (240, 1, 33)]
    {
        let mut generator = Generator::new(Toy::new(blocks, block_tokens, max_step), None, 64);
        let done = run_all(&mut generator, &requests);
        assert_as_reference(&requests, &done);
        assert_eq!(generator.free_blocks(), blocks);
    }
}

#[test]
fn requests_start_in_order_and_wait_for_their_blocks() {
    // Each needs 4 of the 6 blocks, the small last one 1: it may not overtake.
    let requests = [request(1, 8, 8), request(2, 8, 8), request(3, 2, 2)];
    let mut generator = Generator::new(Toy::new(6, 4, 64), None, 24);
    let ids: Vec<RequestId> =
        requests.iter().map(|r| generator.submit(r.clone()).unwrap()).collect();
    let mut first_tokens = Vec::new();
    let mut ends = Vec::new();
    generator.run(|event| match event {
        Event::Token { request, .. } if !first_tokens.contains(&request) => {
            first_tokens.push(request);
        }
        Event::Token { .. } => {}
        Event::Finished { request, completion } => {
            ends.push(request);
            assert!(completion.bill.kv_bytes <= 4 * 4 * 4);
        }
    });
    assert_eq!(first_tokens, ids);
    assert_eq!(ends[0], ids[0], "the second waits for the first");
}

#[test]
fn samples_share_the_prompt_blocks() {
    let mut request = request(5, 41, 3);
    request.choices = 8;
    // 10 whole prompt blocks shared, one partial and its continuation for each choice.
    let mut generator = Generator::new(Toy::new(26, 4, 64), None, 64);
    let done = run_all(&mut generator, std::slice::from_ref(&request));
    assert_as_reference(std::slice::from_ref(&request), &done);
    let bill = done[0].bill;
    assert_eq!(bill.computed_tokens, 41 + 8 * 2, "one prefill, and no pass for last tokens");
    assert_eq!(bill.output_tokens, 24);
    assert!(bill.kv_bytes <= 26 * 16, "{}", bill.kv_bytes);
    assert_eq!(bill.steps, 3);
    assert_eq!(bill.weight_bytes_share, Some(3000));
    assert_eq!(bill.cached_tokens, 0);
}

#[test]
fn sessions_reuse_the_common_prefix_and_change_nothing() {
    let session = SessionId(1);
    let mut generator = Generator::new(Toy::new(40, 4, 16), None, 80);
    let mut history: Vec<u32> = Vec::new();
    for turn in 0..6u64 {
        let mut next = request(100 + turn, 5, 4);
        let mut prompt = history.clone();
        if turn == 3 {
            prompt.truncate(7); // An edited history: only a part is common.
        }
        if turn == 4 {
            prompt.clear(); // Nothing is.
        }
        prompt.extend(&next.prompt);
        next.prompt = prompt;
        next.session = Some(session);
        let computed_before = if turn == 0 { 0 } else { history.len() - 1 };
        let common = match turn {
            3 => 7,
            4 => history.iter().zip(&next.prompt).take_while(|(a, b)| a == b).count(),
            _ => computed_before,
        };
        let done = run_all(&mut generator, std::slice::from_ref(&next));
        assert_as_reference(std::slice::from_ref(&next), &done);
        assert_eq!(done[0].bill.cached_tokens, common, "turn {turn}");
        assert_eq!(done[0].bill.computed_tokens, next.prompt.len() - common + 3);
        history = next.prompt.clone();
        history.extend(&done[0].choices[0].token_ids);
    }
    assert!(generator.free_blocks() < 40);
    // The same prompt again: all but its last token is there.
    let mut again = request(0, 1, 2);
    again.prompt = history[..history.len() - 1].to_vec();
    again.session = Some(session);
    again.choices = 3;
    let done = run_all(&mut generator, std::slice::from_ref(&again));
    assert_as_reference(std::slice::from_ref(&again), &done);
    assert_eq!(done[0].bill.cached_tokens, again.prompt.len() - 1);
    generator.end_session(session);
    assert_eq!(generator.free_blocks(), 40);
}

#[test]
fn kept_kv_gives_way_to_requests() {
    let mut generator = Generator::new(Toy::new(8, 4, 16), None, 32);
    for session in 0..3 {
        let mut request = request(session, 9, 2);
        request.session = Some(SessionId(session));
        run_all(&mut generator, &[request]);
    }
    let large = [request(9, 20, 12)];
    let done = run_all(&mut generator, &large);
    assert_as_reference(&large, &done);
    assert_eq!(generator.free_blocks(), 8);
}

#[test]
fn cancelled_requests_end_and_the_others_do_not_notice() {
    let requests = [request(1, 9, 10), request(2, 5, 10), request(4, 5, 10)];
    // The third waits for blocks: it is cancelled in the queue.
    let mut generator = Generator::new(Toy::new(10, 4, 8), None, 40);
    let ids: Vec<RequestId> =
        requests.iter().map(|r| generator.submit(r.clone()).unwrap()).collect();
    let mut done = BTreeMap::new();
    let mut seen = 0;
    generator.run(|event| match event {
        Event::Token { request, .. } if request == ids[0] => {
            seen += 1;
            if seen == 3 {
                requests[0].cancel.cancel();
                requests[2].cancel.cancel();
            }
        }
        Event::Token { .. } => {}
        Event::Finished { request, completion } => {
            done.insert(request, completion);
        }
    });
    let first = &done[&ids[0]].choices[0];
    assert_eq!(first.finish, Finish::Cancelled);
    assert_eq!(first.token_ids, reference(&requests[0], 0)[..3]);
    assert_eq!(done[&ids[1]].choices[0].token_ids, reference(&requests[1], 0));
    let third = &done[&ids[2]];
    assert_eq!(third.choices[0].finish, Finish::Cancelled);
    assert!(third.choices[0].token_ids.is_empty());
    assert_eq!(third.bill.steps, 0);
    assert_eq!(generator.free_blocks(), 10);
}

#[test]
fn nan_logits_end_only_their_sequence() {
    let mut toy = Toy::new(100, 4, 32);
    toy.nan_after = Some(49);
    let mut bad = request(1, 5, 6);
    bad.prompt = vec![1, 2, 49];
    bad.choices = 2;
    let mut good = request(2, 5, 6);
    good.prompt = vec![1, 2, 3];
    good.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
    let mut generator = Generator::new(toy, None, 64);
    let done = run_all(&mut generator, &[bad, good.clone()]);
    for choice in &done[0].choices {
        let message = choice.finish.error().unwrap();
        assert!(message.contains("NaN logits at position 3"), "{message}");
        assert!(choice.token_ids.is_empty());
    }
    assert_eq!(done[1].choices[0].token_ids, reference(&good, 0));
    assert_eq!(generator.free_blocks(), 100);
}

#[test]
fn a_step_that_fails_ends_those_in_it_and_the_rest_go_on() {
    let mut toy = Toy::new(8, 4, 32);
    toy.fails_on = Some(49);
    let mut bad = request(1, 5, 6);
    bad.prompt = vec![1, 2, 49];
    bad.max_tokens = Some(20);
    bad.choices = 1;
    let mut waits = request(2, 5, 20);
    waits.prompt = vec![4, 2, 3];
    waits.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
    let mut generator = Generator::new(toy, None, 32);
    let done = run_all(&mut generator, &[bad, waits.clone()]);
    assert_eq!(done[0].choices[0].finish.reason(), "error");
    assert_eq!(done[1].choices[0].token_ids, reference(&waits, 0));
    assert_eq!(generator.free_blocks(), 8);
}

#[test]
fn limits_are_refused_with_both_counts() {
    let mut generator = Generator::new(Toy::new(16, 4, 8), None, 40);
    let mut check = |request: Request, expected: &str| {
        let error = generator.submit(request).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} should say {expected:?}");
    };
    check(request(1, 0, 1), "prompt is empty");
    check(request(1, 40, 1), "the prompt has 40 tokens, but the context holds 40");
    check(request(1, 30, 11), "the prompt's 30 tokens and 11 more exceed the context of 40");
    check(request(1, 3, 0), "max_tokens is 0");
    let mut bad = request(1, 3, 1);
    bad.prompt[1] = VOCAB as u32;
    check(bad, "prompt token 50 is outside the model's vocabulary of 50");
    let many = |choices| Request { choices, ..request(1, 9, 20) };
    check(many(0), "0 samples");
    check(many(9), "9 samples were asked for; it can be 1 to 8");
    check(many(8), "needs KV for 200 tokens, but the model was loaded with 64");
    let mut nan = request(1, 3, 1);
    nan.sampling.temperature = f32::NAN;
    check(nan, "temperature: NaN is out of range");
    let mut stop = request(1, 3, 1);
    stop.stop_strings = vec!["x".into()];
    check(stop, "stop strings need a tokenizer");
}

#[test]
fn ends_are_told_apart() {
    let mut generator = Generator::new(Toy::new(16, 4, 8), None, 20);
    let finish = |generator: &mut Generator<Toy>, request: &Request| {
        let done = run_all(generator, std::slice::from_ref(request));
        (done[0].choices[0].finish.clone(), done[0].choices[0].token_ids.len())
    };
    let plain = request(7, 10, 5);
    assert_eq!(finish(&mut generator, &plain), (Finish::MaxTokens, 5));
    let mut over = request(7, 10, 50);
    over.overflow = ContextOverflow::Stop;
    assert_eq!(finish(&mut generator, &over), (Finish::ContextFull, 10));
    let unlimited = Request { max_tokens: None, ..plain.clone() };
    assert_eq!(finish(&mut generator, &unlimited), (Finish::ContextFull, 10));
    let third = reference(&plain, 0)[2];
    let stops = Request { stop_tokens: vec![third], ..plain.clone() };
    let first = reference(&plain, 0).iter().position(|&t| t == third).unwrap();
    assert_eq!(finish(&mut generator, &stops), (Finish::StopToken(third), first + 1));
}

#[test]
fn logprobs_come_with_each_token() {
    let mut request = request(3, 6, 4);
    request.logprobs = Some(2);
    request.choices = 2;
    let mut generator = Generator::new(Toy::new(16, 4, 8), None, 20);
    let done = run_all(&mut generator, std::slice::from_ref(&request));
    for choice in &done[0].choices {
        let logprobs = choice.logprobs.as_ref().unwrap();
        assert_eq!(logprobs.len(), 4);
        let mut prefix = request.prompt.clone();
        for (entry, &token) in logprobs.iter().zip(&choice.token_ids) {
            let logits = Toy::logits_after(&prefix);
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let exact = f64::from(logits[token as usize]) - sum.ln();
            assert_eq!(entry.chosen.token, token);
            assert!((entry.chosen.logprob - exact).abs() < 4e-6);
            assert_eq!(entry.top.len(), 2);
            assert!(entry.top[0].logprob >= entry.chosen.logprob);
            prefix.push(token);
        }
    }
}
