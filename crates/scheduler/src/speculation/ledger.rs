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
pub(crate) struct Credit(f64);

impl Credit {
    /// A step has ended in which the sequence gained `tokens`. It took `us`, and would have taken
    /// `plain_us` without drafts.
    pub(crate) fn step(&mut self, tokens: u64, us: f64, plain_us: f64, slack: f64) {
        let earned = tokens as f64 * plain_us * (1.0 + slack) - us;
        self.0 = (self.0 + earned).min(MOST_STEPS * plain_us);
    }

    /// Time has passed in which it gained nothing because of drafting.
    pub(crate) fn wait(&mut self, us: f64) {
        self.0 -= us;
    }

    /// Some of a cost is to be paid by what is still to come.
    pub(crate) fn lend(&mut self, us: f64) {
        self.0 += us;
    }

    /// The longest that a step may take that gains it `tokens`, on average, so that it does not fall
    /// behind.
    pub(crate) fn longest_us(self, tokens: f64, plain_us: f64, slack: f64) -> f64 {
        self.0 + tokens * plain_us * (1.0 + slack)
    }

    /// What there is.
    pub(crate) fn us(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
