//! A hash table from 64 bits to node ids, where equal hashes may stand side by side.
//!
//! Open addressing with linear probing, never more than half full, and deletion that leaves no
//! tombstones: an entry is eight bytes, a look-up mostly one cache line, and its size never changes.

use super::NONE;

#[derive(Debug, Clone, Copy)]
struct Slot {
    tag: u32,
    node: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    mask: usize,
}

impl Table {
    /// For at most `nodes` entries.
    pub(crate) fn new(nodes: usize) -> Self {
        let size = (2 * nodes.max(4)).next_power_of_two();
        Self { slots: vec![Slot { tag: 0, node: NONE }; size], mask: size - 1 }
    }

    const fn tag(hash: u64) -> u32 {
        (hash >> 32) as u32 ^ hash as u32
    }

    /// The nodes with this hash, or with another whose 32-bit tag is equal; `matches` decides.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut matches: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = Self::tag(hash);
        let mut at = tag as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot.node == NONE {
                return None;
            }
            if slot.tag == tag && matches(slot.node) {
                return Some(slot.node);
            }
            at = (at + 1) & self.mask;
        }
    }

    pub(crate) fn insert(&mut self, hash: u64, node: u32) {
        let tag = Self::tag(hash);
        let mut at = tag as usize & self.mask;
        while self.slots[at].node != NONE {
            at = (at + 1) & self.mask;
        }
        self.slots[at] = Slot { tag, node };
    }

    /// Removes `node`, which is there.
    pub(crate) fn remove(&mut self, hash: u64, node: u32) {
        let mut hole = Self::tag(hash) as usize & self.mask;
        while self.slots[hole].node != node {
            assert!(self.slots[hole].node != NONE, "a node that was not in the index");
            hole = (hole + 1) & self.mask;
        }
        // Entries behind the hole move into it unless that would put them before their home.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at];
            if slot.node == NONE {
                break;
            }
            let home = slot.tag as usize & self.mask;
            if (at.wrapping_sub(home) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole].node = NONE;
    }

    /// How many entries there are, by counting.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().filter(|s| s.node != NONE).count()
    }
}
