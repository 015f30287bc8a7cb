//! LRU: the block that has been idle longest goes first.
//!
//! One list of all idle nodes in the order in which they became so, and one for each group where
//! groups are asked for. A node goes idle after everything below it, so the front of the list is a
//! leaf without a search.

use super::{Entry, EvictionPolicy, Lists, Removal};

/// See the module.
#[derive(Debug)]
pub struct Lru {
    all: Lists,
    by_group: Option<Lists>,
    group: Vec<u32>,
}

impl Lru {
    /// For nodes `0..nodes`.
    pub fn new(nodes: usize) -> Self {
        Self { all: Lists::new(nodes), by_group: None, group: vec![0; nodes] }
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, node: u32, entry: Entry) {
        self.group[node as usize] = entry.group;
    }

    fn hit(&mut self, _node: u32) {}

    fn hold(&mut self, node: u32) {
        self.all.remove(0, node);
        if let Some(groups) = &mut self.by_group {
            groups.remove(self.group[node as usize], node);
        }
    }

    fn idle(&mut self, node: u32) {
        self.all.push_back(0, node);
        if let Some(groups) = &mut self.by_group {
            groups.push_back(self.group[node as usize], node);
        }
    }

    fn leaf(&mut self, _node: u32) {}

    fn remove(&mut self, node: u32, _why: Removal) {
        if self.all.contains(node) {
            self.hold(node);
        }
    }

    fn track_groups(&mut self) {
        let (all, group) = (&self.all, &self.group);
        self.by_group.get_or_insert_with(|| {
            let mut groups = Lists::new(group.len());
            all.iter(0).for_each(|node| groups.push_back(group[node as usize], node));
            groups
        });
    }

    fn victim(&mut self, group: Option<u32>) -> Option<u32> {
        match group {
            None => self.all.first(0),
            Some(group) => self.by_group.as_ref()?.first(group),
        }
    }
}
