//! Giving out blocks, and making room for them.

use super::KvCache;
use crate::eviction::Removal;
use crate::index::NONE;
use crate::{BlockId, TenantId};

impl KvCache {
    /// One block with one reference, charged to `tenant`. Where none is free, a cached block that
    /// nothing holds is given up; at the tenant's budget, one of its own.
    ///
    /// `None` when nothing can be had, or only after demotions that are now in flight
    /// ([`KvCache::leaving_blocks`]).
    #[inline]
    pub fn allocate(&mut self, tenant: TenantId) -> Option<BlockId> {
        let slot = self.tenants.slot_of(tenant);
        self.make_room(slot, 1).then(|| self.take_free(slot))
    }

    /// `n` blocks appended to `table`, or none at all. When it is clear from the start that they
    /// cannot be had, nothing is evicted.
    pub fn allocate_n(&mut self, tenant: TenantId, n: usize, table: &mut Vec<BlockId>) -> bool {
        if n == 0 {
            return true;
        }
        let slot = self.tenants.slot_of(tenant);
        let possible = self.make_room(slot, n);
        if possible {
            for _ in 0..n {
                let block = self.take_free(slot);
                table.push(block);
            }
        }
        possible
    }

    fn take_free(&mut self, slot: u32) -> BlockId {
        let block = self.free.pop().expect("room was made");
        let entry = &mut self.blocks[block as usize];
        entry.references = 1;
        entry.tenant = slot;
        self.tenants.get_mut(slot).held += 1;
        block
    }

    /// Whether `n` blocks are free and within the tenant's budget, after evicting what is needed.
    #[inline]
    fn make_room(&mut self, slot: u32, n: usize) -> bool {
        let tenant = self.tenants.get(slot);
        if n <= self.free.len() && tenant.budget.is_none_or(|b| tenant.held + n <= b) {
            return true;
        }
        // Its last block may be among those that go.
        self.tenants.get_mut(slot).asking = true;
        let possible = self.evict_for(slot, n);
        self.tenants.get_mut(slot).asking = false;
        if !possible {
            self.tenants.forget_if_empty(slot);
        }
        possible
    }

    fn evict_for(&mut self, slot: u32, n: usize) -> bool {
        let tenant = *self.tenants.get(slot);
        let over = |held: usize| tenant.budget.map_or(0, |b| (held + n).saturating_sub(b));
        if n > self.free.len() + self.idle + self.leaving
            || over(tenant.held - tenant.idle - tenant.leaving) > 0
        {
            return false;
        }
        loop {
            let tenant = self.tenants.get(slot);
            let excess = over(tenant.held);
            if excess == 0 {
                break;
            }
            // A demotion in flight will do.
            if excess <= tenant.leaving || !self.evict_of(slot) {
                return false;
            }
        }
        while self.free.len() < n {
            if self.free.len() + self.leaving >= n {
                return false;
            }
            let Some(victim) = self.policy.victim(None) else { return false };
            self.evict(victim);
        }
        true
    }

    /// Evicts a block of a tenant, and before it what other tenants have cached below.
    fn evict_of(&mut self, slot: u32) -> bool {
        let victim = self.policy.victim(Some(slot)).or_else(|| self.buried(slot));
        let Some(victim) = victim else { return false };
        loop {
            let mut leaf = victim;
            while let Some(below) =
                self.index.children(leaf).find(|&c| self.index.node(c).state.resident)
            {
                leaf = below;
            }
            self.evict(leaf);
            if leaf == victim {
                return true;
            }
        }
    }

    /// An idle node of a tenant that has no idle leaf, because blocks of others who share its
    /// namespace are cached below. A search, for a case that tenants with salts never meet.
    fn buried(&self, slot: u32) -> Option<u32> {
        let blocks = self.blocks.iter().filter(|b| b.tenant == slot && b.node != NONE);
        blocks.map(|b| b.node).find(|&id| {
            let state = self.index.node(id).state;
            state.resident && !state.held
        })
    }

    /// Takes an idle leaf out of memory. Its block is free, or will be when the demotion that this
    /// starts is done.
    fn evict(&mut self, id: u32) {
        let node = *self.index.node(id);
        debug_assert!(node.state.resident && !node.state.held && node.resident_children == 0);
        self.stats.evictions += 1;
        self.unsettle(id, Removal::Evicted);
        if node.slot != NONE {
            self.index.node_mut(id).block = NONE;
            self.free_block(node.block);
        } else if let Some(slot) = self.take_slot() {
            self.start_leaving(id, slot);
        } else {
            self.drop_subtree(id);
        }
    }

    /// Gives up everything cached that nothing holds, in memory and on disk, without moving it.
    /// Moves in flight go on.
    pub fn clear_cached(&mut self) {
        while let Some(leaf) = self.policy.victim(None) {
            self.drop_subtree(leaf);
        }
        self.clear_disk();
    }

    /// Takes a node and all below out of the index, with their disk copies. Blocks that somebody
    /// refers to become private; what a move in flight uses is given back when that is done.
    pub(super) fn drop_subtree(&mut self, top: u32) {
        if self.index.first_child(top).is_none() {
            self.drop_childless(top);
            return;
        }
        let mut open = std::mem::take(&mut self.open);
        open.push(top);
        while let Some(&id) = open.last() {
            match self.index.first_child(id) {
                Some(child) => open.push(child),
                None => {
                    open.pop();
                    self.drop_childless(id);
                }
            }
        }
        self.open = open;
    }

    fn drop_childless(&mut self, id: u32) {
        if self.index.node(id).state.resident {
            self.unsettle(id, Removal::Dropped);
        }
        let node = *self.index.node(id);
        if node.moving != NONE {
            self.moves.get_mut(node.moving).node = NONE;
            if node.state.leaving {
                self.not_leaving(node.block);
            }
        } else if node.slot != NONE {
            self.disk.free(node.slot);
        }
        if node.block != NONE {
            let entry = &mut self.blocks[node.block as usize];
            entry.node = NONE;
            if entry.references == 0 && !entry.moving {
                self.free_block(node.block);
            }
        }
        self.index.remove(id);
    }

    /// A block is no longer counted among those that a demotion will free.
    pub(super) fn not_leaving(&mut self, block: BlockId) {
        self.leaving -= 1;
        self.tenants.get_mut(self.blocks[block as usize].tenant).leaving -= 1;
    }
}
