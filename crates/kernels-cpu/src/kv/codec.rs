//! The stored forms of keys and values, as kernels read them.

use crate::simd::Simd;

/// What a stored int8 scale is multiplied by. Scales are half floats of 256 times the true scale,
/// which centres their range on the sizes that keys and values have; the product with an int8 is
/// exact in f32.
pub(crate) const SCALE_UNIT: f32 = 1.0 / 256.0;

/// How one value is stored.
pub(crate) trait Codec: Copy {
    /// Bytes of a value.
    const BYTES: usize;
    /// Whether values are to be multiplied by a scale.
    const SCALED: bool;
    /// Sixteen values at `at`, before any scale.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::F32;
}

/// f32.
#[derive(Clone, Copy)]
pub(crate) struct F32Codec;
/// Half floats.
#[derive(Clone, Copy)]
pub(crate) struct F16Codec;
/// Signed bytes with a scale for each token and group of features.
#[derive(Clone, Copy)]
pub(crate) struct Int8Codec;

impl Codec for F32Codec {
    const BYTES: usize = 4;
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.load_ptr(at.cast()) }
    }
}

impl Codec for F16Codec {
    const BYTES: usize = 2;
    const SCALED: bool = false;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.load_f16_ptr(at.cast()) }
    }
}

impl Codec for Int8Codec {
    const BYTES: usize = 1;
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.i32_to_f32(s.load_i8_ptr(at.cast())) }
    }
}
