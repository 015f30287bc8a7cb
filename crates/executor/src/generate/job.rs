//! A request under way: its sequences, their KV tables and its bill.

use std::time::Instant;

use dunlin_units::RequestId;

use super::{
    blocks::BlockPool,
    request::{Bill, Choice, Completion, Finish, PositionLogprobs, Request},
};
use crate::text::ChoiceText;

/// One choice of a request.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Its number among the request's choices.
    pub(super) choice: u32,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    /// Positions whose KV is stored: `0..computed`. What follows in `tokens` is to be computed.
    pub(super) computed: usize,
    /// Block `i` holds positions `i * block_tokens ..`.
    pub(super) table: Vec<u32>,
    /// How many tokens the step in hand computes.
    pub(super) planned: usize,
    pub(super) text: ChoiceText,
    pub(super) logprobs: Vec<PositionLogprobs>,
    /// Why it ended, once it has.
    pub(super) finish: Option<Finish>,
}

impl Sequence {
    /// Tokens that wait to be computed: the rest of the prompt, or the last chosen token.
    pub(super) fn pending(&self) -> usize {
        if self.finish.is_some() { 0 } else { self.tokens.len() - self.computed }
    }

    /// Another choice that continues from here; the blocks become shared.
    pub(super) fn fork(&self, choice: u32, pool: &mut BlockPool) -> Self {
        for &block in &self.table {
            pool.share(block);
        }
        let mut tokens = Vec::with_capacity(self.tokens.capacity());
        tokens.extend_from_slice(&self.tokens);
        Self {
            choice,
            tokens,
            computed: self.computed,
            table: self.table.clone(),
            planned: 0,
            text: self.text.clone(),
            logprobs: Vec::new(),
            finish: None,
        }
    }
}

/// A request, waiting or running.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) request: Request,
    /// The choices; only the first until the prompt is computed.
    pub(super) sequences: Vec<Sequence>,
    /// Tokens at which a choice ends, prompt included.
    pub(super) max_len: usize,
    /// Whether that is the context's end and not `max_tokens`.
    pub(super) ends_at_context: bool,
    /// Blocks that it may still allocate.
    pub(super) reserved: usize,
    /// Blocks that it holds, shared ones once.
    pub(super) held: usize,
    pub(super) bill: Bill,
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

impl Job {
    pub(super) fn new(
        id: RequestId,
        request: Request,
        max_len: usize,
        ends_at_context: bool,
        text: ChoiceText,
        now: Instant,
    ) -> Self {
        let mut tokens = Vec::with_capacity(max_len.min(request.prompt.len() + 4096));
        tokens.extend_from_slice(&request.prompt);
        let first = Sequence {
            choice: 0,
            tokens,
            computed: 0,
            table: Vec::new(),
            planned: 0,
            text,
            logprobs: Vec::new(),
            finish: None,
        };
        let bill = Bill { prompt_tokens: request.prompt.len(), ..Bill::default() };
        Self {
            id,
            request,
            sequences: vec![first],
            max_len,
            ends_at_context,
            reserved: 0,
            held: 0,
            bill,
            submitted: now,
            started: None,
            first_token: None,
        }
    }

    /// The most blocks that the request can come to hold: its whole prompt blocks once, the others
    /// for each choice.
    pub(super) fn most_blocks(&self, block_tokens: usize) -> usize {
        let shared = self.request.prompt.len() / block_tokens;
        let all = self.max_len.div_ceil(block_tokens);
        shared + (all - shared) * self.request.choices as usize
    }

    /// Whether the prompt's logits have been seen, and the choices have parted.
    pub(super) fn is_decoding(&self) -> bool {
        self.first_token.is_some()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.sequences.iter().all(|s| s.finish.is_some())
    }

    pub(super) fn start(&mut self, now: Instant) {
        self.started = Some(now);
        self.bill.queue_ns = nanoseconds(self.submitted, now);
    }

    pub(super) fn mark_first_token(&mut self, now: Instant) {
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.bill.prefill_ns = nanoseconds(self.started.unwrap_or(now), now);
        }
    }

    /// Makes the blocks that `planned` more tokens of a sequence are written to its own: allocates
    /// what is missing, and gives it a copy of a shared one. Returns such a copy to be made:
    /// (from, to, tokens).
    pub(super) fn prepare_blocks(
        &mut self,
        sequence: usize,
        pool: &mut BlockPool,
        block_tokens: usize,
    ) -> Option<(u32, u32, usize)> {
        let seq = &mut self.sequences[sequence];
        let mut copy = None;
        let partial = seq.computed / block_tokens;
        if let Some(block) = seq.table.get(partial).copied()
            && pool.is_shared(block)
        {
            let own = pool.allocate();
            pool.release(block);
            seq.table[partial] = own;
            self.held += 1;
            self.reserved -= 1;
            copy = Some((block, own, seq.computed % block_tokens));
        }
        let needed = (seq.computed + seq.planned).div_ceil(block_tokens);
        while seq.table.len() < needed {
            seq.table.push(pool.allocate());
            self.held += 1;
            self.reserved -= 1;
        }
        copy
    }

    /// Releases the blocks of a finished sequence.
    pub(super) fn release_blocks(&mut self, sequence: usize, pool: &mut BlockPool) {
        self.held -= pool.truncate(&mut self.sequences[sequence].table, 0);
    }

    /// Ends every choice that has not ended.
    pub(super) fn finish_all(&mut self, finish: &Finish) {
        for seq in self.sequences.iter_mut().filter(|s| s.finish.is_none()) {
            seq.text.flush();
            seq.finish = Some(finish.clone());
        }
    }

    /// The request's results; its sequences have all ended.
    pub(super) fn complete(self, now: Instant) -> Completion {
        let mut bill = self.bill;
        match (self.started, self.first_token) {
            (None, _) => bill.queue_ns = nanoseconds(self.submitted, now),
            (Some(started), None) => bill.prefill_ns = nanoseconds(started, now),
            (_, Some(first)) => bill.decode_ns = nanoseconds(first, now),
        }
        let prompt = self.request.prompt.len();
        let wants_logprobs = self.request.logprobs.is_some();
        let mut choices: Vec<Choice> = self
            .sequences
            .into_iter()
            .map(|seq| Choice {
                token_ids: seq.tokens[prompt..].to_vec(),
                text: seq.text.into_text(),
                logprobs: wants_logprobs.then_some(seq.logprobs),
                finish: seq.finish.unwrap_or(Finish::Cancelled),
            })
            .collect();
        // A request that ended before its choices parted has all of them end alike.
        while choices.len() < self.request.choices as usize {
            choices.push(choices[0].clone());
        }
        bill.output_tokens = choices.iter().map(|c| c.token_ids.len()).sum();
        Completion { choices, bill }
    }
}

pub(super) fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}
