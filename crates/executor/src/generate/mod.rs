//! The generation loop: requests in, tokens out, over any [`Backend`].
//!
//! One call of [`Generator::step`] is one forward pass over everything that is under way: each
//! sequence that decodes adds its one token, and prompts fill what is left of the step in chunks,
//! in order of arrival. A request starts when the KV blocks that it can come to need are free, so
//! that nothing is ever preempted and nothing fails for want of KV half-way; those behind it wait
//! their turn.
//!
//! Not here: priorities, preemption, fairness between requests, a cache of prefixes across them.

mod blocks;
mod job;
mod request;

pub use crate::text::TextOptions;
pub use request::{
    Bill, CancelFlag, Choice, Completion, ContextOverflow, Event, Finish, PositionLogprobs,
    Request, RequestError, SessionId,
};

use std::{collections::VecDeque, time::Instant};

use dunlin_tensor::{Backend, BackendError, LogitsWanted, SequenceInput};
use dunlin_tokenizer::Tokenizer;
use dunlin_units::RequestId;

use crate::sampler::{SamplePlace, Sampler, TokenLogprob};
use crate::text::ChoiceText;
use blocks::BlockPool;
use job::{Job, Sequence, nanoseconds};

/// The KV that a session keeps between requests.
#[derive(Debug)]
struct KeptKv {
    session: SessionId,
    /// The tokens whose KV is stored.
    tokens: Vec<u32>,
    table: Vec<u32>,
}

/// Drives a backend for any number of requests at once.
pub struct Generator<B> {
    backend: B,
    tokenizer: Option<Tokenizer>,
    /// The most tokens of a sequence.
    context: usize,
    pool: BlockPool,
    waiting: VecDeque<Job>,
    /// In order of admission.
    running: Vec<Job>,
    /// The one used longest ago first.
    kept: Vec<KeptKv>,
    sampler: Sampler,
    /// `[rows of the step, vocab_size]`.
    logits: Vec<f32>,
    submitted: u64,
}

impl<B: Backend> Generator<B> {
    /// A generator whose sequences hold at most `context` tokens (and no more than the backend has
    /// KV for). Without a tokenizer there is no text, and stop strings are refused.
    pub fn new(backend: B, tokenizer: Option<Tokenizer>, context: usize) -> Self {
        let kv_tokens = backend.block_count().saturating_mul(backend.block_tokens());
        Self {
            pool: BlockPool::new(backend.block_count()),
            backend,
            tokenizer,
            context: context.min(kv_tokens),
            waiting: VecDeque::new(),
            running: Vec::new(),
            kept: Vec::new(),
            sampler: Sampler::new(),
            logits: Vec::new(),
            submitted: 0,
        }
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// KV blocks that nothing holds.
    pub fn free_blocks(&self) -> usize {
        self.pool.free()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A request that could never run is refused here.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        let vocab_size = self.backend.spec().vocab_size;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocab_size) {
            return Err(RequestError::TokenOutOfRange { token, vocab_size });
        }
        request.sampling.validate(vocab_size)?;
        let limit = self.backend.max_step_tokens();
        if request.choices == 0 || request.choices as usize > limit {
            return Err(RequestError::BadChoices { choices: request.choices, limit });
        }
        let (max_len, ends_at_context) = self.length_limit(&request)?;
        let text = match &self.tokenizer {
            None if !request.stop_strings.is_empty() => return Err(RequestError::NoTokenizer),
            _ if request.stop_strings.iter().any(String::is_empty) => {
                return Err(RequestError::EmptyStopString);
            }
            tokenizer => ChoiceText::new(tokenizer.as_ref(), &request.stop_strings, request.text),
        };
        let id = RequestId(self.submitted);
        let job = Job::new(id, request, max_len, ends_at_context, text, Instant::now());
        let block_tokens = self.backend.block_tokens();
        let most = job.most_blocks(block_tokens);
        if most > self.pool.total() {
            return Err(RequestError::KvTooSmall {
                needed: most * block_tokens,
                available: self.pool.total() * block_tokens,
            });
        }
        self.submitted += 1;
        self.waiting.push_back(job);
        Ok(id)
    }

    /// How long a request's choices may become, and whether the context sets that limit.
    fn length_limit(&self, request: &Request) -> Result<(usize, bool), RequestError> {
        let (prompt, context) = (request.prompt.len(), self.context);
        if prompt >= context {
            return Err(RequestError::PromptTooLong { prompt, context });
        }
        match request.max_tokens {
            Some(0) => Err(RequestError::NoTokensWanted),
            Some(max_tokens) if max_tokens <= context - prompt => Ok((prompt + max_tokens, false)),
            Some(max_tokens) if request.overflow == ContextOverflow::Refuse => {
                Err(RequestError::OutputTooLong { prompt, max_tokens, context })
            }
            _ => Ok((context, true)),
        }
    }

    /// Forgets what a session keeps.
    pub fn end_session(&mut self, session: SessionId) {
        if let Some(mut kept) = self.take_kept(session) {
            self.pool.truncate(&mut kept.table, 0);
        }
    }

    /// Runs until nothing is left to do.
    pub fn run(&mut self, mut on_event: impl FnMut(Event<'_>)) {
        while self.step(&mut on_event) {}
    }

    /// One request from submission to end.
    ///
    /// # Errors
    /// As [`Generator::submit`].
    pub fn complete(
        &mut self,
        request: Request,
        mut on_event: impl FnMut(&Event<'_>),
    ) -> Result<Completion, RequestError> {
        let id = self.submit(request)?;
        let mut result = None;
        self.run(|event| {
            on_event(&event);
            if let Event::Finished { request, completion } = event
                && request == id
            {
                result = Some(completion);
            }
        });
        Ok(result.expect("a run ends when every request has"))
    }

    /// One forward pass, and what follows from it. Returns whether there is more to do.
    pub fn step(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        self.cancel();
        self.admit();
        let tokens = self.plan();
        if tokens > 0 {
            let started = Instant::now();
            let outcome = self.forward();
            self.charge(tokens, nanoseconds(started, Instant::now()));
            match outcome {
                Ok(()) => self.absorb(on_event),
                Err(error) => self.fail_step(&error),
            }
        }
        self.retire(on_event);
        !(self.running.is_empty() && self.waiting.is_empty())
    }

    /// Ends the requests whose flags are up.
    fn cancel(&mut self) {
        for job in self.running.iter_mut().filter(|j| j.request.cancel.is_cancelled()) {
            job.finish_all(&Finish::Cancelled);
        }
        // A cancelled request that waits is moved among the running ones, to be retired with them.
        let mut i = 0;
        while i < self.waiting.len() {
            if self.waiting[i].request.cancel.is_cancelled()
                && let Some(mut job) = self.waiting.remove(i)
            {
                job.finish_all(&Finish::Cancelled);
                self.running.push(job);
            } else {
                i += 1;
            }
        }
    }

    /// Starts waiting requests, in order, while their blocks are free and a step holds them all.
    fn admit(&mut self) {
        let block_tokens = self.backend.block_tokens();
        while let Some(job) = self.waiting.front() {
            let choices: usize = self.running.iter().map(|j| j.request.choices as usize).sum();
            if choices + job.request.choices as usize > self.backend.max_step_tokens() {
                break;
            }
            let reserved: usize = self.running.iter().map(|j| j.reserved).sum();
            let mut kept = job.request.session.and_then(|s| self.take_kept(s));
            let job = &self.waiting[0];
            let shared = kept.as_mut().map_or(0, |k| {
                let common = k.tokens.iter().zip(&job.request.prompt).take_while(|(a, b)| a == b);
                // The prompt's last token is computed in any case, for its logits.
                let tokens = common.count().min(job.request.prompt.len() - 1);
                self.pool.truncate(&mut k.table, tokens.div_ceil(block_tokens));
                k.tokens.truncate(tokens);
                tokens
            });
            let inherited = shared.div_ceil(block_tokens);
            let needed = job.most_blocks(block_tokens) - inherited;
            while self.pool.free() < reserved + needed && !self.kept.is_empty() {
                let mut oldest = self.kept.remove(0);
                self.pool.truncate(&mut oldest.table, 0);
            }
            if self.pool.free() < reserved + needed {
                self.kept.extend(kept);
                break;
            }
            let Some(mut job) = self.waiting.pop_front() else { break };
            if let Some(kept) = kept {
                job.sequences[0].table = kept.table;
                job.sequences[0].computed = shared;
                job.bill.cached_tokens = shared;
            }
            job.held = inherited;
            job.reserved = needed;
            job.start(Instant::now());
            self.running.push(job);
        }
    }

    fn take_kept(&mut self, session: SessionId) -> Option<KeptKv> {
        let index = self.kept.iter().position(|k| k.session == session)?;
        Some(self.kept.remove(index))
    }

    /// Decides how many tokens each sequence computes, decodes first, and makes room for their KV.
    /// Returns how many there are in all.
    fn plan(&mut self) -> usize {
        let block_tokens = self.backend.block_tokens();
        let mut left = self.backend.max_step_tokens();
        let mut total = 0;
        for decodes in [true, false] {
            for job in &mut self.running {
                for i in 0..job.sequences.len() {
                    let seq = &mut job.sequences[i];
                    let pending = seq.pending();
                    if pending == 0 || (pending == 1) != decodes || left == 0 {
                        continue;
                    }
                    seq.planned = pending.min(left);
                    left -= seq.planned;
                    total += seq.planned;
                    if let Some((from, to, tokens)) =
                        job.prepare_blocks(i, &mut self.pool, block_tokens)
                    {
                        self.backend.copy_block(from, to, tokens);
                    }
                }
            }
        }
        total
    }

    fn forward(&mut self) -> Result<(), BackendError> {
        let batch: Vec<SequenceInput<'_>> = self
            .running
            .iter()
            .flat_map(|job| &job.sequences)
            .filter(|seq| seq.planned > 0)
            .map(|seq| {
                let end = seq.computed + seq.planned;
                SequenceInput {
                    tokens: &seq.tokens[seq.computed..end],
                    first_position: seq.computed,
                    block_table: &seq.table,
                    logits: if end == seq.tokens.len() {
                        LogitsWanted::Last
                    } else {
                        LogitsWanted::None
                    },
                }
            })
            .collect();
        self.backend.forward(&batch, &mut self.logits)
    }

    /// Bills a step of `tokens` tokens to those who had a part in it.
    fn charge(&mut self, tokens: usize, step_ns: u64) {
        let block_bytes = self.backend.block_bytes() as u64;
        let weight_bytes = self.backend.weight_bytes_per_step();
        for job in &mut self.running {
            let own: usize = job.sequences.iter().map(|s| s.planned).sum();
            if own == 0 {
                continue;
            }
            let share = |whole: u64| (u128::from(whole) * own as u128 / tokens as u128) as u64;
            let bill = &mut job.bill;
            bill.steps += 1;
            bill.computed_tokens += own;
            bill.compute_share_ns += share(step_ns);
            bill.kv_bytes = bill.kv_bytes.max(job.held as u64 * block_bytes);
            if let Some(bytes) = weight_bytes {
                *bill.weight_bytes_share.get_or_insert(0) += share(bytes);
            }
        }
    }

    /// Takes a step's logits: chooses a token for each sequence whose tokens are all computed.
    fn absorb(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        let mut rows = self.logits.chunks_exact_mut(self.backend.spec().vocab_size);
        for job in &mut self.running {
            for i in 0..job.sequences.len() {
                let seq = &mut job.sequences[i];
                if seq.planned == 0 {
                    continue;
                }
                seq.computed += seq.planned;
                seq.planned = 0;
                if seq.computed < seq.tokens.len() {
                    continue;
                }
                let row = rows.next().expect("the backend gives the rows that were wanted");
                let started = Instant::now();
                if job.is_decoding() {
                    choose(&mut self.sampler, job, i, row, on_event);
                } else {
                    // The prompt is done: the choices part here.
                    for choice in 1..job.request.choices {
                        let fork = job.sequences[0].fork(choice, &mut self.pool);
                        job.sequences.push(fork);
                    }
                    for each in 0..job.sequences.len() {
                        choose(&mut self.sampler, job, each, row, on_event);
                    }
                    job.mark_first_token(Instant::now());
                }
                job.bill.sample_ns += nanoseconds(started, Instant::now());
            }
        }
    }

    /// Ends what had a part in a step that could not be computed.
    fn fail_step(&mut self, error: &BackendError) {
        let finish = Finish::BackendFailed(error.to_string());
        for seq in self.running.iter_mut().flat_map(|job| &mut job.sequences) {
            if seq.planned > 0 {
                seq.planned = 0;
                seq.text.flush();
                seq.finish = Some(finish.clone());
            }
        }
    }

    /// Releases what finished sequences hold, and hands out finished requests' results.
    fn retire(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        for job in &mut self.running {
            // The first choice comes last: by then the others have let go of shared blocks.
            for i in (0..job.sequences.len()).rev() {
                if job.sequences[i].finish.is_none() || job.sequences[i].table.is_empty() {
                    continue;
                }
                match job.request.session {
                    // Kept when nothing shares its blocks any more, so that it is written in place.
                    Some(session) if i == 0 => {
                        if job.is_finished() {
                            let kept = keep(session, &mut job.sequences[0]);
                            self.kept.push(kept);
                        }
                    }
                    _ => job.release_blocks(i, &mut self.pool),
                }
            }
        }
        for job in self.running.extract_if(.., |job| job.is_finished()) {
            let request = job.id;
            let completion = job.complete(Instant::now());
            on_event(Event::Finished { request, completion });
        }
    }
}

/// Takes a finished sequence's KV for its session.
fn keep(session: SessionId, seq: &mut Sequence) -> KeptKv {
    let mut tokens = seq.tokens.clone();
    tokens.truncate(seq.computed);
    KeptKv { session, tokens, table: std::mem::take(&mut seq.table) }
}

/// Chooses a sequence's next token and looks whether it ends there.
fn choose(
    sampler: &mut Sampler,
    job: &mut Job,
    index: usize,
    row: &mut [f32],
    on_event: &mut dyn FnMut(Event<'_>),
) {
    let request = &job.request;
    let seq = &mut job.sequences[index];
    let place =
        SamplePlace { tokens: &seq.tokens, prompt_len: request.prompt.len(), choice: seq.choice };
    let sampled = match sampler.sample(&request.sampling, place, row, request.logprobs) {
        Ok(sampled) => sampled,
        Err(error) => {
            seq.text.flush();
            seq.finish = Some(Finish::Unsampleable(error));
            return;
        }
    };
    let token = sampled.token;
    seq.tokens.push(token);
    if let Some(logprob) = sampled.logprob {
        seq.logprobs.push(PositionLogprobs {
            chosen: TokenLogprob { token, logprob },
            top: sampler.top_logprobs().to_vec(),
        });
    }
    seq.finish = if request.stop_tokens.contains(&token) {
        Some(Finish::StopToken(token))
    } else if let Some(which) = seq.text.push(token) {
        Some(Finish::StopString(which))
    } else if seq.tokens.len() < job.max_len {
        None
    } else if job.ends_at_context {
        Some(Finish::ContextFull)
    } else {
        Some(Finish::MaxTokens)
    };
    if seq.finish.is_some() {
        seq.text.flush();
    }
    on_event(Event::Token {
        request: job.id,
        choice: seq.choice,
        token,
        text: seq.text.take_delta(),
    });
}

#[cfg(test)]
mod tests;
