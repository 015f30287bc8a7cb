//! What keeps a plan from being made.

use dunlin_costmodel::CostError;
use dunlin_sim::SimError;

/// A plan that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file is not the TOML that is expected.
    #[error("{0}")]
    Toml(String),
    /// A value that makes no sense.
    #[error("{key}: {problem}")]
    Value {
        /// The key, with the names of the tables that it lies in.
        key: String,
        /// What is wrong with it, and what would do.
        problem: String,
    },
    /// A simulation that the simulator refuses.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl PlanError {
    /// A value that makes no sense.
    pub fn value(key: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Value { key: key.into(), problem: problem.to_string() }
    }

    /// The same error, seen from outside a table.
    #[must_use]
    pub fn within(self, table: &str) -> Self {
        match self {
            Self::Value { key, problem } => Self::Value { key: format!("{table}.{key}"), problem },
            other => other,
        }
    }

    pub(crate) fn cost(key: &str, e: CostError) -> Self {
        Self::value(format!("{key}.{}", e.field), e.problem)
    }
}
