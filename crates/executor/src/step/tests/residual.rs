//! Residual sampling through whole steps: whatever is drafted and however drafts are cut, outputs have
//! the distribution of plain decoding.

use dunlin_scheduler::{DraftWanted, DraftWork, Proposal};

use super::*;
use crate::{
    drafter::{Drafter, DrawnNode, Wanted},
    sampler::{Choice, Drawn},
};

/// Tokens that a bias leaves.
const LEFT: usize = 4;
const RUNS: u64 = 6_000;

/// Draws from distributions that have little to do with the model's, two tokens deep.
struct Skewed {
    sampler: Sampler,
    drawn: Vec<DrawnNode>,
}

impl Skewed {
    fn children(&mut self, wanted: &Wanted<'_>, path: &[u32]) -> (Vec<Choice>, Option<Drawn>) {
        let tokens = [wanted.tokens, path].concat();
        // Another model: one that sees the tokens in another order.
        let mut seen = tokens.clone();
        seen.reverse();
        let mut logits = Toy::logits_after(&seen);
        let place = SamplePlace { tokens: &tokens, prompt_len: wanted.prompt_len, choice: 0 };
        let mut choices = Vec::new();
        let drawn = self
            .sampler
            .draw_proposals(
                wanted.sampling,
                place,
                &mut logits,
                wanted.branches,
                |_| true,
                &mut choices,
            )
            .unwrap();
        (choices, drawn)
    }
}

impl Drafter for Skewed {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Model
    }
    fn pass_permille(&self, _: &dyn Backend) -> u32 {
        1
    }
    fn changed(&mut self, _: &SeqOp) {}
    fn propose(&mut self, wanted: &[Wanted<'_>], proposals: &mut Vec<Proposal>) -> DraftWork {
        for wanted in wanted {
            let drafter = self.kind();
            let mut nodes: Vec<DraftNode> = Vec::new();
            let mut paths = vec![(DraftNode::ROOT, Vec::new())];
            while let Some((parent, path)) = paths.pop() {
                let (choices, drawn) = self.children(wanted, &path);
                let (seq, length) = (wanted.seq, wanted.tokens.len());
                self.drawn.extend(drawn.map(|drawn| DrawnNode {
                    seq,
                    length,
                    path: path.clone(),
                    drawn,
                }));
                for choice in choices {
                    if path.is_empty() {
                        paths.push((nodes.len() as u32, vec![choice.token]));
                    }
                    let token = choice.token;
                    nodes.push(DraftNode { token, parent, confidence: 1 << 15, drafter });
                }
            }
            proposals.push(Proposal { seq: wanted.seq, drafter, nodes });
        }
        DraftWork { passes: 1, tokens: 1 }
    }
    fn take_drawn(&mut self, to: &mut Vec<DrawnNode>) {
        to.append(&mut self.drawn);
    }
}

fn residual(seed: u64) -> GenerationParams {
    let bias = |t: usize| (t as u32, if t < LEFT { 0.0 } else { f32::NEG_INFINITY });
    GenerationParams {
        sampling: SamplingParams {
            seed,
            temperature: 1.0,
            logit_bias: (0..Toy::VOCAB).map(bias).collect(),
            ..SamplingParams::default()
        },
        acceptance: DraftAcceptance::Residual,
        speculate: Speculate::Auto,
        max_draft: 31,
        logprobs: None,
        ..params(seed, 1, 3)
    }
}

/// The probabilities of a token after a prefix.
fn law(prefix: &[u32]) -> Vec<f64> {
    let logits = Toy::logits_after(prefix);
    let weights: Vec<f64> = logits[..LEFT].iter().map(|&x| f64::from(x).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// Sequences whose draft begins with an even token lose their KV, and what was drafted.
const PREEMPTS: u64 = 4;

/// Nodes that a controller keeps which looks at what was drawn: those with even tokens only, of any
/// depth; all; none; or a beginning of the list that depends on the first token.
fn cut(nodes: &[DraftNode], how: u64) -> Vec<DraftNode> {
    let mut kept: Vec<DraftNode> = Vec::new();
    let mut places = vec![None; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        let parent = match node.parent {
            DraftNode::ROOT => Some(DraftNode::ROOT),
            parent => places[parent as usize],
        };
        let keeps = match how {
            0 => node.token % 2 == 0,
            1 => true,
            2 => false,
            _ => at < nodes[0].token as usize,
        };
        let Some(parent) = parent.filter(|_| keeps) else { continue };
        places[at] = Some(kept.len() as u32);
        kept.push(DraftNode { parent, ..*node });
    }
    kept
}

#[test]
fn outputs_have_the_models_distribution_however_drafts_are_cut() {
    for (how, branches) in
        [(0, 1), (0, 3), (1, 1), (1, 2), (2, 2), (3, 3), (PREEMPTS, 1), (PREEMPTS, 2)]
    {
        let mut driver = Driver::new(Toy::new(4000, BLOCK, 64), 1);
        let skewed = Skewed { sampler: Sampler::new(), drawn: Vec::new() };
        driver.executor.add_drafter(Box::new(skewed));
        let prompt = [9, 8, 7];
        let mut counts = vec![0u32; LEFT.pow(3)];
        let mut accepted = 0;
        for run in 0..RUNS {
            driver.next_block = 0;
            driver.spare.clear();
            let id = run as u32 % 3;
            let mut planned = driver.start_fresh(id, residual(run), &prompt);
            driver.add(&mut planned, prompt.len(), &[]);
            driver.run();
            let mut had = 1;
            while had < 3 {
                driver.plan.kind = StepKind::Draft;
                driver.plan.wanted = vec![DraftWanted {
                    seq: planned.seq,
                    drafter: DrafterKind::Model,
                    nodes: 31,
                    depth: 2,
                    branches,
                    stop_below: 0,
                    context: u32::MAX,
                }];
                driver.run();
                let proposed = &driver.outcome.proposals[0].nodes;
                let mut draft = cut(proposed, how);
                let mut tokens = 1;
                if how == PREEMPTS && proposed[0].token.is_multiple_of(2) {
                    tokens = driver.executor.tokens(planned.seq).len();
                    let kept =
                        SeqOp::Truncate { seq: planned.seq, tokens: tokens as u32, blocks: 0 };
                    driver.executor.apply(&kept);
                    (planned.computed, planned.blocks) = (0, 0);
                    draft.clear();
                }
                driver.plan.kind = StepKind::Run;
                driver.plan.wanted.clear();
                driver.add(&mut planned, tokens, &draft);
                let gained = driver.run().commits[0].tokens as usize;
                planned.computed += gained - 1;
                accepted += gained - 1;
                had += gained;
            }
            let output = driver.output(&planned);
            let index = output[..3].iter().fold(0, |index, &t| index * LEFT + t as usize);
            counts[index] += 1;
            driver.executor.release(RequestId(u64::from(id)));
            driver.executor.apply(&SeqOp::End { seq: planned.seq });
        }
        let mut chi_square = 0.0;
        for (index, &count) in counts.iter().enumerate() {
            let tokens = [index / LEFT / LEFT, index / LEFT % LEFT, index % LEFT].map(|t| t as u32);
            let mut prefix = prompt.to_vec();
            let mut probability = 1.0;
            for token in tokens {
                probability *= law(&prefix)[token as usize];
                prefix.push(token);
            }
            let expected = probability * RUNS as f64;
            chi_square += (f64::from(count) - expected).powi(2) / expected;
        }
        // 63 degrees of freedom: a mean of 63, a deviation of 11.2; five of these.
        println!("cut {how}, {branches} branches: chi-square {chi_square:.1}, {accepted} accepted");
        assert!(chi_square < 119.0, "cut {how}, {branches} branches: {chi_square}");
        assert_eq!(accepted > 0, how != 2);
    }
}

#[test]
fn greedy_choices_are_those_of_plain_decoding() {
    let mut driver = Driver::new(Toy::new(400, BLOCK, 64), 1);
    let mut params = residual(5);
    params.sampling.temperature = 0.0;
    params.max_tokens = 12;
    assert!(!params.draws());
    let mut planned = driver.start(0, params, &[1, 2, 3]);
    driver.add(&mut planned, 3, &[]);
    driver.run();
    let mut random = SeedTree::root(1).child("greedy").stream();
    while driver.output(&planned).len() < 12 {
        let done = driver.output(&planned).len();
        let draft = random_tree(&mut random, &planned.wanted[done..]);
        driver.add(&mut planned, 1, &draft);
        planned.computed += driver.run().commits[0].tokens as usize - 1;
    }
    assert_eq!(driver.output(&planned)[..12], planned.wanted[..12]);
}
