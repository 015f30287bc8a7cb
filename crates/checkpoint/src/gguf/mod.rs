//! The GGUF container: metadata and tensors in one file, versions 2 and 3, little-endian.
//!
//! [`Gguf`] reads one file, [`GgufParts`] a model that may be split over several, and
//! [`GgufWriter`] writes one. Reading is lazy: after one pass that checks every length, values stay
//! byte ranges of the file, so a vocabulary of a quarter of a million strings costs no allocation.
//! What keys and tensor names mean is not decided here (see `arch`).
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod container;
mod parts;
mod reader;
mod types;
mod value;
mod write;

pub use parts::{GgufParts, part_paths};
pub use reader::{Gguf, TensorInfo};
pub use value::{Array, ArrayIter, Strings, Value, ValueType};
pub use write::{GgufWriter, MetaValue, TensorWriter};

pub(crate) use types::unsupported_type;

/// The first four bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// The alignment of tensor data where `general.alignment` does not say otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Limits that no sane file reaches, so that a lying one is refused early and by name.
pub(crate) mod limits {
    /// Bytes of a key (the format's own limit).
    pub const KEY_BYTES: u64 = 65_535;
    /// Bytes of a tensor's name (the format says 64; some writers go beyond).
    pub const TENSOR_NAME_BYTES: u64 = 1024;
    /// Dimensions of a tensor.
    pub const DIMS: u32 = 4;
    /// Arrays inside arrays.
    pub const ARRAY_DEPTH: u32 = 4;
    /// `general.alignment`.
    pub const ALIGNMENT: u64 = 1 << 16;
    /// Files of a split model.
    pub const PARTS: u32 = 4096;
}
