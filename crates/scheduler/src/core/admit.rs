//! From the queue to those that run: in order, as memory allows.

use dunlin_units::{SeqId, Time};

use super::{
    Core, Fx,
    state::{NONE, Rank, Stage},
};
use crate::{config::Admission, effects::SeqOp, policy::MAX_SLACK_NS};

/// How many of the queue are looked at when the first must be skipped or a policy may choose.
const LOOK: usize = 64;

/// What became of an attempt to take a sequence on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Admitted,
    /// Its tenant's budget is in the way, and that alone.
    OverBudget,
    /// Another's prompt is being computed that it shares; it is better off waiting.
    Follows,
    NoMemory,
}

impl Core {
    /// Takes on as many of the queue as fit.
    pub(super) fn admit(&mut self, now: Time, fx: Fx<'_>) {
        let most = self.config.max_running.min(self.config.max_step_tokens) as usize;
        if self.waiting.is_empty() || self.running.len() + self.loading.len() >= most {
            return;
        }
        if !self.policy.looks_at_cache()
            && self.waiting.first().is_some_and(|w| self.is_blocked(w.1))
        {
            return;
        }
        let mut candidates = std::mem::take(&mut self.scratch);
        candidates.clear();
        candidates.extend(self.waiting.iter().take(LOOK).map(|w| w.1));
        self.prefer_cached(&mut candidates);
        let mut under_way = self.seqs_under_way();
        for &slot in &candidates {
            if under_way + self.more_choices(slot) >= most {
                break;
            }
            if self.seqs[slot].rank.idle && self.others_than_idle() {
                break;
            }
            if self.is_blocked(slot) {
                break;
            }
            match self.attempt(now, slot, fx) {
                Attempt::Follows => {}
                Attempt::Admitted | Attempt::OverBudget => under_way = self.seqs_under_way(),
                Attempt::NoMemory => {
                    self.blocked = Some((slot, self.spare_blocks()));
                    break;
                }
            }
        }
        self.scratch = candidates;
    }

    /// Whether any sequence that is not idle waits, runs or is being loaded.
    pub(super) fn others_than_idle(&self) -> bool {
        self.waiting.first().is_some_and(|w| !w.0.idle)
            || self.running.first().is_some_and(|&s| !self.seqs[s].rank.idle)
            || self.loading.iter().any(|&s| !self.seqs[s].rank.idle)
    }

    /// Sequences that run or are being loaded, and the choices that some will part into.
    fn seqs_under_way(&self) -> usize {
        let under_way = self.running.iter().chain(&self.loading);
        under_way.map(|&s| 1 + self.more_choices(s)).sum()
    }

    /// Choices that a sequence will part into, besides itself.
    fn more_choices(&self, slot: u32) -> usize {
        let seq = &self.seqs[slot];
        if seq.parts { self.requests[seq.request].choices as usize - 1 } else { 0 }
    }

    /// Blocks that are neither in use nor promised.
    pub(super) fn spare_blocks(&self) -> u64 {
        (self.kv.available_blocks() as u64).saturating_sub(self.promised)
    }

    /// Whether it is known that the sequence does not fit: nothing was released since it last did
    /// not.
    fn is_blocked(&self, slot: u32) -> bool {
        self.blocked.is_some_and(|(head, spare)| head == slot && self.spare_blocks() <= spare)
    }

    /// Puts those first that the policy favours for what is cached.
    fn prefer_cached(&mut self, candidates: &mut [u32]) {
        if !self.policy.looks_at_cache() || candidates.len() < 2 {
            return;
        }
        candidates.sort_by_cached_key(|&slot| {
            let seq = &self.seqs[slot];
            let tokens = seq.tokens.len();
            let cached = self.kv.peek(&seq.namespace, &seq.tokens, tokens);
            let bonus = self.policy.cache_bonus_ns(cached, tokens).min(MAX_SLACK_NS);
            // The key counts from before the beginning of time, where need be.
            let key = i128::from(seq.rank.key.0) - i128::from(bonus);
            (seq.rank.idle, key, seq.rank.arrival, seq.rank.choice)
        });
    }

    /// Takes a sequence on, if its blocks can be had.
    fn attempt(&mut self, now: Time, slot: u32, fx: Fx<'_>) -> Attempt {
        let bare = self.config.admission == Admission::Prompt;
        if !bare && self.follows(slot) {
            return Attempt::Follows;
        }
        let tokens = self.seqs[slot].tokens.len() as u32;
        let mut on_disk = 0;
        // A sequence of a session may have kept its KV.
        let fresh = self.seqs[slot].table.is_empty();
        if fresh {
            on_disk = self.look_up(slot);
            if on_disk == NONE {
                return Attempt::Follows;
            }
        }
        // Its tokens and the next one; where choices part, a block more for each.
        let ahead = u32::from(!bare);
        let blocks = (tokens + ahead).div_ceil(self.block_tokens) + self.more_choices(slot) as u32;
        let needed = u64::from(blocks).saturating_sub(self.seqs[slot].table.len() as u64);
        // Those that run need blocks, too, from time to time.
        let headroom = if bare { 0 } else { self.running.len() as u64 / 4 };
        while self.spare_blocks() < needed + headroom {
            if !self.shed_for(slot, fx) && !self.preempt_lower(now, slot, fx) {
                self.undo(slot, fresh);
                return Attempt::NoMemory;
            }
        }
        let tenant = self.seqs[slot].tenant;
        while (self.kv.available_to(tenant) as u64) < needed {
            if !self.kv_of_tenant_shed(slot, fx) {
                self.undo(slot, fresh);
                return Attempt::OverBudget;
            }
        }
        let loads = on_disk > 0 && self.begin_load(slot, on_disk, fx);
        if on_disk > 0 && !loads && self.waits_for_room(now, slot) {
            self.undo(slot, fresh);
            return Attempt::Follows;
        }
        self.waiting.remove(&(self.seqs[slot].rank, slot));
        self.note_blocks(slot);
        if loads {
            let loaded = self.seqs[slot].loads;
            self.promise(slot, needed.saturating_sub(u64::from(loaded)));
        } else {
            self.promise(slot, needed);
            self.run(now, slot, fresh, fx);
        }
        Attempt::Admitted
    }

    /// Whether a sequence whose KV is on disk waits for room that is being made for it. Once only:
    /// others may take the room, and then it is computed again instead.
    fn waits_for_room(&mut self, now: Time, slot: u32) -> bool {
        self.kv.leaving_blocks() > 0
            && *self.seqs[slot].waits_for_room_since.get_or_insert(now) == now
    }

    fn promise(&mut self, slot: u32, blocks: u64) {
        self.seqs[slot].promised = blocks as u32;
        self.promised += blocks;
    }

    /// Notes how many blocks the request of a sequence holds, where that is the most so far.
    pub(super) fn note_blocks(&mut self, slot: u32) {
        let request = &self.requests[self.seqs[slot].request];
        let mut held = 0;
        for (choice, &own) in request.seqs.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            let table = &self.seqs[own].table;
            // What choices share they share at the same place.
            let before = request.seqs[..choice].iter().filter(|&&slot| slot != NONE);
            let before: Vec<&[u32]> = before.map(|&s| &self.seqs[s].table[..]).collect();
            let counted =
                |(i, block): &(usize, &u32)| before.iter().any(|t| t.get(*i) == Some(block));
            held += if before.is_empty() {
                table.len()
            } else {
                table.iter().enumerate().filter(|entry| !counted(entry)).count()
            };
        }
        let bill = &mut self.requests[self.seqs[slot].request].bill;
        bill.peak_blocks = bill.peak_blocks.max(held as u64);
    }

    /// Whether the sequence is better off waiting: one that runs is computing a prompt that begins
    /// like its own.
    fn follows(&mut self, slot: u32) -> bool {
        if !self.config.cache.prefix_cache || !self.seqs[slot].table.is_empty() {
            return false;
        }
        if let Some((leader, rank, until)) = self.seqs[slot].follows {
            let leader = &self.seqs[leader];
            if leader.stage == Stage::Running && leader.rank == rank && leader.computed < until {
                return true;
            }
            self.seqs[slot].follows = None;
        }
        let bt = self.block_tokens as usize;
        let seq = &self.seqs[slot];
        // The last token is computed in any case.
        let most = (seq.tokens.len() - 1) / bt;
        let mut best: Option<(u32, u32, Rank)> = None;
        for &leader in &self.running {
            let other = &self.seqs[leader];
            // One that decodes has its blocks in the index, but for the last.
            if other.stage != Stage::Running
                || other.total() - other.computed <= self.block_tokens
                || other.namespace != seq.namespace
            {
                continue;
            }
            let common = other.tokens.iter().zip(&seq.tokens).take_while(|(a, b)| a == b).count();
            let blocks = (common / bt).min(most) as u32;
            if blocks * self.block_tokens > other.computed && best.is_none_or(|(b, ..)| blocks > b)
            {
                best = Some((blocks, leader, other.rank));
            }
        }
        let Some((blocks, leader, rank)) = best else { return false };
        let until = blocks * self.block_tokens;
        let seq = &self.seqs[slot];
        if self.kv.peek(&seq.namespace, &seq.tokens, until as usize) as u32 >= until {
            return false;
        }
        self.seqs[slot].follows = Some((leader, rank, until));
        true
    }

    /// Finds what is cached of a sequence's tokens, takes it, and returns how many more blocks the
    /// disk tier has; [`NONE`] where others are just bringing them.
    fn look_up(&mut self, slot: u32) -> u32 {
        let seq = &mut self.seqs[slot];
        let tokens = seq.tokens.len();
        // The last token is computed in any case where its logits are wanted.
        let most = if seq.generates() { tokens - 1 } else { tokens };
        let mut table = std::mem::take(&mut seq.table);
        let found = self.kv.lookup(&seq.namespace, seq.tenant, &seq.tokens, most, &mut table);
        seq.table = table;
        seq.chain = found.chain;
        seq.computed = found.tokens as u32;
        seq.planned = seq.computed;
        seq.registered = seq.table.len() as u32;
        if found.loading > 0 {
            self.undo(slot, true);
            return NONE;
        }
        found.on_disk as u32
    }

    /// Gives back what a look-up took, if there was one.
    fn undo(&mut self, slot: u32, looked_up: bool) {
        let seq = &mut self.seqs[slot];
        if looked_up {
            self.kv.release_table(&mut seq.table, 0);
            seq.computed = 0;
            seq.planned = 0;
            seq.registered = 0;
        }
    }

    /// Lets someone who does not run, and is not this sequence, give up KV.
    fn shed_for(&mut self, slot: u32, fx: Fx<'_>) -> bool {
        let table = std::mem::take(&mut self.seqs[slot].table);
        let shed = self.shed(None, fx);
        self.seqs[slot].table = table;
        shed
    }

    fn kv_of_tenant_shed(&mut self, slot: u32, fx: Fx<'_>) -> bool {
        let tenant = self.seqs[slot].tenant;
        let table = std::mem::take(&mut self.seqs[slot].table);
        let shed = self.shed(Some(tenant), fx);
        self.seqs[slot].table = table;
        shed
    }

    /// Preempts the last of those that run and are of a lower class than the sequence. One that was
    /// taken on just now stays: the policy put it first, and would again.
    fn preempt_lower(&mut self, now: Time, slot: u32, fx: Fx<'_>) -> bool {
        let class = self.requests[self.seqs[slot].request].class;
        let rank = self.seqs[slot].rank;
        let victim = (0..self.running.len()).rev().find(|&i| {
            let seq = &self.seqs[self.running[i]];
            seq.stage == Stage::Running
                && seq.in_flight == 0
                && seq.last_step != 0
                && seq.rank > rank
                && self.requests[seq.request].class < class
        });
        victim.is_some_and(|place| {
            self.preempt(now, place, fx);
            true
        })
    }

    /// Has the blocks brought that the disk tier has of a sequence.
    fn begin_load(&mut self, slot: u32, blocks: u32, fx: Fx<'_>) -> bool {
        let seq = &mut self.seqs[slot];
        let mut table = std::mem::take(&mut seq.table);
        let first = fx.moves.len();
        let chain = self.kv.begin_load(
            &seq.namespace,
            seq.tenant,
            &seq.tokens,
            seq.computed as usize,
            blocks as usize,
            &mut table,
            &mut fx.moves,
        );
        seq.table = table;
        let Some(chain) = chain else { return false };
        seq.chain = chain;
        seq.stage = Stage::Loading;
        seq.loads = blocks;
        seq.loads_failed = false;
        self.requests[seq.request].bill.blocks_loaded += u64::from(blocks);
        for load in &fx.moves[first..] {
            self.moves.insert(load.id, slot);
        }
        self.loading.push(slot);
        true
    }

    /// All that a sequence waited for has come, or not.
    pub(super) fn loaded(&mut self, now: Time, slot: u32, fx: Fx<'_>) {
        self.loading.retain(|&s| s != slot);
        let seq = &mut self.seqs[slot];
        if seq.loads_failed {
            // What is still there is found by another look-up; the rest is computed.
            seq.stage = Stage::Waiting;
            self.drop_kv(slot);
            let seq = &self.seqs[slot];
            self.waiting.insert((seq.rank, slot));
            return;
        }
        let blocks = seq.table.len() as u32;
        seq.computed = blocks * self.block_tokens;
        seq.planned = seq.computed;
        seq.registered = blocks;
        self.run(now, slot, true, fx);
    }

    /// Copies what a cached block has of the tokens behind those that were found, so that a prompt
    /// that is cached whole is computed from its last token and not from its last block. The copy is
    /// a block that was promised to the sequence anyway.
    fn copy_tail(&mut self, slot: u32, fx: Fx<'_>) {
        let seq = &self.seqs[slot];
        let (computed, tokens) = (seq.computed as usize, seq.tokens.len());
        let most = if seq.generates() { tokens - 1 } else { tokens };
        if self.config.admission == Admission::Prompt
            || !self.config.cache.prefix_cache
            || most <= computed
        {
            return;
        }
        let rest = &seq.tokens[computed..most];
        let Some((block, common)) = self.kv.lookup_tail(&seq.chain, rest) else { return };
        let tenant = seq.tenant;
        if let Some(own) = self.kv.allocate(tenant) {
            let seq = &mut self.seqs[slot];
            seq.table.push(own);
            seq.computed += common as u32;
            seq.planned = seq.computed;
            let kept = seq.promised.min(1);
            seq.promised -= kept;
            self.promised -= u64::from(kept);
            fx.ops.push(SeqOp::Copy { from: block, to: own, tokens: common as u32 });
            fx.ops.push(SeqOp::Block { seq: SeqId(slot), block: own });
            self.note_blocks(slot);
        }
        // Whatever is written over it comes after the copy.
        self.kv.release(block);
    }

    /// The sequence joins those that run, in its place. The blocks of a `fresh` table are news to
    /// the executor.
    fn run(&mut self, now: Time, slot: u32, fresh: bool, fx: Fx<'_>) {
        let seq = &mut self.seqs[slot];
        seq.stage = Stage::Running;
        seq.last_step = 0;
        seq.follows = None;
        seq.waits_for_room_since = None;
        self.idle_running += u32::from(seq.rank.idle);
        if fresh {
            let table = seq.table.iter();
            fx.ops.extend(table.map(|&block| SeqOp::Block { seq: SeqId(slot), block }));
            self.copy_tail(slot, fx);
        }
        let seq = &self.seqs[slot];
        let request = &mut self.requests[seq.request];
        if request.admitted.is_none() {
            request.bill.cached_tokens = u64::from(seq.computed);
        }
        request.runs(now);
        if seq.planned == seq.total() && !seq.generates() {
            // All that it wanted was there.
            let end = self.length_end(slot);
            self.end_choice(now, slot, end, fx);
            return;
        }
        let rank = seq.rank;
        let at = self.running.partition_point(|&s| self.seqs[s].rank < rank);
        self.running.insert(at, slot);
    }
}
