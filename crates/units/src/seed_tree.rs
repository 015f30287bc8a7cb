//! Seeds derived by name, and plain random sequences.

use crate::philox4x32_10;

/// A node of a tree of seeds. A child's seed depends on the root's seed and on the path of names
/// to it, so a part of a program that is given its own child is left alone by changes elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedTree {
    seed: u64,
}

impl SeedTree {
    /// A tree's root.
    pub const fn root(seed: u64) -> Self {
        Self { seed }
    }

    /// This node's seed.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The child of this name.
    pub fn child(self, name: &str) -> Self {
        // FNV-1a names the child; the generator below does the mixing.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |h, byte| {
            (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        self.derive(hash, 1)
    }

    /// The child of this number; never the same as a named one's by construction.
    pub fn child_at(self, index: u64) -> Self {
        self.derive(index, 2)
    }

    /// A sequence of draws seeded here.
    pub const fn stream(self) -> Stream {
        Stream { seed: self.seed, drawn: 0 }
    }

    fn derive(self, id: u64, kind: u32) -> Self {
        let [a, b, ..] = philox4x32_10(
            [id as u32, (id >> 32) as u32, kind, TREE],
            [self.seed as u32, (self.seed >> 32) as u32],
        );
        Self { seed: u64::from(a) | (u64::from(b) << 32) }
    }
}

/// The last counter word of tree nodes and of streams: purposes of [`crate::Noise`] end in a small
/// byte, so a seed shared with one cannot repeat its words.
const TREE: u32 = 0xFF;
const STREAM: u32 = 0xFE;

/// Random words, one after another. For workloads and tests; what a model samples is keyed by
/// [`crate::Noise`] instead.
#[derive(Debug, Clone)]
pub struct Stream {
    seed: u64,
    drawn: u64,
}

impl Stream {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, ..] = philox4x32_10(
            [self.drawn as u32, (self.drawn >> 32) as u32, 0, STREAM],
            [self.seed as u32, (self.seed >> 32) as u32],
        );
        self.drawn += 1;
        u64::from(a) | (u64::from(b) << 32)
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`, without bias. Zero when `n` is 0.
    pub fn next_below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        // Lemire's method (arXiv 1805.10941): refuse the draws that would favour low results.
        let refused = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.next_u64()) * u128::from(n);
            if wide as u64 >= refused {
                return (wide >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_differ_by_name_number_and_parent() {
        let root = SeedTree::root(9);
        let seeds = [
            root.seed(),
            root.child("a").seed(),
            root.child("b").seed(),
            root.child_at(0).seed(),
            root.child_at(1).seed(),
            root.child("a").child("b").seed(),
            root.child("b").child("a").seed(),
            SeedTree::root(10).child("a").seed(),
        ];
        for (i, a) in seeds.iter().enumerate() {
            assert!(seeds[i + 1..].iter().all(|b| a != b), "seed {i} repeats");
        }
        assert_eq!(root.child("a"), SeedTree::root(9).child("a"));
    }

    #[test]
    fn streams_repeat_and_bounds_hold() {
        let mut a = SeedTree::root(3).child("x").stream();
        let mut b = a.clone();
        for n in [1, 2, 3, 7, 1000, u64::MAX] {
            let drawn = a.next_below(n);
            assert!(drawn < n);
            assert_eq!(drawn, b.next_below(n));
        }
        assert_eq!(a.next_below(0), 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[a.next_below(7) as usize] += 1;
        }
        // 6 degrees of freedom: 22.5 is exceeded with probability 0.001.
        let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - 1e4).powi(2) / 1e4).sum();
        assert!(chi2 < 22.5, "chi-square {chi2} of {counts:?}");
    }
}
