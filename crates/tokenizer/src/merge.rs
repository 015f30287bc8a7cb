//! BPE: merging neighbouring symbols by rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::layout::{NONE, View};

/// Words up to this many symbols are merged by scanning; longer ones through a heap, so that time
/// grows as n log n.
const SCAN_LIMIT: usize = 64;

/// Rank, position, left symbol, right symbol, result.
type Candidate = (u32, u32, u32, u32, u32);

/// Memory that [`merge_word`] reuses from word to word.
#[derive(Default)]
pub(crate) struct MergeScratch {
    /// The symbols of the word: filled by the caller, merged in place.
    pub symbols: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// Applies the merge of lowest rank, leftmost first, until none applies. A word must have fewer
/// than `u32::MAX` symbols.
pub(crate) fn merge_word(view: &View<'_>, scratch: &mut MergeScratch) {
    if scratch.symbols.len() <= SCAN_LIMIT {
        merge_short(view, &mut scratch.symbols);
    } else {
        merge_long(view, scratch);
    }
}

fn merge_short(view: &View<'_>, symbols: &mut Vec<u32>) {
    let n = symbols.len();
    // The merge of each symbol with its right neighbour: (rank, result).
    let mut pairs = [(NONE, NONE); SCAN_LIMIT];
    for i in 0..n.saturating_sub(1) {
        pairs[i] = view.merge(symbols[i], symbols[i + 1]).unwrap_or((NONE, NONE));
    }
    let mut len = n;
    while len > 1 {
        let mut best = 0;
        for i in 1..len - 1 {
            if pairs[i].0 < pairs[best].0 {
                best = i;
            }
        }
        if pairs[best].0 == NONE {
            break;
        }
        symbols[best] = pairs[best].1;
        symbols.copy_within(best + 2..len, best + 1);
        pairs.copy_within(best + 1..len - 1, best);
        len -= 1;
        pairs[len - 1] = (NONE, NONE);
        if best + 1 < len {
            pairs[best] = view.merge(symbols[best], symbols[best + 1]).unwrap_or((NONE, NONE));
        }
        if best > 0 {
            pairs[best - 1] = view.merge(symbols[best - 1], symbols[best]).unwrap_or((NONE, NONE));
        }
    }
    symbols.truncate(len);
}

fn merge_long(view: &View<'_>, scratch: &mut MergeScratch) {
    let MergeScratch { symbols, next, previous, heap } = scratch;
    let n = symbols.len() as u32;
    next.clear();
    next.extend(1..=n);
    previous.clear();
    previous.extend((0..n).map(|i| i.wrapping_sub(1)));
    heap.clear();
    let push = |heap: &mut BinaryHeap<_>, at: u32, left: u32, right: u32| {
        if let Some((rank, result)) = view.merge(left, right) {
            heap.push(Reverse((rank, at, left, right, result)));
        }
    };
    heap.extend(symbols.windows(2).zip(0..).filter_map(|(pair, at)| {
        let (rank, result) = view.merge(pair[0], pair[1])?;
        Some(Reverse((rank, at, pair[0], pair[1], result)))
    }));
    while let Some(Reverse((_, at, left, right, result))) = heap.pop() {
        let here = at as usize;
        let after = next[here];
        // A symbol merged away holds NONE, which is no symbol, so stale entries differ.
        if after >= n || symbols[here] != left || symbols[after as usize] != right {
            continue;
        }
        symbols[here] = result;
        symbols[after as usize] = NONE;
        let beyond = next[after as usize];
        next[here] = beyond;
        if beyond < n {
            previous[beyond as usize] = at;
            push(heap, at, result, symbols[beyond as usize]);
        }
        let before = previous[here];
        if before < n {
            push(heap, before, symbols[before as usize], result);
        }
    }
    symbols.retain(|&symbol| symbol != NONE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretok::PreTokenizer;
    use crate::{VocabKind, VocabSource, build_image, layout::Layout};

    /// The definition: look for the lowest rank from the left, merge, start over.
    fn naive(view: &View<'_>, symbols: &mut Vec<u32>) {
        loop {
            let pairs = symbols.windows(2).enumerate();
            let merges = pairs.filter_map(|(at, pair)| Some((view.merge(pair[0], pair[1])?, at)));
            let Some(((_, result), at)) = merges.min_by_key(|&((rank, _), at)| (rank, at)) else {
                return;
            };
            symbols[at] = result;
            symbols.remove(at + 1);
        }
    }

    #[test]
    fn both_ways_of_merging_follow_the_definition() {
        let tokens: Vec<&[u8]> =
            vec![b"a", b"b", b"c", b"aa", b"ab", b"bc", b"aab", b"abc", b"aaaa", b"cab", b"bcbc"];
        let mut source = VocabSource::new(VocabKind::Bpe { pre: PreTokenizer::Whole }, tokens);
        source.merges = Some(vec![
            (b"b", b"c"),
            (b"a", b"a"),
            (b"aa", b"b"),
            (b"a", b"b"),
            (b"a", b"bc"),
            (b"bc", b"bc"),
            (b"aa", b"aa"),
            (b"ab", b"c"),
            (b"c", b"ab"),
        ]);
        let image = build_image(&source).unwrap();
        let layout = Layout::parse(&image).unwrap();
        let view = layout.view(&image);
        let mut state = 1u64;
        println!("seed 1");
        for round in 0..2000 {
            let len = if round % 50 == 0 { 300 } else { round % SCAN_LIMIT + 1 };
            let symbols: Vec<u32> = (0..len)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 33) as u32 % 3
                })
                .collect();
            let mut expected = symbols.clone();
            naive(&view, &mut expected);
            let mut scratch = MergeScratch { symbols: symbols.clone(), ..Default::default() };
            merge_word(&view, &mut scratch);
            assert_eq!(scratch.symbols, expected, "{symbols:?}");
            if len > 1 {
                scratch.symbols.clone_from(&symbols);
                merge_long(&view, &mut scratch);
                assert_eq!(scratch.symbols, expected, "{symbols:?}");
            }
        }
    }
}
