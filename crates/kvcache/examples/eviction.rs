//! Replays requests through every eviction policy and prints how much of each was found, and how
//! much of the way from LRU to Belady's optimum a policy goes.
//!
//! ```text
//! cargo run --release -p dunlin-kvcache --example eviction -- TRACE.jsonl 1000,10000
//! cargo run --release -p dunlin-kvcache --example eviction -- sessions 1000,10000
//! ```
//!
//! A trace is in Mooncake's format: one JSON object a line with `input_length` in tokens and
//! `hash_ids`, one for each 512-token block of the prompt, where equal ids mean equal prefixes. Only
//! full blocks count. `sessions` makes up a workload of tenants and conversations, from a seed.
//!
//! The replay goes through the real cache, one request after the other: what is cached is shared,
//! the rest is allocated and registered, and everything is released, so that a request's whole
//! chain is in memory at its end. A request longer than the cache uses what fits. Written tokens are
//! not in these traces.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a command that reads a file and prints"
)]

use dunlin_kvcache::eviction::{Belady, Gdsf, policy};
use dunlin_kvcache::{
    CacheConfig, EvictionKind, EvictionPolicy, KvCache, Namespace, NamespaceKey, TenantId,
};
use dunlin_units::SeedTree;
use serde_json::{Value, json};

/// Tokens in a trace's block.
const BLOCK_TOKENS: u64 = 512;

/// Tokens of context that cost as much to read as the weights; see [`Gdsf`].
const CONTEXT_AS_WEIGHTS: u64 = 4096;

/// Each request's blocks, by number. A number stands for a block's whole content.
type Requests = Vec<Vec<u32>>;

fn read_trace(path: &str) -> Requests {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.lines()
        .map(|line| {
            let request: Value = serde_json::from_str(line).expect("a JSON object a line");
            let full = request["input_length"].as_u64().expect("input_length") / BLOCK_TOKENS;
            let ids = request["hash_ids"].as_array().expect("hash_ids");
            ids.iter().take(full as usize).map(|id| id.as_u64().unwrap() as u32).collect()
        })
        .collect()
}

/// 20,000 requests of 40 tenants, some far busier than others. A tenant has an instruction of 1 to
/// 12 blocks in front of everything. Three in four requests go on with a conversation, mostly one
/// that was active lately; one in ten is a long document that nobody asks about again.
fn sessions() -> Requests {
    let mut stream = SeedTree::root(2026).child("sessions").stream();
    let mut fresh = 0u32;
    let mut new_blocks = |n: u64| -> Vec<u32> {
        (0..n)
            .map(|_| {
                fresh += 1;
                fresh
            })
            .collect()
    };
    let instructions: Vec<Vec<u32>> =
        (0..40).map(|_| new_blocks(1 + stream.next_below(12))).collect();
    let mut open: Vec<Vec<u32>> = Vec::new();
    let mut requests = Vec::new();
    while requests.len() < 20_000 {
        let draw = stream.next_below(100);
        // The smallest of three: a few tenants send most of it.
        let tenant = (0..3).map(|_| stream.next_below(40)).min().unwrap() as usize;
        if draw < 10 {
            let document = new_blocks(20 + stream.next_below(60));
            requests.push([&instructions[tenant][..], &document].concat());
        } else if draw < 25 || open.is_empty() {
            let first = new_blocks(1 + stream.next_below(4));
            open.push([&instructions[tenant][..], &first].concat());
            requests.push(open[open.len() - 1].clone());
        } else {
            // Conversations stand in the order of their last turn.
            let back = stream.next_below(300).min(stream.next_below(300)) as usize;
            let at = open.len().saturating_sub(1 + back);
            let mut conversation = open.remove(at);
            conversation.extend(new_blocks(1 + stream.next_below(5)));
            requests.push(conversation.clone());
            // It ends after about five turns.
            if stream.next_below(5) > 0 {
                open.push(conversation);
            }
        }
    }
    requests
}

/// What a replay found.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    hits: u64,
    blocks: u64,
    /// Work of prefill that was saved, and all of it: a block's share of weights plus context.
    saved: u64,
    work: u64,
}

impl Found {
    fn rate(self) -> f64 {
        100.0 * self.hits as f64 / self.blocks as f64
    }

    fn work_rate(self) -> f64 {
        100.0 * self.saved as f64 / self.work as f64
    }
}

fn work(blocks: u64) -> u64 {
    (1..=blocks).map(|n| CONTEXT_AS_WEIGHTS + n * BLOCK_TOKENS).sum()
}

fn config(blocks: usize) -> CacheConfig {
    CacheConfig {
        // A block's number is its one token.
        block_tokens: 1,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 0,
    }
}

fn namespace() -> Namespace {
    Namespace::new(&NamespaceKey::default())
}

fn replay(
    requests: &Requests,
    blocks: usize,
    policy: Box<dyn EvictionPolicy>,
    ahead: bool,
) -> Found {
    let mut cache = KvCache::with_policy(config(blocks), policy);
    let (ns, tenant, mut table, mut keys) = (namespace(), TenantId(0), Vec::new(), Vec::new());
    let mut found = Found::default();
    for request in requests {
        let request = &request[..request.len().min(blocks)];
        let hit = cache.lookup(&ns, tenant, request, request.len(), &mut table);
        found.hits += hit.tokens as u64;
        found.blocks += request.len() as u64;
        found.saved += work(hit.tokens as u64);
        found.work += work(request.len() as u64);
        keys.clear();
        if ahead {
            cache.block_keys(&ns, request, &mut keys);
        }
        let mut chain = hit.chain;
        for (i, token) in request.iter().enumerate().skip(hit.tokens) {
            if let Some(&key) = keys.get(i) {
                cache.announce(key);
            }
            let block = cache.allocate(tenant).expect("the request fits");
            table.push(cache.register(&mut chain, std::slice::from_ref(token), block));
        }
        cache.release_table(&mut table, 0);
    }
    found
}

fn belady(requests: &Requests, blocks: usize) -> Found {
    let probe = KvCache::new(config(1));
    let mut future = Vec::new();
    for request in requests {
        probe.block_keys(&namespace(), &request[..request.len().min(blocks)], &mut future);
    }
    replay(requests, blocks, Box::new(Belady::new(blocks, &future)), false)
}

/// One cache size: every policy's row.
fn compare(requests: &Requests, blocks: usize) -> Vec<(String, Found)> {
    let mut rows: Vec<(String, Found)> = EvictionKind::ALL
        .into_iter()
        .map(|kind| {
            let policy: Box<dyn EvictionPolicy> = match kind {
                // A block is one token here: the cost of context is in blocks too.
                EvictionKind::Gdsf => {
                    Box::new(Gdsf::with_context(blocks, CONTEXT_AS_WEIGHTS / BLOCK_TOKENS))
                }
                _ => policy(kind, blocks, blocks),
            };
            (kind.to_string(), replay(requests, blocks, policy, false))
        })
        .collect();
    let ahead = policy(EvictionKind::Arc, blocks, blocks);
    rows.push(("arc, told ahead".to_string(), replay(requests, blocks, ahead, true)));
    // So much for the weights that context makes no difference.
    let aged = Box::new(Gdsf::with_context(blocks, 1 << 32));
    rows.push((
        "gdsf, equal costs (lfu with aging)".to_string(),
        replay(requests, blocks, aged, false),
    ));
    rows.push(("belady".to_string(), belady(requests, blocks)));
    rows
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, sizes] = &arguments[..] else {
        panic!("usage: eviction TRACE.jsonl|sessions SIZE[,SIZE...]");
    };
    let requests = if source == "sessions" { sessions() } else { read_trace(source) };
    let all: usize = requests.iter().map(Vec::len).sum();
    let distinct = requests.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
    println!("{} requests, {all} blocks, {distinct} of them different", requests.len());
    println!(
        "without limit {:.2} % of blocks are found",
        100.0 * (1.0 - distinct as f64 / all as f64)
    );
    let sizes: Vec<usize> =
        sizes.split(',').map(|s| s.parse().expect("a number of blocks")).collect();
    let columns: Vec<Vec<(String, Found)>> =
        sizes.iter().map(|&size| compare(&requests, size)).collect();
    println!("\nBlocks found, % (share of the gap from LRU to Belady that is closed, %)\n");
    table(&sizes, &columns, |column, at| {
        let shown = format!("{:.2}", column[at].1.rate());
        match gap_closed(column, at) {
            Some(share) => format!("{shown} ({share:.0})"),
            None => shown,
        }
    });
    println!("\nWork of prefill saved, %\n");
    table(&sizes, &columns, |column, at| format!("{:.2}", column[at].1.work_rate()));
    println!("\n{}", as_json(&sizes, &columns));
}

/// The share of the way from LRU (the first row) to Belady (the last) that a row goes, in percent.
/// Of a gap below half a point it says nothing.
fn gap_closed(column: &[(String, Found)], at: usize) -> Option<f64> {
    let (lru, best) = (column[0].1.rate(), column[column.len() - 1].1.rate());
    let between = at > 0 && at + 1 < column.len() && best - lru >= 0.5;
    between.then(|| 100.0 * (column[at].1.rate() - lru) / (best - lru))
}

/// A Markdown table: a row for each policy, a column for each size.
fn table(
    sizes: &[usize],
    columns: &[Vec<(String, Found)>],
    cell: impl Fn(&[(String, Found)], usize) -> String,
) {
    let head: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    println!("| blocks | {} |\n|---|{}", head.join(" | "), "---|".repeat(sizes.len()));
    for (at, (name, _)) in columns[0].iter().enumerate() {
        let cells: Vec<String> = columns.iter().map(|column| cell(column, at)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

fn as_json(sizes: &[usize], columns: &[Vec<(String, Found)>]) -> Value {
    let rows = sizes.iter().zip(columns).flat_map(|(size, column)| {
        column.iter().enumerate().map(move |(at, (name, found))| {
            json!({
                "blocks": size,
                "policy": name,
                "hits": found.hits,
                "of": found.blocks,
                "gap_closed_percent": gap_closed(column, at),
                "work_saved_percent": found.work_rate(),
            })
        })
    });
    rows.collect()
}
