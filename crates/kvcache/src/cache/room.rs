//! How much a tenant may have, for whoever decides whether to take something on.

use super::KvCache;
use crate::index::NONE;
use crate::{BlockId, TenantId};

impl KvCache {
    /// The most blocks that a tenant can ever hold: all of them, or its budget.
    pub fn room(&self, tenant: TenantId) -> usize {
        self.budget(tenant).map_or(self.config.block_count, |b| b.min(self.config.block_count))
    }

    /// Blocks that a tenant can have now: free ones and cached ones that can go, within its budget.
    pub fn available_to(&self, tenant: TenantId) -> usize {
        let within =
            self.budget(tenant).map_or(usize::MAX, |b| b.saturating_sub(self.fixed(tenant)));
        within.min(self.available_blocks())
    }

    /// Whether a tenant's budget, and not the memory, is what keeps it from having another block.
    pub fn at_budget(&self, tenant: TenantId) -> bool {
        self.budget(tenant).is_some_and(|b| self.fixed(tenant) >= b)
    }

    /// Whoever a block is charged to; nobody while it is free.
    pub fn charged_to(&self, block: BlockId) -> Option<TenantId> {
        let slot = self.blocks[block as usize].tenant;
        (slot != NONE).then(|| self.tenants.get(slot).id)
    }

    /// Moves that are not done.
    pub fn moves_in_flight(&self) -> usize {
        self.moves.iter().count()
    }

    fn budget(&self, tenant: TenantId) -> Option<usize> {
        self.tenants.get(self.tenants.find(tenant)?).budget
    }

    /// Blocks of a tenant that cannot be taken from it: neither cached without a reference nor
    /// leaving.
    fn fixed(&self, tenant: TenantId) -> usize {
        self.tenants.find(tenant).map_or(0, |slot| {
            let tenant = self.tenants.get(slot);
            tenant.held - tenant.idle - tenant.leaving
        })
    }
}
