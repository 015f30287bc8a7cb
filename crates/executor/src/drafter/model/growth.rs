//! A draft as it grows: a tree whose most probable node is computed next.
//!
//! Each node that was computed gives the tokens that may follow it, with their probabilities; a node's
//! own, times those of all before it, says how probable it is to be needed. The tree's nodes are the
//! most probable ones that were found. Where nodes of one pass part, each branch has KV blocks of its
//! own, which begin as copies; only the first branch stays for the next draft.

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DraftWork};
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};

use super::{Hint, ModelDrafter};
use crate::{
    drafter::{DrawnNode, Wanted},
    sampler::SamplePlace,
};

/// Nodes of a draft that a pass computes at most.
const WIDTH: usize = 2;
/// Tokens that are looked at behind one another at a place.
const MOST_CHOICES: usize = 4;
/// Tokens of a hint at most.
const MOST_HINTS: usize = 4;

/// A token that may be part of the draft.
#[derive(Debug, Clone, Copy)]
struct Node {
    token: u32,
    /// The draft model's token.
    id: u32,
    parent: Option<usize>,
    sure: f64,
    /// The probability that it and all before it are right.
    all: f64,
    depth: usize,
    /// On which branch its KV is, where it was computed.
    branch: Option<usize>,
}

/// KV of a path.
#[derive(Debug, Clone, Default)]
struct Branch {
    /// Block `i` holds the draft model's positions `i * block_tokens ..`.
    table: Vec<u32>,
    /// Blocks of the table that are another branch's.
    shared: usize,
    /// The last node on it.
    tip: Option<usize>,
}

/// A draft in the making.
pub(super) struct Draft<'a> {
    pub(super) wanted: &'a Wanted<'a>,
    /// The draft model's tokens that come before any node.
    feed: Vec<u32>,
    nodes: Vec<Node>,
    /// The first branch's table is the state's.
    branches: Vec<Branch>,
    passes: usize,
    /// The draft model's positions before the first node.
    root: usize,
    inputs: Vec<Input>,
}

/// What a pass computes of a draft: one branch's new tokens.
#[derive(Debug, Clone)]
struct Input {
    tokens: Vec<u32>,
    first_position: usize,
    branch: usize,
    /// The node of its last token that is no hint; the sequence itself where none is.
    node: Option<usize>,
    /// Hints behind that.
    hints: Vec<Hint>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(wanted: &'a Wanted<'a>, feed: Vec<u32>) -> Self {
        let branches = vec![Branch::default()];
        let (nodes, inputs) = (Vec::new(), Vec::new());
        Self { wanted, feed, nodes, branches, passes: 0, root: 0, inputs }
    }

    fn stop_below(&self) -> f64 {
        f64::from(self.wanted.stop_below) / f64::from(CONFIDENCE_ONE)
    }

    /// The nodes from the root to this one.
    fn path(&self, node: Option<usize>) -> Vec<usize> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(node) = at {
            path.push(node);
            at = self.nodes[node].parent;
        }
        path.reverse();
        path
    }

    /// The most probable nodes, as many as are wanted, in order; parents come first.
    fn best(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by(|&a, &b| self.nodes[b].all.total_cmp(&self.nodes[a].all).then(a.cmp(&b)));
        let mut places: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let (mut kept, mut goes_on, mut branches) = (Vec::new(), vec![false; order.len() + 1], 0);
        for node in order {
            let above = self.nodes[node].parent;
            if above.is_some_and(|above| places[above].is_none()) || kept.len() == self.wanted.nodes
            {
                continue;
            }
            let slot = above.map_or(0, |above| above + 1);
            let new = goes_on[slot] || above.is_none();
            if new && branches == self.wanted.branches {
                continue;
            }
            branches += usize::from(new);
            goes_on[slot] = true;
            places[node] = Some(kept.len());
            kept.push(node);
        }
        kept
    }

    /// Nodes that the next pass should compute.
    fn next_nodes(&self, most: usize) -> Vec<usize> {
        if self.passes >= self.wanted.depth {
            return Vec::new();
        }
        let best = self.best();
        // What follows the last of a full tree has no place in it.
        let full = best.len() == self.wanted.nodes;
        let useful = best.len() - usize::from(full);
        let goes_on = |&&at: &&usize| {
            let node = self.nodes[at];
            node.branch.is_none() && node.depth < self.wanted.depth && node.all >= self.stop_below()
        };
        best[..useful].iter().filter(goes_on).copied().take(most).collect()
    }

    /// As they are proposed: the most probable first.
    fn proposal(&self, drafter: dunlin_scheduler::DrafterKind) -> Vec<DraftNode> {
        let best = self.best();
        let place = |node: usize| best.iter().position(|&b| b == node).expect("parents are kept");
        best.iter()
            .map(|&at| {
                let Node { token, parent, sure, .. } = self.nodes[at];
                let parent = parent.map_or(DraftNode::ROOT, |p| place(p) as u32);
                let confidence = (sure * f64::from(CONFIDENCE_ONE)) as u32;
                DraftNode { token, parent, confidence, drafter }
            })
            .collect()
    }
}

impl<B: Backend> ModelDrafter<B> {
    /// Computes prompts that are longer than a step, all but the last part. Whether it could be done.
    pub(super) fn catch_up(&mut self, drafts: &mut [Draft<'_>], work: &mut DraftWork) -> bool {
        let limit = (self.backend.max_step_tokens() / drafts.len().max(1)).max(1);
        for draft in drafts {
            let slot = draft.wanted.seq.0 as usize;
            draft.root = self.state(slot).positions();
            while draft.feed.len() > limit {
                let part: Vec<u32> = draft.feed.drain(..limit).collect();
                let end = draft.root - draft.feed.len();
                let input = SequenceInput {
                    tokens: &part,
                    first_position: end - part.len(),
                    block_table: &self.states[slot].as_ref().expect("it is there").table,
                    logits: LogitsWanted::None,
                    branch_of: None,
                };
                work.passes += 1;
                work.tokens += part.len() as u32;
                if self.backend.forward(&[input], &mut self.logits).is_err() {
                    return false;
                }
            }
        }
        true
    }

    /// One pass over all drafts that go on; whether there was one. `None` where it could not be
    /// computed.
    pub(super) fn pass(&mut self, drafts: &mut [Draft<'_>], work: &mut DraftWork) -> Option<bool> {
        let limit = (self.backend.max_step_tokens() / drafts.len().max(1)).max(1);
        for draft in drafts.iter_mut() {
            self.choose_inputs(draft, limit);
        }
        if drafts.iter().all(|draft| draft.inputs.is_empty()) {
            return Some(false);
        }
        let mut batch = Vec::new();
        for draft in drafts.iter() {
            let state = self.states[draft.wanted.seq.0 as usize].as_ref().expect("it is there");
            for input in &draft.inputs {
                let table = match input.branch {
                    0 => &state.table,
                    branch => &draft.branches[branch].table,
                };
                let only_last = input.hints.is_empty();
                batch.push(SequenceInput {
                    tokens: &input.tokens,
                    first_position: input.first_position,
                    block_table: table,
                    logits: if only_last { LogitsWanted::Last } else { LogitsWanted::All },
                    branch_of: None,
                });
            }
        }
        work.passes += 1;
        work.tokens += batch.iter().map(|input| input.tokens.len() as u32).sum::<u32>();
        self.backend.forward(&batch, &mut self.logits).ok()?;
        let mut logits = std::mem::take(&mut self.logits);
        let mut rows = logits.chunks_exact_mut(self.backend.spec().vocab_size);
        for draft in drafts {
            for input in std::mem::take(&mut draft.inputs) {
                // Rows of tokens before the last that is no hint tell nothing new.
                let all = if input.hints.is_empty() { 1 } else { input.tokens.len() };
                let skipped = all - 1 - input.hints.len();
                let mut rows = rows.by_ref().take(all).skip(skipped);
                self.read_rows(draft, &input, &mut rows);
                rows.for_each(drop);
            }
            draft.passes += 1;
        }
        self.logits = logits;
        Some(true)
    }

    /// What a draft wants of the next pass, of so many tokens at most.
    fn choose_inputs(&mut self, draft: &mut Draft<'_>, limit: usize) {
        draft.inputs.clear();
        if !draft.feed.is_empty() {
            let mut tokens = std::mem::take(&mut draft.feed);
            let first_position = draft.root - tokens.len();
            // Logits of many tokens cost more than a pass that a hint may save.
            let most = if tokens.len() <= MOST_HINTS { limit - tokens.len() } else { 0 };
            let hints = self.hints(draft.wanted, &[], most.min(MOST_HINTS));
            tokens.extend(hints.iter().map(|hint| hint.id));
            draft.inputs.push(Input { tokens, first_position, branch: 0, node: None, hints });
            return;
        }
        let nodes = draft.next_nodes(WIDTH.min(limit));
        let mut left = limit - nodes.len();
        for node in nodes {
            let Some(branch) = self.branch_for(draft, node) else { continue };
            let first_position = draft.root + draft.nodes[node].depth - 1;
            let mut hints = Vec::new();
            if branch == 0 {
                let path: Vec<DraftNode> = (0..)
                    .zip(draft.path(Some(node)))
                    .map(|(i, at): (u32, usize)| DraftNode {
                        token: draft.nodes[at].token,
                        parent: i.checked_sub(1).unwrap_or(DraftNode::ROOT),
                        confidence: CONFIDENCE_ONE,
                        drafter: self.kind,
                    })
                    .collect();
                hints = self.hints(draft.wanted, &path, left.min(MOST_HINTS));
                left -= hints.len();
            }
            let mut tokens = vec![draft.nodes[node].id];
            tokens.extend(hints.iter().map(|hint| hint.id));
            draft.inputs.push(Input { tokens, first_position, branch, node: Some(node), hints });
        }
    }

    /// The branch on which a node is computed: its parent's, where that ends there, or a new one.
    fn branch_for(&mut self, draft: &mut Draft<'_>, node: usize) -> Option<usize> {
        let slot = draft.wanted.seq.0 as usize;
        let block_tokens = self.backend.block_tokens();
        let Node { parent, depth, .. } = draft.nodes[node];
        let from = parent.map_or(0, |p| draft.nodes[p].branch.expect("it was computed before"));
        // Positions before the node.
        let before = draft.root + depth - 1;
        let branch = if draft.branches[from].tip == parent {
            from
        } else {
            let source = match from {
                0 => &self.states[slot].as_ref().expect("it is there").table,
                from => &draft.branches[from].table,
            };
            let shared = before / block_tokens;
            let mut table = source[..shared].to_vec();
            if !before.is_multiple_of(block_tokens) {
                let copied = source[shared];
                let own = self.free.pop()?;
                self.backend.copy_block(copied, own, before % block_tokens);
                table.push(own);
            }
            draft.branches.push(Branch { table, shared, tip: parent });
            draft.branches.len() - 1
        };
        if branch > 0 && draft.branches[branch].table.len() * block_tokens <= before {
            let own = self.free.pop()?;
            draft.branches[branch].table.push(own);
        }
        self.computed(draft, node, branch);
        Some(branch)
    }

    /// A node is computed, behind the last on this branch.
    fn computed(&mut self, draft: &mut Draft<'_>, node: usize, branch: usize) {
        draft.nodes[node].branch = Some(branch);
        draft.branches[branch].tip = Some(node);
        if branch == 0 {
            let state = self.state(draft.wanted.seq.0 as usize);
            let end = state.positions() + 1;
            state.fed.push(draft.nodes[node].token);
            state.ends.push(end);
        }
    }

    /// Takes up what may follow a node, and the hints behind it for as long as they are what it says.
    fn read_rows<'r>(
        &mut self,
        draft: &mut Draft<'_>,
        input: &Input,
        rows: &mut impl Iterator<Item = &'r mut [f32]>,
    ) {
        let mut at = input.node;
        let mut hints = input.hints.iter();
        for row in rows {
            let Some(first) = self.add_choices(draft, at, row) else { return };
            let Some(hint) = hints.next() else { return };
            let node = draft.nodes[first];
            if node.token != hint.token || node.all < draft.stop_below() {
                return;
            }
            self.computed(draft, first, 0);
            at = Some(first);
        }
    }

    /// Adds what may follow a node; the node of the best of it.
    fn add_choices(
        &mut self,
        draft: &mut Draft<'_>,
        at: Option<usize>,
        row: &mut [f32],
    ) -> Option<usize> {
        let wanted = draft.wanted;
        let mut tokens = wanted.tokens.to_vec();
        tokens.extend(draft.path(at).iter().map(|&node| draft.nodes[node].token));
        let place =
            SamplePlace { tokens: &tokens, prompt_len: wanted.prompt_len, choice: wanted.choice };
        let count = wanted.branches.clamp(1, MOST_CHOICES);
        let (sampling, choices, vocabulary) =
            (wanted.sampling, &mut self.choices, &self.vocabulary);
        if wanted.draws && sampling.temperature > 0.0 {
            let name = |id| vocabulary.back(id);
            let sayable = |id| name(id).is_some();
            let drawn =
                self.sampler.draw_proposals(sampling, place, row, count, sayable, choices).ok()?;
            let drawn = drawn.map(|drawn| drawn.renamed(|id| name(id).expect("it is sayable")));
            let (length, path) = (wanted.tokens.len(), tokens[wanted.tokens.len()..].to_vec());
            let seq = wanted.seq;
            self.drawn.extend(drawn.map(|drawn| DrawnNode { seq, length, path, drawn }));
        } else {
            self.sampler.choices(sampling, place, row, count, choices).ok()?;
        }
        let (all, depth) = at.map_or((1.0, 0), |at| (draft.nodes[at].all, draft.nodes[at].depth));
        let mut first = None;
        for (rank, choice) in self.choices.iter().enumerate() {
            let Some(token) = self.vocabulary.back(choice.token) else { continue };
            let sure = choice.sure.clamp(0.0, 1.0);
            let all = all * sure;
            // The first was computed already, whatever it is worth.
            if all < draft.stop_below() && !draft.nodes.is_empty() {
                break;
            }
            if rank == 0 {
                first = Some(draft.nodes.len());
            }
            let (id, parent, depth) = (choice.token, at, depth + 1);
            draft.nodes.push(Node { token, id, parent, sure, all, depth, branch: None });
        }
        first
    }

    /// The draft as it is proposed. Blocks of its branches are free again.
    pub(super) fn finish(&mut self, draft: Draft<'_>) -> Vec<DraftNode> {
        for branch in &draft.branches[1..] {
            self.free.extend_from_slice(&branch.table[branch.shared..]);
        }
        draft.proposal(self.kind)
    }
}
