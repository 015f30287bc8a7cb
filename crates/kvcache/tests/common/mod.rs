//! A world around a cache that knows the truth: what each block and slot physically holds, who
//! refers to what, and which prefixes were entered. Every operation is followed by a recount.
//!
//! Contents are the (namespace, full prefix) that was computed into a block, so content that is
//! wrong in any way is seen when it is used. A move's target holds garbage from its start and its
//! source is read at its end only, so that touching either too early is seen as well.

use std::collections::{BTreeMap, BTreeSet};

use dunlin_kvcache::{
    BlockId, CacheConfig, ChainHash, KvCache, Move, Namespace, NamespaceKey, Place, TenantId,
};

/// The truth about a block's or slot's content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    Garbage,
    /// The KV of the last block of this prefix.
    Kv(u64, Vec<u32>),
}

/// One stream of tokens.
#[derive(Debug)]
pub struct Sequence {
    pub space: u64,
    pub tenant: TenantId,
    pub tokens: Vec<u32>,
    pub table: Vec<BlockId>,
    pub chain: ChainHash,
    /// Blocks of the table that are computed, or found.
    pub computed: usize,
    /// Loads that it waits for, in order of position.
    pub waits: Vec<Move>,
    pub on_disk: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Look up prompt number `prompt` in namespace `space`.
    Open {
        space: u64,
        tenant: u32,
        prompt: usize,
    },
    /// Compute the next block.
    Step {
        sequence: usize,
    },
    /// Load what was found on disk.
    Load {
        sequence: usize,
    },
    /// Another sequence with the same blocks.
    Fork {
        sequence: usize,
    },
    /// Copy a sequence's blocks to disk and give it up.
    Swap {
        sequence: usize,
    },
    Close {
        sequence: usize,
    },
    /// Allocate several blocks at once and give them back.
    Borrow {
        tenant: u32,
        blocks: usize,
    },
    Done {
        at: usize,
        ok: bool,
    },
    Budget {
        tenant: u32,
        blocks: Option<usize>,
    },
    Clear,
}

pub struct World {
    pub cache: KvCache,
    size: usize,
    prompts: Vec<Vec<u32>>,
    memory: Vec<Content>,
    disk: Vec<Content>,
    /// Who allocated each block last.
    owner: Vec<TenantId>,
    pub sequences: Vec<Sequence>,
    pub in_flight: Vec<Move>,
    budgets: BTreeMap<u32, usize>,
    /// What was entered and is in memory, as far as the operations tell.
    entered: BTreeMap<(u64, Vec<u32>), BlockId>,
    /// Prefixes that the current operation evicted and entered again.
    entered_again: u64,
    pub hits: u64,
}

pub fn namespace(space: u64) -> Namespace {
    Namespace::new(&NamespaceKey { model: 9, tenant_salt: space, ..NamespaceKey::default() })
}

impl World {
    pub fn new(cache: KvCache, prompts: Vec<Vec<u32>>) -> Self {
        let CacheConfig { block_tokens: size, block_count, disk_slots, .. } = *cache.config();
        Self {
            cache,
            size,
            prompts,
            memory: vec![Content::Garbage; block_count],
            disk: vec![Content::Garbage; disk_slots],
            owner: vec![TenantId(0); block_count],
            sequences: Vec::new(),
            in_flight: Vec::new(),
            budgets: BTreeMap::new(),
            entered: BTreeMap::new(),
            entered_again: 0,
            hits: 0,
        }
    }

    fn has_tier(&self) -> bool {
        !self.disk.is_empty()
    }

    /// Applies an operation, where it applies, and checks everything. Says whether it did.
    pub fn apply(&mut self, op: Op) -> bool {
        let before = self.cache.stats();
        let (was, references) = (self.entered.clone(), self.references());
        self.entered_again = 0;
        let applies = match op {
            Op::Open { space, tenant, prompt } => self.open(space, tenant, prompt),
            Op::Step { sequence } => sequence < self.sequences.len() && self.step(sequence),
            Op::Load { sequence } => sequence < self.sequences.len() && self.load(sequence),
            Op::Fork { sequence } => sequence < self.sequences.len() && self.fork(sequence),
            Op::Swap { sequence } => {
                sequence < self.sequences.len() && self.has_tier() && {
                    for block in self.sequences[sequence].table.clone() {
                        self.cache.demote(block);
                    }
                    self.close(sequence)
                }
            }
            Op::Close { sequence } => sequence < self.sequences.len() && self.close(sequence),
            Op::Borrow { tenant, blocks } => self.borrow(tenant, blocks),
            Op::Done { at, ok } => at < self.in_flight.len() && self.done(at, ok),
            Op::Budget { tenant, blocks } => {
                self.cache.set_budget(TenantId(tenant), blocks);
                match blocks {
                    Some(n) => self.budgets.insert(tenant, n),
                    None => self.budgets.remove(&tenant),
                };
                true
            }
            Op::Clear => {
                self.cache.clear_cached();
                self.forget_unreferenced();
                true
            }
        };
        self.take_moves();
        let evicted = self.cache.stats().evictions - before.evictions;
        self.recount(&was, &references, evicted);
        applies
    }

    fn open(&mut self, space: u64, tenant: u32, prompt: usize) -> bool {
        let tokens = self.prompts[prompt].clone();
        let ns = namespace(space);
        let mut table = Vec::new();
        let peeked = self.cache.peek(&ns, &tokens, tokens.len());
        let tenant = TenantId(tenant);
        let found = self.cache.lookup(&ns, tenant, &tokens, tokens.len(), &mut table);
        assert_eq!(peeked, found.tokens, "peek and lookup agree");
        assert_eq!(found.tokens, table.len() * self.size);
        assert!(found.on_disk == 0 || found.loading == 0);
        if !self.has_tier() {
            // Everything entered and not evicted is found, as far as it reaches.
            let longest = (0..=tokens.len() / self.size)
                .take_while(|&n| n == 0 || self.entered.contains_key(&self.key(space, &tokens, n)));
            assert_eq!(longest.last().unwrap() * self.size, found.tokens, "the longest match");
        }
        self.hits += found.tokens as u64;
        let computed = table.len();
        let chain = found.chain;
        let on_disk = found.on_disk;
        let waits = Vec::new();
        self.sequences.push(Sequence {
            space,
            tenant,
            tokens,
            table,
            chain,
            computed,
            waits,
            on_disk,
        });
        self.check_contents(self.sequences.len() - 1);
        true
    }

    fn key(&self, space: u64, tokens: &[u32], blocks: usize) -> (u64, Vec<u32>) {
        (space, tokens[..blocks * self.size].to_vec())
    }

    fn step(&mut self, at: usize) -> bool {
        let sequence = &self.sequences[at];
        let (start, end) = (sequence.computed * self.size, (sequence.computed + 1) * self.size);
        if end > sequence.tokens.len() || !sequence.waits.is_empty() {
            return false;
        }
        let tenant = sequence.tenant;
        let Some(block) = self.allocate(tenant) else { return false };
        let sequence = &mut self.sequences[at];
        assert!(!self.cache.is_shared(block), "a new block may be written");
        let content = Content::Kv(sequence.space, sequence.tokens[..end].to_vec());
        self.memory[block as usize] = content;
        let tokens = &sequence.tokens[start..end];
        let registered = self.cache.stats().registered;
        let kept = self.cache.register(&mut sequence.chain, tokens, block);
        let new = self.cache.stats().registered > registered;
        sequence.table.push(kept);
        sequence.computed += 1;
        sequence.on_disk = 0;
        let key = (sequence.space, sequence.tokens[..end].to_vec());
        // Private copies are not in the index; the index's own state is checked by itself.
        if !self.cache.config().prefix_cache {
            assert_eq!(kept, block);
        } else if self.cache.is_shared(kept) {
            let had = self.entered.insert(key, kept).is_some();
            self.entered_again += u64::from(had && new);
        }
        self.check_contents(at);
        true
    }

    /// Allocates, and checks a refusal against a recount.
    fn allocate(&mut self, tenant: TenantId) -> Option<BlockId> {
        let (available, budget) = (self.cache.available_blocks(), self.budgets.get(&tenant.0));
        let free = self.cache.free_blocks();
        let held = self.cache.tenant_blocks(tenant);
        let idle = self.idle_of(tenant);
        let block = self.cache.allocate(tenant);
        if let Some(block) = block {
            self.owner[block as usize] = tenant;
        }
        if let (Some(_), Some(&budget)) = (block, budget) {
            assert!(self.cache.tenant_blocks(tenant) <= budget, "within the budget");
        }
        if budget.is_none_or(|&b| held < b) {
            assert!(block.is_some() || free == 0, "a free block is given");
            assert!(block.is_none() || available > 0);
            if !self.has_tier() {
                assert_eq!(block.is_some(), available > 0, "what is available can be had");
            }
        } else if let Some(&budget) = budget
            && !self.has_tier()
            && self.cache.config().prefix_cache
        {
            let fits = held - idle < budget;
            assert_eq!(block.is_some(), fits, "{tenant:?} gives up {idle} of {held} for {budget}");
        }
        block
    }

    /// Blocks charged to a tenant that nothing holds.
    fn idle_of(&self, tenant: TenantId) -> usize {
        let references = self.references();
        let own = |block: u32| self.owner[block as usize] == tenant;
        let idle = |key| !is_held(&self.entered, key, &references);
        self.entered.iter().filter(|&(key, &block)| own(block) && idle(key)).count()
    }

    fn load(&mut self, at: usize) -> bool {
        let sequence = &mut self.sequences[at];
        let from = sequence.computed * self.size;
        if sequence.on_disk == 0 || !sequence.waits.is_empty() {
            return false;
        }
        let mut moves = Vec::new();
        let chain = self.cache.begin_load(
            &namespace(sequence.space),
            sequence.tenant,
            &sequence.tokens,
            from,
            sequence.on_disk,
            &mut sequence.table,
            &mut moves,
        );
        let Some(chain) = chain else {
            assert_eq!((sequence.table.len(), moves.len()), (sequence.computed, 0));
            return true;
        };
        assert_eq!(moves.len(), sequence.on_disk);
        assert_eq!(sequence.table.len(), sequence.computed + sequence.on_disk);
        sequence.chain = chain;
        sequence.waits = moves.clone();
        self.start(&moves);
        true
    }

    fn fork(&mut self, at: usize) -> bool {
        let from = &self.sequences[at];
        if !from.waits.is_empty() {
            return false;
        }
        for &block in &from.table {
            self.cache.share(block);
        }
        let copy = Sequence {
            space: from.space,
            tenant: from.tenant,
            tokens: from.tokens.clone(),
            table: from.table.clone(),
            chain: from.chain,
            computed: from.computed,
            waits: Vec::new(),
            on_disk: 0,
        };
        self.sequences.push(copy);
        true
    }

    fn close(&mut self, at: usize) -> bool {
        let mut sequence = self.sequences.swap_remove(at);
        self.cache.release_table(&mut sequence.table, 0);
        true
    }

    fn borrow(&mut self, tenant: u32, blocks: usize) -> bool {
        let (mut table, tenant) = (Vec::new(), TenantId(tenant));
        let evictions = self.cache.stats().evictions;
        let free = self.cache.free_blocks();
        let budget = self.budgets.get(&tenant.0).copied();
        let held = self.cache.tenant_blocks(tenant);
        let available = self.cache.available_blocks();
        let complete = self.cache.allocate_n(tenant, blocks, &mut table);
        assert_eq!(table.len(), if complete { blocks } else { 0 });
        if !complete && !self.has_tier() {
            assert_eq!(self.cache.stats().evictions, evictions, "nothing is evicted in vain");
        }
        if blocks <= free && budget.is_none_or(|b| held + blocks <= b) {
            assert!(complete && self.cache.stats().evictions == evictions);
        } else if !self.has_tier() && budget.is_none() {
            assert_eq!(complete, blocks <= available);
        }
        for &block in &table {
            self.owner[block as usize] = tenant;
            self.memory[block as usize] = Content::Garbage;
        }
        self.cache.release_table(&mut table, 0);
        true
    }

    fn take_moves(&mut self) {
        let mut moves = Vec::new();
        self.cache.take_moves(&mut moves);
        self.start(&moves);
    }

    fn start(&mut self, moves: &[Move]) {
        for m in moves {
            *self.place(m.to) = Content::Garbage;
            let places = |p| self.in_flight.iter().all(|o| o.from != p && o.to != p);
            assert!(places(m.from) && places(m.to), "a place is in one move at a time");
        }
        self.in_flight.extend(moves);
    }

    fn place(&mut self, place: Place) -> &mut Content {
        match place {
            Place::Memory(block) => &mut self.memory[block as usize],
            Place::Disk(slot) => &mut self.disk[slot as usize],
        }
    }

    fn done(&mut self, at: usize, ok: bool) -> bool {
        let m = self.in_flight.remove(at);
        if ok {
            let content = self.place(m.from).clone();
            // Unless it was dropped meanwhile, which `check_contents` sees if it was not.
            *self.place(m.to) = content;
        }
        self.cache.move_done(m.id, ok);
        let size = self.size;
        for sequence in &mut self.sequences {
            let Some(position) = sequence.waits.iter().position(|w| w.id == m.id) else {
                continue;
            };
            if !ok {
                // The chain ends there; what was loaded behind is of no use.
                self.cache.release_table(&mut sequence.table, sequence.computed + position);
                sequence.waits.truncate(position);
                let keep = &sequence.tokens[..sequence.computed * size];
                sequence.chain = self.cache.chain_at(&namespace(sequence.space), keep).0;
            } else if position == 0 {
                sequence.waits.remove(0);
                sequence.computed += 1;
            } else {
                // Count it when those before are there.
                sequence.waits[position].to = Place::Disk(u32::MAX);
            }
            while sequence.waits.first().is_some_and(|w| w.to == Place::Disk(u32::MAX)) {
                sequence.waits.remove(0);
                sequence.computed += 1;
            }
            if sequence.waits.is_empty() {
                sequence.on_disk = 0;
                if !ok {
                    let keep = sequence.computed;
                    self.cache.release_table(&mut sequence.table, keep);
                }
                let tokens = &sequence.tokens[..sequence.computed * size];
                let (chain, found) = self.cache.chain_at(&namespace(sequence.space), tokens);
                if found == tokens.len() {
                    sequence.chain = chain;
                }
            }
        }
        for at in 0..self.sequences.len() {
            self.check_contents(at);
        }
        true
    }

    /// What a sequence reads is what was computed for exactly its tokens.
    fn check_contents(&self, at: usize) {
        let sequence = &self.sequences[at];
        for (i, &block) in sequence.table[..sequence.computed].iter().enumerate() {
            let (space, tokens) = self.key(sequence.space, &sequence.tokens, i + 1);
            let content = &self.memory[block as usize];
            assert_eq!(*content, Content::Kv(space, tokens), "block {block} of {sequence:?}");
        }
    }

    fn references(&self) -> Vec<u32> {
        let mut references = vec![0; self.memory.len()];
        for &block in self.sequences.iter().flat_map(|s| &s.table) {
            references[block as usize] += 1;
        }
        references
    }

    fn forget_unreferenced(&mut self) {
        let references = self.references();
        let kept: BTreeSet<(u64, Vec<u32>)> = self
            .entered
            .iter()
            .filter(|(key, _)| is_held(&self.entered, key, &references))
            .map(|(key, _)| key.clone())
            .collect();
        self.entered.retain(|key, _| kept.contains(key));
    }

    fn recount(
        &mut self,
        was: &BTreeMap<(u64, Vec<u32>), BlockId>,
        references_before: &[u32],
        evicted: u64,
    ) {
        self.cache.check().unwrap_or_else(|e| panic!("{e}\n{:?}", self.sequences));
        let references = self.references();
        for (block, &n) in references.iter().enumerate() {
            assert_eq!(self.cache.reference_count(block as u32), n, "references of {block}");
        }
        if self.has_tier() || !self.cache.config().prefix_cache {
            return;
        }
        // Without a tier, what vanished is what was evicted, and it was nobody's.
        let present: BTreeSet<_> = self
            .entered
            .keys()
            .filter(|(space, prefix)| {
                self.cache.peek(&namespace(*space), prefix, prefix.len()) == prefix.len()
            })
            .cloned()
            .collect();
        let gone: Vec<_> = self.entered.keys().filter(|k| !present.contains(*k)).cloned().collect();
        let gone_before = gone.iter().filter(|k| was.contains_key(*k)).count();
        assert_eq!(gone.len(), gone_before, "what was just entered is there");
        assert_eq!(gone.len() as u64 + self.entered_again, evicted, "evictions");
        for key in &gone {
            let held = is_held(was, key, references_before);
            assert!(!held, "{key:?} was evicted from under a reference");
        }
        self.entered.retain(|key, _| present.contains(key));
        // Every block is free, somebody's, or cached and nobody's.
        let idle = self.entered.keys().filter(|k| !is_held(&self.entered, k, &references)).count();
        assert_eq!(self.cache.available_blocks(), self.cache.free_blocks() + idle);
        let cached: BTreeSet<u32> = self.entered.values().copied().collect();
        let used = (0..self.memory.len() as u32)
            .filter(|b| references[*b as usize] > 0 || cached.contains(b))
            .count();
        assert_eq!(self.cache.free_blocks() + used, self.memory.len(), "nothing is lost");
        for tenant in (0..4).map(TenantId) {
            let charged = (0..self.memory.len() as u32)
                .filter(|&b| self.owner[b as usize] == tenant)
                .filter(|&b| references[b as usize] > 0 || cached.contains(&b))
                .count();
            assert_eq!(self.cache.tenant_blocks(tenant), charged, "{tenant:?}");
        }
    }

    /// Ends everything and sees that nothing is left.
    pub fn finish(mut self) -> KvCache {
        while !self.sequences.is_empty() {
            self.apply(Op::Close { sequence: 0 });
        }
        while !self.in_flight.is_empty() {
            self.apply(Op::Done { at: 0, ok: true });
        }
        self.apply(Op::Clear);
        assert_eq!(self.cache.free_blocks(), self.memory.len(), "every block is free at the end");
        self.cache
    }
}

/// Something refers to this prefix or to one that starts with it.
fn is_held(
    entered: &BTreeMap<(u64, Vec<u32>), BlockId>,
    key: &(u64, Vec<u32>),
    references: &[u32],
) -> bool {
    entered.iter().any(|((space, prefix), &block)| {
        *space == key.0 && prefix.starts_with(&key.1) && references[block as usize] > 0
    })
}
