//! One work item from queries to outputs, and the merge of a row cut into several items.

use super::later::Later;
use super::plan::{Plan, Unit};
use super::segment::{Runs, Span, segment_outputs, segment_scores};
use super::softmax::{RowState, finish, merge, softmax_row};
use super::tiles::{QUERY_STRIDE, SCORE_STRIDE};
use super::{SEGMENT_TOKENS, job::AttnTensors};
use crate::kv::{KvPool, LayerLayout};
use crate::simd::{LANES, Simd, simd_dispatch};

/// Pointers into a thread's scratch, for one unit. Shapes in values of f32, `R` the unit's rows.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// Scaled queries, `[R][QUERY_STRIDE]`.
    pub(super) q: *mut f32,
    /// Scores and then weights, `[R][SCORE_STRIDE]`.
    pub(super) scores: *mut f32,
    /// A block's keys, `[head_dim][32]`.
    pub(super) keys: *mut f32,
    /// A block's values, `[32][v_stride]`.
    pub(super) values: *mut f32,
    /// A block's value scales, `[groups][32]`.
    pub(super) scales: *mut f32,
    /// A segment's outputs, `[R][v_stride]`.
    pub(super) outputs: *mut f32,
    /// Merged outputs, `[R][v_stride]`.
    pub(super) merged: *mut f32,
    /// Maximums and sums of the segment, `[R][2]`.
    pub(super) states: *mut RowState,
    /// Merged maximums and sums, `[R][2]`.
    pub(super) merged_states: *mut RowState,
    /// What each row sees of the segment, `[R][2]`.
    pub(super) spans: *mut Span,
}

impl Scratch {
    /// The scratch of the rows from `row` on; rows of values have `v_stride`.
    #[inline(always)]
    pub(super) fn rows_from(&self, row: usize, v_stride: usize) -> Scratch {
        Scratch {
            q: self.q.wrapping_add(row * QUERY_STRIDE),
            scores: self.scores.wrapping_add(row * SCORE_STRIDE),
            outputs: self.outputs.wrapping_add(row * v_stride),
            merged: self.merged.wrapping_add(row * v_stride),
            states: self.states.wrapping_add(row),
            merged_states: self.merged_states.wrapping_add(row),
            spans: self.spans.wrapping_add(row),
            ..*self
        }
    }
}

/// What an item needs to know, gathered.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    pub(super) pool: &'a KvPool,
    pub(super) layer: &'a LayerLayout,
    pub(super) tensors: AttnTensors,
    pub(super) scratch: Scratch,
}

simd_dispatch! {
    /// Runs item `index`.
    ///
    /// # Safety
    /// The work's parts fit together (see [`super::AttnJob::new`]); nothing else uses its scratch,
    /// nor the outputs or partial results of this item.
    pub(super) unsafe fn run_item(work: &Work<'_>, index: usize) = run_item_kernel;
}

simd_dispatch! {
    /// Runs merge `index`.
    ///
    /// # Safety
    /// As [`run_item`]; all items are done.
    pub(super) unsafe fn run_merge(work: &Work<'_>, index: usize) = run_merge_kernel;
}

/// What a row sees of a segment; may be empty.
#[inline(always)]
fn span_of(work: &Work<'_>, unit: &Unit, row: usize, segment: usize) -> Span {
    let query = work.plan.queries[unit.queries.start + row / work.plan.shape.group()];
    let seen = work.plan.shape.visible(query.position);
    let start = segment * SEGMENT_TOKENS;
    let clip = |p: usize| p.saturating_sub(start).min(SEGMENT_TOKENS) as u32;
    Span { start: clip(seen.start), end: clip(seen.end) }
}

#[inline(always)]
unsafe fn run_item_kernel<S: Simd>(s: S, work: &Work<'_>, index: usize) {
    let plan = work.plan;
    let item = &plan.items[index];
    let unit = &plan.units[item.unit];
    let rows = plan.unit_rows(unit);
    let (x, stride) = (&work.scratch, work.layer.v_stride);
    // SAFETY: the caller's; rows lie within scratch, which is made for the largest unit.
    unsafe {
        gather_queries(s, work, unit, rows);
        for segment in item.segments.clone() {
            for row in 0..rows {
                x.spans.add(row).write(span_of(work, unit, row, segment));
            }
            let goes_on = segment + 1 < item.segments.end;
            let runs = Runs::new(work, unit, segment, goes_on);
            let mut later = Later::new(&runs, false, item.segments.end);
            for run in 0..runs.count() {
                segment_scores(s, runs.get(run), &mut later);
            }
            for row in 0..rows {
                let seen = x.spans.add(row).read().range();
                if !seen.is_empty() {
                    let scores = x.scores.add(row * SCORE_STRIDE);
                    x.states.add(row).write(softmax_row(s, scores, seen, plan.shape.softcap));
                }
            }
            x.outputs.write_bytes(0, rows * stride);
            let mut later = Later::new(&runs, true, item.segments.end);
            for run in 0..runs.count() {
                segment_outputs(s, runs.get(run), &mut later);
            }
            for row in 0..rows {
                if !x.spans.add(row).read().range().is_empty() {
                    keep_segment(s, work, unit, row, segment, item.segments.start);
                }
            }
        }
        if unit.partials.is_none() {
            for row in 0..rows {
                let state = x.merged_states.add(row).read();
                write_row(s, work, unit, row, state.sum, x.merged.add(row * stride));
            }
        }
    }
}

/// Takes a row's result of a segment out of scratch: into the partial results, or merged into what
/// the item has so far.
#[inline(always)]
unsafe fn keep_segment<S: Simd>(
    s: S,
    work: &Work<'_>,
    unit: &Unit,
    row: usize,
    segment: usize,
    first_segment: usize,
) {
    let (x, stride) = (&work.scratch, work.layer.v_stride);
    // SAFETY: the caller's.
    unsafe {
        let state = x.states.add(row).read();
        let from = x.outputs.add(row * stride);
        if let Some(at) = unit.partials {
            let to = partial(work, unit, at, row, segment);
            to.copy_from_nonoverlapping(from, stride);
            to.add(stride).cast::<RowState>().write_unaligned(state);
            return;
        }
        let into = x.merged.add(row * stride);
        let so_far = x.merged_states.add(row);
        let first =
            segment == first_segment || span_of(work, unit, row, segment - 1).range().is_empty();
        if first {
            into.copy_from_nonoverlapping(from, stride);
            so_far.write(state);
        } else {
            let vectors = stride / LANES;
            so_far.write(merge(s, so_far.read(), into, state, from, vectors));
        }
    }
}

/// Where the partial result of a row and segment stands.
#[inline(always)]
unsafe fn partial(work: &Work<'_>, unit: &Unit, at: usize, row: usize, segment: usize) -> *mut f32 {
    let rows = work.plan.unit_rows(unit);
    let slot = (segment - unit.segments.start) * rows + row;
    // SAFETY: the plan has counted this slot.
    unsafe { work.tensors.partials.add(at + slot * work.plan.partial_stride()) }
}

#[inline(always)]
unsafe fn run_merge_kernel<S: Simd>(s: S, work: &Work<'_>, index: usize) {
    let (unit, row) = work.plan.merges[index];
    let unit = &work.plan.units[unit];
    let (Some(at), stride) = (unit.partials, work.layer.v_stride) else {
        return;
    };
    let into = work.scratch.merged;
    let mut so_far: Option<RowState> = None;
    for segment in unit.segments.clone() {
        if span_of(work, unit, row, segment).range().is_empty() {
            continue;
        }
        // SAFETY: every segment that the row sees has left a partial result.
        unsafe {
            let from = partial(work, unit, at, row, segment);
            let state = from.add(stride).cast::<RowState>().read_unaligned();
            so_far = Some(match so_far {
                Some(so_far) => merge(s, so_far, into, state, from, stride / LANES),
                None => {
                    into.copy_from_nonoverlapping(from, stride);
                    state
                }
            });
        }
    }
    if let Some(state) = so_far {
        // SAFETY: the caller's.
        unsafe { write_row(s, work, unit, row, state.sum, into) };
    }
}

/// Writes a row's final output.
#[inline(always)]
unsafe fn write_row<S: Simd>(
    s: S,
    work: &Work<'_>,
    unit: &Unit,
    row: usize,
    sum: f32,
    o: *const f32,
) {
    let shape = &work.plan.shape;
    let (query, head) = place(work, unit, row);
    // SAFETY: the job has checked that the row and head exist in the outputs.
    unsafe {
        let out = work.tensors.out.add(query * work.tensors.out_stride + head * shape.v_head_dim);
        finish(s, sum, o, out, shape.v_head_dim);
    }
}

/// The tensor row and the query head of a unit's row.
#[inline(always)]
fn place(work: &Work<'_>, unit: &Unit, row: usize) -> (usize, usize) {
    let group = work.plan.shape.group();
    let query = work.plan.queries[unit.queries.start + row / group];
    (query.row, unit.kv_head * group + row % group)
}

/// Copies the unit's queries, scaled, into scratch.
#[inline(always)]
unsafe fn gather_queries<S: Simd>(s: S, work: &Work<'_>, unit: &Unit, rows: usize) {
    let shape = &work.plan.shape;
    let d = shape.head_dim;
    let scale = s.splat(shape.score_scale);
    for row in 0..rows {
        let (query, head) = place(work, unit, row);
        // SAFETY: the job has checked that the row and head exist in the queries; scratch has room
        // for whole vectors.
        unsafe {
            let from = work.tensors.q.add(query * work.tensors.q_stride + head * d);
            let to = work.scratch.q.add(row * QUERY_STRIDE);
            for i in 0..d.div_ceil(LANES) {
                let (from, left) = (from.add(i * LANES), d - i * LANES);
                // The rows of another token are far away: ask for them early.
                s.prefetch(from.wrapping_add(4 * work.tensors.q_stride).cast());
                let v = if left >= LANES {
                    s.load_ptr(from)
                } else {
                    s.load_partial(std::slice::from_raw_parts(from, left))
                };
                s.store_ptr(s.mul(v, scale), to.add(i * LANES));
            }
        }
    }
}
