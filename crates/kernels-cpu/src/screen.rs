//! The best row of a product without reading all of its weights.
//!
//! A greedy choice wants the largest logit alone, and the head is the largest matrix of small
//! models. Its bytes are stored as five high bits and three low ones ([`Codes::Bits5And3`]). The high
//! bits alone give each row an approximate logit and, by Cauchy and Schwarz, an interval around it
//! that the exact one cannot leave. Rows whose interval ends below the best lower end cannot win;
//! only panels that have another row are multiplied with all bits, which gives those rows the same
//! bits as the whole product has. So the choice is the whole product's, lowest row on ties: exact.
//!
//! The same intervals would serve a choice with noise among the best k: a panel matters where its
//! upper end reaches the k-th best lower end. That is not built.
//!
//! # The interval
//!
//! Row `r` has scales `s_b` and codes `c = 8 h + l` in blocks `b`, so weights `w = 8 (h - 16) + l`; a
//! column has scales `d_b >= 0` and integers `x`. With real numbers the product is
//! `Y = sum_b s_b d_b sum w x`, the approximation `A = sum_b s_b d_b sum (8 (h - 16) + 3.5) x`, and
//!
//! ```text
//! |Y - A| = |sum_b sum (s_b (l - 3.5)) (d_b x)| <= L X,
//! L^2 = sum_b s_b^2 sum (l - 3.5)^2,   X^2 = sum_b d_b^2 sum x^2.
//! ```
//!
//! What is computed, `y` and `a`, is rounded. Let `u = 2^-24` and `B` be the number of blocks. The
//! integer sums are exact, and so are `8 s_b` and `3.5 s_b`. In `y` each block's term takes one
//! rounding and then at most `B` fused additions, so `|y - Y|` is at most
//! `g(B + 1) sum_b |s_b| d_b |sum w x| <= g(B + 1) W X`, with `g(n) = n u / (1 - n u)` and `W` the
//! norm of the row as `L` is that of its low bits. In `a` there are two additions a block, and `d_b`
//! times the sum of `x` is rounded: `|a - A| <= g(2 B + 1) (H + M) X`, with `H` the norm of
//! `s_b 8 (h - 16)` and `M` that of `s_b 3.5`. Activations in two parts are two columns whose
//! results are added: another rounding of `y` and of `a`, and `X` is the sum of both columns' norms.
//! Adding the radius to `a` rounds once more. All of it together is below
//! `(4 B + 32) u (W + H + M) X` as long as `B <= 2^18`. So with
//!
//! ```text
//! R = (L + (4 B + 32) u (W + H + M)) (1 + 2^-19)
//! ```
//!
//! rounded to f32, which `radius` computes when a row is packed, `|y - a| <= R X`: the last factor
//! covers the rounding of `R`, of `X` and of their product. Results below the normal range lose at
//! most `2^-150` each, fewer than `2^20` times: the smallest normal number is added for that.
//!
//! All this holds where nothing overflows. Partial sums stay below `(W + H + M) X (1 + g)`, and `R`
//! is at least `2^-19` of `W + H + M`: a radius below `2^90` rules overflow out. Any other (also where
//! a scale is infinite or NaN), and an approximation that is not finite, make the row's interval the
//! whole line: such rows are always multiplied.
//!
//! [`Codes::Bits5And3`]: crate::pack::Codes::Bits5And3

use crate::matmul::{Columns, Int8Columns};
use crate::pack::{BLOCK, PANEL_ROWS, PackedMatrix};
use crate::simd::{LANES, Simd, simd_dispatch};
use dunlin_tensor::Best;

/// Radii and approximations from here on say nothing.
const LIMIT: f32 = (1u128 << 90) as f32;
/// The most blocks of a row for which the bound is proven.
const MOST_BLOCKS: usize = 1 << 18;

/// The radius of a row, whose blocks have a scale and 32 unsigned codes (a byte's value plus 128).
pub(crate) fn radius<C: AsRef<[u8]>>(blocks: impl Iterator<Item = (f64, C)>) -> f32 {
    fn squares(codes: &[u8], of: impl Fn(i32) -> i32) -> f64 {
        f64::from(codes.iter().map(|&c| of(i32::from(c)).pow(2)).sum::<i32>())
    }
    let (mut low, mut whole, mut high, mut middle) = (0.0, 0.0, 0.0, 0.0);
    let mut count = 0;
    for (scale, codes) in blocks {
        let codes = &codes.as_ref()[..BLOCK];
        let square = scale * scale;
        low += square * squares(codes, |c| 2 * (c & 7) - 7) / 4.0;
        whole += square * squares(codes, |c| c - 128);
        high += square * squares(codes, |c| (c & !7) - 128);
        middle += square * squares(codes, |_| 7) / 4.0;
        count += 1;
    }
    if count > MOST_BLOCKS {
        return f32::INFINITY;
    }
    let unit = f64::from(f32::EPSILON) / 2.0;
    let rounding = (4 * count + 32) as f64 * unit * (whole.sqrt() + high.sqrt() + middle.sqrt());
    ((low.sqrt() + rounding) * (1.0 + 2f64.powi(-19))) as f32
}

/// The norm `X` of an output column of int8 activations; NaN where a scale is. `None` for f32
/// activations.
pub fn column_norm(columns: &Columns<'_>, t: usize) -> Option<f32> {
    let norm = |a: &Int8Columns<'_>, t: usize| -> f64 {
        let q = &a.q[t * a.blocks * BLOCK..(t + 1) * a.blocks * BLOCK];
        let d = &a.d[t * a.blocks..(t + 1) * a.blocks];
        let blocks = q.chunks_exact(BLOCK).zip(d).map(|(q, &d)| {
            let squares: i32 = q.iter().map(|&q| i32::from(q) * i32::from(q)).sum();
            f64::from(d) * f64::from(d) * f64::from(squares)
        });
        blocks.sum::<f64>().sqrt()
    };
    match columns {
        Columns::Int8(a) => Some(norm(a, t) as f32),
        Columns::Split(a) => Some((norm(a, 2 * t) + norm(a, 2 * t + 1)) as f32),
        Columns::Float(_) => None,
    }
}

/// Rows' approximations in one column, from the first row of a panel on.
#[derive(Debug, Clone, Copy)]
pub struct Approximations<'a> {
    /// The weights.
    pub w: &'a PackedMatrix<'a>,
    /// The first panel.
    pub panel: usize,
    /// What [`run_panels_high`](crate::matmul::run_panels_high) gave, `[rows]`.
    pub values: &'a [f32],
    /// The column's [`column_norm`].
    pub norm: f32,
}

#[inline(always)]
fn bounds_kernel<S: Simd>(s: S, rows: Approximations<'_>, upper: &mut [f32]) -> f32 {
    let (norm, limit) = (s.splat(rows.norm), s.splat(LIMIT));
    let (none, all) = (s.splat(f32::NEG_INFINITY), s.splat(f32::INFINITY));
    let mut lower = none;
    let panels = rows.values.chunks(PANEL_ROWS).zip(rows.panel..);
    for ((values, panel), upper) in panels.zip(upper) {
        let there = s.first_lanes(values.len());
        let a = s.load_partial(values);
        let radius = s.load(&rows.w.radii(panel));
        let radius = s.fma(radius, norm, s.splat(f32::MIN_POSITIVE));
        let bounded = s.lt(radius, limit);
        let finite = s.lt(s.abs(a), limit);
        let choose = |value, otherwise| {
            let value = s.select(finite, value, otherwise);
            s.select(there, s.select(bounded, value, otherwise), none)
        };
        *upper = s.max_lane(choose(s.add(a, radius), all));
        lower = s.max(choose(s.sub(a, radius), none), lower);
    }
    s.max_lane(lower)
}

simd_dispatch! {
    /// The largest lower end of the rows' intervals; `upper` becomes each panel's largest upper end.
    ///
    /// # Panics
    /// Where a panel has no place in `upper` or in the weights.
    pub fn bounds(rows: Approximations<'_>, upper: &mut [f32]) -> f32 = bounds_kernel;
}

/// The largest value that is a number, and whether there is any that is not.
#[inline(always)]
fn largest_kernel<S: Simd>(s: S, values: &[f32]) -> (f32, bool) {
    let none = s.splat(f32::NEG_INFINITY);
    let (mut max, mut magnitude) = (none, s.i32_splat(0));
    for chunk in values.chunks(LANES) {
        let v = s.load_partial(chunk);
        max = s.max(s.select(s.first_lanes(chunk.len()), v, none), max);
        // Without their sign, floats order as their bits do, and NaNs come last.
        magnitude = s.i32_max(magnitude, s.to_bits(s.abs(v)));
    }
    (s.max_lane(max), s.i32_max_lane(magnitude) > f32::INFINITY.to_bits() as i32)
}

simd_dispatch! {
    fn largest(values: &[f32]) -> (f32, bool) = largest_kernel;
}

/// [`Best::of`] for the logits of tokens from `first` on. `values` must not be empty.
pub fn best_of(cpu: crate::CpuFeatures, values: &[f32], first: u32) -> Best {
    let (max, nan) = largest(cpu, values);
    let at = values.iter().position(|&v| v == max);
    match at {
        // Rows are tokens, whose ids fit.
        Some(at) if !nan => Best { token: first + at as u32, logit: values[at] },
        _ => Best::NOT_A_NUMBER,
    }
}

#[cfg(test)]
mod tests;
