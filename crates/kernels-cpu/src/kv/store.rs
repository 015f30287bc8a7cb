//! Writing keys and values in their stored form, and reading them back.
//!
//! int8: for each token and each group of features, `d = amax / 127` is rounded to a half float of
//! 256 d (at most 65504, so larger values saturate), then `q = round(x / d)` as `x * (1 / d)` in
//! f32, ties to even, clamped to +-127. A group with an infinity or a NaN gets a NaN scale.

use super::{BLOCK_TOKENS, HeadPtr, KEY_GROUP, KvPool, LayerLayout, SCALE_UNIT, VALUE_GROUP};
use crate::CpuFeatures;
use crate::simd::{LANES, Simd, f16_from_f32, f16_to_f32, simd_dispatch};
use dunlin_spec::KvType;

/// Keys and values of `n` consecutive tokens, each a row of all heads.
#[derive(Debug, Clone, Copy)]
pub struct KvRows<'a> {
    /// Keys: token `t` has `n_kv_heads * head_dim` values from `t * k_stride`.
    pub k: &'a [f32],
    /// Values between the keys of two tokens.
    pub k_stride: usize,
    /// Values: token `t` has `n_kv_heads * v_head_dim` values from `t * v_stride`.
    pub v: &'a [f32],
    /// Values between the values of two tokens.
    pub v_stride: usize,
    /// Tokens.
    pub n: usize,
}

impl KvPool {
    /// Stores consecutive tokens in lanes `first_lane ..` of a block of a layer. Threads may store
    /// different lanes at once.
    ///
    /// # Safety
    /// While this runs, nothing else reads or writes these lanes of the block in this layer.
    ///
    /// # Panics
    /// Where the layer, block or a lane does not exist or the rows do not hold what they say.
    pub unsafe fn store_rows(
        &self,
        cpu: CpuFeatures,
        layer: usize,
        block: u32,
        first_lane: usize,
        rows: KvRows<'_>,
    ) {
        let (layer, block) = (self.layer(layer), block as usize);
        let g = layer.geometry;
        assert!(block < self.n_blocks(), "block {block} of {}", self.n_blocks());
        assert!(first_lane + rows.n <= BLOCK_TOKENS, "lanes past the block's end");
        if rows.n == 0 {
            return;
        }
        let fits = |len: usize, stride: usize, width: usize| {
            width <= len && (rows.n - 1).checked_mul(stride).is_some_and(|at| at <= len - width)
        };
        assert!(fits(rows.k.len(), rows.k_stride, g.n_kv_heads * g.head_dim), "keys too short");
        assert!(fits(rows.v.len(), rows.v_stride, g.n_kv_heads * g.v_head_dim), "values too short");
        for head in 0..g.n_kv_heads {
            let to = self.head(layer, block, head);
            let k = &rows.k[head * g.head_dim..];
            let v = &rows.v[head * g.v_head_dim..];
            for t in 0..rows.n {
                let k = &k[t * rows.k_stride..][..g.head_dim];
                let v = &v[t * rows.v_stride..][..g.v_head_dim];
                // SAFETY: the head exists, the lane is the caller's alone.
                unsafe { store_head(cpu, layer, to, first_lane + t, k, v) };
            }
        }
    }
}

/// Stores one token's key and value of one head.
///
/// # Safety
/// `to` is a head of this layout; nothing else touches lane `lane` of it.
#[inline(always)]
unsafe fn store_head_kernel<S: Simd>(
    s: S,
    layer: &LayerLayout,
    to: HeadPtr,
    lane: usize,
    k: &[f32],
    v: &[f32],
) {
    // SAFETY: the caller's.
    unsafe {
        store_key(s, layer.k_type, to, lane, k);
        store_value(s, layer.v_type, to, lane, layer.v_stride, v);
    }
}

simd_dispatch! {
    unsafe fn store_head(layer: &LayerLayout, to: HeadPtr, lane: usize, k: &[f32], v: &[f32])
        = store_head_kernel;
}

/// A key becomes a column.
#[inline(always)]
unsafe fn store_key<S: Simd>(s: S, kv_type: KvType, to: HeadPtr, lane: usize, k: &[f32]) {
    // SAFETY: the lane of each feature lies within the head and is the caller's.
    unsafe {
        match kv_type {
            KvType::F32 => {
                let column = to.k.cast::<f32>().add(lane);
                for (d, x) in k.iter().enumerate() {
                    column.add(d * BLOCK_TOKENS).write(*x);
                }
            }
            KvType::F16 => {
                let column = to.k.cast::<u16>().add(lane);
                for (i, part) in k.chunks(LANES).enumerate() {
                    let mut half = [0u16; LANES];
                    s.store_f16_ptr(s.load_partial(part), half.as_mut_ptr());
                    for (d, h) in half.iter().enumerate().take(part.len()) {
                        column.add((i * LANES + d) * BLOCK_TOKENS).write(*h);
                    }
                }
            }
            KvType::Int8 => {
                let column = to.k.cast::<i8>().add(lane);
                for (g, part) in k.chunks(KEY_GROUP).enumerate() {
                    let (scale, q) = quantize_group::<S, KEY_GROUP>(s, part);
                    to.k_scales.add(g * BLOCK_TOKENS + lane).write(scale);
                    for (d, q) in q.iter().enumerate().take(part.len()) {
                        column.add((g * KEY_GROUP + d) * BLOCK_TOKENS).write(*q);
                    }
                }
            }
        }
    }
}

/// A value becomes a row.
#[inline(always)]
unsafe fn store_value<S: Simd>(
    s: S,
    kv_type: KvType,
    to: HeadPtr,
    lane: usize,
    stride: usize,
    v: &[f32],
) {
    // SAFETY: the row lies within the head and is the caller's.
    unsafe {
        match kv_type {
            KvType::F32 => {
                let row = to.v.cast::<f32>().add(lane * stride);
                row.copy_from_nonoverlapping(v.as_ptr(), v.len());
            }
            KvType::F16 => {
                let row = to.v.cast::<u16>().add(lane * stride);
                for (i, part) in v.chunks(LANES).enumerate() {
                    // Rows are padded to whole vectors, so the last one may be written whole.
                    s.store_f16_ptr(s.load_partial(part), row.add(i * LANES));
                }
            }
            KvType::Int8 => {
                let row = to.v.cast::<i8>().add(lane * stride);
                for (g, part) in v.chunks(VALUE_GROUP).enumerate() {
                    let (scale, q) = quantize_group::<S, VALUE_GROUP>(s, part);
                    to.v_scales.add(g * BLOCK_TOKENS + lane).write(scale);
                    row.add(g * VALUE_GROUP).copy_from_nonoverlapping(q.as_ptr(), part.len());
                }
            }
        }
    }
}

/// Vectors of the larger group.
const PARTS: usize = 2;

const _: () = assert!(KEY_GROUP.is_multiple_of(LANES) && KEY_GROUP <= PARTS * LANES);
const _: () = assert!(VALUE_GROUP.is_multiple_of(LANES) && VALUE_GROUP <= PARTS * LANES);

/// The stored scale and the values of one group of up to `N`.
#[inline(always)]
fn quantize_group<S: Simd, const N: usize>(s: S, x: &[f32]) -> (u16, [i8; N]) {
    let mut parts = [s.splat(0.0); PARTS];
    let mut top = s.i32_splat(0);
    for (i, part) in x.chunks(LANES).enumerate() {
        parts[i] = s.load_partial(part);
        top = s.i32_max(top, s.to_bits(s.abs(parts[i])));
    }
    let amax = f32::from_bits(s.i32_max_lane(top) as u32);
    let mut q = [0i8; N];
    if !amax.is_finite() {
        return (f16_from_f32(f32::NAN), q);
    }
    let scale = f16_from_f32((amax / 127.0 / SCALE_UNIT).min(65504.0));
    let d = f16_to_f32(scale) * SCALE_UNIT;
    if d > 0.0 {
        let inv = s.splat(1.0 / d);
        for (i, part) in parts[..N / LANES].iter().enumerate() {
            let v = s.mul(*part, inv);
            let v = s.max(s.min(v, s.splat(127.0)), s.splat(-127.0));
            // SAFETY: part `i` of the array has 16 bytes.
            unsafe { s.store_i8_ptr(s.round_i32(v), q.as_mut_ptr().add(i * LANES)) };
        }
    }
    (scale, q)
}

/// Reads one token's keys and values as f32.
pub(super) fn export(
    pool: &KvPool,
    layer: usize,
    block: usize,
    lane: usize,
    k: &mut [f32],
    v: &mut [f32],
) {
    let layer = pool.layer(layer);
    let g = layer.geometry;
    assert!(block < pool.n_blocks() && lane < BLOCK_TOKENS);
    assert_eq!(k.len(), g.n_kv_heads * g.head_dim);
    assert_eq!(v.len(), g.n_kv_heads * g.v_head_dim);
    for head in 0..g.n_kv_heads {
        let from = pool.head(layer, block, head);
        for (d, x) in k[head * g.head_dim..][..g.head_dim].iter_mut().enumerate() {
            let at = d * BLOCK_TOKENS + lane;
            // SAFETY: feature `d` of lane `lane` lies within the head, and so does its scale.
            *x = unsafe {
                read(layer.k_type, from.k, at, from.k_scales, d / KEY_GROUP * BLOCK_TOKENS + lane)
            };
        }
        for (d, x) in v[head * g.v_head_dim..][..g.v_head_dim].iter_mut().enumerate() {
            let at = lane * layer.v_stride + d;
            // SAFETY: as above.
            *x = unsafe {
                read(layer.v_type, from.v, at, from.v_scales, d / VALUE_GROUP * BLOCK_TOKENS + lane)
            };
        }
    }
}

/// Value `i` of an array of stored values, times scale `j` where it has scales.
///
/// # Safety
/// Both lie within their arrays.
unsafe fn read(kv_type: KvType, x: *const u8, i: usize, scales: *const u16, j: usize) -> f32 {
    // SAFETY: the caller's.
    unsafe {
        match kv_type {
            KvType::F32 => x.cast::<f32>().add(i).read(),
            KvType::F16 => f16_to_f32(x.cast::<u16>().add(i).read()),
            KvType::Int8 => {
                let scale = f16_to_f32(scales.add(j).read()) * SCALE_UNIT;
                f32::from(x.cast::<i8>().add(i).read()) * scale
            }
        }
    }
}
