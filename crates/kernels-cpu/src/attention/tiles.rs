//! The inner loops: a few query rows against a block of keys or values, in registers.
//!
//! Every function is one chain of fused multiply-adds for each output element, whatever the tile.

use crate::kv::{BLOCK_TOKENS, Codec, KEY_GROUP, SCALE_UNIT, VALUE_GROUP};
use crate::simd::{LANES, Simd};

/// Floats between the scores of two rows: a segment and a little, so that rows do not fall into
/// the same cache sets.
pub(super) const SCORE_STRIDE: usize = super::SEGMENT_TOKENS + LANES;

/// Floats between two rows of queries: constant, so that a tile needs one pointer for all its rows.
pub(super) const QUERY_STRIDE: usize = super::MAX_HEAD_DIM + LANES;

/// Keys of one block for one KV head.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// `[features][32]` stored values.
    pub(super) at: *const u8,
    /// `[groups][32]` half floats, where the codec has scales.
    pub(super) scales: *const u16,
    /// From here to the bytes that will be read next, one block further on.
    pub(super) ahead: isize,
}

/// Values of one block for one KV head.
#[derive(Clone, Copy)]
pub(super) struct Values {
    /// `[32][row_bytes]` stored values.
    pub(super) at: *const u8,
    pub(super) row_bytes: usize,
    /// `[groups][32]` scales, where the codec has them.
    pub(super) scales: *const f32,
    /// As for keys.
    pub(super) ahead: isize,
}

/// `acc[r][j] += x[r] * y[j]`.
///
/// # Safety
/// `x` has `MR` values, `stride` apart.
#[inline(always)]
unsafe fn multiply_add<S: Simd, const MR: usize, const NV: usize>(
    s: S,
    acc: &mut [[S::F32; NV]; MR],
    x: *const f32,
    stride: usize,
    y: &[S::F32; NV],
) {
    // SAFETY: the caller's.
    unsafe {
        if !S::WIDE && NV > 1 && MR * NV >= 6 {
            // Too few registers for all operands: one vector at a time, broadcasts made anew.
            for (j, y) in y.iter().enumerate() {
                let x = if j > 0 { s.opaque(x) } else { x };
                for (r, acc) in acc.iter_mut().enumerate() {
                    acc[j] = s.fma(s.splat(*x.add(r * stride)), *y, acc[j]);
                }
            }
        } else {
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = s.splat(*x.add(r * stride));
                for (acc, y) in acc.iter_mut().zip(y) {
                    *acc = s.fma(x, *y, *acc);
                }
            }
        }
    }
}

/// Scores of `MR` rows against `NV` vectors of 16 tokens: `out[r][t] = sum_d q[r][d] * k[d][t]`.
///
/// # Safety
/// `q` has `MR` rows of `features` [`QUERY_STRIDE`] apart; `keys` can be read from `at` (which may
/// point into a row, at the first of the tokens); `out` has room for `NV` vectors in each of `MR`
/// rows [`SCORE_STRIDE`] apart.
#[inline(always)]
pub(super) unsafe fn scores<
    S: Simd,
    C: Codec,
    const MR: usize,
    const NV: usize,
    const AHEAD: bool,
>(
    s: S,
    q: *const f32,
    keys: Keys,
    features: usize,
    out: *mut f32,
) {
    let row_bytes = BLOCK_TOKENS * C::BYTES;
    let mut acc = [[s.splat(0.0); NV]; MR];
    let (mut q, mut k, mut scales) = (q, keys.at, keys.scales);
    let mut left = features;
    // SAFETY: the caller's; pointers move over `features` rows of each array.
    unsafe {
        while left > 0 {
            let n = if C::SCALED { left.min(KEY_GROUP) } else { left };
            let mut scale = [s.splat(1.0); NV];
            if C::SCALED {
                for (j, scale) in scale.iter_mut().enumerate() {
                    *scale = s.mul(s.load_f16_ptr(scales.add(j * LANES)), s.splat(SCALE_UNIT));
                }
                scales = scales.add(BLOCK_TOKENS);
            }
            for _ in 0..n {
                if AHEAD {
                    s.prefetch(k.wrapping_offset(keys.ahead));
                    if row_bytes > 64 {
                        s.prefetch(k.wrapping_offset(keys.ahead + 64));
                    }
                }
                let mut key = scale;
                for (j, key) in key.iter_mut().enumerate() {
                    let v = C::load(s, k.add(j * LANES * C::BYTES));
                    *key = if C::SCALED { s.mul(v, *key) } else { v };
                }
                multiply_add::<S, MR, NV>(s, &mut acc, q, QUERY_STRIDE, &key);
                q = q.add(1);
                k = k.add(row_bytes);
            }
            left -= n;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                s.store_ptr(*acc, out.add(r * SCORE_STRIDE + j * LANES));
            }
        }
    }
}

/// Adds `n` tokens to the outputs of `MR` rows in `NV` vectors of features:
/// `o[r][f] += p[r][t] * v[t][f]`, tokens in ascending order.
///
/// # Safety
/// `p` has `n` values in each of `MR` rows [`SCORE_STRIDE`] apart; `values.at` points to the first
/// of the tokens and features, `values.scales` to the first token of the features' first group
/// (where `NV` spans groups, the first feature starts one); `o` has `MR` rows `o_stride` apart.
#[inline(always)]
pub(super) unsafe fn weighted<
    S: Simd,
    C: Codec,
    const MR: usize,
    const NV: usize,
    const AHEAD: bool,
>(
    s: S,
    p: *const f32,
    values: Values,
    n: usize,
    o: *mut f32,
    o_stride: usize,
) {
    let mut acc = [[s.splat(0.0); NV]; MR];
    let (mut p, mut v, mut scales) = (p, values.at, values.scales);
    // SAFETY: the caller's; pointers move over `n` tokens of each array.
    unsafe {
        for (r, acc) in acc.iter_mut().enumerate() {
            for (j, acc) in acc.iter_mut().enumerate() {
                *acc = s.load_ptr(o.add(r * o_stride + j * LANES));
            }
        }
        for _ in 0..n {
            let mut value = [s.splat(0.0); NV];
            for (j, value) in value.iter_mut().enumerate() {
                let offset = j * LANES * C::BYTES;
                if AHEAD && offset.is_multiple_of(64) {
                    s.prefetch(v.wrapping_offset(values.ahead + offset as isize));
                }
                *value = C::load(s, v.add(offset));
                if C::SCALED {
                    let scale = *scales.add(j * LANES / VALUE_GROUP * BLOCK_TOKENS);
                    *value = s.mul(*value, s.splat(scale));
                }
            }
            multiply_add::<S, MR, NV>(s, &mut acc, p, SCORE_STRIDE, &value);
            p = p.add(1);
            v = v.add(values.row_bytes);
            if C::SCALED {
                scales = scales.add(1);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                s.store_ptr(*acc, o.add(r * o_stride + j * LANES));
            }
        }
    }
}

/// Converts a block of keys to f32, `[features][32]`.
///
/// # Safety
/// `keys` is a whole block; `out` has room for it.
#[inline(always)]
pub(super) unsafe fn convert_keys<S: Simd, C: Codec>(
    s: S,
    keys: Keys,
    features: usize,
    out: *mut f32,
) {
    const VECTORS: usize = BLOCK_TOKENS / LANES;
    let mut scale = [s.splat(1.0); VECTORS];
    // SAFETY: the caller's.
    unsafe {
        for d in 0..features {
            if C::SCALED && d.is_multiple_of(KEY_GROUP) {
                let scales = keys.scales.add(d / KEY_GROUP * BLOCK_TOKENS);
                for (j, scale) in scale.iter_mut().enumerate() {
                    *scale = s.mul(s.load_f16_ptr(scales.add(j * LANES)), s.splat(SCALE_UNIT));
                }
            }
            let row = keys.at.add(d * BLOCK_TOKENS * C::BYTES);
            s.prefetch(row.wrapping_offset(keys.ahead));
            for (j, scale) in scale.iter().enumerate() {
                let at = d * BLOCK_TOKENS + j * LANES;
                let v = C::load(s, keys.at.add(at * C::BYTES));
                s.store_ptr(if C::SCALED { s.mul(v, *scale) } else { v }, out.add(at));
            }
        }
    }
}

/// Converts a block's value scales to f32, `[groups][32]`.
///
/// # Safety
/// `scales` is `[groups][32]`; `out` has room for it.
#[inline(always)]
pub(super) unsafe fn convert_scales<S: Simd>(
    s: S,
    scales: *const u16,
    groups: usize,
    out: *mut f32,
) {
    for i in (0..groups * BLOCK_TOKENS).step_by(LANES) {
        // SAFETY: the caller's.
        unsafe {
            let v = s.mul(s.load_f16_ptr(scales.add(i)), s.splat(SCALE_UNIT));
            s.store_ptr(v, out.add(i));
        }
    }
}

/// Converts `tokens` rows of values to f32, `[tokens][vectors * 16]`.
///
/// # Safety
/// `values` has so many rows; `out` has room for them.
#[inline(always)]
pub(super) unsafe fn convert_values<S: Simd, C: Codec>(
    s: S,
    values: Values,
    tokens: usize,
    vectors: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's.
    unsafe {
        for t in 0..tokens {
            let row = values.at.add(t * values.row_bytes);
            for j in 0..vectors {
                if (j * LANES * C::BYTES).is_multiple_of(64) {
                    let here = row.wrapping_add(j * LANES * C::BYTES);
                    s.prefetch(here.wrapping_offset(values.ahead));
                }
                let mut v = C::load(s, row.add(j * LANES * C::BYTES));
                if C::SCALED {
                    let group = j * LANES / VALUE_GROUP;
                    v = s.mul(v, s.splat(*values.scales.add(group * BLOCK_TOKENS + t)));
                }
                s.store_ptr(v, out.add((t * vectors + j) * LANES));
            }
        }
    }
}
