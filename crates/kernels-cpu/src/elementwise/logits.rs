//! Softmax and reductions over logits.

use crate::simd::{LANES, Simd, math, simd_dispatch};

/// Values whose lane sums are added up before they join the total: two levels, so that the error
/// of a sum over a large vocabulary stays small.
const SUM_BLOCK: usize = 64 * LANES;

/// The largest value that is not NaN; -infinity where there is none.
#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let none = s.splat(f32::NEG_INFINITY);
    let mut m = none;
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        m = s.max(s.load(chunk), m);
    }
    let tail = chunks.remainder();
    let v = s.select(s.first_lanes(tail.len()), s.load_partial(tail), none);
    s.max_lane(s.max(v, m))
}

/// `sum(exp(x - shift))`, each exponential handed to `$keep` beside the chunk it came from.
macro_rules! sum_exp {
    ($s:ident, $blocks:expr, $shift:ident, |$e:ident, $chunk:ident| $keep:block) => {{
        let shift = $s.splat($shift);
        let mut total = $s.splat(0.0);
        for block in $blocks {
            let mut sum = $s.splat(0.0);
            for $chunk in block {
                let e = math::exp($s, $s.sub($s.load_partial($chunk), shift));
                let lanes = $s.first_lanes($chunk.len());
                let $e = $s.select(lanes, e, $s.splat(0.0));
                sum = $s.add(sum, $e);
                $keep
            }
            total = $s.add(total, sum);
        }
        $s.sum(total)
    }};
}

#[inline(always)]
fn softmax_kernel<S: Simd>(s: S, x: &mut [f32]) {
    let shift = largest(s, x);
    let blocks = x.chunks_mut(SUM_BLOCK).map(|b| b.chunks_mut(LANES));
    let sum = sum_exp!(s, blocks, shift, |e, chunk| { s.store_partial(e, chunk) });
    let sum = s.splat(sum);
    for chunk in x.chunks_mut(LANES) {
        s.store_partial(s.div(s.load_partial(chunk), sum), chunk);
    }
}

#[inline(always)]
fn log_sum_exp_kernel<S: Simd>(s: S, x: &[f32]) -> f32 {
    let shift = largest(s, x);
    if shift.is_infinite() {
        // All -infinity (or empty), or +infinity somewhere; NaNs win over both.
        return x.iter().fold(shift, |a, &v| if v.is_nan() { v } else { a });
    }
    let blocks = x.chunks(SUM_BLOCK).map(|b| b.chunks(LANES));
    let sum = sum_exp!(s, blocks, shift, |e, chunk| {});
    s.first_lane(math::ln(s, s.splat(sum))) + shift
}

#[inline(always)]
fn argmax_kernel<S: Simd>(s: S, x: &[f32]) -> Option<usize> {
    let m = largest(s, x);
    x.iter().position(|&v| v == m)
}

simd_dispatch! {
    /// `x[i] = exp(x[i] - max) / sum(exp(x - max))`. A NaN, or +infinity, makes values NaN; so does
    /// a vector of nothing but -infinity.
    pub fn softmax(x: &mut [f32]) = softmax_kernel;
}

simd_dispatch! {
    /// `ln(sum(exp(x)))`, without overflow. Empty: -infinity. NaN where any value is NaN.
    pub fn log_sum_exp(x: &[f32]) -> f32 = log_sum_exp_kernel;
}

simd_dispatch! {
    /// The index of the largest value; of equal ones the lowest. NaNs never win; `None` where
    /// nothing else is there.
    pub fn argmax(x: &[f32]) -> Option<usize> = argmax_kernel;
}
