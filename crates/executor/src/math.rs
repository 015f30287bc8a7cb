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

/// The sum over `values` of `e^((value - max) * scale)`, where no value is above `max`. The order
/// of summation is fixed: eight lanes by index, then a tree.
pub(crate) fn sum_exp(values: &[f32], max: f32, scale: f64) -> f64 {
    const LANES: usize = 8;
    let max = f64::from(max);
    let mut sums = [0.0f64; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += exp_nonpositive((f64::from(value) - max) * scale);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += exp_nonpositive((f64::from(value) - max) * scale);
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sums_take_every_length() {
        for n in 0..40usize {
            let values: Vec<f32> = (0..n).map(|i| (i as f32).sin() * 9.0).collect();
            let max = values.iter().copied().fold(f32::MIN, f32::max);
            let plain: f64 =
                values.iter().map(|&v| libm::exp((f64::from(v) - f64::from(max)) * 0.7)).sum();
            let ours = sum_exp(&values, max, 0.7);
            assert!((ours - plain).abs() <= 1e-14 * plain, "{n}: {ours} for {plain}");
        }
    }
}
