//! Drafts against what the draft model says of the same tokens computed afresh.

use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, SeqId, Stream};

use super::*;
use crate::sampler::{SamplePlace, SamplingParams};

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
                depth: 6,
                branches: 1,
                stop_below: 0,
                context,
                sampling: &all[i].sampling,
                prompt_len: all[i].prompt_len,
                choice: 0,
                draws: false,
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
            depth: 8,
            branches: 1,
            stop_below,
            context: usize::MAX,
            sampling: &SamplingParams::greedy(),
            prompt_len: 9,
            choice: 0,
            draws: false,
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
            depth: 3,
            branches: 1,
            stop_below: 0,
            context: usize::MAX,
            sampling: &sampling,
            prompt_len: 3,
            choice: 0,
            draws: false,
        };
        let mut proposals = Vec::new();
        drafter.propose(&[wanted], &mut proposals);
        assert_eq!(!proposals.is_empty(), drafts);
    }
}

fn wanted<'a>(tokens: &'a [u32], sampling: &'a SamplingParams, nodes: usize) -> Wanted<'a> {
    Wanted {
        seq: SeqId(0),
        tokens,
        nodes,
        depth: nodes,
        branches: 1,
        stop_below: 0,
        context: usize::MAX,
        sampling,
        prompt_len: tokens.len(),
        choice: 0,
        draws: false,
    }
}

fn propose(drafter: &mut ModelDrafter<Toy>, wanted: Wanted<'_>) -> (Vec<DraftNode>, DraftWork) {
    let mut proposals = Vec::new();
    let work = drafter.propose(&[wanted], &mut proposals);
    (proposals.pop().map_or(Vec::new(), |p| p.nodes), work)
}

#[test]
fn a_tree_has_the_most_probable_tokens_behind_each_of_its_paths() {
    for seed in 0..60 {
        let mut random = SeedTree::root(seed).child("trees").stream();
        let vocabulary = VocabularyMap::identity(Toy::VOCAB as u32);
        let mut drafter = ModelDrafter::new(Toy::new(60, BLOCK, 16), vocabulary);
        let mut tokens = Toy::prompt(seed, 1 + random.next_below(11) as usize);
        for _ in 0..6 {
            let temperature = if seed % 2 == 0 { 0.0 } else { 0.8 };
            let sampling = SamplingParams { seed, temperature, ..SamplingParams::default() };
            let (nodes, branches) = (1 + random.next_below(14) as usize, 1 + random.next_below(5));
            let depth = 1 + random.next_below(6) as usize;
            let branches = branches as usize;
            let asked = Wanted { branches, depth, ..wanted(&tokens, &sampling, nodes) };
            let (tree, _) = propose(&mut drafter, asked);
            assert!(!tree.is_empty() && tree.len() <= nodes, "seed {seed}");
            let mut layout = dunlin_scheduler::TreeLayout::default();
            layout.lay_out(&tree);
            assert!(layout.branches.len() <= branches && layout.depth() <= depth as u32);
            let mut sampler = Sampler::new();
            let mut all: Vec<f64> = Vec::new();
            for (at, node) in tree.iter().enumerate() {
                let mut path = Vec::new();
                let mut above = node.parent;
                while above != DraftNode::ROOT {
                    path.insert(0, tree[above as usize].token);
                    above = tree[above as usize].parent;
                }
                let place = [&tokens[..], &path].concat();
                let here = SamplePlace { tokens: &place, prompt_len: tokens.len(), choice: 0 };
                let mut choices = Vec::new();
                let mut logits = Toy::logits_after(&place);
                sampler.choices(&sampling, here, &mut logits, 4, &mut choices).unwrap();
                let found = choices.iter().position(|c| c.token == node.token);
                let rank = found.unwrap_or_else(|| panic!("seed {seed}: node {at} of {tree:?}"));
                let confidence = choices[rank].sure * f64::from(CONFIDENCE_ONE);
                assert!((confidence - f64::from(node.confidence)).abs() <= 1.0, "seed {seed}");
                // Better ones come before it.
                let before = tree[..at].iter().filter(|n| n.parent == node.parent).count();
                assert_eq!(before, rank, "seed {seed}");
                let above = all.get(node.parent as usize).copied().unwrap_or(1.0);
                all.push(above * choices[rank].sure);
            }
            assert!(all.is_sorted_by(|a, b| a >= b), "seed {seed}: {all:?}");
            let held: usize = drafter.states.iter().flatten().map(|s| s.table.len()).sum();
            assert_eq!(held + drafter.free.len(), 60, "seed {seed}");
            // Some path of it was right.
            let right = random.next_below(tree.len() as u64) as usize;
            let mut path = vec![tree[right].token];
            let mut above = tree[right].parent;
            while above != DraftNode::ROOT {
                path.insert(0, tree[above as usize].token);
                above = tree[above as usize].parent;
            }
            tokens.extend(path);
            tokens.push(random.next_below(Toy::VOCAB as u64) as u32);
        }
    }
}

#[test]
fn what_is_looked_up_saves_passes_and_changes_no_draft() {
    let vocabulary = VocabularyMap::identity(Toy::VOCAB as u32);
    let mut drafter = ModelDrafter::new(Toy::new(200, BLOCK, 64), vocabulary);
    // Two tokens are left to choose from, so that what was said before is often right.
    let bias = |t: usize| (t as u32, if t < 2 { 0.0 } else { f32::NEG_INFINITY });
    let sampling = SamplingParams {
        logit_bias: (0..Toy::VOCAB).map(bias).chain([(1, 3.0)]).collect(),
        ..SamplingParams::greedy()
    };
    let mut tokens = vec![1; 20];
    let (mut nodes, mut passes) = (0, 0);
    for _ in 0..20 {
        let asked = wanted(&tokens, &sampling, 6);
        let (draft, work) = propose(&mut drafter, asked);
        let found: Vec<u32> = draft.iter().map(|n| n.token).collect();
        assert_eq!(found, reference(&asked, 0));
        nodes += draft.len();
        passes += work.passes as usize;
        tokens.extend_from_slice(&found[..4]);
    }
    assert!(passes * 3 < nodes * 2, "{passes} passes for {nodes} nodes");
}

#[test]
fn drawn_tokens_are_given_out_with_what_they_were_drawn_from() {
    let vocabulary = VocabularyMap::identity(Toy::VOCAB as u32);
    let mut drafter = ModelDrafter::new(Toy::new(60, BLOCK, 16), vocabulary);
    let tokens = Toy::prompt(3, 7);
    let sampling = SamplingParams::default();
    let asked = Wanted { branches: 3, depth: 3, draws: true, ..wanted(&tokens, &sampling, 9) };
    let (tree, _) = propose(&mut drafter, asked);
    let mut drawn = Vec::new();
    drafter.take_drawn(&mut drawn);
    assert!(drawn.len() > 1 && drawn[0].path.is_empty());
    for node in &drawn {
        assert_eq!((node.seq, node.length), (SeqId(0), 7));
        let total: f64 = node.drawn.from.iter().map(|w| w.1).sum();
        assert!((total - 1.0).abs() < 1e-12);
        assert!(node.drawn.from.iter().any(|w| w.0 == node.drawn.token && w.1 > 0.0));
    }
    assert!(tree.len() > 3);
    // Asked again, it draws the same.
    propose(&mut drafter, asked);
    let mut again = Vec::new();
    drafter.take_drawn(&mut again);
    assert_eq!(drawn, again);
}

#[test]
fn drawn_tokens_are_the_models_where_vocabularies_differ() {
    const ALL: u32 = Toy::VOCAB as u32;
    let sampling = SamplingParams::default();
    let tokens = Toy::prompt(3, 7);
    let draws = |vocabulary, tokens: &[u32]| {
        let mut drafter = ModelDrafter::new(Toy::new(60, BLOCK, 16), vocabulary);
        propose(
            &mut drafter,
            Wanted { branches: 2, depth: 3, draws: true, ..wanted(tokens, &sampling, 9) },
        );
        let mut drawn = Vec::new();
        drafter.take_drawn(&mut drawn);
        drawn
    };
    let name = |id: u32| ALL - 1 - id;
    let own = draws(VocabularyMap::identity(ALL), &tokens);
    let names: Vec<Option<u32>> = (0..ALL).map(|id| Some(name(id))).collect();
    let named: Vec<u32> = tokens.iter().map(|&token| name(token)).collect();
    let other = draws(VocabularyMap::of_names(names.clone(), ALL), &named);
    assert!(own.len() > 1 && own.len() == other.len());
    for (own, other) in own.iter().zip(&other) {
        assert_eq!(other.path, own.path.iter().map(|&id| name(id)).collect::<Vec<_>>());
        assert_eq!(other.drawn, own.drawn.clone().renamed(name));
        assert!(other.drawn.from.is_sorted_by_key(|w| w.0));
    }
    // What cannot be said is not drawn.
    let silent = own[0].drawn.token;
    let mut names = names;
    names[silent as usize] = None;
    let without = draws(VocabularyMap::of_names(names, ALL), &named);
    let drawn = &without[0].drawn;
    assert!(drawn.from.iter().all(|w| w.0 != name(silent)) && drawn.token != name(silent));
    assert!((drawn.from.iter().map(|w| w.1).sum::<f64>() - 1.0).abs() < 1e-12);
}
