//! Special tokens in text: a flat trie, walked for the longest match at each place.

use crate::layout::{NONE, TYPE_LSTRIP, TYPE_RSTRIP, View, u32_at};
use crate::source::TokenType;

/// The trie of an image in the making.
pub(crate) struct TrieBuilder {
    /// Node by first byte.
    pub root: Vec<u32>,
    /// (first edge, number of edges, token id) per node.
    pub nodes: Vec<[u32; 3]>,
    /// (byte, node) per edge.
    pub edges: Vec<[u32; 2]>,
}

impl TrieBuilder {
    /// Of two equal patterns the lower id counts. Patterns must not be empty.
    pub fn new(mut patterns: Vec<(&[u8], u32)>) -> TrieBuilder {
        patterns.sort_unstable();
        patterns.dedup_by(|later, earlier| later.0 == earlier.0);
        let mut trie = TrieBuilder { root: vec![NONE; 256], nodes: Vec::new(), edges: Vec::new() };
        // Each entry: the node to fill, its depth, and the run of patterns below it.
        let mut queue = std::collections::VecDeque::new();
        for group in group_by_byte(&patterns, 0..patterns.len(), 0) {
            trie.root[usize::from(patterns[group.start].0[0])] = trie.nodes.len() as u32;
            trie.nodes.push([0, 0, NONE]);
            queue.push_back((trie.nodes.len() - 1, 1, group));
        }
        while let Some((node, depth, mut run)) = queue.pop_front() {
            if patterns[run.start].0.len() == depth {
                trie.nodes[node][2] = patterns[run.start].1;
                run.start += 1;
            }
            trie.nodes[node][0] = trie.edges.len() as u32;
            for group in group_by_byte(&patterns, run, depth) {
                let child = trie.nodes.len();
                trie.nodes.push([0, 0, NONE]);
                trie.edges.push([u32::from(patterns[group.start].0[depth]), child as u32]);
                trie.nodes[node][1] += 1;
                queue.push_back((child, depth + 1, group));
            }
        }
        trie
    }
}

/// Splits a run of sorted patterns, all longer than `depth`, by their byte at `depth`.
fn group_by_byte(
    patterns: &[(&[u8], u32)],
    run: std::ops::Range<usize>,
    depth: usize,
) -> Vec<std::ops::Range<usize>> {
    let mut groups = Vec::new();
    let mut start = run.start;
    for at in run.clone() {
        if at + 1 == run.end || patterns[at + 1].0[depth] != patterns[at].0[depth] {
            groups.push(start..at + 1);
            start = at + 1;
        }
    }
    groups
}

/// Which special tokens count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accept {
    /// Those that stand for text only.
    UserDefined,
    /// Control tokens only.
    Control,
    /// All.
    All,
}

impl Accept {
    fn takes(self, kind: TokenType) -> bool {
        match self {
            Accept::UserDefined => kind == TokenType::UserDefined,
            Accept::Control => kind != TokenType::UserDefined,
            Accept::All => true,
        }
    }
}

/// A special token found in text.
pub(crate) struct Found {
    /// Where the token's own text starts.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    pub id: u32,
}

/// The first special token at or after `from`, the longest if several start there.
///
/// Both ends lie between characters, whatever bytes the tokens are spelt with.
pub(crate) fn find(view: &View<'_>, text: &str, from: usize, accept: Accept) -> Option<Found> {
    for (start, &byte) in text.as_bytes().iter().enumerate().skip(from) {
        let node = u32_at(view.trie_root, usize::from(byte))?;
        if node != NONE
            && text.is_char_boundary(start)
            && let Some((end, id)) = longest(view, text, start, node, accept)
        {
            return Some(Found { start, end, id });
        }
    }
    None
}

fn longest(
    view: &View<'_>,
    text: &str,
    start: usize,
    mut node: u32,
    accept: Accept,
) -> Option<(usize, u32)> {
    let mut best = None;
    let mut end = start + 1;
    loop {
        let at = (node as usize).checked_mul(3)?;
        let id = u32_at(view.trie_nodes, at + 2)?;
        if id < view.layout.n_tokens
            && text.is_char_boundary(end)
            && accept.takes(TokenType::from_bits(view.type_bits(id)))
        {
            best = Some((end, id));
        }
        let first = u32_at(view.trie_nodes, at)? as usize;
        let edges = u32_at(view.trie_nodes, at + 1)? as usize;
        let Some(&byte) = text.as_bytes().get(end) else { return best };
        let Some(child) = child(view, first, edges, byte) else { return best };
        node = child;
        end += 1;
    }
}

fn child(view: &View<'_>, first: usize, edges: usize, byte: u8) -> Option<u32> {
    let slice = view.trie_edges.get(first.checked_mul(8)?..(first + edges).checked_mul(8)?)?;
    let (mut low, mut high) = (0, slice.len() / 8);
    while low < high {
        let middle = (low + high) / 2;
        match u32_at(slice, middle * 2)?.cmp(&u32::from(byte)) {
            std::cmp::Ordering::Equal => return u32_at(slice, middle * 2 + 1),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

/// The stretch of text that a found token takes with it: its own text and, if it strips, the
/// white space beside it. Text before `floor` belongs to an earlier token.
pub(crate) fn extent(view: &View<'_>, text: &str, floor: usize, found: &Found) -> (usize, usize) {
    let bits = view.type_bits(found.id);
    let (mut start, mut end) = (found.start, found.end);
    if bits & TYPE_LSTRIP != 0 {
        start = floor + text[floor..start].trim_end().len();
    }
    if bits & TYPE_RSTRIP != 0 {
        end = text.len() - text[end..].trim_start().len();
    }
    (start, end)
}
