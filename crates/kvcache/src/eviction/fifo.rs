//! FIFO: the block that came first goes first, however often it was used since.

use super::ranked::Ranked;
use super::{Entry, EvictionPolicy, Removal};

/// See the module.
#[derive(Debug)]
pub struct Fifo {
    leaves: Ranked,
    /// (order of arrival, group) for each node.
    nodes: Vec<(u64, u32)>,
    arrived: u64,
}

impl Fifo {
    /// For nodes `0..nodes`.
    pub fn new(nodes: usize) -> Self {
        Self { leaves: Ranked::new(nodes), nodes: vec![(0, 0); nodes], arrived: 0 }
    }
}

impl EvictionPolicy for Fifo {
    fn insert(&mut self, node: u32, entry: Entry) {
        self.arrived += 1;
        self.nodes[node as usize] = (self.arrived, entry.group);
    }

    fn hit(&mut self, _node: u32) {}

    fn hold(&mut self, node: u32) {
        self.leaves.remove(node, self.nodes[node as usize].1);
    }

    fn idle(&mut self, _node: u32) {}

    fn leaf(&mut self, node: u32) {
        let (arrived, group) = self.nodes[node as usize];
        self.leaves.insert(node, group, (arrived, 0));
    }

    fn remove(&mut self, node: u32, _why: Removal) {
        self.hold(node);
    }

    fn track_groups(&mut self) {
        let nodes = &self.nodes;
        self.leaves.track_groups(|node| nodes[node as usize].1);
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        self.leaves.first(group)
    }
}
