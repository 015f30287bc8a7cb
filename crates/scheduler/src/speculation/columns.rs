//! What a step of so many tokens costs, where all of them are of sequences that decode.
//!
//! Not a fitted line: kernels take columns in groups, so that the fifth may cost more than the four
//! before it. For each number of columns the median of the last few steps counts, and between
//! numbers that have not been seen it is interpolated.

/// Numbers of columns that are told apart; what is beyond them is extrapolated.
const MOST: usize = 96;
/// Steps of each number that are remembered.
const REMEMBERED: usize = 8;
/// Before a second number of columns was seen: what a column more costs, of what the first cost.
/// Optimistic, so that it is tried.
const FIRST_SLOPE: f64 = 0.05;

#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    us: [f32; REMEMBERED],
    seen: u32,
}

impl Recent {
    fn add(&mut self, us: f64) {
        self.us[self.seen as usize % REMEMBERED] = us as f32;
        self.seen += 1;
    }

    fn median(&self) -> Option<f64> {
        let count = (self.seen as usize).min(REMEMBERED);
        let mut us = self.us;
        let us = &mut us[..count];
        us.sort_unstable_by(f32::total_cmp);
        // The lower one of two: what disturbs a step makes it longer.
        us.get(count.checked_sub(1)? / 2).map(|&us| f64::from(us))
    }
}

/// See the module. Times are microseconds, without what reading KV takes.
#[derive(Debug, Clone)]
pub(crate) struct ColumnCost {
    recent: Vec<Recent>,
    medians: Vec<Option<f64>>,
}

impl Default for ColumnCost {
    fn default() -> Self {
        Self { recent: vec![Recent::default(); MOST + 1], medians: vec![None; MOST + 1] }
    }
}

impl ColumnCost {
    /// Takes note of a step.
    pub(crate) fn learn(&mut self, columns: u64, us: f64) {
        if let Some(recent) = self.recent.get_mut(columns as usize) {
            recent.add(us.max(0.0));
            self.medians[columns as usize] = recent.median();
        }
    }

    /// Microseconds of a step; `None` before any was seen.
    pub(crate) fn us(&self, columns: u64) -> Option<f64> {
        let at = columns as usize;
        let below = (0..=at.min(MOST)).rev().find_map(|c| Some((c, self.medians[c]?)));
        let above = (at.min(MOST)..=MOST).find_map(|c| Some((c, self.medians[c]?)));
        match (below, above) {
            (Some((c, us)), _) | (_, Some((c, us))) if c == at => Some(us),
            (Some((low, low_us)), Some((high, high_us))) => {
                let share = (at - low) as f64 / (high - low) as f64;
                Some(low_us + share * (high_us - low_us).max(0.0))
            }
            (Some((low, us)), None) => Some(us + (at - low) as f64 * self.slope(low, us)),
            (None, Some((high, us))) => Some(us / (1.0 + (high - at) as f64 * FIRST_SLOPE)),
            (None, None) => None,
        }
    }

    /// The most columns that may be tried: not many more than were, so that what is not known yet
    /// costs little.
    pub(crate) fn may_try(&self) -> u64 {
        let most = (0..=MOST).rev().find(|&c| self.medians[c].is_some());
        most.map_or(0, |most| 2 * most as u64 + 4)
    }

    /// What a column more costs beyond the most seen, `us` being what those cost.
    fn slope(&self, most: usize, us: f64) -> f64 {
        let first = (0..most).find_map(|c| Some((c, self.medians[c]?)));
        match first {
            Some((c, first)) => {
                let slope = (us - first) / (most - c) as f64;
                // Of few columns the first ones are free where memory is what limits.
                slope.max(first * FIRST_SLOPE / 2.0)
            }
            None => us * FIRST_SLOPE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_interpolation_and_the_way_beyond() {
        let mut cost = ColumnCost::default();
        assert_eq!((cost.us(3), cost.may_try()), (None, 0));
        cost.learn(1, 100.0);
        assert_eq!(cost.may_try(), 6);
        assert_eq!(cost.us(1), Some(100.0));
        assert!((cost.us(5).unwrap() - 120.0).abs() < 1e-3);
        cost.learn(8, 240.0);
        assert_eq!(cost.us(8), Some(240.0));
        assert!((cost.us(4).unwrap() - 160.0).abs() < 1e-3);
        assert!((cost.us(10).unwrap() - 280.0).abs() < 1e-3);
        // One that took much longer changes nothing for long.
        for us in [101.0, 9000.0, 99.0] {
            cost.learn(1, us);
        }
        assert_eq!(cost.us(1), Some(100.0));
        // What was long ago is forgotten.
        for _ in 0..REMEMBERED {
            cost.learn(1, 50.0);
        }
        assert_eq!(cost.us(1), Some(50.0));
        // Beyond what is told apart, too.
        cost.learn(5000, 1.0);
        assert!(cost.us(5000).unwrap() > 10_000.0);
        assert!(cost.us(0).unwrap() < 50.0);
    }
}
