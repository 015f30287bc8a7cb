//! The safetensors container: a JSON header, then the tensors' bytes.
//!
//! Format: <https://github.com/huggingface/safetensors#format>. Floats only; the header is held to
//! the format's own rules (no overlaps, no holes), and names may not repeat.

use std::{fmt, sync::Arc};

use dunlin_spec::WeightType;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::{CheckpointError, error::Result, source::ByteSource};

/// The format's own limit on the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Dimensions of a tensor.
const MAX_DIMS: usize = 4;

/// One safetensors file.
pub struct Safetensors {
    source: Arc<dyn ByteSource>,
    tensors: Vec<SafetensorsTensor>,
}

/// A tensor's entry in the header, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SafetensorsTensor {
    /// The name.
    pub name: String,
    /// How values are stored: F32, F16 or BF16.
    pub ty: WeightType,
    /// Sizes, the slowest-varying first: `[rows, columns]`. None is zero.
    pub shape: Vec<usize>,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl fmt::Debug for Safetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Safetensors").field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

impl Safetensors {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// Every way in which the header contradicts the format, itself or the file's size; types other
    /// than F32, F16 and BF16.
    pub fn parse(source: Arc<dyn ByteSource>) -> Result<Self> {
        let tensors = parse_header(source.bytes())?;
        Ok(Self { source, tensors })
    }

    /// The tensors, in the order of their data.
    pub fn tensors(&self) -> &[SafetensorsTensor] {
        &self.tensors
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &dyn ByteSource {
        &*self.source
    }

    /// A tensor's bytes. `tensor` must be one of this file's; an empty slice otherwise.
    pub fn data(&self, tensor: &SafetensorsTensor) -> &[u8] {
        self.source.slice(tensor.offset, tensor.bytes).unwrap_or(&[])
    }
}

fn corrupt(offset: u64, problem: impl Into<String>) -> CheckpointError {
    CheckpointError::Corrupt { offset, problem: problem.into() }
}

fn parse_header(bytes: &[u8]) -> Result<Vec<SafetensorsTensor>> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(corrupt(0, "no safetensors file: it is shorter than 8 bytes"));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(corrupt(0, format!("a header of {len} bytes; at most {MAX_HEADER}")));
    }
    if len > rest.len() as u64 {
        return Err(corrupt(0, format!("a header of {len} bytes passes the end of the file")));
    }
    let (header, data) = rest.split_at(len as usize);
    let Entries(entries) = serde_json::from_slice(header)
        .map_err(|e| corrupt(8, format!("the header cannot be read: {e}")))?;
    let mut tensors = entries
        .into_iter()
        .map(|(name, entry)| entry.check(name, 8 + len, data.len() as u64))
        .collect::<Result<Vec<_>>>()?;
    check_layout(&mut tensors, 8 + len, bytes.len() as u64)?;
    Ok(tensors)
}

/// Sorts tensors by their place, and checks that they cover the data without overlap or hole and
/// that no name is there twice.
fn check_layout(tensors: &mut [SafetensorsTensor], start: u64, file_len: u64) -> Result<()> {
    let bad =
        |name: &str, problem: String| CheckpointError::BadTensor { name: name.into(), problem };
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(w) = tensors.windows(2).find(|w| w[0].name == w[1].name) {
        return Err(bad(&w[0].name, "appears twice".into()));
    }
    tensors.sort_by_key(|t| t.offset);
    let mut end = start;
    for t in tensors.iter() {
        if t.offset != end {
            let what =
                if t.offset < end { "overlaps the tensor before it" } else { "follows a hole" };
            return Err(bad(&t.name, format!("its data {what}")));
        }
        end = t.offset + t.bytes;
    }
    if end != file_len {
        return Err(corrupt(end, format!("{} bytes belong to no tensor", file_len - end)));
    }
    Ok(())
}

/// A tensor as the header has it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    fn check(self, name: String, start: u64, data_len: u64) -> Result<SafetensorsTensor> {
        let bad = |problem: String| CheckpointError::BadTensor { name: name.clone(), problem };
        let ty = match self.dtype.as_str() {
            "F32" => WeightType::F32,
            "F16" => WeightType::F16,
            "BF16" => WeightType::BF16,
            other => {
                return Err(CheckpointError::UnsupportedTensorType {
                    tensor: name,
                    type_name: other.chars().take(40).collect(),
                    supported: "F32, F16, BF16".into(),
                });
            }
        };
        if self.shape.len() > MAX_DIMS {
            return Err(bad(format!("{} dimensions; at most {MAX_DIMS}", self.shape.len())));
        }
        if self.shape.contains(&0) {
            return Err(bad(format!("a dimension is zero: {:?}", self.shape)));
        }
        let size = ty.block_bytes() as u64;
        let bytes = self.shape.iter().try_fold(size, |n, &d| n.checked_mul(d));
        let (from, to) = self.data_offsets;
        match bytes {
            Some(n) if from <= to && to - from == n && to <= data_len => Ok(SafetensorsTensor {
                name,
                ty,
                // Their product is within the file, so each fits.
                shape: self.shape.iter().map(|d| *d as usize).collect(),
                offset: start + from,
                bytes: n,
            }),
            _ => Err(bad(format!(
                "data at {from} to {to} of {data_len} bytes does not fit shape {:?} of {ty}; the \
                 file may be truncated",
                self.shape
            ))),
        }
    }
}

/// The header's tensors, in its order, repeated names and all.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries, A::Error> {
                let mut all = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        all.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(all))
            }
        }
        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.resize(out.len() + data, 1);
        out
    }

    fn parse(header: &str, data: usize) -> Result<Safetensors> {
        Safetensors::parse(Arc::new(MemorySource(file(header, data))))
    }

    #[test]
    fn agrees_with_the_reference_library() {
        let floats: Vec<u8> = (0..24u8).collect();
        let views = [
            ("b.weight", safetensors::Dtype::F16, vec![2, 3], &floats[..12]),
            ("a", safetensors::Dtype::F32, vec![3], &floats[12..24]),
            ("c", safetensors::Dtype::BF16, vec![1, 1, 6], &floats[..12]),
        ];
        let views = views.map(|(name, dtype, shape, data)| {
            (name, safetensors::tensor::TensorView::new(dtype, shape, data).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        let ours = Safetensors::parse(Arc::new(MemorySource(bytes.clone()))).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(ours.tensors().len(), 3);
        for t in ours.tensors() {
            let want = theirs.tensor(&t.name).unwrap();
            assert_eq!(t.shape, want.shape());
            assert_eq!(t.ty.name(), format!("{:?}", want.dtype()));
            assert_eq!(ours.data(t), want.data());
        }
    }

    #[test]
    fn lies_are_refused() {
        let ok = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert_eq!(parse(ok, 8).unwrap().tensors()[0].bytes, 8);
        for (header, data, says) in [
            (ok, 7, "does not fit"),
            (ok, 9, "belong to no tensor"),
            (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#, 12, "hole"),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
                "overlaps",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#,
                12,
                "twice",
            ),
            (r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#, 8, "F32, F16, BF16"),
            (r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, 0, "zero"),
            (
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
                0,
                "does not fit",
            ),
            (r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]}}"#, 4, "dimensions"),
            (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, "cannot be read"),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#, 4, "does not fit"),
            (r#"{"a":{"dtype":"F32","shape":[1]}}"#, 4, "cannot be read"),
            ("[]", 0, "cannot be read"),
            ("{", 0, "cannot be read"),
        ] {
            let error = parse(header, data).unwrap_err().to_string();
            assert!(error.contains(says), "{header}: {error}");
        }
        let long = Safetensors::parse(Arc::new(MemorySource(vec![0xff; 64]))).unwrap_err();
        assert!(long.to_string().contains("at most"), "{long}");
    }
}
