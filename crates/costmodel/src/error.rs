//! What can be wrong with a cost model.

/// A cost model that makes no sense, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct CostError {
    /// Which part, as the file names it.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl CostError {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// The same within a part that is named `outer`.
    pub(crate) fn within(self, outer: &str) -> Self {
        Self { field: format!("{outer}.{}", self.field), ..self }
    }
}

impl From<dunlin_spec::SpecError> for CostError {
    fn from(e: dunlin_spec::SpecError) -> Self {
        Self { field: e.field, problem: e.problem }
    }
}

/// `value` must be finite and not negative.
pub(crate) fn not_negative(field: &str, value: f64) -> Result<(), CostError> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(CostError::new(field, format!("{value} must be finite and not negative")))
}

/// `value` must be finite and above zero.
pub(crate) fn above_zero(field: &str, value: f64) -> Result<(), CostError> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(CostError::new(field, format!("{value} must be finite and above zero")))
}
