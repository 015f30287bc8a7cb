//! Moves of blocks between tiers, as data: whoever owns the bytes carries them out and says when.

use serde::{Deserialize, Serialize};

use crate::BlockId;
use crate::index::NONE;

/// A move's name. None is used again while the first is in flight, nor before four thousand million
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveId(pub u64);

/// Where a block of KV may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Place {
    /// A memory block.
    Memory(BlockId),
    /// A slot of the disk tier.
    Disk(u32),
}

/// One block's copy from a place to another. Nobody writes to either until it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Move {
    /// What [`crate::KvCache::move_done`] is told.
    pub id: MoveId,
    /// What is read.
    pub from: Place,
    /// What is written.
    pub to: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Demote,
    Load,
}

/// A move that is not done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    id: MoveId,
    pub direction: Direction,
    /// The node it is for, or [`NONE`] when that was dropped meanwhile.
    pub node: u32,
    pub block: u32,
    pub slot: u32,
}

impl InFlight {
    pub(crate) const fn as_move(&self) -> Move {
        let (memory, disk) = (Place::Memory(self.block), Place::Disk(self.slot));
        match self.direction {
            Direction::Demote => Move { id: self.id, from: memory, to: disk },
            Direction::Load => Move { id: self.id, from: disk, to: memory },
        }
    }
}

/// The moves in flight, by a small number that is the low half of their id.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    entries: Vec<Option<InFlight>>,
    free: Vec<u32>,
    started: u32,
}

impl Moves {
    pub(crate) fn start(&mut self, direction: Direction, node: u32, block: u32, slot: u32) -> u32 {
        let at = self.free.pop().unwrap_or(self.entries.len() as u32);
        debug_assert!(at != NONE);
        // The high half keeps ids apart. It comes round after four thousand million moves, by when
        // the earlier move of the same number is long done.
        self.started = self.started.wrapping_add(1);
        let id = MoveId(u64::from(self.started) << 32 | u64::from(at));
        let entry = Some(InFlight { id, direction, node, block, slot });
        if at as usize == self.entries.len() {
            self.entries.push(entry);
        } else {
            self.entries[at as usize] = entry;
        }
        at
    }

    pub(crate) fn get(&self, at: u32) -> &InFlight {
        self.entries[at as usize].as_ref().expect("a move in flight")
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut InFlight {
        self.entries[at as usize].as_mut().expect("a move in flight")
    }

    /// Takes out the move of this id. Panics where there is none: its owner reported it twice.
    pub(crate) fn finish(&mut self, id: MoveId) -> InFlight {
        let at = id.0 as u32;
        let entry = self.entries.get_mut(at as usize).and_then(Option::take);
        let entry = entry.filter(|e| e.id == id).expect("a move that is in flight");
        self.free.push(at);
        entry
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.entries.iter().flatten()
    }
}
