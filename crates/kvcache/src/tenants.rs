//! What each tenant holds and may hold.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::TenantId;
use crate::index::NONE;

/// Spreads a 32-bit id by one multiplication.
#[derive(Default, Clone, Copy)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }
    fn write_u64(&mut self, id: u64) {
        let wide = u128::from(id ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

/// A map keyed by ids or by hashes.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// One tenant. It exists while it holds a block or has a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tenant {
    pub id: TenantId,
    /// Blocks charged to it: referenced, cached or in flight.
    pub held: usize,
    /// Those of them that nothing holds and that are cached.
    pub idle: usize,
    /// Those of them that go free when a demotion in flight is done.
    pub leaving: usize,
    pub budget: Option<usize>,
    /// Room is being made for it: it stays, even with nothing.
    pub asking: bool,
    live: bool,
}

/// Tenants by a small number, their slot.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    slots: Vec<Tenant>,
    free: Vec<u32>,
    by_id: IdMap<u32, u32>,
    /// The slot that was asked for last.
    last: u32,
}

impl Tenants {
    /// The slot of `id`, which may be new.
    #[inline]
    pub(crate) fn slot_of(&mut self, id: TenantId) -> u32 {
        match self.slots.get(self.last as usize) {
            Some(tenant) if tenant.id == id && tenant.live => {}
            _ => self.last = self.find(id).unwrap_or_else(|| self.add(id)),
        }
        self.last
    }

    fn add(&mut self, id: TenantId) -> u32 {
        let tenant =
            Tenant { id, held: 0, idle: 0, leaving: 0, budget: None, asking: false, live: true };
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(tenant);
        } else {
            self.slots[slot as usize] = tenant;
        }
        self.by_id.insert(id.0, slot);
        slot
    }

    pub(crate) fn find(&self, id: TenantId) -> Option<u32> {
        self.by_id.get(&id.0).copied()
    }

    /// Forgets a tenant that holds nothing and has no budget.
    pub(crate) fn forget_if_empty(&mut self, slot: u32) {
        let tenant = &mut self.slots[slot as usize];
        if tenant.live && tenant.held == 0 && tenant.budget.is_none() && !tenant.asking {
            tenant.live = false;
            self.by_id.remove(&tenant.id.0);
            self.free.push(slot);
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Tenant {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Tenant {
        &mut self.slots[slot as usize]
    }

    /// Live tenants with their slots.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, &Tenant)> {
        (0..).zip(&self.slots).filter(|(_, t)| t.live)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        debug_assert!(self.slots.len() < NONE as usize);
        for (slot, tenant) in self.live() {
            if self.find(tenant.id) != Some(slot) {
                return Err(format!("tenant {} is not found", tenant.id.0));
            }
        }
        if self.by_id.len() != self.live().count() {
            return Err("tenants that are gone are still found".into());
        }
        Ok(())
    }
}
