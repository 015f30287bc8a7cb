//! Writes GGUF files, version 3, little-endian, alignment 32.
//!
//! Metadata and the tensor table are given first, tensor data is streamed after them in the same
//! order, so that a file larger than memory can be written.

use std::io::{self, Write};

use dunlin_spec::WeightType;

use super::{DEFAULT_ALIGNMENT, MAGIC, value::ValueType};

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    U64(u64),
    I64(i64),
    F64(f64),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Strs(Vec<String>),
    /// Strings that need not be UTF-8.
    Bytes(Vec<Vec<u8>>),
}

macro_rules! from {
    ($($t:ty => $v:ident),* $(,)?) => {$(
        impl From<$t> for MetaValue {
            fn from(value: $t) -> Self {
                Self::$v(value)
            }
        }
    )*};
}
from!(u8 => U8, u16 => U16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64,
    bool => Bool, String => Str, Vec<u32> => U32s, Vec<i32> => I32s, Vec<f32> => F32s,
    Vec<bool> => Bools, Vec<String> => Strs, Vec<Vec<u8>> => Bytes);

impl From<&str> for MetaValue {
    fn from(value: &str) -> Self {
        Self::Str(value.into())
    }
}

impl MetaValue {
    fn encode(&self, out: &mut Vec<u8>) {
        fn id(out: &mut Vec<u8>, ty: ValueType) {
            out.extend(ty.id().to_le_bytes());
        }
        fn head(out: &mut Vec<u8>, elem: ValueType, len: usize) {
            id(out, ValueType::Array);
            id(out, elem);
            out.extend((len as u64).to_le_bytes());
        }
        macro_rules! number {
            ($v:expr, $ty:ident) => {{
                id(out, ValueType::$ty);
                out.extend($v.to_le_bytes());
            }};
        }
        macro_rules! numbers {
            ($v:expr, $ty:ident) => {{
                head(out, ValueType::$ty, $v.len());
                $v.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }};
        }
        match self {
            Self::U8(v) => number!(v, U8),
            Self::I8(v) => number!(v, I8),
            Self::U16(v) => number!(v, U16),
            Self::I16(v) => number!(v, I16),
            Self::U32(v) => number!(v, U32),
            Self::I32(v) => number!(v, I32),
            Self::F32(v) => number!(v, F32),
            Self::U64(v) => number!(v, U64),
            Self::I64(v) => number!(v, I64),
            Self::F64(v) => number!(v, F64),
            Self::Bool(v) => number!(u8::from(*v), Bool),
            Self::Str(v) => {
                id(out, ValueType::Str);
                string(out, v.as_bytes());
            }
            Self::U32s(v) => numbers!(v, U32),
            Self::I32s(v) => numbers!(v, I32),
            Self::F32s(v) => numbers!(v, F32),
            Self::Bools(v) => {
                head(out, ValueType::Bool, v.len());
                out.extend(v.iter().map(|b| u8::from(*b)));
            }
            Self::Strs(v) => {
                head(out, ValueType::Str, v.len());
                v.iter().for_each(|s| string(out, s.as_bytes()));
            }
            Self::Bytes(v) => {
                head(out, ValueType::Str, v.len());
                v.iter().for_each(|s| string(out, s));
            }
        }
    }
}

fn string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s);
}

/// The header of a file to be written: metadata and the tensor table.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, MetaValue)>,
    tensors: Vec<(String, Vec<u64>, WeightType, u64)>,
}

impl GgufWriter {
    /// A file without metadata or tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key. The reader refuses a file that has a key twice.
    pub fn meta(&mut self, key: impl Into<String>, value: impl Into<MetaValue>) -> &mut Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Declares a tensor of shape `dims`, the fastest-varying first (`[columns, rows]`).
    ///
    /// # Errors
    /// Rows that are not whole blocks, and sizes that overflow.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        dims: &[u64],
        ty: WeightType,
    ) -> io::Result<&mut Self> {
        let bytes = dims.split_first().and_then(|(&cols, rest)| {
            let row = ty.row_bytes(usize::try_from(cols).ok()?)? as u64;
            rest.iter().try_fold(row, |n, &d| n.checked_mul(d))
        });
        let name = name.into();
        let Some(bytes) = bytes else {
            let problem = format!("tensor {name} of shape {dims:?} has no size as {ty}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        };
        self.tensors.push((name, dims.to_vec(), ty, bytes));
        Ok(self)
    }

    /// Writes the header; the tensors' data follows through the result, in declared order.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn start<W: Write>(&self, mut out: W) -> io::Result<TensorWriter<W>> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            string(&mut header, key.as_bytes());
            value.encode(&mut header);
        }
        let mut offset = 0u64;
        for (name, dims, ty, bytes) in &self.tensors {
            string(&mut header, name.as_bytes());
            header.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| header.extend(d.to_le_bytes()));
            header.extend(ty.ggml_id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = offset
                .checked_add(*bytes)
                .and_then(|o| o.checked_next_multiple_of(DEFAULT_ALIGNMENT))
                .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        out.write_all(&header)?;
        let expected = self.tensors.iter().rev().map(|t| (t.0.clone(), t.3)).collect();
        Ok(TensorWriter { out, expected })
    }

    /// The whole file, from each declared tensor's data in order.
    ///
    /// # Errors
    /// Data whose number or lengths differ from what was declared.
    pub fn to_bytes<T: AsRef<[u8]>>(&self, data: &[T]) -> io::Result<Vec<u8>> {
        let mut writer = self.start(Vec::new())?;
        for tensor in data {
            writer.write(tensor.as_ref())?;
        }
        writer.finish()
    }
}

/// Takes the tensors' data, one call for each, in declared order.
#[derive(Debug)]
pub struct TensorWriter<W> {
    out: W,
    /// Names and sizes still to come, the last first.
    expected: Vec<(String, u64)>,
}

impl<W: Write> TensorWriter<W> {
    /// Writes the next tensor.
    ///
    /// # Errors
    /// Those of the output, and data that is not as long as declared.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        let problem = match self.expected.pop() {
            Some((_, bytes)) if bytes == data.len() as u64 => {
                self.out.write_all(data)?;
                let pad = bytes.next_multiple_of(DEFAULT_ALIGNMENT) - bytes;
                return self.out.write_all(&[0; DEFAULT_ALIGNMENT as usize][..pad as usize]);
            }
            Some((name, bytes)) => {
                format!("tensor {name} has {} bytes of data, {bytes} were declared", data.len())
            }
            None => "more tensors than were declared".into(),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }

    /// Ends the file and gives the output back, flushed.
    ///
    /// # Errors
    /// Those of the output, and tensors that were declared and not written.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some((name, _)) = self.expected.last() {
            let problem = format!("tensor {name} was declared and not written");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}
