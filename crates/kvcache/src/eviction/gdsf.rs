//! GDSF (greedy dual size frequency; Cherkasova 1998): value = age + uses x cost / size.
//!
//! A block's size is 1. Its cost is what computing it again takes: each of its tokens goes through
//! the weights, and attends to everything before it. The age of the cache is the value of what was
//! last evicted, so a block that was once popular does not stay for ever. Values are integers.

use super::ranked::Ranked;
use super::{Entry, EvictionPolicy, Removal};

/// Tokens of context at which reading the context costs as much as the weights do. It depends on
/// the model; this is the order of magnitude for small ones.
const CONTEXT_AS_WEIGHTS: u64 = 4096;

#[derive(Debug, Clone, Copy, Default)]
struct Worth {
    uses: u64,
    cost: u64,
    value: u64,
    idle_since: u64,
    group: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Gdsf {
    leaves: Ranked,
    nodes: Vec<Worth>,
    /// The value of what was last evicted.
    age: u64,
    time: u64,
}

impl Gdsf {
    /// For nodes `0..nodes`.
    pub fn new(nodes: usize) -> Self {
        Self { leaves: Ranked::new(nodes), nodes: vec![Worth::default(); nodes], age: 0, time: 0 }
    }

    /// What computing a block that ends at this token costs, for each of its tokens.
    pub const fn cost(end_tokens: u64) -> u64 {
        CONTEXT_AS_WEIGHTS + end_tokens
    }
}

impl EvictionPolicy for Gdsf {
    fn insert(&mut self, node: u32, entry: Entry) {
        let cost = Self::cost(entry.end_tokens);
        let value = self.age.saturating_add(cost);
        let group = entry.group;
        self.nodes[node as usize] = Worth { uses: 1, cost, value, idle_since: 0, group };
    }

    fn hit(&mut self, node: u32) {
        let worth = &mut self.nodes[node as usize];
        worth.uses += 1;
        worth.value = self.age.saturating_add(worth.uses.saturating_mul(worth.cost));
    }

    fn hold(&mut self, node: u32) {
        self.leaves.remove(node, self.nodes[node as usize].group);
    }

    fn idle(&mut self, node: u32) {
        self.time += 1;
        self.nodes[node as usize].idle_since = self.time;
    }

    fn leaf(&mut self, node: u32) {
        let worth = self.nodes[node as usize];
        self.leaves.insert(node, worth.group, (worth.value, worth.idle_since));
    }

    fn remove(&mut self, node: u32, why: Removal) {
        self.hold(node);
        if why == Removal::Evicted {
            // A tenant at its budget may give up a block younger than the cache's oldest.
            self.age = self.age.max(self.nodes[node as usize].value);
        }
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        self.leaves.first(group)
    }
}
