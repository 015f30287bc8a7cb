//! Every invariant of the cache, checked by recounting: for tests, and for whoever checks plans.

use super::KvCache;
use crate::index::NONE;
use crate::moves::Direction;

impl KvCache {
    /// Recounts everything. Takes time in proportion to the cache.
    ///
    /// # Errors
    ///
    /// The first thing that does not add up.
    pub fn check(&self) -> Result<(), String> {
        self.index.check()?;
        self.tenants.check()?;
        self.check_blocks()?;
        self.check_nodes()?;
        self.check_tenants()?;
        self.check_moves()?;
        self.check_slots()
    }

    /// Every block is free, referenced, cached or in flight, and the free list says so.
    fn check_blocks(&self) -> Result<(), String> {
        let mut free = vec![false; self.blocks.len()];
        for &block in &self.free {
            if std::mem::replace(&mut free[block as usize], true) {
                return Err(format!("block {block} is free twice"));
            }
        }
        for (id, block) in self.blocks.iter().enumerate() {
            let used = block.references > 0 || block.node != NONE || block.moving;
            if free[id] == used || free[id] != (block.tenant == NONE) {
                return Err(format!("block {id}: free is {}, and it is {block:?}", free[id]));
            }
            if block.node != NONE {
                let node = self.index.node(block.node);
                if !node.state.live || node.block != id as u32 {
                    return Err(format!("block {id} and its node disagree: {node:?}"));
                }
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), String> {
        let (mut idle, mut leaving) = (0, 0);
        for id in self.index.live() {
            let node = self.index.node(id);
            let wrong = |what: &str| Err(format!("node {id} {what}: {node:?}"));
            if node.block == NONE && node.slot == NONE {
                return wrong("is nowhere");
            }
            if node.block != NONE && self.blocks[node.block as usize].node != id {
                return wrong("has a block that is not its own");
            }
            let state = node.state;
            if (node.block != NONE) != (state.resident || state.leaving)
                || state.resident && state.leaving
                || state.loading && !state.resident
                || state.pinned
            {
                return wrong("contradicts itself");
            }
            if (state.leaving || state.loading) && node.moving == NONE {
                return wrong("waits for no move");
            }
            let children = || self.index.children(id).map(|c| self.index.node(c).state);
            let resident = children().filter(|c| c.resident).count();
            let held = children().filter(|c| c.held).count();
            if (resident, held) != (node.resident_children as usize, node.held_children as usize) {
                return wrong("has miscounted its children");
            }
            if !state.resident && resident > 0 {
                return wrong("is a hole in a chain");
            }
            if state.resident {
                let references = self.blocks[node.block as usize].references;
                let should = references > 0 || node.moving != NONE || held > 0;
                if should != state.held {
                    return wrong("is held, or is not, against its references");
                }
                idle += usize::from(!state.held);
            } else if state.held {
                return wrong("is held outside memory");
            }
            if state.leaving {
                leaving += 1;
                if self.blocks[node.block as usize].references > 0 {
                    return wrong("is leaving and referenced");
                }
            }
        }
        if (idle, leaving) != (self.idle, self.leaving) {
            return Err(format!(
                "{idle} idle and {leaving} leaving, counted as {} and {}",
                self.idle, self.leaving
            ));
        }
        Ok(())
    }

    fn check_tenants(&self) -> Result<(), String> {
        let mut charged = 0;
        for (slot, tenant) in self.tenants.live() {
            let own = || self.blocks.iter().filter(move |b| b.tenant == slot);
            let state = |node: u32| self.index.node(node).state;
            let cached = || own().filter(|b| b.node != NONE).map(|b| state(b.node));
            let held = own().count();
            let idle = cached().filter(|s| s.resident && !s.held).count();
            let leaving = cached().filter(|s| s.leaving).count();
            if (held, idle, leaving) != (tenant.held, tenant.idle, tenant.leaving) {
                return Err(format!("{tenant:?} has {held} held, {idle} idle, {leaving} leaving"));
            }
            charged += held;
        }
        if charged + self.free.len() != self.blocks.len() {
            return Err(format!("{charged} blocks charged, {} free", self.free.len()));
        }
        Ok(())
    }

    fn check_moves(&self) -> Result<(), String> {
        for entry in self.moves.iter() {
            if !self.blocks[entry.block as usize].moving {
                return Err(format!("{entry:?} moves a block that does not know"));
            }
            if entry.node == NONE {
                continue;
            }
            let node = self.index.node(entry.node);
            let slot_fits = match entry.direction {
                Direction::Demote => node.slot == NONE && !node.state.loading,
                Direction::Load => node.slot == entry.slot && node.state.loading,
            };
            if node.moving == NONE || node.block != entry.block || !slot_fits {
                return Err(format!("{entry:?} and its node disagree: {node:?}"));
            }
        }
        let moving = self.blocks.iter().filter(|b| b.moving).count();
        let nodes = self.index.live().filter(|&id| self.index.node(id).moving != NONE).count();
        let attached = self.moves.iter().filter(|m| m.node != NONE).count();
        if moving != self.moves.iter().count() || nodes != attached {
            return Err(format!("{moving} blocks and {nodes} nodes in flight"));
        }
        Ok(())
    }

    /// Every slot is free, at rest with one node, or in one move.
    fn check_slots(&self) -> Result<(), String> {
        let mut seen = vec![0u32; self.config.disk_slots];
        for (slot, id) in self.disk.resting() {
            seen[slot as usize] += 1;
            let node = self.index.node(id);
            if !node.state.live || node.slot != slot || node.moving != NONE && node.state.loading {
                return Err(format!("slot {slot} rests with a node that disagrees: {node:?}"));
            }
        }
        for &slot in &self.disk.free {
            seen[slot as usize] += 1;
        }
        for entry in self.moves.iter() {
            seen[entry.slot as usize] += 1;
        }
        let resting = self.disk.resting().count();
        let with_slot = self.index.live().filter(|&id| self.at_rest(id)).count();
        if resting != with_slot || seen.iter().any(|&n| n != 1) {
            return Err(format!("{resting} slots at rest for {with_slot} nodes; seen: {seen:?}"));
        }
        Ok(())
    }
}
