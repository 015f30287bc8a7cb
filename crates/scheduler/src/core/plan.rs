//! The next step: sequences that decode first, then prompts in chunks.

use dunlin_units::{SeqId, StepId, Time};

use super::{Core, Fx, remember, state::Stage};
use crate::{
    config::{Chunking, MIN_CHUNK},
    cost::StepShape,
    effects::{Entry, SeqOp, StepKind, StepPlan},
    speculation::tree,
};

/// Tokens that a step's products take together.
const TILE_TOKENS: u64 = 8;

/// A sequence's part of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    /// Tokens of its own.
    tokens: u32,
    /// Draft nodes behind them, the longest path of these, and the blocks of their branches.
    draft: u32,
    depth: u32,
    scratch: u32,
}

impl Core {
    /// Plans a step, if one may be planned and there is anything to do.
    pub(super) fn plan(&mut self, now: Time, fx: Fx<'_>) {
        if self.in_flight.len() >= self.config.steps_in_flight as usize {
            return;
        }
        if self.running_stale {
            let seqs = &self.seqs;
            self.running.retain(|&s| seqs[s].stage == Stage::Running);
            self.running_stale = false;
        }
        self.put_back_idle(now, fx);
        let mut plan = self.empty_plan(fx);
        let mut shape = StepShape::default();
        if self.speculate(&mut plan) {
            return self.planned(plan, shape, fx);
        }
        self.plan_decodes(now, &mut plan, &mut shape, fx);
        self.admit(now, fx);
        // What was in the way of idle ones may have ended as soon as it was taken on.
        self.idle_waits = self.idle_waits && self.others_than_idle();
        let room = self.prompt_room(&plan, shape);
        self.plan_prompts(now, &mut plan, &mut shape, room, fx);
        if plan.entries.is_empty() && self.in_flight.is_empty() && self.running.is_empty() {
            // Those that ran have given way to each other: the first of the queue gets on alone.
            self.blocked = None;
            self.admit(now, fx);
            self.idle_waits = self.idle_waits && self.others_than_idle();
            let room = self.prompt_room(&plan, shape);
            self.plan_prompts(now, &mut plan, &mut shape, room, fx);
        }
        if plan.entries.is_empty() {
            fx.spare_plan = plan;
            return;
        }
        self.planned(plan, shape, fx);
    }

    /// A plan is made.
    fn planned(&mut self, plan: StepPlan, shape: StepShape, fx: Fx<'_>) {
        self.next_step += 1;
        let memory = self.spare.pop().unwrap_or_default();
        self.in_flight.push_back(remember(&plan, shape, memory));
        fx.plan = Some(plan);
    }

    /// A plan without entries, in the memory of the last one where the caller left that.
    fn empty_plan(&self, fx: Fx<'_>) -> StepPlan {
        let mut plan = std::mem::take(&mut fx.spare_plan);
        plan.step = StepId(self.next_step);
        plan.kind = StepKind::Run;
        plan.entries.clear();
        plan.samples.clear();
        plan.draft.clear();
        plan.scratch.clear();
        plan.wanted.clear();
        plan
    }

    /// One token, and a draft where there is one, of each sequence that decodes.
    fn plan_decodes(&mut self, now: Time, plan: &mut StepPlan, shape: &mut StepShape, fx: Fx<'_>) {
        let bt = self.block_tokens;
        let mut left = self.config.max_step_tokens;
        let mut i = 0;
        // Those at the end may be preempted for those before them.
        while i < self.running.len() && left > 0 {
            let slot = self.running[i];
            i += 1;
            let seq = &mut self.seqs[slot];
            if self.idle_waits && seq.rank.idle {
                break;
            }
            let total = seq.tokens.len() as u32 + seq.unknown;
            if seq.planned + 1 != total || seq.drafting || (seq.unknown > 0 && total >= seq.limit) {
                continue;
            }
            let (mut part, mut parted) = (Part { tokens: 1, ..Part::default() }, 0);
            if seq.special || seq.planned >= seq.table.len() as u32 * bt {
                part = self.fit_draft(slot, left);
                if !self.make_room(now, i - 1, 1 + part.depth, fx) {
                    i = self.after_failing(slot, i);
                    continue;
                }
                self.take_scratch(slot, &mut part, plan);
                parted = self.part_choices(slot, fx, &mut i);
            }
            left -= 1 + part.draft;
            self.add_entry(plan, shape, slot, part, parted);
        }
    }

    /// Adds a part of a sequence to the plan; its blocks are there.
    /// The `parted` choices behind it get their first token from the same logits.
    fn add_entry(
        &mut self,
        plan: &mut StepPlan,
        shape: &mut StepShape,
        slot: u32,
        Part { tokens, draft, depth, scratch }: Part,
        parted: u32,
    ) {
        let seq = &mut self.seqs[slot];
        let first_position = seq.planned;
        let end = first_position + tokens;
        let total = seq.tokens.len() as u32 + seq.unknown;
        seq.planned = end;
        seq.in_flight += 1;
        seq.last_step = plan.step.0;
        shape.add(u64::from(tokens + draft), u64::from(end + depth), tokens == 1);
        let mut samples = 0;
        if end == total && total < seq.limit {
            seq.unknown += 1;
            samples = 1 + parted;
            plan.samples.push(SeqId(slot));
            if draft > 0 {
                seq.drafting = true;
                let first = plan.draft.len();
                plan.draft.extend(seq.draft.drain(..).take(draft as usize));
                self.verifies(slot, &plan.draft[first..]);
            } else if self.speculation.on {
                // One that did not fit is of no use behind the token that comes now.
                seq.draft.clear();
                self.verifies(slot, &[]);
            }
            if parted > 0 {
                let request = self.seqs[slot].request;
                for choice in 1..=parted as usize {
                    let other = self.requests[request].seqs[choice];
                    let seq = &mut self.seqs[other];
                    seq.planned = end;
                    seq.in_flight += 1;
                    seq.unknown += 1;
                    seq.last_step = plan.step.0;
                    plan.samples.push(SeqId(other));
                }
            }
        }
        let seq = SeqId(slot);
        plan.entries.push(Entry { seq, first_position, tokens, draft, scratch, samples });
    }

    /// How much of a sequence's draft is taken on: what the step and its limit leave room for.
    fn fit_draft(&mut self, slot: u32, left: u32) -> Part {
        let bt = self.block_tokens as usize;
        let spare = self.spare_blocks() as usize;
        let running = self.running.len();
        let seq = &mut self.seqs[slot];
        if seq.draft.is_empty() || seq.unknown > 0 {
            return Part { tokens: 1, ..Part::default() };
        }
        // One token more than the draft comes of it.
        let until_limit = seq.limit - seq.tokens.len() as u32 - 1;
        // Nobody gives way for a guess. One block may go to a copy of the last.
        let available = self.kv.available_to(seq.tenant).saturating_sub(1);
        let blocks = seq.table.len() + available;
        let memory = (blocks * bt).saturating_sub(seq.planned as usize + 1);
        // Parents come before their children, so any beginning of a tree is a tree.
        seq.draft.truncate(left as usize - 1);
        let layout = &mut self.speculation.layout;
        tree::truncate_depth(&mut seq.draft, memory.min(until_limit as usize) as u32);
        layout.lay_out(&seq.draft);
        let (first, depth) = (seq.planned + 1, layout.depth());
        let scratch = layout.scratch_blocks(first, bt as u32);
        // What comes of the other branches is less certain: they must leave a block for everybody,
        // and what was promised.
        let own = ((first + depth) as usize).div_ceil(bt).saturating_sub(seq.table.len());
        let needed = own + scratch as usize;
        let mut part = Part { tokens: 1, draft: seq.draft.len() as u32, depth, scratch };
        if scratch > 0 && (needed > available || needed + running > spare) {
            self.keep_first_branch(slot, &mut part);
        }
        part
    }

    /// Gets the blocks of a draft's branches; where they cannot be had now, the draft is its first
    /// branch.
    fn take_scratch(&mut self, slot: u32, part: &mut Part, plan: &mut StepPlan) {
        let tenant = self.seqs[slot].tenant;
        if !self.kv.allocate_n(tenant, part.scratch as usize, &mut plan.scratch) {
            self.keep_first_branch(slot, part);
        }
    }

    /// Cuts a draft to the first branch of its layout.
    fn keep_first_branch(&mut self, slot: u32, part: &mut Part) {
        let draft = &mut self.seqs[slot].draft;
        tree::keep_first_branch(draft);
        let nodes = draft.len() as u32;
        *part = Part { draft: nodes, depth: nodes, scratch: 0, ..*part };
    }

    /// Where the last of a prompt is about to be computed, the request's other choices begin as
    /// copies of it. They are put behind it among those that run; `next` stays behind them. Returns
    /// how many there are.
    fn part_choices(&mut self, slot: u32, fx: Fx<'_>, next: &mut usize) -> u32 {
        let seq = &mut self.seqs[slot];
        if !seq.parts {
            return 0;
        }
        seq.parts = false;
        let (request, tokens) = (seq.request, seq.tokens.len() as u32);
        let r = &self.requests[request];
        let (id, choices) = (r.id, r.choices);
        let at = self.running.iter().position(|&s| s == slot).expect("it runs") + 1;
        for choice in 1..choices {
            // Those blocks that the step is about to fill are shared as well.
            let planned = std::mem::replace(&mut self.seqs[slot].planned, tokens);
            let other = self.fork_seq(slot, tokens, Some(id), choice, fx);
            self.seqs[slot].planned = planned;
            let seq = &mut self.seqs[other];
            seq.last_step = 0;
            seq.rank.choice = choice;
            self.idle_running += u32::from(seq.rank.idle);
            let r = &mut self.requests[request];
            r.seqs.push(other);
            r.running += 1;
            self.running.insert(at + choice as usize - 1, other);
            if *next >= at {
                *next += 1;
            }
        }
        choices - 1
    }

    /// Prompt tokens that the step has room for beside the decodes.
    fn prompt_room(&self, plan: &StepPlan, shape: StepShape) -> u32 {
        let left = self.config.max_step_tokens - shape.tokens as u32;
        if plan.entries.is_empty() {
            return left;
        }
        match self.config.chunking {
            Chunking::Full => left,
            Chunking::Tokens(tokens) => left.min(tokens.max(1)),
            Chunking::Slowdown { percent } => {
                let depth = self.first_prompt_depth();
                // Before anything is known, a chunk as large as the decodes beside it.
                let room = self.cost.room(shape, depth, percent).unwrap_or(shape.tokens);
                // Kernels take columns by whole tiles: a part of one costs as much as all of it.
                let part = (shape.tokens + room) % TILE_TOKENS;
                let room = if room > TILE_TOKENS { room - part } else { room };
                left.min(u32::try_from(room).unwrap_or(u32::MAX).max(MIN_CHUNK))
            }
        }
    }

    fn first_prompt_depth(&self) -> u64 {
        let first = self.running.iter().map(|&s| &self.seqs[s]).find(|s| s.planned + 1 < s.total());
        first.map_or(0, |s| u64::from(s.planned))
    }

    /// Chunks of the prompts that run, in order, as far as `room` goes.
    fn plan_prompts(
        &mut self,
        now: Time,
        plan: &mut StepPlan,
        shape: &mut StepShape,
        mut room: u32,
        fx: Fx<'_>,
    ) {
        let step = plan.step.0;
        let mut i = 0;
        while i < self.running.len() && room > 0 {
            let slot = self.running[i];
            i += 1;
            let seq = &self.seqs[slot];
            let total = seq.total();
            let pending = total - seq.planned;
            if self.idle_waits && seq.rank.idle {
                break;
            }
            if pending == 0
                || seq.last_step == step
                || seq.drafting
                || (seq.unknown > 0 && total >= seq.limit)
            {
                continue;
            }
            let tokens = pending.min(room);
            if !self.make_room(now, i - 1, tokens, fx) {
                i = self.after_failing(slot, i);
                continue;
            }
            let ends = tokens == pending;
            let parted = if ends { self.part_choices(slot, fx, &mut i) } else { 0 };
            room -= tokens;
            self.add_entry(plan, shape, slot, Part { tokens, ..Part::default() }, parted);
        }
    }

    /// The place of the next sequence after one that got no room: where it gave way itself, the next
    /// has moved up.
    fn after_failing(&self, slot: u32, next: usize) -> usize {
        if self.running.get(next - 1) == Some(&slot) { next } else { next - 1 }
    }

    /// Makes the blocks of the next `tokens` positions of a running sequence (given by its place
    /// among those that run) its own to write. When no block can be had, those that come after it
    /// give way, or it does itself. Returns whether it may be planned.
    fn make_room(&mut self, now: Time, place: usize, tokens: u32, fx: Fx<'_>) -> bool {
        let slot = self.running[place];
        let bt = self.block_tokens;
        if self.seqs[slot].special && !self.own_tail(now, slot, place, fx) {
            return false;
        }
        let had = self.seqs[slot].table.len();
        let blocks = (self.seqs[slot].planned + tokens).div_ceil(bt) as usize;
        let missing = blocks.saturating_sub(had);
        // All at once, so that where room must be made by moves to disk they run side by side.
        let mut there = missing == 0 || self.take_blocks(slot, missing, fx);
        while !there {
            if self.seqs[slot].table.len() >= blocks {
                there = true;
            } else if !self.take_blocks(slot, 1, fx) && !self.reclaim(now, place, fx) {
                return false;
            }
        }
        if missing > 0 {
            self.note_blocks(slot);
        }
        true
    }

    /// Puts so many blocks at the end of a sequence's table, if they can be had now.
    fn take_blocks(&mut self, slot: u32, blocks: usize, fx: Fx<'_>) -> bool {
        let seq = &mut self.seqs[slot];
        let had = seq.table.len();
        if !self.kv.allocate_n(seq.tenant, blocks, &mut seq.table) {
            return false;
        }
        let new = seq.table[had..].iter();
        fx.ops.extend(new.map(|&block| SeqOp::Block { seq: SeqId(slot), block }));
        let kept = seq.promised.min(blocks as u32);
        seq.promised -= kept;
        self.promised -= u64::from(kept);
        true
    }

    /// Gives a sequence a copy of the block that its next position goes to, where others have it
    /// too.
    fn own_tail(&mut self, now: Time, slot: u32, place: usize, fx: Fx<'_>) -> bool {
        let bt = self.block_tokens;
        let seq = &self.seqs[slot];
        let (index, used) = ((seq.planned / bt) as usize, seq.planned % bt);
        if let Some(&block) = seq.table.get(index)
            && used > 0
            && self.kv.is_shared(block)
        {
            if seq.in_flight > 0 {
                // A step in flight names the block; it stays until that is done.
                return false;
            }
            let tenant = seq.tenant;
            let own = loop {
                match self.kv.allocate(tenant) {
                    Some(own) => break own,
                    None if self.reclaim(now, place, fx) => {}
                    None => return false,
                }
            };
            // Those it was shared with may have given way just now; a copy is right all the same.
            self.kv.release(block);
            let seq = &mut self.seqs[slot];
            seq.table[index] = own;
            fx.ops.push(SeqOp::Copy { from: block, to: own, tokens: used });
            fx.ops.push(SeqOp::Replace { seq: SeqId(slot), index: index as u32, block: own });
            self.note_blocks(slot);
        }
        let seq = &mut self.seqs[slot];
        seq.special = seq.parts || !seq.draft.is_empty();
        true
    }
}
