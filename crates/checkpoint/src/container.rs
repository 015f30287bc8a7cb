//! What GGUF and safetensors have in common: named tensors in a few files, and metadata.

use dunlin_spec::WeightType;

use crate::{CheckpointError, arch::Lookup, error::Result};

/// A tensor's shape, type and place, the same for every kind of file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorDesc {
    pub ty: WeightType,
    /// Values of a row: the dimension that varies fastest.
    pub cols: usize,
    /// Rows of one slice.
    pub rows: usize,
    /// Slices: the product of all further dimensions.
    pub slices: usize,
    /// The number of dimensions in the file.
    pub rank: usize,
    /// Which of the container's files.
    pub file: usize,
    /// From the start of that file.
    pub offset: u64,
    pub bytes: u64,
}

impl TensorDesc {
    /// The shape with the outermost dimension first, as matrices are written.
    pub fn shape(&self) -> Vec<usize> {
        match self.rank {
            0 | 1 => vec![self.cols],
            2 => vec![self.rows, self.cols],
            _ => vec![self.slices, self.rows, self.cols],
        }
    }
}

/// The files of one model.
pub(crate) trait Container: Lookup + Send + Sync {
    /// The tensor of a name.
    fn tensor(&self, name: &str) -> Option<TensorDesc>;

    /// Every tensor, in the order of the files.
    fn tensors(&self) -> Vec<(&str, TensorDesc)>;

    /// Bytes of one of the files; empty where they do not exist.
    fn bytes(&self, file: usize, offset: u64, len: u64) -> &[u8];
}

/// The values of a tensor of floats.
///
/// # Errors
/// Quantized tensors: nothing that is read so may be quantized.
pub(crate) fn floats(store: &dyn Container, name: &str, t: &TensorDesc) -> Result<Vec<f32>> {
    decode_floats(t.ty, store.bytes(t.file, t.offset, t.bytes)).ok_or_else(|| {
        CheckpointError::BadTensor {
            name: name.into(),
            problem: format!("is {}; only F32, F16 and BF16 are allowed for it", t.ty),
        }
    })
}

/// Float values as f32, exactly; `None` for other types.
pub(crate) fn decode_floats(ty: WeightType, bytes: &[u8]) -> Option<Vec<f32>> {
    let pairs = bytes.as_chunks::<2>().0.iter();
    match ty {
        WeightType::F32 => {
            Some(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        WeightType::F16 => Some(pairs.map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()),
        WeightType::BF16 => Some(pairs.map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect()),
        _ => None,
    }
}
