//! A smaller model drafts: its own backend, its own KV, its own account of blocks.
//!
//! A draft step is a few forward passes over all sequences that want a draft at once. The first
//! takes what each sequence has gained since its last draft (and recomputes nothing that was
//! accepted); each pass makes every draft's tree grow where it is most probable (`growth`), and
//! drafts that are no longer likely enough leave. Tokens are chosen as the model chooses: with the
//! request's parameters and the same noise, so that where both models' distributions are alike,
//! sampled tokens are alike too.
//!
//! Where the sequence repeats itself, passes are saved: what followed before is looked up, and the
//! draft model verifies it as the model verifies drafts, several tokens in a pass (staged speculative
//! decoding, C116). Its drafts are what they would be without.
//!
//! It looks back only as far as it is told, at positions from 0 on: a guess needs less context than
//! an answer, and what it has not seen it need not compute. Where KV is short, the sequence that was
//! drafted for longest ago loses its own.

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DraftWork, DrafterKind, Proposal, SeqOp};
use dunlin_tensor::Backend;

use self::growth::Draft;
use super::{Drafter, DrawnNode, VocabularyMap, Wanted, forgotten, lookup::LookupDrafter};
use crate::sampler::{Choice, Sampler};

mod growth;

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
    choices: Vec<Choice>,
    logits: Vec<f32>,
    turn: u64,
    /// Drafts for the drafter: its own tokens are verified, too.
    stage: LookupDrafter,
    drawn: Vec<DrawnNode>,
}

/// A token that is likely to follow, and the draft model's for it.
#[derive(Debug, Clone, Copy)]
struct Hint {
    token: u32,
    id: u32,
}

/// The least probability of a path that is worth a look beforehand.
const HINT_FROM: f64 = 0.5;

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
            choices: Vec::new(),
            logits: Vec::new(),
            turn: 0,
            stage: LookupDrafter::default(),
            drawn: Vec::new(),
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
        let most = self.backend.spec().context_length.saturating_sub(wanted.depth + 1);
        let kv = self.backend.block_count() * self.backend.block_tokens();
        let most = most.min(kv.saturating_sub(wanted.depth + 1));
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
        let positions = state.positions() + wanted.depth;
        let fits = !feed.is_empty() && positions <= most + wanted.depth;
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

    /// What tokens are likely to follow a draft's path, as one draft token each: what followed the same
    /// tokens earlier in the sequence.
    fn hints(&mut self, wanted: &Wanted<'_>, path: &[DraftNode], most: usize) -> Vec<Hint> {
        let nodes = wanted.depth.min(path.len() + most);
        let asked = Wanted { nodes, branches: 1, stop_below: 0, ..*wanted };
        let mut likely = f64::from(CONFIDENCE_ONE) * HINT_FROM;
        let found = self.stage.graft(&asked, path.to_vec());
        let mut ids = Vec::new();
        let mut hints = Vec::new();
        for node in found.get(path.len()..).unwrap_or_default() {
            likely *= f64::from(CONFIDENCE_ONE) / f64::from(node.confidence.max(1));
            ids.clear();
            self.vocabulary.push(node.token, &mut ids);
            let [id] = ids[..] else { break };
            // `likely` is now what the next one would need.
            if likely > f64::from(CONFIDENCE_ONE) || self.vocabulary.back(id) != Some(node.token) {
                break;
            }
            hints.push(Hint { token: node.token, id });
        }
        hints
    }
}

/// How many of a state's tokens are the sequence's.
fn shared(state: &State, tokens: &[u32]) -> usize {
    let tokens = tokens.get(state.start..).unwrap_or_default();
    state.fed.iter().zip(tokens).take_while(|(a, b)| a == b).count()
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
        self.stage.changed(op);
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
        let mut drafts: Vec<Draft<'_>> = Vec::new();
        for wanted in wanted.iter().filter(|w| w.nodes > 0 && w.depth > 0 && !w.tokens.is_empty()) {
            if let Some(feed) = self.prepare(wanted) {
                drafts.push(Draft::new(wanted, feed));
            }
        }
        let done = self.catch_up(&mut drafts, &mut work) && {
            let mut goes_on = Some(true);
            while goes_on == Some(true) {
                goes_on = self.pass(&mut drafts, &mut work);
            }
            goes_on.is_some()
        };
        for draft in drafts {
            let seq = draft.wanted.seq;
            let nodes = self.finish(draft);
            if !done {
                // What was written is not known: all of it is computed again, should it be asked.
                self.drop_state(seq.0 as usize);
            } else if !nodes.is_empty() {
                proposals.push(Proposal { seq, drafter: self.kind, nodes });
            }
        }
        work
    }

    fn take_drawn(&mut self, to: &mut Vec<DrawnNode>) {
        to.append(&mut self.drawn);
    }
}

#[cfg(test)]
mod tests;
