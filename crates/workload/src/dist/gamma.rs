//! The gamma distribution: Marsaglia and Tsang, "A simple method for generating gamma variables",
//! ACM Transactions on Mathematical Software 26 (2000).

use dunlin_units::Stream;

use super::{unit_exponential, unit_normal};
use crate::math;

#[derive(Debug, Clone)]
pub(super) struct Gamma {
    shape: f64,
    scale: f64,
    /// The method's d and c, for the shape or, where that is below 1, for the shape plus 1.
    d: f64,
    c: f64,
}

impl Gamma {
    /// With this mean and deviation over mean.
    pub(super) fn new(mean: f64, cv: f64) -> Self {
        let shape = 1.0 / (cv * cv);
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        Self { shape, scale: mean / shape, d, c: 1.0 / (9.0 * d).sqrt() }
    }

    pub(super) fn mean(&self) -> f64 {
        self.shape * self.scale
    }

    pub(super) fn draw(&self, random: &mut Stream) -> f64 {
        let v = loop {
            let x = unit_normal(random);
            let t = 1.0 + self.c * x;
            if t <= 0.0 {
                continue;
            }
            let (v, u, square) = (t * t * t, 1.0 - random.next_unit(), x * x);
            // The first suffices nine times in ten, and saves the logarithms.
            if u < 1.0 - 0.0331 * square * square
                || math::ln(u) < 0.5 * square + self.d * (1.0 - v + math::ln(v))
            {
                break v;
            }
        };
        let large = self.d * v * self.scale;
        if self.shape >= 1.0 {
            return large;
        }
        // A draw for the shape plus 1, times u^(1 / shape).
        large * math::exp(-unit_exponential(random) / self.shape)
    }
}
