//! Which cached block goes first.
//!
//! A policy sees nodes, a node being a block of tokens at its place in a chain. It is told what
//! happens to them and names a victim; the cache does the rest. A node is **held** while something
//! refers to it or to a node below, and **idle** otherwise. Only an idle **leaf**, a node without
//! children in memory, is ever evicted, so that a chain never has holes: the cache says when an idle
//! node has become a leaf. A node goes idle after everything below it.
//!
//! Every node has a group, the tenant that its block is charged to, so that a tenant at its budget
//! gives up a block of its own.

mod arc;
mod belady;
mod fifo;
mod gdsf;
mod lfu;
mod list;
mod lru;
mod ranked;

pub use arc::Arc;
pub use belady::Belady;
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use lfu::Lfu;
pub(crate) use list::Lists;
pub use lru::Lru;

use crate::EvictionKind;

/// What a policy may know about a node that comes into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The hash of the chain down to the node: the same when it comes again.
    pub key: u64,
    /// Tokens from the start of the chain to the node's end.
    pub end_tokens: u64,
    /// Whose block it is, as a small number.
    pub group: u32,
}

/// Why a node leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It was evicted; it may be wanted again.
    Evicted,
    /// It was taken away for another reason.
    Dropped,
}

/// An eviction policy. Nodes are small numbers below the capacity it was built for. Everything takes
/// constant or logarithmic time, depends on the calls alone, and memory is bounded by the capacity.
pub trait EvictionPolicy: Send {
    /// A node has come into memory. It is held.
    fn insert(&mut self, node: u32, entry: Entry);

    /// A node in memory was asked for and found. It is held.
    fn hit(&mut self, node: u32);

    /// An idle node is held again.
    fn hold(&mut self, node: u32);

    /// A held node is idle now.
    fn idle(&mut self, node: u32);

    /// An idle node is a leaf now, by becoming idle or by the loss of its last child. It stays one
    /// until it is held or removed.
    fn leaf(&mut self, node: u32);

    /// A node leaves memory. It may be held or idle.
    fn remove(&mut self, node: u32, why: Removal);

    /// The next block to come will have this key, and a victim is about to be asked for. For
    /// replays in which that is known; a serving cache learns the key only after it made room.
    fn announce(&mut self, _key: u64) {}

    /// Victims of single groups will be asked for from now on. Before that, only of all.
    fn track_groups(&mut self);

    /// The leaf to go first, of all (`None`) or of one group. It stays until it is removed. For a
    /// group it may also be an idle node that has only idle nodes of other groups below.
    fn victim(&mut self, group: Option<u32>) -> Option<u32>;
}

/// The policy of this kind for nodes `0..nodes` of which at most `blocks` are in memory at once.
pub fn policy(kind: EvictionKind, nodes: usize, blocks: usize) -> Box<dyn EvictionPolicy> {
    match kind {
        EvictionKind::Lru => Box::new(Lru::new(nodes)),
        EvictionKind::Lfu => Box::new(Lfu::new(nodes)),
        EvictionKind::Fifo => Box::new(Fifo::new(nodes)),
        EvictionKind::Gdsf => Box::new(Gdsf::new(nodes)),
        EvictionKind::Arc => Box::new(Arc::new(nodes, blocks)),
    }
}
