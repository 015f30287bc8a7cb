//! Operations on each value by itself.

use crate::simd::{LANES, Simd, math, simd_dispatch};

/// `sqrt(2 / pi)`, the constant of GELU's tanh form.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// Defines a kernel that replaces each value of `a` by an expression of it and the same value of
/// `b`: whole vectors first, then the tail in one partial vector.
macro_rules! zip_kernel {
    ($name:ident, $s:ident, $a:ident, $b:ident, $value:expr) => {
        #[inline(always)]
        fn $name<S: Simd>($s: S, a: &mut [f32], b: &[f32]) {
            assert_eq!(a.len(), b.len());
            let whole = a.len() / LANES * LANES;
            let (a, a_tail) = a.split_at_mut(whole);
            let (b, b_tail) = b.split_at(whole);
            for (a, b) in a.chunks_exact_mut(LANES).zip(b.chunks_exact(LANES)) {
                let ($a, $b) = ($s.load(a), $s.load(b));
                $s.store($value, a);
            }
            if !a_tail.is_empty() {
                let ($a, $b) = ($s.load_partial(a_tail), $s.load_partial(b_tail));
                $s.store_partial($value, a_tail);
            }
        }
    };
}

/// The same with one parameter in place of a second vector.
macro_rules! map_kernel {
    ($name:ident, $s:ident, $a:ident, $c:ident, $value:expr) => {
        #[inline(always)]
        fn $name<S: Simd>($s: S, a: &mut [f32], $c: f32) {
            let $c = $s.splat($c);
            let mut chunks = a.chunks_exact_mut(LANES);
            for a in &mut chunks {
                let $a = $s.load(a);
                $s.store($value, a);
            }
            let tail = chunks.into_remainder();
            if !tail.is_empty() {
                let $a = $s.load_partial(tail);
                $s.store_partial($value, tail);
            }
        }
    };
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // x * sigmoid(x); where sigmoid underflows to zero an infinite x would give NaN, which the
    // true limit, zero, is not worth a branch for.
    s.mul(x, math::sigmoid(s, x))
}

/// `x * sigmoid(2 t)` with `t = sqrt(2/pi) (x + 0.044715 x^3)`: the same as
/// `0.5 x (1 + tanh t)`, without its cancellation for negative x.
#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let cubic = s.fma(s.mul(x, x), s.splat(GELU_CUBIC), s.splat(1.0));
    let twice = s.mul(s.mul(x, cubic), s.splat(2.0 * SQRT_2_OVER_PI));
    s.mul(x, math::sigmoid(s, twice))
}

zip_kernel!(add_kernel, s, a, b, s.add(a, b));
zip_kernel!(silu_mul_kernel, s, a, b, s.mul(silu(s, a), b));
zip_kernel!(gelu_tanh_mul_kernel, s, a, b, s.mul(gelu_tanh(s, a), b));
map_kernel!(scale_kernel, s, a, c, s.mul(a, c));
map_kernel!(softcap_kernel, s, a, c, s.mul(math::tanh(s, s.div(a, c)), c));

simd_dispatch! {
    /// `x[i] += y[i]`.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn add(x: &mut [f32], y: &[f32]) = add_kernel;
}

simd_dispatch! {
    /// `x[i] *= factor`.
    pub fn scale(x: &mut [f32], factor: f32) = scale_kernel;
}

simd_dispatch! {
    /// `gate[i] = (gate[i] * sigmoid(gate[i])) * up[i]`.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_kernel;
}

simd_dispatch! {
    /// `gate[i] = gelu(gate[i]) * up[i]` with GELU's tanh approximation.
    ///
    /// # Panics
    /// Where the lengths differ.
    pub fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) = gelu_tanh_mul_kernel;
}

simd_dispatch! {
    /// `x[i] = tanh(x[i] / cap) * cap`.
    pub fn softcap(x: &mut [f32], cap: f32) = softcap_kernel;
}
