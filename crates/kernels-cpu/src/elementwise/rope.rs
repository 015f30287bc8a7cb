//! Rotary position embedding: tables of cosines and sines, and the rotation.
//!
//! Frequencies and angles are computed in f64 with a portable library (so that the bits do not
//! depend on the platform's C library) and rounded once to f32.

use crate::KernelError;
use crate::simd::{LANES, Simd, simd_dispatch};
use dunlin_spec::{RopeScaling, RopeSpec};
use std::f64::consts::PI;

/// Cosines and sines of one [`RopeSpec`], for positions from zero up, computed as they are needed.
#[derive(Debug, Clone)]
pub struct RopeTable {
    /// Radians per position of each feature pair.
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by.
    attn_factor: f64,
    /// `[positions][2 * pairs]`: cosines, then sines.
    rows: Vec<f32>,
}

impl RopeTable {
    /// An empty table.
    ///
    /// # Errors
    /// The spec is inconsistent: an odd dimension, a base or a scaling out of range, or a wrong
    /// number of factors.
    pub fn new(spec: &RopeSpec) -> Result<Self, KernelError> {
        let (frequencies, attn_factor) = frequencies(spec)?;
        Ok(RopeTable { frequencies, attn_factor, rows: Vec::new() })
    }

    /// Feature pairs that rotate.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Positions that the table holds.
    pub fn positions(&self) -> usize {
        self.rows.len() / (2 * self.pairs()).max(1)
    }

    /// Radians per position of each feature pair.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Extends the table to hold positions `0..positions`.
    pub fn grow(&mut self, positions: usize) {
        for p in self.positions()..positions {
            let at = |f: &f64| p as f64 * f;
            let a = self.attn_factor;
            self.rows.extend(self.frequencies.iter().map(|f| (libm::cos(at(f)) * a) as f32));
            self.rows.extend(self.frequencies.iter().map(|f| (libm::sin(at(f)) * a) as f32));
        }
    }

    /// The cosines `[pairs]` and sines `[pairs]` of a position.
    ///
    /// # Panics
    /// Where the table has not grown so far.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let n = 2 * self.pairs();
        self.rows[position * n..(position + 1) * n].split_at(self.pairs())
    }
}

fn bad(problem: impl Into<String>) -> KernelError {
    KernelError::BadShape { what: "rotary embedding", problem: problem.into() }
}

/// Radians per position of each pair, and the factor of cosines and sines.
fn frequencies(spec: &RopeSpec) -> Result<(Vec<f64>, f64), KernelError> {
    if !spec.dim.is_multiple_of(2) {
        return Err(bad(format!("dimension {} is odd", spec.dim)));
    }
    if !(spec.base.is_finite() && spec.base > 1.0) {
        return Err(bad(format!("base {} is not a number above 1", spec.base)));
    }
    let pairs = spec.dim / 2;
    let plain = (0..pairs).map(|i| libm::pow(spec.base, -(2.0 * i as f64) / spec.dim as f64));
    let positive = |name: &str, x: f64| {
        let fine = x.is_finite() && x > 0.0;
        if fine { Ok(x) } else { Err(bad(format!("{name} {x} is not a positive number"))) }
    };
    match &spec.scaling {
        RopeScaling::None => Ok((plain.collect(), 1.0)),
        RopeScaling::Linear { factor } => {
            let factor = positive("factor", *factor)?;
            Ok((plain.map(|f| f / factor).collect(), 1.0))
        }
        RopeScaling::Factors { factors, attn_factor } => {
            if factors.len() != pairs {
                return Err(bad(format!("{} factors for {pairs} pairs", factors.len())));
            }
            for f in factors {
                positive("factor", f64::from(*f))?;
            }
            let attn = positive("attention factor", f64::from(*attn_factor))?;
            Ok((plain.zip(factors).map(|(f, d)| f / f64::from(*d)).collect(), attn))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
            let factor = positive("factor", *factor)?;
            let low = positive("low frequency factor", *low_freq_factor)?;
            let high = positive("high frequency factor", *high_freq_factor)?;
            if high <= low {
                return Err(bad(format!("high frequency factor {high} is not above {low}")));
            }
            let context = *original_context as f64;
            Ok((plain.map(|f| llama3(f, factor, low, high, context)).collect(), 1.0))
        }
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attn_factor } => {
            let factor = positive("factor", *factor)?;
            let fast = positive("beta_fast", *beta_fast)?;
            let slow = positive("beta_slow", *beta_slow)?;
            let context = positive("original context", *original_context as f64)?;
            let ramp = YarnRamp::new(spec, context, fast, slow);
            let scaled = plain.enumerate().map(|(i, f)| {
                // Interpolated where the ramp is 1, left alone where it is 0.
                let r = ramp.at(i);
                f / factor * r + f * (1.0 - r)
            });
            let attn = attn_factor.unwrap_or_else(|| yarn_attn_factor(factor));
            Ok((scaled.collect(), positive("attention factor", attn)?))
        }
    }
}

/// Llama 3.1's rule: by how often a frequency turns in the original context.
fn llama3(f: f64, factor: f64, low: f64, high: f64, context: f64) -> f64 {
    let turns = context * f / (2.0 * PI);
    if turns < low {
        f / factor
    } else if turns > high {
        f
    } else {
        let smooth = (turns - low) / (high - low);
        (1.0 - smooth) * f / factor + smooth * f
    }
}

/// YaRN's attention factor where the model does not give one (arXiv 2309.00071, equation 22).
fn yarn_attn_factor(factor: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * libm::log(factor) + 1.0 }
}

/// YaRN's ramp over feature pairs, from 0 (fast pairs, left alone) to 1 (slow, interpolated).
struct YarnRamp {
    low: f64,
    high: f64,
}

impl YarnRamp {
    fn new(spec: &RopeSpec, context: f64, fast: f64, slow: f64) -> Self {
        let dim = spec.dim as f64;
        // The pair that turns `rotations` times in the original context.
        let pair = |rotations: f64| {
            dim * libm::log(context / (rotations * 2.0 * PI)) / (2.0 * libm::log(spec.base))
        };
        let low = pair(fast).floor().max(0.0);
        let high = pair(slow).ceil().min(dim - 1.0);
        // Equal ends would divide by zero.
        YarnRamp { low, high: if low == high { high + 0.001 } else { high } }
    }

    fn at(&self, i: usize) -> f64 {
        ((i as f64 - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

#[inline(always)]
fn rope_kernel<S: Simd>(s: S, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    assert!(sin.len() == pairs && head.len() >= 2 * pairs);
    let (first, rest) = head.split_at_mut(pairs);
    let second = &mut rest[..pairs];
    let tables = cos.chunks(LANES).zip(sin.chunks(LANES));
    let halves = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
    for ((x, y), (c, d)) in halves.zip(tables) {
        let (a, b) = (s.load_partial(x), s.load_partial(y));
        let (c, d) = (s.load_partial(c), s.load_partial(d));
        s.store_partial(s.fma(a, c, s.neg(s.mul(b, d))), x);
        s.store_partial(s.fma(b, c, s.mul(a, d)), y);
    }
}

simd_dispatch! {
    /// Rotates a head in place: pair `(a, b) = (head[i], head[i + pairs])` becomes
    /// `(fma(a, cos, -(b sin)), fma(b, cos, a sin))`. `cos` and `sin` are a [`RopeTable::row`].
    ///
    /// # Panics
    /// Where the head is shorter than `2 * cos.len()`, or `cos` and `sin` differ in length.
    pub fn rope_neox(head: &mut [f32], cos: &[f32], sin: &[f32]) = rope_kernel;
}
