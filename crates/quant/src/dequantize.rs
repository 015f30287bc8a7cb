//! The value of every weight in f32: the definition that kernels are tested against.

use dunlin_spec::WeightType;

use crate::float::{bf16_to_f32, f16_to_f32};
use crate::format::{RawBlock, code_offset, codebook, has_min, sub_len};
use crate::pack::unpack_into;

/// Decodes a row of blocks to f32. `row` holds `out.len()` values.
///
/// Each value is rounded exactly as ggml's reference functions define it: the scale of the
/// sub-block, its product with the level, and the addition of the minimum, each once to f32.
///
/// # Panics
/// If `row` is not the size of `out.len()` values of this type.
pub fn dequantize_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    assert_eq!(
        ty.row_bytes(out.len()),
        Some(row.len()),
        "{} values of {ty} in {} bytes",
        out.len(),
        row.len()
    );
    match ty {
        WeightType::F32 => decode(row, out, f32::from_le_bytes),
        WeightType::F16 => decode(row, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        WeightType::BF16 => decode(row, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        _ => {
            let levels = levels(ty);
            let mut raw = RawBlock::default();
            let blocks = row.chunks_exact(ty.block_bytes());
            for (block, out) in blocks.zip(out.chunks_exact_mut(ty.block_len())) {
                unpack_into(ty, block, &mut raw);
                dequantize_block(ty, &raw, &levels, out);
            }
        }
    }
}

fn decode<const N: usize>(row: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in row.as_chunks::<N>().0.iter().zip(out) {
        *out = value(*bytes);
    }
}

/// The level of every possible code: `[256]`, indexed by code.
pub(crate) fn levels(ty: WeightType) -> [f32; 256] {
    std::array::from_fn(|code| match codebook(ty) {
        Some(book) => f32::from(book[code % 16]),
        None => (code as i32 - code_offset(ty)) as f32,
    })
}

fn dequantize_block(ty: WeightType, raw: &RawBlock, levels: &[f32; 256], out: &mut [f32]) {
    for (sub, out) in out.chunks_exact_mut(sub_len(ty)).enumerate() {
        let codes = &raw.codes[sub * sub_len(ty)..][..out.len()];
        let scale = raw.sub_scale(ty, sub);
        if has_min(ty) {
            let min = raw.sub_min(ty, sub);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * levels[usize::from(code)] + min;
            }
        } else {
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * levels[usize::from(code)];
            }
        }
    }
}
