//! Conversions between f32 and the narrow floats that blocks store.
//!
//! All conversions to f32 are exact. Conversions from f32 round to nearest, ties to even, and
//! overflow to infinity.

use half::{bf16, f16};

/// The value of an IEEE half given by its bits.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// The bits of the IEEE half nearest to `value`.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}

/// The value of a bfloat16 given by its bits.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bits of the bfloat16 nearest to `value`.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    bf16::from_f32(value).to_bits()
}

/// Half the value of an E8M0 exponent byte: `2^(e - 128)`, exact for every byte (0 and 1 give
/// subnormals).
///
/// Half, because the codebook of MXFP4 holds doubled values, which are integers. The byte 255,
/// which the microscaling standard calls "not a number", is `2^127` here, as in ggml.
#[inline]
pub fn e8m0_half_to_f32(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e8m0_is_a_power_of_two() {
        for e in 0..=255u8 {
            let want = 2f64.powi(i32::from(e) - 128);
            assert_eq!(f64::from(e8m0_half_to_f32(e)), want, "exponent {e}");
        }
    }

    /// The value of a narrow float from its fields, in f64, where it is exact.
    fn fields_to_f64(bits: u16, mantissa_bits: u32, bias: i32) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let mantissa = f64::from(u32::from(bits) & ((1 << mantissa_bits) - 1));
        let exponent = i32::from((bits & 0x7fff) >> mantissa_bits);
        let unit = 2f64.powi(exponent.max(1) - bias - mantissa_bits as i32);
        let hidden = if exponent == 0 { 0.0 } else { f64::from(1u32 << mantissa_bits) };
        sign * (mantissa + hidden) * unit
    }

    #[test]
    fn every_finite_half_and_bfloat16_is_exact_and_round_trips() {
        for bits in 0..=u16::MAX {
            let half = f16_to_f32(bits);
            if half.is_finite() {
                let want = fields_to_f64(bits, 10, 15);
                assert_eq!(f64::from(half).to_bits(), want.to_bits(), "f16 {bits:#06x}");
            }
            if !half.is_nan() {
                assert_eq!(f32_to_f16(half), bits);
            }
            let brain = bf16_to_f32(bits);
            if brain.is_finite() {
                let want = fields_to_f64(bits, 7, 127);
                assert_eq!(f64::from(brain).to_bits(), want.to_bits(), "bf16 {bits:#06x}");
            }
            if !brain.is_nan() {
                assert_eq!(f32_to_bf16(brain), bits);
            }
        }
    }

    #[test]
    fn halves_round_to_nearest_even() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            // Exact: neighbouring halves differ by at least 2^-24 and have 11 bits.
            let middle = (low + high) / 2.0;
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(f32_to_f16(middle), even);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
        }
        assert_eq!(f32_to_f16(65519.996), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00, "halfway to the next power overflows");
    }
}
