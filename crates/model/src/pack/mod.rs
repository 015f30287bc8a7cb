//! Packs: a model's weights in the kernels' layout, with its spec and its tokenizer's tables, in
//! one file that a start maps and uses at once.
//!
//! ```text
//! 0        header: magic, version, byte order, where the index is and its hash, the file's length
//! 4096     packed matrices, vectors, tokenizer tables, each from a 64-byte border
//! index    JSON
//! ```
//!
//! A pack holds what the model file holds, rearranged: nothing is lost, and every CPU can use it,
//! whichever made it. (How the head is laid out follows what is fast on the one that did.) It is written beside its final name and renamed when complete, so a reader
//! sees all of it or none.

mod build;
mod cache;

pub use cache::PackSource;
pub(crate) use cache::{existing, obtain};

use crate::weights;
use dunlin_checkpoint::source::Mapping;
use dunlin_kernels_cpu::pack::{PackBuffer, PackedLayout, PackedMatrix};
use dunlin_spec::{ModelSpec, WeightType};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Raised whenever the layout of packs or of the tables in them changes.
const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"dunlinpk";
/// Reads differently on a machine of the other byte order.
const BYTE_ORDER: u32 = 0x0102_0304;
const HEADER_BYTES: usize = 48;
/// Where the first matrix stands.
const DATA_START: usize = 4096;
/// An index larger than this is not believed.
const INDEX_LIMIT: usize = 256 << 20;

/// What a pack holds and where.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    /// The fingerprint of the model's files.
    pub fingerprint: String,
    /// The model's path when the pack was made.
    pub source: String,
    /// Bytes of the model's files.
    pub source_bytes: u64,
    /// The spec, and the one for contexts of `long_from` tokens and more, where they differ.
    pub spec: ModelSpec,
    pub long_spec: Option<(usize, ModelSpec)>,
    /// Whether the head's bytes are split, see [`weights::split_head`].
    pub split_head: bool,
    /// In the order of [`weights::matrices`].
    pub matrices: Vec<MatrixEntry>,
    /// Offset and length, in the order of [`weights::vectors`].
    pub vectors: Vec<(usize, usize)>,
    /// Offset and length of the tokenizer's tables.
    pub tokenizer: (usize, usize),
    /// Names and texts.
    pub chat_templates: Vec<(String, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MatrixEntry {
    pub ty: WeightType,
    pub rows: usize,
    pub cols: usize,
    pub offset: usize,
}

/// Why a file is no pack that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadPack {
    #[error("it was made by another version")]
    Version,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("it belongs to other files")]
    OtherModel,
}

/// The bytes of a pack.
#[derive(Debug)]
pub(crate) enum PackBytes {
    Mapped(Mapping),
    Memory(PackBuffer),
}

impl AsRef<[u8]> for PackBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            PackBytes::Mapped(m) => m,
            PackBytes::Memory(m) => m.bytes(),
        }
    }
}

/// A usable pack.
#[derive(Debug)]
pub(crate) struct Pack {
    bytes: Arc<PackBytes>,
    pub index: Index,
    layouts: Vec<PackedLayout>,
}

/// The tokenizer's part of a pack, which keeps the pack alive.
pub(crate) struct TokenizerBytes {
    bytes: Arc<PackBytes>,
    range: Range<usize>,
}

impl AsRef<[u8]> for TokenizerBytes {
    fn as_ref(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }
}

impl Pack {
    /// Checks a pack's bytes. `fingerprint` is that of the model it must belong to.
    pub fn open(bytes: PackBytes, fingerprint: &str) -> Result<Self, BadPack> {
        let data = bytes.as_ref();
        let index = read_index(data)?;
        if index.fingerprint != fingerprint {
            return Err(BadPack::OtherModel);
        }
        let layouts = check_index(&index, data.len())?;
        Ok(Pack { bytes: Arc::new(bytes), index, layouts })
    }

    fn data(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// All matrices, as the program names them.
    pub fn matrices(&self) -> Vec<PackedMatrix<'_>> {
        let data = self.data();
        let matrices = self.layouts.iter().zip(&self.index.matrices).map(|(layout, entry)| {
            PackedMatrix::new(layout, &data[entry.offset..entry.offset + layout.bytes()])
                .expect("lengths and alignment were checked when the pack was opened")
        });
        matrices.collect()
    }

    /// Bytes of each matrix.
    pub fn layouts(&self) -> &[PackedLayout] {
        &self.layouts
    }

    /// All vectors, as the program names them.
    pub fn vectors(&self) -> Vec<Vec<f32>> {
        let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let vector = |&(offset, len): &(usize, usize)| {
            self.data()[offset..offset + 4 * len].chunks_exact(4).map(float).collect()
        };
        self.index.vectors.iter().map(vector).collect()
    }

    /// The tokenizer's tables.
    pub fn tokenizer(&self) -> TokenizerBytes {
        let (offset, len) = self.index.tokenizer;
        TokenizerBytes { bytes: Arc::clone(&self.bytes), range: offset..offset + len }
    }

    /// Bytes of the whole pack.
    pub fn len(&self) -> usize {
        self.data().len()
    }

    /// The spec for a context of `context` tokens.
    pub fn spec_for(&self, context: usize) -> &ModelSpec {
        match &self.index.long_spec {
            Some((from, spec)) if context >= *from => spec,
            _ => &self.index.spec,
        }
    }
}

fn read_index(data: &[u8]) -> Result<Index, BadPack> {
    let damaged = |what| BadPack::Damaged(what);
    let header = data.get(..HEADER_BYTES).ok_or(damaged("it is shorter than its header"))?;
    let u32_at = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    if header[..8] != MAGIC {
        return Err(damaged("it does not begin as a pack does"));
    }
    if u32_at(8) != VERSION || u32_at(12) != BYTE_ORDER {
        return Err(BadPack::Version);
    }
    let [offset, len, hash, total] = [16, 24, 32, 40].map(u64_at);
    if total != data.len() as u64 {
        return Err(damaged("its length is not what its header says"));
    }
    let end = offset.checked_add(len).filter(|&end| end <= total);
    let (Some(end), true) = (end, len <= INDEX_LIMIT as u64) else {
        return Err(damaged("its index lies outside"));
    };
    let index = &data[offset as usize..end as usize];
    if xxh3_64(index) != hash {
        return Err(damaged("its index does not have the hash that its header says"));
    }
    serde_json::from_slice(index).map_err(|_| damaged("its index cannot be read"))
}

/// Checks every offset and shape, and returns the matrices' layouts.
fn check_index(index: &Index, len: usize) -> Result<Vec<PackedLayout>, BadPack> {
    let inside = |offset: usize, bytes: usize, align: usize| {
        let end = offset.checked_add(bytes).filter(|&end| end <= len);
        if end.is_some() && offset.is_multiple_of(align) {
            Ok(())
        } else {
            Err(BadPack::Damaged("a part of it lies outside"))
        }
    };
    let keys = weights::matrices(&index.spec);
    let counts = (keys.len(), weights::vectors(&index.spec));
    if index.matrices.len() != counts.0 || index.vectors.len() != counts.1.len() {
        return Err(BadPack::Damaged("it does not hold the weights of its spec"));
    }
    let mut layouts = Vec::with_capacity(index.matrices.len());
    for (key, m) in keys.iter().zip(&index.matrices) {
        let layout = weights::layout(&index.spec, index.split_head, key, m.ty, (m.rows, m.cols));
        let layout = layout.ok_or(BadPack::Damaged("a matrix has no possible shape"))?;
        inside(m.offset, layout.bytes(), 64)?;
        layouts.push(layout);
    }
    for (&(offset, len), (_, want)) in index.vectors.iter().zip(counts.1) {
        if len != want {
            return Err(BadPack::Damaged("a vector has the wrong length"));
        }
        inside(offset, len.saturating_mul(4), 64)?;
    }
    inside(index.tokenizer.0, index.tokenizer.1, 64)?;
    Ok(layouts)
}
