//! How a weight tensor is stored.

use serde::{Deserialize, Serialize};

use std::fmt;

/// The storage type of a weight tensor, as GGUF names them.
///
/// A row of a tensor is a sequence of blocks of [`WeightType::block_len`] values, each of
/// [`WeightType::block_bytes`] bytes; blocks never cross rows.
#[derive(Debug, Clone, Serialize, Deserialize, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types, reason = "the names are the format's own")]
pub enum WeightType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

impl WeightType {
    /// Every supported type.
    pub const ALL: [WeightType; 16] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::BF16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q5_0,
        WeightType::Q5_1,
        WeightType::Q8_0,
        WeightType::Q2_K,
        WeightType::Q3_K,
        WeightType::Q4_K,
        WeightType::Q5_K,
        WeightType::Q6_K,
        WeightType::IQ4_NL,
        WeightType::IQ4_XS,
        WeightType::MXFP4,
    ];

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        use WeightType::*;
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        use WeightType::*;
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q2_K => 84,
            Q3_K => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            IQ4_XS => 136,
            MXFP4 => 17,
        }
    }

    /// Bytes of a row of `len` values, or `None` where `len` is not a whole number of blocks or
    /// the size overflows.
    pub fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The id of this type in a GGUF tensor table.
    pub const fn ggml_id(self) -> u32 {
        use WeightType::*;
        match self {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q2_K => 10,
            Q3_K => 11,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
            IQ4_NL => 20,
            IQ4_XS => 23,
            BF16 => 30,
            MXFP4 => 39,
        }
    }

    /// The type with this id in a GGUF tensor table, where it is supported.
    pub fn from_ggml_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.ggml_id() == id)
    }

    /// The type's usual name, in upper case.
    pub const fn name(self) -> &'static str {
        use WeightType::*;
        match self {
            F32 => "F32",
            F16 => "F16",
            BF16 => "BF16",
            Q4_0 => "Q4_0",
            Q4_1 => "Q4_1",
            Q5_0 => "Q5_0",
            Q5_1 => "Q5_1",
            Q8_0 => "Q8_0",
            Q2_K => "Q2_K",
            Q3_K => "Q3_K",
            Q4_K => "Q4_K",
            Q5_K => "Q5_K",
            Q6_K => "Q6_K",
            IQ4_NL => "IQ4_NL",
            IQ4_XS => "IQ4_XS",
            MXFP4 => "MXFP4",
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for t in WeightType::ALL {
            assert_eq!(WeightType::from_ggml_id(t.ggml_id()), Some(t));
        }
        assert_eq!(WeightType::from_ggml_id(4), None, "Q4_2 was removed from the format");
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(WeightType::Q4_1.row_bytes(576), Some(360));
        assert_eq!(WeightType::Q4_K.row_bytes(576), None);
        assert_eq!(WeightType::F32.row_bytes(usize::MAX), None);
    }
}
