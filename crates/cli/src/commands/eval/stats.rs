//! What the measurements have in common: log-probabilities, means and intervals.

use serde::Serialize;

/// The two-sided 95% quantile of the normal distribution.
pub const Z95: f64 = 1.959_963_984_540_054;

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval(pub f64, pub f64);

/// A softmax's normalizer, so that a token's log-probability is its logit less `log_sum`.
#[derive(Debug, Clone, Copy)]
pub struct LogSum {
    /// ln of the sum of e^logit.
    pub log_sum: f64,
}

impl LogSum {
    /// Of one position's logits, summed in f64 in their order.
    pub fn of(logits: &[f32]) -> Self {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
        Self { log_sum: max + sum.ln() }
    }

    /// The natural logarithm of a token's probability.
    pub fn log_probability(self, logit: f32) -> f64 {
        f64::from(logit) - self.log_sum
    }
}

/// KL divergence of `test` from `reference` in nats: what is lost, on average over the reference's
/// own choices, by believing `test`.
pub fn kl_divergence(reference: &[f32], test: &[f32]) -> f64 {
    let (p, q) = (LogSum::of(reference), LogSum::of(test));
    let terms = reference.iter().zip(test).map(|(&a, &b)| {
        let log_p = p.log_probability(a);
        let probability = log_p.exp();
        // 0 ln 0 is 0; a logit of minus infinity would make it NaN.
        if probability == 0.0 { 0.0 } else { probability * (log_p - q.log_probability(b)) }
    });
    // Rounding can make the divergence of near-equal distributions a little less than nothing.
    terms.sum::<f64>().max(0.0)
}

/// The index of the largest value, the first among equals. NaN is never the largest.
pub fn argmax(values: &[f32]) -> usize {
    // Two passes: the first has no index to carry and so runs many lanes at a time.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, rest) = values.as_chunks::<16>();
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane = lane.max(value);
        }
    }
    let best = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    values.iter().position(|&v| v == best).unwrap_or(0)
}

/// The largest value less the second largest; infinite for fewer than two values.
pub fn margin(values: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &value in values {
        if value > first {
            (first, second) = (value, first);
        } else if value > second {
            second = value;
        }
    }
    first - second
}

/// A running mean and variance (Welford's method).
#[derive(Debug, Clone, Copy, Default)]
pub struct Moments {
    /// How many values.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    squares: f64,
}

impl Moments {
    /// Takes one value in.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
    }

    /// The standard error of the mean; `None` for fewer than two values.
    pub fn standard_error(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let n = self.count as f64;
        Some((self.squares / (n - 1.0) / n).sqrt())
    }
}

/// Wilson's score interval at 95% for `hits` of `trials`; everything for no trials.
pub fn wilson(hits: usize, trials: usize) -> Interval {
    if trials == 0 {
        return Interval(0.0, 1.0);
    }
    let (n, p) = (trials as f64, hits as f64 / trials as f64);
    let z2 = Z95 * Z95;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = Z95 / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    Interval((centre - half).max(0.0), (centre + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn log_probabilities_have_closed_forms() {
        let sum = LogSum::of(&[0.0; 8]);
        assert!(close(sum.log_sum, 8.0_f64.ln()));
        assert!(close(sum.log_probability(0.0), -(8.0_f64.ln())));
        // A shift of all logits changes no probability, even where e^logit would overflow.
        let shifted = LogSum::of(&[1000.0, 1001.0]);
        assert!(close(shifted.log_probability(1001.0), -(1.0 + (-1.0_f64).exp()).ln()));
    }

    #[test]
    fn kl_of_two_coins() {
        // ln 3 and 0: probabilities 3/4 and 1/4, against a fair coin.
        let biased = [3.0_f32.ln(), 0.0];
        let want = 0.75 * (0.75_f64 / 0.5).ln() + 0.25 * (0.25_f64 / 0.5).ln();
        assert!((kl_divergence(&biased, &[5.0, 5.0]) - want).abs() < 1e-7);
        assert_eq!(kl_divergence(&biased, &biased), 0.0);
        let impossible = [0.0, f32::NEG_INFINITY];
        assert!(close(kl_divergence(&impossible, &[0.0, 0.0]), 2.0_f64.ln()));
    }

    #[test]
    fn the_first_of_the_largest_wins() {
        let mut values = vec![-1.0f32; 100];
        assert_eq!(argmax(&values), 0);
        values[97] = 3.0;
        values[40] = 3.0;
        values[5] = f32::NAN;
        assert_eq!(argmax(&values), 40);
        values[99] = 4.0;
        assert_eq!(argmax(&values), 99);
        assert_eq!(margin(&[1.0, 5.0, 4.0, 5.0]), 0.0);
        assert_eq!(margin(&[1.0, 5.0, 4.0]), 1.0);
    }

    #[test]
    fn moments_of_small_numbers() {
        let mut m = Moments::default();
        assert_eq!(m.standard_error(), None);
        for v in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            m.add(v);
        }
        assert!(close(m.mean, 5.0));
        // The sum of squares is 32.
        assert!(close(m.standard_error().unwrap(), (32.0 / 7.0 / 8.0_f64).sqrt()));
    }

    #[test]
    fn wilson_agrees_with_published_values() {
        // Newcombe 1998, table I: 81 of 263, and 0 of 20.
        let Interval(low, high) = wilson(81, 263);
        assert!((low - 0.2553).abs() < 5e-5 && (high - 0.3662).abs() < 5e-5, "{low} {high}");
        let Interval(low, high) = wilson(0, 20);
        assert!(low == 0.0 && (high - 0.1611).abs() < 5e-5, "{low} {high}");
        assert_eq!(wilson(0, 0), Interval(0.0, 1.0));
    }
}
