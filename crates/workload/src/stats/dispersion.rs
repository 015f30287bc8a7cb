//! How bursty arrivals are at a scale of time: their counts over windows.
//!
//! The index of dispersion for counts is the variance of the counts over their mean: 1 for a Poisson
//! process at every scale, above where arrivals come in bursts (Cox and Lewis, "The statistical
//! analysis of series of events", 1966).

use serde::Serialize;

/// Counts arrivals over windows that follow each other, the first from the first arrival on. The last
/// one, which is not over, is left out.
#[derive(Debug, Clone)]
pub struct Windows {
    width_ns: u64,
    current: u64,
    count: u64,
    /// Over windows that are over: their number, the sum of counts, of their squares, and of the
    /// products of neighbours.
    windows: u64,
    sum: u128,
    squares: u128,
    products: u128,
    first: u64,
    before: u64,
    peak: u64,
}

/// What counts over windows are like.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowStats {
    /// Nanoseconds of a window.
    pub width_ns: u64,
    /// Whole windows.
    pub windows: u64,
    /// Arrivals of a window.
    pub mean: f64,
    /// Variance over mean (of the population of windows).
    pub dispersion: Option<f64>,
    /// Correlation of neighbouring windows' counts.
    pub correlation: Option<f64>,
    /// The most arrivals of a window.
    pub peak: u64,
}

impl Windows {
    /// Windows of so many nanoseconds, at least 1.
    pub fn new(width_ns: u64) -> Self {
        Self {
            width_ns: width_ns.max(1),
            current: 0,
            count: 0,
            windows: 0,
            sum: 0,
            squares: 0,
            products: 0,
            first: 0,
            before: 0,
            peak: 0,
        }
    }

    /// Counts an arrival, so many nanoseconds after the first; never before an earlier one.
    #[inline]
    pub fn add(&mut self, since_first_ns: u64) {
        let window = since_first_ns / self.width_ns;
        if window > self.current {
            self.end_window();
            // Windows without arrivals in between.
            let empty = window - self.current - 1;
            if empty > 0 {
                self.windows += empty;
                self.before = 0;
            }
            self.current = window;
        }
        self.count += 1;
    }

    fn end_window(&mut self) {
        let count = std::mem::take(&mut self.count);
        if self.windows == 0 {
            self.first = count;
        }
        self.windows += 1;
        self.sum += u128::from(count);
        self.squares += u128::from(count) * u128::from(count);
        self.products += u128::from(count) * u128::from(self.before);
        self.before = count;
        self.peak = self.peak.max(count);
    }

    /// What the windows so far are like.
    pub fn stats(&self) -> WindowStats {
        let n = self.windows as f64;
        let mean = if self.windows > 0 { self.sum as f64 / n } else { 0.0 };
        let variance = self.squares as f64 / n - mean * mean;
        // The sum of products of deviations: neighbours' products, less the mean times the counts
        // that have a neighbour on one side.
        let pairs = n - 1.0;
        let sum = self.sum as f64;
        let ends = 2.0 * sum - self.first as f64 - self.before as f64;
        let covariance = self.products as f64 - mean * ends + pairs * mean * mean;
        let known = self.windows > 1 && variance > 0.0;
        WindowStats {
            width_ns: self.width_ns,
            windows: self.windows,
            mean,
            dispersion: (self.windows > 1 && mean > 0.0).then(|| variance.max(0.0) / mean),
            correlation: known.then(|| covariance / (n * variance)),
            peak: self.peak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn agrees_with_the_list_of_counts() {
        let seed = 8;
        let mut random = SeedTree::root(seed).stream();
        for width in [1, 7, 50, 1000] {
            let mut windows = Windows::new(width);
            let (mut at, mut counts) = (0u64, vec![0u64; 1]);
            for _ in 0..2000 {
                windows.add(at);
                let window = (at / width) as usize;
                counts.resize(counts.len().max(window + 1), 0);
                counts[window] += 1;
                at += random.next_below(30) * random.next_below(3);
            }
            // The window of the last arrival is not over.
            counts.pop();
            let n = counts.len() as f64;
            let mean = counts.iter().sum::<u64>() as f64 / n;
            let deviation = |c: &u64| *c as f64 - mean;
            let variance = counts.iter().map(|c| deviation(c).powi(2)).sum::<f64>() / n;
            let covariance: f64 =
                counts.windows(2).map(|w| deviation(&w[0]) * deviation(&w[1])).sum();
            let found = windows.stats();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            assert_eq!(found.windows as usize, counts.len(), "seed {seed}, width {width}");
            assert_eq!(found.peak, *counts.iter().max().unwrap());
            assert!(near(found.mean, mean));
            assert!(near(found.dispersion.unwrap(), variance / mean), "seed {seed}, {width}");
            assert!(near(found.correlation.unwrap(), covariance / (n * variance)), "{width}");
        }
    }

    #[test]
    fn too_little_has_no_dispersion() {
        let mut windows = Windows::new(10);
        assert_eq!(windows.stats().dispersion, None);
        windows.add(0);
        windows.add(11);
        assert_eq!((windows.stats().windows, windows.stats().dispersion), (1, None));
    }
}
