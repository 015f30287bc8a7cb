//! ARC (adaptive replacement cache; Megiddo and Modha, FAST 2003).
//!
//! Blocks used once since they came are in T1, those used again in T2. B1 and B2 remember the keys
//! of what each lost lately. A block that comes back from B1 shows that T1 was too small, one from B2
//! that T2 was, and the share of T1 moves accordingly.
//!
//! The paper makes room for a block that it knows. A serving cache makes room first and learns the
//! key when the block is computed, so the share moves then; [`EvictionPolicy::announce`] restores
//! the paper's order where the key is known.

use super::ranked::Ranked;
use super::{Entry, EvictionPolicy, Lists, Removal};
use crate::tenants::IdMap;

const RECENT: usize = 0;
const FREQUENT: usize = 1;

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    key: u64,
    idle_since: u64,
    group: u32,
    /// In T2 and not in T1.
    frequent: bool,
}

/// Keys of what was evicted: B1 and B2 as lists of entries, oldest first.
#[derive(Debug)]
struct Ghosts {
    /// (key, which list) for each entry.
    entries: Vec<(u64, usize)>,
    free: Vec<u32>,
    lists: Lists,
    lengths: [usize; 2],
    by_key: IdMap<u64, u32>,
}

impl Ghosts {
    fn new(capacity: usize) -> Self {
        Self {
            entries: vec![(0, 0); capacity],
            free: (0..capacity as u32).rev().collect(),
            lists: Lists::new(capacity),
            lengths: [0; 2],
            by_key: IdMap::with_capacity_and_hasher(capacity, <_>::default()),
        }
    }

    fn which(&self, key: u64) -> Option<usize> {
        self.by_key.get(&key).map(|&at| self.entries[at as usize].1)
    }

    fn push(&mut self, list: usize, key: u64) {
        let at = self.free.pop().expect("trimmed before");
        self.entries[at as usize] = (key, list);
        self.lists.push_back(list as u32, at);
        self.lengths[list] += 1;
        if let Some(older) = self.by_key.insert(key, at) {
            // Two nodes whose hashes are equal: the later counts.
            self.unlink(older);
        }
    }

    fn forget(&mut self, key: u64) {
        if let Some(at) = self.by_key.remove(&key) {
            self.unlink(at);
        }
    }

    fn unlink(&mut self, at: u32) {
        let list = self.entries[at as usize].1;
        self.lists.remove(list as u32, at);
        self.lengths[list] -= 1;
        self.free.push(at);
    }

    /// Forgets the oldest of a list.
    fn drop_oldest(&mut self, list: usize) -> bool {
        let Some(at) = self.lists.first(list as u32) else { return false };
        self.forget(self.entries[at as usize].0);
        true
    }
}

/// See the module.
#[derive(Debug)]
pub struct Arc {
    /// Idle leaves of T1 and of T2, longest idle first.
    leaves: [Ranked; 2],
    /// |T1| and |T2|, held nodes included.
    lengths: [usize; 2],
    nodes: Vec<Page>,
    ghosts: Ghosts,
    capacity: usize,
    /// The paper's p: how many blocks T1 should have.
    target: usize,
    /// A key that was announced, and the list of ghosts that it was in.
    announced: Option<(u64, Option<usize>)>,
    time: u64,
}

impl Arc {
    /// For nodes `0..nodes`, at most `blocks` of them in memory.
    pub fn new(nodes: usize, blocks: usize) -> Self {
        Self {
            leaves: [Ranked::new(nodes), Ranked::new(nodes)],
            lengths: [0; 2],
            nodes: vec![Page::default(); nodes],
            // An eviction adds a ghost before the arrival that it makes room for trims them, and
            // several evictions may come in a row.
            ghosts: Ghosts::new(2 * blocks + 2),
            capacity: blocks,
            target: 0,
            announced: None,
            time: 0,
        }
    }

    /// How many blocks T1 should have.
    pub const fn target(&self) -> usize {
        self.target
    }

    /// Moves the target when a key comes back, and says from which list.
    fn adapt(&mut self, key: u64) -> Option<usize> {
        let list = self.ghosts.which(key)?;
        let [b1, b2] = self.ghosts.lengths;
        if list == RECENT {
            self.target = (self.target + (b2 / b1).max(1)).min(self.capacity);
        } else {
            self.target = self.target.saturating_sub((b1 / b2).max(1));
        }
        Some(list)
    }

    /// |T1|+|B1| at most the capacity, and all four lists at most twice that.
    fn trim(&mut self) {
        while self.lengths[RECENT] + self.ghosts.lengths[RECENT] > self.capacity
            && self.ghosts.drop_oldest(RECENT)
        {}
        while self.lengths.iter().chain(&self.ghosts.lengths).sum::<usize>() > 2 * self.capacity
            && self.ghosts.drop_oldest(FREQUENT)
        {}
    }

    fn list(&self, node: u32) -> usize {
        usize::from(self.nodes[node as usize].frequent)
    }
}

impl EvictionPolicy for Arc {
    fn insert(&mut self, node: u32, entry: Entry) {
        let from = match self.announced.take() {
            Some((key, from)) if key == entry.key => from,
            _ => self.adapt(entry.key),
        };
        let frequent = from.is_some();
        if frequent {
            self.ghosts.forget(entry.key);
        }
        self.nodes[node as usize] =
            Page { key: entry.key, idle_since: 0, group: entry.group, frequent };
        self.lengths[usize::from(frequent)] += 1;
        self.trim();
    }

    fn hit(&mut self, node: u32) {
        self.lengths[self.list(node)] -= 1;
        self.nodes[node as usize].frequent = true;
        self.lengths[FREQUENT] += 1;
    }

    fn hold(&mut self, node: u32) {
        self.leaves[self.list(node)].remove(node, self.nodes[node as usize].group);
    }

    fn idle(&mut self, node: u32) {
        self.time += 1;
        self.nodes[node as usize].idle_since = self.time;
    }

    fn leaf(&mut self, node: u32) {
        let page = self.nodes[node as usize];
        self.leaves[self.list(node)].insert(node, page.group, (page.idle_since, 0));
    }

    fn remove(&mut self, node: u32, why: Removal) {
        self.hold(node);
        let list = self.list(node);
        self.lengths[list] -= 1;
        if why == Removal::Evicted {
            if self.ghosts.free.is_empty() {
                // Only after many evictions without an arrival.
                let longer = usize::from(self.ghosts.lengths[1] > self.ghosts.lengths[0]);
                self.ghosts.drop_oldest(longer);
            }
            self.ghosts.push(list, self.nodes[node as usize].key);
        }
    }

    fn announce(&mut self, key: u64) {
        self.announced = Some((key, self.adapt(key)));
    }

    fn track_groups(&mut self) {
        for list in &mut self.leaves {
            let nodes = &self.nodes;
            list.track_groups(|node| nodes[node as usize].group);
        }
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        let from_frequent_ghosts = matches!(self.announced, Some((_, Some(FREQUENT))));
        let recent = self.lengths[RECENT];
        let t1_first =
            recent > 0 && (recent > self.target || from_frequent_ghosts && recent == self.target);
        let order = if t1_first { [RECENT, FREQUENT] } else { [FREQUENT, RECENT] };
        let [first, second] = order;
        self.leaves[first].first(group).or_else(|| self.leaves[second].first(group))
    }
}
