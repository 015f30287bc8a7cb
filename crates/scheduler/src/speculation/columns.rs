//! What a step of so many tokens costs, where all of them are of sequences that decode.
//!
//! Not a fitted line: kernels take columns in groups, so that the fifth may cost more than the four
//! before it. For each number of columns the median of the last few steps counts. Numbers that have
//! not been seen are between those that were, or beyond them, as the shape says that is known
//! beforehand: a line, and for mixtures of experts how many different ones so many tokens meet (C049),
//! which rises steeply at first.

use dunlin_costmodel::expected_distinct;

use super::Experts;

/// Numbers of columns that are told apart; what is beyond them is extrapolated.
const MOST: usize = 96;
/// Steps of each number that are remembered.
const REMEMBERED: usize = 8;
/// Before a second number of columns was seen: what a column more costs, of what the first cost,
/// experts left out. Optimistic, so that it is tried.
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
    experts: Option<Experts>,
}

impl Default for ColumnCost {
    fn default() -> Self {
        Self::new(None)
    }
}

impl ColumnCost {
    /// For a model with these experts.
    pub(crate) fn new(experts: Option<Experts>) -> Self {
        let (recent, medians) = (vec![Recent::default(); MOST + 1], vec![None; MOST + 1]);
        Self { recent, medians, experts }
    }

    /// What a step of so many columns is expected to take before any was seen, of what one takes.
    fn shape(&self, columns: f64) -> f64 {
        let line = 1.0 + (columns - 1.0) * FIRST_SLOPE;
        let Some(of) = self.experts.filter(|of| of.used > 0) else { return line };
        let met = expected_distinct(of.count, of.used, columns) / f64::from(of.used);
        line + f64::from(of.permille) / 1e3 * (met - 1.0)
    }

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
        let shape = |columns: usize| self.shape(columns as f64);
        match (below, above) {
            (Some((c, us)), _) | (_, Some((c, us))) if c == at => Some(us),
            (Some((low, low_us)), Some((high, high_us))) => {
                let share = (shape(at) - shape(low)) / (shape(high) - shape(low));
                Some(low_us + share * (high_us - low_us).max(0.0))
            }
            (Some((low, us)), None) => Some(us + (shape(at) - shape(low)) * self.scale(low, us)),
            (None, Some((high, us))) => Some(us * shape(at) / shape(high)),
            (None, None) => None,
        }
    }

    /// The most columns that may be tried: not many more than were, so that what is not known yet
    /// costs little.
    pub(crate) fn may_try(&self) -> u64 {
        let most = (0..=MOST).rev().find(|&c| self.medians[c].is_some());
        most.map_or(0, |most| 2 * most as u64 + 4)
    }

    /// Beyond the most columns seen, what a unit of the shape costs, `us` being what those cost.
    fn scale(&self, most: usize, us: f64) -> f64 {
        let first = (0..most).find_map(|c| Some((c, self.medians[c]?)));
        match first {
            Some((c, first)) => {
                let scale = (us - first) / (self.shape(most as f64) - self.shape(c as f64));
                // Of few columns the first ones are free where memory is what limits.
                scale.max(first / self.shape(c as f64) / 2.0)
            }
            None => us / self.shape(most as f64),
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

    /// Of all ways in which `tokens` tokens choose two of five experts each, the mean number of
    /// different ones.
    fn met(tokens: u32) -> f64 {
        let pairs: Vec<u32> = (0..32).filter(|set: &u32| set.count_ones() == 2).collect();
        let mut sets = vec![0];
        for _ in 0..tokens {
            sets = sets.iter().flat_map(|set| pairs.iter().map(move |pair| set | pair)).collect();
        }
        let all: u32 = sets.iter().map(|set: &u32| set.count_ones()).sum();
        f64::from(all) / sets.len() as f64
    }

    #[test]
    fn what_experts_cost_is_known_before_it_is_measured() {
        let experts = Experts { count: 5, used: 2, permille: 800 };
        let step = |columns: u32| {
            let read = 0.2 + 0.8 * met(columns) / 2.0;
            100.0 * (read + f64::from(columns - 1) * FIRST_SLOPE)
        };
        let mut cost = ColumnCost::new(Some(experts));
        cost.learn(1, step(1));
        for columns in 1..=4 {
            let said = cost.us(u64::from(columns)).unwrap();
            assert!((said - step(columns)).abs() < 1e-3, "{columns}: {said} {}", step(columns));
        }
        // A step that was seen corrects those beside it: columns are dearer here than was thought.
        cost.learn(4, 1.5 * step(4));
        assert!(cost.us(3).unwrap() > step(3) && cost.us(3).unwrap() < 1.5 * step(4));
        // All experts are met soon, and then a column costs what it costs elsewhere.
        let (mut moe, mut dense) = (ColumnCost::new(Some(experts)), ColumnCost::default());
        moe.learn(1, 100.0);
        dense.learn(1, 100.0);
        let step = |cost: &ColumnCost, at| cost.us(at + 1).unwrap() - cost.us(at).unwrap();
        assert!(step(&moe, 1) > 5.0 * step(&dense, 1));
        assert!((step(&moe, 30) - step(&dense, 30)).abs() < 1e-3);
    }
}
