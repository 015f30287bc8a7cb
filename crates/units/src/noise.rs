//! Noise addressed by (seed, choice, position, purpose, lane).

use crate::philox4x32_10;

/// What noise is for. Two purposes never share noise, so that a draw added for one leaves the
/// other's results as they were. The numbers are part of what a seed means: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// The choice of a token.
    Sample = 0,
    /// Acceptance of a speculated token.
    Accept = 1,
    /// The replacement of a refused speculated token.
    Resample = 2,
    /// The draw of a token to speculate on, from a drafter's distribution.
    Draft = 3,
}

/// The noise of one position of one choice, for one purpose: an array over lanes (usually token
/// ids) of independent uniform words, computed where it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    key: [u32; 2],
    /// Counter words 1 to 3; word 0 is the lane's.
    place: [u32; 3],
}

/// Set in counter word 0 for the low halves of [`Noise::u64_at`].
const LOW_HALF: u32 = 1 << 31;

impl Noise {
    /// The noise of `position` (absolute, below 2^56) in choice `choice` of the request with
    /// `seed`.
    pub const fn new(seed: u64, choice: u32, position: u64, purpose: Purpose) -> Self {
        debug_assert!(position >> 56 == 0);
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            place: [position as u32, choice, purpose as u32 | (((position >> 32) as u32) << 8)],
        }
    }

    /// The words of lanes `4 * group .. 4 * group + 4`; `group` is below 2^30.
    #[inline]
    pub const fn group(&self, group: u32) -> [u32; 4] {
        debug_assert!(group < 1 << 30);
        self.block(group)
    }

    /// 32 uniform bits.
    #[inline]
    pub const fn u32_at(&self, lane: u32) -> u32 {
        self.group(lane >> 2)[(lane & 3) as usize]
    }

    /// 64 uniform bits, of which the upper 32 are [`Noise::u32_at`]'s.
    #[inline]
    pub const fn u64_at(&self, lane: u32) -> u64 {
        let low = self.block((lane >> 2) | LOW_HALF)[(lane & 3) as usize];
        ((self.u32_at(lane) as u64) << 32) | low as u64
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    #[inline]
    pub const fn unit_f32(&self, lane: u32) -> f32 {
        (self.u32_at(lane) >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    #[inline]
    pub const fn unit_f64(&self, lane: u32) -> f64 {
        (self.u64_at(lane) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    const fn block(&self, word0: u32) -> [u32; 4] {
        philox4x32_10([word0, self.place[0], self.place[1], self.place[2]], self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_address_changes_the_noise() {
        let base = Noise::new(1, 2, 3, Purpose::Sample).u64_at(4);
        let others = [
            Noise::new(2, 2, 3, Purpose::Sample).u64_at(4),
            Noise::new(1 | 1 << 40, 2, 3, Purpose::Sample).u64_at(4),
            Noise::new(1, 3, 3, Purpose::Sample).u64_at(4),
            Noise::new(1, 2, 4, Purpose::Sample).u64_at(4),
            Noise::new(1, 2, 3 | 1 << 40, Purpose::Sample).u64_at(4),
            Noise::new(1, 2, 3, Purpose::Accept).u64_at(4),
            Noise::new(1, 2, 3, Purpose::Sample).u64_at(5),
            Noise::new(1, 2, 3, Purpose::Sample).u64_at(8),
        ];
        for (i, other) in others.into_iter().enumerate() {
            assert_ne!(base, other, "case {i}");
            assert_ne!(base >> 32, other >> 32, "case {i}");
            assert_ne!(base as u32, other as u32, "case {i}");
        }
    }

    #[test]
    fn groups_and_lanes_agree() {
        let noise = Noise::new(7, 0, 11, Purpose::Sample);
        for lane in 0..64u32 {
            assert_eq!(noise.group(lane / 4)[lane as usize % 4], noise.u32_at(lane));
            assert_eq!((noise.u64_at(lane) >> 32) as u32, noise.u32_at(lane));
        }
        assert_ne!(noise.u64_at(u32::MAX), noise.u64_at(u32::MAX - 4));
    }

    #[test]
    fn units_are_uniform() {
        // Chi-square over 16 bins, 15 degrees of freedom: 37.7 is exceeded with probability 0.001.
        let noise = Noise::new(0xD0, 1, 2, Purpose::Resample);
        let n = 65_536u32;
        let mut bins = [[0u32; 16]; 2];
        for lane in 0..n {
            let (a, b) = (noise.unit_f32(lane), noise.unit_f64(lane));
            assert!((0.0..1.0).contains(&a) && (0.0..1.0).contains(&b));
            bins[0][(a * 16.0) as usize] += 1;
            bins[1][(noise.u64_at(lane) as u32 >> 28) as usize] += 1;
        }
        for counts in bins {
            let expected = f64::from(n) / 16.0;
            let chi2: f64 =
                counts.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
            assert!(chi2 < 37.7, "chi-square {chi2} of {counts:?}");
        }
    }
}
