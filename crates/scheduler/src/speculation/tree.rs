//! The shape of a draft: a tree of tokens, cut into branches that can be computed as sequences.
//!
//! The first branch goes from the root always to the first child. Where a node has more children,
//! each begins another branch, which goes on in the same way. So every node is in one branch, a
//! branch's nodes follow one another, and a chain is one branch. The first branch is stored where the
//! sequence goes on; the others need blocks of their own, from that on in which they part from their
//! parent.

use std::ops::Range;

use crate::event::DraftNode;

/// Nodes of a tree that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The branch that it parts from; none for the first.
    pub parent: Option<usize>,
    /// The depth of its first node; those that follow the sequence have depth 0.
    pub depth: u32,
    /// Its nodes, as places in [`TreeLayout::order`].
    pub nodes: Range<usize>,
}

/// A tree's nodes in the order in which they are computed, branch by branch: parents come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeLayout {
    /// The node at each place.
    pub order: Vec<u32>,
    /// The place of each place's parent, or [`DraftNode::ROOT`].
    pub parents: Vec<u32>,
    /// The branches; one at least where there are nodes.
    pub branches: Vec<Branch>,
    /// Branches that have still to be laid out.
    open: Vec<Open>,
    /// First child and next sibling of each node.
    links: Vec<(u32, u32)>,
    /// The last child of each node so far.
    last: Vec<u32>,
}

/// The beginning of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    node: u32,
    /// The place of its parent node.
    parent: u32,
    depth: u32,
    /// The branch that it parts from.
    from: Option<usize>,
}

const NONE: u32 = u32::MAX;

/// Nodes of the longest path of a tree, parents first.
pub(crate) fn depth(nodes: &[DraftNode]) -> u32 {
    depths(nodes).into_iter().max().unwrap_or(0)
}

/// Nodes from the root to each node: 1 for those that follow it.
pub(crate) fn depths(nodes: &[DraftNode]) -> Vec<u32> {
    let mut depths: Vec<u32> = Vec::with_capacity(nodes.len());
    for node in nodes {
        depths.push(match node.parent {
            DraftNode::ROOT => 1,
            parent => depths[parent as usize] + 1,
        });
    }
    depths
}

/// Cuts a tree, parents first, where its nodes begin to be deeper than `most`: a beginning of it stays.
pub(crate) fn truncate_depth(nodes: &mut Vec<DraftNode>, most: u32) {
    if let Some(end) = depths(nodes).iter().position(|&depth| depth > most) {
        nodes.truncate(end);
    }
}

/// Leaves out what would give a tree, parents first, more branches than so many.
pub(crate) fn limit_branches(nodes: &mut Vec<DraftNode>, most: u32) {
    let mut places: Vec<Option<u32>> = Vec::with_capacity(nodes.len());
    let mut goes_on = vec![false; nodes.len()];
    let (mut kept, mut branches) = (0, 0);
    nodes.retain_mut(|node| {
        let parent = match node.parent {
            DraftNode::ROOT => Some(DraftNode::ROOT),
            parent => places[parent as usize],
        };
        let first = parent.is_some_and(|p| goes_on.get(p as usize) == Some(&false));
        let stays = parent.filter(|_| first || branches < most);
        places.push(stays.map(|_| kept));
        let Some(parent) = stays else { return false };
        branches += u32::from(!first);
        if let Some(goes_on) = goes_on.get_mut(parent as usize) {
            *goes_on = true;
        }
        node.parent = parent;
        kept += 1;
        true
    });
}

/// Cuts a tree, parents first, to the path that goes always to the first child.
pub(crate) fn keep_first_branch(nodes: &mut Vec<DraftNode>) {
    let (mut end, mut index, mut kept) = (DraftNode::ROOT, 0, 0);
    nodes.retain_mut(|node| {
        let on_it = node.parent == end;
        if on_it {
            node.parent = u32::checked_sub(kept, 1).unwrap_or(DraftNode::ROOT);
            (end, kept) = (index, kept + 1);
        }
        index += 1;
        on_it
    });
}

impl TreeLayout {
    /// Lays out a tree, parents first, in the memory of the tree before.
    pub fn lay_out(&mut self, nodes: &[DraftNode]) {
        self.order.clear();
        self.parents.clear();
        self.branches.clear();
        self.open.clear();
        let first = self.link(nodes);
        let open = |node| Open { node, parent: DraftNode::ROOT, depth: 0, from: None };
        self.open.extend(first.map(open));
        while let Some(open) = self.open.pop() {
            self.add_branch(open);
        }
    }

    /// Finds everybody's children; the root's first one.
    fn link(&mut self, nodes: &[DraftNode]) -> Option<u32> {
        let Self { links, last, .. } = self;
        links.clear();
        last.clear();
        last.resize(nodes.len(), NONE);
        let (mut root_first, mut root_last) = (None, NONE);
        for (i, node) in (0..).zip(nodes) {
            links.push((NONE, NONE));
            let last = match node.parent {
                DraftNode::ROOT => &mut root_last,
                parent => &mut last[parent as usize],
            };
            match (std::mem::replace(last, i), node.parent) {
                (NONE, DraftNode::ROOT) => root_first = Some(i),
                (NONE, parent) => links[parent as usize].0 = i,
                (before, _) => links[before as usize].1 = i,
            }
        }
        root_first
    }

    fn add_branch(&mut self, open: Open) {
        let (index, start) = (self.branches.len(), self.order.len());
        let Open { mut node, mut parent, mut depth, from } = open;
        while node != NONE {
            let (child, sibling) = self.links[node as usize];
            if sibling != NONE {
                // A sibling of the branch's own first node parts from the branch before; those of
                // the sequence's first node from the first branch.
                let from = if depth == open.depth { from.or(Some(0)) } else { Some(index) };
                self.open.push(Open { node: sibling, parent, depth, from });
            }
            self.parents.push(parent);
            parent = self.order.len() as u32;
            self.order.push(node);
            (node, depth) = (child, depth + 1);
        }
        let nodes = start..self.order.len();
        self.branches.push(Branch { parent: from, depth: open.depth, nodes });
    }

    /// Nodes of the longest path.
    pub fn depth(&self) -> u32 {
        let ends = self.branches.iter().map(|b| b.depth + b.nodes.len() as u32);
        ends.max().unwrap_or(0)
    }

    /// Blocks that the branches need beside the sequence's own, where nodes of depth 0 stand at
    /// `position`.
    pub fn scratch_blocks(&self, position: u32, block_tokens: u32) -> u32 {
        let blocks = |branch: &Branch| {
            let first = position + branch.depth;
            let last = first + branch.nodes.len() as u32 - 1;
            last / block_tokens - first / block_tokens + 1
        };
        self.branches.iter().skip(1).map(blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_units::SeedTree;

    use super::*;
    use crate::speculation::DrafterKind;

    fn tree(parents: &[u32]) -> Vec<DraftNode> {
        let drafter = DrafterKind::Lookup;
        let node = |(token, &parent)| DraftNode { token, parent, confidence: 1, drafter };
        (0..).zip(parents).map(node).collect()
    }

    const ROOT: u32 = DraftNode::ROOT;

    #[test]
    fn a_tree_is_cut_where_paths_part() {
        // 0 -> 1 -> 3, 1 -> 4; 0 -> 2; another root 5 -> 6.
        let mut layout = TreeLayout::default();
        layout.lay_out(&tree(&[ROOT, 0, 0, 1, 1, ROOT, 5]));
        assert_eq!(layout.order, [0, 1, 3, 4, 2, 5, 6]);
        assert_eq!(layout.parents, [ROOT, 0, 1, 1, 0, ROOT, 5]);
        let branch = |parent, depth, nodes| Branch { parent, depth, nodes };
        assert_eq!(
            layout.branches,
            [
                branch(None, 0, 0..3),
                branch(Some(0), 2, 3..4),
                branch(Some(0), 1, 4..5),
                branch(Some(0), 0, 5..7)
            ]
        );
        assert_eq!((layout.depth(), layout.scratch_blocks(0, 8)), (3, 3));
        // Nodes 5 and 6 lie on both sides of a border.
        assert_eq!(layout.scratch_blocks(7, 8), 4);
        layout.lay_out(&tree(&[ROOT, 0, 1]));
        assert_eq!((layout.order.as_slice(), layout.branches.len()), (&[0, 1, 2][..], 1));
        assert_eq!(layout.scratch_blocks(7, 8), 0);
        layout.lay_out(&[]);
        assert_eq!((layout.depth(), layout.branches.len()), (0, 0));
    }

    #[test]
    fn trees_are_cut() {
        let parents = |nodes: &[DraftNode]| nodes.iter().map(|n| n.parent).collect::<Vec<_>>();
        let tokens = |nodes: &[DraftNode]| nodes.iter().map(|n| n.token).collect::<Vec<_>>();
        let whole = tree(&[ROOT, ROOT, 1, 0, 3, 2, 3, 6]);
        let mut cut = whole.clone();
        keep_first_branch(&mut cut);
        assert_eq!((parents(&cut), tokens(&cut)), (vec![ROOT, 0, 1], vec![0, 3, 4]));
        for (most, left) in [(0, 0), (1, 2), (2, 4), (3, 7), (4, 8), (9, 8)] {
            let mut cut = whole.clone();
            truncate_depth(&mut cut, most);
            assert_eq!(cut, whole[..left], "{most}");
        }
        for (most, left) in [
            (0, vec![]),
            (1, vec![0, 3, 4]),
            (2, vec![0, 1, 2, 3, 4, 5]),
            (3, vec![0, 1, 2, 3, 4, 5, 6, 7]),
        ] {
            let mut cut = whole.clone();
            limit_branches(&mut cut, most);
            assert_eq!(tokens(&cut), left, "{most}");
            let mut layout = TreeLayout::default();
            layout.lay_out(&cut);
            assert!(layout.branches.len() <= most as usize);
        }
    }

    #[test]
    fn any_tree_is_laid_out_whole() {
        for seed in 0..300 {
            let mut random = SeedTree::root(seed).child("tree").stream();
            let count = random.next_below(24) as u32;
            let parent = |i| (random.next_below(i + 1) as u32).checked_sub(1).unwrap_or(ROOT);
            let nodes = tree(&(0..u64::from(count)).map(parent).collect::<Vec<_>>());
            let mut layout = TreeLayout::default();
            layout.lay_out(&nodes);
            let mut seen = layout.order.clone();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>(), "seed {seed}");
            let depth_of = |mut node: u32| {
                let mut depth = 0;
                while nodes[node as usize].parent != ROOT {
                    (node, depth) = (nodes[node as usize].parent, depth + 1);
                }
                depth
            };
            let mut next = 0;
            for (index, branch) in layout.branches.iter().enumerate() {
                assert_eq!(branch.nodes.start, next, "seed {seed}");
                assert_eq!(branch.parent.is_none(), index == 0);
                next = branch.nodes.end;
                for (place, depth) in branch.nodes.clone().zip(branch.depth..) {
                    let node = layout.order[place];
                    assert_eq!(depth_of(node), depth, "seed {seed}");
                    let parent = layout.parents[place];
                    let above = layout.order.get(parent as usize).copied().unwrap_or(ROOT);
                    assert_eq!(nodes[node as usize].parent, above, "seed {seed}");
                    if place > branch.nodes.start {
                        assert_eq!(parent as usize, place - 1);
                    } else if parent != ROOT {
                        let from = &layout.branches[branch.parent.unwrap_or(0)];
                        assert!(from.nodes.contains(&(parent as usize)), "seed {seed}");
                    }
                }
            }
            assert_eq!(next, count as usize);
            assert_eq!(layout.depth(), (0..count).map(|n| depth_of(n) + 1).max().unwrap_or(0));
        }
    }
}
