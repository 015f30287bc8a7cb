//! Each eviction policy against its textbook, written plainly over lists of keys, and Belady's
//! against every other and against the best that exists.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "random tests print their seed, and take one from the environment"
)]

use std::collections::{BTreeMap, BTreeSet};

use dunlin_kvcache::eviction::{Arc, Belady, Entry, EvictionPolicy, Fifo, Gdsf, Lfu, Lru, Removal};
use dunlin_kvcache::{CacheConfig, EvictionKind, KvCache, Namespace, NamespaceKey, TenantId};
use dunlin_units::{SeedTree, Stream};

/// A cache of single pages over a policy: no chains, nothing referenced between accesses.
struct Pages<P> {
    policy: P,
    capacity: usize,
    free: Vec<u32>,
    node: BTreeMap<u64, u32>,
    key: BTreeMap<u32, u64>,
}

impl<P: EvictionPolicy> Pages<P> {
    fn new(mut policy: P, capacity: usize) -> Self {
        policy.track_groups();
        let free = (0..capacity as u32).rev().collect();
        Self { policy, capacity, free, node: BTreeMap::new(), key: BTreeMap::new() }
    }

    /// Whether it was there, and what went for it.
    fn access(&mut self, key: u64, end_tokens: u64) -> (bool, Option<u64>) {
        if let Some(&node) = self.node.get(&key) {
            self.policy.hold(node);
            self.policy.hit(node);
            self.policy.idle(node);
            self.policy.leaf(node);
            return (true, None);
        }
        self.policy.announce(key);
        let mut gone = None;
        if self.node.len() == self.capacity {
            let victim = self.policy.victim(None).expect("a victim");
            assert_eq!(self.policy.victim(Some(0)), Some(victim), "one group is all");
            assert_eq!(self.policy.victim(Some(5)), None);
            self.policy.remove(victim, Removal::Evicted);
            let key = self.key.remove(&victim).unwrap();
            self.node.remove(&key);
            self.free.push(victim);
            gone = Some(key);
        }
        let node = self.free.pop().unwrap();
        self.policy.insert(node, Entry { key, end_tokens, group: 0 });
        self.policy.idle(node);
        self.policy.leaf(node);
        self.node.insert(key, node);
        self.key.insert(node, key);
        (false, gone)
    }
}

/// What a textbook policy answers to one access: whether it was there, and what went for it.
type Answer = (bool, Option<u64>);

/// Keys with everything a simple policy may rank by.
#[derive(Default)]
struct Simple {
    /// key: (arrival, last use, uses, value).
    pages: BTreeMap<u64, (u64, u64, u64, u64)>,
    time: u64,
    age: u64,
}

impl Simple {
    fn access(&mut self, kind: EvictionKind, capacity: usize, key: u64, end: u64) -> Answer {
        self.time += 1;
        let cost = 4096 + end;
        if let Some(page) = self.pages.get_mut(&key) {
            page.1 = self.time;
            page.2 += 1;
            page.3 = self.age + page.2 * cost;
            return (true, None);
        }
        let mut gone = None;
        if self.pages.len() == capacity {
            let rank = |p: &(u64, u64, u64, u64)| match kind {
                EvictionKind::Fifo => (p.0, 0),
                EvictionKind::Lru => (p.1, 0),
                EvictionKind::Lfu => (p.2, p.1),
                _ => (p.3, p.1),
            };
            let (&victim, page) = self.pages.iter().min_by_key(|(_, p)| rank(p)).unwrap();
            self.age = page.3;
            self.pages.remove(&victim);
            gone = Some(victim);
        }
        self.pages.insert(key, (self.time, self.time, 1, self.age + cost));
        (false, gone)
    }
}

/// ARC as in figure 4 of the paper, over plain lists with the most recent last.
#[derive(Default)]
struct TextbookArc {
    c: usize,
    p: usize,
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
}

fn take(list: &mut Vec<u64>, x: u64) -> bool {
    let at = list.iter().position(|&y| y == x);
    at.map(|at| list.remove(at)).is_some()
}

impl TextbookArc {
    fn replace(&mut self, x_in_b2: bool) -> u64 {
        let t1 = self.t1.len();
        if t1 > 0 && (t1 > self.p || x_in_b2 && t1 == self.p) {
            let y = self.t1.remove(0);
            self.b1.push(y);
            y
        } else {
            let y = self.t2.remove(0);
            self.b2.push(y);
            y
        }
    }

    fn access(&mut self, x: u64) -> Answer {
        if take(&mut self.t1, x) || take(&mut self.t2, x) {
            self.t2.push(x);
            return (true, None);
        }
        let (b1, b2) = (self.b1.len(), self.b2.len());
        if self.b1.contains(&x) {
            self.p = self.c.min(self.p + if b1 >= b2 { 1 } else { b2 / b1 });
            let gone = self.replace(false);
            take(&mut self.b1, x);
            self.t2.push(x);
            return (false, Some(gone));
        }
        if self.b2.contains(&x) {
            self.p = self.p.saturating_sub(if b2 >= b1 { 1 } else { b1 / b2 });
            let gone = self.replace(true);
            take(&mut self.b2, x);
            self.t2.push(x);
            return (false, Some(gone));
        }
        let mut gone = None;
        let total = self.t1.len() + self.t2.len() + b1 + b2;
        if self.t1.len() + b1 == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                gone = Some(self.replace(false));
            } else {
                gone = Some(self.t1.remove(0));
            }
        } else if total >= self.c {
            if total == 2 * self.c {
                self.b2.remove(0);
            }
            gone = Some(self.replace(false));
        }
        self.t1.push(x);
        (false, gone)
    }
}

/// Keys drawn so that some are popular, some come in runs and popularity drifts.
fn trace(stream: &mut Stream, keys: u64, length: usize) -> Vec<u64> {
    let (mut out, mut offset) = (Vec::new(), 0);
    while out.len() < length {
        match stream.next_below(10) {
            0 => (0..keys / 2).for_each(|i| out.push(1000 + i)),
            1 => offset = stream.next_below(keys),
            _ => {
                let skewed = stream.next_below(keys).min(stream.next_below(keys));
                out.push((skewed + offset) % keys);
            }
        }
    }
    out.truncate(length);
    out
}

fn seeds() -> Vec<u64> {
    match std::env::var("DUNLIN_SEED") {
        Ok(seed) => vec![seed.parse().expect("DUNLIN_SEED is a number")],
        Err(_) => (0..40).collect(),
    }
}

#[test]
fn every_policy_is_its_textbook() {
    let mut targets = BTreeSet::new();
    for seed in seeds() {
        println!("every_policy_is_its_textbook: DUNLIN_SEED={seed}");
        let mut stream = SeedTree::root(seed).child("policies").stream();
        let capacity = 1 + stream.next_below(12) as usize;
        let trace = trace(&mut stream, 4 + 3 * capacity as u64, 2000);
        let end = |key: u64| 512 * (1 + key % 17);
        let mut lru = Pages::new(Lru::new(capacity), capacity);
        let mut lfu = Pages::new(Lfu::new(capacity), capacity);
        let mut fifo = Pages::new(Fifo::new(capacity), capacity);
        let mut gdsf = Pages::new(Gdsf::new(capacity), capacity);
        let mut arc = Pages::new(Arc::new(capacity, capacity), capacity);
        let mut simple: [Simple; 4] = Default::default();
        let mut textbook = TextbookArc { c: capacity, ..TextbookArc::default() };
        let kinds = [EvictionKind::Lru, EvictionKind::Lfu, EvictionKind::Fifo, EvictionKind::Gdsf];
        for (i, &key) in trace.iter().enumerate() {
            let ours = [
                lru.access(key, end(key)),
                lfu.access(key, end(key)),
                fifo.access(key, end(key)),
                gdsf.access(key, end(key)),
            ];
            for ((kind, reference), ours) in kinds.iter().zip(&mut simple).zip(ours) {
                let expected = reference.access(*kind, capacity, key, end(key));
                assert_eq!(ours, expected, "{kind}, access {i} of seed {seed}");
            }
            let expected = textbook.access(key);
            assert_eq!(arc.access(key, 0), expected, "arc, access {i} of seed {seed}");
            assert_eq!(arc.policy.target(), textbook.p, "arc's p, access {i} of seed {seed}");
            targets.insert(textbook.p);
        }
    }
    assert!(targets.len() > 3, "p moves: {targets:?}");
}

/// The most hits that any choice of victims gives, by trying all.
fn best(trace: &[u64], capacity: usize) -> usize {
    let mut states: BTreeMap<BTreeSet<u64>, usize> = [(BTreeSet::new(), 0)].into();
    for &key in trace {
        let mut next: BTreeMap<BTreeSet<u64>, usize> = BTreeMap::new();
        let mut offer = |state: BTreeSet<u64>, hits: usize| {
            let best = next.entry(state).or_default();
            *best = hits.max(*best);
        };
        for (state, hits) in states {
            if state.contains(&key) {
                offer(state, hits + 1);
                continue;
            }
            let mut with = state.clone();
            with.insert(key);
            if with.len() <= capacity {
                offer(with, hits);
                continue;
            }
            for gone in &state {
                let mut without = with.clone();
                without.remove(gone);
                offer(without, hits);
            }
        }
        states = next;
    }
    states.into_values().max().unwrap()
}

fn hits(policy: impl EvictionPolicy, capacity: usize, trace: &[u64]) -> usize {
    let mut pages = Pages::new(policy, capacity);
    trace.iter().filter(|&&key| pages.access(key, 512).0).count()
}

#[test]
fn belady_is_the_best_there_is() {
    // Every trace of seven accesses to four pages, up to the names of the pages.
    let mut traces = 0;
    for code in 0..4u32.pow(7) {
        let trace: Vec<u64> = (0..7).map(|i| u64::from(code / 4u32.pow(i) % 4)).collect();
        let mut seen = 0;
        let canonical = trace.iter().all(|&key| {
            let fits = key <= seen;
            seen = seen.max(key + 1);
            fits
        });
        if !canonical {
            continue;
        }
        traces += 1;
        for capacity in 1..=3 {
            let ours = hits(Belady::new(capacity, &trace), capacity, &trace);
            assert_eq!(ours, best(&trace, capacity), "{trace:?} in {capacity}");
        }
    }
    assert!(traces > 500);
    for seed in seeds() {
        println!("belady_is_the_best_there_is: DUNLIN_SEED={seed}");
        let mut stream = SeedTree::root(seed).child("belady").stream();
        let trace = trace(&mut stream, 7, 40);
        let ours = hits(Belady::new(3, &trace), 3, &trace);
        assert_eq!(ours, best(&trace, 3), "seed {seed}");
    }
}

/// Blocks found when each request in turn takes a chain of blocks from the cache, computes the
/// rest and lets go.
fn chain_hits(mut cache: KvCache, requests: &[Vec<u32>]) -> usize {
    let ns = Namespace::new(&NamespaceKey::default());
    let hits = requests.iter().map(|tokens| chain_pass(&mut cache, &ns, tokens)).sum();
    cache.check().unwrap();
    hits
}

/// One request of blocks of one token. Returns how many were found.
fn chain_pass(cache: &mut KvCache, ns: &Namespace, tokens: &[u32]) -> usize {
    let (tenant, mut table) = (TenantId(0), Vec::new());
    let found = cache.lookup(ns, tenant, tokens, tokens.len(), &mut table);
    let mut chain = found.chain;
    for token in &tokens[found.tokens..] {
        let block = cache.allocate(tenant).expect("the cache holds the longest chain");
        table.push(cache.register(&mut chain, std::slice::from_ref(token), block));
    }
    cache.release_table(&mut table, 0);
    found.tokens
}

/// The most blocks that can be found when a request's whole chain must be in memory at its end, by
/// trying every choice of leaves.
fn best_chain_hits(requests: &[Vec<u32>], capacity: usize) -> usize {
    let mut states: BTreeMap<BTreeSet<Vec<u32>>, usize> = [(BTreeSet::new(), 0)].into();
    for tokens in requests {
        let chain: BTreeSet<Vec<u32>> = (1..=tokens.len()).map(|n| tokens[..n].to_vec()).collect();
        let mut next: BTreeMap<BTreeSet<Vec<u32>>, usize> = BTreeMap::new();
        for (state, hits) in states {
            let hits = hits + state.intersection(&chain).count();
            let mut open = vec![state.union(&chain).cloned().collect::<BTreeSet<_>>()];
            let mut seen = BTreeSet::new();
            while let Some(state) = open.pop() {
                if !seen.insert(state.clone()) {
                    continue;
                }
                if state.len() <= capacity {
                    let best = next.entry(state).or_default();
                    *best = hits.max(*best);
                    continue;
                }
                for node in state.difference(&chain) {
                    let leaf = !state.iter().any(|o| o.len() > node.len() && o.starts_with(node));
                    if leaf {
                        let mut without = state.clone();
                        without.remove(node);
                        open.push(without);
                    }
                }
            }
        }
        states = next;
    }
    states.into_values().max().unwrap()
}

fn chain_config(blocks: usize, eviction: EvictionKind) -> CacheConfig {
    CacheConfig {
        block_tokens: 1,
        block_count: blocks,
        disk_slots: 0,
        eviction,
        prefix_cache: true,
        hash_seed: 3,
    }
}

fn with_belady(blocks: usize, requests: &[Vec<u32>]) -> KvCache {
    let config = chain_config(blocks, EvictionKind::Lru);
    let probe = KvCache::new(config);
    let mut keys = Vec::new();
    for tokens in requests {
        probe.block_keys(&Namespace::new(&NamespaceKey::default()), tokens, &mut keys);
    }
    KvCache::with_policy(config, Box::new(Belady::new(blocks, &keys)))
}

#[test]
fn belady_never_loses_over_chains() {
    for seed in seeds() {
        println!("belady_never_loses_over_chains: DUNLIN_SEED={seed}");
        let mut stream = SeedTree::root(seed).child("belady over chains").stream();
        let mut draw = |requests: usize, longest: u64, width: u64| -> Vec<Vec<u32>> {
            (0..requests)
                .map(|_| {
                    let length = 1 + stream.next_below(longest);
                    (0..length).map(|_| stream.next_below(width) as u32).collect()
                })
                .collect()
        };
        let small = draw(9, 3, 2);
        for capacity in 3..=5 {
            let ours = chain_hits(with_belady(capacity, &small), &small);
            assert_eq!(ours, best_chain_hits(&small, capacity), "{small:?} in {capacity}");
        }
        let large = draw(600, 8, 3);
        for capacity in [8, 20, 100, 400] {
            let belady = chain_hits(with_belady(capacity, &large), &large);
            for kind in EvictionKind::ALL {
                let other = chain_hits(KvCache::new(chain_config(capacity, kind)), &large);
                assert!(belady >= other, "{kind} {other}, Belady {belady}, seed {seed}");
            }
        }
    }
}

/// A cache of chains without an index: prefixes in a map, ranks computed when asked for.
#[derive(Default)]
struct Chains {
    /// prefix: (arrival, idle since, uses, value).
    nodes: BTreeMap<Vec<u32>, (u64, u64, u64, u64)>,
    arrived: u64,
    time: u64,
    age: u64,
}

impl Chains {
    /// How many blocks of the request were found, and what was evicted for it, in order.
    fn request(
        &mut self,
        kind: EvictionKind,
        capacity: usize,
        tokens: &[u32],
    ) -> (usize, Vec<Vec<u32>>) {
        let found = (1..=tokens.len()).take_while(|&n| self.nodes.contains_key(&tokens[..n]));
        let found = found.last().unwrap_or(0);
        for n in 1..=found {
            let node = self.nodes.get_mut(&tokens[..n]).unwrap();
            node.2 += 1;
            node.3 = self.age + node.2 * (4096 + n as u64);
        }
        let mut evicted = Vec::new();
        for n in found + 1..=tokens.len() {
            if self.nodes.len() == capacity {
                let leaf = |key: &Vec<u32>| {
                    !self.nodes.keys().any(|k| k.len() > key.len() && k.starts_with(key))
                };
                let candidates =
                    self.nodes.iter().filter(|(k, _)| !tokens[..n - 1].starts_with(k) && leaf(k));
                let (victim, node) = candidates
                    .min_by_key(|(_, v)| match kind {
                        EvictionKind::Fifo => (v.0, 0),
                        EvictionKind::Lru => (v.1, 0),
                        EvictionKind::Lfu => (v.2, v.1),
                        _ => (v.3, v.1),
                    })
                    .map(|(k, v)| (k.clone(), *v))
                    .unwrap();
                self.age = self.age.max(node.3);
                self.nodes.remove(&victim);
                evicted.push(victim);
            }
            self.arrived += 1;
            let value = self.age + 4096 + n as u64;
            self.nodes.insert(tokens[..n].to_vec(), (self.arrived, 0, 1, value));
        }
        for n in (1..=tokens.len()).rev() {
            self.time += 1;
            self.nodes.get_mut(&tokens[..n]).unwrap().1 = self.time;
        }
        (found, evicted)
    }
}

/// The cache evicts leaf for leaf what the plain model evicts.
#[test]
fn chains_follow_the_textbook() {
    let ns = Namespace::new(&NamespaceKey::default());
    let kinds = [EvictionKind::Lru, EvictionKind::Lfu, EvictionKind::Fifo, EvictionKind::Gdsf];
    let mut evictions = 0;
    for seed in seeds() {
        println!("chains_follow_the_textbook: DUNLIN_SEED={seed}");
        for kind in kinds {
            let mut stream = SeedTree::root(seed).child("chains").stream();
            let capacity = 6 + stream.next_below(30) as usize;
            let mut cache = KvCache::new(chain_config(capacity, kind));
            let mut model = Chains::default();
            for at in 0..150 {
                let length = 1 + stream.next_below(6);
                let tokens: Vec<u32> = (0..length).map(|_| stream.next_below(3) as u32).collect();
                let (found, evicted) = model.request(kind, capacity, &tokens);
                let before = cache.stats();
                let hits = chain_pass(&mut cache, &ns, &tokens);
                assert_eq!(hits, found, "{kind}, request {at} of seed {seed}");
                let count = cache.stats().evictions - before.evictions;
                assert_eq!(count, evicted.len() as u64, "{kind}, request {at} of seed {seed}");
                for prefix in &evicted {
                    let there = model.nodes.contains_key(prefix);
                    assert_eq!(cache.peek(&ns, prefix, prefix.len()) == prefix.len(), there);
                }
                for prefix in model.nodes.keys() {
                    assert_eq!(cache.peek(&ns, prefix, prefix.len()), prefix.len());
                }
                evictions += count;
            }
        }
    }
    assert!(evictions > 1000);
}
