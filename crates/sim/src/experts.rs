//! Which experts a step's tokens go to: what makes layers with experts uneven.

use std::sync::Arc;

use dunlin_costmodel::ExpertLoad;
use dunlin_units::{SeedTree, Stream};

/// How tokens spread over the experts of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpertSpread {
    /// Evenly: the cost model's own assumption.
    Balanced,
    /// Expert `k` (from 1, in an order drawn once) gets a share proportional to `k^-exponent`.
    PowerLaw {
        /// The exponent; 0 is even.
        exponent: f64,
    },
    /// As recorded: the tokens of each expert in one layer of one step, one row a step, used in turn.
    Recorded {
        /// Tokens by expert.
        rows: Arc<[Box<[u32]>]>,
    },
}

/// Experts and how tokens spread over them.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertSpec {
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that each token goes to.
    pub used: u32,
    /// Ranks that they are spread over, equally many on each.
    pub ranks: u32,
    /// The spread.
    pub spread: ExpertSpread,
}

/// Draws the load of step after step.
#[derive(Debug, Clone)]
pub(crate) struct Experts {
    spec: ExpertSpec,
    /// Shares of the experts, summed up.
    sums: Vec<f64>,
    random: Stream,
    next_row: usize,
    counts: Vec<u32>,
}

/// Choices drawn for a step at most; more are drawn as so many, each standing for several.
const MOST_DRAWS: u64 = 2048;

impl Experts {
    pub(crate) fn new(spec: ExpertSpec, seeds: SeedTree) -> Self {
        let n = spec.experts as usize;
        let mut sums = Vec::new();
        if let ExpertSpread::PowerLaw { exponent } = spec.spread {
            let mut order: Vec<usize> = (0..n).collect();
            let mut random = seeds.child("order").stream();
            for i in (1..n).rev() {
                order.swap(i, random.next_below(i as u64 + 1) as usize);
            }
            let mut sum = 0.0;
            sums = order
                .iter()
                .map(|&k| {
                    sum += (k as f64 + 1.0).powf(-exponent);
                    sum
                })
                .collect();
        }
        let random = seeds.child("tokens").stream();
        Self { counts: vec![0; n], spec, sums, random, next_row: 0 }
    }

    /// The load of a step of so many tokens; none where it is even.
    pub(crate) fn draw(&mut self, tokens: u32) -> Option<ExpertLoad> {
        let ranks = self.spec.ranks as usize;
        match &self.spec.spread {
            ExpertSpread::Balanced => None,
            ExpertSpread::Recorded { rows } => {
                let row = rows.get(self.next_row)?;
                self.next_row = (self.next_row + 1) % rows.len();
                ExpertLoad::from_histogram(row, ranks)
            }
            ExpertSpread::PowerLaw { .. } => {
                self.counts.fill(0);
                let choices = u64::from(tokens) * u64::from(self.spec.used);
                let total = self.sums.last().copied().unwrap_or(1.0);
                for _ in 0..choices.min(MOST_DRAWS) {
                    let at = self.random.next_unit() * total;
                    let expert = self.sums.partition_point(|sum| *sum <= at);
                    let last = self.counts.len() - 1;
                    self.counts[expert.min(last)] += 1;
                }
                ExpertLoad::from_histogram(&self.counts, ranks)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(spread: ExpertSpread) -> ExpertSpec {
        ExpertSpec { experts: 16, used: 2, ranks: 4, spread }
    }

    #[test]
    fn loads_are_what_the_spread_says() {
        let seeds = SeedTree::root(2);
        assert_eq!(Experts::new(spec(ExpertSpread::Balanced), seeds).draw(100), None);
        let rows: Arc<[Box<[u32]>]> =
            [vec![4u32; 16].into_boxed_slice(), (0..16).map(|i| u32::from(i < 4) * 16).collect()]
                .into();
        let mut recorded = Experts::new(spec(ExpertSpread::Recorded { rows }), seeds);
        let loads: Vec<_> = (0..3).map(|_| recorded.draw(1).unwrap()).collect();
        assert_eq!(loads[0], ExpertLoad { active: 16.0, imbalance: 1.0 });
        assert_eq!(loads[1], ExpertLoad { active: 4.0, imbalance: 4.0 });
        assert_eq!(loads[2], loads[0], "in turn");
    }

    /// The mean load of the busiest expert, with one expert a rank, is its share.
    #[test]
    fn a_power_law_is_as_uneven_as_its_exponent() {
        let mut imbalance = Vec::new();
        for exponent in [0.0, 0.5, 1.0] {
            let one_each = ExpertSpec { ranks: 16, ..spec(ExpertSpread::PowerLaw { exponent }) };
            let mut experts = Experts::new(one_each, SeedTree::root(3));
            let n = 400;
            let sum: f64 = (0..n).map(|_| f64::from(experts.draw(1000).unwrap().imbalance)).sum();
            imbalance.push(sum / f64::from(n));
            let all: f64 = (1..=16).map(|k| f64::from(k).powf(-exponent)).sum();
            // 2000 choices: the busiest exceeds its share by noise only where shares are even.
            let (mean, share) = (sum / f64::from(n), 16.0 / all);
            let slack = if exponent == 0.0 { 0.25 } else { 0.05 };
            assert!(mean >= share * 0.99 && mean <= share * (1.0 + slack), "{mean} {share}");
        }
        assert!(imbalance[0] < imbalance[1] && imbalance[1] < imbalance[2]);
        let few = spec(ExpertSpread::PowerLaw { exponent: 0.0 });
        let active = Experts::new(few, SeedTree::root(4)).draw(1).unwrap().active;
        assert!(active <= 2.0, "one token goes to two experts at most");
    }
}
