//! A tree of what may come, grown from the most probable node on.
//!
//! At each place there are as many candidates as different tokens have followed the longest match;
//! those that followed last come first, and behind them those that followed shorter matches. The
//! nodes of a tree are the most probable ones that there are, so that a match that has always gone on
//! in one way gives a chain, and one that has not gives branches. A tree that is there already (what a
//! draft model says) grows in the same way: the room that it leaves goes to whatever is most probable
//! behind any of its nodes (prune, then graft: Graft, A006).

use dunlin_scheduler::{CONFIDENCE_ONE, DraftNode, DrafterKind};

use super::automaton::SuffixAutomaton;
use crate::drafter::best_first::{BestFirst, Offer};

/// Candidates at a place.
const MOST_CANDIDATES: usize = 4;
/// Shorter matches that are looked at where the longest leaves room for candidates.
const SHORTER: usize = 2;
/// A tree has no nodes that are less probable than this.
const STOP_BELOW: f64 = 0.02;

/// What a tree grows from.
pub(super) struct Source<'a> {
    /// What is known of the sequence.
    pub(super) automaton: &'a SuffixAutomaton,
    /// All of the sequence's tokens, and how many of them the automaton does not know.
    pub(super) tokens: &'a [u32],
    pub(super) start: usize,
    /// Nodes and branches that the tree may have at most.
    pub(super) nodes: usize,
    pub(super) branches: usize,
    /// The probability below which a node is not worth having.
    pub(super) stop_below: f64,
}

/// What is matched at a node.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    /// The state of the match and its length; none where nothing is known of what follows.
    state: Option<u32>,
    len: u32,
    /// Where what followed an earlier occurrence goes on. Past the end of the sequence it goes on
    /// with what the tree says itself.
    next: Option<usize>,
    /// The probability that everything up to here is right.
    all: f64,
}

/// A tree in the making.
struct Growth<'a> {
    source: &'a Source<'a>,
    tree: BestFirst<Place>,
}

/// The tree that begins with `nodes`, parents first, and has as many more as there is reason for.
pub(super) fn grow(source: &Source<'_>, nodes: Vec<DraftNode>) -> Vec<DraftNode> {
    let Some(root) = root(source) else { return nodes };
    let tree = BestFirst::new(DrafterKind::Lookup, source.nodes, source.branches);
    let mut growth = Growth { source, tree };
    for node in nodes {
        let before = match node.parent {
            DraftNode::ROOT => root,
            parent => *growth.tree.place(parent),
        };
        let sure = f64::from(node.confidence) / f64::from(CONFIDENCE_ONE);
        let place = growth.after(node.parent, before, node.token, sure);
        growth.tree.add(node, place);
    }
    growth.look_behind(DraftNode::ROOT, root);
    for at in 0..growth.tree.nodes().len() as u32 {
        growth.look_behind(at, *growth.tree.place(at));
    }
    while let Some(at) = growth.tree.grow() {
        growth.look_behind(at, *growth.tree.place(at));
    }
    growth.tree.into_nodes()
}

/// The place behind the sequence.
fn root(source: &Source<'_>) -> Option<Place> {
    let found = source.automaton.longest_match()?;
    let next = Some(source.start + found.end as usize);
    Some(Place { state: Some(found.state), len: found.len, next, all: 1.0 })
}

impl Growth<'_> {
    /// The token that an earlier occurrence has next.
    fn said(&self, node: u32, place: Place) -> Option<u32> {
        let next = place.next?;
        let tokens = self.source.tokens;
        let Some(beyond) = next.checked_sub(tokens.len()) else { return tokens.get(next).copied() };
        // The tree's path to this node goes on where the sequence ends.
        let mut path = Vec::new();
        let mut at = node;
        while at != DraftNode::ROOT {
            path.push(self.tree.nodes()[at as usize].token);
            at = self.tree.nodes()[at as usize].parent;
        }
        path.iter().rev().nth(beyond).copied()
    }

    /// The place behind a token at a place.
    fn after(&self, node: u32, place: Place, token: u32, sure: f64) -> Place {
        let follows = self.said(node, place) == Some(token);
        let all = place.all * sure;
        let automaton = self.source.automaton;
        let (mut state, mut len) = (place.state, place.len);
        while let Some(from) = state {
            if let Some(to) = automaton.step(from, token) {
                let end = automaton.end(to) as usize + self.source.start;
                let next = if follows { place.next.map(|next| next + 1) } else { Some(end) };
                return Place { state: Some(to), len: len + 1, next, all };
            }
            if follows {
                break;
            }
            (state, len) = match automaton.shorter(from) {
                Some((shorter, len)) => (Some(shorter), len),
                None => (None, 0),
            };
        }
        // What was said past the sequence's end is no string that the automaton has seen.
        let next = place.next.filter(|_| follows).map(|next| next + 1);
        Place { state: None, len: if follows { place.len + 1 } else { 0 }, next, all }
    }

    /// Takes up what may follow a node.
    fn look_behind(&mut self, node: u32, place: Place) {
        let stop_below = STOP_BELOW.max(self.source.stop_below);
        let mut known: Vec<u32> =
            self.tree.nodes().iter().filter(|n| n.parent == node).map(|n| n.token).collect();
        let most = if self.source.branches > 1 { known.len() + MOST_CANDIDATES } else { 1 };
        let mut left = 1.0;
        let main = self.said(node, place);
        let automaton = self.source.automaton;
        let (mut state, mut len) = (place.state, place.len);
        for level in 0..=SHORTER {
            let mut followers: Vec<(u32, u32)> = state.map_or(Vec::new(), |state| {
                automaton.followers(state).map(|(token, _, end)| (token, end)).collect()
            });
            if level == 0
                && let Some(main) = main
            {
                // First what the occurrence says that is being followed.
                followers.retain(|f| f.0 != main);
                followers.push((main, u32::MAX));
            }
            followers.sort_unstable_by_key(|&(token, end)| (std::cmp::Reverse(end), token));
            followers.retain(|f| level == 0 || !known.contains(&f.0));
            let (ways, mut taken) = (followers.len() as f64, 0.0);
            for (rank, (token, _)) in (0..).zip(followers) {
                let share = 2.0 * (ways - f64::from(rank)) / (ways * (ways + 1.0));
                let sure = left * confidence(len as usize) * share;
                taken += sure;
                if known.contains(&token) || known.len() >= most || place.all * sure < stop_below {
                    continue;
                }
                known.push(token);
                let place = self.after(node, place, token, sure);
                self.tree.offer(Offer { parent: node, token, sure, all: place.all, place });
            }
            left -= taken;
            let Some(shorter) = state.and_then(|state| automaton.shorter(state)) else { break };
            if known.len() >= most || place.all * left < stop_below {
                break;
            }
            (state, len) = (Some(shorter.0), shorter.1);
        }
    }
}

/// How often what followed a match of this length follows again.
pub(super) fn confidence(len: usize) -> f64 {
    match len {
        0 | 1 => 0.35,
        2 => 0.5,
        3 => 0.62,
        4 => 0.7,
        5..=6 => 0.77,
        7..=9 => 0.84,
        10..=15 => 0.89,
        16..=31 => 0.94,
        _ => 0.97,
    }
}
