//! Root-mean-square norm.

use crate::simd::{LANES, Simd, simd_dispatch};

/// Vectors that are summed side by side: 64 virtual lanes, so that the sum does not wait for each
/// addition.
const ACCUMULATORS: usize = 4;

/// The sum of squares over 64 virtual lanes (value `i` goes to lane `i % 64`, in ascending order,
/// by fused multiply-add), lanes added by a fixed tree.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = [s.splat(0.0); ACCUMULATORS];
    let mut chunks = x.chunks_exact(ACCUMULATORS * LANES);
    for chunk in &mut chunks {
        for (j, a) in acc.iter_mut().enumerate() {
            let v = s.load(&chunk[j * LANES..]);
            *a = s.fma(v, v, *a);
        }
    }
    for (j, part) in chunks.remainder().chunks(LANES).enumerate() {
        // Missing lanes are zero, which adds nothing.
        let v = s.load_partial(part);
        acc[j] = s.fma(v, v, acc[j]);
    }
    s.sum(s.add(s.add(acc[0], acc[2]), s.add(acc[1], acc[3])))
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn rms_norm_kernel<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let r = s.splat(inverse_rms(s, x, eps));
    let whole = x.len() / LANES * LANES;
    let full = x[..whole].chunks_exact(LANES).zip(weight[..whole].chunks_exact(LANES));
    for ((x, w), out) in full.zip(out[..whole].chunks_exact_mut(LANES)) {
        s.store(s.mul(s.mul(s.load(x), r), s.load(w)), out);
    }
    let v = s.mul(s.load_partial(&x[whole..]), r);
    s.store_partial(s.mul(v, s.load_partial(&weight[whole..])), &mut out[whole..]);
}

#[inline(always)]
fn rms_norm_in_place_kernel<S: Simd>(s: S, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len() == weight.len());
    let r = s.splat(inverse_rms(s, x, eps));
    for (x, w) in x.chunks_mut(LANES).zip(weight.chunks(LANES)) {
        let v = s.mul(s.load_partial(x), r);
        s.store_partial(s.mul(v, s.load_partial(w)), x);
    }
}

simd_dispatch! {
    /// `out[i] = (x[i] * r) * weight[i]` with `r = 1 / sqrt(mean(x^2) + eps)`, all in f32.
    ///
    /// # Panics
    /// Where the three lengths differ.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_kernel;
}

simd_dispatch! {
    /// [`rms_norm`] in place, for the short vectors of a head.
    ///
    /// # Panics
    /// Where the two lengths differ.
    pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) = rms_norm_in_place_kernel;
}
