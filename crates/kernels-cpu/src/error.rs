//! What goes wrong here.

use crate::Isa;

/// Errors of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A name that is no instruction set.
    #[error("{value:?} is no instruction set; DUNLIN_ISA takes scalar, avx2, avx512 or neon")]
    UnknownIsa {
        /// The name.
        value: String,
    },
    /// An instruction set that this CPU lacks.
    #[error("this CPU lacks {isa}; the best that it has is {best}")]
    UnsupportedIsa {
        /// What was asked for.
        isa: Isa,
        /// The best that exists.
        best: Isa,
    },
    /// Memory for keys and values could not be had.
    #[error("no memory for {bytes} bytes of keys and values: {reason}")]
    KvMemory {
        /// The bytes asked for.
        bytes: usize,
        /// The system's reason.
        reason: String,
    },
    /// The system refused to start a thread.
    #[error("{wanted} threads were asked for, and the system refused one: {problem}")]
    Threads {
        /// The team's size.
        wanted: usize,
        /// The system's reason.
        problem: String,
    },
    /// Memory for a step's activations could not be had.
    #[error("no memory for {bytes} bytes of a step's activations; use smaller steps")]
    StepMemory {
        /// The bytes asked for.
        bytes: usize,
    },
    /// Shapes that do not fit together.
    #[error("{what}: {problem}")]
    BadShape {
        /// What has the wrong shape.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}
