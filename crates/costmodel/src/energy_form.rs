//! Energy as a closed form of twelve parameters, fitted from few measurements.
//!
//! After EnergyLens (the one that finds its form by symbolic regression): energy for each token in the
//! degrees of parallelism (tensor and pipeline apart), batch and sequence length, with prefill and
//! decode apart. The form here is physical: for each phase six terms, and none of them may be negative.
//!
//! | prefill, for each prompt token | decode, for each output token | what it stands for |
//! |---|---|---|
//! | 1 | 1 | arithmetic |
//! | s | s | attention |
//! | 1 / (t p) | 1 / (t b) | the machine around the devices, while they work |
//! | (p - 1) / (b t p) | p / b | stages that wait |
//! | t | t / b | all-reduces, devices that idle along |
//! | 1 / (b s) | 1 / b | weights, and what each step costs |
//!
//! b sequences of s tokens on t by p devices. Not here: what a step takes in time.

use crate::{CostError, error::above_zero, nnls::nnls};

/// Prefill or decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergyPhase {
    /// Prompts.
    Prefill,
    /// Output.
    Decode,
}

/// A configuration, as far as its energy depends on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyPoint {
    /// Which phase.
    pub phase: EnergyPhase,
    /// Devices that layers are cut over.
    pub tensor: f64,
    /// Stages.
    pub pipeline: f64,
    /// Sequences.
    pub batch: f64,
    /// Tokens of each: of the prompt, or before the one that comes.
    pub tokens: f64,
}

/// Terms of a phase.
const TERMS: usize = 6;

/// The fitted form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyForm {
    /// Joules by term.
    pub prefill: [f64; TERMS],
    /// Joules by term.
    pub decode: [f64; TERMS],
}

impl EnergyPoint {
    fn terms(&self) -> [f64; TERMS] {
        let (t, p, b, s) = (self.tensor, self.pipeline, self.batch, self.tokens);
        match self.phase {
            EnergyPhase::Prefill => {
                [1.0, s, 1.0 / (t * p), (p - 1.0) / (b * t * p), t, 1.0 / (b * s)]
            }
            EnergyPhase::Decode => [1.0, s, 1.0 / (t * b), p / b, t / b, 1.0 / b],
        }
    }
}

impl EnergyForm {
    /// Fits the form to measured joules a token; relative errors count.
    ///
    /// # Errors
    /// A phase without measurements, and energies that are not finite and above zero.
    pub fn fit(samples: &[(EnergyPoint, f64)]) -> Result<Self, CostError> {
        let phase = |phase: EnergyPhase, name: &str| {
            let own: Vec<_> = samples.iter().filter(|(point, _)| point.phase == phase).collect();
            if own.is_empty() {
                return Err(CostError::new(name, "there are no measurements; some are needed"));
            }
            own.iter().try_for_each(|(_, joules)| above_zero(name, *joules))?;
            let rows: Vec<[f64; TERMS]> = own.iter().map(|(point, _)| point.terms()).collect();
            let y: Vec<f64> = own.iter().map(|(_, joules)| *joules).collect();
            let weights: Vec<f64> = y.iter().map(|y| 1.0 / (y * y)).collect();
            Ok(nnls(&rows, &y, &weights))
        };
        Ok(Self {
            prefill: phase(EnergyPhase::Prefill, "prefill")?,
            decode: phase(EnergyPhase::Decode, "decode")?,
        })
    }

    /// Joules a token.
    pub fn joules(&self, point: &EnergyPoint) -> f64 {
        let c = match point.phase {
            EnergyPhase::Prefill => &self.prefill,
            EnergyPhase::Decode => &self.decode,
        };
        c.iter().zip(point.terms()).map(|(c, x)| c * x).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_recovered_from_its_own_points() {
        let truth = EnergyForm {
            prefill: [0.02, 1e-6, 5.0, 1.5, 1e-3, 2.0],
            decode: [0.05, 2e-6, 3.0, 0.8, 0.1, 0.4],
        };
        let mut samples = Vec::new();
        for phase in [EnergyPhase::Prefill, EnergyPhase::Decode] {
            for (i, tensor) in [1.0, 2.0, 4.0, 8.0].into_iter().enumerate() {
                for pipeline in [1.0, 2.0] {
                    for (batch, tokens) in [(1.0, 512.0), (8.0, 2048.0), (64.0, 300.0 + i as f64)] {
                        let point = EnergyPoint { phase, tensor, pipeline, batch, tokens };
                        samples.push((point, truth.joules(&point)));
                    }
                }
            }
        }
        let fitted = EnergyForm::fit(&samples).unwrap();
        for (point, joules) in &samples {
            assert!((fitted.joules(point) / joules - 1.0).abs() < 1e-5);
        }
        assert!(EnergyForm::fit(&samples[..3]).is_err(), "no decode");
    }
}
