//! A smaller model drafts: its own backend, its own KV, its own account of blocks.
//!
//! A draft step is a few forward passes over all sequences that want a draft at once. The first
//! takes what each sequence has gained since its last draft (and recomputes nothing that was
//! accepted); each pass gives every draft another token, and drafts that are no longer likely enough
//! leave. Tokens are chosen as the model chooses: with the request's parameters and the same noise,
//! so that where both models' distributions are alike, sampled tokens are alike too.
//!
//! It looks back only as far as it is told, at positions from 0 on: a guess needs less context than
//! an answer, and what it has not seen it need not compute. Where KV is short, the sequence that was
//! drafted for longest ago loses its own.

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DraftWork, DrafterKind, Proposal, SeqOp};
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};

use super::{Drafter, VocabularyMap, Wanted, forgotten};
use crate::sampler::{SamplePlace, Sampler};

/// Drafts with a model.
pub struct ModelDrafter<B> {
    kind: DrafterKind,
    backend: B,
    vocabulary: VocabularyMap,
    /// By sequence.
    states: Vec<Option<State>>,
    /// Blocks that nobody has.
    free: Vec<u32>,
    sampler: Sampler,
    logits: Vec<f32>,
    turn: u64,
}

/// What the draft model has of a sequence.
#[derive(Debug, Default)]
struct State {
    /// The sequence's token that is its first.
    start: usize,
    /// The sequence's tokens from there on whose KV is there, drafts included.
    fed: Vec<u32>,
    /// For each of them, how many of the draft model's tokens there are up to its end.
    ends: Vec<usize>,
    /// Block `i` holds the draft model's positions `i * block_tokens ..`.
    table: Vec<u32>,
    /// When it was last drafted for.
    used: u64,
}

impl State {
    /// The draft model's tokens whose KV is there.
    fn positions(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn truncate(&mut self, tokens: usize) {
        self.fed.truncate(tokens);
        self.ends.truncate(tokens);
    }
}

/// A draft in the making.
struct Active<'a> {
    wanted: &'a Wanted<'a>,
    /// The draft model's tokens that the next pass takes.
    feed: Vec<u32>,
    /// The sequence's tokens with the draft.
    tokens: Vec<u32>,
    nodes: Vec<DraftNode>,
    /// The probability that all of it is right.
    all: f64,
    done: bool,
}

impl<B: Backend> ModelDrafter<B> {
    /// A drafter on this backend, whose KV is its own.
    pub fn new(backend: B, vocabulary: VocabularyMap) -> Self {
        Self::of_kind(DrafterKind::Model, backend, vocabulary)
    }

    /// The same under another name.
    pub fn of_kind(kind: DrafterKind, backend: B, vocabulary: VocabularyMap) -> Self {
        let free = (0..backend.block_count() as u32).rev().collect();
        Self {
            kind,
            backend,
            vocabulary,
            states: Vec::new(),
            free,
            sampler: Sampler::new(),
            logits: Vec::new(),
            turn: 0,
        }
    }

    fn state(&mut self, slot: usize) -> &mut State {
        self.states[slot].as_mut().expect("it was made before the passes")
    }

    fn drop_state(&mut self, slot: usize) {
        if let Some(state) = self.states.get_mut(slot).and_then(Option::take) {
            self.free.extend(state.table);
        }
    }

    /// Brings a sequence's state in line with its tokens; the tokens that are to be computed, the
    /// last of the sequence among them. `None` where there is no room for it.
    fn prepare(&mut self, wanted: &Wanted<'_>) -> Option<Vec<u32>> {
        let slot = wanted.seq.0 as usize;
        if slot >= self.states.len() {
            self.states.resize_with(slot + 1, || None);
        }
        let tokens = wanted.tokens;
        // A token may be several of the draft model's; nodes go behind them.
        let most = self.backend.spec().context_length.saturating_sub(wanted.nodes + 1);
        let kv = self.backend.block_count() * self.backend.block_tokens();
        let most = most.min(kv.saturating_sub(wanted.nodes + 1));
        let stale = |state: &State| {
            let seen = tokens.len().saturating_sub(state.start);
            let back = state.start > 0 && seen < wanted.context.min(most / 2);
            back || seen == 0 || seen > most
        };
        if self.states[slot].as_ref().is_none_or(stale) {
            self.drop_state(slot);
            let context = wanted.context.min(tokens.len()).min(most / 2).max(1);
            let start = tokens.len() - context;
            self.states[slot] = Some(State { start, ..State::default() });
        }
        let turn = self.turn;
        let state = self.states[slot].as_mut()?;
        state.used = turn;
        // The last token is computed in any case: what follows it is wanted.
        let keep = shared(state, tokens).min(tokens.len() - state.start - 1);
        state.truncate(keep);
        let mut feed = Vec::new();
        let before = state.positions();
        for &token in &tokens[state.start + keep..] {
            self.vocabulary.push(token, &mut feed);
            state.fed.push(token);
            state.ends.push(before + feed.len());
        }
        let positions = state.positions() + wanted.nodes;
        let fits = !feed.is_empty() && positions <= most + wanted.nodes;
        if !(fits && self.allocate(slot, positions)) {
            self.drop_state(slot);
            return None;
        }
        Some(feed)
    }

    /// Blocks for so many positions; others that were not drafted for in this turn give theirs.
    fn allocate(&mut self, slot: usize, positions: usize) -> bool {
        let blocks = positions.div_ceil(self.backend.block_tokens());
        while self.state(slot).table.len() < blocks {
            if let Some(block) = self.free.pop() {
                self.state(slot).table.push(block);
                continue;
            }
            let turn = self.turn;
            let others = (0..).zip(&self.states).filter_map(|(at, s)| Some((s.as_ref()?.used, at)));
            let oldest = others.filter(|&(used, _)| used < turn).min();
            match oldest {
                Some((_, at)) => self.drop_state(at),
                None => return false,
            }
        }
        true
    }

    /// One pass over all drafts that go on, and a token more for each. Whether it could be computed.
    fn pass(&mut self, active: &mut [Active<'_>], work: &mut DraftWork) -> bool {
        // Prompts that are longer than a step go first, in parts.
        let limit = self.backend.max_step_tokens() / active.len().max(1);
        for draft in active.iter_mut().filter(|a| !a.done) {
            while draft.feed.len() > limit.max(1) {
                let part: Vec<u32> = draft.feed.drain(..limit.max(1)).collect();
                let slot = draft.wanted.seq.0 as usize;
                let end = self.state(slot).positions() - draft.feed.len();
                let table = &self.states[slot].as_ref().expect("it is there").table;
                let input = SequenceInput {
                    tokens: &part,
                    first_position: end - part.len(),
                    block_table: table,
                    logits: LogitsWanted::None,
                };
                work.passes += 1;
                work.tokens += part.len() as u32;
                if self.backend.forward(&[input], &mut self.logits).is_err() {
                    return false;
                }
            }
        }
        let states = &self.states;
        let batch: Vec<SequenceInput<'_>> = active
            .iter()
            .filter(|a| !a.done)
            .map(|draft| {
                let state = states[draft.wanted.seq.0 as usize].as_ref().expect("it is there");
                SequenceInput {
                    tokens: &draft.feed,
                    first_position: state.positions() - draft.feed.len(),
                    block_table: &state.table,
                    logits: LogitsWanted::Last,
                }
            })
            .collect();
        work.passes += 1;
        work.tokens += batch.iter().map(|input| input.tokens.len() as u32).sum::<u32>();
        if self.backend.forward(&batch, &mut self.logits).is_err() {
            return false;
        }
        let vocab_size = self.backend.spec().vocab_size;
        let mut rows = self.logits.chunks_exact_mut(vocab_size);
        for draft in active.iter_mut().filter(|a| !a.done) {
            let row = rows.next().expect("a row for each");
            let state = self.states[draft.wanted.seq.0 as usize].as_mut().expect("it is there");
            draft.extend(state, row, &mut self.sampler, &self.vocabulary);
        }
        true
    }
}

/// How many of a state's tokens are the sequence's.
fn shared(state: &State, tokens: &[u32]) -> usize {
    let tokens = tokens.get(state.start..).unwrap_or_default();
    state.fed.iter().zip(tokens).take_while(|(a, b)| a == b).count()
}

impl Active<'_> {
    /// Adds the token that the draft model chooses, and decides whether the draft goes on.
    fn extend(
        &mut self,
        state: &mut State,
        row: &mut [f32],
        sampler: &mut Sampler,
        vocabulary: &VocabularyMap,
    ) {
        self.done = true;
        let wanted = self.wanted;
        let place = SamplePlace {
            tokens: &self.tokens,
            prompt_len: wanted.prompt_len,
            choice: wanted.choice,
        };
        let Ok(sampled) = sampler.sample(wanted.sampling, place, row, Some(0)) else { return };
        let Some(token) = vocabulary.back(sampled.token) else { return };
        let sure = sampled.logprob.map_or(0.0, libm::exp).clamp(0.0, 1.0);
        self.all *= sure;
        let stop_below = f64::from(wanted.stop_below) / f64::from(CONFIDENCE_ONE);
        // The first was computed already, whatever it is worth.
        if self.all < stop_below && !self.nodes.is_empty() {
            return;
        }
        let parent = (self.nodes.len() as u32).checked_sub(1).unwrap_or(DraftNode::ROOT);
        let confidence = (sure * f64::from(CONFIDENCE_ONE)) as u32;
        self.nodes.push(DraftNode { token, parent, confidence });
        if self.nodes.len() >= wanted.nodes || self.all < stop_below {
            return;
        }
        self.tokens.push(token);
        self.feed.clear();
        self.feed.push(sampled.token);
        let end = state.positions() + 1;
        state.fed.push(token);
        state.ends.push(end);
        self.done = false;
    }
}

impl<B: Backend> Drafter for ModelDrafter<B> {
    fn kind(&self) -> DrafterKind {
        self.kind
    }

    fn pass_permille(&self, model: &dyn Backend) -> u32 {
        match (self.backend.weight_bytes_per_step(), model.weight_bytes_per_step()) {
            (Some(own), Some(all)) => (own * 1000 / all.max(1)).clamp(1, 10_000) as u32,
            _ => 500,
        }
    }

    fn changed(&mut self, op: &SeqOp) {
        let Some((seq, stay)) = forgotten(op) else { return };
        let slot = seq.0 as usize;
        let Some(state) = self.states.get_mut(slot).and_then(Option::as_mut) else { return };
        if stay <= state.start {
            self.drop_state(slot);
        } else {
            // What it holds beyond that is compared with the tokens before it is used.
            let stay = stay - state.start;
            if state.fed.len() > stay {
                state.truncate(stay);
            }
        }
    }

    fn propose(&mut self, wanted: &[Wanted<'_>], proposals: &mut Vec<Proposal>) -> DraftWork {
        let mut work = DraftWork::default();
        self.turn += 1;
        let mut active: Vec<Active<'_>> = Vec::new();
        for wanted in wanted.iter().filter(|w| w.nodes > 0 && !w.tokens.is_empty()) {
            if let Some(feed) = self.prepare(wanted) {
                active.push(Active {
                    wanted,
                    feed,
                    tokens: wanted.tokens.to_vec(),
                    nodes: Vec::new(),
                    all: 1.0,
                    done: false,
                });
            }
        }
        while active.iter().any(|a| !a.done) {
            if !self.pass(&mut active, &mut work) {
                // What was written is not known: all of it is computed again, should it be asked.
                for draft in &active {
                    self.drop_state(draft.wanted.seq.0 as usize);
                }
                return work;
            }
        }
        for Active { wanted, nodes, .. } in active {
            if !nodes.is_empty() {
                proposals.push(Proposal { seq: wanted.seq, drafter: self.kind, nodes });
            }
        }
        work
    }
}

#[cfg(test)]
mod tests;
