//! Every sequence of operations up to a depth, in caches of one to four blocks.
#![allow(clippy::disallowed_macros, reason = "it says how many cases it tried")]

mod common;

use common::{Op, World};
use dunlin_kvcache::{CacheConfig, EvictionKind, KvCache};

const PROMPTS: [&[u32]; 3] = [&[1, 1], &[1, 2], &[2]];

fn ops(tier: bool) -> Vec<Op> {
    let open = |prompt| Op::Open { space: 0, tenant: 0, prompt };
    let mut ops = vec![
        open(0),
        open(1),
        open(2),
        Op::Open { space: 1, tenant: 1, prompt: 0 },
        Op::Step { sequence: 0 },
        Op::Step { sequence: 1 },
        Op::Close { sequence: 0 },
        Op::Close { sequence: 1 },
    ];
    if tier {
        // The other namespace and its tenant are covered without the tier.
        ops.retain(|op| !matches!(op, Op::Open { space: 1, .. }));
        ops.extend([
            Op::Load { sequence: 0 },
            Op::Swap { sequence: 0 },
            Op::Done { at: 0, ok: true },
            Op::Done { at: 0, ok: false },
            Op::Done { at: 1, ok: true },
        ]);
    } else {
        ops.extend([
            Op::Fork { sequence: 0 },
            Op::Borrow { tenant: 0, blocks: 2 },
            Op::Budget { tenant: 0, blocks: Some(1) },
        ]);
    }
    ops
}

/// Runs `path` in a new cache, then tries every further operation. Returns how many paths it ran.
fn explore(config: CacheConfig, ops: &[Op], path: &mut Vec<Op>, depth: usize) -> u64 {
    let mut world = World::new(KvCache::new(config), PROMPTS.iter().map(|p| p.to_vec()).collect());
    for (i, &op) in path.iter().enumerate() {
        let applied = world.apply(op);
        if i + 1 == path.len() && !applied {
            return 1;
        }
    }
    if path.len() == depth {
        world.finish();
        return 1;
    }
    // More sequences than two are never stepped or closed here.
    let full = world.sequences.len() >= 2;
    let mut paths = 0;
    for &op in ops {
        if full && matches!(op, Op::Open { .. } | Op::Fork { .. }) {
            continue;
        }
        path.push(op);
        paths += explore(config, ops, path, depth);
        path.pop();
    }
    paths
}

fn explore_all(blocks: usize, slots: usize, depth: usize) {
    for eviction in EvictionKind::ALL {
        let config = CacheConfig {
            block_tokens: 1,
            block_count: blocks,
            disk_slots: slots,
            eviction,
            prefix_cache: true,
            hash_seed: 0,
        };
        let paths = explore(config, &ops(slots > 0), &mut Vec::new(), depth);
        println!("{eviction}: {blocks} blocks, {slots} slots: {paths} paths of {depth}");
        assert!(paths > 1000);
    }
}

#[test]
fn memory_alone() {
    explore_all(1, 0, 6);
    explore_all(2, 0, 6);
    explore_all(3, 0, 5);
    explore_all(4, 0, 5);
}

#[test]
fn with_a_tier() {
    explore_all(1, 1, 6);
    explore_all(2, 1, 6);
    explore_all(2, 3, 5);
}
