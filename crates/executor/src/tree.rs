//! Drafts as parts of a batch: a tree's branches become inputs of their own, behind the sequence's.
//!
//! A branch's table is its parent's as far as that is full where it parts, then blocks that the plan
//! gives it. Before the step, what the sequence has stored of the first of these is copied there; after
//! it, what was accepted of a branch is copied to the sequence's own blocks, where plain decoding
//! would have put it. So nothing outside a step ever sees a branch.

use std::ops::Range;

use dunlin_scheduler::{DraftNode, TreeLayout};
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};

/// A branch other than an entry's first, in the memory of [`Trees`].
#[derive(Debug, Clone)]
struct Branch {
    /// Of which of the entry's inputs it is one; 0 is the sequence with the first branch.
    of: usize,
    first_position: usize,
    /// Its tokens.
    tokens: Range<usize>,
    /// Its block table.
    table: Range<usize>,
}

/// An entry's tokens and branches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    /// The sequence's own tokens and then all nodes; empty without a draft.
    tokens: Range<usize>,
    /// Of these, the sequence's own, and those of the first branch behind them.
    own: usize,
    first: usize,
    /// Branches other than the first.
    branches: Range<usize>,
    /// Positions whose KV is copied to branches.
    pub(crate) copied: usize,
}

/// Where an entry with a draft begins, and what it has.
pub(crate) struct Entry<'a> {
    /// The sequence's own tokens of this step.
    pub(crate) own: &'a [u32],
    /// The position of the first of them.
    pub(crate) first_position: usize,
    /// The draft behind them.
    pub(crate) nodes: &'a [DraftNode],
    /// The sequence's blocks.
    pub(crate) table: &'a [u32],
    /// Blocks for branches.
    pub(crate) scratch: &'a [u32],
}

/// The drafts of a step. Keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    /// Tokens of entries with drafts.
    pub(crate) tokens: Vec<u32>,
    /// For each of these that is a node, the place of its parent among the entry's nodes, or
    /// [`DraftNode::ROOT`].
    pub(crate) parents: Vec<u32>,
    branches: Vec<Branch>,
    tables: Vec<u32>,
    layout: TreeLayout,
}

impl Tree {
    /// Nodes of the draft.
    pub(crate) fn nodes(&self) -> usize {
        self.tokens.len() - self.own
    }

    /// Where the nodes lie in the step's tokens.
    pub(crate) fn node_range(&self) -> Range<usize> {
        self.tokens.start + self.own..self.tokens.end
    }
}

impl Trees {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.branches.clear();
        self.tables.clear();
    }

    /// Lays out an entry's draft, and copies what its branches share a block with.
    pub(crate) fn add<B: Backend>(&mut self, entry: &Entry<'_>, backend: &mut B) -> Tree {
        let Self { tokens, parents, branches, tables, layout } = self;
        let block_tokens = backend.block_tokens();
        layout.lay_out(entry.nodes);
        let (start, first_branch) = (tokens.len(), branches.len());
        tokens.extend_from_slice(entry.own);
        parents.resize(tokens.len(), DraftNode::ROOT);
        let nodes_at = tokens.len();
        tokens.extend(layout.order.iter().map(|&node| entry.nodes[node as usize].token));
        parents.extend_from_slice(&layout.parents);
        let root = entry.first_position + entry.own.len() - 1;
        let (mut copied, mut scratch) = (0, entry.scratch.iter().copied());
        for branch in layout.branches.iter().skip(1) {
            let of = branch.parent.unwrap_or(0);
            let first_position = root + 1 + branch.depth as usize;
            let shared = first_position / block_tokens;
            let end = (first_position + branch.nodes.len()).div_ceil(block_tokens);
            let at = tables.len();
            match of.checked_sub(1) {
                None => tables.extend_from_slice(&entry.table[..shared]),
                Some(of) => {
                    let parent = branches[first_branch + of].table.start;
                    tables.extend_from_within(parent..parent + shared);
                }
            }
            tables.extend(scratch.by_ref().take(end - shared));
            assert_eq!(tables.len() - at, end, "the plan gives each branch its blocks");
            let stored = entry.first_position.saturating_sub(shared * block_tokens);
            if stored > 0 {
                backend.copy_block(entry.table[shared], tables[at + shared], stored);
                copied += stored;
            }
            branches.push(Branch {
                of,
                first_position,
                tokens: nodes_at + branch.nodes.start..nodes_at + branch.nodes.end,
                table: at..tables.len(),
            });
        }
        Tree {
            tokens: start..tokens.len(),
            own: entry.own.len(),
            first: layout.branches.first().map_or(0, |branch| branch.nodes.len()),
            branches: first_branch..branches.len(),
            copied,
        }
    }

    /// Appends an entry's inputs to a batch.
    pub(crate) fn push_inputs<'a>(
        &'a self,
        tree: &Tree,
        first_position: usize,
        table: &'a [u32],
        batch: &mut Vec<SequenceInput<'a>>,
    ) {
        let base = batch.len();
        batch.push(SequenceInput {
            tokens: &self.tokens[tree.tokens.start..][..tree.own + tree.first],
            first_position,
            block_table: table,
            logits: LogitsWanted::All,
            branch_of: None,
        });
        batch.extend(self.branches[tree.branches.clone()].iter().map(|branch| SequenceInput {
            tokens: &self.tokens[branch.tokens.clone()],
            first_position: branch.first_position,
            block_table: &self.tables[branch.table.clone()],
            logits: LogitsWanted::All,
            branch_of: Some(base + branch.of),
        }));
    }

    /// The nodes up to this place (among the entry's) were accepted: where they are on a branch, their
    /// KV is put into the sequence's own blocks.
    pub(crate) fn accept<B: Backend>(
        &self,
        tree: &Tree,
        place: usize,
        table: &[u32],
        backend: &mut B,
    ) {
        let block_tokens = backend.block_tokens();
        let at = tree.node_range().start + place;
        let branches = &self.branches[tree.branches.clone()];
        let Some(branch) = branches.iter().find(|branch| branch.tokens.contains(&at)) else {
            return;
        };
        let end = branch.first_position + at - branch.tokens.start + 1;
        let from = &self.tables[branch.table.clone()];
        for index in 0..end.div_ceil(block_tokens) {
            if from[index] != table[index] {
                let tokens = (end - index * block_tokens).min(block_tokens);
                backend.copy_block(from[index], table[index], tokens);
            }
        }
    }
}
