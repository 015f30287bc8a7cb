//! From a model file to a pack.

use super::{BYTE_ORDER, DATA_START, Index, MAGIC, MatrixEntry, VERSION};
use crate::weights::{MatrixKey, VectorKey};
use crate::{ModelError, vocabulary, weights};
use dunlin_checkpoint::{MatrixView, ModelFile, Role};
use dunlin_kernels_cpu::pack::{PANEL_ROWS, PackedLayout, pack_rest, pack_rows};
use std::io::{self, Write};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes packed at a time.
const CHUNK_BYTES: usize = 16 << 20;

/// A pack that is laid out but not yet written.
pub(crate) struct Plan<'a> {
    file: &'a ModelFile,
    matrices: Vec<(MatrixView<'a>, PackedLayout, usize)>,
    vectors: Vec<(usize, Vec<f32>)>,
    tables: Vec<u8>,
    tables_at: usize,
    index: Vec<u8>,
    index_at: usize,
}

/// Hands out offsets on 64-byte borders.
struct Allocator(usize);

impl Allocator {
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let at = self.0.checked_next_multiple_of(64)?;
        self.0 = at.checked_add(bytes)?;
        Some(at)
    }
}

impl<'a> Plan<'a> {
    /// Lays out a pack of `file`.
    pub fn new(file: &'a ModelFile, fingerprint: &str) -> Result<Self, ModelError> {
        let spec = file.spec();
        let path = || file.path().to_path_buf();
        let too_large = || ModelError::TooLarge { path: path(), bytes: u64::MAX };
        let split_head = weights::split_head();
        let mut at = Allocator(DATA_START);
        let mut matrices = Vec::new();
        for key in weights::matrices(spec) {
            let view = file.matrix(key.role, key.layer, key.expert);
            let view = view.ok_or_else(|| missing(file, key))?;
            let layout = weights::layout(spec, split_head, &key, view.ty, (view.rows, view.cols));
            let layout = layout.ok_or_else(|| missing(file, key))?;
            let offset = at.take(layout.bytes()).ok_or_else(too_large)?;
            matrices.push((view, layout, offset));
        }
        let mut vectors = Vec::new();
        for (key, len) in weights::vectors(spec) {
            let values = vector(file, key, len)?;
            vectors.push((at.take(4 * len).ok_or_else(too_large)?, values));
        }
        let tables = vocabulary::tables(file)?;
        let tables_at = at.take(tables.len()).ok_or_else(too_large)?;
        let templates = file.chat_templates()?;
        let index = Index {
            fingerprint: fingerprint.to_owned(),
            source: file.path().display().to_string(),
            source_bytes: file.files().iter().filter_map(|p| Some(p.metadata().ok()?.len())).sum(),
            // That of short contexts; `long_spec` is the other.
            spec: file.spec_for_context(1),
            long_spec: long_spec(file),
            split_head,
            matrices: matrices.iter().map(|(view, _, offset)| entry(view, *offset)).collect(),
            vectors: vectors.iter().map(|(at, values)| (*at, values.len())).collect(),
            tokenizer: (tables_at, tables.len()),
            chat_templates: templates.iter().map(|(n, t)| (n.to_string(), t.to_string())).collect(),
        };
        let index = serde_json::to_vec(&index).expect("an index is plain data");
        let index_at = at.take(index.len()).ok_or_else(too_large)?;
        Ok(Plan { file, matrices, vectors, tables, tables_at, index, index_at })
    }

    /// Bytes of the pack.
    pub fn len(&self) -> usize {
        self.index_at + self.index.len()
    }

    /// Writes the pack, with `threads` threads.
    pub fn write(&self, out: &mut dyn Write, threads: usize) -> io::Result<()> {
        let mut out = Counted { out, at: 0 };
        out.put(0, &self.header())?;
        let mut chunk = Vec::new();
        for (view, layout, offset) in &self.matrices {
            out.pad_to(*offset)?;
            let mut panels = Panels { view, layout, threads, chunk: &mut chunk };
            panels.write(layout.panel_bytes(), pack_rows, &mut out)?;
            if layout.rest_bytes() > 0 {
                panels.write(layout.rest_bytes(), pack_rest, &mut out)?;
            }
        }
        for (offset, values) in &self.vectors {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            out.put(*offset, &bytes)?;
        }
        out.put(self.tables_at, &self.tables)?;
        out.put(self.index_at, &self.index)
    }

    fn header(&self) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_ne_bytes());
        header.extend(BYTE_ORDER.to_ne_bytes());
        let (at, len) = (self.index_at as u64, self.index.len() as u64);
        for value in [at, len, xxh3_64(&self.index), self.len() as u64] {
            header.extend(value.to_le_bytes());
        }
        header
    }

    /// The model.
    pub fn file(&self) -> &ModelFile {
        self.file
    }
}

/// A writer that knows how far it is.
struct Counted<'a> {
    out: &'a mut dyn Write,
    at: usize,
}

impl Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len();
        Ok(())
    }

    fn pad_to(&mut self, offset: usize) -> io::Result<()> {
        self.write(&vec![0; offset - self.at])
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.pad_to(offset)?;
        self.write(bytes)
    }
}

/// The panels of one matrix, to be written.
struct Panels<'a> {
    view: &'a MatrixView<'a>,
    layout: &'a PackedLayout,
    threads: usize,
    chunk: &'a mut Vec<u8>,
}

impl Panels<'_> {
    /// Writes `size` bytes of each panel, which `pack` makes of its rows.
    fn write(
        &mut self,
        size: usize,
        pack: fn(&PackedLayout, &[&[u8]], &mut [u8]),
        out: &mut Counted<'_>,
    ) -> io::Result<()> {
        let Panels { view, layout, threads, chunk } = self;
        let (view, layout) = (*view, *layout);
        let each = (CHUNK_BYTES / size).max(1);
        let mut first = 0;
        while first < layout.panels() {
            let n = each.min(layout.panels() - first);
            chunk.resize(n * size, 0);
            let per_thread = n.div_ceil((*threads).max(1));
            std::thread::scope(|scope| {
                for (i, part) in chunk.chunks_mut(per_thread * size).enumerate() {
                    scope.spawn(move || {
                        for (j, panel) in part.chunks_exact_mut(size).enumerate() {
                            let start = (first + i * per_thread + j) * PANEL_ROWS;
                            let rows = start..(start + PANEL_ROWS).min(view.rows);
                            let rows: Vec<&[u8]> = rows.map(|r| view.row(r)).collect();
                            pack(layout, &rows, panel);
                        }
                    });
                }
            });
            out.write(chunk)?;
            first += n;
        }
        Ok(())
    }
}

fn entry(view: &MatrixView<'_>, offset: usize) -> MatrixEntry {
    MatrixEntry { ty: view.ty, rows: view.rows, cols: view.cols, offset }
}

fn missing(file: &ModelFile, key: MatrixKey) -> ModelError {
    let name = format!("{:?} of layer {}, expert {}", key.role, key.layer, key.expert);
    ModelError::MissingTensor { path: file.path().to_path_buf(), name }
}

fn vector(file: &ModelFile, key: VectorKey, len: usize) -> Result<Vec<f32>, ModelError> {
    let (values, name) = match key {
        VectorKey::One(role, layer) => {
            (file.vector(role, layer), format!("{role:?} of layer {layer}"))
        }
        VectorKey::QkvBias(layer) => {
            let biases = [Role::QBias, Role::KBias, Role::VBias].map(|r| file.vector(r, layer));
            let joined = biases.into_iter().collect::<Option<Vec<_>>>().map(|b| b.concat());
            (joined, format!("biases of layer {layer}"))
        }
    };
    values
        .filter(|v| v.len() == len)
        .ok_or_else(|| ModelError::MissingTensor { path: file.path().to_path_buf(), name })
}

/// The spec of long contexts and where they begin, for models that have two.
fn long_spec(file: &ModelFile) -> Option<(usize, dunlin_spec::ModelSpec)> {
    let from = file.long_context_from()?;
    Some((from, file.spec_for_context(from)))
}
