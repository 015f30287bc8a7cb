//! Plans made by hand and at random over a toy backend, against the plainest loop there is.

use dunlin_kvcache::TenantId;
use dunlin_scheduler::{DraftNode, DrafterKind, Entry, Speculate, TreeLayout};
use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, Stream};

use dunlin_tokenizer::grammar::Grammar;

use super::*;
use crate::{
    drafter::DraftAcceptance,
    sampler::{SamplePlace, Sampler, SamplingParams},
    text::{ChoiceText, TextOptions},
};

const BLOCK: usize = 4;

fn params(seed: u64, choices: u32, max_tokens: u32) -> GenerationParams {
    GenerationParams {
        sampling: SamplingParams {
            seed,
            temperature: if seed.is_multiple_of(3) { 0.0 } else { 1.0 },
            repetition_penalty: 1.1,
            presence_penalty: 0.1,
            ..SamplingParams::default()
        },
        choices,
        max_tokens,
        stop_tokens: Vec::new(),
        logprobs: Some(2),
        speculate: Speculate::Off,
        max_draft: 0,
        tenant: TenantId(0),
        max_branches: 8,
        acceptance: DraftAcceptance::Coupled,
        text: ChoiceText::new(None, &[], TextOptions::default()),
        grammar: None,
        hidden: false,
    }
}

/// What a choice must be.
fn reference(params: &GenerationParams, prompt: &[u32], choice: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let mut sampler = Sampler::new();
    while tokens.len() - prompt.len() < params.max_tokens as usize {
        let mut logits = Toy::logits_after(&tokens);
        let place = SamplePlace { tokens: &tokens, prompt_len: prompt.len(), choice };
        let mut matcher = params.grammar.as_ref().map(|grammar| grammar.matcher());
        let allowed = matcher.as_mut().map(|m| m.allowed(&tokens[prompt.len()..]).unwrap());
        let sampled =
            sampler.sample_allowed(&params.sampling, place, &mut logits, None, allowed).unwrap();
        tokens.push(sampled.token);
        let complete = matcher.is_some_and(|mut matcher| {
            matcher.follow(&tokens[prompt.len()..]).unwrap();
            matcher.is_complete()
        });
        if complete || params.stop_tokens.contains(&sampled.token) {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// A sequence as the test's planner sees it.
struct Planned {
    seq: SeqId,
    computed: usize,
    prompt: Vec<u32>,
    wanted: Vec<u32>,
    blocks: usize,
}

/// An executor and what its steps need.
struct Driver {
    executor: Executor<Toy>,
    plan: StepPlan,
    outcome: StepOutcome,
    next_block: u32,
    /// Blocks that were branches'.
    spare: Vec<u32>,
}

impl Driver {
    fn new(toy: Toy, threads: usize) -> Self {
        let mut executor = Executor::new(toy, threads);
        executor.spread_from = 1;
        let (plan, outcome) = (StepPlan::default(), StepOutcome::default());
        Self { executor, plan, outcome, next_block: 0, spare: Vec::new() }
    }

    fn start(&mut self, id: u32, params: GenerationParams, prompt: &[u32]) -> Planned {
        let wanted = reference(&params, prompt, 0);
        Planned { wanted, ..self.start_fresh(id, params, prompt) }
    }

    /// The same where nobody knows what is to come.
    fn start_fresh(&mut self, id: u32, params: GenerationParams, prompt: &[u32]) -> Planned {
        let (seq, request) = (SeqId(id), RequestId(u64::from(id)));
        self.executor.register(request, params);
        self.executor.apply(&SeqOp::Start { seq, request: Some(request), choice: 0 });
        self.executor.apply(&SeqOp::Append { seq, tokens: prompt.into() });
        let prompt = prompt.to_vec();
        Planned { seq, computed: 0, prompt, wanted: Vec::new(), blocks: 0 }
    }

    /// Adds an entry for the next `tokens` tokens; the sequence is sampled where they are its last.
    fn add(&mut self, planned: &mut Planned, tokens: usize, draft: &[DraftNode]) {
        let end = planned.computed + tokens;
        let mut layout = TreeLayout::default();
        layout.lay_out(draft);
        while planned.blocks * BLOCK < end + layout.depth() as usize {
            self.executor.apply(&SeqOp::Block { seq: planned.seq, block: self.next_block });
            planned.blocks += 1;
            self.next_block += 1;
        }
        let last = end == self.executor.tokens(planned.seq).len();
        assert!(last || draft.is_empty());
        let scratch = layout.scratch_blocks(end as u32, BLOCK as u32);
        for _ in 0..scratch {
            self.plan.scratch.push(self.spare.pop().unwrap_or_else(|| {
                self.next_block += 1;
                self.next_block - 1
            }));
        }
        self.plan.entries.push(Entry {
            seq: planned.seq,
            first_position: planned.computed as u32,
            tokens: tokens as u32,
            draft: draft.len() as u32,
            scratch,
            samples: u32::from(last),
        });
        self.plan.samples.extend(last.then_some(planned.seq));
        self.plan.draft.extend_from_slice(draft);
        planned.computed = end;
    }

    fn run(&mut self) -> &StepOutcome {
        self.plan.step.0 += 1;
        self.executor.run(&self.plan, &mut self.outcome);
        assert_eq!(self.outcome.step, self.plan.step);
        let committed: u32 = self.outcome.commits.iter().map(|c| c.tokens).sum();
        assert_eq!(committed as usize, self.outcome.tokens.len());
        assert_eq!(self.outcome.commits.len(), self.plan.samples.len());
        self.plan.entries.clear();
        self.plan.samples.clear();
        self.plan.draft.clear();
        self.spare.append(&mut self.plan.scratch);
        &self.outcome
    }

    fn output(&self, planned: &Planned) -> &[u32] {
        &self.executor.tokens(planned.seq)[planned.prompt.len()..]
    }
}

/// A tree of anything, with the right path, as far as it goes, among its branches.
fn random_tree(random: &mut Stream, right: &[u32]) -> Vec<DraftNode> {
    let mut nodes: Vec<DraftNode> = Vec::new();
    // Nodes on the right path so far, the root among them.
    let mut on_path = vec![DraftNode::ROOT];
    let wrong = 1 + random.next_below(4);
    for i in 0..random.next_below(9) as u32 {
        let end = on_path[on_path.len() - 1];
        let next = right.get(on_path.len() - 1).filter(|_| random.next_below(wrong) == 0);
        let parent = match random.next_below(u64::from(i) + 1) as u32 {
            _ if next.is_some() => end,
            0 => DraftNode::ROOT,
            p => p - 1,
        };
        let token = next.copied().unwrap_or(random.next_below(Toy::VOCAB as u64) as u32);
        if nodes.iter().any(|n| n.parent == parent && n.token == token) {
            break;
        }
        if parent == end && Some(&token) == right.get(on_path.len() - 1) {
            on_path.push(i);
        }
        let drafter = DrafterKind::Lookup;
        nodes.push(DraftNode { token, parent, confidence: 1, drafter });
    }
    nodes
}

#[test]
fn random_plans_with_drafts_give_what_plain_decoding_gives() {
    random_plans(60, &|_| None);
}

/// Runs random plans of requests, some of which have the grammars that are given by number.
fn random_plans(seeds: u64, grammar_of: &dyn Fn(u32) -> Option<Grammar>) {
    for seed in 0..seeds {
        let mut random = SeedTree::root(seed).child("plans").stream();
        let mut driver = Driver::new(Toy::new(400, BLOCK, 400), 1 + seed as usize % 3);
        let mut all: Vec<Planned> = (0..6)
            .map(|id| {
                let prompt =
                    Toy::prompt(seed * 10 + u64::from(id), 1 + random.next_below(20) as usize);
                let mut params = params(seed + u64::from(id), 1, 1 + random.next_below(25) as u32);
                params.grammar = grammar_of(id);
                params.stop_tokens = vec![if params.grammar.is_some() { 48 } else { 3 }];
                driver.start(id, params, &prompt)
            })
            .collect();
        let (mut gained_several, mut branched) = (false, 0);
        for _ in 0..400 {
            let mut sampled = Vec::new();
            for (i, planned) in all.iter_mut().enumerate() {
                let done = driver.output(planned).to_vec();
                let pending = driver.executor.tokens(planned.seq).len() - planned.computed;
                if done == planned.wanted || random.next_below(3) == 0 {
                    continue;
                }
                let tokens = if random.next_below(2) == 0 {
                    pending
                } else {
                    1 + random.next_below(pending as u64) as usize
                };
                let draft = if tokens == pending {
                    random_tree(&mut random, &planned.wanted[done.len()..])
                } else {
                    Vec::new()
                };
                driver.add(planned, tokens, &draft);
                if tokens == pending {
                    sampled.push(i);
                }
            }
            if driver.plan.entries.is_empty() {
                continue;
            }
            branched += driver.plan.scratch.len();
            let outcome = driver.run();
            assert!(outcome.failed.is_empty());
            let commits = outcome.commits.clone();
            for (&i, commit) in sampled.iter().zip(&commits) {
                let planned = &mut all[i];
                assert!(commit.tokens >= 1, "seed {seed}");
                gained_several |= commit.tokens > 1;
                // Accepted draft tokens have their KV.
                planned.computed += commit.tokens as usize - 1;
                let output = driver.output(planned);
                assert!(planned.wanted.starts_with(output), "seed {seed}: {output:?}");
                let complete = ChoiceEnd::Complete;
                let generation = driver.executor.generation(RequestId(i as u64)).unwrap();
                let ended = output.last() == Some(&generation.params.stop_tokens[0])
                    || generation.choices[0].end == Some(complete);
                assert_eq!(commit.end, ended.then_some(SampleEnd::Stop), "seed {seed}");
            }
        }
        assert!(gained_several && branched > 0, "seed {seed}: no draft was accepted");
        for (planned, id) in all.iter().zip(0..) {
            assert_eq!(driver.output(planned), planned.wanted, "seed {seed}");
            let generation = driver.executor.release(RequestId(id)).unwrap();
            let choice = &generation.choices[0];
            assert_eq!(choice.tokens, planned.wanted, "seed {seed}");
            assert!(choice.end.is_some());
            let mut prefix = planned.prompt.clone();
            for (logprobs, &token) in choice.logprobs.iter().zip(&choice.tokens) {
                assert_eq!(logprobs.chosen.token, token);
                assert_eq!(logprobs.top.len(), 2);
                let mut logits = Toy::logits_after(&prefix);
                let place = SamplePlace { tokens: &prefix, prompt_len: 0, choice: 0 };
                let mut sampler = Sampler::new();
                sampler.sample(&SamplingParams::greedy(), place, &mut logits, Some(2)).unwrap();
                assert_eq!(logprobs.top, sampler.top_logprobs(), "seed {seed}");
                prefix.push(token);
            }
            assert_eq!(choice.logprobs.len(), choice.tokens.len());
        }
    }
}

#[test]
fn choices_part_at_one_row() {
    for prompt_len in 1..10 {
        let prompt = Toy::prompt(9, prompt_len);
        let mut driver = Driver::new(Toy::new(100, BLOCK, 64), 2);
        let params = params(4, 3, 5);
        let wanted: Vec<_> = (0..3).map(|c| reference(&params, &prompt, c)).collect();
        let mut first = driver.start(0, params, &prompt);
        driver.add(&mut first, prompt_len, &[]);
        let request = Some(RequestId(0));
        let mut all = vec![first];
        for choice in 1..3 {
            // The blocks written in this very step may be named: the copies come later.
            let (to, tokens) = (SeqId(choice), prompt_len as u32);
            let blocks = tokens.div_ceil(BLOCK as u32);
            driver.executor.apply(&SeqOp::Fork {
                from: SeqId(0),
                to,
                tokens,
                blocks,
                request,
                choice,
            });
            driver.plan.samples.push(to);
            driver.plan.entries[0].samples += 1;
            all.push(Planned {
                seq: to,
                computed: prompt_len,
                prompt: prompt.clone(),
                wanted: Vec::new(),
                blocks: blocks as usize,
            });
        }
        driver.run();
        for planned in &all[1..] {
            let index = prompt_len / BLOCK;
            if prompt_len % BLOCK > 0 {
                let from = driver.executor.table(planned.seq)[index];
                let (to, tokens) = (driver.next_block, (prompt_len % BLOCK) as u32);
                driver.next_block += 1;
                driver.executor.apply(&SeqOp::Copy { from, to, tokens });
                let (seq, index) = (planned.seq, index as u32);
                driver.executor.apply(&SeqOp::Replace { seq, index, block: to });
            }
        }
        for _ in 1..5 {
            for planned in &mut all {
                driver.add(planned, 1, &[]);
            }
            driver.run();
        }
        for (planned, wanted) in all.iter().zip(&wanted) {
            assert_eq!(driver.output(planned), wanted, "prompt of {prompt_len}");
        }
    }
}

#[test]
fn an_entry_that_fails_ends_no_other() {
    let mut toy = Toy::new(100, BLOCK, 64);
    toy.fails_on = Some(49);
    let mut driver = Driver::new(toy, 1);
    let prompts = [vec![1, 2, 3], vec![4, 49, 5], vec![6, 7], vec![49]];
    let mut all: Vec<Planned> = (0..)
        .zip(&prompts)
        .map(|(id, prompt)| {
            let mut params = params(u64::from(id), 1, 4);
            params.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
            driver.start(id, params, prompt)
        })
        .collect();
    for planned in &mut all {
        let tokens = planned.prompt.len();
        driver.add(planned, tokens, &[]);
    }
    let outcome = driver.run().clone();
    assert_eq!(outcome.failed, [1, 3]);
    assert_eq!(outcome.commits.iter().map(|c| c.tokens).collect::<Vec<_>>(), [1, 0, 1, 0]);
    for id in [1, 3] {
        let end = driver.executor.generation(RequestId(id)).unwrap().choices[0].end.clone();
        assert!(
            matches!(end, Some(ChoiceEnd::BackendFailed(m)) if m.contains("as the test wants"))
        );
    }
    // One that fails alone is reported just the same.
    let mut alone = driver.start(9, params(1, 1, 4), &[49]);
    driver.add(&mut alone, 1, &[]);
    assert_eq!(driver.run().failed, [0]);
    for _ in 0..3 {
        for i in [0, 2] {
            driver.add(&mut all[i], 1, &[]);
        }
        assert!(driver.run().failed.is_empty());
    }
    for i in [0, 2] {
        assert_eq!(driver.output(&all[i]), all[i].wanted);
    }
}

#[test]
fn bad_logits_end_only_their_sequence() {
    let mut toy = Toy::new(100, BLOCK, 64);
    toy.nan_after = Some(49);
    let mut driver = Driver::new(toy, 3);
    let mut bad = driver.start(0, params(1, 1, 4), &[1, 49]);
    let mut good = driver.start(1, params(2, 1, 4), &[1, 2]);
    driver.add(&mut bad, 2, &[]);
    driver.add(&mut good, 2, &[]);
    let outcome = driver.run().clone();
    assert!(outcome.failed.is_empty());
    assert_eq!(outcome.commits[0], Commit { tokens: 0, end: Some(SampleEnd::Error) });
    assert_eq!(outcome.commits[1], Commit { tokens: 1, end: None });
    assert_eq!(driver.output(&good), &good.wanted[..1]);
    // A step that was planned before this was known finds no token to compute: it fails alone.
    driver.plan.entries.push(Entry {
        seq: bad.seq,
        first_position: 2,
        tokens: 1,
        draft: 0,
        scratch: 0,
        samples: 1,
    });
    driver.plan.samples.push(bad.seq);
    driver.add(&mut good, 1, &[]);
    let outcome = driver.run().clone();
    assert_eq!(outcome.failed, [0]);
    assert_eq!(driver.output(&good), &good.wanted[..2]);
}

#[test]
fn a_request_that_was_released_gets_no_more_tokens() {
    let mut driver = Driver::new(Toy::new(100, BLOCK, 64), 1);
    let mut gone = driver.start(0, params(1, 1, 9), &[1, 2]);
    let mut good = driver.start(1, params(2, 1, 4), &[1, 2]);
    driver.add(&mut gone, 2, &[]);
    driver.add(&mut good, 2, &[]);
    driver.executor.release(RequestId(0));
    let outcome = driver.run();
    assert_eq!(outcome.commits[0], Commit::default());
    assert_eq!(outcome.tokens, good.wanted[..1]);
}

mod constrained;
mod residual;
