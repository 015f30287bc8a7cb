//! The few functions that sampling needs, with the same bits on every machine: the standard
//! library's `exp` and `ln` are the platform's, and platforms differ in the last place.

use std::f64::consts::LOG2_E;

/// ln 2 in two parts; the first has 21 trailing zero bits, so `k * LN2_HI` is exact.
const LN2_HI: f64 = 6.931_471_803_691_238e-1;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
/// 1.5 * 2^52: adding and subtracting it rounds to the nearest integer, ties to even.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Below this the result is taken as zero (it would be near the subnormals).
const LOWEST: f64 = -708.0;

/// `1/n!` for n = 13 down to 2.
const FACTORIALS: [f64; 12] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
];

/// `e^x` for `x <= 0`, within 2 units in the last place; zero below -708. Branch-free and without
/// fused operations, so that compilers vectorize it and every machine gives the same bits.
#[inline]
pub(crate) fn exp_nonpositive(x: f64) -> f64 {
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = clamped - k * LN2_HI - k * LN2_LO;
    let mut tail = FACTORIALS[0];
    for factor in &FACTORIALS[1..] {
        tail = tail * r + factor;
    }
    let value = 1.0 + (r + r * r * tail);
    // The low bits of `shifted` hold k; -1022 <= k <= 0, so 2^k is a normal number.
    let power = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    if x > LOWEST { value * power } else { 0.0 }
}

/// The natural logarithm.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// ln 2 in two parts for f32; the first has so few bits that `n * LN2_HI_F32` is exact for |n| < 128.
const LN2_HI_F32: f32 = 0.693_145_75;
const LN2_LO_F32: f32 = 1.428_606_8e-6;
/// 1.5 * 2^23, and the exponent's bias: rounds to the nearest integer, and leaves in its low bits
/// what the exponent of 2^k holds.
const ROUND_BIASED: f32 = 12_582_912.0 + 127.0;

/// `e^x` for `x <= 0` in f32, within 2.5 units in the last place; zero below -87.6. As
/// [`exp_nonpositive`], branch-free and without fused operations.
#[inline]
fn exp_nonpositive_f32(x: f32) -> f32 {
    // 2^-127 would be subnormal: its biased exponent is zero, and so is the product.
    let x = if x > -88.0 { x } else { -88.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND_BIASED;
    let k = shifted - ROUND_BIASED;
    let r = x - k * LN2_HI_F32 - k * LN2_LO_F32;
    // The minimax polynomial of (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2.
    let mut tail = 0.001_381_446_6f32;
    for factor in [0.008_368_781, 0.041_668_393, 0.166_665_2, 0.499_999_94] {
        tail = tail * r + factor;
    }
    let value = 1.0 + (r + r * r * tail);
    value * f32::from_bits(shifted.to_bits() << 23)
}

/// The sum over `values` of `e^((value - max) * scale)`, where no value is above `max`.
///
/// It runs over the whole vocabulary for every token, so the terms are f32. The three roundings of
/// an exponent `x` move its term by `3 |x| 2^-24` of itself, and the mean of `|x|` under the weights
/// is at most `ln n`; with the exponential and the short sums the relative error is below 2^-18 for
/// any vocabulary, and measured below 2^-20. So a log-probability is off by less than 4e-6. The order
/// of summation is fixed: 16 lanes by index, four values of a lane in f32, those sums in f64, then a
/// tree.
pub(crate) fn sum_exp(values: &[f32], max: f32, scale: f64) -> f64 {
    const LANES: usize = 16;
    const BLOCK: usize = 4 * LANES;
    let scale = scale as f32;
    let mut sums = [0.0f64; LANES];
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let mut add = |block: &[f32; BLOCK]| {
        let mut short = [0.0f32; LANES];
        for row in block.as_chunks::<LANES>().0 {
            for (sum, &value) in short.iter_mut().zip(row) {
                *sum += exp_nonpositive_f32((value - max) * scale);
            }
        }
        for (sum, short) in sums.iter_mut().zip(short) {
            *sum += f64::from(short);
        }
    };
    for block in blocks {
        add(block);
    }
    // Minus infinity adds nothing.
    let mut last = [f32::NEG_INFINITY; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut x = 0.0f64;
        while x > -750.0 {
            let (ours, reference) = (exp_nonpositive(x), libm::exp(x));
            let error = (ours - reference).abs();
            assert!(
                error <= 2.0 * f64::EPSILON * reference || (x <= LOWEST && ours == 0.0),
                "e^{x}: {ours} for {reference}"
            );
            x -= 0.003_711;
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn exp_in_f32_is_within_its_bound() {
        // Every 64th float from -0 to -87.
        let mut worst = 0.0f64;
        for bits in ((-0.0f32).to_bits()..=(-87.0f32).to_bits()).step_by(64) {
            let x = f32::from_bits(bits);
            let reference = libm::exp(f64::from(x));
            let unit = f64::from(f32::EPSILON) * libm::exp2(libm::floor(libm::log2(reference)));
            worst = worst.max((f64::from(exp_nonpositive_f32(x)) - reference).abs() / unit);
        }
        assert!(worst <= 2.5, "{worst} units in the last place");
        assert_eq!(exp_nonpositive_f32(0.0), 1.0);
        assert_eq!(exp_nonpositive_f32(-0.0), 1.0);
        for x in [-87.7, -88.0, -89.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_nonpositive_f32(x), 0.0, "{x}");
        }
    }

    /// The same sum in f64, by the platform-free library.
    fn plain(values: &[f32], max: f32, scale: f64) -> f64 {
        values.iter().map(|&v| libm::exp((f64::from(v) - f64::from(max)) * scale)).sum()
    }

    #[test]
    fn sums_are_within_their_bound_at_every_length_and_spread() {
        let bound = 2.0f64.powi(-20);
        let mut random = SeedTree::root(3).stream();
        for n in (0..200).chain([1000, 49_152, 262_144]) {
            for spread in [0.0f32, 0.5, 9.0, 60.0, 1000.0] {
                let values: Vec<f32> =
                    (0..n).map(|_| (random.next_unit() as f32 - 0.5) * spread).collect();
                let max = values.iter().copied().fold(f32::MIN, f32::max);
                for scale in [1.0, 0.7, 3.0] {
                    let (ours, plain) = (sum_exp(&values, max, scale), plain(&values, max, scale));
                    let error = (ours - plain).abs();
                    assert!(error <= bound * plain, "{n}, {spread}, {scale}: {ours} for {plain}");
                }
            }
        }
    }

    #[test]
    fn banned_tokens_add_nothing() {
        let mut values = vec![f32::NEG_INFINITY; 100];
        values[70] = 3.0;
        values[71] = 3.0;
        assert_eq!(sum_exp(&values, 3.0, 1.0), 2.0);
    }

    #[test]
    fn sums_have_the_same_bits_on_every_machine() {
        let mut random = SeedTree::root(11).stream();
        let values: Vec<f32> = (0..1000).map(|_| random.next_unit() as f32 * -20.0).collect();
        let bits = sum_exp(&values, 0.0, 0.8).to_bits();
        assert_eq!(bits, 0x404e_91cc_4cf9_94c0, "{bits:#x}");
    }
}
