//! AVX2 with FMA and F16C: a vector is two 256-bit registers.

use super::{LANES, Simd};
use std::arch::x86_64::*;

/// The proof that AVX2, FMA and F16C exist.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// The proof, on trust.
    ///
    /// # Safety
    /// The CPU must have AVX2, FMA and F16C.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Avx2(())
    }
}

/// Sixteen f32 lanes.
#[derive(Clone, Copy)]
pub struct F(__m256, __m256);
/// Sixteen i32 lanes.
#[derive(Clone, Copy)]
pub struct I(__m256i, __m256i);

/// Load masks: eight set words, then eight clear ones; read at `8 - n` for `n` set lanes.
static MASK_WORDS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// The first `n` of eight lanes.
#[inline(always)]
fn mask8(n: usize) -> __m256i {
    // SAFETY: the read is of eight words that start at 0..=8 of sixteen; AVX is the caller's.
    unsafe { _mm256_loadu_si256(MASK_WORDS.as_ptr().add(8 - n.min(8)).cast()) }
}

/// The sums of the first 16 and of the last 16 signed bytes.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
pub(super) unsafe fn sums_of_16(bytes: __m256i) -> [i32; 2] {
    // SAFETY: the caller's.
    unsafe {
        // Moved up by 128 they are unsigned, and differences from zero are summed by eights.
        let unsigned = _mm256_xor_si256(bytes, _mm256_set1_epi8(i8::MIN));
        let eights = _mm256_sad_epu8(unsigned, _mm256_setzero_si256());
        let sums = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
        let first = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
        let last = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(sums));
        [first - 16 * 128, last - 16 * 128]
    }
}

/// Applies an intrinsic of two vectors to both halves.
macro_rules! both {
    ($self:ident, $t:ident, $f:ident, $a:ident $(, $b:ident)*) => {
        // SAFETY: `$self` proves AVX2, FMA and F16C.
        unsafe { $t($f($a.0 $(, $b.0)*), $f($a.1 $(, $b.1)*)) }
    };
}

impl Simd for Avx2 {
    type F32 = F;
    type I32 = I;
    type Mask = I;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        // SAFETY: `self` proves AVX2, FMA and F16C; so it does in all methods below.
        let v = unsafe { _mm256_set1_ps(x) };
        F(v, v)
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> F {
        let x = &x[..LANES];
        // SAFETY: as above, and 16 values are there.
        unsafe { self.load_ptr(x.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> F {
        let n = x.len();
        if n == LANES {
            return self.load(x);
        }
        assert!(n < LANES);
        // SAFETY: as above; masked lanes are not read, and the second pointer stays in bounds or
        // one past the end because it moves by at most `n`.
        unsafe {
            let p = x.as_ptr();
            let lo = _mm256_maskload_ps(p, mask8(n));
            let hi = _mm256_maskload_ps(p.add(n.min(8)), mask8(n.saturating_sub(8)));
            F(lo, hi)
        }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, x: *const f32) -> F {
        // SAFETY: the caller's.
        unsafe { F(_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))) }
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32]) {
        let to = &mut to[..LANES];
        // SAFETY: as above, and there is room for 16 values.
        unsafe { self.store_ptr(v, to.as_mut_ptr()) }
    }
    #[inline(always)]
    fn store_partial(self, v: F, to: &mut [f32]) {
        if to.len() == LANES {
            return self.store(v, to);
        }
        let mut all = [0.0; LANES];
        self.store(v, &mut all);
        to.copy_from_slice(&all[..to.len()]);
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: F, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_ps(to, v.0);
            _mm256_storeu_ps(to.add(8), v.1);
        }
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(self, F, _mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(self, F, _mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(self, F, _mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(self, F, _mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(self, F, _mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        both!(self, F, _mm256_sqrt_ps, a)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(self, F, _mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(self, F, _mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn lt(self, a: F, b: F) -> I {
        // SAFETY: as above.
        unsafe {
            I(
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn select(self, m: I, a: F, b: F) -> F {
        // SAFETY: as above.
        unsafe {
            F(
                _mm256_blendv_ps(b.0, a.0, _mm256_castsi256_ps(m.0)),
                _mm256_blendv_ps(b.1, a.1, _mm256_castsi256_ps(m.1)),
            )
        }
    }
    #[inline(always)]
    fn first_lanes(self, n: usize) -> I {
        I(mask8(n), mask8(n.saturating_sub(8)))
    }
    #[inline(always)]
    fn to_bits(self, a: F) -> I {
        both!(self, I, _mm256_castps_si256, a)
    }
    #[inline(always)]
    fn bits_to_f32(self, a: I) -> F {
        both!(self, F, _mm256_castsi256_ps, a)
    }
    #[inline(always)]
    fn i32_splat(self, x: i32) -> I {
        // SAFETY: as above.
        let v = unsafe { _mm256_set1_epi32(x) };
        I(v, v)
    }
    #[inline(always)]
    fn i32_add(self, a: I, b: I) -> I {
        both!(self, I, _mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn i32_sub(self, a: I, b: I) -> I {
        both!(self, I, _mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn i32_and(self, a: I, b: I) -> I {
        both!(self, I, _mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn i32_or(self, a: I, b: I) -> I {
        both!(self, I, _mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn i32_max(self, a: I, b: I) -> I {
        both!(self, I, _mm256_max_epi32, a, b)
    }
    #[inline(always)]
    fn i32_shl<const N: i32>(self, a: I) -> I {
        // SAFETY: as above.
        unsafe { I(_mm256_slli_epi32::<N>(a.0), _mm256_slli_epi32::<N>(a.1)) }
    }
    #[inline(always)]
    fn i32_sra<const N: i32>(self, a: I) -> I {
        // SAFETY: as above.
        unsafe { I(_mm256_srai_epi32::<N>(a.0), _mm256_srai_epi32::<N>(a.1)) }
    }
    #[inline(always)]
    fn i32_to_f32(self, a: I) -> F {
        both!(self, F, _mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    fn round_i32(self, a: F) -> I {
        both!(self, I, _mm256_cvtps_epi32, a)
    }
    #[inline(always)]
    fn i32_sum(self, a: I) -> i32 {
        // SAFETY: as above.
        unsafe {
            let v = _mm256_add_epi32(a.0, a.1);
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
            _mm_cvtsi128_si32(v)
        }
    }
    #[inline(always)]
    fn i32_max_lane(self, a: I) -> i32 {
        // SAFETY: as above.
        unsafe {
            let v = _mm256_max_epi32(a.0, a.1);
            let v = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            let v = _mm_max_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
            _mm_cvtsi128_si32(v)
        }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, x: *const i8) -> I {
        // SAFETY: the caller's.
        unsafe {
            I(
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(x.cast())),
                _mm256_cvtepi8_epi32(_mm_loadl_epi64(x.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, v: I, to: *mut i8) {
        // SAFETY: the caller's.
        unsafe {
            // Packing works within 128-bit halves: the words come out as 0-3, 8-11, 4-7, 12-15.
            let words = _mm256_packs_epi32(v.0, v.1);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let lo = _mm256_castsi256_si128(words);
            let hi = _mm256_extracti128_si256::<1>(words);
            _mm_storeu_si128(to.cast(), _mm_packs_epi16(lo, hi));
        }
    }
    #[inline(always)]
    unsafe fn store_i8_sums(self, a: I, b: I, to: *mut i8) -> [i32; 2] {
        // SAFETY: the caller's.
        unsafe {
            // Packing works within 128-bit halves; the permutation undoes it.
            let a = _mm256_packs_epi32(a.0, a.1);
            let b = _mm256_packs_epi32(b.0, b.1);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
            _mm256_storeu_si256(to.cast(), bytes);
            sums_of_16(bytes)
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, x: *const u16) -> F {
        // SAFETY: the caller's.
        unsafe {
            F(
                _mm256_cvtph_ps(_mm_loadu_si128(x.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, v: F, to: *mut u16) {
        // SAFETY: the caller's.
        unsafe {
            let lo = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0);
            let hi = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1);
            _mm_storeu_si128(to.cast(), lo);
            _mm_storeu_si128(to.add(8).cast(), hi);
        }
    }
    #[inline(always)]
    fn sum(self, a: F) -> f32 {
        // SAFETY: as above.
        unsafe {
            let v = _mm256_add_ps(a.0, a.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_add_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        }
    }
    #[inline(always)]
    fn max_lane(self, a: F) -> f32 {
        // SAFETY: as above.
        unsafe {
            let v = _mm256_max_ps(a.0, a.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_max_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        }
    }
    #[inline(always)]
    #[allow(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it there")]
    fn opaque(self, p: *const f32) -> *const f32 {
        let mut p = p;
        // SAFETY: no instruction at all.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) p, options(nomem, nostack, preserves_flags));
        }
        p
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: as above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
