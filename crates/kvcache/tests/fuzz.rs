//! Random operations against a world that knows the truth, under every policy, with and without a
//! tier, budgets and failing moves, and with hashes that collide all the time.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "random tests print their seed, and take one from the environment"
)]

mod common;

use common::{Op, World};
use dunlin_kvcache::{CacheConfig, EvictionKind, KvCache};
use dunlin_units::{SeedTree, Stream};

struct Setting {
    blocks: usize,
    slots: usize,
    hash_mask: u64,
    eviction: EvictionKind,
    prefix_cache: bool,
    budgets: bool,
}

/// Prompts that share beginnings: each block is one of two, so that chains fork everywhere.
fn prompts(stream: &mut Stream, size: usize) -> Vec<Vec<u32>> {
    (0..12)
        .map(|_| {
            let blocks = 1 + stream.next_below(6);
            (0..blocks)
                .flat_map(|_| {
                    // They differ in their last token alone.
                    let which = stream.next_below(2) as u32;
                    (1..=size as u32).map(move |i| if i == size as u32 { which } else { 7 })
                })
                .collect()
        })
        .collect()
}

fn pick(stream: &mut Stream, world: &World, budgets: bool) -> Op {
    let mut below = |n: usize| stream.next_below(n.max(1) as u64) as usize;
    let sequence = below(world.sequences.len());
    let tenant = below(3) as u32;
    match below(100) {
        0..18 => Op::Open { space: u64::from(tenant / 2), tenant, prompt: below(12) },
        18..58 => Op::Step { sequence },
        58..64 => Op::Load { sequence },
        64..67 => Op::Fork { sequence },
        67..70 => Op::Swap { sequence },
        70..80 => Op::Close { sequence },
        80..85 => Op::Borrow { tenant, blocks: below(6) },
        85..96 => Op::Done { at: below(world.in_flight.len()), ok: below(5) > 0 },
        96..99 if budgets => {
            let blocks = (below(3) > 0).then(|| below(8));
            Op::Budget { tenant, blocks }
        }
        99 if below(4) == 0 => Op::Clear,
        _ => Op::Step { sequence },
    }
}

fn run(seed: u64, setting: &Setting, steps: usize) -> KvCache {
    let mut stream = SeedTree::root(seed).child("kvcache fuzz").stream();
    let size = 1 + stream.next_below(3) as usize;
    let config = CacheConfig {
        block_tokens: size,
        block_count: setting.blocks,
        disk_slots: setting.slots,
        eviction: setting.eviction,
        prefix_cache: setting.prefix_cache,
        hash_seed: seed,
    };
    let cache = KvCache::with_hash_mask(config, setting.hash_mask);
    let mut world = World::new(cache, prompts(&mut stream, size));
    for _ in 0..steps {
        let op = pick(&mut stream, &world, setting.budgets);
        world.apply(op);
        // Memory is small: somebody has to end.
        if world.sequences.len() > 6 {
            world.apply(Op::Close { sequence: 0 });
        }
    }
    let hits = world.hits;
    let cache = world.finish();
    assert!(hits > 0 || !setting.prefix_cache, "the test has hits to check");
    cache
}

fn run_all(name: &str, hash_mask: u64, prefix_cache: bool) {
    let seeds: Vec<u64> = match std::env::var("DUNLIN_SEED") {
        Ok(seed) => vec![seed.parse().expect("DUNLIN_SEED is a number")],
        Err(_) => (0..6).collect(),
    };
    let (mut loads, mut failed, mut evictions, mut disk_evictions) = (0, 0, 0, 0);
    for seed in seeds {
        println!("{name}: DUNLIN_SEED={seed}");
        for eviction in EvictionKind::ALL {
            for (blocks, slots) in [(6, 0), (16, 0), (6, 4), (12, 30), (40, 9)] {
                for budgets in [false, true] {
                    let setting =
                        Setting { blocks, slots, hash_mask, eviction, prefix_cache, budgets };
                    let stats = run(seed, &setting, 1500).stats();
                    loads += stats.loads;
                    failed += stats.failed_loads + stats.failed_demotions;
                    evictions += stats.evictions;
                    disk_evictions += stats.disk_evictions;
                }
            }
        }
    }
    if prefix_cache {
        assert!(loads > 0 && failed > 0 && evictions > 0 && disk_evictions > 0, "it all happened");
    }
    println!("{name}: {evictions} evictions, {loads} loads, {failed} failed moves");
}

#[test]
fn random_operations() {
    run_all("random_operations", u64::MAX, true);
}

/// Sixteen different hashes in all: a hit is right only because tokens and parents are compared.
#[test]
fn colliding_hashes() {
    run_all("colliding_hashes", 0xF, true);
}

/// One hash for everything.
#[test]
fn equal_hashes() {
    run_all("equal_hashes", 0, true);
}

#[test]
fn without_a_prefix_cache() {
    run_all("without_a_prefix_cache", u64::MAX, false);
}
