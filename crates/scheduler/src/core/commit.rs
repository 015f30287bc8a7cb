//! What came of a step: positions computed, blocks complete, tokens chosen.

use dunlin_kvcache::MoveId;
use dunlin_units::{SeqId, Time};

use super::{
    Core, Fx, InFlight,
    state::{NONE, Stage},
};
use crate::{
    cost::StepShape,
    effects::{End, Entry, Output, SeqOp},
    event::{Commit, SampleEnd, StepOutcome},
};

/// A step's duration and bytes, dealt out by tokens so that the parts sum to the whole.
pub(super) struct Shares {
    each: u64,
    /// Tokens that get one more.
    rest: u64,
}

impl Shares {
    pub(super) fn new(whole: u64, tokens: u64) -> Self {
        let tokens = tokens.max(1);
        Self { each: whole / tokens, rest: whole % tokens }
    }

    pub(super) fn take(&mut self, tokens: u64) -> u64 {
        let more = self.rest.min(tokens);
        self.rest -= more;
        self.each * tokens + more
    }
}

impl Core {
    pub(super) fn step_done(&mut self, now: Time, outcome: &StepOutcome, fx: Fx<'_>) {
        let done = self.in_flight.pop_front().expect("an outcome is of a step in flight");
        assert_eq!(done.step, outcome.step, "outcomes come in the order of the plans");
        assert_eq!(done.samples.len(), outcome.commits.len(), "one commit for each sample");
        let tokens = done.shape.tokens;
        if outcome.failed.is_empty() && tokens > 0 {
            self.cost.learn(done.shape, outcome.duration_ns);
            if self.speculation.on {
                let drafts = done.entries.iter().map(|e| u64::from(e.draft)).sum();
                let StepShape { tokens, decodes, .. } = done.shape;
                let us = outcome.duration_ns as f64 / 1e3;
                self.speculation.learn_step(us, decodes, drafts, tokens - decodes);
                if tokens == decodes {
                    let gained = outcome.tokens.len() as u64;
                    self.speculation.learn_energy(decodes, outcome.microjoules, gained);
                }
            }
        }
        self.draft_done(now, &done.wanted, outcome, fx);
        let mut time = Shares::new(outcome.duration_ns, tokens);
        let mut bytes = Shares::new(outcome.bytes, tokens);
        let mut samples = done.samples.iter().zip(&outcome.commits);
        let mut chosen = outcome.tokens.as_slice();
        let mut failed = outcome.failed.iter().copied().peekable();
        for (index, entry) in done.entries.iter().enumerate() {
            let failed = failed.next_if_eq(&(index as u32)).is_some();
            let own = u64::from(entry.tokens + entry.draft);
            self.entry_done(entry, failed, time.take(own), bytes.take(own), fx);
            for _ in 0..entry.samples {
                let (seq, commit) = samples.next().expect("counted above");
                let (tokens, rest) = chosen.split_at(commit.tokens as usize);
                chosen = rest;
                self.sample_done(now, seq.0, entry, *commit, tokens, failed, fx);
            }
            if entry.samples == 0 {
                self.chunk_done(now, entry.seq.0, failed, fx);
            }
        }
        for &block in &done.scratch {
            self.kv.release(block);
        }
        while let Some(at) = self.detached.iter().position(|d| d.0 <= done.step.0) {
            self.kv.release(self.detached.swap_remove(at).1);
        }
        for proposal in &outcome.proposals {
            self.propose(proposal);
        }
        self.recycle(done);
    }

    fn recycle(&mut self, done: InFlight) {
        if self.spare.len() < 2 {
            self.spare.push(done);
        }
    }

    /// Counts what an entry cost, and notes which positions are there now.
    fn entry_done(&mut self, entry: &Entry, failed: bool, ns: u64, bytes: u64, fx: Fx<'_>) {
        let slot = entry.seq.0;
        let seq = &mut self.seqs[slot];
        let end = entry.first_position + entry.tokens;
        seq.tally.steps += 1;
        seq.tally.tokens += u64::from(entry.tokens + entry.draft);
        seq.tally.drafts += u64::from(entry.draft);
        seq.tally.ns += ns;
        seq.tally.bytes += bytes;
        if seq.lost > entry.first_position {
            seq.tally.recomputed += u64::from(seq.lost.min(end) - entry.first_position);
        }
        if failed || seq.stage == Stage::Ending {
            return;
        }
        seq.computed = end;
        self.register(slot, fx);
    }

    /// A chunk of a prompt that gives no token is done.
    fn chunk_done(&mut self, now: Time, slot: u32, failed: bool, fx: Fx<'_>) {
        let seq = &mut self.seqs[slot];
        seq.in_flight -= 1;
        if seq.stage == Stage::Ending {
            if seq.in_flight == 0 {
                self.ended_in_flight(now, slot, fx);
            }
        } else if failed {
            self.prompt_failed(now, slot, fx);
        } else if seq.computed == seq.total() && !seq.generates() {
            let end = self.length_end(slot);
            self.end_choice(now, slot, end, fx);
        }
    }

    /// A chunk could not be computed. Where the choices have parted in the next step already, none of
    /// them has a prompt.
    fn prompt_failed(&mut self, now: Time, slot: u32, fx: Fx<'_>) {
        let request = self.seqs[slot].request;
        let r = &self.requests[request];
        let prompt_end = r.prompt_end as usize;
        for choice in 1..r.seqs.len() {
            let other = self.requests[request].seqs[choice];
            if other == slot || other == NONE || self.seqs[other].stage == Stage::Ending {
                continue;
            }
            if self.seqs[other].tokens.len() == prompt_end {
                self.end_choice(now, other, End::Error, fx);
            }
        }
        self.end_choice(now, slot, End::Error, fx);
    }

    /// A sequence was sampled.
    #[expect(clippy::too_many_arguments, reason = "the parts of one outcome")]
    fn sample_done(
        &mut self,
        now: Time,
        slot: u32,
        entry: &Entry,
        commit: Commit,
        tokens: &[u32],
        failed: bool,
        fx: Fx<'_>,
    ) {
        let seq = &mut self.seqs[slot];
        seq.in_flight -= 1;
        if seq.stage == Stage::Ending {
            if seq.in_flight == 0 {
                self.ended_in_flight(now, slot, fx);
            }
            return;
        }
        seq.unknown -= 1;
        if failed {
            self.end_choice(now, slot, End::Error, fx);
            return;
        }
        let had = seq.tokens.len() as u32;
        match tokens {
            // Nearly always one; a copy of a length not known is a call.
            [token] => seq.tokens.push(*token),
            _ => seq.tokens.extend_from_slice(tokens),
        }
        if seq.tokens.len() as u32 > seq.limit {
            seq.tokens.truncate(seq.limit as usize);
        }
        let gained = seq.tokens.len() as u32 - had;
        if entry.seq.0 != slot {
            // One whose choice parted here: its prompt was computed as another's.
            seq.computed = entry.first_position + entry.tokens;
            self.register(slot, fx);
        }
        let seq = &mut self.seqs[slot];
        if entry.draft > 0 {
            seq.drafting = false;
            seq.tally.accepted += u64::from(gained.saturating_sub(1));
            // The last of the tokens is chosen and not computed; those before it were drafts.
            seq.computed = entry.first_position + entry.tokens + gained.saturating_sub(1);
            seq.planned = seq.computed;
            self.register(slot, fx);
        }
        if entry.tokens == 1 && entry.samples == 1 {
            let whole = commit.end.is_none() && gained as usize == tokens.len();
            self.verified(slot, &tokens[..gained as usize], whole);
        }
        let seq = &mut self.seqs[slot];
        seq.tally.output += u64::from(gained);
        if !seq.begun && gained > 0 {
            seq.begun = true;
            self.requests[seq.request].got_token(now);
        }
        let (request, choice) = (seq.id, seq.choice);
        for &token in &tokens[..gained as usize] {
            fx.outputs.push(Output { request, choice, token });
        }
        match commit.end {
            Some(SampleEnd::Stop) => self.end_choice(now, slot, End::Stop, fx),
            Some(SampleEnd::Error) => self.end_choice(now, slot, End::Error, fx),
            None if seq.tokens.len() as u32 >= seq.limit => {
                let end = self.length_end(slot);
                self.end_choice(now, slot, end, fx);
            }
            None => assert!(gained > 0, "a commit without tokens has an end"),
        }
    }

    pub(super) fn length_end(&self, slot: u32) -> End {
        if self.requests[self.seqs[slot].request].clipped { End::Clipped } else { End::Length }
    }

    /// An ended sequence leaves the last step that had a part of it.
    pub(super) fn ended_in_flight(&mut self, now: Time, slot: u32, fx: Fx<'_>) {
        let request = self.seqs[slot].request;
        if request != NONE {
            let mut tally = std::mem::take(&mut self.seqs[slot].tally);
            self.requests[request].add(&mut tally);
        }
        self.let_go(now, slot, fx);
    }

    /// Enters the blocks that became full and computed into the prefix index.
    pub(super) fn register(&mut self, slot: u32, fx: Fx<'_>) {
        let bt = self.block_tokens;
        let seq = &mut self.seqs[slot];
        if (seq.registered + 1) * bt > seq.computed {
            // Nearly always, and without a division.
            return;
        }
        // The tokens of computed positions are known.
        let full = seq.computed.min(seq.tokens.len() as u32) / bt;
        if seq.registered >= full || !self.config.cache.prefix_cache {
            return;
        }
        while seq.registered < full {
            let index = seq.registered;
            let from = (index * bt) as usize;
            let tokens = &seq.tokens[from..from + bt as usize];
            let own = seq.table[index as usize];
            // Where the next step is planned and names the block, it is kept until that is done.
            let named = seq.planned > seq.computed;
            if named {
                self.kv.share(own);
            }
            let block = self.kv.register(&mut seq.chain, tokens, own);
            if named && block == own {
                self.kv.release(own);
            } else if named {
                self.detached.push((seq.last_step, own));
            }
            if block != own {
                seq.table[index as usize] = block;
                fx.ops.push(SeqOp::Replace { seq: SeqId(slot), index, block });
            }
            seq.registered += 1;
        }
    }

    /// A move has ended; whoever waited for it may go on.
    pub(super) fn move_done(&mut self, now: Time, id: MoveId, ok: bool, fx: Fx<'_>) {
        self.kv.move_done(id, ok);
        self.blocked = None;
        let Some(slot) = self.moves.remove(&id) else { return };
        let seq = &mut self.seqs[slot];
        if !ok {
            // What could not be brought is computed; what came after it, too.
            seq.loads_failed = true;
        }
        seq.loads -= 1;
        if seq.loads == 0 {
            self.loaded(now, slot, fx);
        }
    }
}
