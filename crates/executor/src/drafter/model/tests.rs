//! Drafts against what the draft model says of the same tokens computed afresh.

use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, SeqId, Stream};

use super::*;
use crate::sampler::SamplingParams;

const BLOCK: usize = 4;

/// What must be drafted after `tokens`, the first `start` of which are not looked at.
fn reference(wanted: &Wanted<'_>, start: usize) -> Vec<u32> {
    let mut tokens = wanted.tokens.to_vec();
    let mut sampler = Sampler::new();
    while tokens.len() < wanted.tokens.len() + wanted.nodes {
        let mut logits = Toy::logits_after(&tokens[start..]);
        let place =
            SamplePlace { tokens: &tokens, prompt_len: wanted.prompt_len, choice: wanted.choice };
        let sampled = sampler.sample(wanted.sampling, place, &mut logits, None).unwrap();
        tokens.push(sampled.token);
    }
    tokens.split_off(wanted.tokens.len())
}

struct Sequence {
    tokens: Vec<u32>,
    sampling: SamplingParams,
    prompt_len: usize,
}

fn sequence(random: &mut Stream, seed: u64) -> Sequence {
    let prompt_len = 1 + random.next_below(20) as usize;
    let temperature = if random.next_below(2) == 0 { 0.0 } else { 1.0 };
    let sampling = SamplingParams { seed, temperature, ..SamplingParams::default() };
    Sequence { tokens: Toy::prompt(seed, prompt_len), sampling, prompt_len }
}

/// Drafts for random sequences that go on at random, with KV for `blocks` blocks; how many drafts
/// there were and how many were wanted.
fn run(seed: u64, blocks: usize) -> (usize, usize) {
    let mut random = SeedTree::root(seed).child("drafts").stream();
    let mut drafter =
        ModelDrafter::new(Toy::new(blocks, BLOCK, 16), VocabularyMap::identity(Toy::VOCAB as u32));
    let mut all: Vec<Sequence> = (0..5).map(|i| sequence(&mut random, seed * 7 + i)).collect();
    let (mut got, mut asked) = (0, 0);
    for turn in 0..60 {
        let chosen: Vec<usize> = (0..all.len()).filter(|_| random.next_below(2) == 0).collect();
        let context = [usize::MAX, 3, 9, 17][random.next_below(4) as usize];
        let wanted: Vec<Wanted<'_>> = chosen
            .iter()
            .map(|&i| Wanted {
                seq: SeqId(i as u32),
                tokens: &all[i].tokens,
                nodes: random.next_below(6) as usize,
                stop_below: 0,
                context,
                sampling: &all[i].sampling,
                prompt_len: all[i].prompt_len,
                choice: 0,
            })
            .collect();
        let mut proposals = Vec::new();
        drafter.propose(&wanted, &mut proposals);
        asked += wanted.iter().filter(|w| w.nodes > 0).count();
        got += proposals.len();
        let mut drafts = vec![Vec::new(); all.len()];
        for proposal in &proposals {
            let i = proposal.seq.0 as usize;
            let of = wanted.iter().find(|w| w.seq == proposal.seq).unwrap();
            let start = drafter.states[i].as_ref().unwrap().start;
            assert!(
                of.tokens.len() - start >= context.min(of.tokens.len()).min(blocks * BLOCK / 4)
            );
            let tokens: Vec<u32> = proposal.nodes.iter().map(|n| n.token).collect();
            assert_eq!(tokens, reference(of, start), "seed {seed} turn {turn}");
            drafts[i] = tokens;
        }
        let mut blocks_held: Vec<u32> =
            drafter.states.iter().flatten().flat_map(|s| s.table.clone()).collect();
        blocks_held.extend(&drafter.free);
        blocks_held.sort_unstable();
        assert_eq!(blocks_held, (0..blocks as u32).collect::<Vec<_>>(), "seed {seed}");
        // Some of a draft is right, and something else follows.
        for &i in &chosen {
            let right = random.next_below(drafts[i].len() as u64 + 1) as usize;
            all[i].tokens.extend_from_slice(&drafts[i][..right]);
            all[i].tokens.push(random.next_below(Toy::VOCAB as u64) as u32);
        }
        match random.next_below(12) {
            0 => {
                let i = random.next_below(all.len() as u64) as usize;
                drafter.changed(&SeqOp::End { seq: SeqId(i as u32) });
                all[i] = sequence(&mut random, seed * 1000 + turn);
            }
            1 => {
                let i = random.next_below(all.len() as u64) as usize;
                let tokens = 1 + random.next_below(all[i].tokens.len() as u64) as u32;
                all[i].tokens.truncate(tokens as usize);
                all[i].prompt_len = all[i].prompt_len.min(tokens as usize);
                let seq = SeqId(i as u32);
                drafter.changed(&SeqOp::Truncate { seq, tokens, blocks: 0 });
            }
            _ => {}
        }
    }
    (got, asked)
}

#[test]
fn drafts_are_what_the_draft_model_says() {
    for seed in 0..40 {
        let (got, asked) = run(seed, 400);
        assert_eq!(got, asked, "seed {seed}: there is room for all");
    }
}

#[test]
fn short_of_memory_it_drafts_for_some() {
    let (mut got, mut asked) = (0, 0);
    for seed in 100..140 {
        let of = run(seed, 14);
        (got, asked) = (got + of.0, asked + of.1);
    }
    assert!(got > asked / 4 && got < asked, "{got} of {asked}");
}

#[test]
fn a_draft_ends_where_it_is_no_longer_likely() {
    let tokens = Toy::prompt(3, 9);
    let vocabulary = VocabularyMap::identity(Toy::VOCAB as u32);
    let mut drafter = ModelDrafter::new(Toy::new(40, BLOCK, 64), vocabulary);
    let mut lengths = Vec::new();
    for stop_below in [0, CONFIDENCE_ONE / 1000, CONFIDENCE_ONE / 20, CONFIDENCE_ONE] {
        let wanted = Wanted {
            seq: SeqId(0),
            tokens: &tokens,
            nodes: 8,
            stop_below,
            context: usize::MAX,
            sampling: &SamplingParams::greedy(),
            prompt_len: 9,
            choice: 0,
        };
        let mut proposals = Vec::new();
        let work = drafter.propose(&[wanted], &mut proposals);
        let nodes = &proposals[0].nodes;
        let mut all = 1.0;
        for node in &nodes[..nodes.len() - 1] {
            all *= f64::from(node.confidence) / f64::from(CONFIDENCE_ONE);
            assert!(all * 1.001 >= f64::from(stop_below) / f64::from(CONFIDENCE_ONE));
        }
        assert!(work.passes as usize >= nodes.len());
        lengths.push(nodes.len());
    }
    assert_eq!((lengths[0], lengths[3]), (8, 1));
    assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
}

#[test]
fn a_backend_that_fails_drafts_nothing_and_is_asked_again() {
    let mut toy = Toy::new(40, BLOCK, 64);
    toy.fails_on = Some(49);
    let mut drafter = ModelDrafter::new(toy, VocabularyMap::identity(Toy::VOCAB as u32));
    for (tokens, drafts) in [([1, 49, 2], false), ([1, 5, 2], true)] {
        let sampling = SamplingParams {
            logit_bias: vec![(49, f32::NEG_INFINITY)],
            ..SamplingParams::greedy()
        };
        let wanted = Wanted {
            seq: SeqId(0),
            tokens: &tokens,
            nodes: 3,
            stop_below: 0,
            context: usize::MAX,
            sampling: &sampling,
            prompt_len: 3,
            choice: 0,
        };
        let mut proposals = Vec::new();
        drafter.propose(&[wanted], &mut proposals);
        assert_eq!(!proposals.is_empty(), drafts);
    }
}
