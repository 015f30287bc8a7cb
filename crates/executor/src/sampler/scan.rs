//! One pass over the logits, whose block maxima make every later look at them short.
//!
//! A token among the best k lies in a block whose maximum is at least the k-th largest block
//! maximum, so greedy choice, top-k, min-p, top-p and the best alternatives read a few blocks each
//! instead of the whole vocabulary.

use std::cmp::Reverse;

/// Logits in a block.
const BLOCK: usize = 64;

/// A token and its logit as one integer: larger is a higher logit, and the lower id among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ranked(u64);

impl Ranked {
    pub(super) fn new(token: u32, logit: f32) -> Self {
        // Adding zero makes -0 into +0, so that the two tie.
        let bits = (logit + 0.0).to_bits();
        let sortable = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Self((u64::from(sortable) << 32) | u64::from(!token))
    }

    pub(super) fn token(self) -> u32 {
        !(self.0 as u32)
    }

    pub(super) fn logit(self) -> f32 {
        let sortable = (self.0 >> 32) as u32;
        f32::from_bits(if sortable >> 31 == 1 { sortable & !(1 << 31) } else { !sortable })
    }
}

/// What is wrong with logits that cannot be sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadLogits {
    NotANumber,
    Infinite,
}

/// The maxima of the logits' blocks.
#[derive(Debug, Default)]
pub(super) struct BlockMaxima {
    maxima: Vec<f32>,
    /// Scratch for selecting among the maxima.
    selection: Vec<Ranked>,
}

impl BlockMaxima {
    /// Reads all logits once.
    pub(super) fn scan(&mut self, logits: &[f32]) -> Result<(), BadLogits> {
        self.maxima.clear();
        let mut nan = false;
        for block in logits.chunks(BLOCK) {
            let (max, block_nan) = block_max(block);
            nan |= block_nan;
            self.maxima.push(max);
        }
        if nan {
            Err(BadLogits::NotANumber)
        } else if self.max() == f32::INFINITY {
            Err(BadLogits::Infinite)
        } else {
            Ok(())
        }
    }

    /// Brings the maxima up to date after a token's logit has changed.
    pub(super) fn update(&mut self, logits: &[f32], token: u32) {
        let index = token as usize / BLOCK;
        self.maxima[index] = block_max(block_at(logits, index)).0;
    }

    /// The largest logit.
    pub(super) fn max(&self) -> f32 {
        self.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The token with the largest logit, the lowest id among equals.
    pub(super) fn argmax(&self, logits: &[f32]) -> Option<u32> {
        let max = self.max();
        let index = self.maxima.iter().position(|&m| m == max)?;
        let within = block_at(logits, index).iter().position(|&x| x == max)?;
        u32::try_from(index * BLOCK + within).ok()
    }

    /// The same among the tokens whose bits are set; `None` where all of them have minus infinity.
    pub(super) fn argmax_of(&self, logits: &[f32], allowed: &[u32]) -> Option<u32> {
        const WORDS: usize = BLOCK / 32;
        let (mut best, mut token) = (f32::NEG_INFINITY, None);
        for (index, (&max, words)) in self.maxima.iter().zip(allowed.chunks(WORDS)).enumerate() {
            if max <= best {
                continue;
            }
            let block = block_at(logits, index);
            for (word, (&bits, chunk)) in words.iter().zip(block.chunks(32)).enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let within = bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    if chunk.get(within).is_some_and(|&x| x > best) {
                        best = chunk[within];
                        token = u32::try_from(index * BLOCK + word * 32 + within).ok();
                    }
                }
            }
        }
        token
    }

    /// Calls `visit` with every token whose logit is at least `threshold` and above minus infinity,
    /// in the order of ids.
    pub(super) fn for_each_above(
        &self,
        logits: &[f32],
        threshold: f64,
        mut visit: impl FnMut(u32, f32),
    ) {
        for (index, &max) in self.maxima.iter().enumerate() {
            if f64::from(max) < threshold {
                continue;
            }
            for (within, &x) in block_at(logits, index).iter().enumerate() {
                if f64::from(x) >= threshold && x > f32::NEG_INFINITY {
                    visit((index * BLOCK + within) as u32, x);
                }
            }
        }
    }

    /// Fills `best` with the `k` best tokens whose logit is at least `threshold` (fewer where there
    /// are fewer), in no particular order.
    pub(super) fn best(
        &mut self,
        logits: &[f32],
        k: usize,
        threshold: f64,
        best: &mut Vec<Ranked>,
    ) {
        best.clear();
        if k == 0 {
            return;
        }
        let mut threshold = threshold;
        if k <= self.maxima.len() {
            self.selection.clear();
            self.selection.extend(self.maxima.iter().map(|&m| Ranked::new(0, m)));
            let (_, kth, _) = self.selection.select_nth_unstable_by_key(k - 1, |&r| Reverse(r));
            threshold = threshold.max(f64::from(kth.logit()));
        }
        self.for_each_above(logits, threshold, |token, x| best.push(Ranked::new(token, x)));
        if best.len() > k {
            best.select_nth_unstable_by_key(k - 1, |&r| Reverse(r));
            best.truncate(k);
        }
    }
}

fn block_at(logits: &[f32], index: usize) -> &[f32] {
    let start = index * BLOCK;
    &logits[start..logits.len().min(start + BLOCK)]
}

/// The largest value that is a number, and whether any is not one.
fn block_max(block: &[f32]) -> (f32, bool) {
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    // As wide as the values, so that compilers keep both in vectors of one shape.
    let mut nan = [0u32; LANES];
    let mut take = |lane: usize, x: f32| {
        max[lane] = if x > max[lane] { x } else { max[lane] };
        nan[lane] |= u32::from(x.is_nan());
    };
    let (whole, rest) = block.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &x) in chunk.iter().enumerate() {
            take(lane, x);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        take(lane, x);
    }
    (max.into_iter().fold(f32::NEG_INFINITY, f32::max), nan.into_iter().any(|n| n != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SeedTree;

    #[test]
    fn ranks_order_logits_then_ids() {
        let values = [f32::NEG_INFINITY, -3.5, -1e-30, 0.0, 1e-30, 2.0, f32::MAX];
        for (i, &a) in values.iter().enumerate() {
            assert_eq!(Ranked::new(9, a).logit(), a);
            assert_eq!(Ranked::new(9, a).token(), 9);
            assert!(Ranked::new(3, a) > Ranked::new(4, a));
            for &b in &values[i + 1..] {
                assert!(Ranked::new(9, b) > Ranked::new(0, a), "{b} above {a}");
            }
        }
        assert_eq!(Ranked::new(1, -0.0), Ranked::new(1, 0.0));
    }

    #[test]
    fn best_is_the_head_of_a_full_sort() {
        let mut random = SeedTree::root(5).stream();
        for n in [1usize, 2, 63, 64, 65, 200, 1000, 5000] {
            // Few distinct values, so that ties are common.
            let logits: Vec<f32> = (0..n).map(|_| random.next_below(50) as f32 - 25.0).collect();
            let mut sorted: Vec<Ranked> =
                logits.iter().enumerate().map(|(i, &x)| Ranked::new(i as u32, x)).collect();
            sorted.sort_unstable_by_key(|&r| Reverse(r));
            let mut maxima = BlockMaxima::default();
            maxima.scan(&logits).unwrap();
            assert_eq!(maxima.argmax(&logits), Some(sorted[0].token()));
            let mut best = Vec::new();
            for k in [0, 1, 2, 5, 40, 100, n, n + 1] {
                for threshold in [f64::NEG_INFINITY, 0.0, 24.0] {
                    maxima.best(&logits, k, threshold, &mut best);
                    best.sort_unstable_by_key(|&r| Reverse(r));
                    let expected: Vec<Ranked> = sorted
                        .iter()
                        .copied()
                        .take(k)
                        .filter(|r| f64::from(r.logit()) >= threshold)
                        .collect();
                    assert_eq!(best, expected, "n {n}, k {k}, threshold {threshold}");
                }
            }
        }
    }

    #[test]
    fn bad_logits_are_seen_wherever_they_are() {
        for n in [1usize, 15, 16, 17, 64, 130] {
            for at in 0..n {
                let mut logits = vec![1.0f32; n];
                let mut maxima = BlockMaxima::default();
                logits[at] = f32::NAN;
                assert_eq!(maxima.scan(&logits), Err(BadLogits::NotANumber));
                logits[at] = f32::INFINITY;
                assert_eq!(maxima.scan(&logits), Err(BadLogits::Infinite));
                logits[at] = f32::NEG_INFINITY;
                assert_eq!(maxima.scan(&logits), Ok(()));
            }
        }
    }

    #[test]
    fn updates_follow_changed_logits() {
        let mut logits: Vec<f32> = (0..130).map(|i| i as f32).collect();
        let mut maxima = BlockMaxima::default();
        maxima.scan(&logits).unwrap();
        logits[129] = -1.0;
        maxima.update(&logits, 129);
        assert_eq!(maxima.argmax(&logits), Some(128));
        logits[3] = 500.0;
        maxima.update(&logits, 3);
        assert_eq!(maxima.argmax(&logits), Some(3));
    }
}
