//! The executor's sequences, as the operations on them say.

use dunlin_kvcache::BlockId;
use dunlin_units::{RequestId, SeqId};

use super::{
    Check, PlanChecker, ensure,
    memory::{Motion, PENDING, link},
};
use crate::{
    effects::SeqOp,
    event::{DraftNode, Event, SessionOp},
};

/// A sequence.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequence {
    pub(super) request: Option<RequestId>,
    pub(super) choice: u32,
    /// The link before its first token; none before it is known whose sequence it is.
    pub(super) root: Option<u64>,
    /// Its tokens, while `root` is not known.
    unrooted: Vec<u32>,
    /// The links of its tokens.
    pub(super) chain: Vec<u64>,
    pub(super) table: Vec<BlockId>,
    /// Positions whose KV is there, or comes from steps planned: at least so many.
    pub(super) planned: u32,
    /// Positions that have been found in the table as they should be.
    pub(super) verified: u32,
    /// Tokens that steps in flight choose.
    pub(super) pending: u32,
    /// Parts of steps in flight, its own entries and samples.
    pub(super) in_flight: u32,
    /// The end of the positions that those steps read and write.
    pub(super) in_flight_end: u32,
    /// A draft is in flight.
    pub(super) drafting: bool,
    /// It has been planned, and has not ended or been put back since.
    pub(super) runs: bool,
    /// The draft that was last proposed for it.
    pub(super) proposal: Vec<DraftNode>,
}

impl Sequence {
    /// Its tokens, with those that steps in flight choose.
    pub(super) fn total(&self) -> u32 {
        self.chain.len() as u32 + self.pending
    }

    /// The link of a position, which may have to be chosen yet.
    pub(super) fn link_at(&self, position: u32) -> u64 {
        self.chain.get(position as usize).copied().unwrap_or(PENDING)
    }

    pub(super) fn append(&mut self, tokens: &[u32]) {
        let Some(root) = self.root else {
            self.unrooted.extend_from_slice(tokens);
            return;
        };
        let mut last = self.chain.last().copied().unwrap_or(root);
        self.chain.extend(tokens.iter().map(|&token| {
            last = link(last, token);
            last
        }));
    }

    fn found(&mut self, positions: u32) {
        self.verified = self.verified.min(positions);
    }
}

impl PlanChecker {
    pub(super) fn seq(&mut self, seq: SeqId) -> Result<&mut Sequence, String> {
        let slot = self.seqs.get_mut(seq.0 as usize).and_then(Option::as_mut);
        slot.ok_or_else(|| format!("there is no sequence {}", seq.0))
    }

    pub(super) fn op(&mut self, op: &SeqOp, events: &[Event]) -> Check {
        match op {
            SeqOp::Start { seq, request, choice } => {
                let root = match request {
                    Some(request) => Some(self.request(*request)?.root),
                    None => None,
                };
                self.place(*seq, Sequence { root, ..Sequence::default() })?;
                self.assign(*seq, *request, *choice)
            }
            SeqOp::Fork { from, to, tokens, blocks, request, choice } => {
                self.fork(*from, *to, *tokens, *blocks)?;
                self.assign(*to, *request, *choice)
            }
            SeqOp::Assign { seq, request, choice } => {
                ensure!(self.seq(*seq)?.in_flight == 0, "assigned during its step");
                self.unassign(*seq)?;
                self.assign(*seq, *request, *choice)
            }
            SeqOp::Append { seq, tokens } => {
                let s = self.seq(*seq)?;
                ensure!(s.pending == 0, "tokens are appended where a step chooses them");
                s.append(tokens);
                Ok(())
            }
            SeqOp::Truncate { seq, tokens, blocks } => self.truncate(*seq, *tokens, *blocks),
            SeqOp::Block { seq, block } => self.give_block(*seq, *block),
            SeqOp::Replace { seq, index, block } => self.replace(*seq, *index, *block),
            SeqOp::Copy { from, to, tokens } => {
                let first_in_flight = self.steps.front().map_or(u64::MAX, |s| s.id);
                self.memory.copy(*from, *to, *tokens, first_in_flight)
            }
            SeqOp::Fill { seq, session } => {
                let restored = events.iter().rev().find_map(|event| match event {
                    Event::Session(SessionOp::Restore { session: s, namespace, .. })
                        if s == session =>
                    {
                        Some(*namespace)
                    }
                    _ => None,
                });
                let Some(namespace) = restored else {
                    return Err("no session of that name was to be restored".into());
                };
                let root = self.root(namespace);
                self.fill(*seq, root)
            }
            SeqOp::End { seq } => {
                ensure!(self.seq(*seq)?.in_flight == 0, "ended during its step");
                self.unassign(*seq)?;
                let ended = self.seqs[seq.0 as usize].take().expect("found above");
                for block in ended.table {
                    self.memory.release(block);
                }
                Ok(())
            }
        }
    }

    fn place(&mut self, seq: SeqId, sequence: Sequence) -> Check {
        let slot = seq.0 as usize;
        if self.seqs.len() <= slot {
            self.seqs.resize_with(slot + 1, || None);
        }
        ensure!(self.seqs[slot].is_none(), "the name is in use");
        self.seqs[slot] = Some(sequence);
        Ok(())
    }

    fn assign(&mut self, seq: SeqId, request: Option<RequestId>, choice: u32) -> Check {
        if let Some(id) = request {
            let r = self.request(id)?;
            let place = r.seqs.get_mut(choice as usize).ok_or("there is no such choice")?;
            ensure!(place.is_none(), "the choice has a sequence already");
            *place = Some(seq);
        }
        let s = self.seq(seq)?;
        (s.request, s.choice) = (request, choice);
        Ok(())
    }

    fn unassign(&mut self, seq: SeqId) -> Check {
        self.set_runs(seq, false)?;
        let s = self.seq(seq)?;
        s.proposal.clear();
        let (request, choice) = (s.request.take(), s.choice);
        // A request that is over may have gone already: it is forgotten when it finishes.
        if let Some(r) = request.and_then(|id| self.requests.get_mut(&id)) {
            ensure!(r.seqs[choice as usize].take() == Some(seq), "the choice has another sequence");
        }
        Ok(())
    }

    pub(super) fn set_runs(&mut self, seq: SeqId, runs: bool) -> Check {
        let s = self.seq(seq)?;
        let before = std::mem::replace(&mut s.runs, runs);
        self.running = self.running + u32::from(runs) - u32::from(before);
        Ok(())
    }

    fn fork(&mut self, from: SeqId, to: SeqId, tokens: u32, blocks: u32) -> Check {
        let size = self.memory.block_tokens as u32;
        let source = self.seq(from)?;
        ensure!(tokens as usize <= source.chain.len(), "more tokens than there are");
        ensure!(blocks as usize <= source.table.len(), "more blocks than there are");
        ensure!(blocks <= tokens.div_ceil(size), "blocks without tokens");
        let copy = Sequence {
            root: source.root,
            chain: source.chain[..tokens as usize].to_vec(),
            table: source.table[..blocks as usize].to_vec(),
            planned: source.planned.min(tokens).min(least_covered(blocks, size)),
            ..Sequence::default()
        };
        for &block in &copy.table {
            self.memory.block(block)?.references += 1;
        }
        self.place(to, copy)
    }

    fn truncate(&mut self, seq: SeqId, tokens: u32, blocks: u32) -> Check {
        let size = self.memory.block_tokens as u32;
        let s = self.seq(seq)?;
        ensure!(tokens as usize <= s.chain.len(), "more tokens than there are");
        ensure!(blocks as usize <= s.table.len(), "more blocks than there are");
        ensure!(s.in_flight == 0, "shortened during its step");
        s.chain.truncate(tokens as usize);
        s.planned = s.planned.min(tokens).min(least_covered(blocks, size));
        s.found(tokens.min(blocks * size));
        s.drafting = false;
        let gone = s.table.split_off(blocks as usize);
        for block in gone {
            self.memory.release(block);
        }
        if blocks == 0 {
            self.set_runs(seq, false)?;
        }
        Ok(())
    }

    fn give_block(&mut self, seq: SeqId, block: BlockId) -> Check {
        let size = self.memory.block_tokens;
        let first_in_flight = self.steps.front().map_or(u64::MAX, |s| s.id);
        let s = self.seq(seq)?;
        let end = (s.table.len() + 1) * size;
        let last = s.link_at(end as u32 - 1);
        s.table.push(block);
        s.found((end - size) as u32);
        let b = self.memory.block(block)?;
        ensure!(b.motion != Some(Motion::Coming), "the block is being loaded");
        ensure!(
            b.references > 0 || b.named_until < first_in_flight,
            "the block is given out while a step in flight names it"
        );
        b.references += 1;
        if b.references > 1 || b.motion.is_some() {
            // It can only be read.
            let computed = b.last_write < first_in_flight;
            ensure!(computed, "a shared block that a step in flight writes");
            ensure!(
                last != PENDING && self.memory.ends_with(block, size, last),
                "a shared block whose content is not these tokens'"
            );
        }
        Ok(())
    }

    fn replace(&mut self, seq: SeqId, index: u32, block: BlockId) -> Check {
        let size = self.memory.block_tokens as u32;
        let last_step = self.last_step;
        let s = self.seq(seq)?;
        let old = *s.table.get(index as usize).ok_or("there is no such place")?;
        let used = s.planned.min((index + 1) * size).saturating_sub(index * size) as usize;
        let named = s.in_flight > 0 && index * size < s.in_flight_end;
        s.table[index as usize] = block;
        s.found(index * size);
        let left = self.memory.block(old)?;
        if named {
            left.named_until = last_step;
        }
        let there = left.chain.get(used.wrapping_sub(1)).copied();
        self.memory.release(old);
        let new = self.memory.block(block)?;
        ensure!(new.motion != Some(Motion::Coming), "the block is being loaded");
        new.references += 1;
        ensure!(
            used == 0 || there == new.chain.get(used - 1).copied() && there.is_some(),
            "the block has other content than the one it replaces"
        );
        Ok(())
    }

    fn fill(&mut self, seq: SeqId, root: u64) -> Check {
        let size = self.memory.block_tokens;
        let s = self.seq(seq)?;
        ensure!(s.root.is_none() && s.request.is_none(), "it is not a new session's");
        s.root = Some(root);
        let tokens = std::mem::take(&mut s.unrooted);
        s.append(&tokens);
        ensure!(s.table.len() == s.chain.len().div_ceil(size), "blocks and tokens do not match");
        s.planned = s.chain.len() as u32;
        s.verified = s.planned;
        let (chain, table) = (s.chain.clone(), s.table.clone());
        for (part, &block) in chain.chunks(size).zip(&table) {
            let block = self.memory.block(block)?;
            ensure!(
                block.references == 1 && block.motion.is_none(),
                "it is to fill a shared block"
            );
            block.chain = part.to_vec();
            block.last_write = 0;
        }
        Ok(())
    }
}

/// Positions that a table of so many blocks says at least: its last has one.
fn least_covered(blocks: u32, size: u32) -> u32 {
    blocks.checked_sub(1).map_or(0, |full| full * size + 1)
}
