//! What energy is worth, where the tokens of answers may take only so much of it on average: drift
//! plus penalty (GELATO, A055).
//!
//! What steps took beyond the budget waits in a virtual queue, `q <- max(q + energy - budget * tokens,
//! 0)`: as long as the queue is bounded, the average keeps to the budget. Each choice minimizes
//! `v * time + q * energy` a token, the penalty and the drift of the queue, which is how much energy is
//! worth in time at the moment: `q / v`. Over many steps the energy a token exceeds the budget by no
//! more than the queue's length over the number of tokens, the time a token is within `O(1 / v)` of
//! the least that the budget allows, and the queue is `O(v)` (Lyapunov optimization of ratios: Neely,
//! arXiv 1011.5942). Where plain decoding takes more than the budget, what takes the least is done.

use serde::{Deserialize, Serialize};

use super::columns::ColumnCost;

/// What is left of the weight of a draft step a draft step later.
const KEEP: f64 = 0.95;
/// The longest queue, of `v`: energy is worth so many times what it would be at a queue of `v`.
const MOST_QUEUE: f64 = 1e3;

/// How much energy tokens may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnergyBudget {
    /// Microjoules a token, on average, at least 1.
    pub microjoules: u64,
    /// How much time counts against energy, in tokens' budgets that may be owed: the larger, the
    /// faster answers are within the budget, and the longer it takes to keep to it. At least 1.
    pub v: u32,
}

impl EnergyBudget {
    /// A budget of so many microjoules a token.
    pub fn new(microjoules: u64) -> Self {
        Self { microjoules: microjoules.max(1), v: 64 }
    }
}

/// The virtual queue, and what steps take.
#[derive(Debug, Clone)]
pub(crate) struct EnergyQueue {
    budget: EnergyBudget,
    /// What is owed, in budgets of a token.
    owed: f64,
    /// Microjoules of a step by columns.
    steps: ColumnCost,
    /// Microjoules and microseconds of draft steps, fading.
    drafts: (f64, f64),
}

impl EnergyQueue {
    /// An empty queue; the model's experts shape what steps take.
    pub(crate) fn new(budget: EnergyBudget, experts: Option<super::Experts>) -> Self {
        Self { budget, owed: 0.0, steps: ColumnCost::new(experts), drafts: (0.0, 0.0) }
    }

    /// A step of so many columns, all of them of sequences that decode, has ended.
    pub(crate) fn step(&mut self, columns: u64, microjoules: u64, tokens: u64) {
        self.steps.learn(columns, microjoules as f64);
        self.settle(microjoules, tokens);
    }

    /// A draft step has ended.
    pub(crate) fn draft(&mut self, us: f64, microjoules: u64) {
        let (energy, time) = self.drafts;
        self.drafts = (energy * KEEP + microjoules as f64, time * KEEP + us);
        self.settle(microjoules, 0);
    }

    fn settle(&mut self, microjoules: u64, tokens: u64) {
        let budgets = microjoules as f64 / self.budget.microjoules.max(1) as f64;
        let most = f64::from(self.budget.v.max(1)) * MOST_QUEUE;
        self.owed = (self.owed + budgets - tokens as f64).clamp(0.0, most);
    }

    /// Microseconds that a microjoule is worth, where a plain step takes `plain_us`.
    fn worth(&self, plain_us: f64) -> f64 {
        self.owed / f64::from(self.budget.v.max(1)) * plain_us
            / self.budget.microjoules.max(1) as f64
    }

    /// Microseconds that the energy of a step of so many columns is worth.
    pub(crate) fn step_us(&self, columns: u64, plain_us: f64) -> f64 {
        self.steps.us(columns).unwrap_or(0.0) * self.worth(plain_us)
    }

    /// Microseconds that the energy of a draft step of so many microseconds is worth.
    pub(crate) fn draft_us(&self, us: f64, plain_us: f64) -> f64 {
        let (energy, time) = self.drafts;
        if time > 0.0 { us * energy / time * self.worth(plain_us) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculation::{
        budget::{self, Batch, Node},
        ledger::Credit,
    };

    const MOST: usize = 12;
    const RIGHT: f64 = 0.8;

    /// Columns are nearly free in time, and energy pays for each.
    fn time(nodes: usize) -> f64 {
        100.0 + 4.0 * nodes as f64
    }

    fn energy(nodes: usize) -> f64 {
        1000.0 * (1.0 + 0.6 * nodes as f64)
    }

    /// Tokens of a step with so many nodes.
    fn tokens(nodes: usize) -> f64 {
        (1.0 - RIGHT.powi(nodes as i32 + 1)) / (1.0 - RIGHT)
    }

    /// The least time a token at no more than this energy a token: the best mixture of two lengths.
    fn best(budget: f64) -> f64 {
        let mut best = f64::INFINITY;
        for a in 0..=MOST {
            for b in 0..=MOST {
                for i in 0..=1000 {
                    let share = f64::from(i) / 1000.0;
                    let mean = |f: fn(usize) -> f64| share * f(a) + (1.0 - share) * f(b);
                    if mean(energy) <= budget * mean(tokens) {
                        best = best.min(mean(time) / mean(tokens));
                    }
                }
            }
        }
        best
    }

    /// What comes of many steps: energy and time a token, and the mean of the queue.
    fn run(budget: EnergyBudget, steps: u32) -> (f64, f64, f64) {
        let mut queue = EnergyQueue::new(budget, None);
        let mut rich = Credit::default();
        rich.lend(1e9);
        let nodes: Vec<Node> = (0..MOST as u32)
            .map(|index| Node { gain: RIGHT.powi(index as i32 + 1), part: 0, index })
            .collect();
        for nodes in 0..=MOST {
            queue.steps.learn(1 + nodes as u64, energy(nodes));
        }
        let mut random = dunlin_units::SeedTree::root(1).child("energy").stream();
        let (mut all_tokens, mut all_energy, mut all_time, mut owed) = (0.0, 0.0, 0.0, 0.0);
        for _ in 0..steps {
            let batch = Batch { parts: &[rich], plain_us: 100.0, slack: 0.0 };
            let worth = |nodes: usize| queue.step_us(1 + nodes as u64, 100.0);
            let chosen = budget::choose(&batch, &nodes, time, worth).nodes;
            let right = (0..chosen).take_while(|_| random.next_unit() < RIGHT).count();
            queue.step(1 + chosen as u64, energy(chosen) as u64, 1 + right as u64);
            all_tokens += 1.0 + right as f64;
            (all_energy, all_time) = (all_energy + energy(chosen), all_time + time(chosen));
            owed += queue.owed;
        }
        (all_energy / all_tokens, all_time / all_tokens, owed / f64::from(steps))
    }

    #[test]
    fn the_average_keeps_to_the_budget_and_time_is_near_the_best() {
        const STEPS: u32 = 200_000;
        let microjoules = 1000;
        let best = best(microjoules as f64);
        let (unlimited, fastest, _) = run(EnergyBudget { microjoules: 1_000_000, v: 1 }, STEPS);
        assert!(unlimited > 1.3 * microjoules as f64 && fastest < best * 0.9);
        let mut before: Option<(f64, f64)> = None;
        // How far time may be above the best, at each `v`; docs/systems.toml says how far it is.
        for (v, most) in [(4, 0.12), (40, 0.015), (400, 0.002)] {
            let (energy, time, queue) = run(EnergyBudget { microjoules, v }, STEPS);
            // What is owed at the end, over all tokens, is the most that it may be above.
            assert!(energy <= microjoules as f64 * (1.0 + f64::from(v) / f64::from(STEPS)));
            let gap = time / best - 1.0;
            assert!(gap < most, "v {v}: {energy} uJ a token, gap {gap}, queue {queue}");
            if let Some((gap_before, queue_before)) = before {
                // Ten times `v`: a queue some ten times as long, and a gap that many times smaller.
                assert!((4.0..15.0).contains(&(queue / queue_before)), "{queue} {queue_before}");
                assert!(gap < gap_before / 5.0, "{gap} {gap_before}");
            }
            before = Some((gap, queue));
        }
    }

    #[test]
    fn where_no_choice_is_within_the_budget_the_thriftiest_is_taken() {
        let (energy, _, queue) = run(EnergyBudget { microjoules: 10, v: 8 }, 20_000);
        let least =
            (0..=MOST).map(|n| super::tests::energy(n) / tokens(n)).fold(f64::INFINITY, f64::min);
        assert!(energy < least * 1.03, "{energy} {least}");
        assert!(queue <= 8.0 * MOST_QUEUE);
    }
}
