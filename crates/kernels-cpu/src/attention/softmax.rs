//! The softmax of one row within a segment, and the merging of segments.

use super::tiles::SCORE_STRIDE;
use crate::kv::BLOCK_TOKENS;
use crate::simd::{LANES, Simd, math};
use std::ops::Range;

/// A row's maximum and sum over some positions. (Its outputs are kept beside it.)
#[derive(Clone, Copy)]
pub(super) struct RowState {
    pub(super) max: f32,
    pub(super) sum: f32,
}

/// Turns the scores of positions `seen` (within the segment) into `exp(score - max)`. What lies
/// outside `seen` is overwritten up to the borders of blocks, and never looked at.
///
/// # Safety
/// `row` has [`SCORE_STRIDE`] values, `seen` is not empty and ends within the segment.
#[inline(always)]
pub(super) unsafe fn softmax_row<S: Simd>(
    s: S,
    row: *mut f32,
    seen: Range<usize>,
    softcap: Option<f32>,
) -> RowState {
    let start = seen.start / BLOCK_TOKENS * BLOCK_TOKENS;
    let end = seen.end.next_multiple_of(BLOCK_TOKENS);
    debug_assert!(!seen.is_empty() && end <= SCORE_STRIDE);
    // SAFETY: all of `start..end` lies within the row.
    unsafe {
        if let Some(cap) = softcap {
            let cap = s.splat(cap);
            for t in (start..end).step_by(LANES) {
                let v = s.div(s.load_ptr(row.add(t)), cap);
                s.store_ptr(s.mul(math::tanh(s, v), cap), row.add(t));
            }
        }
        mask(s, row, start, end, seen);
        let none = s.splat(f32::NEG_INFINITY);
        let (mut m0, mut m1) = (none, none);
        for t in (start..end).step_by(BLOCK_TOKENS) {
            m0 = s.max(s.load_ptr(row.add(t)), m0);
            m1 = s.max(s.load_ptr(row.add(t + LANES)), m1);
        }
        let max = s.max_lane(s.max(m0, m1));
        let shift = s.splat(max);
        let (mut sum0, mut sum1) = (s.splat(0.0), s.splat(0.0));
        for t in (start..end).step_by(BLOCK_TOKENS) {
            // The weight of -infinity is zero: hidden lanes add nothing.
            let p0 = math::exp_weight(s, s.sub(s.load_ptr(row.add(t)), shift));
            let p1 = math::exp_weight(s, s.sub(s.load_ptr(row.add(t + LANES)), shift));
            s.store_ptr(p0, row.add(t));
            s.store_ptr(p1, row.add(t + LANES));
            sum0 = s.add(sum0, p0);
            sum1 = s.add(sum1, p1);
        }
        RowState { max, sum: s.sum(s.add(sum0, sum1)) }
    }
}

/// Sets `start..end` outside `seen` to -infinity.
///
/// # Safety
/// As [`softmax_row`].
#[inline(always)]
unsafe fn mask<S: Simd>(s: S, row: *mut f32, start: usize, end: usize, seen: Range<usize>) {
    let none = s.splat(f32::NEG_INFINITY);
    // SAFETY: all of it lies within the row.
    unsafe {
        for t in (start..seen.start).step_by(LANES) {
            let hidden = s.first_lanes(seen.start - t);
            let at = row.add(t);
            s.store_ptr(s.select(hidden, none, s.load_ptr(at)), at);
        }
        for t in (seen.end / LANES * LANES..end).step_by(LANES) {
            let visible = s.first_lanes(seen.end.saturating_sub(t));
            let at = row.add(t);
            s.store_ptr(s.select(visible, s.load_ptr(at), none), at);
        }
    }
}

/// Folds the next segment's result into what was merged so far: `vectors` vectors of outputs at
/// `next` into those at `into`.
///
/// # Safety
/// Both have so many vectors.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(
    s: S,
    state: RowState,
    into: *mut f32,
    next_state: RowState,
    next: *const f32,
    vectors: usize,
) -> RowState {
    let max = if state.max > next_state.max { state.max } else { next_state.max };
    let va = math::exp(s, s.splat(state.max - max));
    let vb = math::exp(s, s.splat(next_state.max - max));
    let (a, b) = (s.first_lane(va), s.first_lane(vb));
    for j in 0..vectors {
        // SAFETY: the caller's.
        unsafe {
            let at = into.add(j * LANES);
            let scaled = s.mul(s.load_ptr(at), va);
            s.store_ptr(s.fma(s.load_ptr(next.add(j * LANES)), vb, scaled), at);
        }
    }
    RowState { max, sum: next_state.sum.mul_add(b, state.sum * a) }
}

/// Writes a row's outputs, divided by its sum.
///
/// # Safety
/// `o` holds whole vectors that cover `out`.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(
    s: S,
    sum: f32,
    o: *const f32,
    out: *mut f32,
    features: usize,
) {
    let sum = s.splat(sum);
    let whole = features / LANES * LANES;
    // SAFETY: the caller's.
    unsafe {
        for f in (0..whole).step_by(LANES) {
            s.store_ptr(s.div(s.load_ptr(o.add(f)), sum), out.add(f));
        }
        if whole < features {
            let tail = std::slice::from_raw_parts_mut(out.add(whole), features - whole);
            s.store_partial(s.div(s.load_ptr(o.add(whole)), sum), tail);
        }
    }
}
