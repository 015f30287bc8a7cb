//! Finding the queries that read the same blocks.
//!
//! Sequences with a common prefix name the same physical blocks, and a step that decodes them reads
//! those blocks once for each sequence. Here the short runs of queries of a step are put in groups
//! so that as few blocks as possible are read more than once; a unit then reads a group's common
//! blocks for all of its queries together. What is common is found from block ids alone, so it does
//! not matter how it came about.

use crate::kv::BLOCK_TOKENS;
use std::cmp::Reverse;
use std::ops::Range;

/// A run of one sequence's queries that does not fill a unit.
#[derive(Debug, Clone)]
pub(super) struct Loose {
    /// In `Plan::queries`.
    pub(super) queries: Range<usize>,
    /// The block table's start in `Plan::tables`.
    pub(super) table: usize,
    /// Blocks that may be read together with other sequences: all queries see them whole.
    pub(super) blocks: Range<usize>,
}

/// Runs that are to be one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// Neighbours in the list of runs.
    pub(super) runs: Range<usize>,
    /// The blocks that they have in common; empty for a single run.
    pub(super) common: Range<usize>,
}

/// Fewer blocks in common are not worth a unit of several sequences.
const LEAST_COMMON: usize = 2;

/// With a sliding window, what runs may share starts at a multiple of so many blocks, so that those
/// whose windows start near each other agree on a first block.
const WINDOW_STEP: usize = 4;

/// The blocks that queries at positions `first ..= last` all see whole, or less; `lowest` is the
/// first position that the last of them sees.
pub(super) fn shareable(first: usize, lowest: usize) -> Range<usize> {
    let start = lowest.div_ceil(BLOCK_TOKENS).next_multiple_of(WINDOW_STEP);
    let end = (first + 1) / BLOCK_TOKENS;
    if start < end { start..end } else { 0..0 }
}

impl Loose {
    fn ids<'a>(&self, tables: &'a [u32]) -> &'a [u32] {
        &tables[self.table + self.blocks.start..self.table + self.blocks.end]
    }
}

/// Sorts runs so that those with common blocks are neighbours, and puts them in groups of at most
/// `limit` queries (or one run).
pub(super) fn group(loose: &mut [Loose], tables: &[u32], limit: usize) -> Vec<Group> {
    let family = |run: &Loose| (run.blocks.start, run.ids(tables).first().copied());
    loose.sort_by_key(family);
    let mut groups = Vec::with_capacity(loose.len());
    let mut start = 0;
    while start < loose.len() {
        let (first, key) = (&loose[start], family(&loose[start]));
        // How many blocks the whole family has in common.
        let (mut end, mut common) = (start + 1, first.blocks.len());
        while end < loose.len() && family(&loose[end]) == key {
            common = common.min(in_common(first.ids(tables), loose[end].ids(tables)));
            end += 1;
        }
        if end - start == 1 || common == 0 {
            groups.extend((start..end).map(|i| Group { runs: i..i + 1, common: 0..0 }));
        } else {
            let runs = &mut loose[start..end];
            runs.sort_by(|a, b| a.ids(tables)[common..].cmp(&b.ids(tables)[common..]));
            divide(runs, tables, limit, start, &mut groups);
        }
        start = end;
    }
    groups
}

/// Divides a family, sorted by its ids, so that the most blocks are saved: a group of `n` runs
/// saves `n - 1` times what its runs have in common.
fn divide(runs: &[Loose], tables: &[u32], limit: usize, offset: usize, groups: &mut Vec<Group>) {
    // What each run has in common with the one before it. As they are sorted, the least of these is
    // what all runs between have in common.
    let shared: Vec<usize> = (0..runs.len())
        .map(|i| in_common(runs[i.saturating_sub(1)].ids(tables), runs[i].ids(tables)))
        .collect();
    // For each number of leading runs, the best that can be had, and where its last group starts
    // and what that has in common. Among those that save the same, the most even one is best: its
    // sum of squares is the least.
    let square = |n: usize| n * n;
    let mut best = vec![((0usize, Reverse(0usize)), 0usize, 0usize)];
    for end in 1..=runs.len() {
        let last = &runs[end - 1];
        let (mut queries, mut common) = (last.queries.len(), usize::MAX);
        let (saved, Reverse(squares)) = best[end - 1].0;
        let mut choice = ((saved, Reverse(squares + square(queries))), end - 1, 0);
        for start in (0..end - 1).rev() {
            queries += runs[start].queries.len();
            common = common.min(shared[start + 1]);
            if queries > limit || common < LEAST_COMMON {
                break;
            }
            let (saved, Reverse(squares)) = best[start].0;
            let saved = saved + (end - start - 1) * common;
            let value = (saved, Reverse(squares + square(queries)));
            if value > choice.0 {
                choice = (value, start, common);
            }
        }
        best.push(choice);
    }
    let (first, mut end) = (groups.len(), runs.len());
    while end > 0 {
        let (_, start, common) = best[end];
        let from = runs[start].blocks.start;
        groups.push(Group { runs: offset + start..offset + end, common: from..from + common });
        end = start;
    }
    groups[first..].reverse();
}

/// Leading ids that two lists have in common.
fn in_common(a: &[u32], b: &[u32]) -> usize {
    const STEP: usize = 8;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let equal = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(a, b)| a == b).count();
    let rest = equal * STEP;
    rest + a[rest..].iter().zip(&b[rest..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 5;

    fn random(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) as usize
    }

    /// Runs with tables in one list, from (queries, ids).
    fn runs(list: &[(usize, Vec<u32>)]) -> (Vec<Loose>, Vec<u32>) {
        let (mut loose, mut tables, mut at) = (Vec::new(), Vec::new(), 0);
        for (n, ids) in list {
            loose.push(Loose { queries: at..at + n, table: tables.len(), blocks: 0..ids.len() });
            at += n;
            tables.extend_from_slice(ids);
        }
        (loose, tables)
    }

    fn saved(groups: &[Group]) -> usize {
        groups.iter().map(|g| (g.runs.len() - 1) * g.common.len()).sum()
    }

    /// The most that any division into sets of runs saves, by trying them all.
    fn most_saved(list: &[(usize, Vec<u32>)], limit: usize) -> usize {
        fn add(
            list: &[(usize, Vec<u32>)],
            limit: usize,
            i: usize,
            sets: &mut Vec<Vec<usize>>,
        ) -> usize {
            if i == list.len() {
                let value = |set: &Vec<usize>| {
                    let all = &list[set[0]].1;
                    let same = |n: usize| set.iter().all(|&j| list[j].1.get(n) == all.get(n));
                    let common = (0..all.len()).take_while(|&n| same(n)).count();
                    if common < LEAST_COMMON { 0 } else { (set.len() - 1) * common }
                };
                return sets.iter().map(value).sum();
            }
            let mut most = 0;
            for s in 0..=sets.len() {
                if s == sets.len() {
                    sets.push(vec![i]);
                } else {
                    let queries: usize = sets[s].iter().map(|&j| list[j].0).sum();
                    if queries + list[i].0 > limit {
                        continue;
                    }
                    sets[s].push(i);
                }
                most = most.max(add(list, limit, i + 1, sets));
                sets[s].pop();
                if sets[s].is_empty() {
                    sets.pop();
                }
            }
            most
        }
        add(list, limit, 0, &mut Vec::new())
    }

    #[test]
    fn groups_cover_every_run_and_have_in_common_what_they_say() {
        println!("seed {SEED}");
        let mut state = SEED;
        for _ in 0..300 {
            let n = 1 + random(&mut state) % 40;
            let limit = 1 + random(&mut state) % 20;
            let list: Vec<(usize, Vec<u32>)> = (0..n)
                .map(|_| {
                    let len = random(&mut state) % 30;
                    let queries = 1 + random(&mut state) % 3;
                    // Few ids early, so that prefixes meet; many later.
                    let ids = (0..len).map(|i| (random(&mut state) % (1 + i / 8)) as u32);
                    (queries, ids.collect())
                })
                .collect();
            let (mut loose, tables) = runs(&list);
            let groups = group(&mut loose, &tables, limit);
            let mut next = 0;
            for g in &groups {
                assert_eq!(g.runs.start, next);
                next = g.runs.end;
                let members = &loose[g.runs.clone()];
                let queries: usize = members.iter().map(|m| m.queries.len()).sum();
                assert!(members.len() == 1 || (queries <= limit && g.common.len() >= LEAST_COMMON));
                for m in members {
                    assert!(g.common.end <= m.blocks.end);
                    let common = |l: &Loose| tables[l.table..][g.common.clone()].to_vec();
                    assert_eq!(common(m), common(&members[0]));
                }
            }
            assert_eq!(next, n);
            let mut starts: Vec<usize> = loose.iter().map(|l| l.queries.start).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|w| w[0] < w[1]), "each run once");
        }
    }

    #[test]
    fn no_division_saves_more_where_runs_are_of_one_size() {
        println!("seed {SEED}");
        let mut state = SEED;
        for _ in 0..200 {
            let n = 1 + random(&mut state) % 7;
            let limit = 1 + random(&mut state) % 5;
            let list: Vec<(usize, Vec<u32>)> = (0..n)
                .map(|i| {
                    let family = (random(&mut state) % 3) as u32;
                    let depth = 2 + random(&mut state) % 5;
                    let mut ids: Vec<u32> = (0..depth as u32).map(|d| 10 * d + family).collect();
                    ids.push(1000 + i as u32);
                    (1, ids)
                })
                .collect();
            let (mut loose, tables) = runs(&list);
            let groups = group(&mut loose, &tables, limit);
            assert_eq!(saved(&groups), most_saved(&list, limit), "{list:?}, limit {limit}");
        }
    }

    #[test]
    fn groups_are_even() {
        let list: Vec<_> = (0..64).map(|i| (1, vec![0, 1, 2, 1000 + i])).collect();
        let (mut loose, tables) = runs(&list);
        let sizes = |groups: Vec<Group>| groups.iter().map(|g| g.runs.len()).collect::<Vec<_>>();
        assert_eq!(sizes(group(&mut loose, &tables, 20)), [16; 4]);
    }

    #[test]
    fn families_are_not_mixed_where_that_saves_less() {
        let of = |family: u32, i: u32| {
            let ids = [0, 1, 2].into_iter().chain((0..20).map(|b| 100 * family + b));
            (1, ids.chain([10_000 + i]).collect::<Vec<u32>>())
        };
        let list: Vec<_> = (0..30).map(|i| of(1 + i % 3, i)).collect();
        let (mut loose, tables) = runs(&list);
        let groups = group(&mut loose, &tables, 16);
        assert_eq!(groups.len(), 3);
        assert!(groups.iter().all(|g| g.runs.len() == 10 && g.common == (0..23)));
    }

    #[test]
    fn blocks_are_shareable_where_every_query_sees_them_whole() {
        assert_eq!(shareable(0, 0), 0..0);
        assert_eq!(shareable(30, 0), 0..0);
        assert_eq!(shareable(31, 0), 0..1);
        assert_eq!(shareable(1000, 0), 0..31);
        assert_eq!(shareable(1000, 1), 4..31);
        assert_eq!(shareable(1000, 128), 4..31);
        assert_eq!(shareable(1000, 980), 0..0);
    }
}
