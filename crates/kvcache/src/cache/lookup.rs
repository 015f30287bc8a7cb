//! Finding prefixes and entering computed blocks.

use super::{ChainHash, KvCache, Match};
use crate::index::NONE;
use crate::{BlockId, Namespace, TenantId};

impl KvCache {
    /// The cursor at the start of every chain of a namespace.
    pub fn chain_root(&self, namespace: &Namespace) -> ChainHash {
        ChainHash {
            namespace: *namespace,
            hash: self.index.root_hash(namespace),
            node: NONE,
            generation: 0,
            detached: false,
        }
    }

    /// The cursor behind `tokens`, full blocks of them, without references. It stands at the last
    /// block that is in memory, and the tokens up to it are returned too.
    pub fn chain_at(&self, namespace: &Namespace, tokens: &[u32]) -> (ChainHash, usize) {
        let mut chain = self.chain_root(namespace);
        let mut found = 0;
        for block in tokens.chunks_exact(self.config.block_tokens) {
            match self.index.find(chain.node, chain.hash, namespace, block) {
                Some(id) if self.usable(id) => self.stand_on(&mut chain, id),
                _ => break,
            }
            found += block.len();
        }
        (chain, found)
    }

    /// The keys under which an eviction policy sees the full blocks of `tokens`, appended to `keys`.
    pub fn block_keys(&self, namespace: &Namespace, tokens: &[u32], keys: &mut Vec<u64>) {
        let mut hash = self.index.root_hash(namespace);
        for block in tokens.chunks_exact(self.config.block_tokens) {
            hash = self.index.extend_hash(hash, block);
            keys.push(hash);
        }
    }

    /// How many tokens a look-up would find in memory, at most `max_tokens`. Changes nothing.
    pub fn peek(&self, namespace: &Namespace, tokens: &[u32], max_tokens: usize) -> usize {
        if !self.config.prefix_cache {
            return 0;
        }
        self.chain_at(namespace, &tokens[..tokens.len().min(max_tokens)]).1
    }

    /// The longest chain of cached blocks that `tokens` start with, of at most `max_tokens` tokens.
    /// Every block found in memory gets one more reference and is appended to `table`.
    pub fn lookup(
        &mut self,
        namespace: &Namespace,
        _tenant: TenantId,
        tokens: &[u32],
        max_tokens: usize,
        table: &mut Vec<BlockId>,
    ) -> Match {
        let size = self.config.block_tokens;
        let tokens = &tokens[..tokens.len().min(max_tokens) / size * size];
        let chain = self.chain_root(namespace);
        let mut found = Match { tokens: 0, on_disk: 0, loading: 0, chain };
        if !self.config.prefix_cache {
            return found;
        }
        self.stats.lookups += 1;
        self.stats.lookup_tokens += tokens.len() as u64;
        let mut rest = tokens.chunks_exact(size);
        for block in rest.by_ref() {
            let chain = &found.chain;
            let Some(id) = self.index.find(chain.node, chain.hash, namespace, block) else {
                break;
            };
            if !self.usable(id) {
                self.beyond_memory(id, rest.clone(), &mut found);
                break;
            }
            table.push(self.refer_to(id));
            self.stand_on(&mut found.chain, id);
            found.tokens += size;
        }
        self.stats.hit_tokens += found.tokens as u64;
        self.stats.disk_hit_tokens += (found.on_disk * size) as u64;
        found
    }

    /// The block behind a chain that a look-up found whose tokens begin most like `tokens`, and how
    /// many they have in common: a part of a block, to be copied. It gets one more reference, which
    /// the caller gives back when the copy is under way. Only the first few blocks are looked at
    /// where many follow the chain, and none at its start, where all prompts follow.
    pub fn lookup_tail(&mut self, chain: &ChainHash, tokens: &[u32]) -> Option<(BlockId, usize)> {
        /// Blocks looked at.
        const LOOK: usize = 16;
        if chain.node == NONE || tokens.is_empty() || !self.parent_stays(chain) {
            return None;
        }
        let common = |id: u32| {
            let there = self.index.tokens(id).iter();
            there.zip(tokens).take_while(|(a, b)| a == b).count()
        };
        let below = self.index.children(chain.node).take(LOOK);
        let usable = below.filter(|&id| self.usable(id) && !self.index.node(id).state.leaving);
        // Of equals the first.
        let (id, common) = usable
            .map(|id| (id, common(id)))
            .reduce(|best, other| if other.1 > best.1 { other } else { best })?;
        if common == 0 {
            return None;
        }
        let block = self.refer_to(id);
        self.stats.copied_tokens += common as u64;
        Some((block, common))
    }

    /// Whether a node's content can be read in memory now.
    #[inline]
    fn usable(&self, id: u32) -> bool {
        let node = self.index.node(id);
        node.block != NONE && !node.state.loading
    }

    /// One more reference, for a hit, to the block of a node with usable content.
    fn refer_to(&mut self, id: u32) -> BlockId {
        let node = *self.index.node(id);
        if node.state.leaving {
            self.stay(id);
        } else if !node.state.held {
            self.hold(id);
        }
        self.blocks[node.block as usize].references += 1;
        self.policy.hit(id);
        node.block
    }

    #[inline]
    fn stand_on(&self, chain: &mut ChainHash, id: u32) {
        let node = self.index.node(id);
        chain.hash = node.hash;
        chain.node = id;
        chain.generation = node.generation;
    }

    /// Counts the blocks that are on disk, or being loaded, from node `id` on.
    fn beyond_memory(
        &mut self,
        id: u32,
        rest: std::slice::ChunksExact<'_, u32>,
        found: &mut Match,
    ) {
        let namespace = found.chain.namespace;
        let loading = self.index.node(id).state.loading;
        let (mut last, mut count) = (NONE, 0);
        let mut next = Some(id);
        let mut rest = rest;
        while let Some(id) = next {
            let node = self.index.node(id);
            let counts =
                if loading { node.state.loading } else { node.block == NONE && self.at_rest(id) };
            if !counts {
                break;
            }
            (last, count) = (id, count + 1);
            let hash = node.hash;
            next = rest.next().and_then(|tokens| self.index.find(id, hash, &namespace, tokens));
        }
        if loading {
            found.loading = count;
            return;
        }
        found.on_disk = count;
        // From the last to the first, so that a chain's end is given up before its start.
        for _ in 0..count {
            self.disk.touch(self.index.node(last).slot);
            last = self.index.node(last).parent;
        }
    }

    /// Enters a full computed block at `chain` and moves that on by it. `tokens` are the block's
    /// own, `block_tokens` of them, and the caller has a reference to `block`.
    ///
    /// Returns the block to use from now on: `block`, or an equal one that the index had, to which
    /// the caller's reference has moved. The caller puts it into its table.
    ///
    /// Panics when the number of tokens is wrong, nobody refers to the block, or the index has it
    /// with other content.
    pub fn register(&mut self, chain: &mut ChainHash, tokens: &[u32], block: BlockId) -> BlockId {
        assert_eq!(tokens.len(), self.config.block_tokens, "a registered block is full");
        assert!(self.blocks[block as usize].references > 0, "a registered block is referenced");
        if chain.detached || !self.config.prefix_cache || !self.parent_stays(chain) {
            chain.detached = true;
            return block;
        }
        let (parent, namespace) = (chain.node, &chain.namespace);
        let id = match self.index.find(parent, chain.hash, namespace, tokens) {
            Some(id) if self.index.node(id).block == block => {
                self.stand_on(chain, id);
                return block;
            }
            Some(id) if self.index.node(id).state.loading => {
                // The content is here before the copy that is being loaded; it stays private.
                self.stand_on(chain, id);
                return block;
            }
            Some(id) if self.index.node(id).block != NONE => {
                let equal = self.refer_to(id);
                self.stand_on(chain, id);
                self.stats.duplicates += 1;
                self.release(block);
                return equal;
            }
            // It is on disk alone: now it is in memory again as well.
            Some(id) => id,
            None => {
                let hash = self.index.extend_hash(chain.hash, tokens);
                self.index.insert(hash, parent, namespace, tokens)
            }
        };
        let entry = &mut self.blocks[block as usize];
        assert!(entry.node == NONE, "block {block} is registered with other content");
        entry.node = id;
        self.index.node_mut(id).block = block;
        self.settle(id);
        self.stand_on(chain, id);
        self.stats.registered += 1;
        block
    }

    /// Whether the node a cursor stands on is the one it was, and means to stay in memory.
    fn parent_stays(&self, chain: &ChainHash) -> bool {
        chain.node == NONE || {
            let node = self.index.node(chain.node);
            node.generation == chain.generation && node.state.resident
        }
    }
}
