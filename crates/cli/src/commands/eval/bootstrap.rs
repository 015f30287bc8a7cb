//! Intervals for means of values that are not independent: neighbouring positions of a text.

use dunlin_units::SeedTree;

use super::stats::Interval;

/// Values in a block: positions so near that they must be drawn together.
pub const BLOCK: usize = 32;
/// How many times the blocks are drawn anew.
const RESAMPLES: usize = 2000;

/// The 95% percentile interval of the mean of `values`, by drawing whole blocks of neighbours with
/// replacement (Künsch's block bootstrap, blocks side by side). Fewer than two blocks say nothing
/// about how they vary: `None`.
pub fn mean_interval(values: &[f64], seed: u64) -> Option<Interval> {
    let blocks: Vec<(f64, usize)> =
        values.chunks(BLOCK).map(|b| (b.iter().sum(), b.len())).collect();
    if blocks.len() < 2 {
        return None;
    }
    let mut random = SeedTree::root(seed).child("bootstrap").stream();
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let (mut sum, mut count) = (0.0, 0);
            for _ in 0..blocks.len() {
                // Below the number of blocks, so it fits.
                let (s, n) = blocks[random.next_below(blocks.len() as u64) as usize];
                sum += s;
                count += n;
            }
            sum / count as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[((RESAMPLES - 1) as f64 * share).round() as usize];
    Some(Interval(at(0.025), at(0.975)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 1;

    #[test]
    fn constant_values_have_no_width() {
        assert_eq!(mean_interval(&[2.5; 200], SEED), Some(Interval(2.5, 2.5)));
        assert_eq!(mean_interval(&[2.5; BLOCK], SEED), None);
        assert_eq!(mean_interval(&[], SEED), None);
    }

    #[test]
    fn independent_values_give_the_textbook_width() {
        // Uniform values: the mean of n has a standard error of sqrt(1/12n).
        eprintln!("seed {SEED}");
        let mut random = SeedTree::root(SEED).child("test").stream();
        let values: Vec<f64> = (0..32 * 400).map(|_| random.next_unit()).collect();
        let Interval(low, high) = mean_interval(&values, SEED).unwrap();
        let want = 2.0 * 1.96 * (1.0 / 12.0 / values.len() as f64).sqrt();
        let width = high - low;
        assert!((width / want - 1.0).abs() < 0.15, "{width} and not {want}");
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!(low < mean && mean < high);
    }

    #[test]
    fn values_that_come_in_runs_give_a_wider_interval() {
        eprintln!("seed {SEED}");
        let mut random = SeedTree::root(SEED).child("test").stream();
        let runs: Vec<f64> = (0..400).flat_map(|_| [random.next_unit(); BLOCK]).collect();
        let mut shuffled = runs.clone();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, random.next_below(i as u64 + 1) as usize);
        }
        let width = |v: &[f64]| mean_interval(v, SEED).map(|Interval(l, h)| h - l).unwrap();
        let ratio = width(&runs) / width(&shuffled);
        assert!(ratio > 4.0, "the blocks' values are equal, so sqrt(32) times: {ratio}");
    }
}
