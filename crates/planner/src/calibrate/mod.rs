//! A cost model from steps that ran: what a record says each step was and took, and the fit to it.
//!
//! The time of a step is that between the calls of the core that planned it and that heard of its
//! end: what whoever waits for its tokens sees, the engine's own work around the forward pass
//! included.

mod fit;
mod steps;

pub use fit::{Calibration, GroupError, Outlier, StepGroup, calibrate, medians};
pub use steps::{StepReader, StepTrace, shape_of};
