//! A draft that grows where it is most probable.
//!
//! Whoever knows what may follow a node offers it; the most probable of all that was offered is added
//! next, for as long as there is room for nodes and branches. So a tree's nodes are the most probable
//! ones that are known, parents first.

use std::{cmp::Ordering, collections::BinaryHeap};

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DrafterKind};

/// A node that may be added; `place` is what is known there.
#[derive(Debug, Clone)]
pub(super) struct Offer<P> {
    pub(super) parent: u32,
    pub(super) token: u32,
    /// The probability that it is right where its parent is.
    pub(super) sure: f64,
    /// The probability that it and all before it are right.
    pub(super) all: f64,
    pub(super) place: P,
}

/// An offer in its order: of equals the first counts.
#[derive(Debug)]
struct Ranked<P> {
    offer: Offer<P>,
    order: usize,
}

impl<P> PartialEq for Ranked<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for Ranked<P> {}

impl<P> Ord for Ranked<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.offer.all.total_cmp(&other.offer.all).then(other.order.cmp(&self.order))
    }
}

impl<P> PartialOrd for Ranked<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct BestFirst<P> {
    drafter: DrafterKind,
    nodes: Vec<DraftNode>,
    places: Vec<P>,
    /// Whether the root, and then each node, has a child.
    goes_on: Vec<bool>,
    branches: usize,
    most_nodes: usize,
    most_branches: usize,
    offers: BinaryHeap<Ranked<P>>,
    offered: usize,
}

impl<P> BestFirst<P> {
    /// An empty tree for so many nodes and branches.
    pub(super) fn new(drafter: DrafterKind, most_nodes: usize, most_branches: usize) -> Self {
        Self {
            drafter,
            nodes: Vec::new(),
            places: Vec::new(),
            goes_on: vec![false],
            branches: 0,
            most_nodes,
            most_branches,
            offers: BinaryHeap::new(),
            offered: 0,
        }
    }

    /// The nodes so far.
    pub(super) fn nodes(&self) -> &[DraftNode] {
        &self.nodes
    }

    /// What is known at a node.
    pub(super) fn place(&self, node: u32) -> &P {
        &self.places[node as usize]
    }

    /// The tree.
    pub(super) fn into_nodes(self) -> Vec<DraftNode> {
        self.nodes
    }

    /// Takes up what may follow.
    pub(super) fn offer(&mut self, offer: Offer<P>) {
        self.offers.push(Ranked { offer, order: self.offered });
        self.offered += 1;
    }

    /// Adds the most probable of the offers that there is room for; the new node.
    pub(super) fn grow(&mut self) -> Option<u32> {
        while self.nodes.len() < self.most_nodes
            && let Some(Ranked { offer, .. }) = self.offers.pop()
        {
            let first = !self.goes_on[slot(offer.parent)];
            if !first && self.branches >= self.most_branches {
                continue;
            }
            let confidence = (offer.sure * f64::from(CONFIDENCE_ONE)) as u32;
            let Offer { parent, token, place, .. } = offer;
            let node = DraftNode { token, parent, confidence, drafter: self.drafter };
            return Some(self.add(node, place));
        }
        None
    }

    /// Adds a node whose parent is there, wanted or not.
    pub(super) fn add(&mut self, node: DraftNode, place: P) -> u32 {
        let at = self.nodes.len() as u32;
        let goes_on = &mut self.goes_on[slot(node.parent)];
        // A first child goes on with its parent's branch; the root's first begins the first one.
        self.branches += usize::from(*goes_on || node.parent == DraftNode::ROOT);
        *goes_on = true;
        self.goes_on.push(false);
        self.nodes.push(node);
        self.places.push(place);
        at
    }
}

/// Where it stands whether a node has children; the root comes first.
fn slot(node: u32) -> usize {
    node.wrapping_add(1) as usize
}
