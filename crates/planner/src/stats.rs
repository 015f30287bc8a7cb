//! Means with confidence intervals.

use serde::Serialize;

/// A mean over independent replications, with half the width of its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval's width; infinite with fewer than two replications.
    #[serde(serialize_with = "finite")]
    pub half_width: f64,
}

/// JSON has no infinity.
fn finite<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() { serializer.serialize_some(value) } else { serializer.serialize_none() }
}

impl Estimate {
    /// The mean of these values, by Student's t distribution: exact where they are normal, and
    /// usual for means of many requests.
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        if values.is_empty() {
            return Self { mean: 0.0, half_width: f64::INFINITY };
        }
        let mean = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self { mean, half_width: f64::INFINITY };
        }
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
        Self { mean, half_width: t_975(values.len() - 1) * (variance / n).sqrt() }
    }

    /// The interval's lower end.
    pub fn low(&self) -> f64 {
        self.mean - self.half_width
    }

    /// The interval's upper end.
    pub fn high(&self) -> f64 {
        self.mean + self.half_width
    }
}

/// The 97.5% quantile of Student's t distribution: found by halving on its distribution function,
/// which is the regularized incomplete beta function (Abramowitz and Stegun, 26.7.1).
pub fn t_975(degrees: usize) -> f64 {
    let n = degrees.max(1) as f64;
    let (mut low, mut high) = (0.0, 20.0);
    for _ in 0..80 {
        let t = 0.5 * (low + high);
        // P(|T| > t) = I(n / (n + t^2); n / 2, 1 / 2)
        if incomplete_beta(n / (n + t * t), n / 2.0, 0.5) > 0.05 { low = t } else { high = t }
    }
    0.5 * (low + high)
}

/// The regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun,
/// 26.5.8) in the modified form of Lentz.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let log = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b)
        + a * libm::log(x)
        + b * libm::log(1.0 - x);
    let tiny = |v: f64| if v.abs() < 1e-300 { 1e-300 } else { v };
    let (mut c, mut d) = (1.0, 1.0 / tiny(1.0 - (a + b) * x / (a + 1.0)));
    let mut h = d;
    for m in 1..300 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for term in [even, odd] {
            d = 1.0 / tiny(1.0 + term * d);
            c = tiny(1.0 + term / c);
            h *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-14 {
            break;
        }
    }
    libm::exp(log) * h / a
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Abramowitz and Stegun, table 26.10.
        let table = [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)];
        for (degrees, t) in table {
            assert!((t_975(degrees) - t).abs() < 6e-4, "{degrees}: {}", t_975(degrees));
        }
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_mean() {
        let mut dice = SeedTree::root(8).child("normal").stream();
        let mut normal = || (0..12).map(|_| dice.next_unit()).sum::<f64>() - 6.0;
        let held = (0..4000).filter(|_| {
            let values: Vec<f64> = (0..5).map(|_| 3.0 + 2.0 * normal()).collect();
            let e = Estimate::of(&values);
            e.low() <= 3.0 && 3.0 <= e.high()
        });
        let share = held.count() as f64 / 4000.0;
        // Five standard deviations of the share are 0.017.
        assert!((share - 0.95).abs() < 0.017, "{share}");
        assert!(Estimate::of(&[1.0]).half_width.is_infinite());
        let json = serde_json::to_string(&Estimate::of(&[1.0])).unwrap();
        assert_eq!(json, r#"{"mean":1.0,"half_width":null}"#);
    }
}
