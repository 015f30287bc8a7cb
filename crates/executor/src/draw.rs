//! Choosing the tokens of a step: rows of logits shared out to threads, each with a sampler of its
//! own.
//!
//! A token depends on its sequence's tokens, its row and its request alone, so that it does not
//! matter which thread chooses it. Nothing is changed here but the samplers' memory: what is drawn
//! is taken up afterwards, in order.

use std::{collections::HashMap, ops::Range, thread};

use dunlin_units::{RequestId, SeqId};

use crate::{
    generation::Generation,
    sampler::{SampleError, SamplePlace, Sampled, Sampler, TokenLogprob},
    sequence::Sequences,
};

/// A run of logit rows from which sequences draw tokens.
#[derive(Debug, Clone)]
pub(crate) struct DrawTask {
    /// Rows of the step's logits: those of the tokens after which one is chosen. One, or with a
    /// draft one for the sequence's last token and one for each draft token.
    pub(crate) rows: Range<usize>,
    /// Which of the step's samples draw from them.
    pub(crate) samples: Range<usize>,
    /// Where the chain of draft tokens lies, one fewer than rows.
    pub(crate) chain: Range<usize>,
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
}

/// One thread's sampler, and what it has drawn.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    sampler: Sampler,
    /// In order of samples; several for one where drafts were accepted.
    pub(crate) draws: Vec<Draw>,
    /// Alternatives of all draws.
    pub(crate) top: Vec<TokenLogprob>,
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
    /// Draft tokens of all chains.
    pub(crate) chains: &'a [u32],
    /// Logits of a row.
    pub(crate) vocab_size: usize,
    /// Logits in a step from which on they are shared out to threads.
    pub(crate) spread_from: usize,
}

/// Draws for all tasks, which are in order of rows; `logits` is `[rows, vocab_size]`. The draws of
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
    }
    let wanted: usize = tasks.iter().map(|t| t.rows.len()).sum();
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
                rows += tasks[cut].rows.len();
                cut += 1;
            }
            let (head, tail) = tasks.split_at(cut);
            let end = head.last().map_or(first_row, |t| t.rows.end);
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
            let at = (task.rows.start - first_row) * context.vocab_size;
            let rows = &mut logits[at..][..task.rows.len() * context.vocab_size];
            if task.chain.is_empty() {
                for sample in task.samples.clone() {
                    self.draw_one(context, sample, rows);
                }
            } else if !task.samples.is_empty() {
                self.draw_chain(context, task, rows);
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

    fn draw_one(&mut self, context: DrawContext<'_>, sample: usize, row: &mut [f32]) {
        if let Some((generation, place)) = Self::place(context, sample) {
            self.sample(generation, place, sample, row);
        }
    }

    /// Follows a chain of draft tokens for as long as each is the one that would be chosen anyway.
    fn draw_chain(&mut self, context: DrawContext<'_>, task: &DrawTask, rows: &mut [f32]) {
        let sample = task.samples.start;
        let Some((generation, place)) = Self::place(context, sample) else { return };
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.clear();
        prefix.extend_from_slice(place.tokens);
        let chain = &context.chains[task.chain.clone()];
        for (i, row) in rows.chunks_exact_mut(context.vocab_size).enumerate() {
            let here = SamplePlace { tokens: &prefix, ..place };
            let drawn = self.sample(generation, here, sample, row);
            match (drawn, chain.get(i)) {
                (Some(token), Some(&draft)) if token == draft => prefix.push(token),
                _ => break,
            }
        }
        self.prefix = prefix;
    }

    fn sample(
        &mut self,
        generation: &Generation,
        place: SamplePlace<'_>,
        sample: usize,
        row: &mut [f32],
    ) -> Option<u32> {
        let params = &generation.params;
        let constraint = generation.choices.get(place.choice as usize)?.constraint.as_ref();
        let result = match constraint {
            None => self.sampler.sample(&params.sampling, place, row, params.logprobs),
            Some(constraint) => {
                let output = &place.tokens[place.prompt_len..];
                constraint.with_allowed(output, |allowed| {
                    let (sampling, logprobs) = (&params.sampling, params.logprobs);
                    self.sampler.sample_allowed(sampling, place, row, logprobs, Some(allowed?))
                })
            }
        };
        let start = self.top.len();
        self.top.extend_from_slice(self.sampler.top_logprobs());
        let token = result.as_ref().ok().map(|s| s.token);
        self.draws.push(Draw { sample, result, top: start..self.top.len() });
        token
    }
}
