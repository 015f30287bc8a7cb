//! What a block holds, and the constants of each format.

use dunlin_spec::WeightType;

use crate::float::{e8m0_half_to_f32, f16_to_f32};

/// One quantized block with its bit fields taken apart and nothing rounded.
///
/// Fields that a type lacks are zero, except `sub_scales[0]`, which is 1 in types without
/// sub-block scales. See the crate's documentation for what the fields mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawBlock {
    /// Codes below `2^code_bits`, in the order of the values. The first `block_len` are used.
    pub codes: [u8; 256],
    /// Bits of the f16 scale; in MXFP4 the E8M0 exponent byte.
    pub d: u16,
    /// Bits of the f16 scale of the minimums, or of the minimum `m` itself in Q4_1 and Q5_1.
    pub dmin: u16,
    /// Integer scale of each sub-block of [`sub_len`] values.
    pub sub_scales: [i16; 16],
    /// Integer minimum of each sub-block, not negative: it is subtracted.
    pub sub_mins: [u8; 16],
}

impl Default for RawBlock {
    fn default() -> Self {
        RawBlock { codes: [0; 256], d: 0, dmin: 0, sub_scales: [0; 16], sub_mins: [0; 16] }
    }
}

impl RawBlock {
    /// The block's scale `d` in f32. In MXFP4 half of what the exponent byte means, to go with
    /// the doubled codebook.
    #[inline]
    pub fn scale(&self, ty: WeightType) -> f32 {
        match ty {
            WeightType::MXFP4 => e8m0_half_to_f32(self.d as u8),
            _ => f16_to_f32(self.d),
        }
    }

    /// The scale of a sub-block, `d * sub_scales[sub]`, rounded once to f32.
    #[inline]
    pub fn sub_scale(&self, ty: WeightType, sub: usize) -> f32 {
        self.scale(ty) * f32::from(self.sub_scales[sub])
    }

    /// What is added to every value of a sub-block: `m`, or `-(dmin * sub_mins[sub])` rounded
    /// once to f32. Zero for types without minimums, where nothing is added (so that a value of
    /// -0 stays one).
    #[inline]
    pub fn sub_min(&self, ty: WeightType, sub: usize) -> f32 {
        use WeightType::*;
        match ty {
            Q4_1 | Q5_1 => f16_to_f32(self.dmin),
            Q2_K | Q4_K | Q5_K => -(f16_to_f32(self.dmin) * f32::from(self.sub_mins[sub])),
            _ => 0.0,
        }
    }
}

/// Whether the type stores codes in blocks, so that [`unpack`](crate::unpack) takes it; the
/// others (F32, F16, BF16) store plain floats.
pub const fn is_quantized(ty: WeightType) -> bool {
    use WeightType::*;
    !matches!(ty, F32 | F16 | BF16)
}

/// Whether the type adds a minimum to each value.
pub const fn has_min(ty: WeightType) -> bool {
    use WeightType::*;
    matches!(ty, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
}

/// Bits of one code, or of one float for the types that are not quantized.
pub const fn code_bits(ty: WeightType) -> u32 {
    use WeightType::*;
    match ty {
        F32 => 32,
        F16 | BF16 => 16,
        Q8_0 => 8,
        Q6_K => 6,
        Q5_0 | Q5_1 | Q5_K => 5,
        Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS | MXFP4 => 4,
        Q3_K => 3,
        Q2_K => 2,
    }
}

/// What is subtracted from a code to get its signed level; 0 for types with minimums or with a
/// codebook.
pub const fn code_offset(ty: WeightType) -> i32 {
    use WeightType::*;
    match ty {
        Q8_0 => 128,
        Q6_K => 32,
        Q5_0 => 16,
        Q4_0 => 8,
        Q3_K => 4,
        F32 | F16 | BF16 | Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K | IQ4_NL | IQ4_XS | MXFP4 => 0,
    }
}

/// Values that share one sub-block scale: 16 or 32, and 32 for blocks of 32 without sub-blocks
/// (1 for plain floats).
pub const fn sub_len(ty: WeightType) -> usize {
    use WeightType::*;
    match ty {
        F32 | F16 | BF16 => 1,
        Q2_K | Q3_K | Q6_K => 16,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | IQ4_NL | IQ4_XS | MXFP4 => 32,
    }
}

/// The levels of IQ4_NL and IQ4_XS, ascending.
static IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6, and negated with the top bit set), so
/// that they are integers. Both zeros are +0.
static E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The integer level of each code, for the types that look codes up.
///
/// MXFP4's levels are doubled, and [`RawBlock::scale`] is halved to match; both are exact.
pub const fn codebook(ty: WeightType) -> Option<&'static [i8; 16]> {
    match ty {
        WeightType::IQ4_NL | WeightType::IQ4_XS => Some(&IQ4_LEVELS),
        WeightType::MXFP4 => Some(&E2M1_DOUBLED),
        _ => None,
    }
}
