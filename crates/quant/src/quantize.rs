//! Reference quantizers: from f32 to rows of every type.
//!
//! The types without sub-blocks follow the usual rules (ggml's): the scale comes from the largest
//! or from the smallest and largest values, codes round to nearest, and the results equal those
//! of the reference bit for bit. The types with sub-blocks use a small search: for every
//! sub-block, candidate scales near the largest value's are refined by least squares and the one
//! with the least weighted error is kept; then the block's own scale is set, sub-block scales are
//! rounded to integers, and codes are made against the scales as stored. Errors are weighted by
//! the square of the value, since large weights matter more to a product.
//!
//! This is plain and exact about what it stores, not the best quantizer that there could be: it
//! knows nothing of activations, and does not refine across sub-blocks.

use dunlin_spec::WeightType;

use crate::dequantize::levels;
use crate::error::QuantError;
use crate::float::{e8m0_half_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::format::{RawBlock, code_bits, code_offset, codebook, sub_len};
use crate::pack::repack;

/// Quantizes a row of values to blocks of any type.
///
/// # Errors
/// Lengths that do not fit each other, values that are not finite, and values so large that they
/// or their scale overflow the type's floats.
pub fn quantize_row(ty: WeightType, values: &[f32], row: &mut [u8]) -> Result<(), QuantError> {
    if ty.row_bytes(values.len()) != Some(row.len()) {
        return Err(QuantError::RowLength { ty, values: values.len(), bytes: row.len() });
    }
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        let value = values[index];
        return Err(QuantError::NotFinite { index, value });
    }
    let blocks = values.chunks_exact(ty.block_len());
    for (i, (values, block)) in blocks.zip(row.chunks_exact_mut(ty.block_bytes())).enumerate() {
        quantize_block(ty, values, block)
            .ok_or(QuantError::TooLarge { ty, index: i * ty.block_len() })?;
    }
    Ok(())
}

/// `None` where a float of the block would overflow.
fn quantize_block(ty: WeightType, values: &[f32], block: &mut [u8]) -> Option<()> {
    use WeightType::*;
    let raw = match ty {
        F32 => {
            block.copy_from_slice(&values[0].to_le_bytes());
            return Some(());
        }
        F16 => {
            block.copy_from_slice(&finite_f16(values[0])?.to_le_bytes());
            return Some(());
        }
        BF16 => {
            let bits = f32_to_bf16(values[0]);
            block.copy_from_slice(&bits.to_le_bytes());
            return (bits & 0x7f80 != 0x7f80).then_some(());
        }
        Q4_0 | Q5_0 => signed_by_extreme(ty, values)?,
        Q4_1 | Q5_1 => between_extremes(ty, values)?,
        Q8_0 => int8(values)?,
        MXFP4 => e2m1(values)?,
        IQ4_NL => one_scale(ty, values)?,
        Q3_K | Q6_K | IQ4_XS => nested_scales(ty, values)?,
        Q2_K | Q4_K | Q5_K => nested_scales_and_mins(ty, values)?,
    };
    repack(ty, &raw, block);
    Some(())
}

fn finite_f16(value: f32) -> Option<u16> {
    let bits = f32_to_f16(value);
    (bits & 0x7c00 != 0x7c00).then_some(bits)
}

/// `1 / d`, or 0 for a scale of zero. For a subnormal `d` too small to invert, also 0.
fn inverse(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The value of largest magnitude, with its sign; the first of equals.
fn extreme(values: &[f32]) -> f32 {
    let mut extreme = 0.0f32;
    for &v in values {
        if v.abs() > extreme.abs() {
            extreme = v;
        }
    }
    extreme
}

/// Q4_0 and Q5_0: the extreme value gets the lowest code, which reaches further than the highest.
fn signed_by_extreme(ty: WeightType, values: &[f32]) -> Option<RawBlock> {
    let offset = code_offset(ty) as f32;
    let d = extreme(values) / -offset;
    let id = inverse(d);
    let mut raw = plain_block(finite_f16(d)?);
    for (code, v) in raw.codes.iter_mut().zip(values) {
        *code = ((v * id + (offset + 0.5)) as u8).min((2.0 * offset) as u8 - 1);
    }
    Some(raw)
}

/// Q4_1 and Q5_1: codes spread from the smallest to the largest value.
fn between_extremes(ty: WeightType, values: &[f32]) -> Option<RawBlock> {
    let top = ((1u32 << code_bits(ty)) - 1) as u8;
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / f32::from(top);
    let id = inverse(d);
    let mut raw = plain_block(finite_f16(d)?);
    raw.dmin = finite_f16(min)?;
    for (code, v) in raw.codes.iter_mut().zip(values) {
        *code = (((v - min) * id + 0.5) as u8).min(top);
    }
    Some(raw)
}

fn int8(values: &[f32]) -> Option<RawBlock> {
    let d = extreme(values).abs() / 127.0;
    let id = inverse(d);
    let mut raw = plain_block(finite_f16(d)?);
    for (code, v) in raw.codes.iter_mut().zip(values) {
        *code = (v * id).round() as i8 as u8 ^ 0x80;
    }
    Some(raw)
}

/// MXFP4: the exponent puts the largest value between 4 and 8 (6 is the largest level).
fn e2m1(values: &[f32]) -> Option<RawBlock> {
    let largest = extreme(values).abs();
    let exponent = if largest > 0.0 {
        // floor(log2) from the bits, exact; subnormals are below every scale anyway.
        (largest.to_bits() >> 23) as i32 - 2
    } else {
        0
    };
    let d = exponent.clamp(0, 254) as u8;
    let mut raw = plain_block(u16::from(d));
    let scale = e8m0_half_to_f32(d);
    let levels = levels(WeightType::MXFP4);
    for (code, &v) in raw.codes.iter_mut().zip(values) {
        *code = nearest(&levels[..16], |level| scale * level, v);
    }
    Some(raw)
}

/// The code whose decoded level is nearest to `value`; the first of equals.
fn nearest(levels: &[f32], decode: impl Fn(f32) -> f32, value: f32) -> u8 {
    let mut best = (f32::INFINITY, 0u8);
    for (code, &level) in levels.iter().enumerate() {
        let error = (decode(level) - value).abs();
        if error < best.0 {
            best = (error, code as u8);
        }
    }
    best.1
}

fn plain_block(d: u16) -> RawBlock {
    let mut raw = RawBlock { d, ..RawBlock::default() };
    raw.sub_scales[0] = 1;
    raw
}

/// The levels of a type with signed levels and how values round to them.
struct Levels {
    ty: WeightType,
    /// Level of each code, `[2^code_bits]`, ascending.
    levels: Vec<f32>,
}

impl Levels {
    fn new(ty: WeightType) -> Self {
        Levels { ty, levels: levels(ty)[..1 << code_bits(ty)].to_vec() }
    }

    /// The code with the level nearest to `scaled`.
    fn code(&self, scaled: f32) -> u8 {
        if codebook(self.ty).is_some() {
            return nearest(&self.levels, |level| level, scaled);
        }
        let top = (self.levels.len() - 1) as f32;
        (scaled + code_offset(self.ty) as f32).round().clamp(0.0, top) as u8
    }

    /// The scale `s` with the least weighted squared error of `values - s * level`.
    fn best_scale(&self, values: &[f32]) -> f32 {
        let extreme = extreme(values);
        let mut best = (0.0f64, 0.0f32);
        // The extreme value at, a bit inside or a bit beyond either end of the levels.
        for end in [self.levels[0], self.levels[self.levels.len() - 1]] {
            for step in -6..=6 {
                let scale = extreme / (end * (1.0 + 0.02 * step as f32));
                let id = inverse(scale);
                let (mut cross, mut square) = (0.0f64, 0.0f64);
                for &v in values {
                    let level = f64::from(self.levels[usize::from(self.code(v * id))]);
                    let (v, weight) = (f64::from(v), f64::from(v) * f64::from(v));
                    cross += weight * v * level;
                    square += weight * level * level;
                }
                // What least squares takes off the error of a scale of zero.
                let gain = cross * cross / square;
                if square > 0.0 && gain > best.0 {
                    best = (gain, (cross / square) as f32);
                }
            }
        }
        best.1
    }

    fn encode(&self, values: &[f32], scale: f32, codes: &mut [u8]) {
        let id = inverse(scale);
        for (code, v) in codes.iter_mut().zip(values) {
            *code = self.code(v * id);
        }
    }
}

/// IQ4_NL: one scale for the block.
fn one_scale(ty: WeightType, values: &[f32]) -> Option<RawBlock> {
    let levels = Levels::new(ty);
    let mut raw = plain_block(finite_f16(levels.best_scale(values))?);
    let stored = raw.scale(ty);
    levels.encode(values, stored, &mut raw.codes);
    Some(raw)
}

/// Q3_K, Q6_K and IQ4_XS: signed integer scales of sub-blocks, under the block's scale.
fn nested_scales(ty: WeightType, values: &[f32]) -> Option<RawBlock> {
    let levels = Levels::new(ty);
    let lowest = if ty == WeightType::Q6_K { -128 } else { -32 };
    let len = sub_len(ty);
    let mut scales = [0.0f32; 16];
    for (scale, values) in scales.iter_mut().zip(values.chunks_exact(len)) {
        *scale = levels.best_scale(values);
    }
    let mut raw =
        RawBlock { d: finite_f16(extreme(&scales) / lowest as f32)?, ..RawBlock::default() };
    let id = inverse(f16_to_f32(raw.d));
    for (s, values) in values.chunks_exact(len).enumerate() {
        let integer = (scales[s] * id).round().clamp(lowest as f32, (-lowest - 1) as f32);
        raw.sub_scales[s] = integer as i16;
        let stored = raw.sub_scale(ty, s);
        levels.encode(values, stored, &mut raw.codes[s * len..]);
    }
    Some(raw)
}

/// Q2_K, Q4_K and Q5_K: integer scales and minimums of sub-blocks, each under a scale of the
/// block's. The minimums are subtracted and not negative.
fn nested_scales_and_mins(ty: WeightType, values: &[f32]) -> Option<RawBlock> {
    let top = ((1u32 << code_bits(ty)) - 1) as f32;
    let largest_integer = if ty == WeightType::Q2_K { 15.0 } else { 63.0 };
    let len = sub_len(ty);
    let mut fits = [(0.0f32, 0.0f32); 16];
    for (fit, values) in fits.iter_mut().zip(values.chunks_exact(len)) {
        *fit = best_scale_and_min(values, top);
    }
    let largest_scale = fits.iter().fold(0.0f32, |a, fit| a.max(fit.0));
    let largest_min = fits.iter().fold(0.0f32, |a, fit| a.max(fit.1));
    let mut raw = RawBlock {
        d: finite_f16(largest_scale / largest_integer)?,
        dmin: finite_f16(largest_min / largest_integer)?,
        ..RawBlock::default()
    };
    let id = inverse(f16_to_f32(raw.d));
    let id_min = inverse(f16_to_f32(raw.dmin));
    for (s, values) in values.chunks_exact(len).enumerate() {
        raw.sub_scales[s] = (fits[s].0 * id).round().min(largest_integer) as i16;
        raw.sub_mins[s] = (fits[s].1 * id_min).round().min(largest_integer) as u8;
        let (scale, min) = (raw.sub_scale(ty, s), raw.sub_min(ty, s));
        let id = inverse(scale);
        for (code, v) in raw.codes[s * len..].iter_mut().zip(values) {
            *code = ((v - min) * id).round().clamp(0.0, top) as u8;
        }
    }
    Some(raw)
}

/// The scale `s` and minimum `m`, neither negative, with the least weighted squared error of
/// `values - (s * code - m)` over codes up to `top`.
fn best_scale_and_min(values: &[f32], top: f32) -> (f32, f32) {
    let min = values.iter().copied().fold(0.0, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max <= min {
        // All values are equal and not positive: the minimum alone says them.
        return (0.0, -min);
    }
    let mut best = (f64::INFINITY, 0.0, 0.0);
    for step in -6..=6 {
        let scale = (max - min) / (top * (1.0 + 0.03 * step as f32));
        let id = inverse(scale);
        let codes = values.iter().map(|v| ((v - min) * id).round().clamp(0.0, top));
        let (s, m) = least_squares(values.iter().copied().zip(codes.clone()));
        // The first guess competes too: least squares may have nothing to solve.
        for (s, m) in [(s, m), (scale, -min)] {
            let error: f64 = values
                .iter()
                .zip(codes.clone())
                .map(|(&v, code)| {
                    let error = f64::from(v) - (f64::from(s) * f64::from(code) - f64::from(m));
                    weight(v) * error * error
                })
                .sum();
            if s >= 0.0 && m >= 0.0 && error < best.0 {
                best = (error, s, m);
            }
        }
    }
    (best.1, best.2)
}

/// How much the error of a value counts where a minimum is fitted: its square, and a little for
/// values near zero, without which a fit could put them anywhere.
fn weight(v: f32) -> f64 {
    f64::from(v) * f64::from(v) + 1e-12
}

/// Weighted least squares of `v = s * code - m`, with `m` held at zero where it would be negative.
fn least_squares(pairs: impl Iterator<Item = (f32, f32)>) -> (f32, f32) {
    let (mut w, mut wv, mut wc, mut wvc, mut wcc) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (v, code) in pairs {
        let (v, code, weight) = (f64::from(v), f64::from(code), weight(v));
        w += weight;
        wv += weight * v;
        wc += weight * code;
        wvc += weight * v * code;
        wcc += weight * code * code;
    }
    let determinant = w * wcc - wc * wc;
    if determinant <= 0.0 {
        return (0.0, 0.0);
    }
    let s = (w * wvc - wv * wc) / determinant;
    let m = (s * wc - wv) / w;
    if m < 0.0 {
        return ((wvc / wcc) as f32, 0.0);
    }
    (s as f32, m as f32)
}
