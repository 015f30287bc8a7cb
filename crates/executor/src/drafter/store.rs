//! What followed the same tokens in earlier answers of the same tenant, or in a corpus that the
//! operator gives: retrieval.
//!
//! Answers enter when they end, with the end of their prompt before them. They are found by their
//! last few tokens, through chains of earlier places of the same hash (as in LZ77); of the newest
//! places the one with the longest match counts, and where others went on differently the draft has
//! branches. A tenant's answers are never looked at for another: neither tokens nor time tell of
//! them. Memory is bounded: a tenant's oldest answers are written over, and tenants that have not been
//! seen for longest are forgotten.

use std::collections::BTreeMap;

use dunlin_kvcache::TenantId;
use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DrafterKind, Proposal};

use super::{
    Wanted,
    best_first::{BestFirst, Offer},
    lookup::confidence,
};

/// Tokens by which a place is found.
const KEY: usize = 4;
/// Places that are looked at.
const LOOK: usize = 8;
/// The longest match that is told from longer ones.
const LONGEST: usize = 64;
/// Tokens of the prompt that are kept before an answer.
const PROMPT_KEPT: usize = 32;
/// The fewest tokens that a store has room for, once it has any.
const SMALLEST: usize = 1 << 12;
/// A draft ends where the probability that all of it is right falls below this.
const STOP_BELOW: f64 = 0.02;
/// Between answers. No vocabulary has so many tokens.
const BORDER: u32 = u32::MAX;

/// See the module.
#[derive(Debug, Default)]
pub struct StoreDrafter {
    /// Tokens that all tenants' answers may have together.
    capacity: usize,
    tenants: BTreeMap<TenantId, Known>,
    /// For all tenants.
    corpus: Option<Texts>,
    uses: u64,
}

/// A tenant's answers.
#[derive(Debug)]
struct Known {
    texts: Texts,
    used: u64,
}

impl StoreDrafter {
    /// A store of at most so many tokens over all tenants; of none where that is 0.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: if capacity < SMALLEST { 0 } else { capacity }, ..Self::default() }
    }

    /// Whether anything could be found or kept.
    pub fn is_on(&self) -> bool {
        self.capacity > 0 || self.corpus.is_some()
    }

    /// Adds a text that drafts for everyone may come from. It is kept whole.
    pub fn add_corpus(&mut self, tokens: &[u32]) {
        let had = self.corpus.as_ref().map_or(0, Texts::len);
        let mut corpus = Texts::new((had + tokens.len() + 1).next_power_of_two());
        if let Some(old) = &self.corpus {
            old.all().for_each(|token| corpus.push(token));
        }
        corpus.add(tokens);
        self.corpus = Some(corpus);
    }

    /// Takes up an answer: all of the sequence's tokens, of which the first `prompt_len` are the
    /// prompt.
    pub fn remember(&mut self, tenant: TenantId, tokens: &[u32], prompt_len: usize) {
        let kept = &tokens[prompt_len.saturating_sub(PROMPT_KEPT).min(tokens.len())..];
        // One that would fill the store would leave nothing else.
        let kept = &kept[kept.len().saturating_sub(self.capacity / 4)..];
        if kept.len() <= KEY {
            return;
        }
        self.uses += 1;
        let used = self.uses;
        let known = self.tenants.entry(tenant);
        let known = known.or_insert_with(|| Known { texts: Texts::new(SMALLEST), used });
        known.used = used;
        let most = largest_power(self.capacity);
        while known.texts.len() + kept.len() >= known.texts.room() && known.texts.room() < most {
            known.texts.grow();
        }
        known.texts.add(kept);
        self.keep_to_capacity(tenant);
    }

    /// Forgets those who were not seen for longest, until the rest fits.
    fn keep_to_capacity(&mut self, newest: TenantId) {
        while self.tenants.values().map(|k| k.texts.room()).sum::<usize>() > self.capacity {
            let others = self.tenants.iter().filter(|(tenant, _)| **tenant != newest);
            let Some((&oldest, _)) = others.min_by_key(|(_, known)| known.used) else { break };
            self.tenants.remove(&oldest);
        }
    }

    /// Forgets all answers; the corpus stays.
    pub fn forget(&mut self) {
        self.tenants.clear();
    }

    /// What may follow a sequence of a tenant, where that is known from a match of more than
    /// `longer_than` tokens.
    pub fn propose(
        &mut self,
        tenant: TenantId,
        wanted: &Wanted<'_>,
        longer_than: usize,
    ) -> Option<Proposal> {
        self.uses += 1;
        if let Some(known) = self.tenants.get_mut(&tenant) {
            known.used = self.uses;
        }
        let own = self.tenants.get(&tenant).map(|known| &known.texts);
        let found = [own, self.corpus.as_ref()].into_iter().flatten().filter_map(|texts| {
            let places = texts.find(wanted.tokens);
            Some((places.first()?.len, texts, places))
        });
        // Of equals the tenant's own.
        let (len, texts, places) =
            found.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
        if len <= longer_than {
            return None;
        }
        let nodes = texts.draft(places, wanted);
        (!nodes.is_empty()).then_some(Proposal {
            seq: wanted.seq,
            drafter: DrafterKind::Store,
            nodes,
        })
    }
}

/// The largest power of two that is no more than `n`, which is not 0.
fn largest_power(n: usize) -> usize {
    1 << n.ilog2()
}

/// A place that the last tokens of a sequence stand before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// Tokens added before it, but for wrapping.
    at: u32,
    /// Tokens that match.
    len: usize,
}

/// Texts one after the other in a ring, and where to find what follows any few tokens of them.
#[derive(Debug)]
struct Texts {
    /// A power of two of them.
    ring: Vec<u32>,
    /// Tokens ever added, but for wrapping: the place of the next.
    head: u32,
    len: usize,
    /// For each hash, the place behind the last tokens that have it, and one more; 0 for none.
    first: Vec<u32>,
    /// For each place of the ring, the same for the tokens before it.
    earlier: Vec<u32>,
}

impl Texts {
    fn new(room: usize) -> Self {
        let ring = vec![BORDER; room];
        Self { ring, head: 0, len: 0, first: vec![0; room], earlier: vec![0; room] }
    }

    fn room(&self) -> usize {
        self.ring.len()
    }

    /// Tokens and borders that are held.
    fn len(&self) -> usize {
        self.len
    }

    /// All that is held, oldest first.
    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        (1..=self.len as u32).rev().map(|back| self.before(self.head, back as usize))
    }

    /// The token `back` places before `at`.
    fn before(&self, at: u32, back: usize) -> u32 {
        self.ring[at.wrapping_sub(back as u32) as usize & (self.ring.len() - 1)]
    }

    /// How many tokens before `at` are still held.
    fn held_before(&self, at: u32) -> usize {
        self.len.saturating_sub(self.head.wrapping_sub(at) as usize)
    }

    fn slot(&self, key: [u32; KEY]) -> usize {
        let hash = key.iter().fold(0u64, |hash, &token| {
            (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (hash >> 20) as usize & (self.first.len() - 1)
    }

    fn push(&mut self, token: u32) {
        let room = self.ring.len();
        self.ring[self.head as usize & (room - 1)] = token;
        self.head = self.head.wrapping_add(1);
        self.len = (self.len + 1).min(room);
        let at = self.head;
        let mut before = 0;
        if self.len >= KEY {
            let key = std::array::from_fn(|i| self.before(at, KEY - i));
            if !key.contains(&BORDER) {
                let slot = self.slot(key);
                before = std::mem::replace(&mut self.first[slot], at);
            }
        }
        self.earlier[at as usize & (room - 1)] = before;
    }

    fn add(&mut self, text: &[u32]) {
        text.iter().for_each(|&token| self.push(token));
        self.push(BORDER);
    }

    /// Doubles the room.
    fn grow(&mut self) {
        let mut larger = Self::new(2 * self.ring.len());
        self.all().for_each(|token| larger.push(token));
        *self = larger;
    }

    /// How many of the last of `tokens` stand before `at`.
    fn matches(&self, at: u32, tokens: &[u32]) -> usize {
        let most = tokens.len().min(LONGEST).min(self.held_before(at));
        (1..=most).take_while(|&back| self.before(at, back) == tokens[tokens.len() - back]).count()
    }

    /// Places of these tokens, as many of the last of them as there are: the longest match first, of
    /// equals the newest.
    fn find(&self, tokens: &[u32]) -> Vec<Place> {
        let mut places = Vec::new();
        let Some(&key) = tokens.last_chunk() else { return places };
        let mut at = self.first[self.slot(key)];
        for _ in 0..LOOK {
            // What was written over since is no place any more.
            if at == 0 || self.held_before(at) < KEY || at == self.head {
                break;
            }
            let len = self.matches(at, tokens);
            if len >= KEY {
                places.push(Place { at, len });
            }
            let next = self.earlier[at as usize & (self.ring.len() - 1)];
            // Chains lead back.
            if next == 0 || self.held_before(next) >= self.held_before(at) {
                break;
            }
            at = next;
        }
        places.sort_by_key(|place| std::cmp::Reverse(place.len));
        places
    }

    /// What follows a place, and the place behind it; none at the end of a text.
    fn follow(&self, place: Place) -> Option<(u32, Place)> {
        let at = place.at.wrapping_add(1);
        let token = (place.at != self.head).then(|| self.before(at, 1));
        token
            .filter(|&token| token != BORDER)
            .map(|token| (token, Place { at, len: place.len + 1 }))
    }

    /// What follows these places, the longest match first, as a draft.
    fn draft(&self, places: Vec<Place>, wanted: &Wanted<'_>) -> Vec<DraftNode> {
        let stop = STOP_BELOW.max(f64::from(wanted.stop_below) / f64::from(CONFIDENCE_ONE));
        let mut tree = BestFirst::new(DrafterKind::Store, wanted.nodes, wanted.branches);
        let offer = |tree: &mut BestFirst<_>, parent, places: &[Place], before: f64| {
            for (token, sure, place) in self.followers(places) {
                let all = before * sure;
                if all >= stop {
                    tree.offer(Offer { parent, token, sure, all, place: (place, all) });
                }
            }
        };
        offer(&mut tree, DraftNode::ROOT, &places, 1.0);
        while let Some(at) = tree.grow() {
            let (places, all) = tree.place(at).clone();
            offer(&mut tree, at, &places, all);
        }
        tree.into_nodes()
    }

    /// The tokens that follow these places, the longest match first, with their probabilities and the
    /// places behind each. Those of shorter matches share what longer ones leave.
    fn followers(&self, places: &[Place]) -> Vec<(u32, f64, Vec<Place>)> {
        let mut all: Vec<(u32, f64, Vec<Place>)> = Vec::new();
        for (token, place) in places.iter().filter_map(|&place| self.follow(place)) {
            match all.iter_mut().find(|known| known.0 == token) {
                Some(known) => known.2.push(place),
                None => all.push((token, 0.0, vec![place])),
            }
        }
        let mut left = 1.0;
        for same in all.chunk_by_mut(|a, b| a.2[0].len == b.2[0].len) {
            // The newest of them first.
            let (ways, sure) = (same.len() as f64, confidence(same[0].2[0].len - 1, 1));
            for (rank, known) in (0..).zip(same) {
                let share = 2.0 * (ways - f64::from(rank)) / (ways * (ways + 1.0));
                known.1 = left * sure * share;
            }
            left *= 1.0 - sure;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use dunlin_units::{SeedTree, SeqId};

    use super::*;
    use crate::sampler::SamplingParams;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn wanted<'a>(tokens: &'a [u32], branches: usize, sampling: &'a SamplingParams) -> Wanted<'a> {
        Wanted {
            seq: SeqId(7),
            tokens,
            nodes: 6,
            depth: 6,
            branches,
            stop_below: 0,
            context: usize::MAX,
            sampling,
            prompt_len: 0,
            choice: 0,
            draws: false,
        }
    }

    /// A draft without branches.
    fn propose(store: &mut StoreDrafter, tenant: TenantId, tokens: &[u32]) -> Vec<u32> {
        let sampling = SamplingParams::greedy();
        let wanted = wanted(tokens, 1, &sampling);
        let Some(proposal) = store.propose(tenant, &wanted, 0) else { return Vec::new() };
        assert_eq!((proposal.seq, proposal.drafter), (SeqId(7), DrafterKind::Store));
        for (node, i) in proposal.nodes.iter().zip(0u32..) {
            assert_eq!(node.parent, i.checked_sub(1).unwrap_or(DraftNode::ROOT));
            assert!(node.confidence <= CONFIDENCE_ONE);
        }
        proposal.nodes.iter().map(|n| n.token).collect()
    }

    /// The tokens from the root to each node.
    fn paths(nodes: &[DraftNode]) -> Vec<Vec<u32>> {
        let mut paths: Vec<Vec<u32>> = Vec::new();
        for node in nodes {
            let before = paths.get(node.parent as usize).cloned().unwrap_or_default();
            paths.push([before, vec![node.token]].concat());
        }
        paths
    }

    #[test]
    fn where_answers_went_on_differently_there_are_branches() {
        let mut store = StoreDrafter::new(SMALLEST);
        for answer in [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [1, 2, 3, 4, 7, 9]] {
            store.remember(A, &answer, 0);
        }
        store.remember(A, &[0, 1, 2, 3, 4, 10], 0);
        let sampling = SamplingParams::greedy();
        let mut nodes = |tokens: &[u32], branches| {
            store.propose(A, &wanted(tokens, branches, &sampling), 0).unwrap().nodes
        };
        let tree = nodes(&[1, 2, 3, 4], 8);
        let found = paths(&tree);
        // The newest first of each place's; the longer match first of all.
        assert_eq!(found[0], [10]);
        for path in [&[7][..], &[7, 9], &[7, 8], &[5], &[5, 6]] {
            assert!(found.iter().any(|found| found == path), "{path:?} of {found:?}");
        }
        for parent in (0..found.len() as u32).chain([DraftNode::ROOT]) {
            let children = tree.iter().filter(|node| node.parent == parent);
            let all: u64 = children.map(|node| u64::from(node.confidence)).sum();
            assert!(all <= u64::from(CONFIDENCE_ONE));
        }
        let longer = nodes(&[0, 1, 2, 3, 4], 8);
        assert_eq!(paths(&longer)[0], [10]);
        assert!(longer[0].confidence > tree[0].confidence, "others match less");
        assert_eq!(paths(&nodes(&[1, 2, 3, 4, 7], 1)), [vec![9]]);
    }

    #[test]
    fn an_answer_is_found_by_its_tenant_alone() {
        let mut store = StoreDrafter::new(SMALLEST);
        store.remember(A, &[50, 51, 1, 2, 3, 4, 5, 6, 7], 2);
        assert_eq!(propose(&mut store, A, &[9, 1, 2, 3, 4]), [5, 6, 7]);
        assert_eq!(propose(&mut store, A, &[50, 51, 1, 2]), [3, 4, 5, 6, 7], "from its prompt on");
        assert_eq!(propose(&mut store, B, &[9, 1, 2, 3, 4]), [0u32; 0]);
        assert_eq!(propose(&mut store, A, &[2, 3, 4]), [0u32; 0], "too short to be found");
        // The longest match counts, and of equals the newest.
        store.remember(A, &[8, 2, 3, 4, 5, 70, 71], 0);
        assert_eq!(propose(&mut store, A, &[8, 2, 3, 4, 5]), [70, 71]);
        assert_eq!(propose(&mut store, A, &[1, 2, 3, 4, 5]), [6, 7]);
        assert_eq!(propose(&mut store, A, &[0, 2, 3, 4, 5]), [70, 71]);
        store.forget();
        assert_eq!(propose(&mut store, A, &[9, 1, 2, 3, 4]), [0u32; 0]);
    }

    #[test]
    fn a_corpus_is_everyones() {
        let mut store = StoreDrafter::new(0);
        assert!(!store.is_on());
        store.add_corpus(&[1, 2, 3, 4, 5]);
        store.add_corpus(&[6, 7, 8, 9, 10, 11]);
        assert!(store.is_on());
        for tenant in [A, B] {
            assert_eq!(propose(&mut store, tenant, &[1, 2, 3, 4]), [5]);
            assert_eq!(propose(&mut store, tenant, &[6, 7, 8, 9]), [10, 11]);
        }
        // Without room for answers none is kept.
        store.remember(A, &[20, 21, 22, 23, 24, 25], 0);
        assert_eq!(propose(&mut store, A, &[20, 21, 22, 23]), [0u32; 0]);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes() {
        let mut store = StoreDrafter::new(4 * SMALLEST);
        let answer = |n: u32| (0..100).map(|i| n * 1000 + i).collect::<Vec<u32>>();
        for n in 0..1000 {
            store.remember(A, &answer(n), 0);
        }
        assert_eq!(store.tenants[&A].texts.room(), 4 * SMALLEST);
        assert_eq!(propose(&mut store, A, &answer(999)[..5])[0], 999_005);
        assert_eq!(propose(&mut store, A, &answer(0)[..5]), [0u32; 0]);
        // Others take the place of whoever was not seen for longest.
        for tenant in 2..6 {
            store.remember(TenantId(tenant), &answer(tenant), 0);
            let all: usize = store.tenants.values().map(|known| known.texts.room()).sum();
            assert!(all <= 4 * SMALLEST, "{all}");
        }
        assert!(!store.tenants.contains_key(&A) && store.tenants.contains_key(&B));
        assert_eq!(propose(&mut store, B, &answer(2)[..5])[0], 2005);
        // An answer as large as the store keeps its end.
        let long: Vec<u32> = (0..100_000).collect();
        store.remember(B, &long, 0);
        assert_eq!(propose(&mut store, B, &[99_990, 99_991, 99_992, 99_993])[0], 99_994);
    }

    /// Whatever was added, a place that is found is a true one.
    #[test]
    fn what_is_found_was_there() {
        for seed in 0..20u64 {
            let mut random = SeedTree::root(seed).child("store").stream();
            let mut texts = Texts::new(64);
            // Close to where places wrap around.
            texts.head = u32::MAX - 300;
            let mut all = Vec::new();
            for _ in 0..200 {
                let text: Vec<u32> =
                    (0..1 + random.next_below(12)).map(|_| random.next_below(3) as u32).collect();
                texts.add(&text);
                all.extend(&text);
                all.push(BORDER);
                assert!(all.ends_with(&texts.all().collect::<Vec<_>>()), "seed {seed}");
                let tail: Vec<u32> = (0..8).map(|_| random.next_below(3) as u32).collect();
                let held = &all[all.len().saturating_sub(64)..];
                for Place { at, len } in texts.find(&tail) {
                    let place = held.len() - texts.head.wrapping_sub(at) as usize;
                    assert!(len >= KEY && place < held.len(), "seed {seed}");
                    assert_eq!(held[place - len..place], tail[8 - len..], "seed {seed}");
                }
                let sampling = SamplingParams::greedy();
                let tree = texts.draft(texts.find(&tail), &wanted(&tail, 3, &sampling));
                assert!(tree.len() <= 6);
                for path in paths(&tree) {
                    let text = [&tail[8 - KEY..], &path].concat();
                    let there = held.windows(text.len()).any(|window| window == text);
                    assert!(there, "seed {seed}: {path:?} after {tail:?}");
                }
            }
        }
    }
}
