//! Stop strings: ending a stream of text where one of many strings first appears.
//!
//! The strings are compiled into an Aho-Corasick automaton, so that a stream costs the same per
//! byte however many there are.

use std::sync::Arc;

use crate::layout::NONE;
use crate::special::TrieBuilder;

/// A set of stop strings, compiled. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StopStrings {
    inner: Arc<Automaton>,
}

#[derive(Debug)]
struct Automaton {
    root: Vec<u32>,
    /// First edge and number of edges per node.
    spans: Vec<(u32, u32)>,
    /// (byte, node), ascending by byte within a node.
    edges: Vec<[u32; 2]>,
    /// The node of the longest proper suffix that is in the trie; [`NONE`] for the root.
    fail: Vec<u32>,
    /// Length of the text that leads to a node.
    depth: Vec<u32>,
    /// The longest stop string that ends here, as (index, length in bytes).
    hit: Vec<Option<(u32, u32)>>,
}

impl StopStrings {
    /// Compiles a set of stop strings. Empty ones can never stop anything and are ignored; of
    /// equal ones the first counts.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> StopStrings {
        let patterns = stops
            .iter()
            .enumerate()
            .map(|(i, stop)| (stop.as_ref().as_bytes(), i as u32))
            .filter(|(stop, _)| !stop.is_empty());
        let trie = TrieBuilder::new(patterns.collect());
        let n = trie.nodes.len();
        let mut automaton = Automaton {
            root: trie.root,
            spans: trie.nodes.iter().map(|node| (node[0], node[1])).collect(),
            edges: trie.edges,
            fail: vec![NONE; n],
            depth: vec![0; n],
            hit: vec![None; n],
        };
        for node in automaton.root.iter().filter(|&&node| node != NONE) {
            automaton.depth[*node as usize] = 1;
        }
        // The trie numbers its nodes breadth first, so suffixes are done before what needs them.
        for node in 0..n {
            let own = trie.nodes[node][2];
            let suffix = automaton.fail[node];
            automaton.hit[node] = if own != NONE {
                Some((own, automaton.depth[node]))
            } else {
                automaton.hit.get(suffix as usize).copied().flatten()
            };
            let (first, count) = automaton.spans[node];
            for edge in first..first + count {
                let [byte, child] = automaton.edges[edge as usize];
                automaton.depth[child as usize] = automaton.depth[node] + 1;
                automaton.fail[child as usize] = automaton.step(suffix, byte as u8);
            }
        }
        StopStrings { inner: Arc::new(automaton) }
    }
}

impl Automaton {
    fn child(&self, node: u32, byte: u8) -> u32 {
        if node == NONE {
            return self.root[usize::from(byte)];
        }
        let (first, count) = self.spans[node as usize];
        let edges = &self.edges[first as usize..(first + count) as usize];
        match edges.binary_search_by_key(&u32::from(byte), |edge| edge[0]) {
            Ok(at) => edges[at][1],
            Err(_) => NONE,
        }
    }

    /// The node after `byte`; [`NONE`] stands for the root.
    fn step(&self, mut node: u32, byte: u8) -> u32 {
        loop {
            let child = self.child(node, byte);
            if child != NONE || node == NONE {
                return child;
            }
            node = self.fail[node as usize];
        }
    }

    fn depth(&self, node: u32) -> usize {
        self.depth.get(node as usize).map_or(0, |&depth| depth as usize)
    }
}

/// A stop string that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopHit {
    /// Its index in the list given to [`StopStrings::new`].
    pub index: usize,
}

/// Watches one stream of text for stop strings, and holds back only what may still become one.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: StopStrings,
    keep_match: bool,
    node: u32,
    held: String,
    stopped: Option<StopHit>,
}

impl StopMatcher {
    /// A matcher at the start of a stream. With `keep_match` the stop string itself is part of the
    /// text; otherwise the text ends before it.
    pub fn new(stops: &StopStrings, keep_match: bool) -> StopMatcher {
        StopMatcher {
            stops: stops.clone(),
            keep_match,
            node: NONE,
            held: String::new(),
            stopped: None,
        }
    }

    /// Takes the next piece of text and appends what is certain to `out`. Once this returns a hit
    /// the stream is over: `out` is complete, and more text is ignored.
    ///
    /// The stop string that is complete first counts; of those complete at the same place, the
    /// longest.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Option<StopHit> {
        if self.stopped.is_some() {
            return self.stopped;
        }
        let automaton = &*self.stops.inner;
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            self.node = automaton.step(self.node, byte);
            let hit = automaton.hit.get(self.node as usize).copied().flatten();
            if let Some((index, len)) = hit {
                self.held.push_str(&piece[..at + 1]);
                let keep = self.held.len() - if self.keep_match { 0 } else { len as usize };
                out.push_str(&self.held[..keep]);
                self.held.clear();
                self.stopped = Some(StopHit { index: index as usize });
                return self.stopped;
            }
        }
        // What is held ends with the start of a stop string, and starts where that starts.
        self.held.push_str(piece);
        let done = self.held.len() - automaton.depth(self.node);
        out.push_str(&self.held[..done]);
        self.held.drain(..done);
        None
    }

    /// Ends the stream: what was held back is text after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.node = NONE;
    }

    /// The text held back.
    pub fn held(&self) -> &str {
        &self.held
    }
}
