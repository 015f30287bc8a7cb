//! How far a sequence is ahead of plain decoding: what it may risk on drafts.
//!
//! A sequence that decodes is credited, for each token that it gains, with the time that the step
//! would have taken without drafts and a little more (the slack), and is charged with the time that
//! passed. Its credit is how much sooner it is where it is than it would be without speculation,
//! plus the slack of all its time. Nothing is risked that could take a credit below zero, of any
//! sequence of the batch: those that have no drafts pay for those of others, too. So no request is
//! slower than plain decoding by more than the slack and one step's misjudgement, whatever drafters
//! say and whoever made the prompt.

/// Of plain steps, the most that a credit holds: a text that was easy at first is not made to pay
/// for all that was won.
const MOST_STEPS: f64 = 12.0;

/// Microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Credit {
    /// Up to the last step.
    settled: f64,
    /// What drafting has taken since then. It is spent whether the draft is verified or not, so it
    /// does not count against verifying it; it counts against drafting again.
    spent: f64,
}

impl Credit {
    /// A step has ended in which the sequence gained `tokens`. It took `us`, and would have taken
    /// `plain_us` without drafts.
    pub(crate) fn step(&mut self, tokens: u64, us: f64, plain_us: f64, slack: f64) {
        let earned = tokens as f64 * plain_us * (1.0 + slack) - us;
        self.settled = (self.us() + earned).min(MOST_STEPS * plain_us);
        self.spent = 0.0;
    }

    /// Time has passed in which it gained nothing because of drafting.
    pub(crate) fn wait(&mut self, us: f64) {
        self.spent += us;
    }

    /// Some of a cost is to be paid by what is still to come.
    pub(crate) fn lend(&mut self, us: f64) {
        self.settled += us;
    }

    /// The longest that a step may take that gains it `tokens`, on average, so that it does not fall
    /// behind.
    pub(crate) fn longest_us(self, tokens: f64, plain_us: f64, slack: f64) -> f64 {
        self.settled + tokens * plain_us * (1.0 + slack)
    }

    /// What there is.
    pub(crate) fn us(self) -> f64 {
        self.settled - self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_is_paid_may_be_verified_and_none_is_asked_for_on_top() {
        let mut credit = Credit::default();
        credit.step(1, 100.0, 100.0, 0.02);
        let before = credit.longest_us(2.0, 100.0, 0.02);
        credit.wait(60.0);
        assert_eq!(credit.longest_us(2.0, 100.0, 0.02), before);
        assert!((credit.us() - -58.0).abs() < 1e-9);
        // Whatever came of it, it is charged with the step.
        credit.step(1, 110.0, 100.0, 0.02);
        assert!((credit.us() - -66.0).abs() < 1e-9);
        assert!(credit.longest_us(1.0, 100.0, 0.02) < 40.0);
    }

    #[test]
    fn slack_is_saved_up_and_spent() {
        let mut credit = Credit::default();
        for _ in 0..50 {
            credit.step(1, 100.0, 100.0, 0.02);
        }
        assert!((credit.us() - 100.0).abs() < 1e-6);
        // A step of 150 that gains nothing more is within it; after it, one of 160 would not be.
        assert!(credit.longest_us(1.0, 100.0, 0.02) > 150.0);
        credit.step(1, 150.0, 100.0, 0.02);
        assert!(credit.longest_us(1.0, 100.0, 0.02) < 160.0);
        // What was gained can be risked, but not all of it for ever.
        for _ in 0..100 {
            credit.step(8, 150.0, 100.0, 0.02);
        }
        assert!((credit.us() - 1200.0).abs() < 1e-6);
        credit.wait(200.0);
        assert!((credit.us() - 1000.0).abs() < 1e-6);
    }
}
