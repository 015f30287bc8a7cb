//! The few functions that distributions need, with the same bits on every machine: all through
//! `libm`, whose code is the same everywhere, where the standard library calls the platform's.

/// The natural logarithm.
#[inline]
pub(crate) fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// `e^x`.
#[inline]
pub(crate) fn exp(x: f64) -> f64 {
    libm::exp(x)
}

/// `x^y`.
#[inline]
pub(crate) fn pow(x: f64, y: f64) -> f64 {
    libm::pow(x, y)
}

/// The logarithm of the gamma function, for positive `x`.
pub(crate) fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// `numerator[0] + numerator[1] x + ..` over the same of `denominator`.
#[inline]
fn rational(numerator: &[f64; 8], denominator: &[f64; 8], x: f64) -> f64 {
    // Estrin's scheme: three products deep, where Horner's has seven one after the other.
    let (x2, x4) = (x * x, (x * x) * (x * x));
    let polynomial = |c: &[f64; 8]| {
        let pair = |i: usize| c[i] + c[i + 1] * x;
        (pair(0) + pair(2) * x2) + (pair(4) + pair(6) * x2) * x4
    };
    polynomial(numerator) / polynomial(denominator)
}

/// The quantile of the standard normal distribution at `p` in (0, 1): Wichura's algorithm AS 241
/// (Applied Statistics 37, 1988), relative error about 1e-16. One uniform gives one normal, and the
/// larger the one the larger the other.
#[inline]
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        return q * rational(&A, &B, 0.180_625 - q * q);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let x = if r <= 5.0 { rational(&C, &D, r - 1.6) } else { rational(&E, &F, r - 5.0) };
    if q < 0.0 { -x } else { x }
}

const A: [f64; 8] = [
    3.387_132_872_796_366_5,
    133.141_667_891_784_38,
    1_971.590_950_306_551_3,
    13_731.693_765_509_46,
    45_921.953_931_549_87,
    67_265.770_927_008_7,
    33_430.575_583_588_13,
    2_509.080_928_730_122_7,
];
const B: [f64; 8] = [
    1.0,
    42.313_330_701_600_91,
    687.187_007_492_057_9,
    5_394.196_021_424_751,
    21_213.794_301_586_597,
    39_307.895_800_092_71,
    28_729.085_735_721_943,
    5_226.495_278_852_545,
];
const C: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    0.241_780_725_177_450_6,
    0.022_723_844_989_269_184,
    7.745_450_142_783_414e-4,
];
const D: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    0.689_767_334_985_1,
    0.148_103_976_427_480_08,
    0.015_198_666_563_616_457,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const E: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    0.296_560_571_828_504_87,
    0.026_532_189_526_576_124,
    0.001_242_660_947_388_078_4,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const F: [f64; 8] = [
    1.0,
    0.599_832_206_555_888,
    0.136_929_880_922_735_8,
    0.014_875_361_290_850_615,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_quantile_inverts_the_distribution() {
        for i in 1..4000 {
            let x = (f64::from(i) - 2000.0) * 0.004;
            // Phi by the complementary error function, which knows nothing of the rational forms.
            let p = 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
            let back = normal_quantile(p);
            // Above zero p is near 1 and its own rounding moves the quantile.
            let density = libm::exp(-x * x / 2.0) / 2.506_628_274_631_000_5;
            let slack = 1e-13 * (1.0 + x.abs()) + 4.0 * f64::EPSILON * p / density;
            assert!((back - x).abs() <= slack, "{x}: {back}");
        }
        assert_eq!(normal_quantile(0.5), 0.0);
        assert!(normal_quantile(f64::MIN_POSITIVE).is_finite());
        assert!(normal_quantile(1.0 - f64::EPSILON / 2.0).is_finite());
    }
}
