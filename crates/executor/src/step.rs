//! A step plan carried out: one batch, one forward pass, tokens chosen, the outcome told.

use std::{collections::HashMap, ops::Range, time::Instant};

use dunlin_scheduler::{
    Commit, DraftWork, DrafterKind, Proposal, SampleEnd, SeqOp, StepKind, StepOutcome, StepPlan,
};
use dunlin_tensor::{Backend, BackendError, Best, LogitsWanted, SequenceInput};
use dunlin_units::{RequestId, SeqId};

use crate::{
    constraint::Ahead,
    drafter::{Drafter, Wanted, grammar, lookup::LookupDrafter, store::StoreDrafter},
    draw::{Draw, DrawContext, DrawTask, Rows, Worker, draw_all},
    drawn::DrawnTokens,
    generation::{ChoiceEnd, Generation, GenerationParams, PositionLogprobs},
    sampler::TokenLogprob,
    sequence::Sequences,
    tree::{self, Tree, Trees},
};

/// Logits in a step from which on their scan is worth another thread's start.
const SPREAD_FROM: usize = 1 << 18;

/// Carries out what a core plans, on a backend.
///
/// Register a request before the core is told of it, apply each [`SeqOp`] in order, then run the
/// plan.
pub struct Executor<B> {
    backend: B,
    sequences: Sequences,
    generations: HashMap<RequestId, Generation>,
    workers: Vec<Worker>,
    ahead: Ahead,
    spread_from: usize,
    /// `[rows of the step, vocab_size]`, but for the sequences that want the best alone.
    logits: Vec<f32>,
    /// The best token of each row of those.
    best: Vec<Best>,
    /// `[rows of the step, d_model]` where anybody wants them, else empty.
    hidden: Vec<f32>,
    scratch: Scratch,
    lookup: LookupDrafter,
    store: StoreDrafter,
    drawn: DrawnTokens,
    /// Drafters that cost steps.
    drafters: Vec<Box<dyn Drafter>>,
}

/// Memory that steps use one after the other.
#[derive(Default)]
struct Scratch {
    /// The plan's entries.
    parts: Vec<Part>,
    /// The entries' drafts.
    trees: Trees,
    tasks: Vec<DrawTask>,
    /// Always empty between steps; keeps its memory.
    batch: Vec<SequenceInput<'static>>,
    /// Whether the entries that are run want best tokens alone.
    greedy: Vec<bool>,
    /// Logits, and best tokens, of an entry that is run alone.
    single: (Vec<f32>, Vec<Best>),
}

/// An entry of the plan.
#[derive(Debug, Clone)]
struct Part {
    seq: SeqId,
    first_position: usize,
    /// Tokens of the sequence's own.
    tokens: usize,
    /// Its draft; none without nodes.
    tree: Tree,
    samples: Range<usize>,
    /// All its samples want the best token alone.
    greedy: bool,
    /// Cannot be computed.
    failed: bool,
}

impl Part {
    fn draft(&self) -> usize {
        self.tree.nodes()
    }

    /// Appends the part's inputs to a batch.
    fn push_inputs<'a>(
        &self,
        sequences: &'a Sequences,
        trees: &'a Trees,
        batch: &mut Vec<SequenceInput<'a>>,
    ) {
        let seq = sequences.get(self.seq);
        if self.draft() > 0 {
            return trees.push_inputs(&self.tree, self.first_position, &seq.table, batch);
        }
        let wanted = !self.samples.is_empty();
        batch.push(SequenceInput {
            tokens: &seq.tokens[self.first_position..][..self.tokens],
            first_position: self.first_position,
            block_table: &seq.table,
            logits: if wanted { LogitsWanted::Last } else { LogitsWanted::None },
            branch_of: None,
        });
    }
}

impl<B: Backend> Executor<B> {
    /// An executor that chooses tokens on up to `sampling_threads` threads (at least one; this one
    /// included) where a step has many.
    pub fn new(backend: B, sampling_threads: usize) -> Self {
        let mut workers = Vec::new();
        workers.resize_with(sampling_threads.max(1), Worker::default);
        Self {
            backend,
            sequences: Sequences::default(),
            generations: HashMap::new(),
            workers,
            ahead: Ahead::beside(sampling_threads),
            spread_from: SPREAD_FROM,
            logits: Vec::new(),
            best: Vec::new(),
            hidden: Vec::new(),
            scratch: Scratch::default(),
            lookup: LookupDrafter::default(),
            store: StoreDrafter::default(),
            drawn: DrawnTokens::default(),
            drafters: Vec::new(),
        }
    }

    /// Adds a drafter, which draft steps may ask.
    pub fn add_drafter(&mut self, drafter: Box<dyn Drafter>) {
        self.drafters.push(drafter);
    }

    /// Earlier answers that drafts may come from; it keeps none to begin with.
    pub fn store_mut(&mut self) -> &mut StoreDrafter {
        &mut self.store
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend, to move KV in and out.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// The backend, when nothing is to be run any more.
    pub fn into_backend(self) -> B {
        self.backend
    }

    /// Makes a request's parameters known.
    pub fn register(&mut self, request: RequestId, params: GenerationParams) {
        let generation = Generation::new(params);
        // What may come first, while the prompt is computed.
        if self.wants_ahead(&generation.params) {
            for constraint in generation.choices.iter().filter_map(|c| c.constraint.as_ref()) {
                self.ahead.prepare(constraint, &[]);
            }
        }
        self.generations.insert(request, generation);
    }

    /// A request's choices so far.
    pub fn generation(&self, request: RequestId) -> Option<&Generation> {
        self.generations.get(&request)
    }

    /// A request's choices so far, to take text that became certain.
    pub fn generation_mut(&mut self, request: RequestId) -> Option<&mut Generation> {
        self.generations.get_mut(&request)
    }

    /// Forgets a request and gives out what was generated for it. Steps in flight that still sample
    /// it choose nothing.
    pub fn release(&mut self, request: RequestId) -> Option<Generation> {
        self.generations.remove(&request)
    }

    /// The request that samples a sequence.
    ///
    /// # Panics
    /// Where there is no such sequence.
    pub fn request(&self, seq: SeqId) -> Option<RequestId> {
        self.sequences.get(seq).request
    }

    /// A sequence's tokens.
    ///
    /// # Panics
    /// Where there is no such sequence.
    pub fn tokens(&self, seq: SeqId) -> &[u32] {
        &self.sequences.get(seq).tokens
    }

    /// A sequence's KV blocks, in order of position.
    ///
    /// # Panics
    /// Where there is no such sequence.
    pub fn table(&self, seq: SeqId) -> &[u32] {
        &self.sequences.get(seq).table
    }

    /// Carries out an operation. [`SeqOp::Fill`] does nothing here: whoever has the KV puts it into
    /// the sequence's blocks.
    ///
    /// # Panics
    /// On operations on sequences that are not there: the core and the executor have come apart.
    pub fn apply(&mut self, op: &SeqOp) {
        if let SeqOp::Copy { from, to, tokens } = *op {
            self.backend.copy_block(from, to, tokens as usize);
        } else {
            self.sequences.apply(op);
            self.lookup.changed(op);
            self.drawn.changed(op);
            for drafter in &mut self.drafters {
                drafter.changed(op);
            }
        }
    }

    /// Runs a plan and fills in its outcome, all but the duration.
    ///
    /// An entry that the backend cannot compute is reported as failed and ends no other: when a
    /// mixed step fails, its entries are run one by one. KV that they wrote is written again with
    /// the same values.
    pub fn run(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) {
        outcome.step = plan.step;
        outcome.duration_ns = 0;
        outcome.bytes = 0;
        outcome.commits.clear();
        outcome.tokens.clear();
        outcome.failed.clear();
        outcome.proposals.clear();
        outcome.work = DraftWork::default();
        if plan.kind == StepKind::Draft {
            return self.draft(plan, outcome);
        }
        self.lay_out(plan);
        let wants_hidden = self.wants_hidden(plan);
        self.forward(wants_hidden);
        outcome.bytes = self.step_bytes();
        let started = Instant::now();
        self.list_tasks();
        if wants_hidden {
            self.keep_hidden(plan);
        }
        let context = DrawContext {
            samples: &plan.samples,
            sequences: &self.sequences,
            generations: &self.generations,
            best: &self.best,
            trees: &self.scratch.trees,
            drawn: &self.drawn,
            vocab_size: self.backend.spec().vocab_size,
            spread_from: self.spread_from,
        };
        draw_all(context, &self.scratch.tasks, &mut self.logits, &mut self.workers);
        self.keep_accepted();
        self.take_up(plan, outcome);
        for &seq in &plan.samples {
            self.drawn.settle(seq, &self.sequences.get(seq).tokens);
        }
        self.prepare_next(plan);
        self.charge_sampling(plan, started);
        self.look_up(plan, outcome);
        let parts = self.scratch.parts.iter().zip(0..);
        outcome.failed.extend(parts.filter(|(part, _)| part.failed).map(|(_, i)| i));
    }

    /// Has a drafter propose.
    fn draft(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) {
        let Some(first) = plan.wanted.first() else { return };
        let mut wanted = Vec::with_capacity(plan.wanted.len());
        for asked in &plan.wanted {
            let all =
                wanted_of(&self.sequences, &self.generations, asked.seq, asked.nodes as usize);
            wanted.extend(all.map(|wanted| Wanted {
                depth: asked.depth as usize,
                branches: asked.branches as usize,
                stop_below: asked.stop_below,
                context: asked.context as usize,
                ..wanted
            }));
        }
        if let Some(drafter) = self.drafters.iter_mut().find(|d| d.kind() == first.drafter) {
            outcome.work = drafter.propose(&wanted, &mut outcome.proposals);
            let mut drawn = Vec::new();
            drafter.take_drawn(&mut drawn);
            let tokens = |seq| self.sequences.get(seq).tokens.clone();
            self.drawn.add(drawn.into_iter(), tokens);
        }
        // The room that a model's draft leaves goes to what followed the same tokens before.
        for proposal in &mut outcome.proposals {
            let request = self.sequences.get(proposal.seq).request;
            let generation = request.and_then(|request| self.generations.get(&request));
            let allows = |g: &Generation| g.params.speculate.allows(DrafterKind::Lookup);
            let asked = wanted.iter().find(|wanted| wanted.seq == proposal.seq);
            if let Some(asked) = asked.filter(|_| generation.is_some_and(allows)) {
                let asked = Wanted { stop_below: 0, ..*asked };
                proposal.nodes = self.lookup.graft(&asked, std::mem::take(&mut proposal.nodes));
            }
        }
    }

    /// Proposes what a grammar wants next or what followed the same tokens before, for those that got
    /// tokens and go on; keeps the answers of those that have ended.
    fn look_up(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) {
        let StepOutcome { commits, proposals, .. } = outcome;
        for (&seq, commit) in plan.samples.iter().zip(&*commits) {
            let known = self.sequences.get(seq);
            let generation = known.request.and_then(|request| self.generations.get(&request));
            let Some(generation) = generation.filter(|_| commit.tokens > 0) else { continue };
            let (params, choice) = (&generation.params, &generation.choices[known.choice as usize]);
            let store = self.store.is_on();
            if choice.end.is_some() {
                if store {
                    let prompt = known.tokens.len() - choice.tokens.len();
                    self.store.remember(params.tenant, &known.tokens, prompt);
                }
                continue;
            }
            let in_text = params.speculate.allows(DrafterKind::Lookup);
            let in_store = store && params.speculate.allows(DrafterKind::Store);
            let constraint = choice.constraint.as_ref();
            let constraint = constraint.filter(|_| params.speculate.allows(DrafterKind::Grammar));
            if !(in_text || in_store || constraint.is_some()) {
                continue;
            }
            let wanted = wanted_of(&self.sequences, &self.generations, seq, usize::MAX);
            let Some(wanted) = wanted else { continue };
            // What must come counts for more than what came before, which goes on from there.
            let forced = constraint.map(|c| grammar::forced(c, &choice.tokens, &wanted));
            if let Some(nodes) = forced.filter(|nodes| !nodes.is_empty()) {
                let nodes = if in_text { self.lookup.graft(&wanted, nodes) } else { nodes };
                proposals.push(Proposal { seq, drafter: DrafterKind::Grammar, nodes });
                continue;
            }
            let found = in_text.then(|| self.lookup.look_up(&wanted)).flatten();
            let own = found.as_ref().map_or(0, |found| found.matched);
            let other = in_store.then(|| self.store.propose(params.tenant, &wanted, own)).flatten();
            proposals.extend(other.or(found.map(|found| found.proposal)));
        }
    }

    /// Finds each entry's tokens.
    fn lay_out(&mut self, plan: &StepPlan) {
        let Scratch { parts, trees, .. } = &mut self.scratch;
        parts.clear();
        trees.clear();
        let (mut next_sample, mut next_node, mut scratch) = (0, 0, plan.scratch.as_slice());
        for entry in &plan.entries {
            let samples = next_sample..next_sample + entry.samples as usize;
            let nodes = &plan.draft[next_node..][..entry.draft as usize];
            (next_sample, next_node) = (samples.end, next_node + nodes.len());
            let (blocks, rest) = scratch.split_at(entry.scratch as usize);
            scratch = rest;
            let (first, count) = (entry.first_position as usize, entry.tokens as usize);
            let seq = self.sequences.get(entry.seq);
            // A token that the step before was to choose, and could not, is missing.
            let greedy = plan.samples[samples.clone()].iter().all(|&seq| {
                let request = self.sequences.get(seq).request;
                let generation = request.and_then(|request| self.generations.get(&request));
                generation.is_none_or(|g| g.params.wants_best_alone())
            });
            let own = seq.tokens.get(first..first + count);
            let drafted = own.filter(|_| !nodes.is_empty()).map(|own| tree::Entry {
                own,
                first_position: first,
                nodes,
                table: &seq.table,
                scratch: blocks,
            });
            parts.push(Part {
                seq: entry.seq,
                first_position: first,
                tokens: count,
                tree: drafted.map_or_else(Tree::default, |e| trees.add(&e, &mut self.backend)),
                samples,
                greedy,
                failed: own.is_none(),
            });
        }
    }

    /// Whether a hidden state of this step is wanted.
    fn wants_hidden(&self, plan: &StepPlan) -> bool {
        plan.samples.iter().any(|&seq| {
            let request = self.sequences.get(seq).request;
            request.and_then(|r| self.generations.get(&r)).is_some_and(|g| g.params.hidden)
        })
    }

    /// Gives choices the hidden states that they want.
    fn keep_hidden(&mut self, plan: &StepPlan) {
        let width = self.backend.spec().d_model;
        for task in &self.scratch.tasks {
            let row = self.hidden.get(task.first * width..(task.first + 1) * width);
            for &seq in &plan.samples[task.samples.clone()] {
                let seq = self.sequences.get(seq);
                let generation = seq.request.and_then(|r| self.generations.get_mut(&r));
                if let Some(generation) = generation.filter(|g| g.params.hidden) {
                    let choice = &mut generation.choices[seq.choice as usize];
                    if choice.tokens.is_empty() {
                        choice.hidden = row.map(Into::into);
                    }
                }
            }
        }
    }

    /// Computes the step, and marks what cannot be computed as failed.
    fn forward(&mut self, wants_hidden: bool) {
        self.hidden.clear();
        let Scratch { parts, trees, batch, greedy, single, .. } = &mut self.scratch;
        let mut inputs = recycle(std::mem::take(batch));
        greedy.clear();
        let mut entries = 0;
        for part in parts.iter().filter(|part| !part.failed) {
            part.push_inputs(&self.sequences, trees, &mut inputs);
            greedy.resize(inputs.len(), part.greedy);
            entries += 1;
        }
        let result = if inputs.is_empty() {
            self.logits.clear();
            self.best.clear();
            Ok(())
        } else {
            self.backend.forward_best(&inputs, greedy, &mut self.logits, &mut self.best)
        };
        let alone = entries == 1;
        *batch = recycle(inputs);
        let Err(error) = result else {
            if wants_hidden {
                self.backend.hidden_states(&mut self.hidden);
            }
            return;
        };
        self.logits.clear();
        self.best.clear();
        let (logits, best) = single;
        for part in parts.iter_mut().filter(|part| !part.failed) {
            let result = if alone {
                Err(BackendError::OutOfMemory(error.to_string()))
            } else {
                let mut inputs = Vec::new();
                part.push_inputs(&self.sequences, trees, &mut inputs);
                let greedy = vec![part.greedy; inputs.len()];
                self.backend.forward_best(&inputs, &greedy, logits, best)
            };
            match result {
                Ok(()) => {
                    self.logits.extend_from_slice(logits);
                    self.best.extend_from_slice(best);
                    if wants_hidden {
                        self.backend.hidden_states(&mut self.hidden);
                    }
                }
                Err(problem) => {
                    part.failed = true;
                    let message = if alone { error.to_string() } else { problem.to_string() };
                    let seq = self.sequences.get(part.seq);
                    let generation = seq.request.and_then(|r| self.generations.get_mut(&r));
                    // A prompt's failure is that of all choices, which part from it.
                    for choice in generation.into_iter().flat_map(|g| &mut g.choices) {
                        choice.finish(ChoiceEnd::BackendFailed(message.clone()));
                    }
                }
            }
        }
    }

    /// Weights once, the KV that each sequence reads, and the KV that is written.
    fn step_bytes(&self) -> u64 {
        let per_token = (self.backend.block_bytes() / self.backend.block_tokens().max(1)) as u64;
        let parts = self.scratch.parts.iter().filter(|part| !part.failed);
        let positions = parts
            .map(|part| part.first_position + 2 * (part.tokens + part.draft() + part.tree.copied));
        let kv = positions.sum::<usize>() as u64 * per_token;
        self.backend.weight_bytes_per_step().unwrap_or(0) + kv
    }

    /// Says which rows of the logits are whose.
    fn list_tasks(&mut self) {
        let Scratch { parts, tasks, .. } = &mut self.scratch;
        tasks.clear();
        let (mut next_row, mut next_best) = (0, 0);
        for part in parts.iter().filter(|part| !part.failed && !part.samples.is_empty()) {
            // With a draft there are rows for all own tokens, and only the last one's matters.
            let skipped = if part.draft() == 0 { 0 } else { part.tokens - 1 };
            let first = next_row + next_best + skipped;
            let next = if part.greedy { &mut next_best } else { &mut next_row };
            let range = *next + skipped..*next + skipped + 1 + part.draft();
            *next = range.end;
            let rows = if part.greedy { Rows::Best(range) } else { Rows::Logits(range) };
            let nodes = part.tree.node_range();
            tasks.push(DrawTask { rows, first, samples: part.samples.clone(), nodes });
        }
    }

    /// Puts the KV of accepted nodes where the sequence has it.
    fn keep_accepted(&mut self) {
        let Scratch { parts, trees, .. } = &self.scratch;
        let accepted = self.workers.iter().flat_map(|worker| &worker.accepted);
        for &(sample, place) in accepted {
            let part = parts.iter().find(|part| part.samples.contains(&sample));
            if let Some(part) = part {
                let table = &self.sequences.get(part.seq).table;
                trees.accept(&part.tree, place, table, &mut self.backend);
            }
        }
    }

    /// Takes up what was drawn: the sequences' tokens, the choices' texts and ends, the commits.
    fn take_up(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) {
        outcome.commits.resize(plan.samples.len(), Commit::default());
        for worker in &self.workers {
            for draw in &worker.draws {
                let commit = &mut outcome.commits[draw.sample];
                if commit.end.is_some() {
                    continue;
                }
                let seq = self.sequences.get_mut(plan.samples[draw.sample]);
                let request = seq.request.expect("what was drawn for has a request");
                let generation =
                    self.generations.get_mut(&request).expect("and its request is known");
                let choice = &mut generation.choices[seq.choice as usize];
                if choice.end.is_some() {
                    continue;
                }
                match &draw.result {
                    Ok(sampled) => {
                        let logprobs = position_logprobs(draw, &worker.top);
                        generation.residual |= draw.residual;
                        seq.tokens.push(sampled.token);
                        choice.push(&generation.params, sampled.token, logprobs);
                        outcome.tokens.push(sampled.token);
                        commit.tokens += 1;
                    }
                    Err(error) => choice.finish(ChoiceEnd::Unsampleable(error.clone())),
                }
                commit.end = match choice.end {
                    Some(
                        ChoiceEnd::StopToken(_) | ChoiceEnd::StopString(_) | ChoiceEnd::Complete,
                    ) => Some(SampleEnd::Stop),
                    Some(ChoiceEnd::Unsampleable(_) | ChoiceEnd::BackendFailed(_)) => {
                        Some(SampleEnd::Error)
                    }
                    // The core counts tokens itself.
                    Some(ChoiceEnd::MaxTokens) | None => None,
                };
            }
        }
    }

    /// Whether all tokens that a grammar allows are to be computed before they are needed.
    fn wants_ahead(&self, params: &GenerationParams) -> bool {
        let vocab_size = self.backend.spec().vocab_size;
        self.ahead.is_on() && params.grammar.is_some() && params.wants_all_allowed(vocab_size)
    }

    /// Has computed what grammars allow next, while whatever comes before the next step is done and
    /// its forward pass runs.
    fn prepare_next(&mut self, plan: &StepPlan) {
        for &seq in &plan.samples {
            let seq = self.sequences.get(seq);
            let generation = seq.request.and_then(|request| self.generations.get(&request));
            let generation = generation.filter(|g| self.wants_ahead(&g.params));
            let choice = generation.and_then(|g| g.choices.get(seq.choice as usize));
            if let Some(choice) = choice.filter(|choice| choice.end.is_none())
                && let Some(constraint) = &choice.constraint
            {
                self.ahead.prepare(constraint, &choice.tokens);
            }
        }
    }

    /// Bills the time of choosing tokens, in equal parts.
    fn charge_sampling(&mut self, plan: &StepPlan, started: Instant) {
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let each = elapsed / plan.samples.len().max(1) as u64;
        for &seq in &plan.samples {
            let request = self.sequences.get(seq).request;
            if let Some(generation) = request.and_then(|r| self.generations.get_mut(&r)) {
                generation.sample_ns += each;
            }
        }
    }
}

/// A draft for a sequence that goes on, of so many nodes and no more than its request has.
fn wanted_of<'a>(
    sequences: &'a Sequences,
    generations: &'a HashMap<RequestId, Generation>,
    seq: SeqId,
    nodes: usize,
) -> Option<Wanted<'a>> {
    let s = sequences.get(seq);
    let Generation { params, choices, .. } = generations.get(&s.request?)?;
    let choice = choices.get(s.choice as usize)?;
    let nodes = nodes.min(params.max_draft as usize);
    let goes_on = choice.end.is_none() && nodes > 0;
    goes_on.then(|| Wanted {
        seq,
        tokens: &s.tokens,
        nodes,
        depth: nodes,
        branches: params.max_branches as usize,
        stop_below: 0,
        context: usize::MAX,
        sampling: &params.sampling,
        prompt_len: s.tokens.len().saturating_sub(choice.tokens.len()),
        choice: s.choice,
        draws: params.draws(),
    })
}

fn position_logprobs(draw: &Draw, top: &[TokenLogprob]) -> Option<PositionLogprobs> {
    let sampled = draw.result.as_ref().ok()?;
    Some(PositionLogprobs {
        chosen: TokenLogprob { token: sampled.token, logprob: sampled.logprob? },
        top: top[draw.top.clone()].to_vec(),
    })
}

/// An empty vector with the memory of another, whatever its items borrowed.
fn recycle<'b>(mut batch: Vec<SequenceInput<'_>>) -> Vec<SequenceInput<'b>> {
    batch.clear();
    // Nothing is left to convert, and the standard library collects in place.
    batch.into_iter().map(|_| unreachable!("it is empty")).collect()
}

#[cfg(test)]
mod tests;
