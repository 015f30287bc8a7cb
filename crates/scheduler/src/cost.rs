//! What a step costs, learned from the steps that ran: `a + b * tokens + c * KV positions read`.
//!
//! Least squares over the recent past, each step weighing a little less than the one after it. The
//! arithmetic is IEEE 754 in a fixed order, so a recorded run replays.

/// Of the weight of a step, what is left of it a step later.
const FORGET: f64 = 0.98;

/// Thousands of KV positions: keeps the terms of one size.
const KV_UNIT: f64 = 1.0 / 1024.0;

/// A fitted model of the time of a step.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCost {
    /// Sums of products of (1, tokens, kv), and of those with the time in microseconds.
    xx: [[f64; 3]; 3],
    xy: [f64; 3],
    steps: u64,
}

/// The shape of a step, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StepShape {
    /// Tokens that go through the model.
    pub(crate) tokens: u64,
    /// KV positions that attention reads: for each sequence, those before its last new token.
    pub(crate) kv: u64,
}

impl StepShape {
    fn terms(self) -> [f64; 3] {
        [1.0, self.tokens as f64, self.kv as f64 * KV_UNIT]
    }
}

impl StepCost {
    /// Takes note of a step.
    pub(crate) fn learn(&mut self, shape: StepShape, duration_ns: u64) {
        let x = shape.terms();
        let y = duration_ns as f64 / 1e3;
        // Relative errors count: a step's weight falls with the square of its time.
        let weight = 1.0 / (y * y).max(1.0);
        for i in 0..3 {
            for j in 0..3 {
                self.xx[i][j] = self.xx[i][j] * FORGET + weight * x[i] * x[j];
            }
            self.xy[i] = self.xy[i] * FORGET + weight * x[i] * y;
        }
        self.steps += 1;
    }

    /// The coefficients, none negative; `None` before there is anything to go by.
    pub(crate) fn fit(&self) -> Option<[f64; 3]> {
        if self.steps < 4 {
            return None;
        }
        // Terms that would be negative are left out, the least certain first.
        let mut used = [true, true, true];
        loop {
            let solution = self.solve(used);
            let worst = (0..3)
                .filter(|&i| used[i] && solution[i] < 0.0)
                .min_by(|&a, &b| solution[a].total_cmp(&solution[b]));
            match worst {
                None => return Some(solution),
                Some(i) => used[i] = false,
            }
        }
    }

    /// Solves the normal equations of the terms in use, with a little weight on small coefficients.
    fn solve(&self, used: [bool; 3]) -> [f64; 3] {
        let mut a = [[0.0; 4]; 3];
        for i in 0..3 {
            for j in 0..3 {
                a[i][j] = if used[i] && used[j] { self.xx[i][j] } else { 0.0 };
            }
            a[i][3] = if used[i] { self.xy[i] } else { 0.0 };
            a[i][i] = if used[i] { a[i][i] * (1.0 + 1e-6) + 1e-12 } else { 1.0 };
        }
        for i in 0..3 {
            for k in i + 1..3 {
                let factor = a[k][i] / a[i][i];
                let pivot = a[i];
                for (to, from) in a[k].iter_mut().zip(pivot).skip(i) {
                    *to -= factor * from;
                }
            }
        }
        let mut x = [0.0; 3];
        for i in (0..3).rev() {
            let mut sum = a[i][3];
            for j in i + 1..3 {
                sum -= a[i][j] * x[j];
            }
            x[i] = sum / a[i][i];
        }
        x
    }

    /// How many more tokens, each after `depth` positions, a step of this shape can take until its
    /// time is `percent` of what it is without them.
    pub(crate) fn room(&self, shape: StepShape, depth: u64, percent: u32) -> Option<u64> {
        let fit = self.fit()?;
        let terms = shape.terms();
        let base: f64 = (0..3).map(|i| fit[i] * terms[i]).sum();
        let each = fit[1];
        // A chunk's attention reads each position once for all of its tokens, but computes with it
        // for each of them; its cost is taken as a decode's.
        let each = each + fit[2] * depth as f64 * KV_UNIT / 16.0;
        let more = base * (f64::from(percent) / 100.0 - 1.0);
        (each > 0.0).then(|| (more / each) as u64)
    }

    /// Microseconds that `tokens` more tokens cost.
    pub(crate) fn tokens_us(&self, tokens: u64) -> Option<f64> {
        Some(self.fit()?[1] * tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_coefficients_of_exact_data() {
        let mut cost = StepCost::default();
        for i in 0..50u64 {
            let shape = StepShape { tokens: 1 + i % 7 * 13, kv: 1000 + i % 5 * 777 };
            let us = 500.0 + 30.0 * shape.tokens as f64 + 20.0 * shape.kv as f64 * KV_UNIT;
            cost.learn(shape, (us * 1e3) as u64);
        }
        let fit = cost.fit().unwrap();
        for (found, wanted) in fit.iter().zip([500.0, 30.0, 20.0]) {
            assert!((found - wanted).abs() < 0.05 * wanted, "{fit:?}");
        }
        let shape = StepShape { tokens: 8, kv: 0 };
        let room = cost.room(shape, 0, 250).unwrap();
        let wanted = (500.0 + 8.0 * 30.0) * 1.5 / 30.0;
        assert!((room as f64 - wanted).abs() < 2.0, "{room} {wanted}");
    }

    #[test]
    fn no_coefficient_is_negative() {
        let mut cost = StepCost::default();
        for i in 0..20u64 {
            // Falls with the tokens: no such cost exists.
            cost.learn(StepShape { tokens: i, kv: 0 }, 1_000_000 - i * 10_000);
        }
        assert!(cost.fit().unwrap().iter().all(|&c| c >= 0.0));
        assert!(StepCost::default().fit().is_none());
    }
}
