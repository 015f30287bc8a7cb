//! Reads one GGUF file.
//!
//! One pass over the header checks every length against the bytes that are left before anything is
//! allocated or believed; a second, over the tensor table, checks types, shapes, offsets and
//! overlaps. After that, lookups cannot fail for reasons of structure.

use std::{ops::Range, sync::Arc};

use dunlin_spec::WeightType;

use super::{
    DEFAULT_ALIGNMENT, MAGIC, limits, unsupported_type,
    value::{Value, ValueType, decode},
};
use crate::{CheckpointError, error::Result, source::ByteSource};

/// One GGUF file: metadata and tensors, both as ranges of the source.
pub struct Gguf {
    source: Arc<dyn ByteSource>,
    version: u32,
    alignment: u64,
    data_start: u64,
    entries: Vec<Entry>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
}

/// A key and where its value lies.
struct Entry {
    key: Range<usize>,
    ty: ValueType,
    value: Range<usize>,
}

/// A tensor's entry in the table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// Sizes, the fastest-varying first: `[columns, rows, ...]`. None is zero.
    pub dims: Vec<u64>,
    /// How values are stored.
    pub ty: WeightType,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// The number of values.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("keys", &self.entries.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl Gguf {
    /// Reads the header and the tensor table of a file.
    ///
    /// # Errors
    /// Every way in which the file contradicts the format, itself or its size; tensor types that
    /// are not supported.
    pub fn parse(source: Arc<dyn ByteSource>) -> Result<Self> {
        let parsed = Header::parse(source.bytes())?;
        let Header { version, alignment, data_start, entries, by_key, tensors, by_name } = parsed;
        Ok(Self { source, version, alignment, data_start, entries, by_key, tensors, by_name })
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The first byte of tensor data, from the start of the file.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &dyn ByteSource {
        &*self.source
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let bytes = self.source.bytes();
        let i = self
            .by_key
            .binary_search_by(|&i| bytes[self.entries[i as usize].key.clone()].cmp(key.as_bytes()))
            .ok()?;
        self.value(&self.entries[self.by_key[i] as usize])
    }

    /// Every key with its value, in the order of the file.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let bytes = self.source.bytes();
        self.entries.iter().filter_map(move |e| {
            let key = std::str::from_utf8(&bytes[e.key.clone()]).ok()?;
            Some((key, self.value(e)?))
        })
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        Some(decode(entry.ty, &self.source.bytes()[entry.value.clone()])?.0)
    }

    /// The tensor table, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let i = self
            .by_name
            .binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.by_name[i] as usize])
    }

    /// A tensor's bytes. `info` must come from this file's table; an empty slice otherwise.
    pub fn data(&self, info: &TensorInfo) -> &[u8] {
        self.source.slice(info.offset, info.bytes).unwrap_or(&[])
    }
}

/// What parsing finds, before it is joined with its source.
struct Header {
    version: u32,
    alignment: u64,
    data_start: u64,
    entries: Vec<Entry>,
    by_key: Vec<u32>,
    tensors: Vec<TensorInfo>,
    by_name: Vec<u32>,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut c = Cursor { bytes, pos: 0 };
        let version = read_version(&mut c)?;
        // The least that an entry takes: name length, (type and value) or (dims, type, offset).
        let n_tensors = c.count("tensors", 8 + 4 + 8 + 4 + 8)?;
        let n_keys = c.count("metadata keys", 8 + 4 + 1)?;
        let entries = read_entries(&mut c, n_keys)?;
        let by_key = sorted(&entries, |e| &bytes[e.key.clone()]);
        if let Some(pair) = duplicate(&by_key, |i| &bytes[entries[i as usize].key.clone()]) {
            let key = String::from_utf8_lossy(&bytes[entries[pair as usize].key.clone()]);
            return Err(CheckpointError::BadKey {
                key: key.into_owned(),
                problem: "appears twice".into(),
            });
        }
        let alignment = read_alignment(bytes, &entries)?;
        let mut tensors = read_tensor_table(&mut c, n_tensors, alignment)?;
        let data_start = (c.pos as u64).next_multiple_of(alignment);
        place_tensors(&mut tensors, data_start, bytes.len() as u64)?;
        let by_name = sorted(&tensors, |t| t.name.as_bytes());
        if let Some(i) = duplicate(&by_name, |i| tensors[i as usize].name.as_bytes()) {
            return Err(bad_tensor(&tensors[i as usize].name, "appears twice"));
        }
        Ok(Self { version, alignment, data_start, entries, by_key, tensors, by_name })
    }
}

/// Indices of `items`, sorted by a key. Counts fit u32: each item took more than a byte of a
/// header, and headers beyond 4 GiB are refused by [`Cursor::count`].
fn sorted<'a, T>(items: &'a [T], key: impl Fn(&'a T) -> &'a [u8]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_unstable_by(|&a, &b| key(&items[a as usize]).cmp(key(&items[b as usize])));
    order
}

fn duplicate<'a>(order: &[u32], key: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
    order.windows(2).find(|w| key(w[0]) == key(w[1])).map(|w| w[0])
}

fn bad_tensor(name: &str, problem: impl Into<String>) -> CheckpointError {
    CheckpointError::BadTensor { name: name.into(), problem: problem.into() }
}

fn read_version(c: &mut Cursor<'_>) -> Result<u32> {
    let magic: [u8; 4] = c.array("magic")?;
    if magic != MAGIC {
        return Err(c.corrupt_at(0, "no GGUF file: it does not begin with \"GGUF\""));
    }
    let version = u32::from_le_bytes(c.array("version")?);
    match version {
        2 | 3 => Ok(version),
        1 => Err(CheckpointError::UnsupportedVersion { found: "GGUF version 1".into() }),
        v if v.swap_bytes() <= 0xffff => Err(CheckpointError::UnsupportedVersion {
            found: format!("big-endian GGUF (version {})", v.swap_bytes()),
        }),
        v => Err(CheckpointError::UnsupportedVersion { found: format!("GGUF version {v}") }),
    }
}

/// Entries that memory is set aside for at once. More are real ones by then: a count that merely
/// fits the file would set aside several times the file's size.
const FIRST_CAPACITY: usize = 4096;

fn read_entries(c: &mut Cursor<'_>, n: usize) -> Result<Vec<Entry>> {
    let mut entries = Vec::with_capacity(n.min(FIRST_CAPACITY));
    for _ in 0..n {
        let start = c.pos;
        let key = c.string("metadata key", limits::KEY_BYTES)?;
        let name = std::str::from_utf8(&c.bytes[key.clone()])
            .map_err(|_| c.corrupt_at(start, "a metadata key is not UTF-8"))?;
        if name.is_empty() {
            return Err(c.corrupt_at(start, "a metadata key is empty"));
        }
        let ty = c.value_type(name)?;
        let from = c.pos;
        c.skip_value(ty, name, 0)?;
        entries.push(Entry { key, ty, value: from..c.pos });
    }
    Ok(entries)
}

fn read_alignment(bytes: &[u8], entries: &[Entry]) -> Result<u64> {
    let key = "general.alignment";
    let Some(entry) = entries.iter().find(|e| bytes[e.key.clone()] == *key.as_bytes()) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let value = decode(entry.ty, &bytes[entry.value.clone()]).map(|(v, _)| v);
    value
        .and_then(|v| v.as_u64())
        .filter(|a| a.is_power_of_two() && (8..=limits::ALIGNMENT).contains(a))
        .ok_or_else(|| CheckpointError::BadKey {
            key: key.into(),
            problem: format!("must be a power of two from 8 to {}", limits::ALIGNMENT),
        })
}

/// Reads the tensor table; offsets are still relative to the start of the data.
fn read_tensor_table(c: &mut Cursor<'_>, n: usize, alignment: u64) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::with_capacity(n.min(FIRST_CAPACITY));
    for _ in 0..n {
        let start = c.pos;
        let name = c.string("tensor name", limits::TENSOR_NAME_BYTES)?;
        let name = std::str::from_utf8(&c.bytes[name])
            .map_err(|_| c.corrupt_at(start, "a tensor name is not UTF-8"))?;
        if name.is_empty() {
            return Err(c.corrupt_at(start, "a tensor name is empty"));
        }
        let n_dims = c.u32("number of dimensions")?;
        if n_dims == 0 || n_dims > limits::DIMS {
            let max = limits::DIMS;
            return Err(bad_tensor(name, format!("{n_dims} dimensions; 1 to {max} are allowed")));
        }
        let mut dims = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            dims.push(c.u64("dimension")?);
        }
        let id = c.u32("tensor type")?;
        let offset = c.u64("tensor offset")?;
        let ty = WeightType::from_ggml_id(id).ok_or_else(|| unsupported_type(name, id))?;
        let bytes = tensor_bytes(name, &dims, ty)?;
        if !offset.is_multiple_of(alignment) {
            return Err(bad_tensor(
                name,
                format!("offset {offset} is no multiple of the alignment {alignment}"),
            ));
        }
        tensors.push(TensorInfo { name: name.into(), dims, ty, offset, bytes });
    }
    Ok(tensors)
}

/// The size of a tensor, with every product checked.
fn tensor_bytes(name: &str, dims: &[u64], ty: WeightType) -> Result<u64> {
    if dims.contains(&0) {
        return Err(bad_tensor(name, format!("a dimension is zero: {dims:?}")));
    }
    let overflow = || bad_tensor(name, format!("its size overflows: {dims:?}"));
    let cols = usize::try_from(dims[0]).map_err(|_| overflow())?;
    if !cols.is_multiple_of(ty.block_len()) {
        return Err(bad_tensor(
            name,
            format!("rows of {cols} values are not whole blocks of {} ({ty})", ty.block_len()),
        ));
    }
    let row = ty.row_bytes(cols).ok_or_else(overflow)? as u64;
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    elements.filter(|&n| i64::try_from(n).is_ok()).ok_or_else(overflow)?;
    dims[1..].iter().try_fold(row, |n, &d| n.checked_mul(d)).ok_or_else(overflow)
}

/// Makes offsets absolute and checks that tensors lie in the file and apart from each other.
fn place_tensors(tensors: &mut [TensorInfo], data_start: u64, file_len: u64) -> Result<()> {
    for t in tensors.iter_mut() {
        let end = data_start.checked_add(t.offset).and_then(|o| o.checked_add(t.bytes));
        match end {
            Some(end) if end <= file_len => t.offset += data_start,
            _ => {
                return Err(bad_tensor(
                    &t.name,
                    format!(
                        "its {} bytes at data offset {} pass the end of the file ({file_len} \
                         bytes, data from {data_start}); the file may be truncated",
                        t.bytes, t.offset
                    ),
                ));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_unstable_by_key(|t| (t.offset, t.bytes));
    match order.windows(2).find(|w| w[0].offset + w[0].bytes > w[1].offset) {
        Some(w) => Err(bad_tensor(&w[1].name, format!("overlaps tensor {}", w[0].name))),
        None => Ok(()),
    }
}

/// A position in the file that never passes its end.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn corrupt_at(&self, offset: usize, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::Corrupt { offset: offset as u64, problem: problem.into() }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        match self.bytes[self.pos..].first_chunk::<N>() {
            Some(chunk) => {
                self.pos += N;
                Ok(*chunk)
            }
            None => Err(self.corrupt_at(self.pos, format!("the file ends within a {what}"))),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things of which each takes at least `min_size` bytes.
    fn count(&mut self, what: &str, min_size: u64) -> Result<usize> {
        let at = self.pos;
        let n = self.u64("count")?;
        let most = (self.left() / min_size).min(u32::MAX.into());
        if n > most {
            let problem = format!("{n} {what} do not fit in a file of {} bytes", self.bytes.len());
            return Err(self.corrupt_at(at, problem));
        }
        Ok(n as usize)
    }

    /// The range of a string's bytes.
    fn string(&mut self, what: &str, max: u64) -> Result<Range<usize>> {
        let at = self.pos;
        let len = self.u64(what)?;
        if len > self.left() {
            let problem = format!("a {what} of {len} bytes passes the end of the file");
            return Err(self.corrupt_at(at, problem));
        }
        if len > max {
            return Err(self.corrupt_at(at, format!("a {what} of {len} bytes; at most {max}")));
        }
        let from = self.pos;
        self.pos += len as usize;
        Ok(from..self.pos)
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType> {
        let at = self.pos;
        let id = self.u32("value type")?;
        ValueType::from_id(id)
            .ok_or_else(|| self.corrupt_at(at, format!("key {key} has unknown value type {id}")))
    }

    /// Passes over a value, checking that all of it is there.
    fn skip_value(&mut self, ty: ValueType, key: &str, depth: u32) -> Result<()> {
        let at = self.pos;
        match ty {
            ValueType::Str => self.string("string", u64::MAX).map(drop),
            ValueType::Array => self.skip_array(key, depth),
            ValueType::Bool => match self.array("bool")? {
                [0 | 1] => Ok(()),
                [b] => Err(self.corrupt_at(at, format!("key {key}: {b} is no bool"))),
            },
            _ => self.skip(ty.fixed_size().unwrap_or(0), key),
        }
    }

    fn skip(&mut self, n: u64, key: &str) -> Result<()> {
        if n > self.left() {
            return Err(self.corrupt_at(self.pos, format!("the file ends within key {key}")));
        }
        self.pos += n as usize;
        Ok(())
    }

    fn skip_array(&mut self, key: &str, depth: u32) -> Result<()> {
        let at = self.pos;
        if depth >= limits::ARRAY_DEPTH {
            return Err(self.corrupt_at(at, format!("key {key}: arrays nested too deep")));
        }
        let elem = self.value_type(key)?;
        let n = self.u64("array length")?;
        if n > self.left() / elem.min_size() {
            let problem = format!("key {key}: an array of {n} values passes the end of the file");
            return Err(self.corrupt_at(at, problem));
        }
        match (elem, elem.fixed_size()) {
            (ValueType::Bool, _) => {
                let body = &self.bytes[self.pos..self.pos + n as usize];
                if body.iter().any(|b| *b > 1) {
                    return Err(self.corrupt_at(at, format!("key {key}: not all are bools")));
                }
                self.pos += n as usize;
                Ok(())
            }
            (_, Some(size)) => self.skip(n * size, key),
            // The hot loop of loading: a vocabulary's strings.
            (ValueType::Str, None) => {
                (0..n).try_for_each(|_| self.string("string", u64::MAX).map(drop))
            }
            (_, None) => (0..n).try_for_each(|_| self.skip_value(elem, key, depth + 1)),
        }
    }
}
