//! Elementary functions, the same sequence of operations on every instruction set.
//!
//! Errors against the true value, measured over all floats of the stated ranges (see the tests):
//! `exp` under 1 ulp, `ln` under 1 ulp, `tanh` and `sigmoid` under 2.5 ulp. The polynomials are
//! minimax, found by the Remez exchange; the range reductions are the classical ones (Cody and
//! Waite 1980; for `ln` Tang 1990 without tables).

use super::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The leading bits of ln 2, so few that products with a small integer are exact.
const LN2_HIGH: f32 = 0.693_145_75;
/// ln 2 - LN2_HIGH.
const LN2_LOW: f32 = 1.428_606_8e-6;
/// 1.5 * 2^23: adding it rounds a small number to an integer, which its low bits then hold.
const ROUNDER: f32 = 12_582_912.0;

/// e^x. Overflow gives infinity; results below the normal range are rounded, not flushed.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // Beyond these the result is infinity or zero anyway. A NaN passes as the second operand.
    let x = s.min(s.splat(89.0), x);
    let x = s.max(s.splat(-104.0), x);
    let rounder = s.splat(ROUNDER);
    let t = s.fma(x, s.splat(LOG2_E), rounder);
    let n = s.sub(t, rounder);
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let e = exp_reduced(s, r);
    // Times 2^n in two steps, so that neither factor leaves the normal range.
    let n = s.i32_sub(s.to_bits(t), s.to_bits(rounder));
    let half = s.i32_sra::<1>(n);
    let rest = s.i32_sub(n, half);
    s.mul(s.mul(e, power_of_two(s, half)), power_of_two(s, rest))
}

/// e^x for x that is not positive: the weights of a softmax. Within 1 ulp down to -16 and 5 ulp
/// below. Weights under 2^-126.5, no part of any sum that the largest weight, 1, is in, are zero.
#[inline(always)]
pub fn exp_weight<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let (x, t, n) = split_nonpositive(s, x);
    let r = s.fma(n, s.splat(-std::f32::consts::LN_2), x);
    scale_nonpositive(s, exp_reduced(s, r), t)
}

/// The same within 1 ulp everywhere.
#[inline(always)]
fn exp_nonpositive<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let (x, t, n) = split_nonpositive(s, x);
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    scale_nonpositive(s, exp_reduced(s, r), t)
}

/// `x`, no lower than -88; a number whose low bits are the biased exponent of 2^n, where n is the
/// integer nearest to `x / ln 2`; and n.
#[inline(always)]
fn split_nonpositive<S: Simd>(s: S, x: S::F32) -> (S::F32, S::F32, S::F32) {
    // A NaN passes as the second operand.
    let x = s.max(s.splat(-88.0), x);
    let rounder = s.splat(ROUNDER + 127.0);
    let t = s.fma(x, s.splat(LOG2_E), rounder);
    (x, t, s.sub(t, rounder))
}

/// `e * 2^n`. At n = -127, where [`split_nonpositive`] ends, the biased exponent is zero, and so is
/// the result.
#[inline(always)]
fn scale_nonpositive<S: Simd>(s: S, e: S::F32, t: S::F32) -> S::F32 {
    s.mul(e, s.bits_to_f32(s.i32_shl::<23>(s.to_bits(t))))
}

/// e^r for |r| <= ln(2) / 2, as 1 + r + r^2 p(r).
#[inline(always)]
fn exp_reduced<S: Simd>(s: S, r: S::F32) -> S::F32 {
    let p = s.splat(0.001_381_446_6);
    let p = s.fma(p, r, s.splat(0.008_368_781));
    let p = s.fma(p, r, s.splat(0.041_668_393));
    let p = s.fma(p, r, s.splat(0.166_665_2));
    let p = s.fma(p, r, s.splat(0.499_999_94));
    s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0))
}

/// 2^n for n in -126..=127.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::I32) -> S::F32 {
    s.bits_to_f32(s.i32_shl::<23>(s.i32_add(n, s.i32_splat(127))))
}

/// The natural logarithm. Zero gives -infinity, negative numbers NaN.
#[inline(always)]
pub fn ln<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // Subnormals are scaled into the normal range.
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let scaled = s.select(tiny, s.mul(x, s.splat(16_777_216.0)), x);
    let bias = s.select(tiny, s.splat(-24.0), s.splat(0.0));
    // x = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let sqrt_half = s.i32_splat(0x3f35_04f3);
    let offset = s.i32_sub(s.to_bits(scaled), sqrt_half);
    let e = s.add(s.i32_to_f32(s.i32_sra::<23>(offset)), bias);
    let m = s.i32_add(s.i32_and(offset, s.i32_splat(0x007f_ffff)), sqrt_half);
    let f = s.sub(s.bits_to_f32(m), s.splat(1.0));
    // ln(1 + f) = f - f^2 / 2 + f^3 p(f).
    let p = s.splat(-0.076_344_94);
    let p = s.fma(p, f, s.splat(0.127_615_75));
    let p = s.fma(p, f, s.splat(-0.131_601_83));
    let p = s.fma(p, f, s.splat(0.142_017_59));
    let p = s.fma(p, f, s.splat(-0.166_233_57));
    let p = s.fma(p, f, s.splat(0.200_012_27));
    let p = s.fma(p, f, s.splat(-0.250_008_2));
    let p = s.fma(p, f, s.splat(0.333_333_3));
    let square = s.mul(f, f);
    let tail = s.fma(e, s.splat(LN2_LOW), s.mul(s.mul(p, f), square));
    let tail = s.fma(square, s.splat(-0.5), tail);
    let result = s.fma(e, s.splat(LN2_HIGH), s.add(f, tail));
    // The special cases: infinity and NaN stay, zero gives -infinity, below it NaN.
    let finite = s.lt(x, s.splat(f32::INFINITY));
    let result = s.select(finite, result, x);
    let positive = s.lt(s.splat(0.0), x);
    let negative = s.lt(x, s.splat(0.0));
    let special = s.select(negative, s.splat(f32::NAN), s.splat(f32::NEG_INFINITY));
    let not_above = s.select(positive, result, special);
    // A NaN is neither above nor below: `x - x` keeps it and adds nothing to a zero's -infinity.
    s.select(positive, result, s.add(not_above, s.sub(x, x)))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let a = s.abs(x);
    // Small: x + x^3 p(x^2).
    let z = s.mul(x, x);
    let p = s.splat(-0.005_717_045);
    let p = s.fma(p, z, s.splat(0.020_650_588));
    let p = s.fma(p, z, s.splat(-0.053_743_497));
    let p = s.fma(p, z, s.splat(0.133_314_91));
    let p = s.fma(p, z, s.splat(-0.333_332_84));
    let small = s.fma(s.mul(p, z), x, x);
    // Large: 1 - 2 / (e^2|x| + 1), which is 1 where the exponential overflows.
    let e = exp(s, s.add(a, a));
    let q = s.div(s.splat(2.0), s.add(e, s.splat(1.0)));
    let large = s.with_sign(s.sub(s.splat(1.0), q), x);
    s.select(s.lt(a, s.splat(0.625)), small, large)
}

/// 1 / (1 + e^-x), accurate on both sides of zero.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    let e = exp_nonpositive(s, s.neg(s.abs(x)));
    let top = s.select(s.lt(x, s.splat(0.0)), e, one);
    s.div(top, s.add(one, e))
}
