//! Whether a drafter that costs time is asked, and for how much.
//!
//! A draft step and the step that verifies it are worth it where together they give more tokens a
//! microsecond than the best that can be had without, by costs and rates measured so far. The length
//! is the one that maximizes that ratio; within the step, a draft ends sooner where its own
//! probability has fallen so far that another node is not worth its cost (`stop_below`: optimal
//! stopping again, and the early exit on entropy of GELATO, A055, with the drafter's own probability
//! in the place of its entropy).

use super::{budget::Batch, ledger::Credit};
use crate::cost::Fit;

/// How much better than without it must promise to be.
const MARGIN: f64 = 1.02;
/// What a token costs that a drafter catches up on, of what a pass costs, until it is measured.
const FIRST_TOKEN_SHARE: f64 = 0.12;

/// What is left of the weight of a drafter's step a step later, where its passes are counted.
const KEEP: f64 = 0.95;

/// What a drafter's steps cost, learned.
#[derive(Debug, Clone, Default)]
pub(crate) struct DraftCost {
    fit: Fit<2>,
    /// Of a step of the model, what a pass costs at first.
    pub(crate) first_share: f64,
    /// Passes after the first, of each sequence of a step, and tokens in them; fading. Drafts that have
    /// branches apart from those that have none.
    passes: [(f64, f64); 2],
}

impl DraftCost {
    pub(crate) fn learn(&mut self, passes: u32, tokens: u32, us: f64, step_us: f64) {
        if passes == 0 {
            return;
        }
        if self.fit.solve().is_none() {
            // One step does not tell passes from tokens: what was expected counts as two more.
            for (passes, tokens) in [(1.0, 1.0), (1.0, 33.0)] {
                self.fit.learn([passes, tokens], self.first_us(passes, tokens, step_us));
            }
        }
        self.fit.learn([f64::from(passes), f64::from(tokens)], us);
    }

    /// Takes note of how many tokens passes have: a step of `passes` for `sequences` sequences had
    /// `tokens`, of which `first` were the sequences' own.
    pub(crate) fn learn_passes(
        &mut self,
        branching: bool,
        (sequences, passes): (u32, u32),
        (tokens, first): (u32, u32),
    ) {
        let (all, of) = &mut self.passes[usize::from(branching)];
        *all = *all * KEEP + f64::from(sequences * passes.saturating_sub(1));
        *of = *of * KEEP + f64::from(tokens.saturating_sub(first));
    }

    /// Tokens of a sequence in a pass after the first: fewer than one where drafts end before others do,
    /// more where several nodes of a tree are computed side by side.
    fn tokens_a_pass(&self, branching: bool) -> f64 {
        let (passes, tokens) = self.passes[usize::from(branching)];
        (1.0 + tokens) / (1.0 + passes)
    }

    /// Microseconds of a step of so many passes, with so many tokens in all of them; `step_us` is
    /// what a step of the model takes.
    pub(crate) fn us(&self, passes: f64, tokens: f64, step_us: f64) -> f64 {
        match self.fit.solve() {
            Some([pass, token]) => pass * passes + token * tokens,
            None => self.first_us(passes, tokens, step_us),
        }
    }

    fn first_us(&self, passes: f64, tokens: f64, step_us: f64) -> f64 {
        let pass = self.first_share * step_us;
        pass * (passes + FIRST_TOKEN_SHARE * (tokens - passes).max(0.0))
    }
}

/// A sequence that would be drafted for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Its index among the batch's parts.
    pub(crate) part: usize,
    /// By depth, the probability that a node is accepted where those before it are.
    pub(crate) rates: Vec<f64>,
    /// By depth, the nodes of a draft that are verified: 1 at each for a chain.
    pub(crate) widths: Vec<f64>,
    /// Whether its draft may have branches.
    pub(crate) branching: bool,
}

/// What is known of the batch before a drafter is asked.
pub(crate) struct Question<'a> {
    /// All sequences that decode.
    pub(crate) batch: &'a Batch<'a>,
    /// Those that would be asked for.
    pub(crate) asked: &'a [Asked],
    /// Tokens that those not asked for are expected to gain, by part, and nodes of theirs that are
    /// verified for it.
    pub(crate) gains: &'a [f64],
    /// Nodes of drafts that are there already and will be verified, too.
    pub(crate) nodes: usize,
    /// Tokens a microsecond that can be had without asking.
    pub(crate) rate: f64,
    /// Tokens that the drafter has to catch up on first.
    pub(crate) behind: u32,
    /// Microseconds that energy is worth: of a draft step of so many microseconds, and of a step that
    /// verifies so many nodes.
    pub(crate) worth: &'a dyn Fn(f64, usize) -> f64,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    /// Nodes of each one's longest path.
    pub(crate) depth: usize,
    /// Tokens a microsecond that come of it, on average.
    pub(crate) rate: f64,
    /// The probability below which a draft ends.
    pub(crate) stop_below: f64,
}

/// The best length for a draft step, if any is worth it. `verify(n)` is what a step with `n` draft
/// nodes takes.
pub(crate) fn length(
    question: &Question<'_>,
    cost: &DraftCost,
    verify: impl Fn(usize) -> f64,
) -> Option<Plan> {
    let Question { batch, asked, .. } = question;
    let most = asked.iter().map(|of| of.rates.len()).max()?;
    let mut gains = question.gains.to_vec();
    let mut reached = vec![1.0; asked.len()];
    let mut best: Option<Plan> = None;
    // Tokens of a pass, the first of which has one of each sequence and what it is behind.
    let (first, later) =
        asked.iter().fold((f64::from(question.behind), 0.0), |(first, later), of| {
            (first + 1.0, later + cost.tokens_a_pass(of.branching))
        });
    let draft = |k: usize| cost.us(k as f64, first + (k - 1) as f64 * later, batch.plain_us);
    let width = |k: usize| -> f64 {
        asked.iter().map(|of| of.widths.get(k - 1).copied().unwrap_or(0.0)).sum()
    };
    let mut nodes = question.nodes as f64;
    for k in 1..=most {
        for (of, reached) in asked.iter().zip(&mut reached) {
            *reached *= of.rates.get(k - 1).copied().unwrap_or(0.0);
            gains[of.part] += *reached;
        }
        nodes += width(k);
        let verify = |nodes: f64| verify(nodes.round() as usize).max(batch.plain_us);
        let us = draft(k) + verify(nodes);
        let worth = (question.worth)(draft(k), nodes.round() as usize);
        let rate = gains.iter().sum::<f64>() / (us + worth);
        let allowed = |(credit, &gain): (&Credit, &f64)| {
            us <= credit.longest_us(gain, batch.plain_us, batch.slack)
        };
        let better = best.map_or(question.rate * MARGIN, |b| b.rate);
        if rate > better && batch.parts.iter().zip(&gains).all(allowed) {
            // A level more, or one more of the last where there is none.
            let level = if k < most { width(k + 1) } else { width(k) }.max(1.0);
            let level_us = draft(k + 1) - draft(k) + verify(nodes + level) - verify(nodes);
            let stop_below = (rate * level_us / level).clamp(0.02, 0.9);
            best = Some(Plan { depth: k, rate, stop_below });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question<'a>(batch: &'a Batch<'a>, asked: &'a [Asked], gains: &'a [f64]) -> Question<'a> {
        let rate = gains.iter().sum::<f64>() / batch.plain_us;
        Question { batch, asked, gains, nodes: 0, rate, behind: 0, worth: &|_, _| 0.0 }
    }

    fn chain(rate: f64, most: usize) -> Asked {
        let (rates, widths) = (vec![rate; most], vec![1.0; most]);
        Asked { part: 0, rates, widths, branching: false }
    }

    #[test]
    fn the_length_is_the_best_of_all() {
        for (rate, share) in [(0.9, 0.1), (0.8, 0.3), (0.6, 0.2), (0.5, 0.6), (0.3, 0.1)] {
            let mut rich = Credit::default();
            rich.lend(1e9);
            let batch = Batch { parts: &[rich], plain_us: 100.0, slack: 0.0 };
            let asked = [chain(rate, 12)];
            let cost = DraftCost { first_share: share, ..DraftCost::default() };
            let verify = |n: usize| 100.0 + 3.0 * n as f64;
            let plan = length(&question(&batch, &asked, &[1.0]), &cost, verify);
            let value = |k: i32| {
                let tokens = (1.0 - rate.powi(k + 1)) / (1.0 - rate);
                tokens / (f64::from(k) * share * 100.0 + verify(k as usize))
            };
            let best = (1..=12).max_by(|&a, &b| value(a).total_cmp(&value(b))).unwrap();
            if value(best) > MARGIN / 100.0 {
                let plan = plan.unwrap();
                assert_eq!(plan.depth as i32, best, "{rate} {share}");
                assert!((plan.rate - value(best)).abs() < 1e-12);
            } else {
                assert_eq!(plan, None, "{rate} {share}");
            }
        }
    }

    #[test]
    fn a_tree_costs_what_its_nodes_cost() {
        // Passes of two tokens each, levels of `width` nodes, a cost for each of these: the best of all
        // depths.
        let mut shallower = 0;
        for (rate, width, share) in [(0.9, 2.0, 0.2), (0.8, 3.0, 0.1), (0.7, 4.0, 0.05)] {
            let mut rich = Credit::default();
            rich.lend(1e9);
            let batch = Batch { parts: &[rich], plain_us: 100.0, slack: 0.0 };
            let mut cost = DraftCost { first_share: share, ..DraftCost::default() };
            for _ in 0..400 {
                cost.learn_passes(true, (1, 5), (1 + 4 * 2, 1));
            }
            assert!((cost.tokens_a_pass(true) - 2.0).abs() < 0.02);
            assert_eq!(cost.tokens_a_pass(false), 1.0);
            let verify = |n: usize| 100.0 + 6.0 * n as f64;
            let asked = Asked { widths: vec![width; 12], branching: true, ..chain(rate, 12) };
            let plan = length(&question(&batch, &[asked], &[1.0]), &cost, verify).unwrap();
            let value = |k: i32| {
                let tokens = (1.0 - rate.powi(k + 1)) / (1.0 - rate);
                let later = f64::from(k - 1) * cost.tokens_a_pass(true);
                let draft = cost.us(f64::from(k), 1.0 + later, 100.0);
                tokens / (draft + verify(k as usize * width as usize))
            };
            let best = (1..=12).max_by(|&a, &b| value(a).total_cmp(&value(b))).unwrap();
            assert_eq!(plan.depth as i32, best, "{rate} {width}");
            assert!((plan.rate - value(best)).abs() < 1e-12);
            let narrow = length(&question(&batch, &[chain(rate, 12)], &[1.0]), &cost, verify);
            shallower += usize::from(plan.depth < narrow.unwrap().depth);
        }
        assert_eq!(shallower, 3);
    }

    #[test]
    fn costs_are_learned() {
        let mut cost = DraftCost { first_share: 0.5, ..DraftCost::default() };
        assert!((cost.us(2.0, 2.0, 100.0) - 100.0).abs() < 1e-9);
        for i in 1..200u32 {
            let (passes, tokens) = (1 + i % 5, 1 + i * 7 % 40);
            let us = 10.0 * f64::from(passes) + 0.5 * f64::from(tokens);
            cost.learn(passes, tokens, us, 100.0);
        }
        assert!((cost.us(4.0, 10.0, 100.0) - 45.0).abs() < 0.5);
    }

    #[test]
    fn who_has_no_credit_waits_for_nobody() {
        let mut rich = Credit::default();
        rich.lend(1e9);
        let asked = [chain(0.95, 8)];
        let cost = DraftCost { first_share: 0.1, ..DraftCost::default() };
        let verify = |n: usize| 100.0 + n as f64;
        let parts = [rich, Credit::default()];
        let batch = Batch { parts: &parts, plain_us: 100.0, slack: 0.02 };
        assert_eq!(length(&question(&batch, &asked, &[1.0, 1.0]), &cost, verify), None);
        let alone = Batch { parts: &parts[..1], ..batch };
        assert!(length(&question(&alone, &asked, &[1.0]), &cost, verify).is_some());
    }
}
