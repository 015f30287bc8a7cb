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

/// What a drafter's steps cost, learned.
#[derive(Debug, Clone, Default)]
pub(crate) struct DraftCost {
    fit: Fit<2>,
    /// Of a step of the model, what a pass costs at first.
    pub(crate) first_share: f64,
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

/// What is known of the batch before a drafter is asked.
pub(crate) struct Question<'a> {
    /// All sequences that decode.
    pub(crate) batch: &'a Batch<'a>,
    /// Those that would be asked for, as indices of the batch's parts, each with the probability by
    /// depth that a node is accepted where those before it are.
    pub(crate) asked: &'a [(usize, Vec<f64>)],
    /// Tokens that those not asked for are expected to gain, by part, and nodes of theirs that are
    /// verified for it.
    pub(crate) gains: &'a [f64],
    /// Nodes of drafts that are there already and will be verified, too.
    pub(crate) nodes: usize,
    /// Tokens a microsecond that can be had without asking.
    pub(crate) rate: f64,
    /// Tokens that the drafter has to catch up on first.
    pub(crate) behind: u32,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Plan {
    /// Nodes for each.
    pub(crate) nodes: usize,
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
    let count = asked.len();
    let most = asked.iter().map(|(_, rates)| rates.len()).max()?;
    let mut gains = question.gains.to_vec();
    let mut reached = vec![1.0; count];
    let mut best: Option<Plan> = None;
    let draft = |k: usize| {
        let tokens = (k * count) as f64 + f64::from(question.behind);
        cost.us(k as f64, tokens, batch.plain_us)
    };
    for k in 1..=most {
        for ((part, rates), reached) in asked.iter().zip(&mut reached) {
            *reached *= rates.get(k - 1).copied().unwrap_or(0.0);
            gains[*part] += *reached;
        }
        let us = draft(k) + verify(question.nodes + k * count).max(batch.plain_us);
        let rate = gains.iter().sum::<f64>() / us;
        let allowed = |(credit, &gain): (&Credit, &f64)| {
            us <= credit.longest_us(gain, batch.plain_us, batch.slack)
        };
        let better = best.map_or(question.rate * MARGIN, |b| b.rate);
        if rate > better && batch.parts.iter().zip(&gains).all(allowed) {
            let node_us = draft(k + 1) - draft(k) + verify(question.nodes + (k + 1) * count)
                - verify(question.nodes + k * count);
            let stop_below = (rate * node_us / count as f64).clamp(0.02, 0.9);
            best = Some(Plan { nodes: k, rate, stop_below });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question<'a>(
        batch: &'a Batch<'a>,
        asked: &'a [(usize, Vec<f64>)],
        gains: &'a [f64],
    ) -> Question<'a> {
        let rate = gains.iter().sum::<f64>() / batch.plain_us;
        Question { batch, asked, gains, nodes: 0, rate, behind: 0 }
    }

    #[test]
    fn the_length_is_the_best_of_all() {
        for (rate, share) in [(0.9, 0.1), (0.8, 0.3), (0.6, 0.2), (0.5, 0.6), (0.3, 0.1)] {
            let mut rich = Credit::default();
            rich.lend(1e9);
            let batch = Batch { parts: &[rich], plain_us: 100.0, slack: 0.0 };
            let asked = [(0, vec![rate; 12])];
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
                assert_eq!(plan.nodes as i32, best, "{rate} {share}");
                assert!((plan.rate - value(best)).abs() < 1e-12);
            } else {
                assert_eq!(plan, None, "{rate} {share}");
            }
        }
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
        let asked = [(0, vec![0.95; 8])];
        let cost = DraftCost { first_share: 0.1, ..DraftCost::default() };
        let verify = |n: usize| 100.0 + n as f64;
        let parts = [rich, Credit::default()];
        let batch = Batch { parts: &parts, plain_us: 100.0, slack: 0.02 };
        assert_eq!(length(&question(&batch, &asked, &[1.0, 1.0]), &cost, verify), None);
        let alone = Batch { parts: &parts[..1], ..batch };
        assert!(length(&question(&alone, &asked, &[1.0]), &cost, verify).is_some());
    }
}
