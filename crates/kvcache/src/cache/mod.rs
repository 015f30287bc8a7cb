//! The cache: blocks, references, and the index over them.

mod allocate;
mod check;
mod lookup;
mod room;
mod stats;
mod tiers;

use crate::eviction::{Entry, EvictionPolicy, Removal, policy};
use crate::index::{Index, NONE};
use crate::moves::{Move, Moves};
use crate::tenants::Tenants;
use crate::{BlockId, CacheConfig, Namespace, TenantId};
pub use stats::CacheStats;
use tiers::Disk;

/// A memory block.
#[derive(Debug, Clone, Copy)]
struct Block {
    references: u32,
    /// The index's node with this content, or [`NONE`].
    node: u32,
    /// The slot of the tenant it is charged to; [`NONE`] while it is free.
    tenant: u32,
    /// A move in flight reads or writes it.
    moving: bool,
}

/// A cursor in the index: a chain of full blocks in a namespace. Its identity is the node it stands
/// on, never a hash alone.
///
/// A cursor whose chain was dropped meanwhile is detached: blocks registered at it stay private to
/// their sequence, which loses sharing and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainHash {
    namespace: Namespace,
    hash: u64,
    /// [`NONE`] at the root.
    node: u32,
    generation: u32,
    detached: bool,
}

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Tokens in memory; the table grew by `tokens / block_tokens` blocks, each with a reference.
    pub tokens: usize,
    /// Further blocks, directly behind those, that the disk tier has.
    pub on_disk: usize,
    /// Further blocks, directly behind those in memory, that are being loaded for somebody else.
    /// Where this is not 0, `on_disk` is; the same look-up finds them when the loads are done.
    pub loading: usize,
    /// The cursor behind the tokens in memory, for [`KvCache::register`].
    pub chain: ChainHash,
}

/// See the [crate].
pub struct KvCache {
    config: CacheConfig,
    blocks: Vec<Block>,
    /// Blocks that hold nothing, last in first out.
    free: Vec<BlockId>,
    index: Index,
    policy: Box<dyn EvictionPolicy>,
    tenants: Tenants,
    disk: Disk,
    moves: Moves,
    /// Moves started and not yet taken by [`KvCache::take_moves`].
    started: Vec<Move>,
    /// Cached blocks that nothing holds.
    idle: usize,
    /// Blocks that go free when a demotion in flight is done.
    leaving: usize,
    /// Nodes in hand while a part of the tree is dropped; kept for its memory.
    open: Vec<u32>,
    /// Nodes in hand while they are loaded; kept for its memory.
    to_load: Vec<u32>,
    stats: CacheStats,
}

impl std::fmt::Debug for KvCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvCache")
            .field("config", &self.config)
            .field("free", &self.free.len())
            .field("idle", &self.idle)
            .field("leaving", &self.leaving)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl KvCache {
    /// An empty cache. Panics when a block has no tokens, or there are 2^31 blocks and slots or
    /// more.
    pub fn new(config: CacheConfig) -> Self {
        let nodes = config.block_count + config.disk_slots;
        Self::with_policy(config, policy(config.eviction, nodes, config.block_count))
    }

    /// An empty cache with a policy of one's own in place of `config.eviction`. It must be able to
    /// take nodes `0..block_count + disk_slots`.
    pub fn with_policy(config: CacheConfig, policy: Box<dyn EvictionPolicy>) -> Self {
        Self::build(config, policy, u64::MAX)
    }

    /// A cache whose index sees only the bits of hashes that are set in `mask`: for tests that
    /// force collisions.
    #[doc(hidden)]
    pub fn with_hash_mask(config: CacheConfig, mask: u64) -> Self {
        let nodes = config.block_count + config.disk_slots;
        Self::build(config, policy(config.eviction, nodes, config.block_count), mask)
    }

    fn build(config: CacheConfig, policy: Box<dyn EvictionPolicy>, hash_mask: u64) -> Self {
        let nodes = config.block_count + config.disk_slots;
        assert!(config.block_tokens > 0, "a block has at least one token");
        assert!(nodes < 1 << 31, "fewer than 2^31 blocks and slots");
        let block = Block { references: 0, node: NONE, tenant: NONE, moving: false };
        Self {
            config,
            blocks: vec![block; config.block_count],
            free: (0..config.block_count as u32).rev().collect(),
            index: Index::new(nodes, config.block_tokens, config.hash_seed, hash_mask),
            policy,
            tenants: Tenants::default(),
            disk: Disk::new(config.disk_slots),
            moves: Moves::default(),
            started: Vec::new(),
            idle: 0,
            leaving: 0,
            open: Vec::new(),
            to_load: Vec::new(),
            stats: CacheStats::default(),
        }
    }

    /// The settings.
    pub const fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Blocks that hold nothing.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Free blocks and cached ones that nothing holds. Without a disk tier, and within the tenant's
    /// budget, exactly this many can be allocated. With one, some may first have to be demoted.
    pub fn available_blocks(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Blocks that will be free when the demotions in flight are done.
    pub const fn leaving_blocks(&self) -> usize {
        self.leaving
    }

    /// Limits the blocks that a tenant may hold, referenced and cached together. A limit below what
    /// it holds takes effect as blocks are released.
    ///
    /// A block is charged to the tenant that allocated it, until it is free again, even while
    /// others of the same namespace share it.
    pub fn set_budget(&mut self, tenant: TenantId, blocks: Option<usize>) {
        let slot = self.tenants.slot_of(tenant);
        self.tenants.get_mut(slot).budget = blocks;
        if blocks.is_some() {
            self.policy.track_groups();
        }
        self.tenants.forget_if_empty(slot);
    }

    /// Blocks charged to a tenant.
    pub fn tenant_blocks(&self, tenant: TenantId) -> usize {
        self.tenants.find(tenant).map_or(0, |slot| self.tenants.get(slot).held)
    }

    /// How often a block is referenced.
    pub fn reference_count(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].references
    }

    /// Whether a block must not be written: it has more than one reference, or the index has it.
    pub fn is_shared(&self, block: BlockId) -> bool {
        let block = &self.blocks[block as usize];
        block.references > 1 || block.node != NONE
    }

    /// What has happened so far.
    pub const fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Tells the policy the key ([`Self::block_keys`]) of the block that is allocated next, for
    /// replays that know it: see [`EvictionPolicy::announce`].
    pub fn announce(&mut self, key: u64) {
        self.policy.announce(key);
    }

    /// One more reference to a block that has one.
    pub fn share(&mut self, block: BlockId) {
        let references = &mut self.blocks[block as usize].references;
        assert!(*references > 0, "block {block} is shared and nobody refers to it");
        *references += 1;
    }

    /// One reference less. With the last, a block that the index has stays cached and any other is
    /// free.
    #[inline]
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        assert!(entry.references > 0, "block {block} is released and nobody refers to it");
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        if entry.node != NONE {
            let node = entry.node;
            self.relax(node);
        } else if !entry.moving {
            self.free_block(block);
        }
    }

    /// Releases the blocks of a table from the last to the one at `keep`, and cuts it there.
    pub fn release_table(&mut self, table: &mut Vec<BlockId>, keep: usize) {
        while table.len() > keep {
            if let Some(block) = table.pop() {
                self.release(block);
            }
        }
    }

    /// Puts a block that nothing refers to back among the free.
    fn free_block(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        debug_assert!(entry.references == 0 && !entry.moving);
        let tenant = std::mem::replace(&mut entry.tenant, NONE);
        entry.node = NONE;
        self.free.push(block);
        let held = &mut self.tenants.get_mut(tenant).held;
        *held -= 1;
        if *held == 0 {
            self.tenants.forget_if_empty(tenant);
        }
    }

    /// Marks a resident node as held, and what is above it. Does nothing where it is.
    fn hold(&mut self, mut id: u32) {
        loop {
            let node = self.index.node_mut(id);
            if node.state.held {
                return;
            }
            node.state.held = true;
            let (block, parent) = (node.block, node.parent);
            self.policy.hold(id);
            self.idle -= 1;
            self.tenants.get_mut(self.blocks[block as usize].tenant).idle -= 1;
            if parent == NONE {
                return;
            }
            self.index.node_mut(parent).held_children += 1;
            id = parent;
        }
    }

    /// Something that held this resident node is gone. Where nothing else does, it goes idle, and
    /// so may what is above it.
    fn relax(&mut self, mut id: u32) {
        loop {
            let node = self.index.node_mut(id);
            let block = &self.blocks[node.block as usize];
            if block.references > 0 || node.moving != NONE || node.held_children > 0 {
                return;
            }
            debug_assert!(node.state.resident && node.state.held);
            node.state.held = false;
            let (parent, leaf) = (node.parent, node.resident_children == 0);
            self.policy.idle(id);
            if leaf {
                self.policy.leaf(id);
            }
            self.idle += 1;
            self.tenants.get_mut(block.tenant).idle += 1;
            if parent == NONE {
                return;
            }
            self.index.node_mut(parent).held_children -= 1;
            id = parent;
        }
    }

    /// Makes a node resident, held, and known to the policy. Its parent is resident.
    fn settle(&mut self, id: u32) {
        let node = self.index.node_mut(id);
        node.state.resident = true;
        node.state.held = true;
        let (key, depth, parent, block) = (node.hash, node.depth, node.parent, node.block);
        let end_tokens = u64::from(depth) * self.config.block_tokens as u64;
        let group = self.blocks[block as usize].tenant;
        self.policy.insert(id, Entry { key, end_tokens, group });
        if parent != NONE {
            self.hold(parent);
            let above = self.index.node_mut(parent);
            above.resident_children += 1;
            above.held_children += 1;
        }
    }

    /// The reverse of [`Self::settle`], for a node that may be held or idle.
    fn unsettle(&mut self, id: u32, why: Removal) {
        let node = self.index.node_mut(id);
        let held = node.state.held;
        node.state.resident = false;
        node.state.held = false;
        node.state.loading = false;
        let (parent, block) = (node.parent, node.block);
        self.policy.remove(id, why);
        if !held {
            self.idle -= 1;
            self.tenants.get_mut(self.blocks[block as usize].tenant).idle -= 1;
        }
        if parent == NONE {
            return;
        }
        let above = self.index.node_mut(parent);
        above.resident_children -= 1;
        if held {
            above.held_children -= 1;
            self.relax(parent);
        } else if !above.state.held && above.resident_children == 0 {
            self.policy.leaf(parent);
        }
    }
}
