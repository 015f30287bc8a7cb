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
    context_as_weights: u64,
    /// The value of what was last evicted.
    age: u64,
    time: u64,
}

impl Gdsf {
    /// For nodes `0..nodes` and a small model.
    pub fn new(nodes: usize) -> Self {
        Self::with_context(nodes, CONTEXT_AS_WEIGHTS)
    }

    /// For nodes `0..nodes` and a model that reads `context_as_weights` tokens of context in the time
    /// in which it reads its weights. A token at position p then costs `context_as_weights + p`.
    pub fn with_context(nodes: usize, context_as_weights: u64) -> Self {
        Self {
            leaves: Ranked::new(nodes),
            nodes: vec![Worth::default(); nodes],
            context_as_weights,
            age: 0,
            time: 0,
        }
    }
}

impl EvictionPolicy for Gdsf {
    fn insert(&mut self, node: u32, entry: Entry) {
        let cost = self.context_as_weights + entry.end_tokens;
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

    fn track_groups(&mut self) {
        let nodes = &self.nodes;
        self.leaves.track_groups(|node| nodes[node as usize].group);
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        self.leaves.first(group)
    }
}
