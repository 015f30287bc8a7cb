//! What callers see, one behaviour a test.

use dunlin_kvcache::{
    CacheConfig, EvictionKind, KvCache, Move, Namespace, NamespaceKey, Place, TenantId,
};

const TENANT: TenantId = TenantId(0);

fn config(block_count: usize, disk_slots: usize) -> CacheConfig {
    CacheConfig {
        block_tokens: 2,
        block_count,
        disk_slots,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 1,
    }
}

fn namespace(salt: u64) -> Namespace {
    Namespace::new(&NamespaceKey { tenant_salt: salt, ..NamespaceKey::default() })
}

/// Runs a prompt of full blocks through the cache, as a sequence does, and leaves it cached.
/// Returns the tokens found and the blocks used.
fn pass(cache: &mut KvCache, ns: &Namespace, tokens: &[u32]) -> (usize, Vec<u32>) {
    let mut table = Vec::new();
    let found = cache.lookup(ns, TENANT, tokens, tokens.len(), &mut table);
    let mut chain = found.chain;
    for block in tokens[found.tokens..].chunks_exact(2) {
        let id = cache.allocate(TENANT).expect("a block");
        table.push(cache.register(&mut chain, block, id));
    }
    let blocks = table.clone();
    cache.release_table(&mut table, 0);
    cache.check().unwrap();
    (found.tokens, blocks)
}

#[test]
fn a_prefix_is_found_and_shared() {
    let (mut cache, ns) = (KvCache::new(config(8, 0)), namespace(0));
    let (found, first) = pass(&mut cache, &ns, &[1, 2, 3, 4, 5, 6]);
    assert_eq!((found, cache.free_blocks(), cache.available_blocks()), (0, 5, 8));
    let mut table = Vec::new();
    let found = cache.lookup(&ns, TENANT, &[1, 2, 3, 4, 9, 9], 6, &mut table);
    assert_eq!((found.tokens, found.on_disk, &table[..]), (4, 0, &first[..2]));
    assert!(cache.is_shared(table[0]) && cache.reference_count(table[0]) == 1);
    assert_eq!(cache.peek(&ns, &[1, 2, 3, 4, 5, 6], 6), 6);
    assert_eq!(cache.peek(&ns, &[1, 2, 3, 4, 5, 6], 5), 4, "full blocks only");
    assert_eq!(cache.peek(&namespace(1), &[1, 2, 3, 4, 5, 6], 6), 0, "another tenant's");
    cache.check().unwrap();
}

#[test]
fn a_part_of_a_block_can_be_copied() {
    let (mut cache, ns) =
        (KvCache::new(CacheConfig { block_tokens: 4, ..config(8, 0) }), namespace(0));
    let mut tables = [Vec::new(), Vec::new()];
    for (table, end) in tables.iter_mut().zip([[5, 6, 9, 9], [5, 6, 7, 9]]) {
        let tokens = [&[1, 2, 3, 4][..], &end].concat();
        let found = cache.lookup(&ns, TENANT, &tokens, 8, table);
        let mut chain = found.chain;
        for block in tokens[found.tokens..].chunks_exact(4) {
            let id = cache.allocate(TENANT).expect("a block");
            table.push(cache.register(&mut chain, block, id));
        }
    }
    let mut table = Vec::new();
    let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
    let found = cache.lookup(&ns, TENANT, &prompt, 8, &mut table);
    assert_eq!(found.tokens, 4);
    // The block with the longest common beginning, wherever it stands among its siblings.
    let (block, common) = cache.lookup_tail(&found.chain, &prompt[4..]).expect("a part of a block");
    assert_eq!((block, common), (tables[1][1], 3));
    assert_eq!(cache.reference_count(block), 2, "held until it is copied");
    assert_eq!(cache.lookup_tail(&found.chain, &[9, 6]), None, "nothing in common");
    assert_eq!(cache.lookup_tail(&found.chain, &[]), None);
    assert_eq!(cache.lookup_tail(&cache.chain_root(&ns), &prompt), None, "all prompts follow");
    // Parts of blocks are no hits: the rate stays a share.
    let stats = cache.stats();
    assert_eq!((stats.hit_tokens, stats.copied_tokens), (8, 3));
    assert!(stats.hit_rate() <= 1.0);
}

#[test]
fn equal_blocks_computed_twice_become_one() {
    let (mut cache, ns) = (KvCache::new(config(4, 0)), namespace(0));
    let (a, b) = (cache.allocate(TENANT).unwrap(), cache.allocate(TENANT).unwrap());
    let (mut chain_a, mut chain_b) = (cache.chain_root(&ns), cache.chain_root(&ns));
    assert_eq!(cache.register(&mut chain_a, &[1, 2], a), a);
    assert_eq!(cache.register(&mut chain_b, &[1, 2], b), a);
    assert_eq!((cache.reference_count(a), cache.free_blocks()), (2, 3));
    assert_eq!(chain_a, chain_b);
    cache.check().unwrap();
}

#[test]
fn the_end_of_the_oldest_chain_goes_first() {
    let (mut cache, ns) = (KvCache::new(config(4, 0)), namespace(0));
    pass(&mut cache, &ns, &[1, 1, 2, 2]);
    pass(&mut cache, &ns, &[3, 3, 4, 4]);
    pass(&mut cache, &ns, &[1, 1, 9, 9]);
    assert_eq!(cache.peek(&ns, &[1, 1, 2, 2], 4), 2, "its end made room");
    assert_eq!(cache.peek(&ns, &[3, 3, 4, 4], 4), 4);
    assert_eq!(cache.stats().evictions, 1);
}

#[test]
fn all_or_nothing() {
    let mut cache = KvCache::new(config(3, 0));
    let mut table = Vec::new();
    assert!(!cache.allocate_n(TENANT, 4, &mut table) && table.is_empty());
    assert!(cache.allocate_n(TENANT, 3, &mut table));
    assert_eq!(cache.allocate(TENANT), None);
    cache.release_table(&mut table, 1);
    assert_eq!((table.len(), cache.free_blocks()), (1, 2));
}

#[test]
fn a_tenant_at_its_budget_gives_up_its_own() {
    let (mut cache, ns) = (KvCache::new(config(8, 0)), namespace(0));
    cache.set_budget(TenantId(7), Some(1));
    pass(&mut cache, &ns, &[1, 1, 2, 2]);
    let mine = cache.allocate(TenantId(7)).unwrap();
    assert_eq!(cache.allocate(TenantId(7)), None);
    let mut chain = cache.chain_root(&namespace(7));
    cache.register(&mut chain, &[5, 5], mine);
    cache.release(mine);
    assert_eq!(cache.allocate(TenantId(7)), Some(mine), "its cached block, not a free one more");
    assert_eq!((cache.tenant_blocks(TenantId(7)), cache.tenant_blocks(TENANT)), (1, 2));
    cache.check().unwrap();
}

fn moves(cache: &mut KvCache) -> Vec<Move> {
    let mut out = Vec::new();
    cache.take_moves(&mut out);
    out
}

#[test]
fn evicted_blocks_go_to_disk_and_come_back() {
    let (mut cache, ns) = (KvCache::new(config(2, 4)), namespace(0));
    let (_, blocks) = pass(&mut cache, &ns, &[1, 1, 2, 2]);
    let mut table = Vec::new();
    assert!(!cache.allocate_n(TENANT, 2, &mut table), "demotions are in flight");
    let started = moves(&mut cache);
    assert_eq!(started.len(), 2);
    assert_eq!(started[0].from, Place::Memory(blocks[1]), "the end first");
    assert!(!cache.allocate_n(TENANT, 2, &mut table));
    assert!(moves(&mut cache).is_empty(), "no more than needed");
    for m in started {
        cache.move_done(m.id, true);
        cache.check().unwrap();
    }
    assert!(cache.allocate_n(TENANT, 2, &mut table));
    cache.release_table(&mut table, 0);
    let found = cache.lookup(&ns, TENANT, &[1, 1, 2, 2], 4, &mut table);
    assert_eq!((found.tokens, found.on_disk), (0, 2));
    let mut loads = Vec::new();
    let tokens = [1, 1, 2, 2];
    let chain = cache.begin_load(&ns, TENANT, &tokens, 0, 2, &mut table, &mut loads).unwrap();
    assert_eq!((table.len(), loads.len()), (2, 2));
    let other = cache.lookup(&ns, TENANT, &tokens, 4, &mut Vec::new());
    assert_eq!((other.tokens, other.on_disk, other.loading), (0, 0, 2));
    for m in &loads {
        cache.move_done(m.id, true);
    }
    assert_eq!(cache.chain_at(&ns, &tokens), (chain, 4));
    cache.release_table(&mut table, 0);
    cache.check().unwrap();
    // The copies on disk are still good: nothing has to be written again.
    assert!(cache.allocate_n(TENANT, 2, &mut table));
    assert!(moves(&mut cache).is_empty());
    cache.check().unwrap();
}

#[test]
fn a_failed_load_ends_the_chain() {
    let (mut cache, ns) = (KvCache::new(config(2, 4)), namespace(0));
    pass(&mut cache, &ns, &[1, 1, 2, 2]);
    let mut table = Vec::new();
    cache.allocate_n(TENANT, 2, &mut table);
    for m in moves(&mut cache) {
        cache.move_done(m.id, true);
    }
    let mut loads = Vec::new();
    cache.begin_load(&ns, TENANT, &[1, 1, 2, 2], 0, 2, &mut table, &mut loads).unwrap();
    cache.move_done(loads[0].id, false);
    cache.check().unwrap();
    assert_eq!(table.len(), 2, "the loader's references stay the loader's");
    cache.release_table(&mut table, 0);
    assert_eq!(cache.free_blocks(), 1, "one is still being written");
    cache.move_done(loads[1].id, true);
    assert_eq!(cache.free_blocks(), 2);
    assert_eq!(cache.lookup(&ns, TENANT, &[1, 1, 2, 2], 4, &mut table).on_disk, 0);
    cache.check().unwrap();
}

#[test]
fn a_swapped_out_sequence_leaves_without_waiting() {
    let (mut cache, ns) = (KvCache::new(config(2, 2)), namespace(0));
    let mut table = Vec::new();
    assert!(cache.allocate_n(TENANT, 1, &mut table));
    let mut chain = cache.chain_root(&ns);
    cache.register(&mut chain, &[1, 1], table[0]);
    let id = cache.demote(table[0]).unwrap();
    assert_eq!(cache.demote(table[0]), None, "once is enough");
    cache.release_table(&mut table, 0);
    assert_eq!(cache.available_blocks(), 1, "not while it is copied");
    cache.move_done(id, true);
    assert_eq!((cache.available_blocks(), cache.peek(&ns, &[1, 1], 2)), (2, 2));
    assert!(cache.allocate_n(TENANT, 2, &mut table));
    let found = cache.lookup(&ns, TENANT, &[1, 1], 2, &mut Vec::new());
    assert_eq!((found.tokens, found.on_disk), (0, 1));
    cache.check().unwrap();
}

#[test]
fn a_demotion_that_is_wanted_meanwhile_stays() {
    let (mut cache, ns) = (KvCache::new(config(1, 2)), namespace(0));
    pass(&mut cache, &ns, &[1, 1]);
    assert_eq!(cache.allocate(TENANT), None);
    let started = moves(&mut cache);
    let mut table = Vec::new();
    assert_eq!(cache.lookup(&ns, TENANT, &[1, 1], 2, &mut table).tokens, 2);
    cache.move_done(started[0].id, true);
    assert_eq!((cache.free_blocks(), cache.reference_count(table[0])), (0, 1));
    cache.check().unwrap();
    cache.release_table(&mut table, 0);
    assert_eq!(cache.allocate(TENANT), Some(0), "its copy is good, so it goes at once");
    cache.check().unwrap();
}

#[test]
fn clearing_leaves_what_is_referenced() {
    let (mut cache, ns) = (KvCache::new(config(4, 0)), namespace(0));
    pass(&mut cache, &ns, &[1, 1, 2, 2]);
    let mut table = Vec::new();
    cache.lookup(&ns, TENANT, &[1, 1], 2, &mut table);
    cache.clear_cached();
    assert_eq!((cache.free_blocks(), cache.peek(&ns, &[1, 1, 2, 2], 4)), (3, 2));
    cache.check().unwrap();
}

#[test]
fn a_load_keeps_what_is_above_it() {
    let (mut cache, ns) = (KvCache::new(config(2, 4)), namespace(0));
    pass(&mut cache, &ns, &[1, 1, 2, 2]);
    let mut table = Vec::new();
    assert!(!cache.allocate_n(TENANT, 2, &mut table));
    let started = moves(&mut cache);
    cache.move_done(started[0].id, true);
    // The end is on disk, the start still on its way there, and nobody refers to either.
    assert_eq!((cache.free_blocks(), cache.leaving_blocks()), (1, 1));
    let (tokens, mut loads) = ([1, 1, 2, 2], Vec::new());
    let chain = cache.begin_load(&ns, TENANT, &tokens, 2, 1, &mut table, &mut loads).unwrap();
    assert_eq!((cache.leaving_blocks(), loads.len()), (0, 1));
    cache.check().unwrap();
    cache.move_done(started[1].id, true);
    cache.move_done(loads[0].id, true);
    assert_eq!(cache.chain_at(&ns, &tokens), (chain, 4));
    cache.release_table(&mut table, 0);
    cache.check().unwrap();
}

#[test]
fn a_cursor_whose_chain_is_gone_registers_nothing() {
    let (mut cache, ns) = (KvCache::new(config(2, 0)), namespace(0));
    pass(&mut cache, &ns, &[1, 1]);
    let (mut chain, found) = cache.chain_at(&ns, &[1, 1]);
    assert_eq!(found, 2);
    cache.clear_cached();
    // The node's id is in use again, for another chain.
    pass(&mut cache, &ns, &[7, 7]);
    let block = cache.allocate(TENANT).unwrap();
    assert_eq!(cache.register(&mut chain, &[2, 2], block), block);
    assert!(!cache.is_shared(block), "it is private");
    assert_eq!(cache.peek(&ns, &[7, 7, 2, 2], 4), 2);
    cache.release(block);
    assert_eq!(cache.free_blocks(), 1);
    cache.check().unwrap();
}

#[test]
fn room_for_a_load_is_not_made_by_dropping_it() {
    // Both slots hold the chain that is wanted, and both blocks what has no copy.
    let (mut cache, ns) = (KvCache::new(config(2, 2)), namespace(0));
    let tokens = [1, 1, 2, 2];
    pass(&mut cache, &ns, &tokens);
    let mut table = Vec::new();
    assert!(!cache.allocate_n(TENANT, 2, &mut table));
    for m in moves(&mut cache) {
        cache.move_done(m.id, true);
    }
    pass(&mut cache, &ns, &[8, 8, 9, 9]);
    let mut loads = Vec::new();
    cache.begin_load(&ns, TENANT, &tokens, 0, 2, &mut table, &mut loads).unwrap();
    assert_eq!((table.len(), loads.len(), moves(&mut cache).len()), (2, 2, 0));
    cache.check().unwrap();
    for m in loads {
        cache.move_done(m.id, true);
    }
    assert_eq!(cache.peek(&ns, &tokens, 4), 4);
    assert_eq!(cache.peek(&ns, &[8, 8, 9, 9], 4), 0, "there was no slot for it");
    cache.check().unwrap();
}

#[test]
fn no_more_is_demoted_than_needed() {
    let (mut cache, ns) = (KvCache::new(config(3, 9)), namespace(0));
    pass(&mut cache, &ns, &[1, 1, 2, 2, 3, 3]);
    assert_eq!((cache.allocate(TENANT), moves(&mut cache).len()), (None, 1));
    assert_eq!((cache.allocate(TENANT), moves(&mut cache).len()), (None, 0));
    assert!(!cache.allocate_n(TENANT, 2, &mut Vec::new()));
    assert_eq!(moves(&mut cache).len(), 1);

    let mut cache = KvCache::new(config(8, 9));
    cache.set_budget(TENANT, Some(3));
    pass(&mut cache, &ns, &[1, 1, 2, 2, 3, 3]);
    assert_eq!((cache.allocate(TENANT), moves(&mut cache).len()), (None, 1));
    assert_eq!((cache.allocate(TENANT), moves(&mut cache).len()), (None, 0));
    cache.check().unwrap();
}

#[test]
fn a_chain_on_disk_loses_its_end_first() {
    let (mut cache, ns) = (KvCache::new(config(2, 2)), namespace(0));
    let (tokens, mut table) = ([1, 1, 2, 2], Vec::new());
    assert!(cache.allocate_n(TENANT, 2, &mut table));
    let mut chain = cache.chain_root(&ns);
    cache.register(&mut chain, &tokens[..2], table[0]);
    cache.register(&mut chain, &tokens[2..], table[1]);
    // The start is copied first, so it is the first that might go.
    let copies: Vec<_> = table.iter().filter_map(|&block| cache.demote(block)).collect();
    copies.into_iter().for_each(|id| cache.move_done(id, true));
    cache.release_table(&mut table, 0);
    pass(&mut cache, &ns, &[8, 8, 9, 9]);
    moves(&mut cache);
    assert_eq!((cache.allocate(TENANT), moves(&mut cache).len()), (None, 1));
    let found = cache.lookup(&ns, TENANT, &tokens, 4, &mut table);
    assert_eq!((found.tokens, found.on_disk), (0, 1));
    cache.check().unwrap();
}

#[test]
fn a_block_is_charged_to_whoever_allocated_it_until_it_is_free() {
    let mut cache = KvCache::new(config(2, 0));
    let block = cache.allocate(TenantId(3)).unwrap();
    assert_eq!(cache.charged_to(block), Some(TenantId(3)));
    cache.share(block);
    cache.release(block);
    assert_eq!(cache.charged_to(block), Some(TenantId(3)));
    cache.release(block);
    assert_eq!(cache.charged_to(block), None);
}
