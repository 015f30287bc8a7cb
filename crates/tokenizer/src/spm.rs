//! SentencePiece: merging neighbouring pieces of text by the score of the token they make.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::layout::{NONE, View};

/// Segments up to this many pieces are merged by scanning; longer ones through a heap.
const SCAN_LIMIT: usize = 48;

/// A piece of the text and the token it is, if any.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub start: u32,
    pub len: u32,
    pub id: u32,
}

struct Candidate {
    score: f32,
    at: u32,
    len: u32,
    id: u32,
}

impl Ord for Candidate {
    /// The greater score first, then the one further left.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.at.cmp(&self.at))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Memory that [`merge_segment`] reuses.
#[derive(Default)]
pub(crate) struct SpmScratch {
    /// The result of the last call.
    pub pieces: Vec<Piece>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Candidate>,
}

/// Splits `text` into characters and merges them as far as the vocabulary goes. `text` must be
/// shorter than `u32::MAX` bytes.
pub(crate) fn merge_segment(view: &View<'_>, text: &str, scratch: &mut SpmScratch) {
    scratch.pieces.clear();
    scratch.pieces.extend(text.char_indices().map(|(start, c)| {
        let len = c.len_utf8();
        let id = view.find(&text.as_bytes()[start..start + len]).unwrap_or(NONE);
        Piece { start: start as u32, len: len as u32, id }
    }));
    if scratch.pieces.len() <= SCAN_LIMIT {
        merge_short(view, text.as_bytes(), &mut scratch.pieces);
    } else {
        merge_long(view, text.as_bytes(), scratch);
    }
}

/// The token that `pieces[at]` and its right neighbour `right` make.
fn join(view: &View<'_>, text: &[u8], left: Piece, right: Piece) -> Option<(f32, u32)> {
    let start = left.start as usize;
    let id = view.find(text.get(start..start + (left.len + right.len) as usize)?)?;
    Some((view.score(id), id))
}

fn merge_short(view: &View<'_>, text: &[u8], pieces: &mut Vec<Piece>) {
    let mut pairs: [Option<(f32, u32)>; SCAN_LIMIT] = [None; SCAN_LIMIT];
    let mut len = pieces.len();
    for i in 0..len.saturating_sub(1) {
        pairs[i] = join(view, text, pieces[i], pieces[i + 1]);
    }
    while len > 1 {
        let mut best: Option<(usize, f32, u32)> = None;
        for (i, pair) in pairs[..len - 1].iter().enumerate() {
            if let Some((score, id)) = *pair
                && best.is_none_or(|(_, top, _)| score.total_cmp(&top) == Ordering::Greater)
            {
                best = Some((i, score, id));
            }
        }
        let Some((at, _, id)) = best else { break };
        pieces[at].len += pieces[at + 1].len;
        pieces[at].id = id;
        pieces.copy_within(at + 2..len, at + 1);
        pairs.copy_within(at + 1..len - 1, at);
        len -= 1;
        pairs[len - 1] = None;
        if at + 1 < len {
            pairs[at] = join(view, text, pieces[at], pieces[at + 1]);
        }
        if at > 0 {
            pairs[at - 1] = join(view, text, pieces[at - 1], pieces[at]);
        }
    }
    pieces.truncate(len);
}

fn merge_long(view: &View<'_>, text: &[u8], scratch: &mut SpmScratch) {
    let SpmScratch { pieces, next, previous, heap } = scratch;
    let n = pieces.len() as u32;
    next.clear();
    next.extend(1..=n);
    previous.clear();
    previous.extend((0..n).map(|i| i.wrapping_sub(1)));
    heap.clear();
    let push = |heap: &mut BinaryHeap<Candidate>, at: u32, left: Piece, right: Piece| {
        if let Some((score, id)) = join(view, text, left, right) {
            heap.push(Candidate { score, at, len: left.len + right.len, id });
        }
    };
    heap.extend(pieces.windows(2).zip(0..).filter_map(|(pair, at)| {
        let (score, id) = join(view, text, pair[0], pair[1])?;
        Some(Candidate { score, at, len: pair[0].len + pair[1].len, id })
    }));
    while let Some(Candidate { at, len, id, .. }) = heap.pop() {
        let here = at as usize;
        let after = next[here];
        // A piece merged away has length 0; one that grew makes a longer sum.
        if after >= n
            || pieces[here].len == 0
            || pieces[here].len + pieces[after as usize].len != len
        {
            continue;
        }
        pieces[here].len = len;
        pieces[here].id = id;
        pieces[after as usize].len = 0;
        let beyond = next[after as usize];
        next[here] = beyond;
        if beyond < n {
            previous[beyond as usize] = at;
            push(heap, at, pieces[here], pieces[beyond as usize]);
        }
        let before = previous[here];
        if before < n {
            push(heap, before, pieces[before as usize], pieces[here]);
        }
    }
    pieces.retain(|piece| piece.len > 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{VocabKind, VocabSource, build_image, layout::Layout};

    const TOKENS: [&str; 14] =
        ["a", "b", "é", " ", " a", "ab", "aa", "éa", " ab", "aab", "abé", " a é", "aaaa", "bb"];
    const SCORES: [f32; 14] =
        [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -2.0, -1.5, -3.0, 5.0, -2.0, -9.0, -1.0, -2.0];

    /// The definition: of all neighbours that make a token, join the pair of the greatest score,
    /// the leftmost of equals, until there is none.
    fn naive(text: &str) -> Vec<String> {
        let mut pieces: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for at in 1..pieces.len() {
                let joined = format!("{}{}", pieces[at - 1], pieces[at]);
                if let Some(token) = TOKENS.iter().position(|token| *token == joined)
                    && best.is_none_or(|(score, _)| SCORES[token] > score)
                {
                    best = Some((SCORES[token], at - 1));
                }
            }
            let Some((_, at)) = best else { return pieces };
            let right = pieces.remove(at + 1);
            pieces[at].push_str(&right);
        }
    }

    #[test]
    fn both_ways_of_merging_follow_the_definition() {
        let tokens = TOKENS.iter().map(|token| token.as_bytes()).collect();
        let mut source = VocabSource::new(VocabKind::Spm, tokens);
        source.scores = Some(SCORES.to_vec());
        let image = build_image(&source).unwrap();
        let layout = Layout::parse(&image).unwrap();
        let view = layout.view(&image);
        let mut state = 1u64;
        println!("seed 1");
        for round in 0..2000 {
            let len = if round % 50 == 0 { 300 } else { round % SCAN_LIMIT + 1 };
            let text: String = (0..len)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ['a', 'a', 'b', ' ', 'é', 'z'][(state >> 33) as usize % 6]
                })
                .collect();
            let expected = naive(&text);
            let mut scratch = SpmScratch::default();
            let read = |scratch: &SpmScratch| -> Vec<String> {
                let spell =
                    |p: &Piece| text[p.start as usize..(p.start + p.len) as usize].to_string();
                scratch.pieces.iter().map(spell).collect()
            };
            merge_segment(&view, &text, &mut scratch);
            assert_eq!(read(&scratch), expected, "{text:?}");
            if len > 1 {
                scratch.pieces = text
                    .char_indices()
                    .map(|(start, c)| Piece {
                        start: start as u32,
                        len: c.len_utf8() as u32,
                        id: 0,
                    })
                    .collect();
                merge_long(&view, text.as_bytes(), &mut scratch);
                assert_eq!(read(&scratch), expected, "{text:?}");
            }
        }
    }
}
