//! What logical KV costs: look-ups, allocation, and whole requests, as JSON.
//!
//! ```text
//! cargo run --release -p dunlin-kvcache --example kvcache_bench [REQUESTS [POLICY]]
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "a benchmark has a clock and prints"
)]

use std::time::Instant;

use dunlin_kvcache::{CacheConfig, EvictionKind, KvCache, Namespace, NamespaceKey, TenantId};
use serde_json::{Value, json};

const BLOCK_TOKENS: usize = 16;
const TENANT: TenantId = TenantId(1);

fn cache(eviction: EvictionKind, block_count: usize) -> KvCache {
    KvCache::new(CacheConfig {
        block_tokens: BLOCK_TOKENS,
        block_count,
        disk_slots: 0,
        eviction,
        prefix_cache: true,
        hash_seed: 5,
    })
}

fn namespace() -> Namespace {
    Namespace::new(&NamespaceKey { tenant_salt: 1, ..NamespaceKey::default() })
}

/// `count` tokens that depend on `id` and on their position alone.
fn tokens(id: u64, count: usize) -> Vec<u32> {
    let token = |i: u64| ((id << 20 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % 50_000;
    (0..count as u64).map(token).collect()
}

/// One request: look-up, blocks for what is missing, registration, release. Returns the blocks it
/// had to allocate.
fn request(cache: &mut KvCache, ns: &Namespace, tokens: &[u32], table: &mut Vec<u32>) -> usize {
    let found = cache.lookup(ns, TENANT, tokens, tokens.len() - 1, table);
    let (mut chain, shared) = (found.chain, table.len());
    for block in tokens[found.tokens..].chunks(BLOCK_TOKENS) {
        let mut id = cache.allocate(TENANT).expect("a block");
        if block.len() == BLOCK_TOKENS {
            id = cache.register(&mut chain, block, id);
        }
        table.push(id);
    }
    let allocated = table.len() - shared;
    cache.release_table(table, 0);
    allocated
}

/// Nanoseconds of `work`.
fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}

/// The least, the median and the 99th percentile, in nanoseconds.
fn summary(mut times: Vec<f64>) -> Value {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(times.len() as f64 * share) as usize];
    json!({ "least_ns": times[0], "median_ns": at(0.5), "p99_ns": at(0.99) })
}

/// A 4,000-token prompt where every one of 100,000 blocks is cached. Look-ups go round 400 prompts,
/// so that the answer is not in a processor's cache from the last time.
fn lookups(eviction: EvictionKind) -> Value {
    let (mut cache, ns, mut table) = (cache(eviction, 100_000), namespace(), Vec::new());
    let prompts: Vec<Vec<u32>> = (0..400).map(|id| tokens(id, 4000)).collect();
    for prompt in &prompts {
        // One token more, because a request never takes its last token from the cache.
        request(&mut cache, &ns, &[&prompt[..], &[1]].concat(), &mut table);
    }
    let cached = cache.available_blocks() - cache.free_blocks();
    let (mut found_tokens, mut misses) = (0, 0);
    let (mut looks, mut peeks, mut releases) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..4000 {
        let prompt = &prompts[i * 7 % prompts.len()];
        let mut found = 0;
        peeks.push(time(|| found = cache.peek(&ns, prompt, 4000)));
        let prompt = &prompts[(i * 7 + 200) % prompts.len()];
        looks.push(time(|| {
            let found = cache.lookup(&ns, TENANT, prompt, 4000, &mut table);
            found_tokens += found.tokens;
        }));
        releases.push(time(|| cache.release_table(&mut table, 0)));
        misses += usize::from(found < 3900);
    }
    json!({
        "cached_blocks": cached,
        "mean_found_tokens": found_tokens / 4000,
        "peeks_that_missed": misses,
        "lookup": summary(looks),
        "peek": summary(peeks),
        "release_table": summary(releases),
    })
}

/// Allocation and release of blocks that are never registered, from a cache with room.
fn allocation() -> Value {
    let mut cache = cache(EvictionKind::Lru, 100_000);
    let (rounds, mut blocks) = (2000, Vec::with_capacity(1000));
    let mut allocate = Vec::new();
    let mut release = Vec::new();
    for _ in 0..rounds {
        allocate.push(
            time(|| blocks.extend((0..1000).filter_map(|_| cache.allocate(TENANT)))) / 1000.0,
        );
        release.push(time(|| cache.release_table(&mut blocks, 0)) / 1000.0);
    }
    json!({ "allocate_per_block": summary(allocate), "release_per_block": summary(release) })
}

/// Resident memory in KiB; 0 where the system does not say.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Nanoseconds that this thread has been on a processor; 0 where the system does not say. Unlike the
/// clock it leaves out what others take.
fn on_processor_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0.0)
}

/// Requests of 1,155 tokens: 480 of one of 64 shared beginnings, the rest nobody else's, so that
/// each allocates 43 blocks and, once the cache is full, evicts as many.
fn requests(eviction: EvictionKind, block_count: usize, count: usize) -> Value {
    let (mut cache, ns, mut table) = (cache(eviction, block_count), namespace(), Vec::new());
    let mut prompts: Vec<Vec<u32>> = (0..64).map(|id| tokens(id, 1155)).collect();
    let mut run = |cache: &mut KvCache, from: usize, to: usize| {
        let mut allocated = 0;
        for i in from..to {
            let prompt = &mut prompts[i * 29 % 64];
            // One token makes all that follows different.
            prompt[480] = i as u32;
            allocated += request(cache, &ns, prompt, &mut table);
        }
        allocated
    };
    let warm = 3 * block_count / 43;
    run(&mut cache, 0, warm);
    let (before, memory) = (cache.stats(), resident_kib());
    let processor = on_processor_ns();
    let mut slices = Vec::new();
    let mut allocated = 0;
    let slice = (count / 100).max(1);
    for i in 0..100 {
        let from = warm + i * slice;
        slices.push(time(|| allocated += run(&mut cache, from, from + slice)) / slice as f64);
    }
    let processor = (on_processor_ns() - processor) / (slice * 100) as f64;
    let mean = slices.iter().sum::<f64>() / 100.0;
    let after = cache.stats();
    json!({
        "eviction": eviction.name(),
        "blocks": block_count,
        "requests": slice * 100,
        "mean_ns": mean,
        "mean_on_processor_ns": processor,
        "slices_of_a_hundredth": summary(slices),
        "allocated_per_request": allocated as f64 / (slice * 100) as f64,
        "evicted_per_request": (after.evictions - before.evictions) as f64 / (slice * 100) as f64,
        "hit_tokens_per_request": (after.hit_tokens - before.hit_tokens) as f64 / (slice * 100) as f64,
        "resident_kib_before_and_after": [memory, resident_kib()],
    })
}

fn main() {
    let count = std::env::args().nth(1).map_or(100_000, |n| n.parse().expect("a number"));
    let one = std::env::args().nth(2).map(|n| n.parse().expect("a policy"));
    let mut whole = Vec::new();
    for eviction in EvictionKind::ALL.into_iter().filter(|&e| one.is_none_or(|one| e == one)) {
        whole.push(requests(eviction, 10_000, count));
        whole.push(requests(eviction, 100_000, count));
    }
    let report = json!({
        "block_tokens": BLOCK_TOKENS,
        "lookup_of_4000_tokens": lookups(EvictionKind::Lru),
        "allocation": allocation(),
        "requests_of_1155_tokens": whole,
    });
    println!("{report:#}");
}
