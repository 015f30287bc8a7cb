//! Belady's MIN: the block whose next use is farthest away goes first. It needs the future, so it
//! is a bound to compare with and never a setting.

use std::collections::VecDeque;

use super::ranked::Ranked;
use super::{Entry, EvictionPolicy, Removal};
use crate::tenants::IdMap;

#[derive(Debug, Clone, Copy, Default)]
struct Next {
    key: u64,
    idle_since: u64,
    group: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Belady {
    leaves: Ranked,
    nodes: Vec<Next>,
    /// For each key the times at which it will be used, the next first.
    uses: IdMap<u64, VecDeque<u64>>,
    time: u64,
}

impl Belady {
    /// For nodes `0..nodes`, and every use to come: the keys in the order in which the cache will
    /// be asked for them, whether they will be found or not.
    pub fn new(nodes: usize, future: &[u64]) -> Self {
        let mut uses: IdMap<u64, VecDeque<u64>> = IdMap::default();
        for (time, &key) in (0..).zip(future) {
            uses.entry(key).or_default().push_back(time);
        }
        Self { leaves: Ranked::new(nodes), nodes: vec![Next::default(); nodes], uses, time: 0 }
    }

    fn use_up(&mut self, key: u64) {
        if let Some(times) = self.uses.get_mut(&key) {
            times.pop_front();
        }
    }
}

impl EvictionPolicy for Belady {
    fn insert(&mut self, node: u32, entry: Entry) {
        self.nodes[node as usize] = Next { key: entry.key, idle_since: 0, group: entry.group };
        self.use_up(entry.key);
    }

    fn hit(&mut self, node: u32) {
        self.use_up(self.nodes[node as usize].key);
    }

    fn hold(&mut self, node: u32) {
        self.leaves.remove(node, self.nodes[node as usize].group);
    }

    fn idle(&mut self, node: u32) {
        self.time += 1;
        self.nodes[node as usize].idle_since = self.time;
    }

    fn leaf(&mut self, node: u32) {
        let next = self.nodes[node as usize];
        let time = self.uses.get(&next.key).and_then(|t| t.front()).copied().unwrap_or(u64::MAX);
        self.leaves.insert(node, next.group, (u64::MAX - time, next.idle_since));
    }

    fn remove(&mut self, node: u32, _why: Removal) {
        self.hold(node);
    }

    fn track_groups(&mut self) {
        let nodes = &self.nodes;
        self.leaves.track_groups(|node| nodes[node as usize].group);
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        self.leaves.first(group)
    }
}
