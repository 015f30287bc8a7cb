//! Counts of whole numbers, apart as far as their leading bits tell them apart (as HdrHistogram
//! does, with powers of two): numbers below `2^bits` exactly, larger ones in bins of a relative
//! width of `2^(1 - bits)`.

/// Counts of numbers.
#[derive(Debug, Clone)]
pub struct Histogram {
    bits: u32,
    /// Grows to the largest number's bin; at most `(65 - bits) * 2^(bits - 1) + 2^(bits - 1)`.
    counts: Vec<u64>,
    total: u64,
}

impl Histogram {
    /// With so many leading bits, from 1 to 20.
    ///
    /// # Panics
    /// Outside that range.
    pub fn new(bits: u32) -> Self {
        assert!((1..=20).contains(&bits), "{bits} leading bits");
        Self { bits, counts: Vec::new(), total: 0 }
    }

    /// Counts a number.
    #[inline]
    pub fn add(&mut self, value: u64) {
        self.add_many(value, 1);
    }

    /// Counts a number so many times.
    #[inline]
    pub fn add_many(&mut self, value: u64, count: u64) {
        let bin = self.bin(value);
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += count;
        self.total += count;
    }

    /// Counts everything that another one has counted.
    ///
    /// # Panics
    /// Where the other has other bins.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.bits, other.bits, "histograms of different bins");
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
        self.total += other.total;
    }

    /// How many numbers were counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// How many of those counted are not above `value`, as far as bins tell: the bin of `value` is
    /// counted whole.
    pub fn at_most(&self, value: u64) -> u64 {
        let bins = (self.bin(value) + 1).min(self.counts.len());
        self.counts[..bins].iter().sum()
    }

    /// The number that a share `p` of all are not above, by nearest rank: the `ceil(p n)`-th in
    /// order, the first for `p = 0`. In wide bins their middle. Zero where there are none.
    pub fn percentile(&self, p: f64) -> u64 {
        let rank = ((p * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut sum = 0;
        for (bin, count) in self.counts.iter().enumerate() {
            sum += count;
            if sum >= rank {
                let (low, width) = self.range(bin);
                return low + (width - 1) / 2;
            }
        }
        0
    }

    #[inline]
    fn bin(&self, value: u64) -> usize {
        let length = 64 - value.leading_zeros();
        if length <= self.bits {
            return value as usize;
        }
        let shift = length - self.bits;
        // The leading bits, without the first, which is always set.
        let half = 1u64 << (self.bits - 1);
        ((u64::from(shift) * half) + (value >> shift)) as usize
    }

    /// The least number of a bin, and how many it has.
    fn range(&self, bin: usize) -> (u64, u64) {
        let (bin, half) = (bin as u64, 1u64 << (self.bits - 1));
        if bin < 2 * half {
            return (bin, 1);
        }
        let shift = bin / half - 1;
        ((bin - shift * half) << shift, 1 << shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn every_number_lies_in_its_bin() {
        for bits in [1, 3, 10, 14] {
            let histogram = Histogram::new(bits);
            let mut next = 0;
            let mut edges: Vec<u64> =
                (0..64).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1, 3 << k >> 1]).collect();
            edges.extend([u64::MAX, u64::MAX - 1]);
            for value in edges {
                let (low, width) = histogram.range(histogram.bin(value));
                assert!(low <= value && value - low < width, "{bits} bits, {value}: {low} {width}");
                assert!(width == 1 || width <= low >> (bits - 1), "{bits} bits, {value}");
            }
            // Bins follow each other without gaps.
            for bin in 0..5 << (bits - 1) {
                let (low, width) = histogram.range(bin);
                assert_eq!(low, next);
                next = low + width;
            }
        }
    }

    #[test]
    fn percentiles_are_the_sorted_listss() {
        let seed = 5;
        let mut random = SeedTree::root(seed).stream();
        let mut histogram = Histogram::new(10);
        let mut values: Vec<u64> = (0..5000).map(|_| random.next_below(1 << 20) >> 7).collect();
        values.extend((0..500).map(|_| random.next_u64() >> 20));
        values.iter().for_each(|&v| histogram.add(v));
        values.sort_unstable();
        for p in [0.0, 0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0] {
            let rank = ((p * values.len() as f64).ceil() as usize).max(1);
            let (found, exact) = (histogram.percentile(p), values[rank - 1]);
            let slack = if exact < 1024 { 0 } else { exact >> 10 };
            assert!(found.abs_diff(exact) <= slack, "seed {seed}, p {p}: {found} for {exact}");
        }
        assert_eq!(Histogram::new(3).percentile(0.5), 0);
    }

    #[test]
    fn merging_is_counting_together() {
        let (mut a, mut b, mut both) = (Histogram::new(6), Histogram::new(6), Histogram::new(6));
        for value in (0..4000u64).map(|i| i * i) {
            let part = if value % 3 == 0 { &mut a } else { &mut b };
            part.add_many(value, 2);
            both.add(value);
            both.add(value);
        }
        a.merge(&b);
        assert_eq!((a.counts, a.total), (both.counts, 8000));
        assert_eq!(b.at_most(u64::MAX), b.total());
        assert_eq!(b.at_most(0), 0, "0 is with those of the other");
    }
}
