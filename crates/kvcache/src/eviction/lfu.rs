//! LFU: the block that was used least often goes first; among equals, the one idle longest.
//!
//! Uses are counted while the block is in memory and forgotten when it goes ("in-cache" LFU).

use super::ranked::Ranked;
use super::{Entry, EvictionPolicy, Removal};

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    count: u64,
    idle_since: u64,
    group: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Lfu {
    leaves: Ranked,
    nodes: Vec<Use>,
    time: u64,
}

impl Lfu {
    /// For nodes `0..nodes`.
    pub fn new(nodes: usize) -> Self {
        Self { leaves: Ranked::new(nodes), nodes: vec![Use::default(); nodes], time: 0 }
    }
}

impl EvictionPolicy for Lfu {
    fn insert(&mut self, node: u32, entry: Entry) {
        self.nodes[node as usize] = Use { count: 1, idle_since: 0, group: entry.group };
    }

    fn hit(&mut self, node: u32) {
        self.nodes[node as usize].count += 1;
    }

    fn hold(&mut self, node: u32) {
        self.leaves.remove(node, self.nodes[node as usize].group);
    }

    fn idle(&mut self, node: u32) {
        self.time += 1;
        self.nodes[node as usize].idle_since = self.time;
    }

    fn leaf(&mut self, node: u32) {
        let used = self.nodes[node as usize];
        self.leaves.insert(node, used.group, (used.count, used.idle_since));
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
