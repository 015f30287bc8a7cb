//! What each memory block and disk slot holds, position by position.

use std::collections::BTreeMap;

use dunlin_kvcache::{BlockId, Move, MoveId, Place};

use super::{Check, ensure};

/// The link of a position whose token is not known yet: a step in flight chooses it.
pub(super) const PENDING: u64 = 0;

/// The link of a position: 64 bits of its token and of all before it. Two different prefixes share
/// one with a chance of 2^-64.
pub(super) fn link(before: u64, token: u32) -> u64 {
    let mut z = before.rotate_left(7)
        ^ u64::from(token).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)).max(1)
}

/// What a move in flight does with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Motion {
    /// Reads it.
    Leaving,
    /// Writes it.
    Coming,
}

/// A memory block.
#[derive(Debug, Clone, Default)]
pub(super) struct Block {
    /// The links of the positions that it holds, from its first on: each follows the one before, as
    /// whoever wrote it had that one there.
    pub(super) chain: Vec<u64>,
    /// Tables that name it, as often as they do.
    pub(super) references: u32,
    pub(super) motion: Option<Motion>,
    /// The last step that writes it.
    pub(super) last_write: u64,
    /// The last step that names it, where it left a table since.
    pub(super) named_until: u64,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    chain: Vec<u64>,
    moving: bool,
}

/// Both tiers, and what moves between them.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) block_tokens: usize,
    blocks: Vec<Block>,
    slots: Vec<Slot>,
    moves: BTreeMap<MoveId, Move>,
}

impl Memory {
    pub(super) fn new(block_tokens: usize, blocks: usize, slots: usize) -> Self {
        Self {
            block_tokens,
            blocks: vec![Block::default(); blocks],
            slots: vec![Slot::default(); slots],
            moves: BTreeMap::new(),
        }
    }

    pub(super) fn moves_in_flight(&self) -> usize {
        self.moves.len()
    }

    pub(super) fn block(&mut self, block: BlockId) -> Result<&mut Block, String> {
        self.blocks.get_mut(block as usize).ok_or_else(|| format!("there is no block {block}"))
    }

    /// Whether a block holds all of its positions, and ends with this link.
    pub(super) fn ends_with(&self, block: BlockId, positions: usize, last: u64) -> bool {
        let chain = &self.blocks[block as usize].chain;
        positions == 0 || chain.get(positions - 1) == Some(&last)
    }

    pub(super) fn release(&mut self, block: BlockId) {
        self.blocks[block as usize].references -= 1;
    }

    /// Copies the first positions of a block that tables name, or that is at rest, to one that no
    /// table names.
    pub(super) fn copy(
        &mut self,
        from: BlockId,
        to: BlockId,
        tokens: u32,
        first_in_flight: u64,
    ) -> Check {
        let tokens = tokens as usize;
        let source = self.block(from)?;
        ensure!(
            source.references > 0 || source.last_write < first_in_flight,
            "block {from} is copied, and nobody holds it while a step writes it"
        );
        ensure!(source.motion != Some(Motion::Coming), "block {from} is copied while it is loaded");
        ensure!(
            source.chain.len() >= tokens,
            "{tokens} positions of block {from} are copied; it has {}",
            source.chain.len()
        );
        let (chain, last_write) = (source.chain[..tokens].to_vec(), source.last_write);
        let target = self.block(to)?;
        ensure!(target.references == 0, "block {to} is copied over, and is held");
        ensure!(target.named_until < first_in_flight, "block {to} is copied over during its step");
        ensure!(target.motion.is_none(), "block {to} is copied over while it is moved");
        target.chain = chain;
        target.last_write = last_write;
        Ok(())
    }

    /// A move begins. `first_in_flight` is the oldest step that is not done.
    pub(super) fn begin(&mut self, m: Move, first_in_flight: u64) -> Check {
        let size = self.block_tokens;
        ensure!(!self.moves.contains_key(&m.id), "the name of move {} is in use", m.id.0);
        let (block, slot, motion) = match (m.from, m.to) {
            (Place::Memory(b), Place::Disk(s)) => (b, s, Motion::Leaving),
            (Place::Disk(s), Place::Memory(b)) => (b, s, Motion::Coming),
            _ => return Err(format!("a move within a tier: {m:?}")),
        };
        ensure!((slot as usize) < self.slots.len(), "there is no slot {slot}");
        let b = self.block(block)?;
        ensure!(b.motion.is_none(), "block {block} is in two moves");
        match motion {
            Motion::Leaving => ensure!(
                b.chain.len() == size
                    && !b.chain.contains(&PENDING)
                    && b.last_write < first_in_flight,
                "block {block} goes to disk before it is full and computed"
            ),
            Motion::Coming => {
                ensure!(b.references == 0, "block {block} is loaded over, and is held");
                ensure!(
                    b.named_until < first_in_flight,
                    "block {block} is loaded over in its step"
                );
                b.chain.clear();
            }
        }
        b.motion = Some(motion);
        let s = &mut self.slots[slot as usize];
        ensure!(!s.moving, "slot {slot} is in two moves");
        s.moving = true;
        match motion {
            Motion::Leaving => s.chain.clear(),
            Motion::Coming => {
                ensure!(s.chain.len() == size, "slot {slot} is loaded, and has no content");
            }
        }
        self.moves.insert(m.id, m);
        Ok(())
    }

    /// A move has ended.
    pub(super) fn end(&mut self, id: MoveId, ok: bool) -> Check {
        let m = self.moves.remove(&id).ok_or_else(|| format!("move {} is not in flight", id.0))?;
        match (m.from, m.to) {
            (Place::Memory(b), Place::Disk(s)) => {
                let block = &mut self.blocks[b as usize];
                block.motion = None;
                let chain = if ok { block.chain.clone() } else { Vec::new() };
                self.slots[s as usize] = Slot { chain, moving: false };
            }
            (Place::Disk(s), Place::Memory(b)) => {
                let slot = &mut self.slots[s as usize];
                slot.moving = false;
                let block = &mut self.blocks[b as usize];
                block.motion = None;
                block.chain = if ok { slot.chain.clone() } else { Vec::new() };
            }
            _ => unreachable!("refused when it began"),
        }
        Ok(())
    }
}
