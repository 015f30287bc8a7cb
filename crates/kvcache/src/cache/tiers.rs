//! The disk tier: demotions, loads, and what their ends change.
//!
//! A slot is free, or belongs to a node and is at rest, or is read or written by a move in flight.
//! Slots at rest stand in the order in which they were last wanted. When all are taken, the first
//! goes that can: one whose node is in memory too, or has nothing below it.

use super::{ChainHash, KvCache};
use crate::eviction::Lists;
use crate::index::NONE;
use crate::moves::{Direction, Move, MoveId};
use crate::{BlockId, Namespace, TenantId};

/// How many slots are looked at for one that can go.
const TRIES: usize = 16;

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) free: Vec<u32>,
    /// Slots at rest, the least recently wanted first.
    order: Lists,
    /// The node of a slot at rest.
    node: Vec<u32>,
}

impl Disk {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            free: (0..slots as u32).rev().collect(),
            order: Lists::new(slots),
            node: vec![NONE; slots],
        }
    }

    /// A slot with the content of `node` comes to rest.
    fn rest(&mut self, slot: u32, node: u32) {
        self.node[slot as usize] = node;
        self.order.push_back(0, slot);
    }

    /// A slot at rest is taken up by a move.
    fn wake(&mut self, slot: u32) {
        self.order.remove(0, slot);
        self.node[slot as usize] = NONE;
    }

    /// A slot at rest was wanted.
    pub(super) fn touch(&mut self, slot: u32) {
        self.order.remove(0, slot);
        self.order.push_back(0, slot);
    }

    /// A slot at rest goes free.
    pub(super) fn free(&mut self, slot: u32) {
        self.wake(slot);
        self.free.push(slot);
    }

    pub(super) fn resting(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.order.iter(0).map(|slot| (slot, self.node[slot as usize]))
    }
}

impl KvCache {
    /// Whether a node has a disk copy that no move uses.
    pub(super) fn at_rest(&self, id: u32) -> bool {
        let node = self.index.node(id);
        node.slot != NONE && node.moving == NONE
    }

    /// A slot for a demotion, where need be from another copy.
    pub(super) fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.disk.free.pop() {
            return Some(slot);
        }
        for _ in 0..TRIES {
            let slot = self.disk.order.first(0)?;
            let id = self.disk.node[slot as usize];
            let node = self.index.node(id);
            let in_memory = node.state.resident;
            if !node.state.pinned && (in_memory || self.index.first_child(id).is_none()) {
                self.stats.disk_evictions += 1;
                if in_memory {
                    self.index.node_mut(id).slot = NONE;
                    self.disk.free(slot);
                } else {
                    self.drop_subtree(id);
                }
                return self.disk.free.pop();
            }
            self.disk.touch(slot);
        }
        None
    }

    /// Starts the demotion of a node that is no longer resident; its block goes free at the end.
    pub(super) fn start_leaving(&mut self, id: u32, slot: u32) {
        let block = self.start_demotion(id, slot);
        self.index.node_mut(id).state.leaving = true;
        self.leaving += 1;
        self.tenants.get_mut(self.blocks[block as usize].tenant).leaving += 1;
    }

    fn start_demotion(&mut self, id: u32, slot: u32) -> BlockId {
        let block = self.index.node(id).block;
        let at = self.moves.start(Direction::Demote, id, block, slot);
        self.index.node_mut(id).moving = at;
        self.blocks[block as usize].moving = true;
        self.started.push(self.moves.get(at).as_move());
        self.stats.demotions += 1;
        block
    }

    /// Keeps a node in memory that was on its way out. It is held from here on.
    pub(super) fn stay(&mut self, id: u32) {
        let node = self.index.node_mut(id);
        node.state.leaving = false;
        let block = node.block;
        self.not_leaving(block);
        self.settle(id);
    }

    /// Starts a copy of a registered block to disk, so that it can leave memory at once when it is
    /// released and room is needed: how a preempted sequence is swapped out. Nobody's reference
    /// changes. `None`, and nothing to wait for, when the block is not registered, has a copy or is
    /// getting one, or no slot can be had. The move is among those of [`KvCache::take_moves`].
    pub fn demote(&mut self, block: BlockId) -> Option<MoveId> {
        let id = self.blocks[block as usize].node;
        if id == NONE {
            return None;
        }
        let node = self.index.node(id);
        if node.slot != NONE || node.moving != NONE || !node.state.resident {
            return None;
        }
        let slot = self.take_slot()?;
        self.hold(id);
        self.start_demotion(id, slot);
        self.started.last().map(|m| m.id)
    }

    /// Moves decided since the last call, appended to `out`.
    pub fn take_moves(&mut self, out: &mut Vec<Move>) {
        out.append(&mut self.started);
    }

    /// Loads the blocks of `tokens` that follow `from_tokens` tokens, which are in memory, and that
    /// the disk tier has: `blocks` of them. Appends memory blocks to `table`, each with a reference
    /// and of no use until its move is done, and the moves to `moves`. Returns the cursor behind
    /// them.
    ///
    /// `None`, with nothing changed but what making room may evict, when they are not all there
    /// ([`super::Match::on_disk`]) or memory cannot be had now.
    #[expect(clippy::too_many_arguments, reason = "what a look-up takes, and what to load")]
    pub fn begin_load(
        &mut self,
        namespace: &Namespace,
        tenant: TenantId,
        tokens: &[u32],
        from_tokens: usize,
        blocks: usize,
        table: &mut Vec<BlockId>,
        moves: &mut Vec<Move>,
    ) -> Option<ChainHash> {
        let size = self.config.block_tokens;
        let (start, found) = self.chain_at(namespace, tokens.get(..from_tokens)?);
        let wanted = tokens.get(from_tokens..from_tokens + blocks * size)?;
        if found != from_tokens || blocks == 0 {
            return None;
        }
        let mut nodes = std::mem::take(&mut self.to_load);
        nodes.clear();
        let (mut hash, mut parent) = (start.hash, start.node);
        for block in wanted.chunks_exact(size) {
            match self.index.find(parent, hash, namespace, block) {
                Some(id) if self.index.node(id).block == NONE && self.at_rest(id) => {
                    nodes.push(id);
                    (hash, parent) = (self.index.node(id).hash, id);
                }
                _ => break,
            }
        }
        let complete = nodes.len() == blocks && self.load_into(start.node, &nodes, tenant, table);
        if complete {
            self.start_loads(&nodes, &table[table.len() - blocks..], moves);
        }
        let mut chain = start;
        if complete {
            let last = nodes[blocks - 1];
            chain.node = last;
            chain.hash = self.index.node(last).hash;
            chain.generation = self.index.node(last).generation;
        }
        self.to_load = nodes;
        complete.then_some(chain)
    }

    /// Memory for nodes on disk behind node `above`, all of which stay while room is made.
    fn load_into(
        &mut self,
        above: u32,
        nodes: &[u32],
        tenant: TenantId,
        table: &mut Vec<BlockId>,
    ) -> bool {
        for &id in nodes {
            self.index.node_mut(id).state.pinned = true;
        }
        // A reference keeps the chain above in memory, also where it was on its way out.
        let anchor = (above != NONE).then(|| self.anchor(above));
        let complete = self.allocate_n(tenant, nodes.len(), table);
        for &id in nodes {
            self.index.node_mut(id).state.pinned = false;
        }
        if complete {
            for (&id, &block) in nodes.iter().zip(&table[table.len() - nodes.len()..]) {
                self.index.node_mut(id).block = block;
                self.blocks[block as usize].node = id;
                self.settle(id);
            }
        }
        if let Some(block) = anchor {
            self.release(block);
        }
        complete
    }

    fn start_loads(&mut self, nodes: &[u32], blocks: &[BlockId], moves: &mut Vec<Move>) {
        for (&id, &block) in nodes.iter().zip(blocks) {
            let slot = self.index.node(id).slot;
            self.disk.wake(slot);
            let at = self.moves.start(Direction::Load, id, block, slot);
            let node = self.index.node_mut(id);
            node.moving = at;
            node.state.loading = true;
            self.blocks[block as usize].moving = true;
            moves.push(self.moves.get(at).as_move());
            self.stats.loads += 1;
        }
    }

    /// A reference to a node's block that is not a hit. Keeps what was on its way out.
    fn anchor(&mut self, id: u32) -> BlockId {
        // A node that stays needs its parent to be resident, so the uppermost goes first.
        let mut open = std::mem::take(&mut self.open);
        let mut at = id;
        while at != NONE && self.index.node(at).state.leaving {
            open.push(at);
            at = self.index.node(at).parent;
        }
        while let Some(leaving) = open.pop() {
            self.stay(leaving);
        }
        self.open = open;
        self.hold(id);
        let block = self.index.node(id).block;
        self.blocks[block as usize].references += 1;
        block
    }

    /// A move has ended, well (`ok`) or not. A failed demotion leaves no disk copy; where it was to
    /// make room, the content is lost. A failed load takes the block and everything below it out of
    /// the index; whoever loaded it still holds the references.
    ///
    /// Panics for a move that is not in flight.
    pub fn move_done(&mut self, id: MoveId, ok: bool) {
        let done = self.moves.finish(id);
        self.blocks[done.block as usize].moving = false;
        match done.direction {
            Direction::Demote => self.stats.failed_demotions += u64::from(!ok),
            Direction::Load => self.stats.failed_loads += u64::from(!ok),
        }
        if done.node == NONE {
            self.disk.free.push(done.slot);
            if self.blocks[done.block as usize].references == 0 {
                self.free_block(done.block);
            }
            return;
        }
        self.index.node_mut(done.node).moving = NONE;
        match done.direction {
            Direction::Demote => self.demotion_done(done.node, done.slot, ok),
            Direction::Load => self.load_done(done.node, done.slot, ok),
        }
    }

    fn demotion_done(&mut self, id: u32, slot: u32, ok: bool) {
        if ok {
            self.index.node_mut(id).slot = slot;
            self.disk.rest(slot, id);
        } else {
            self.disk.free.push(slot);
        }
        let node = self.index.node_mut(id);
        if !node.state.leaving {
            self.relax(id);
            return;
        }
        node.state.leaving = false;
        let block = node.block;
        self.not_leaving(block);
        if ok {
            self.index.node_mut(id).block = NONE;
            self.free_block(block);
        } else {
            self.drop_subtree(id);
        }
    }

    fn load_done(&mut self, id: u32, slot: u32, ok: bool) {
        self.disk.rest(slot, id);
        if ok {
            self.index.node_mut(id).state.loading = false;
            self.relax(id);
        } else {
            self.drop_subtree(id);
        }
    }

    /// Gives up every disk copy that no move uses.
    pub(super) fn clear_disk(&mut self) {
        while let Some(slot) = self.disk.order.first(0) {
            let id = self.disk.node[slot as usize];
            if self.index.node(id).state.resident {
                self.index.node_mut(id).slot = NONE;
                self.disk.free(slot);
            } else {
                self.drop_subtree(id);
            }
        }
    }
}
