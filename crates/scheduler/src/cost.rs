//! What a step costs, learned from the steps that ran.
//!
//! Two fits, so that a long time of one kind of step does not blur what is known of the other:
//!
//! - steps without prompts: `a + b * sequences + c * KV positions read`;
//! - what parts of prompts add to that: `d * tokens + e * pairs`, a pair being a token of a prompt
//!   and a position that it attends to.
//!
//! Each is least squares over its recent past, with relative errors, a step weighing a little less
//! than the one after it. The arithmetic is IEEE 754 in a fixed order, so a recorded run replays.

/// Of the weight of a step, what is left of it a step of its kind later.
const FORGET: f64 = 0.97;

/// Thousands of positions: keeps the terms of one size.
const KV_UNIT: f64 = 1.0 / 1024.0;

/// Tokens by which a chunk beside decodes may exceed the last one.
const GROWTH: u64 = 8;

/// Steps of a kind before its fit is believed.
const ENOUGH: u64 = 1;

/// The shape of a step, as far as its cost depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepShape {
    /// Tokens that go through the model, all of them.
    pub(crate) tokens: u64,
    /// Tokens of sequences that decode, drafts included.
    pub(crate) decodes: u64,
    /// KV positions that their attention reads.
    pub(crate) kv: u64,
    /// Over tokens of prompts: the positions before them.
    pub(crate) pairs: u64,
}

impl StepShape {
    /// Adds a sequence's part: so many tokens, the last of them at position `end - 1`.
    pub(crate) fn add(&mut self, tokens: u64, end: u64, decodes: bool) {
        self.tokens += tokens;
        if decodes {
            self.decodes += tokens;
            self.kv += end;
        } else {
            self.pairs += tokens * (end - tokens / 2);
        }
    }

    fn base_terms(self) -> [f64; 3] {
        [1.0, self.decodes as f64, self.kv as f64 * KV_UNIT]
    }
}

/// A fitted model of the time of a step. Times are in microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCost {
    base: Fit<3>,
    prompts: Fit<2>,
    /// Prompt tokens of the last step that had both.
    last_chunk: u64,
}

impl StepCost {
    /// Takes note of a step.
    pub(crate) fn learn(&mut self, shape: StepShape, duration_ns: u64) {
        let us = duration_ns as f64 / 1e3;
        let prompts = shape.tokens - shape.decodes;
        if prompts == 0 {
            self.base.learn(shape.base_terms(), us);
            return;
        }
        if shape.decodes > 0 {
            self.last_chunk = prompts;
        }
        let base = if shape.decodes == 0 { Some(0.0) } else { self.base_us(shape) };
        if let Some(base) = base {
            let terms = [prompts as f64, shape.pairs as f64 * KV_UNIT];
            self.prompts.learn(terms, (us - base).max(0.0));
        }
    }

    /// What the sequences that decode cost without prompts.
    fn base_us(&self, shape: StepShape) -> Option<f64> {
        let fit = self.base.solve()?;
        let terms = shape.base_terms();
        Some((0..3).map(|i| fit[i] * terms[i]).sum())
    }

    /// How many tokens of a prompt, each after about `depth` positions, a step of this shape can
    /// take until its time is `percent` of what it is without them. `None` before there is anything
    /// to go by. Never much more than in the last such step, so that what a fit of few steps gets
    /// wrong shows before it hurts.
    pub(crate) fn room(&self, shape: StepShape, depth: u64, percent: u32) -> Option<u64> {
        let base = self.base_us(shape)?;
        let each = self.token_us(depth)?;
        let more = base * (f64::from(percent) / 100.0 - 1.0);
        (each > 0.0).then(|| ((more / each) as u64).min(self.last_chunk + GROWTH))
    }

    /// Microseconds that a token of a prompt costs after so many positions.
    fn token_us(&self, depth: u64) -> Option<f64> {
        let fit = self.prompts.solve()?;
        Some(fit[0] + fit[1] * depth as f64 * KV_UNIT)
    }

    /// Microseconds that computing the first `tokens` positions of a sequence costs.
    pub(crate) fn tokens_us(&self, tokens: u64) -> Option<f64> {
        Some(self.token_us(tokens / 2)? * tokens as f64)
    }
}

/// Least squares with `N` coefficients, none of them negative.
#[derive(Debug, Clone)]
pub(crate) struct Fit<const N: usize> {
    /// Sums of products of the terms, and of those with the time.
    xx: [[f64; N]; N],
    xy: [f64; N],
    steps: u64,
}

impl<const N: usize> Default for Fit<N> {
    fn default() -> Self {
        Self { xx: [[0.0; N]; N], xy: [0.0; N], steps: 0 }
    }
}

impl<const N: usize> Fit<N> {
    pub(crate) fn learn(&mut self, x: [f64; N], y: f64) {
        // Relative errors count: a step's weight falls with the square of its time.
        let weight = 1.0 / (y * y).max(1.0);
        for i in 0..N {
            for j in 0..N {
                self.xx[i][j] = self.xx[i][j] * FORGET + weight * x[i] * x[j];
            }
            self.xy[i] = self.xy[i] * FORGET + weight * x[i] * y;
        }
        self.steps += 1;
    }

    /// The coefficients; `None` before there are enough steps.
    pub(crate) fn solve(&self) -> Option<[f64; N]> {
        if self.steps < ENOUGH {
            return None;
        }
        // Terms that would be negative are left out, the worst first.
        let mut used = [true; N];
        loop {
            let solution = self.solve_with(used);
            let negative = (0..N).filter(|&i| used[i] && solution[i] < 0.0);
            match negative.min_by(|&a, &b| solution[a].total_cmp(&solution[b])) {
                None => return Some(solution),
                Some(i) => used[i] = false,
            }
        }
    }

    /// Solves the normal equations of the terms in use by elimination, with a little weight on small
    /// coefficients, which decides between terms that the steps so far cannot tell apart.
    fn solve_with(&self, used: [bool; N]) -> [f64; N] {
        let mut a = self.xx;
        let mut y = self.xy;
        for i in 0..N {
            for j in 0..N {
                if !(used[i] && used[j]) {
                    a[i][j] = 0.0;
                }
            }
            if used[i] {
                a[i][i] = a[i][i] * (1.0 + 1e-6) + 1e-12;
            } else {
                (a[i][i], y[i]) = (1.0, 0.0);
            }
        }
        for i in 0..N {
            let (pivot, value) = (a[i], y[i]);
            for k in i + 1..N {
                let factor = a[k][i] / pivot[i];
                for (to, from) in a[k].iter_mut().zip(pivot).skip(i) {
                    *to -= factor * from;
                }
                y[k] -= factor * value;
            }
        }
        let mut x = [0.0; N];
        for i in (0..N).rev() {
            let known: f64 = (i + 1..N).map(|j| a[i][j] * x[j]).sum();
            x[i] = (y[i] - known) / a[i][i];
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of known costs.
    fn step_us(shape: StepShape) -> f64 {
        let decodes = if shape.decodes == 0 {
            0.0
        } else {
            500.0 + 30.0 * shape.decodes as f64 + 20.0 * shape.kv as f64 * KV_UNIT
        };
        let prompts = (shape.tokens - shape.decodes) as f64;
        decodes + 45.0 * prompts + 25.0 * shape.pairs as f64 * KV_UNIT
    }

    fn shape(decodes: u64, depth: u64, chunk: u64, chunk_end: u64) -> StepShape {
        let mut shape = StepShape::default();
        for _ in 0..decodes {
            shape.add(1, depth, true);
        }
        if chunk > 0 {
            shape.add(chunk, chunk_end, false);
        }
        shape
    }

    #[test]
    fn it_finds_the_costs_of_a_machine_and_what_fits_beside() {
        let mut cost = StepCost::default();
        assert_eq!(cost.room(shape(8, 100, 0, 0), 0, 200), None);
        for i in 0..60 {
            let s = shape(1 + i % 8, 100 + i * 7 % 500, 0, 0);
            cost.learn(s, (step_us(s) * 1e3) as u64);
        }
        // A long time of nothing but mixed steps leaves the first fit as it is.
        for i in 0..300 {
            let s = shape(8, 200 + i, 16 + i % 3, 20 * (i + 1));
            cost.learn(s, (step_us(s) * 1e3) as u64);
        }
        for (depth, percent) in [(0, 200), (2000, 200), (4000, 150)] {
            let s = shape(8, 500, 0, 0);
            let room = cost.room(s, depth, percent).unwrap() as f64;
            let each = 45.0 + 25.0 * depth as f64 * KV_UNIT;
            let wanted = step_us(s) * (f64::from(percent) / 100.0 - 1.0) / each;
            let wanted = wanted.min((cost.last_chunk + GROWTH) as f64);
            assert!((room - wanted).abs() <= 0.02 * wanted + 1.0, "{room} {wanted}");
        }
        let wanted = 1000.0 * (45.0 + 25.0 * 500.0 * KV_UNIT);
        let found = cost.tokens_us(1000).unwrap();
        assert!((found - wanted).abs() < 0.02 * wanted, "{found} {wanted}");
    }

    #[test]
    fn no_coefficient_is_negative() {
        let mut cost = StepCost::default();
        for i in 1..20u64 {
            // Falls with the sequences: no such cost exists.
            cost.learn(shape(i, 0, 0, 0), 1_000_000 - i * 10_000);
        }
        assert!(cost.base.solve().unwrap().iter().all(|&c| c >= 0.0));
    }
}
