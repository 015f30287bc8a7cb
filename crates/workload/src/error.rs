//! What is wrong with a description of a workload.

/// A description that no workload can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct SpecError {
    /// The field, with the names of what it lies in: `clients.chat.arrival.rate`.
    pub at: String,
    /// What is wrong with its value.
    pub problem: String,
}

impl SpecError {
    pub(crate) fn new(at: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { at: at.into(), problem: problem.into() }
    }

    /// The same error, seen from outside `field`.
    #[must_use]
    pub(crate) fn within(self, field: &str) -> Self {
        let at =
            if self.at.is_empty() { field.to_string() } else { format!("{field}.{}", self.at) };
        Self { at, ..self }
    }
}

/// `value`, if it is a number above zero.
pub(crate) fn positive(at: &str, value: f64) -> Result<f64, SpecError> {
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(SpecError::new(at, format!("{value} should be a finite number above zero")))
}

/// `value`, if it is a number and not below zero.
pub(crate) fn not_negative(at: &str, value: f64) -> Result<f64, SpecError> {
    if value >= 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(SpecError::new(at, format!("{value} should be a finite number, zero or above")))
}
