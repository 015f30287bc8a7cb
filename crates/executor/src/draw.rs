//! Choosing the tokens of a step: rows of logits shared out to threads, each with a sampler of its
//! own.
//!
//! A token depends on its sequence's tokens, its row and its request alone, so that it does not
//! matter which thread chooses it. Nothing is changed here but the samplers' memory: what is drawn
//! is taken up afterwards, in order.

use std::{collections::HashMap, ops::Range, thread};

use dunlin_scheduler::DraftNode;
use dunlin_tensor::Best;
use dunlin_units::{RequestId, SeqId};

use crate::{
    drawn::DrawnTokens,
    generation::Generation,
    sampler::{SampleError, SamplePlace, Sampled, Sampler, TokenLogprob, sample_best},
    sequence::Sequences,
    tree::Trees,
};

/// What tokens are drawn from: one position's logits each, or the best of them. One position, or
/// with a draft that of the sequence's last token and one for each draft token.
#[derive(Debug, Clone)]
pub(crate) enum Rows {
    /// Rows of the step's logits.
    Logits(Range<usize>),
    /// Entries among the step's best.
    Best(Range<usize>),
}

impl Rows {
    /// Rows of logits.
    fn logits(&self) -> Range<usize> {
        match self {
            Rows::Logits(rows) => rows.clone(),
            Rows::Best(_) => 0..0,
        }
    }
}

/// A run of positions from which sequences draw tokens.
#[derive(Debug, Clone)]
pub(crate) struct DrawTask {
    /// Where the positions' logits are.
    pub(crate) rows: Rows,
    /// The number of the first position among all of the step whose logits are wanted.
    pub(crate) first: usize,
    /// Which of the step's samples draw from them.
    pub(crate) samples: Range<usize>,
    /// Where the draft's nodes lie among the tokens of the step's trees, one fewer than positions: the position
    /// of a node is one behind its place among them.
    pub(crate) nodes: Range<usize>,
}

/// Positions' logits, or the best of each.
enum Row<'a> {
    /// `[positions, vocab_size]`.
    Logits(&'a mut [f32]),
    /// `[positions]`.
    Best(&'a [Best]),
}

impl Row<'_> {
    /// Position `i` alone.
    fn at(&mut self, i: usize, vocab_size: usize) -> Row<'_> {
        match self {
            Row::Logits(logits) => Row::Logits(&mut logits[i * vocab_size..][..vocab_size]),
            Row::Best(best) => Row::Best(&best[i..i + 1]),
        }
    }
}

/// A token that was drawn.
#[derive(Debug)]
pub(crate) struct Draw {
    /// For which of the step's samples.
    pub(crate) sample: usize,
    /// The token, or why there is none.
    pub(crate) result: Result<Sampled, SampleError>,
    /// Its best alternatives, in the memory of the worker.
    pub(crate) top: Range<usize>,
    /// Whether it is what came of a drafter's own draw.
    pub(crate) residual: bool,
}

/// One thread's sampler, and what it has drawn.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    sampler: Sampler,
    /// In order of samples; several for one where drafts were accepted.
    pub(crate) draws: Vec<Draw>,
    /// Alternatives of all draws.
    pub(crate) top: Vec<TokenLogprob>,
    /// For each sample whose draft was right at first, the place of the last node that was.
    pub(crate) accepted: Vec<(usize, usize)>,
    /// A sequence's tokens with the draft tokens accepted so far.
    prefix: Vec<u32>,
}

/// What all threads read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrawContext<'a> {
    /// The sequences of the step's samples.
    pub(crate) samples: &'a [SeqId],
    /// All sequences.
    pub(crate) sequences: &'a Sequences,
    /// All requests.
    pub(crate) generations: &'a HashMap<RequestId, Generation>,
    /// The best tokens of the positions that want no more.
    pub(crate) best: &'a [Best],
    /// All drafts.
    pub(crate) trees: &'a Trees,
    /// What drafters drew.
    pub(crate) drawn: &'a DrawnTokens,
    /// Logits of a row.
    pub(crate) vocab_size: usize,
    /// Logits in a step from which on they are shared out to threads.
    pub(crate) spread_from: usize,
}

/// Draws for all tasks, which are in order of positions; `logits` is `[rows, vocab_size]`. The draws of
/// all workers, one after the other, are in order of samples.
pub(crate) fn draw_all(
    context: DrawContext<'_>,
    tasks: &[DrawTask],
    logits: &mut [f32],
    workers: &mut [Worker],
) {
    for worker in workers.iter_mut() {
        worker.draws.clear();
        worker.top.clear();
        worker.accepted.clear();
    }
    let wanted: usize = tasks.iter().map(|t| t.rows.logits().len()).sum();
    let (own, others) = workers.split_last_mut().expect("there is at least one worker");
    if wanted * context.vocab_size < context.spread_from || others.is_empty() {
        return own.draw(context, tasks, logits, 0);
    }
    thread::scope(|scope| {
        let (mut tasks, mut logits, mut first_row, mut left) = (tasks, logits, 0, wanted);
        let threads = others.len() + 1;
        // Each takes the next part, and this thread what is left.
        for (i, worker) in others.iter_mut().enumerate() {
            let part = left / (threads - i);
            let (mut rows, mut cut) = (0, 0);
            while rows < part {
                rows += tasks[cut].rows.logits().len();
                cut += 1;
            }
            let (head, tail) = tasks.split_at(cut);
            let end = head.iter().map(|t| t.rows.logits().end).fold(first_row, usize::max);
            let (head_logits, tail_logits) =
                logits.split_at_mut((end - first_row) * context.vocab_size);
            let from = first_row;
            scope.spawn(move || worker.draw(context, head, head_logits, from));
            (tasks, logits, first_row, left) = (tail, tail_logits, end, left - rows);
        }
        own.draw(context, tasks, logits, first_row);
    });
}

impl Worker {
    /// Draws for these tasks; `logits` begins with row `first_row`.
    fn draw(
        &mut self,
        context: DrawContext<'_>,
        tasks: &[DrawTask],
        logits: &mut [f32],
        first_row: usize,
    ) {
        for task in tasks {
            let mut rows = match &task.rows {
                Rows::Best(range) => Row::Best(&context.best[range.clone()]),
                Rows::Logits(range) => {
                    let at = (range.start - first_row) * context.vocab_size;
                    Row::Logits(&mut logits[at..][..range.len() * context.vocab_size])
                }
            };
            if task.nodes.is_empty() {
                for sample in task.samples.clone() {
                    self.draw_one(context, sample, &mut rows);
                }
            } else if !task.samples.is_empty() {
                self.draw_path(context, task, &mut rows);
            }
        }
    }

    /// The generation and the place of a sample; none where it does not count any more.
    fn place<'a>(
        context: DrawContext<'a>,
        sample: usize,
    ) -> Option<(&'a Generation, SamplePlace<'a>)> {
        let seq = context.sequences.get(context.samples[sample]);
        let generation = context.generations.get(&seq.request?)?;
        let choice = generation.choices.get(seq.choice as usize)?;
        if choice.end.is_some() {
            return None;
        }
        let prompt_len = seq.tokens.len().saturating_sub(choice.tokens.len());
        let place = SamplePlace { tokens: &seq.tokens, prompt_len, choice: seq.choice };
        Some((generation, place))
    }

    fn draw_one(&mut self, context: DrawContext<'_>, sample: usize, rows: &mut Row<'_>) {
        if let Some((generation, place)) = Self::place(context, sample) {
            let row = rows.at(0, context.vocab_size);
            self.sample(context, generation, place, sample, row);
        }
    }

    /// Follows a tree of draft tokens from its root for as long as there is a node with the token that
    /// would be chosen anyway.
    fn draw_path(&mut self, context: DrawContext<'_>, task: &DrawTask, rows: &mut Row<'_>) {
        let sample = task.samples.start;
        let Some((generation, place)) = Self::place(context, sample) else { return };
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.clear();
        prefix.extend_from_slice(place.tokens);
        let tokens = &context.trees.tokens[task.nodes.clone()];
        let parents = &context.trees.parents[task.nodes.clone()];
        let mut at = None;
        loop {
            let row = at.map_or(0, |place: usize| place + 1);
            let row = rows.at(row, context.vocab_size);
            let here = SamplePlace { tokens: &prefix, ..place };
            let Some(token) = self.sample(context, generation, here, sample, row) else { break };
            let parent = at.map_or(DraftNode::ROOT, |place| place as u32);
            let mut children = (0..).zip(parents.iter().zip(tokens));
            let child = children.find(|(_, node)| *node == (&parent, &token));
            let Some((child, _)) = child else { break };
            prefix.push(token);
            at = Some(child);
        }
        self.accepted.extend(at.map(|place| (sample, place)));
        self.prefix = prefix;
    }

    fn sample(
        &mut self,
        context: DrawContext<'_>,
        generation: &Generation,
        place: SamplePlace<'_>,
        sample: usize,
        row: Row<'_>,
    ) -> Option<u32> {
        let params = &generation.params;
        let constraint = generation.choices.get(place.choice as usize)?.constraint.as_ref();
        let start = self.top.len();
        let drawn = match row {
            Row::Logits(_) if params.draws() => {
                context.drawn.at(context.samples[sample], place.tokens)
            }
            _ => None,
        };
        let result = match row {
            Row::Best(best) => sample_best(best[0], place),
            Row::Logits(row) => {
                let (sampling, logprobs) = (&params.sampling, params.logprobs);
                let sampler = &mut self.sampler;
                let result = match (constraint, drawn) {
                    (None, None) => sampler.sample(sampling, place, row, logprobs),
                    (None, Some(drawn)) => {
                        sampler.sample_drawn(sampling, place, row, logprobs, None, drawn)
                    }
                    (Some(constraint), None) => constraint.with_matcher(|grammar| {
                        sampler.sample_following(sampling, place, row, logprobs, grammar)
                    }),
                    (Some(constraint), Some(drawn)) => constraint.with_matcher(|grammar| {
                        let allowed = Some(grammar.allowed(place.output())?);
                        sampler.sample_drawn(sampling, place, row, logprobs, allowed, drawn)
                    }),
                };
                self.top.extend_from_slice(self.sampler.top_logprobs());
                result
            }
        };
        let token = result.as_ref().ok().map(|s| s.token);
        let (top, residual) = (start..self.top.len(), drawn.is_some());
        self.draws.push(Draw { sample, result, top, residual });
        token
    }
}
