//! Kernels for the CPU: scalar reference and SIMD, one result for all of them.
//!
//! Every function here keeps "same prefix, same bits": its result is bit-identical on every
//! instruction set, for any number of threads, and whatever else is in the batch. This is the only
//! compute crate with `unsafe` code; its public functions are safe unless they say otherwise.
//! It schedules nothing and knows no model architecture.

pub mod attention;
pub mod elementwise;
mod error;
mod isa;
pub mod kv;
pub mod matmul;
pub mod pack;
pub mod pool;
pub mod probe;
pub mod program;
pub mod screen;
pub mod simd;

pub use error::KernelError;
pub use isa::{CpuFeatures, ISA_VARIABLE, Isa};
