//! Activations as int8, for products with quantized weights.
//!
//! Each block of 32 inputs of a token becomes `x ~ d * q`:
//!
//! - `amax = max |x|`, `d = amax / 127`, `inv = 127 / amax` (both correctly rounded in f32);
//! - `q = round(x * inv)`, the product rounded to f32, then to the nearest integer, ties to even,
//!   then clamped to -127..=127;
//! - below [`QUANT_MIN`] a block counts as zero: `d = 0`, `q = 0`;
//! - where the block holds an infinity or a NaN, `d` is NaN and `q = 0`, so that every product
//!   with the block is NaN.
//!
//! The `split` form adds a second such column for what the first one lost: the residual
//! `r = x - d * q` (one fused multiply-add, which is exact here), with `d_low = d / 254` and
//! `q_low = round(r * (254 / d))`. Then `x ~ d * q + d_low * q_low` to within `d / 508`.

use crate::simd::{LANES, Simd, simd_dispatch};

/// Inputs that share a scale.
pub const QUANT_BLOCK: usize = 32;
/// Inputs of one entry of [`QuantizedMut::sums`].
pub const SUM_GROUP: usize = 16;
/// Blocks whose largest magnitude lies below this become zero: 2^-100, so that neither a scale nor
/// its inverse leaves the normal range.
pub const QUANT_MIN: f32 = f32::from_bits((127 - 100) << 23);

/// One quantized column: where to write the quantized activations of one token.
///
/// With `K` inputs and `B = ceil(K / 32)` blocks: `q` is `[32 B]`, `d` is `[B]`, `sums` is `[2 B]`.
#[derive(Debug)]
pub struct QuantizedMut<'a> {
    /// Quantized values; those past the inputs are zero.
    pub q: &'a mut [i8],
    /// The scale of each block.
    pub d: &'a mut [f32],
    /// The sum of `q` over each 16 inputs, at most 2032 in magnitude.
    pub sums: &'a mut [i16],
}

impl QuantizedMut<'_> {
    fn check(&self, inputs: usize) {
        let blocks = inputs.div_ceil(QUANT_BLOCK);
        assert_eq!(self.q.len(), blocks * QUANT_BLOCK, "quantized values");
        assert_eq!(self.d.len(), blocks, "scales");
        assert_eq!(self.sums.len(), blocks * 2, "sums");
    }

    #[inline(always)]
    fn write<S: Simd>(&mut self, s: S, block: usize, d: f32, q: [S::I32; 2]) {
        self.d[block] = d;
        let to = &mut self.q[block * QUANT_BLOCK..(block + 1) * QUANT_BLOCK];
        // SAFETY: 32 bytes are there; values lie within +-127.
        let [first, second] = unsafe { s.store_i8_sums(q[0], q[1], to.as_mut_ptr()) };
        self.sums[2 * block] = first as i16;
        self.sums[2 * block + 1] = second as i16;
    }
}

/// The block's 32 values; those past the end are zero.
#[inline(always)]
fn load_block<S: Simd>(s: S, x: &[f32]) -> [S::F32; 2] {
    if x.len() == QUANT_BLOCK {
        [s.load(x), s.load(&x[LANES..])]
    } else {
        let split = x.len().min(LANES);
        [s.load_partial(&x[..split]), s.load_partial(&x[split..])]
    }
}

/// The largest magnitude: infinity or NaN where the block holds one.
#[inline(always)]
fn magnitude<S: Simd>(s: S, x: [S::F32; 2]) -> f32 {
    // Without their sign, floats order as their bits do, and NaNs come last.
    let a = s.to_bits(s.abs(x[0]));
    let b = s.to_bits(s.abs(x[1]));
    f32::from_bits(s.i32_max_lane(s.i32_max(a, b)) as u32)
}

/// `round(x * inv)`, clamped to +-127.
#[inline(always)]
fn round_clamped<S: Simd>(s: S, x: S::F32, inv: f32) -> S::I32 {
    let v = s.mul(x, s.splat(inv));
    let v = s.max(s.min(v, s.splat(127.0)), s.splat(-127.0));
    s.round_i32(v)
}

/// The scale, its inverse and the values of one block.
#[inline(always)]
fn quantize_block<S: Simd>(s: S, x: [S::F32; 2]) -> (f32, [S::I32; 2]) {
    let amax = magnitude(s, x);
    if amax.is_finite() && amax >= QUANT_MIN {
        let inv = 127.0 / amax;
        (amax / 127.0, [round_clamped(s, x[0], inv), round_clamped(s, x[1], inv)])
    } else {
        let d = if amax.is_finite() { 0.0 } else { f32::NAN };
        (d, [s.i32_splat(0); 2])
    }
}

#[inline(always)]
fn quantize_kernel<S: Simd>(s: S, x: &[f32], mut out: QuantizedMut<'_>) {
    out.check(x.len());
    for (i, x) in x.chunks(QUANT_BLOCK).enumerate() {
        let (d, q) = quantize_block(s, load_block(s, x));
        out.write(s, i, d, q);
    }
}

#[inline(always)]
fn quantize_split_kernel<S: Simd>(
    s: S,
    x: &[f32],
    mut high: QuantizedMut<'_>,
    mut low: QuantizedMut<'_>,
) {
    high.check(x.len());
    low.check(x.len());
    for (i, x) in x.chunks(QUANT_BLOCK).enumerate() {
        let x = load_block(s, x);
        let (d, q) = quantize_block(s, x);
        high.write(s, i, d, q);
        if d > 0.0 {
            let minus_d = s.splat(-d);
            let r0 = s.fma(minus_d, s.i32_to_f32(q[0]), x[0]);
            let r1 = s.fma(minus_d, s.i32_to_f32(q[1]), x[1]);
            let inv = 254.0 / d;
            low.write(s, i, d / 254.0, [round_clamped(s, r0, inv), round_clamped(s, r1, inv)]);
        } else {
            // Zero, or NaN, which the high column carries alone.
            low.write(s, i, 0.0, [s.i32_splat(0); 2]);
        }
    }
}

simd_dispatch! {
    /// Quantizes one token's inputs to int8.
    ///
    /// # Panics
    /// Where a length does not fit, see [`QuantizedMut`].
    pub fn quantize(x: &[f32], out: QuantizedMut<'_>) = quantize_kernel;
}

simd_dispatch! {
    /// Quantizes one token's inputs to two int8 columns, whose sum is nearly the input.
    ///
    /// # Panics
    /// Where a length does not fit, see [`QuantizedMut`].
    pub fn quantize_split(x: &[f32], high: QuantizedMut<'_>, low: QuantizedMut<'_>)
        = quantize_split_kernel;
}

/// The values that a quantized column stands for: `out[i] = d * q[i]`, `out` of any length up to
/// `q`'s.
///
/// # Panics
/// Where `q` or `d` is too short.
pub fn dequantize(q: &[i8], d: &[f32], out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = d[i / QUANT_BLOCK] * f32::from(q[i]);
    }
}
