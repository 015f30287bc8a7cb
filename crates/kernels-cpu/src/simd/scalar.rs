//! The reference: arrays of 16 lanes in plain Rust, and conversions of half floats.

use super::{LANES, Simd};

/// Plain Rust, on any CPU.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

/// The f32 of a half float: exact.
#[inline]
pub fn f16_to_f32(h: u16) -> f32 {
    let sign = u32::from(h & 0x8000) << 16;
    let exponent = u32::from(h >> 10 & 0x1f);
    let mantissa = u32::from(h & 0x3ff);
    let magnitude = match exponent {
        // Subnormal: the mantissa counts units of 2^-24.
        0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        // Infinity, or NaN made quiet as the hardware does.
        31 if mantissa != 0 => 0x7fc0_0000 | mantissa << 13,
        31 => 0x7f80_0000,
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest half float, ties to even; too large becomes infinity.
#[inline]
pub fn f16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00 | (magnitude >> 13 & 0x3ff)
    } else if magnitude >= 0x4780_0000 {
        // 65536 and above.
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Normal: drop 13 bits; the carry of rounding may reach the exponent, and infinity.
        let odd = magnitude >> 13 & 1;
        (magnitude - (112 << 23) + 0xfff + odd) >> 13
    } else {
        // Subnormal: adding 0.5 aligns the mantissa to units of 2^-24 and rounds it.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    };
    sign | half as u16
}

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn map2<A: Copy, B: Copy, R>(a: [A; LANES], b: [B; LANES], f: impl Fn(A, B) -> R) -> [R; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree<T: Copy>(a: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut a = a;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
    }
    a[0]
}

impl Simd for Scalar {
    type F32 = F;
    type I32 = I;
    type Mask = [bool; LANES];
    const WIDE: bool = false;
    const TILED: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32]) -> F {
        std::array::from_fn(|i| x[i])
    }
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> F {
        assert!(x.len() <= LANES);
        std::array::from_fn(|i| x.get(i).copied().unwrap_or(0.0))
    }
    #[inline(always)]
    unsafe fn load_ptr(self, x: *const f32) -> F {
        // SAFETY: the caller's.
        unsafe { x.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32]) {
        to[..LANES].copy_from_slice(&v);
    }
    #[inline(always)]
    fn store_partial(self, v: F, to: &mut [f32]) {
        to.copy_from_slice(&v[..to.len()]);
    }
    #[inline(always)]
    unsafe fn store_ptr(self, v: F, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { to.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn lt(self, a: F, b: F) -> [bool; LANES] {
        map2(a, b, |a, b| a < b)
    }
    #[inline(always)]
    fn select(self, m: [bool; LANES], a: F, b: F) -> F {
        std::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn first_lanes(self, n: usize) -> [bool; LANES] {
        std::array::from_fn(|i| i < n)
    }
    #[inline(always)]
    fn to_bits(self, a: F) -> I {
        a.map(|x| x.to_bits() as i32)
    }
    #[inline(always)]
    fn bits_to_f32(self, a: I) -> F {
        a.map(|x| f32::from_bits(x as u32))
    }
    #[inline(always)]
    fn i32_splat(self, x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    fn i32_add(self, a: I, b: I) -> I {
        map2(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn i32_sub(self, a: I, b: I) -> I {
        map2(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn i32_and(self, a: I, b: I) -> I {
        map2(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn i32_or(self, a: I, b: I) -> I {
        map2(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn i32_max(self, a: I, b: I) -> I {
        map2(a, b, i32::max)
    }
    #[inline(always)]
    fn i32_shl<const N: i32>(self, a: I) -> I {
        a.map(|x| x << N)
    }
    #[inline(always)]
    fn i32_sra<const N: i32>(self, a: I) -> I {
        a.map(|x| x >> N)
    }
    #[inline(always)]
    fn i32_to_f32(self, a: I) -> F {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    fn round_i32(self, a: F) -> I {
        a.map(|x| {
            let r = x.round_ties_even();
            if (-2147483648.0..2147483648.0).contains(&r) { r as i32 } else { i32::MIN }
        })
    }
    #[inline(always)]
    fn i32_sum(self, a: I) -> i32 {
        tree(a, i32::wrapping_add)
    }
    #[inline(always)]
    fn i32_max_lane(self, a: I) -> i32 {
        tree(a, i32::max)
    }
    #[inline(always)]
    unsafe fn load_i8_ptr(self, x: *const i8) -> I {
        // SAFETY: the caller's.
        unsafe { x.cast::<[i8; LANES]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn store_i8_ptr(self, v: I, to: *mut i8) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn load_f16_ptr(self, x: *const u16) -> F {
        // SAFETY: the caller's.
        unsafe { x.cast::<[u16; LANES]>().read_unaligned() }.map(f16_to_f32)
    }
    #[inline(always)]
    unsafe fn store_f16_ptr(self, v: F, to: *mut u16) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(v.map(f16_from_f32)) }
    }
    #[inline(always)]
    fn sum(self, a: F) -> f32 {
        tree(a, |a, b| a + b)
    }
    #[inline(always)]
    fn max_lane(self, a: F) -> f32 {
        tree(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
}
