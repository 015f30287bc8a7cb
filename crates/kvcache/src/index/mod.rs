//! The prefix index: a tree of nodes, each a full block of tokens below its parent's.
//!
//! Most nodes have one child, so a node's first child is looked at before anything else; the others,
//! and the first blocks of chains, are found by the hash of their chain. Either way a node is
//! accepted only when its parent and its tokens are the ones asked for (and, at the root, its
//! namespace). A node's id is reused only after every node
//! below it is gone, so a parent's id within the tree is an identity; cursors that callers keep
//! carry a generation as well.
//!
//! Not here: which blocks hold the content, who refers to it and what goes first.

mod hash;
mod table;

use crate::Namespace;
pub(crate) use hash::{extend, root};
use table::Table;

/// No node, block, slot or move.
pub(crate) const NONE: u32 = u32::MAX;

/// One full block of tokens below its parent's: one line of a processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Node {
    /// Of the whole chain down to here.
    pub hash: u64,
    /// [`NONE`] for the first block of a chain.
    pub parent: u32,
    /// The memory block with the content, or [`NONE`].
    pub block: u32,
    /// The disk slot with the content, whole and at rest or being read, or [`NONE`].
    pub slot: u32,
    /// The move in flight that concerns this node, or [`NONE`].
    pub moving: u32,
    /// Grows each time the id is reused.
    pub generation: u32,
    /// Children that are resident.
    pub resident_children: u32,
    /// Resident children that are held.
    pub held_children: u32,
    first_child: u32,
    next_sibling: u32,
    previous_sibling: u32,
    /// Blocks from the root, 1 for the first.
    pub depth: u32,
    pub state: State,
}

/// A node's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// The content is in memory, or on its way there, and means to stay. The parent of a resident
    /// node is resident.
    pub resident: bool,
    /// Resident, and something refers to it or to a node below, or a move is in flight.
    pub held: bool,
    /// Resident, but its content is still on its way from disk.
    pub loading: bool,
    /// Its block goes free when the demotion in flight is done.
    pub leaving: bool,
    /// Its disk copy must not go just now.
    pub pinned: bool,
    /// The table has it. All have it but the first child of a node, which may do without.
    in_table: bool,
    /// The id is in use.
    pub live: bool,
}

const EMPTY: Node = Node {
    hash: 0,
    parent: NONE,
    block: NONE,
    slot: NONE,
    moving: NONE,
    generation: 0,
    resident_children: 0,
    held_children: 0,
    first_child: NONE,
    next_sibling: NONE,
    previous_sibling: NONE,
    depth: 0,
    state: State {
        resident: false,
        held: false,
        loading: false,
        leaving: false,
        pinned: false,
        in_table: false,
        live: false,
    },
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    nodes: Vec<Node>,
    /// `block_tokens` for each node.
    tokens: Vec<u32>,
    /// Read for nodes without parent only.
    namespaces: Vec<Option<Namespace>>,
    free: Vec<u32>,
    table: Table,
    block_tokens: usize,
    seed: u64,
    /// All ones, or fewer in the tests that force collisions.
    hash_mask: u64,
}

impl Index {
    pub(crate) fn new(capacity: usize, block_tokens: usize, seed: u64, hash_mask: u64) -> Self {
        Self {
            nodes: vec![EMPTY; capacity],
            tokens: vec![0; capacity * block_tokens],
            namespaces: vec![None; capacity],
            free: (0..capacity as u32).rev().collect(),
            table: Table::new(capacity),
            block_tokens,
            seed,
            hash_mask,
        }
    }

    pub(crate) fn root_hash(&self, namespace: &Namespace) -> u64 {
        root(namespace, self.seed)
    }

    #[inline]
    pub(crate) fn extend_hash(&self, parent: u64, tokens: &[u32]) -> u64 {
        extend(parent, tokens) & self.hash_mask
    }

    /// The child of `parent` with these tokens; for [`NONE`], of the namespace's root, whose hash
    /// is `root`.
    #[inline]
    pub(crate) fn find(
        &self,
        parent: u32,
        root: u64,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> Option<u32> {
        if parent == NONE {
            let hash = self.extend_hash(root, tokens);
            return self.table.find(hash, |id| {
                self.nodes[id as usize].parent == NONE
                    && self.tokens(id) == tokens
                    && self.namespaces[id as usize].as_ref() == Some(namespace)
            });
        }
        let above = &self.nodes[parent as usize];
        let first = above.first_child;
        if first == NONE || self.tokens(first) == tokens {
            return Some(first).filter(|&id| id != NONE);
        }
        if self.nodes[first as usize].next_sibling == NONE {
            return None;
        }
        self.table.find(self.extend_hash(above.hash, tokens), |id| {
            self.nodes[id as usize].parent == parent && self.tokens(id) == tokens
        })
    }

    /// A node's tokens.
    pub(crate) fn tokens(&self, id: u32) -> &[u32] {
        let at = id as usize * self.block_tokens;
        &self.tokens[at..at + self.block_tokens]
    }

    pub(crate) fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces[id as usize].as_ref()
    }

    /// Adds a node that is not there yet; `hash` is its chain's. There is always room: a node is in
    /// a block or a slot, or about to be, and there are as many nodes as both together.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        parent: u32,
        namespace: &Namespace,
        tokens: &[u32],
    ) -> u32 {
        let id = self.free.pop().expect("as many nodes as blocks and slots");
        let at = id as usize * self.block_tokens;
        self.tokens[at..at + self.block_tokens].copy_from_slice(tokens);
        let generation = self.nodes[id as usize].generation.wrapping_add(1);
        let mut node = Node { hash, parent, depth: 1, generation, ..EMPTY };
        node.state.live = true;
        node.state.in_table = true;
        if parent == NONE {
            self.namespaces[id as usize] = Some(*namespace);
        } else {
            let above = &mut self.nodes[parent as usize];
            node.depth = above.depth + 1;
            let first = above.first_child;
            if first == NONE {
                above.first_child = id;
                node.state.in_table = false;
            } else {
                // The first child may be missing from the table: it stays the first.
                node.previous_sibling = first;
                node.next_sibling =
                    std::mem::replace(&mut self.nodes[first as usize].next_sibling, id);
                if node.next_sibling != NONE {
                    self.nodes[node.next_sibling as usize].previous_sibling = id;
                }
            }
        }
        self.nodes[id as usize] = node;
        if node.state.in_table {
            self.table.insert(hash, id);
        }
        id
    }

    /// Takes away a node that has no children.
    pub(crate) fn remove(&mut self, id: u32) {
        let node = self.nodes[id as usize];
        assert!(node.first_child == NONE && node.state.live, "a node goes after those below it");
        if node.state.in_table {
            self.table.remove(node.hash, id);
        }
        if node.previous_sibling != NONE {
            self.nodes[node.previous_sibling as usize].next_sibling = node.next_sibling;
        } else if node.parent != NONE {
            self.nodes[node.parent as usize].first_child = node.next_sibling;
        } else {
            self.namespaces[id as usize] = None;
        }
        if node.next_sibling != NONE {
            self.nodes[node.next_sibling as usize].previous_sibling = node.previous_sibling;
        }
        self.nodes[id as usize] = Node { generation: node.generation, ..EMPTY };
        self.free.push(id);
    }

    #[inline]
    pub(crate) fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }

    #[inline]
    pub(crate) fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// The first child, resident or not.
    pub(crate) fn first_child(&self, id: u32) -> Option<u32> {
        Some(self.nodes[id as usize].first_child).filter(|&c| c != NONE)
    }

    /// Children of a node.
    pub(crate) fn children(&self, id: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first_child(id), |&c| {
            Some(self.nodes[c as usize].next_sibling).filter(|&n| n != NONE)
        })
    }

    /// Every live node's id, ascending.
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.nodes.len() as u32).filter(|&id| self.nodes[id as usize].state.live)
    }

    /// Whether the index's own structure holds together.
    pub(crate) fn check(&self) -> Result<(), String> {
        let live = self.live().count();
        if live + self.free.len() != self.nodes.len() {
            return Err(format!("{live} live nodes and {} free ones", self.free.len()));
        }
        let hashed = self.live().filter(|&id| self.node(id).state.in_table).count();
        if self.table.count() != hashed {
            return Err(format!("{} entries in the table, {hashed} nodes", self.table.count()));
        }
        for id in self.live() {
            let node = self.node(id);
            let found = self.table.find(node.hash, |n| n == id).is_some();
            let first = node.parent != NONE && self.node(node.parent).first_child == id;
            if found != node.state.in_table || !found && !first {
                return Err(format!("node {id} is not found by its hash"));
            }
            if node.parent == NONE {
                if self.namespace(id).is_none() || node.depth != 1 {
                    return Err(format!("node {id} is a root without namespace"));
                }
            } else {
                let parent = self.node(node.parent);
                if !parent.state.live || parent.depth + 1 != node.depth {
                    return Err(format!("node {id} has lost its parent"));
                }
                if self.children(node.parent).filter(|&c| c == id).count() != 1 {
                    return Err(format!("node {id} is not among its parent's children"));
                }
            }
            if self.children(id).any(|c| self.node(c).parent != id) {
                return Err(format!("node {id} has another's child"));
            }
        }
        Ok(())
    }
}
