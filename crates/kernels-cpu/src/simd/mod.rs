//! Vectors of 16 f32 lanes, the same on every instruction set.
//!
//! A kernel is written once, generic over [`Simd`], as an `#[inline(always)]` function; the
//! `simd_dispatch!` macro makes the public function that picks an instruction set. A value of a
//! type that implements [`Simd`] is the proof that its instructions exist, as [`CpuFeatures`] is.
//!
//! Every operation is defined lane by lane and rounds as IEEE 754 says (to nearest even, subnormals
//! kept), so the same sequence of operations gives the same bits everywhere. Operations that
//! differ between CPUs are defined here: see [`Simd::max`], [`Simd::round_i32`], [`Simd::sum`].
//! Only the payload and sign of NaNs are left open.
//!
//! [`CpuFeatures`]: crate::CpuFeatures

pub mod math;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;
pub use scalar::{f16_from_f32, f16_to_f32};

/// Lanes of a vector.
pub const LANES: usize = 16;

/// Operations on vectors of 16 lanes. `self` is the proof that the instructions exist.
#[allow(clippy::missing_safety_doc, reason = "each unsafe method says it in its own words")]
pub trait Simd: Copy {
    /// Sixteen f32 lanes.
    type F32: Copy;
    /// Sixteen i32 lanes.
    type I32: Copy;
    /// Sixteen lanes of true or false.
    type Mask: Copy;

    /// Whether there are 32 vector registers of a whole 16-lane vector each: kernels choose their
    /// tiles by it. It never changes a result.
    const WIDE: bool;

    /// Whether kernels should hold tiles of several rows in registers. It never changes a result.
    const TILED: bool = true;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F32;
    /// The first 16 values. Panics where there are fewer.
    fn load(self, x: &[f32]) -> Self::F32;
    /// Up to 16 values; the other lanes are +0.
    fn load_partial(self, x: &[f32]) -> Self::F32;
    /// Sixteen values at `x`. Safety: they can be read.
    unsafe fn load_ptr(self, x: *const f32) -> Self::F32;
    /// Writes 16 values. Panics where there is less room.
    fn store(self, v: Self::F32, to: &mut [f32]);
    /// Writes the first `to.len()` lanes, at most 16.
    fn store_partial(self, v: Self::F32, to: &mut [f32]);
    /// Writes 16 values at `to`. Safety: they can be written.
    unsafe fn store_ptr(self, v: Self::F32, to: *mut f32);

    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// The square root, correctly rounded.
    fn sqrt(self, a: Self::F32) -> Self::F32;
    /// `if a > b { a } else { b }`: `b` where either is NaN or both are zero.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a < b { a } else { b }`: `b` where either is NaN or both are zero.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Whether `a < b`; false where either is NaN.
    fn lt(self, a: Self::F32, b: Self::F32) -> Self::Mask;
    /// `a` where the mask is true, else `b`.
    fn select(self, m: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;
    /// True in lanes `0..n`.
    fn first_lanes(self, n: usize) -> Self::Mask;

    /// The lanes' bits.
    fn to_bits(self, a: Self::F32) -> Self::I32;
    /// Lanes with these bits.
    fn bits_to_f32(self, a: Self::I32) -> Self::F32;
    /// All lanes `x`.
    fn i32_splat(self, x: i32) -> Self::I32;
    /// `a + b`, wrapping.
    fn i32_add(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a - b`, wrapping.
    fn i32_sub(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise and.
    fn i32_and(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Bitwise or.
    fn i32_or(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// The larger, as signed numbers.
    fn i32_max(self, a: Self::I32, b: Self::I32) -> Self::I32;
    /// Shifted left by `N` bits.
    fn i32_shl<const N: i32>(self, a: Self::I32) -> Self::I32;
    /// Shifted right by `N` bits, the sign kept.
    fn i32_sra<const N: i32>(self, a: Self::I32) -> Self::I32;
    /// The nearest f32.
    fn i32_to_f32(self, a: Self::I32) -> Self::F32;
    /// The nearest integer, ties to even. Lanes that are NaN or do not fit in an i32 become
    /// `i32::MIN`.
    fn round_i32(self, a: Self::F32) -> Self::I32;
    /// The sum of all lanes, wrapping.
    fn i32_sum(self, a: Self::I32) -> i32;
    /// The largest lane.
    fn i32_max_lane(self, a: Self::I32) -> i32;
    /// Sixteen signed bytes at `x`. Safety: they can be read.
    unsafe fn load_i8_ptr(self, x: *const i8) -> Self::I32;
    /// Writes the lanes' low bytes at `to`. Safety: 16 bytes can be written. Every lane must lie
    /// in -128..=127, or the bytes are unspecified.
    unsafe fn store_i8_ptr(self, v: Self::I32, to: *mut i8);

    /// Writes the low bytes of `a` and then of `b`, and returns the sum of each. Safety: 32 bytes can
    /// be written at `to`. Every lane must lie in -128..=127.
    #[inline(always)]
    unsafe fn store_i8_sums(self, a: Self::I32, b: Self::I32, to: *mut i8) -> [i32; 2] {
        // SAFETY: the caller's.
        unsafe {
            self.store_i8_ptr(a, to);
            self.store_i8_ptr(b, to.add(LANES));
        }
        [self.i32_sum(a), self.i32_sum(b)]
    }

    /// Sixteen half floats at `x`, converted exactly. Safety: they can be read.
    unsafe fn load_f16_ptr(self, x: *const u16) -> Self::F32;
    /// Writes half floats, rounded to nearest even. Safety: 16 of them can be written at `to`.
    unsafe fn store_f16_ptr(self, v: Self::F32, to: *mut u16);

    /// The sum of the lanes by a fixed tree: lane `i` plus `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, a: Self::F32) -> f32;
    /// The largest lane by the same tree, with [`Simd::max`] of lane `i` and the one above it.
    fn max_lane(self, a: Self::F32) -> f32;

    /// Asks for the cache line at `at`, which need not be readable.
    fn prefetch(self, at: *const u8);

    /// `p`, but the compiler does not know: what is read through it is read anew, which saves
    /// registers where a kernel wants a value twice.
    #[inline(always)]
    fn opaque(self, p: *const f32) -> *const f32 {
        p
    }

    /// Lane 0.
    #[inline(always)]
    fn first_lane(self, a: Self::F32) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(a, &mut lanes);
        lanes[0]
    }

    /// `-a`.
    #[inline(always)]
    fn neg(self, a: Self::F32) -> Self::F32 {
        let sign = self.i32_splat(i32::MIN);
        // Adding the sign bit flips it: the carry falls off.
        self.bits_to_f32(self.i32_add(self.to_bits(a), sign))
    }

    /// The absolute value.
    #[inline(always)]
    fn abs(self, a: Self::F32) -> Self::F32 {
        self.bits_to_f32(self.i32_and(self.to_bits(a), self.i32_splat(i32::MAX)))
    }

    /// `|magnitude|` with the sign of `sign`, where `magnitude` is not negative.
    #[inline(always)]
    fn with_sign(self, magnitude: Self::F32, sign: Self::F32) -> Self::F32 {
        let s = self.i32_and(self.to_bits(sign), self.i32_splat(i32::MIN));
        self.bits_to_f32(self.i32_or(self.to_bits(magnitude), s))
    }
}

/// Makes a public function that runs a generic kernel on the instruction set it is given.
///
/// `pub fn name(a: A, b: B) -> R = kernel;` makes `fn name(cpu: CpuFeatures, a: A, b: B) -> R`,
/// which calls `kernel(simd, a, b)` compiled for `cpu`'s instruction set. Append `unsafe` before
/// `fn` for a kernel that is unsafe to call.
macro_rules! simd_dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
     = $kernel:path;) => {
        $(#[$meta])*
        $vis fn $name(cpu: $crate::CpuFeatures, $($arg: $ty),*) $(-> $ret)? {
            $crate::simd::simd_dispatch!(@body cpu, $kernel, ($($arg: $ty),*) $(-> $ret)?)
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?)
     $(-> $ret:ty)? = $kernel:path;) => {
        $(#[$meta])*
        $vis unsafe fn $name(cpu: $crate::CpuFeatures, $($arg: $ty),*) $(-> $ret)? {
            $crate::simd::simd_dispatch!(@body cpu, $kernel, ($($arg: $ty),*) $(-> $ret)?)
        }
    };
    (@body $cpu:ident, $kernel:path, ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(unused_unsafe, clippy::too_many_arguments, reason = "made for any kernel")]
        unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: this function's target features are the token's; the kernel's own contract
            // is the caller's.
            unsafe { $kernel($crate::simd::Avx2::new_unchecked(), $($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(
            enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
        )]
        #[allow(unused_unsafe, clippy::too_many_arguments, reason = "made for any kernel")]
        unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: as above.
            unsafe { $kernel($crate::simd::Avx512::new_unchecked(), $($arg),*) }
        }
        #[cfg(target_arch = "aarch64")]
        #[target_feature(enable = "neon")]
        #[allow(unused_unsafe, clippy::too_many_arguments, reason = "made for any kernel")]
        unsafe fn neon($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: as above.
            unsafe { $kernel($crate::simd::Neon::new_unchecked(), $($arg),*) }
        }
        #[allow(unused_unsafe, clippy::too_many_arguments, reason = "made for any kernel")]
        #[inline(never)]
        unsafe fn scalar($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the kernel's own contract is the caller's.
            unsafe { $kernel($crate::simd::Scalar, $($arg),*) }
        }
        match $cpu.isa() {
            // SAFETY: a `CpuFeatures` exists only where its instruction set was detected; the
            // kernel's own contract is the caller's.
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::Isa::Avx512 => unsafe { avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::Isa::Neon => unsafe { neon($($arg),*) },
            // SAFETY: as above.
            _ => unsafe { scalar($($arg),*) },
        }
    }};
}
pub(crate) use simd_dispatch;

#[cfg(test)]
mod tests;
