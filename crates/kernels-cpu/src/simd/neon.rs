//! AArch64 Advanced SIMD: a vector is four 128-bit registers.
//!
//! Only what every AArch64 CPU of an operating system has. Half floats are converted in assembly,
//! since their intrinsics wait for the `f16` type.

use super::{LANES, Simd};
use std::arch::{aarch64::*, asm};

/// The proof that Advanced SIMD exists.
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// The proof, on trust.
    ///
    /// # Safety
    /// The CPU must have Advanced SIMD.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Neon(())
    }
}

/// Sixteen f32 lanes.
#[derive(Clone, Copy)]
pub struct F([float32x4_t; 4]);
/// Sixteen i32 lanes.
#[derive(Clone, Copy)]
pub struct I([int32x4_t; 4]);
/// Sixteen lanes of all ones or zeros.
#[derive(Clone, Copy)]
pub struct M([uint32x4_t; 4]);

/// Applies an intrinsic to each of the four registers.
macro_rules! each {
    ($t:ident, $f:expr, $a:ident) => {
        // SAFETY: Advanced SIMD is proved by the token of the method.
        unsafe { $t([$f($a.0[0]), $f($a.0[1]), $f($a.0[2]), $f($a.0[3])]) }
    };
    ($t:ident, $f:expr, $a:ident, $b:ident) => {
        // SAFETY: as above.
        unsafe {
            $t([
                $f($a.0[0], $b.0[0]),
                $f($a.0[1], $b.0[1]),
                $f($a.0[2], $b.0[2]),
                $f($a.0[3], $b.0[3]),
            ])
        }
    };
}

/// `if a > b { a } else { b }` in each lane; the instruction of that name treats NaNs and zeros
/// otherwise.
#[inline(always)]
unsafe fn max4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn min4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// Rounds to the nearest integer, ties to even; NaN and what does not fit become `i32::MIN`, where
/// the instruction saturates.
#[inline(always)]
unsafe fn round4(a: float32x4_t) -> int32x4_t {
    // SAFETY: the caller has Advanced SIMD.
    unsafe {
        let above = vcgeq_f32(a, vdupq_n_f32(-2147483648.0));
        let below = vcltq_f32(a, vdupq_n_f32(2147483648.0));
        vbslq_s32(vandq_u32(above, below), vcvtnq_s32_f32(a), vdupq_n_s32(i32::MIN))
    }
}

/// Four half floats to f32, exactly.
#[inline(always)]
pub(crate) unsafe fn f32_of_f16(h: uint16x4_t) -> float32x4_t {
    let v: float32x4_t;
    // SAFETY: the caller has Advanced SIMD; the instruction reads and writes registers alone.
    unsafe {
        asm!("fcvtl {v:v}.4s, {h:v}.4h", v = lateout(vreg) v, h = in(vreg) h,
            options(pure, nomem, nostack, preserves_flags));
    }
    v
}

/// Four f32 to half floats, rounded to nearest even.
#[inline(always)]
unsafe fn f16_of_f32(v: float32x4_t) -> uint16x4_t {
    let h: uint16x4_t;
    // SAFETY: as above.
    unsafe {
        asm!("fcvtn {h:v}.4h, {v:v}.4s", h = lateout(vreg) h, v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    h
}

/// Asks for the cache line at `at`, which need not be readable.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    // SAFETY: a prefetch never faults and changes nothing.
    unsafe {
        asm!("prfm pldl1keep, [{at}]", at = in(reg) at,
            options(readonly, nostack, preserves_flags));
    }
}

impl Simd for Neon {
    type F32 = F;
    type I32 = I;
    type Mask = M;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        // SAFETY: `self` proves Advanced SIMD; so it does in all methods below.
        F([unsafe { vdupq_n_f32(x) }; 4])
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> F {
        let x = &x[..LANES];
        // SAFETY: as above, and 16 values are there.
        unsafe { self.load_ptr(x.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> F {
        let mut all = [0.0; LANES];
        all[..x.len()].copy_from_slice(x);
        self.load(&all)
    }
    #[inline(always)]
    unsafe fn load_ptr(self, x: *const f32) -> F {
        // SAFETY: the caller's.
        unsafe { F([vld1q_f32(x), vld1q_f32(x.add(4)), vld1q_f32(x.add(8)), vld1q_f32(x.add(12))]) }
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32]) {
        let to = &mut to[..LANES];
        // SAFETY: as above, and there is room for 16 values.
        unsafe { self.store_ptr(v, to.as_mut_ptr()) }
    }
    #[inline(always)]
    fn store_partial(self, v: F, to: &mut [f32]) {
        let mut all = [0.0; LANES];
        self.store(v, &mut all);
        to.copy_from_slice(&all[..to.len()]);
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: F, to: *mut f32) {
        for (i, v) in v.0.into_iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { vst1q_f32(to.add(4 * i), v) }
        }
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each!(F, vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        each!(F, vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each!(F, vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        each!(F, vdivq_f32, a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        // SAFETY: as above.
        F(std::array::from_fn(|i| unsafe { vfmaq_f32(c.0[i], a.0[i], b.0[i]) }))
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        each!(F, vsqrtq_f32, a)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        each!(F, max4, a, b)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        each!(F, min4, a, b)
    }
    #[inline(always)]
    fn lt(self, a: F, b: F) -> M {
        each!(M, vcltq_f32, a, b)
    }
    #[inline(always)]
    fn select(self, m: M, a: F, b: F) -> F {
        // SAFETY: as above.
        F(std::array::from_fn(|i| unsafe { vbslq_f32(m.0[i], a.0[i], b.0[i]) }))
    }
    #[inline(always)]
    fn first_lanes(self, n: usize) -> M {
        let n = n.min(LANES) as u32;
        M(std::array::from_fn(|i| {
            let first = 4 * i as u32;
            let lanes = [first, first + 1, first + 2, first + 3];
            // SAFETY: as above, and four lanes are read.
            unsafe { vcltq_u32(vld1q_u32(lanes.as_ptr()), vdupq_n_u32(n)) }
        }))
    }
    #[inline(always)]
    fn to_bits(self, a: F) -> I {
        each!(I, vreinterpretq_s32_f32, a)
    }
    #[inline(always)]
    fn bits_to_f32(self, a: I) -> F {
        each!(F, vreinterpretq_f32_s32, a)
    }
    #[inline(always)]
    fn i32_splat(self, x: i32) -> I {
        // SAFETY: as above.
        I([unsafe { vdupq_n_s32(x) }; 4])
    }
    #[inline(always)]
    fn i32_add(self, a: I, b: I) -> I {
        each!(I, vaddq_s32, a, b)
    }
    #[inline(always)]
    fn i32_sub(self, a: I, b: I) -> I {
        each!(I, vsubq_s32, a, b)
    }
    #[inline(always)]
    fn i32_and(self, a: I, b: I) -> I {
        each!(I, vandq_s32, a, b)
    }
    #[inline(always)]
    fn i32_or(self, a: I, b: I) -> I {
        each!(I, vorrq_s32, a, b)
    }
    #[inline(always)]
    fn i32_max(self, a: I, b: I) -> I {
        each!(I, vmaxq_s32, a, b)
    }
    #[inline(always)]
    fn i32_shl<const N: i32>(self, a: I) -> I {
        each!(I, |a| vshlq_s32(a, vdupq_n_s32(N)), a)
    }
    #[inline(always)]
    fn i32_sra<const N: i32>(self, a: I) -> I {
        // A shift to the left by less than nothing.
        each!(I, |a| vshlq_s32(a, vdupq_n_s32(-N)), a)
    }
    #[inline(always)]
    fn i32_to_f32(self, a: I) -> F {
        each!(F, vcvtq_f32_s32, a)
    }
    #[inline(always)]
    fn round_i32(self, a: F) -> I {
        each!(I, round4, a)
    }
    #[inline(always)]
    fn i32_sum(self, a: I) -> i32 {
        let [a, b, c, d] = a.0;
        // SAFETY: as above.
        unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d))) }
    }
    #[inline(always)]
    fn i32_max_lane(self, a: I) -> i32 {
        let [a, b, c, d] = a.0;
        // SAFETY: as above.
        unsafe { vmaxvq_s32(vmaxq_s32(vmaxq_s32(a, b), vmaxq_s32(c, d))) }
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, x: *const i8) -> I {
        // SAFETY: the caller's.
        unsafe {
            let bytes = vld1q_s8(x);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            I([
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ])
        }
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, v: I, to: *mut i8) {
        let [a, b, c, d] = v.0;
        // SAFETY: the caller's.
        unsafe {
            let low = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
            let high = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
            vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, x: *const u16) -> F {
        // SAFETY: the caller's.
        F(std::array::from_fn(|i| unsafe { f32_of_f16(vld1_u16(x.add(4 * i))) }))
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, v: F, to: *mut u16) {
        for (i, v) in v.0.into_iter().enumerate() {
            // SAFETY: the caller's.
            unsafe { vst1_u16(to.add(4 * i), f16_of_f32(v)) }
        }
    }
    #[inline(always)]
    fn sum(self, a: F) -> f32 {
        let [a, b, c, d] = a.0;
        // SAFETY: as above.
        unsafe {
            let v = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            vpadds_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
        }
    }
    #[inline(always)]
    fn max_lane(self, a: F) -> f32 {
        let [a, b, c, d] = a.0;
        // SAFETY: as above.
        let [x, y] = unsafe {
            let v = max4(max4(a, c), max4(b, d));
            let v = max4(v, vextq_f32::<2>(v, v));
            [vgetq_lane_f32::<0>(v), vgetq_lane_f32::<1>(v)]
        };
        if x > y { x } else { y }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        prefetch(at);
    }
}
