//! Why a row could not be quantized.

use dunlin_spec::WeightType;

/// Why [`quantize_row`](crate::quantize_row) refused a row.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The row's length is not a whole number of blocks, or its byte buffer has another size.
    #[error(
        "{values} values do not make {bytes} bytes of {ty}, which stores {} values in {} bytes",
        ty.block_len(),
        ty.block_bytes()
    )]
    RowLength {
        /// The type asked for.
        ty: WeightType,
        /// Values given.
        values: usize,
        /// Bytes given to store them in.
        bytes: usize,
    },
    /// A value is infinite or not a number.
    #[error("value {index} of the row is {value}; only finite values can be quantized")]
    NotFinite {
        /// Its index in the row.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value is too large for the type, or a scale that it needs is.
    #[error("the block from value {index} of the row on has values too large for {ty}")]
    TooLarge {
        /// The type asked for.
        ty: WeightType,
        /// Index in the row of the block's first value.
        index: usize,
    },
}
