//! Cutting a step's attention into work items.
//!
//! A **unit** is a list of queries with all query heads of one KV head: consecutive tokens of one
//! sequence, or such **parts** of several sequences that name the same blocks for some of their
//! positions. Those blocks are read for all queries together, the others for each part. An **item**
//! is a unit's run of segments. Most units are one item, which writes its result at once. A unit
//! that is too large a share of all the work is cut into several items; each leaves the partial
//! result of every segment, and **merges** fold those.

use super::share::{Loose, group, shareable};
use super::{MAX_HEAD_DIM, SEGMENT_TOKENS};
use crate::KernelError;
use crate::kv::BLOCK_TOKENS;
use dunlin_spec::AttnSpec;
use std::ops::Range;

/// What attention needs to know of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Features of a query or key.
    pub head_dim: usize,
    /// Features of a value.
    pub v_head_dim: usize,
    /// Queries are multiplied by this.
    pub score_scale: f32,
    /// A query at position p sees positions above p - window only.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

impl From<&AttnSpec> for AttnShape {
    fn from(a: &AttnSpec) -> Self {
        AttnShape {
            n_heads: a.n_heads,
            n_kv_heads: a.n_kv_heads,
            head_dim: a.head_dim,
            v_head_dim: a.v_head_dim,
            score_scale: a.score_scale,
            window: a.window,
            softcap: a.score_softcap,
        }
    }
}

impl AttnShape {
    /// Query heads that share a KV head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// The positions that a query at `position` sees.
    pub(super) fn visible(&self, position: usize) -> Range<usize> {
        let lo = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
        lo..position + 1
    }

    fn check(&self) -> Result<(), KernelError> {
        let dims = [self.n_heads, self.n_kv_heads, self.head_dim, self.v_head_dim];
        let fine = dims.iter().all(|&n| n > 0)
            && self.n_heads.is_multiple_of(self.n_kv_heads)
            && self.head_dim <= MAX_HEAD_DIM
            && self.window != Some(0);
        if fine {
            return Ok(());
        }
        Err(KernelError::BadShape {
            what: "attention",
            problem: format!("impossible (heads have at most {MAX_HEAD_DIM} features): {self:?}"),
        })
    }
}

/// Queries of one sequence in a step.
#[derive(Debug, Clone, Copy)]
pub struct AttnSequence<'a> {
    /// The row of the first query in the step's tensors; the others follow.
    pub first_row: usize,
    /// Queries.
    pub tokens: usize,
    /// The absolute position of the first query.
    pub first_position: usize,
    /// Blocks in position order: block `i` holds positions `32 i ..`. Covers the queries.
    pub block_table: &'a [u32],
}

/// One token's query: where it is and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Query {
    pub(super) row: usize,
    pub(super) position: usize,
}

/// Queries of a unit that are of one sequence.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// In `Plan::queries`, positions ascending.
    pub(super) queries: Range<usize>,
    /// The block table's start in `Plan::tables`.
    pub(super) table: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// In `Plan::queries`: those of the parts, one after another.
    pub(super) queries: Range<usize>,
    /// In `Plan::parts`.
    pub(super) parts: Range<usize>,
    /// Blocks that all parts name alike and all queries see whole; empty where there is one part.
    pub(super) common: Range<usize>,
    pub(super) kv_head: usize,
    /// Segments that any of the queries sees.
    pub(super) segments: Range<usize>,
    /// Where the unit's partial results start, `[segments][rows][partial_stride]`; `None` where
    /// one item does it all.
    pub(super) partials: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) unit: usize,
    pub(super) segments: Range<usize>,
}

/// A step's attention, cut into items. One plan serves all layers of one [`AttnShape`].
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) shape: AttnShape,
    pub(super) queries: Vec<Query>,
    pub(super) tables: Vec<u32>,
    pub(super) parts: Vec<Part>,
    pub(super) units: Vec<Unit>,
    pub(super) items: Vec<Item>,
    /// (unit, row of the unit).
    pub(super) merges: Vec<(usize, usize)>,
    /// Rows of the step's tensors: one above the highest row of any query.
    pub(super) rows: usize,
    /// One above the highest block of any table.
    pub(super) blocks: usize,
    pub(super) max_unit_rows: usize,
    partials_len: usize,
}

/// Query rows (tokens times heads) that a unit aims at: enough that converting a block of keys is
/// a small part of the work on it, few enough that their scores stay in the second-level cache.
const UNIT_ROWS: usize = 48;
/// Items for each thread that a unit's share of the work is measured against.
const ITEMS_PER_THREAD: usize = 8;
/// Units are not cut where the busiest thread has at most this part more to do than the mean.
const UNEVEN: u64 = 16;
/// A unit of several sequences may have as many rows as so many others: converting the blocks that
/// it shares is then an even smaller part.
const SHARED_UNITS: usize = 2;
/// Units of several sequences are kept so small that each thread gets as many of them.
const UNITS_PER_THREAD: usize = 2;
/// Partial results are kept below this many floats (16 MiB) whatever the number of threads.
const PARTIALS_LIMIT: usize = 1 << 22;

/// Queries in a unit: the number of rows should be a multiple of the kernels' tile.
fn unit_queries(group: usize) -> usize {
    let candidates = (UNIT_ROWS * 3 / 4 / group).max(1)..=(UNIT_ROWS * 5 / 4 / group).max(1);
    let fit = |n: &usize| match n * group {
        rows if rows.is_multiple_of(12) => 2,
        rows if rows.is_multiple_of(6) => 1,
        _ => 0,
    };
    candidates.max_by_key(|n| (fit(n), *n)).unwrap_or(1)
}

impl Plan {
    /// A plan for `threads` threads.
    ///
    /// # Errors
    /// An impossible shape, or a block table that does not cover its queries.
    pub fn new(
        shape: AttnShape,
        batch: &[AttnSequence<'_>],
        threads: usize,
    ) -> Result<Self, KernelError> {
        shape.check()?;
        let mut plan = Plan {
            shape,
            queries: Vec::new(),
            tables: Vec::new(),
            parts: Vec::new(),
            units: Vec::new(),
            items: Vec::new(),
            merges: Vec::new(),
            rows: 0,
            blocks: 0,
            max_unit_rows: 0,
            partials_len: 0,
        };
        let threads = threads.max(1);
        let mut loose = Vec::new();
        for (i, sequence) in batch.iter().enumerate() {
            plan.add(i, sequence, &mut loose)?;
        }
        plan.add_loose(&mut loose, threads);
        plan.cut(threads);
        Ok(plan)
    }

    /// The shape that the plan is for.
    pub fn shape(&self) -> &AttnShape {
        &self.shape
    }

    /// Items of the first phase.
    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Merges of the second phase; often none.
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    /// Floats of room that partial results need between the two phases.
    pub fn partials_len(&self) -> usize {
        self.partials_len
    }

    /// Floats of one partial result: the output's features in whole vectors, then the maximum and
    /// the sum.
    pub(super) fn partial_stride(&self) -> usize {
        self.shape.v_head_dim.next_multiple_of(16) + 16
    }

    pub(super) fn unit_rows(&self, unit: &Unit) -> usize {
        unit.queries.len() * self.shape.group()
    }

    /// Adds a sequence's queries: units of the usual size, and what is left over to `loose`.
    fn add(
        &mut self,
        index: usize,
        sequence: &AttnSequence<'_>,
        loose: &mut Vec<Loose>,
    ) -> Result<(), KernelError> {
        let AttnSequence { first_row, tokens, first_position, block_table } = *sequence;
        let bad = |problem| KernelError::BadShape { what: "attention", problem };
        let end = first_position.checked_add(tokens);
        let room = block_table.len().saturating_mul(BLOCK_TOKENS);
        let Some(end) = end.filter(|&end| end <= room) else {
            return Err(bad(format!(
                "sequence {index} has {tokens} tokens from position {first_position}, and blocks \
                 for {room} positions"
            )));
        };
        let Some(rows) = first_row.checked_add(tokens) else {
            return Err(bad(format!("sequence {index} starts at row {first_row}")));
        };
        if tokens == 0 {
            return Ok(());
        }
        let table = self.tables.len();
        let used = &block_table[..end.div_ceil(BLOCK_TOKENS)];
        self.tables.extend_from_slice(used);
        // Blocks below the window may have been given away: only what is read must exist.
        let first_read = self.shape.visible(first_position).start / BLOCK_TOKENS;
        let highest = used[first_read..].iter().max().map_or(0, |&b| b as usize + 1);
        self.blocks = self.blocks.max(highest);
        self.rows = self.rows.max(rows);
        let start = self.queries.len();
        let query = |i| Query { row: first_row + i, position: first_position + i };
        self.queries.extend((0..tokens).map(query));
        let step = unit_queries(self.shape.group());
        for first in (0..tokens).step_by(step) {
            let queries = start + first..start + (first + step).min(tokens);
            if queries.len() == step {
                self.add_units(&[Part { queries, table }], 0..0);
                continue;
            }
            let lowest = self.shape.visible(self.queries[queries.end - 1].position).start;
            let blocks = shareable(self.queries[queries.start].position, lowest);
            loose.push(Loose { queries, table, blocks });
        }
        Ok(())
    }

    /// Adds the units of runs that are shorter than a unit, together where they share blocks.
    fn add_loose(&mut self, loose: &mut [Loose], threads: usize) {
        // Enough units for all threads come first.
        let queries: usize = loose.iter().map(|run| run.queries.len()).sum();
        let fair = (queries * self.shape.n_kv_heads).div_ceil(threads * UNITS_PER_THREAD);
        let limit = (SHARED_UNITS * unit_queries(self.shape.group())).min(fair);
        let mut parts = Vec::new();
        for group in group(loose, &self.tables, limit) {
            let runs = &loose[group.runs];
            parts.clear();
            if let [run] = runs {
                parts.push(Part { queries: run.queries.clone(), table: run.table });
            } else {
                for run in runs {
                    let start = self.queries.len();
                    self.queries.extend_from_within(run.queries.clone());
                    parts.push(Part { queries: start..self.queries.len(), table: run.table });
                }
            }
            self.add_units(&parts, group.common);
        }
    }

    /// Adds the units of some parts, one for each KV head.
    fn add_units(&mut self, parts: &[Part], common: Range<usize>) {
        let (first, last) = (&parts[0].queries, &parts[parts.len() - 1].queries);
        let queries = first.start..last.end;
        let (mut lowest, mut highest) = (usize::MAX, 0);
        for part in parts {
            let part = &self.queries[part.queries.clone()];
            lowest = lowest.min(self.shape.visible(part[0].position).start);
            highest = highest.max(part[part.len() - 1].position);
        }
        let segments = lowest / SEGMENT_TOKENS..highest / SEGMENT_TOKENS + 1;
        let start = self.parts.len();
        self.parts.extend_from_slice(parts);
        for kv_head in 0..self.shape.n_kv_heads {
            self.units.push(Unit {
                queries: queries.clone(),
                parts: start..self.parts.len(),
                common: common.clone(),
                kv_head,
                segments: segments.clone(),
                partials: None,
            });
        }
    }

    /// A measure of the work of a unit in some of its segments: multiplications by key and value
    /// vectors, and how many of those are read.
    fn cost(&self, unit: &Unit, segments: &Range<usize>) -> u64 {
        let span = segments.start * SEGMENT_TOKENS..segments.end * SEGMENT_TOKENS;
        let inside = |position: usize| {
            let seen = self.shape.visible(position);
            seen.end.min(span.end).saturating_sub(seen.start.max(span.start)) as u64
        };
        let (mut pairs, mut read) = (0, 0);
        for part in &self.parts[unit.parts.clone()] {
            let seen = |q: &Query| inside(q.position);
            let queries = &self.queries[part.queries.clone()];
            pairs += queries.iter().map(seen).sum::<u64>();
            read += queries.iter().map(seen).max().unwrap_or(0);
        }
        let common = unit.common.start * BLOCK_TOKENS..unit.common.end * BLOCK_TOKENS;
        let common = common.end.min(span.end).saturating_sub(common.start.max(span.start)) as u64;
        read -= common * (unit.parts.len() as u64 - 1);
        pairs * self.shape.group() as u64 + 4 * read
    }

    /// Makes the items: the costliest first, so that the last ones to finish are short.
    fn cut(&mut self, threads: usize) {
        let costs: Vec<u64> = self.units.iter().map(|u| self.cost(u, &u.segments)).collect();
        let share = costs.iter().sum::<u64>() / (threads * ITEMS_PER_THREAD) as u64;
        let cutting = costs.iter().any(|&cost| cost > share) && !is_even(&costs, threads);
        let mut items = Vec::new();
        for (unit, &cost) in costs.iter().enumerate() {
            let Unit { segments, .. } = self.units[unit].clone();
            let rows = self.unit_rows(&self.units[unit]);
            self.max_unit_rows = self.max_unit_rows.max(rows);
            let room = segments.len() * rows * self.partial_stride();
            let large = cutting && cost > share && segments.len() > 1;
            if !large || self.partials_len + room > PARTIALS_LIMIT {
                items.push((cost, Item { unit, segments }));
                continue;
            }
            self.units[unit].partials = Some(self.partials_len);
            self.partials_len += room;
            self.merges.extend((0..rows).map(|row| (unit, row)));
            let pieces = cost.div_ceil(share.max(1)).min(segments.len() as u64);
            let (mut start, mut sum) = (segments.start, 0);
            for segment in segments.clone() {
                sum += self.cost(&self.units[unit], &(segment..segment + 1));
                if sum * pieces >= cost || segment + 1 == segments.end {
                    items.push((sum, Item { unit, segments: start..segment + 1 }));
                    (start, sum) = (segment + 1, 0);
                }
            }
        }
        items.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.items = items.into_iter().map(|(_, item)| item).collect();
    }
}

/// Whether units of such costs keep all threads busy to the end as they are: whoever is free takes
/// the costliest that is left.
fn is_even(costs: &[u64], threads: usize) -> bool {
    let mut costs = costs.to_vec();
    costs.sort_unstable_by_key(|&cost| std::cmp::Reverse(cost));
    let mut loads = vec![0u64; threads];
    for cost in &costs {
        if let Some(least) = loads.iter_mut().min() {
            *least += cost;
        }
    }
    let (mean, most) = (costs.iter().sum::<u64>() / threads as u64, loads.iter().max());
    most.is_none_or(|most| most - mean <= mean / UNEVEN)
}
