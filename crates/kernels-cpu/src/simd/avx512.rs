//! AVX-512: a vector is one 512-bit register.

use super::avx2::sums_of_16;
use super::{LANES, Simd};
use std::arch::x86_64::*;

/// The proof that AVX-512 F, BW, VL, DQ and VNNI exist, and AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// The proof, on trust.
    ///
    /// # Safety
    /// The CPU must have AVX-512 F, BW, VL, DQ and VNNI, and AVX2, FMA and F16C.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Avx512(())
    }
}

/// The mask of the first `n` lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n.min(LANES)) - 1) as __mmask16
}

/// Applies an intrinsic.
macro_rules! op {
    ($self:ident, $f:ident, $($a:expr),*) => {
        // SAFETY: `$self` proves AVX-512.
        unsafe { $f($($a),*) }
    };
}

impl Simd for Avx512 {
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(self, _mm512_set1_ps, x)
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> __m512 {
        let x = &x[..LANES];
        op!(self, _mm512_loadu_ps, x.as_ptr())
    }
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> __m512 {
        assert!(x.len() <= LANES);
        // Masked lanes are not read.
        op!(self, _mm512_maskz_loadu_ps, mask(x.len()), x.as_ptr())
    }
    #[inline(always)]
    unsafe fn load_ptr(self, x: *const f32) -> __m512 {
        op!(self, _mm512_loadu_ps, x)
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32]) {
        let to = &mut to[..LANES];
        op!(self, _mm512_storeu_ps, to.as_mut_ptr(), v)
    }
    #[inline(always)]
    fn store_partial(self, v: __m512, to: &mut [f32]) {
        assert!(to.len() <= LANES);
        // Masked lanes are not written.
        op!(self, _mm512_mask_storeu_ps, to.as_mut_ptr(), mask(to.len()), v)
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: __m512, to: *mut f32) {
        op!(self, _mm512_storeu_ps, to, v)
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(self, _mm512_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        op!(self, _mm512_sqrt_ps, a)
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_max_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_min_ps, a, b)
    }
    #[inline(always)]
    fn lt(self, a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    fn select(self, m: __mmask16, a: __m512, b: __m512) -> __m512 {
        op!(self, _mm512_mask_blend_ps, m, b, a)
    }
    #[inline(always)]
    fn first_lanes(self, n: usize) -> __mmask16 {
        mask(n)
    }
    #[inline(always)]
    fn to_bits(self, a: __m512) -> __m512i {
        op!(self, _mm512_castps_si512, a)
    }
    #[inline(always)]
    fn bits_to_f32(self, a: __m512i) -> __m512 {
        op!(self, _mm512_castsi512_ps, a)
    }
    #[inline(always)]
    fn i32_splat(self, x: i32) -> __m512i {
        op!(self, _mm512_set1_epi32, x)
    }
    #[inline(always)]
    fn i32_add(self, a: __m512i, b: __m512i) -> __m512i {
        op!(self, _mm512_add_epi32, a, b)
    }
    #[inline(always)]
    fn i32_sub(self, a: __m512i, b: __m512i) -> __m512i {
        op!(self, _mm512_sub_epi32, a, b)
    }
    #[inline(always)]
    fn i32_and(self, a: __m512i, b: __m512i) -> __m512i {
        op!(self, _mm512_and_si512, a, b)
    }
    #[inline(always)]
    fn i32_or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(self, _mm512_or_si512, a, b)
    }
    #[inline(always)]
    fn i32_max(self, a: __m512i, b: __m512i) -> __m512i {
        op!(self, _mm512_max_epi32, a, b)
    }
    #[inline(always)]
    fn i32_shl<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    fn i32_sra<const N: i32>(self, a: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512.
        unsafe { _mm512_sra_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    fn i32_to_f32(self, a: __m512i) -> __m512 {
        op!(self, _mm512_cvtepi32_ps, a)
    }
    #[inline(always)]
    fn round_i32(self, a: __m512) -> __m512i {
        op!(self, _mm512_cvtps_epi32, a)
    }
    #[inline(always)]
    fn i32_sum(self, a: __m512i) -> i32 {
        op!(self, _mm512_reduce_add_epi32, a)
    }
    #[inline(always)]
    fn i32_max_lane(self, a: __m512i) -> i32 {
        op!(self, _mm512_reduce_max_epi32, a)
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, x: *const i8) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(x.cast())) }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, v: __m512i, to: *mut i8) {
        // SAFETY: the caller's.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(v)) }
    }
    #[inline(always)]
    unsafe fn store_i8_sums(self, a: __m512i, b: __m512i, to: *mut i8) -> [i32; 2] {
        // SAFETY: the caller's.
        unsafe {
            let (a, b) = (_mm512_cvtepi32_epi8(a), _mm512_cvtepi32_epi8(b));
            let bytes = _mm256_set_m128i(b, a);
            _mm256_storeu_si256(to.cast(), bytes);
            sums_of_16(bytes)
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, x: *const u16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, v: __m512, to: *mut u16) {
        // SAFETY: the caller's.
        unsafe {
            let h = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(to.cast(), h);
        }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_add_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        }
    }
    #[inline(always)]
    fn max_lane(self, a: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512.
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_max_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
