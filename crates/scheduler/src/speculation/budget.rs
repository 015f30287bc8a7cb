//! Which nodes of a batch's drafts are verified: optimal stopping over the whole batch.
//!
//! The nodes of all drafts, by the probability that they come to be accepted (a node's own times
//! those of all before it), the most probable first, are a sequence in which every beginning is
//! closed under parents: the best choice of any size is such a beginning (TETRIS, C016). How many of
//! them is a question of the ratio of tokens gained to time, which rises and then falls: the number
//! that maximizes it is the threshold rule of optimal stopping (UCB-SpecStop, A016), with the
//! measured cost of a step of so many columns (which is how mixtures of experts and batches differ)
//! in the place of its delay. No nodes are chosen that could put a sequence behind plain decoding
//! by more than its credit.

use super::ledger::Credit;

/// How much better than plain a choice must promise to be.
const MARGIN: f64 = 1.02;

/// A node that could be verified.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Node {
    /// The probability that it is accepted.
    pub(crate) gain: f64,
    /// Whose, as an index of the parts.
    pub(crate) part: u32,
    /// Its index in the draft.
    pub(crate) index: u32,
}

/// A batch of sequences that decode.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    /// Each sequence's credit.
    pub(crate) parts: &'a [Credit],
    /// Microseconds of a step without drafts.
    pub(crate) plain_us: f64,
    /// The slack of the credits.
    pub(crate) slack: f64,
}

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    /// Nodes, from the first.
    pub(crate) nodes: usize,
    /// Tokens that the step is expected to give.
    pub(crate) tokens: f64,
    /// Microseconds that it is expected to take, with what its energy is worth.
    pub(crate) us: f64,
}

/// Puts nodes into their order.
pub(crate) fn sort(nodes: &mut [Node]) {
    // Parents before children: their gain is no smaller, and their index is.
    nodes.sort_unstable_by(|a, b| {
        b.gain.total_cmp(&a.gain).then(a.part.cmp(&b.part)).then(a.index.cmp(&b.index))
    });
}

/// How many of the nodes, which are in their order, to verify; `cost(n)` is what a step with `n` of
/// them takes, and `worth(n)` what its energy is worth on top.
pub(crate) fn choose(
    batch: &Batch<'_>,
    nodes: &[Node],
    cost: impl Fn(usize) -> f64,
    worth: impl Fn(usize) -> f64,
) -> Choice {
    let sequences = batch.parts.len() as f64;
    let plain = Choice { nodes: 0, tokens: sequences, us: batch.plain_us + worth(0) };
    let mut best = plain;
    let mut best_rate = sequences / plain.us * MARGIN;
    let mut gains = vec![1.0; batch.parts.len()];
    let mut tokens = sequences;
    for (n, node) in (1..).zip(nodes) {
        gains[node.part as usize] += node.gain;
        tokens += node.gain;
        let us = cost(n).max(batch.plain_us);
        let price = us + worth(n);
        if tokens / price <= best_rate {
            continue;
        }
        let allowed = batch
            .parts
            .iter()
            .zip(&gains)
            .all(|(credit, &gain)| us <= credit.longest_us(gain, batch.plain_us, batch.slack));
        if allowed {
            best_rate = tokens / price;
            best = Choice { nodes: n, tokens, us: price };
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculation::{Experts, columns::ColumnCost};

    /// Any of the ways to cut the drafts, the best.
    fn brute_force(chains: &[Vec<f64>], cost: &dyn Fn(usize) -> f64) -> f64 {
        let mut cuts = vec![0; chains.len()];
        let mut best = 0.0f64;
        loop {
            let n = cuts.iter().sum();
            let gain: f64 =
                chains.iter().zip(&cuts).map(|(c, &cut)| 1.0 + c[..cut].iter().sum::<f64>()).sum();
            best = best.max(gain / cost(n));
            let Some(next) = (0..cuts.len()).find(|&i| cuts[i] < chains[i].len()) else {
                return best;
            };
            cuts[next] += 1;
            cuts[..next].fill(0);
        }
    }

    #[test]
    fn it_is_the_best_of_all_cuts() {
        for seed in 0..300u64 {
            let mut random = dunlin_units::SeedTree::root(seed).child("budget").stream();
            let mut unit = || random.next_below(1000) as f64 / 1000.0;
            let chains: Vec<Vec<f64>> = (0..1 + (unit() * 4.0) as usize)
                .map(|_| {
                    let mut all = 1.0;
                    let length = (unit() * 5.0) as usize;
                    std::iter::repeat_with(|| {
                        all *= unit();
                        all
                    })
                    .take(length)
                    .collect()
                })
                .collect();
            let (step, jump) = (unit() * 0.5, unit());
            let cost = |n: usize| 1.0 + step * n as f64 + jump * (n / 4) as f64;
            let mut nodes: Vec<Node> = (0..)
                .zip(&chains)
                .flat_map(|(part, chain)| {
                    (0..).zip(chain).map(move |(index, &gain)| Node { gain, part, index })
                })
                .collect();
            sort(&mut nodes);
            let mut rich = Credit::default();
            rich.lend(1e9);
            let parts = vec![rich; chains.len()];
            let batch = Batch { parts: &parts, plain_us: 1.0, slack: 0.0 };
            let choice = choose(&batch, &nodes, cost, |_| 0.0);
            let best = brute_force(&chains, &cost);
            let plain = chains.len() as f64;
            if best > plain * MARGIN * 1.000_001 {
                let rate = choice.tokens / choice.us;
                assert!((rate - best).abs() < 1e-9, "seed {seed}: {rate} {best}");
            } else {
                assert_eq!(choice.nodes, 0, "seed {seed}");
            }
            // What is chosen of each draft is a beginning of it.
            let mut had = vec![0; chains.len()];
            for node in &nodes[..choice.nodes] {
                assert_eq!(had[node.part as usize], node.index, "seed {seed}");
                had[node.part as usize] += 1;
            }
        }
    }

    #[test]
    fn the_threshold_of_geometric_acceptance() {
        // Draft length by optimal stopping: minimize (delay + n) / (expected tokens), in closed form
        // a threshold that rises with the delay and is one node below a critical delay.
        let mut before = 0;
        for delay in [1.0, 2.0, 5.0, 20.0, 100.0, 1000.0] {
            let mut gain = 1.0;
            let nodes: Vec<Node> = (0..60)
                .map(|index| {
                    gain *= 0.8;
                    Node { gain, part: 0, index }
                })
                .collect();
            let mut rich = Credit::default();
            rich.lend(1e9);
            let batch = Batch { parts: &[rich], plain_us: delay, slack: 0.0 };
            let chosen = choose(&batch, &nodes, |n| delay + n as f64, |_| 0.0).nodes;
            let ratio = |n: i32| (delay + f64::from(n)) / ((1.0 - 0.8f64.powi(n + 1)) / 0.2);
            let wanted = (0..=60).min_by(|&a, &b| ratio(a).total_cmp(&ratio(b))).unwrap();
            assert_eq!(chosen as i32, wanted, "delay {delay}");
            assert!(chosen >= before);
            before = chosen;
        }
    }

    #[test]
    fn at_the_same_budget_it_gains_more_than_equal_parts() {
        let mut random = dunlin_units::SeedTree::root(3).child("parts").stream();
        let (mut greedy, mut equal) = (0u32, 0u32);
        for _ in 0..2000 {
            // Four easy and hard sequences, and a budget of eight nodes.
            let rates: Vec<f64> = (0..4).map(|_| random.next_below(100) as f64 / 100.0).collect();
            let right: Vec<u32> = rates
                .iter()
                .map(|&r| (0..8).take_while(|_| (random.next_below(1000) as f64) < r * 1e3).count())
                .map(|right| right as u32)
                .collect();
            let mut nodes: Vec<Node> = (0..4)
                .flat_map(|part: u32| {
                    let rate = rates[part as usize];
                    (0..8u32).map(move |index| Node {
                        gain: rate.powi(index as i32 + 1),
                        part,
                        index,
                    })
                })
                .collect();
            sort(&mut nodes);
            greedy += nodes[..8].iter().filter(|n| n.index < right[n.part as usize]).count() as u32;
            equal += right.iter().map(|&r| r.min(2)).sum::<u32>();
        }
        // 28% more at this seed.
        assert!(greedy * 100 > equal * 120, "{greedy} and {equal}");
    }

    #[test]
    fn nobody_is_put_behind() {
        let nodes: Vec<Node> = (0..4).map(|index| Node { gain: 0.9, part: 0, index }).collect();
        let mut rich = Credit::default();
        rich.lend(1e6);
        // The second has no draft and no credit: a step may take it no longer than the slack.
        let parts = [rich, Credit::default()];
        let batch = Batch { parts: &parts, plain_us: 100.0, slack: 0.02 };
        assert_eq!(choose(&batch, &nodes, |n| 100.0 + n as f64, |_| 0.0).nodes, 2);
        assert_eq!(choose(&batch, &nodes, |n| 100.0 + 3.0 * n as f64, |_| 0.0).nodes, 0);
        let batch = Batch { parts: &parts[..1], ..batch };
        assert_eq!(choose(&batch, &nodes, |n| 100.0 + 3.0 * n as f64, |_| 0.0).nodes, 4);
    }

    #[test]
    fn the_first_draft_of_a_mixture_is_as_long_as_its_experts_allow() {
        // Steps of which the experts take a part, as many different ones as so many tokens meet.
        let mut lost = 0.0f64;
        for (permille, rate) in [(900, 0.7), (900, 0.95), (300, 0.8), (100, 0.9)] {
            let experts = Experts { count: 64, used: 8, permille };
            let truth = |nodes: usize| {
                let met = 8.0 * (1.0 - 0.875f64.powi(nodes as i32 + 1));
                let share = f64::from(permille) / 1e3;
                100.0 * (1.0 - share + share * met + 0.05 * nodes as f64)
            };
            let mut gain = 1.0;
            let nodes: Vec<Node> = (0..5)
                .map(|index| {
                    gain *= rate;
                    Node { gain, part: 0, index }
                })
                .collect();
            let mut rich = Credit::default();
            rich.lend(1e9);
            let batch = Batch { parts: &[rich], plain_us: 100.0, slack: 0.0 };
            // A plain step is all that was seen.
            let speed = |experts| {
                let mut cost = ColumnCost::new(experts);
                cost.learn(1, 100.0);
                let us = |n: usize| cost.us(n as u64 + 1).expect("one was seen");
                let chosen = choose(&batch, &nodes, us, |_| 0.0).nodes;
                (1.0 + nodes[..chosen].iter().map(|n| n.gain).sum::<f64>()) / truth(chosen)
            };
            let of = |n: usize| (1.0 + nodes[..n].iter().map(|n| n.gain).sum::<f64>()) / truth(n);
            let best = (0..=5).map(of).fold(0.0, f64::max);
            assert!(speed(Some(experts)) * MARGIN >= best, "{permille} {rate}");
            lost = lost.max(1.0 - speed(None) / best);
        }
        // Whoever does not know of experts drafts too much.
        assert!(lost > 0.2, "{lost}");
    }
}
