//! A suffix automaton over one sequence's tokens, grown token by token.
//!
//! It knows every substring of what it was fed, in at most two states a token, and its *suffix link*
//! names the longest suffix that occurred before (Blumer et al. 1985, "The smallest automaton
//! recognizing the subwords of a text"). Each state also remembers where its strings last ended, so
//! that what followed them there can be read off.
//!
//! Not here: what is worth proposing.

use std::collections::HashMap;

/// States that are told of a new occurrence at each token: the longest suffixes. Shorter ones keep
/// an older place, which is a true one, too.
const TOLD: usize = 16;

/// The state of the empty string.
const ROOT: u32 = 0;
/// No state, no edge.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct State {
    /// The length of its longest string.
    len: u32,
    /// The state of the longest suffix that is in another.
    link: u32,
    /// Tokens before the end of an occurrence, the last that it was told of.
    end: u32,
    /// The first of its edges.
    edges: u32,
    /// Its edges: different tokens that followed.
    ways: u32,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    token: u32,
    to: u32,
    /// The state's next edge.
    next: u32,
}

/// A suffix of the text that occurred before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Its length.
    pub(super) len: u32,
    /// Tokens before its earlier end; what followed begins there.
    pub(super) end: u32,
    /// Different tokens that have followed it.
    pub(super) ways: u32,
    /// Its state.
    pub(super) state: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SuffixAutomaton {
    states: Vec<State>,
    edges: Vec<Edge>,
    /// The edge of a state that bears a token.
    by_token: HashMap<(u32, u32), u32>,
    /// The state of the whole text.
    last: u32,
    /// Tokens fed.
    len: u32,
}

impl SuffixAutomaton {
    pub(super) fn new() -> Self {
        let root = State { len: 0, link: NONE, end: 0, edges: NONE, ways: 0 };
        Self { states: vec![root], edges: Vec::new(), by_token: HashMap::new(), last: ROOT, len: 0 }
    }

    /// Tokens fed so far.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes that it holds, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.states.capacity() * size_of::<State>()
            + self.edges.capacity() * size_of::<Edge>()
            + self.by_token.capacity() * size_of::<((u32, u32), u32, u8)>()
    }

    fn state(&mut self, state: u32) -> &mut State {
        &mut self.states[state as usize]
    }

    /// The state after another and a token.
    pub(super) fn step(&self, state: u32, token: u32) -> Option<u32> {
        self.by_token.get(&(state, token)).map(|&edge| self.edges[edge as usize].to)
    }

    fn add_edge(&mut self, from: u32, token: u32, to: u32) {
        let edge = self.edges.len() as u32;
        let next = self.states[from as usize].edges;
        self.edges.push(Edge { token, to, next });
        self.by_token.insert((from, token), edge);
        let state = self.state(from);
        (state.edges, state.ways) = (edge, state.ways + 1);
    }

    /// Appends a token to the text.
    pub(super) fn push(&mut self, token: u32) {
        // Until now the suffixes' ends were those of earlier occurrences.
        let (mut suffix, mut told) = (self.last, 0);
        while suffix != NONE && told < TOLD {
            let here = self.len;
            let state = self.state(suffix);
            state.end = here;
            (suffix, told) = (state.link, told + 1);
        }
        self.len += 1;
        let new = self.states.len() as u32;
        let state = State { len: self.len, link: ROOT, end: self.len, edges: NONE, ways: 0 };
        self.states.push(state);
        let mut from = self.last;
        while from != NONE && self.step(from, token).is_none() {
            self.add_edge(from, token, new);
            from = self.states[from as usize].link;
        }
        if from != NONE {
            let to = self.step(from, token).expect("the loop ended there");
            let link = self.split(from, token, to);
            self.state(new).link = link;
        }
        self.last = new;
    }

    /// The state of the strings that come from `from` by `token`, apart from longer ones in `to`.
    fn split(&mut self, mut from: u32, token: u32, to: u32) -> u32 {
        let len = self.states[from as usize].len + 1;
        let old = self.states[to as usize];
        if old.len == len {
            return to;
        }
        let copy = self.states.len() as u32;
        self.states.push(State { len, edges: NONE, ways: 0, ..old });
        let mut edge = old.edges;
        while edge != NONE {
            let Edge { token, to, next } = self.edges[edge as usize];
            self.add_edge(copy, token, to);
            edge = next;
        }
        self.state(to).link = copy;
        while from != NONE && self.step(from, token) == Some(to) {
            let edge = self.by_token[&(from, token)];
            self.edges[edge as usize].to = copy;
            from = self.states[from as usize].link;
        }
        copy
    }

    /// The longest suffix of the text that occurred before, ending elsewhere; none where even its
    /// last token is new.
    pub(super) fn longest_match(&self) -> Option<Match> {
        let link = self.states[self.last as usize].link;
        if link == NONE || link == ROOT {
            return None;
        }
        let state = self.states[link as usize];
        Some(Match { len: state.len, end: state.end, ways: state.ways, state: link })
    }

    /// The tokens that have followed a state's strings, each with the state that they lead to and the
    /// tokens before the end of an occurrence of that.
    pub(super) fn followers(&self, state: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let mut edge = self.states[state as usize].edges;
        std::iter::from_fn(move || {
            let Edge { token, to, next } = *self.edges.get(edge as usize)?;
            edge = next;
            Some((token, to, self.states[to as usize].end))
        })
    }

    /// Tokens before the end of an occurrence of a state's strings.
    pub(super) fn end(&self, state: u32) -> u32 {
        self.states[state as usize].end
    }

    /// How many different tokens have followed a state's strings.
    #[cfg(test)]
    pub(super) fn ways(&self, state: u32) -> u32 {
        self.states[state as usize].ways
    }

    /// The state of the longest suffix of a state's strings that is in another, and its length; none
    /// where that is empty.
    pub(super) fn shorter(&self, state: u32) -> Option<(u32, u32)> {
        let link = self.states[state as usize].link;
        (link != NONE && link != ROOT).then(|| (link, self.states[link as usize].len))
    }
}

#[cfg(test)]
mod tests {
    use dunlin_units::SeedTree;

    use super::*;

    /// The longest suffix that also ends earlier, by looking everywhere.
    fn naive(text: &[u32]) -> u32 {
        let n = text.len();
        (1..n)
            .rev()
            .find(|&len| (len..n).any(|end| text[end - len..end] == text[n - len..]))
            .unwrap_or(0) as u32
    }

    fn ways(text: &[u32], of: &[u32]) -> u32 {
        let follows = text.windows(of.len() + 1).filter(|w| w[..of.len()] == *of);
        let mut next: Vec<u32> = follows.map(|w| w[of.len()]).collect();
        next.sort_unstable();
        next.dedup();
        next.len() as u32
    }

    #[test]
    fn it_finds_the_longest_suffix_that_occurred_before() {
        for seed in 0..40 {
            let mut random = SeedTree::root(seed).child("text").stream();
            let alphabet = 1 + seed % 7;
            let mut text = Vec::new();
            let mut automaton = SuffixAutomaton::new();
            for _ in 0..120 {
                text.push(random.next_below(alphabet) as u32);
                automaton.push(*text.last().unwrap());
                let found = automaton.longest_match();
                assert_eq!(found.map_or(0, |m| m.len), naive(&text), "seed {seed}: {text:?}");
                let Some(found) = found else { continue };
                let (len, end, n) = (found.len as usize, found.end as usize, text.len());
                // An occurrence, and an earlier one.
                assert!(end < n && end >= len, "seed {seed}: {found:?} of {text:?}");
                assert_eq!(text[end - len..end], text[n - len..], "seed {seed}");
                assert_eq!(found.ways, ways(&text, &text[n - len..]), "seed {seed}");
                let next = text[end];
                let after = automaton.step(found.state, next).unwrap();
                assert_eq!(automaton.ways(after), {
                    // The state's strings grow to the longest that is always before them.
                    let longer = [&text[n - len..], &[next]].concat();
                    ways(&text, &longer)
                });
                let mut followers: Vec<u32> = Vec::new();
                for (token, _, end) in automaton.followers(found.state) {
                    let end = end as usize;
                    assert!(end > len && text[end - 1] == token, "seed {seed}");
                    assert_eq!(text[end - 1 - len..end - 1], text[n - len..], "seed {seed}");
                    followers.push(token);
                }
                assert_eq!(followers.len(), found.ways as usize);
                assert!(followers.contains(&next));
            }
            assert_eq!(automaton.len(), text.len());
        }
    }

    #[test]
    fn it_stays_small_on_any_text() {
        for (seed, alphabet) in [(1, 1), (2, 2), (3, 300), (4, 100_000)] {
            let mut random = SeedTree::root(seed).child("text").stream();
            let mut automaton = SuffixAutomaton::new();
            for _ in 0..20_000 {
                automaton.push(random.next_below(alphabet) as u32);
            }
            // Two states and three edges a token, and what growing vectors leave over.
            assert!(automaton.states.len() <= 40_000 && automaton.edges.len() <= 60_000);
            assert!(automaton.bytes() <= 20_000 * 300, "{}", automaton.bytes());
        }
    }
}
