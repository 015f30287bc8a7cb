//! Who gives way when KV memory runs out: first sessions at rest and sequences that wait with KV,
//! then running sequences, the last in order first. Positions that are lost are computed again, or
//! come back from the disk tier where that is cheaper; either gives the same bits.

use dunlin_kvcache::TenantId;
use dunlin_units::{SeqId, Time};

use super::{
    Core, Fx,
    state::{NONE, Stage},
};
use crate::effects::SeqOp;

impl Core {
    /// Frees blocks for the running sequence at `place`. Returns whether it is worth trying again;
    /// not, when the sequence itself has given way or must wait for a step in flight.
    pub(super) fn reclaim(&mut self, now: Time, place: usize, fx: Fx<'_>) -> bool {
        // What is on its way to the disk tier is free soon.
        if self.kv.leaving_blocks() > 0 {
            return false;
        }
        let needy = self.running[place];
        let tenant = self.seqs[needy].tenant;
        // At its budget, only what is the tenant's own helps.
        let own_only = self.kv.at_budget(tenant);
        if self.shed(own_only.then_some(tenant), fx) {
            return true;
        }
        let may_go = |&i: &usize| {
            let seq = &self.seqs[self.running[i]];
            seq.stage == Stage::Running
                && seq.in_flight == 0
                && !seq.table.is_empty()
                && (!own_only || seq.tenant == tenant)
        };
        // Whoever shares all of its blocks frees none, unless those it shares them with go as well.
        let frees = |&i: &usize| {
            let table = &self.seqs[self.running[i]].table;
            table.iter().any(|&block| self.kv.reference_count(block) == 1)
        };
        let behind = || (place + 1..self.running.len()).rev().filter(may_go);
        let alone = self.seqs[needy].in_flight == 0;
        let victim = behind().find(frees).or_else(|| behind().next().filter(|_| alone));
        match victim {
            Some(i) => {
                self.preempt(now, i, fx);
                true
            }
            None => {
                if self.seqs[needy].in_flight == 0 && self.others_hold(needy) {
                    self.preempt(now, place, fx);
                }
                false
            }
        }
    }

    /// Whether giving way helps anyone: another sequence holds KV and can get on.
    fn others_hold(&self, needy: u32) -> bool {
        self.running.iter().any(|&s| {
            s != needy && self.seqs[s].stage == Stage::Running && !self.seqs[s].table.is_empty()
        })
    }

    /// Lets a session at rest, the one used longest ago, or else the last in the queue that holds
    /// KV (of what is charged to `tenant`), give it up. Full blocks stay cached as long as nobody needs them.
    pub(super) fn shed(&mut self, tenant: Option<TenantId>, fx: Fx<'_>) -> bool {
        let resting = self
            .sessions
            .values()
            .filter(|s| !s.busy && !s.held && tenant.is_none_or(|t| self.holds_of(s.seq, t)))
            .filter(|s| {
                let seq = &self.seqs[s.seq];
                seq.stage == Stage::Resting && !seq.table.is_empty()
            })
            .min_by_key(|s| s.used)
            .map(|s| s.seq);
        let slot = resting.or_else(|| {
            let mut queue = self.waiting.iter().rev().map(|w| w.1);
            queue.find(|&s| {
                !self.seqs[s].table.is_empty() && tenant.is_none_or(|t| self.holds_of(s, t))
            })
        });
        let Some(slot) = slot else { return false };
        self.give_up_kv(slot, fx);
        true
    }

    /// Whether a sequence holds blocks that are charged to a tenant; they may be another's.
    fn holds_of(&self, slot: u32, tenant: TenantId) -> bool {
        self.seqs[slot].table.iter().any(|&block| self.kv.charged_to(block) == Some(tenant))
    }

    /// A sequence that does not run loses its KV, and keeps its tokens.
    fn give_up_kv(&mut self, slot: u32, fx: Fx<'_>) {
        self.swap_out(slot);
        let tokens = self.seqs[slot].tokens.len() as u32;
        self.drop_kv(slot);
        fx.ops.push(SeqOp::Truncate { seq: SeqId(slot), tokens, blocks: 0 });
        self.blocked = None;
    }

    /// Puts the running sequence at `place`, which no step in flight has a part of, back into the
    /// queue.
    pub(super) fn preempt(&mut self, now: Time, place: usize, fx: Fx<'_>) {
        let slot = self.running.remove(place);
        let seq = &mut self.seqs[slot];
        seq.lost = seq.lost.max(seq.computed);
        self.give_up_kv(slot, fx);
        let seq = &mut self.seqs[slot];
        seq.stage = Stage::Waiting;
        seq.special = true;
        seq.follows = None;
        self.idle_running -= u32::from(seq.rank.idle);
        self.waiting.insert((seq.rank, slot));
        let request = &mut self.requests[seq.request];
        request.bill.preemptions += 1;
        request.stops(now);
    }

    /// Where the disk tier is cheaper than computing again, a sequence's full blocks go there before
    /// they are released.
    fn swap_out(&mut self, slot: u32) {
        let seq = &self.seqs[slot];
        if self.config.cache.disk_slots == 0 || seq.registered == 0 {
            return;
        }
        let swap = self.config.swap;
        let bytes = u64::from(seq.registered) * swap.block_bytes;
        // There and back.
        let swap_us = 2.0 * bytes as f64 / swap.bytes_per_s.max(1) as f64 * 1e6;
        let tokens = u64::from(seq.registered * self.block_tokens);
        if self.cost.tokens_us(tokens).is_some_and(|compute_us| swap_us < compute_us) {
            for index in 0..seq.registered as usize {
                self.kv.demote(seq.table[index]);
            }
        }
    }

    /// Idle sequences go back to the queue as soon as there is anything else to do.
    pub(super) fn put_back_idle(&mut self, now: Time, fx: Fx<'_>) {
        self.idle_waits = false;
        if self.idle_running == 0 || !self.others_than_idle() {
            return;
        }
        // Those in a step in flight are put back when it is done.
        self.idle_waits = true;
        for place in (0..self.running.len()).rev() {
            let seq = &self.seqs[self.running[place]];
            if !seq.rank.idle {
                break;
            }
            if seq.in_flight == 0 {
                self.preempt(now, place, fx);
            }
        }
    }

    /// Whether a slot holds a sequence of a request.
    pub(super) fn has_request(&self, slot: u32) -> bool {
        self.seqs[slot].request != NONE
    }
}
