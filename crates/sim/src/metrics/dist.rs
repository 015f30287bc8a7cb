//! A distribution of durations, collected as a stream: counts, sum, extremes and percentiles.

use dunlin_workload::stats::Histogram;
use serde::Serialize;

/// Leading bits by which durations are told apart: percentiles are within 2^-10.
const BITS: u32 = 10;

/// Durations in nanoseconds. Everything in it is whole numbers, so that parts that were collected
/// apart give the same sum in whatever order they are merged.
#[derive(Debug, Clone)]
pub struct Durations {
    histogram: Histogram,
    sum: u128,
    min: u64,
    max: u64,
    /// A duration that has come several times in a row and is not counted yet.
    repeated: (u64, u64),
}

impl Default for Durations {
    fn default() -> Self {
        Self { histogram: Histogram::new(BITS), sum: 0, min: u64::MAX, max: 0, repeated: (0, 0) }
    }
}

impl Durations {
    /// Counts a duration.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        if self.repeated.0 == ns {
            self.repeated.1 += 1;
            return;
        }
        self.flush();
        self.repeated = (ns, 1);
    }

    fn flush(&mut self) {
        let (ns, count) = std::mem::take(&mut self.repeated);
        if count > 0 {
            self.histogram.add_many(ns, count);
            self.sum += u128::from(ns) * u128::from(count);
            self.min = self.min.min(ns);
            self.max = self.max.max(ns);
        }
    }

    /// Counts all that another one has.
    pub fn merge(&mut self, mut other: Self) {
        self.flush();
        other.flush();
        self.histogram.merge(&other.histogram);
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.total() + self.repeated.1
    }

    /// All together, in nanoseconds.
    pub fn sum_ns(&self) -> u128 {
        self.sum + u128::from(self.repeated.0) * u128::from(self.repeated.1)
    }

    /// What is reported of it; none where there are no durations.
    pub fn stats(&self) -> Option<DurationStats> {
        let mut all = self.clone();
        all.flush();
        let count = all.histogram.total();
        (count > 0).then(|| {
            let ms = |ns: u64| ns as f64 / 1e6;
            let at = |p| ms(all.histogram.percentile(p).clamp(all.min, all.max));
            DurationStats {
                count,
                mean_ms: all.sum as f64 / count as f64 / 1e6,
                min_ms: ms(all.min),
                p50_ms: at(0.5),
                p90_ms: at(0.9),
                p95_ms: at(0.95),
                p99_ms: at(0.99),
                max_ms: ms(all.max),
            }
        })
    }

    /// The share `p` of all durations is not above this, in milliseconds, by nearest rank.
    pub fn percentile_ms(&self, p: f64) -> f64 {
        let mut all = self.clone();
        all.flush();
        all.histogram.percentile(p).clamp(all.min.min(all.max), all.max) as f64 / 1e6
    }
}

/// Statistics of durations. Count, mean and extremes are exact; percentiles are by nearest rank,
/// within 2^-10.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct DurationStats {
    pub count: u64,
    pub mean_ms: f64,
    pub min_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_durations_count_as_often_as_they_came() {
        let mut d = Durations::default();
        assert_eq!(d.stats(), None);
        for ns in [5_000_000, 5_000_000, 5_000_000, 0, 0, 7_000_000] {
            d.add(ns);
        }
        let mut other = Durations::default();
        other.add(9_000_000);
        d.merge(other);
        d.add(0);
        assert_eq!((d.count(), d.sum_ns()), (8, 31_000_000));
        let stats = d.stats().unwrap();
        assert_eq!((stats.min_ms, stats.max_ms, stats.mean_ms), (0.0, 9.0, 31.0 / 8.0));
        assert!((stats.p50_ms - 5.0).abs() < 0.005, "{stats:?}");
    }
}
