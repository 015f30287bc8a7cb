//! Buffers that all threads of a step share.
//!
//! Threads write disjoint parts of a buffer between two barriers; the slices handed out here are
//! raw for that reason, and every use says which part is whose.

use crate::elementwise::{self, QuantizedMut};
use crate::matmul::{Columns, FloatColumns, Int8Columns, half_block_sum};
use crate::pack::BLOCK;
use crate::{CpuFeatures, KernelError};
use dunlin_spec::ActivationPrecision;
use std::ops::Range;

/// In which precisions the products that read an activation buffer want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActNeeds {
    /// As f32: float weights, or f32 activations asked for.
    pub float: bool,
    /// As one or two int8 columns.
    pub int8: Option<Int8Kind>,
}

/// How quantized activations are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int8Kind {
    /// One column a token.
    Single,
    /// A high and a low column a token.
    Split,
}

impl ActNeeds {
    /// Adds what a product with weights of the given kind needs.
    pub fn add(&mut self, float_weights: bool, precision: ActivationPrecision) {
        match precision {
            _ if float_weights => self.float = true,
            ActivationPrecision::F32 => self.float = true,
            ActivationPrecision::Int8 => self.int8 = Some(Int8Kind::Single),
            ActivationPrecision::Split => self.int8 = Some(Int8Kind::Split),
        }
    }
}

/// A growable buffer, 64-byte aligned, whose parts several threads write at once.
#[derive(Debug)]
pub(super) struct Shared<T> {
    lines: Vec<Line>,
    /// A buffer of the caller's that stands in for `lines` during a step.
    lent: Option<*mut T>,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: plain data; access is coordinated by the callers of `slice_mut`.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared { lines: Vec::new(), lent: None, len: 0 }
    }
}

impl<T: Copy> Shared<T> {
    /// Makes room for `len` values; their content is unspecified.
    pub fn resize(&mut self, len: usize) -> Result<(), KernelError> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| too_large(usize::MAX))?;
        let lines = bytes.div_ceil(64);
        if lines > self.lines.len() {
            let more = lines - self.lines.len();
            self.lines.try_reserve_exact(more).map_err(|_| too_large(bytes))?;
            self.lines.resize(lines, Line([0; 64]));
        }
        self.len = len;
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn slice(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds; any bit pattern is a valid number; writers are elsewhere by the
        // operations' division of work.
        unsafe {
            std::slice::from_raw_parts(self.pointer().add(range.start), range.end - range.start)
        }
    }

    /// # Safety
    /// No other thread reads or writes the range until the next barrier.
    #[allow(clippy::mut_from_ref, reason = "threads write disjoint parts")]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds, and exclusive by the caller's contract.
        unsafe {
            std::slice::from_raw_parts_mut(self.pointer().add(range.start), range.end - range.start)
        }
    }

    pub fn pointer(&self) -> *mut T {
        self.lent.unwrap_or_else(|| self.lines.as_ptr().cast::<T>().cast_mut())
    }

    /// Reads and writes go to `buffer` until [`Shared::take_back`].
    ///
    /// # Safety
    /// `buffer` must outlive that call and not be used in between.
    pub unsafe fn lend(&mut self, buffer: &mut [T]) {
        self.lent = Some(buffer.as_mut_ptr());
        self.len = buffer.len();
    }

    /// Ends [`Shared::lend`].
    pub fn take_back(&mut self) {
        self.lent = None;
        self.len = 0;
    }
}

fn too_large(bytes: usize) -> KernelError {
    KernelError::StepMemory { bytes }
}

/// Rows of f32.
#[derive(Debug)]
pub(super) struct Floats {
    pub width: usize,
    pub values: Shared<f32>,
}

impl Floats {
    pub fn row(&self, t: usize) -> &[f32] {
        self.values.slice(t * self.width..(t + 1) * self.width)
    }

    /// # Safety
    /// As [`Shared::slice_mut`], for the row.
    #[allow(clippy::mut_from_ref, reason = "threads write disjoint rows")]
    pub unsafe fn row_mut(&self, t: usize) -> &mut [f32] {
        // SAFETY: the caller's contract.
        unsafe { self.values.slice_mut(t * self.width..(t + 1) * self.width) }
    }
}

/// Rows of activations, in every precision that a product wants.
#[derive(Debug)]
pub(super) struct Acts {
    pub width: usize,
    pub needs: ActNeeds,
    pub rows: usize,
    x: Shared<f32>,
    x_sums: Shared<f32>,
    q: Shared<i8>,
    d: Shared<f32>,
    ds: Shared<f32>,
    sums: Shared<i16>,
}

impl Acts {
    pub fn new(width: usize, needs: ActNeeds) -> Self {
        Acts {
            width,
            needs,
            rows: 0,
            x: Shared::default(),
            x_sums: Shared::default(),
            q: Shared::default(),
            d: Shared::default(),
            ds: Shared::default(),
            sums: Shared::default(),
        }
    }

    fn blocks(&self) -> usize {
        self.width.div_ceil(BLOCK)
    }

    fn columns_per_row(&self) -> usize {
        if self.needs.int8 == Some(Int8Kind::Split) { 2 } else { 1 }
    }

    pub fn resize(&mut self, rows: usize) -> Result<(), KernelError> {
        let blocks = self.blocks();
        self.rows = rows;
        if self.needs.float {
            self.x.resize(rows * blocks * BLOCK)?;
            self.x_sums.resize(2 * rows * blocks)?;
        }
        if self.needs.int8.is_some() {
            let columns = rows * self.columns_per_row();
            self.q.resize(columns * blocks * BLOCK)?;
            self.d.resize(columns * blocks)?;
            self.ds.resize(columns * blocks)?;
            self.sums.resize(2 * columns * blocks)?;
        }
        Ok(())
    }

    /// Sets row `t` to `x`.
    ///
    /// # Safety
    /// No other thread touches row `t` until the next barrier.
    pub unsafe fn set(&self, cpu: CpuFeatures, t: usize, x: &[f32]) {
        assert_eq!(x.len(), self.width);
        let blocks = self.blocks();
        // SAFETY: every range below is row `t`'s.
        unsafe {
            if self.needs.float {
                let row = self.x.slice_mut(t * blocks * BLOCK..(t + 1) * blocks * BLOCK);
                row[..x.len()].copy_from_slice(x);
                row[x.len()..].fill(0.0);
                let sums = self.x_sums.slice_mut(2 * t * blocks..2 * (t + 1) * blocks);
                for (sum, half) in sums.iter_mut().zip(row.chunks_exact(BLOCK / 2)) {
                    *sum = half_block_sum(half);
                }
            }
            match self.needs.int8 {
                None => {}
                Some(Int8Kind::Single) => {
                    elementwise::quantize(cpu, x, self.column_mut(t));
                    self.finish_column(t);
                }
                Some(Int8Kind::Split) => {
                    let (high, low) = (self.column_mut(2 * t), self.column_mut(2 * t + 1));
                    elementwise::quantize_split(cpu, x, high, low);
                    self.finish_column(2 * t);
                    self.finish_column(2 * t + 1);
                }
            }
        }
    }

    /// # Safety
    /// No other thread touches the column until the next barrier.
    unsafe fn column_mut(&self, c: usize) -> QuantizedMut<'_> {
        let blocks = self.blocks();
        // SAFETY: the caller's contract.
        unsafe {
            QuantizedMut {
                q: self.q.slice_mut(c * blocks * BLOCK..(c + 1) * blocks * BLOCK),
                d: self.d.slice_mut(c * blocks..(c + 1) * blocks),
                sums: self.sums.slice_mut(2 * c * blocks..2 * (c + 1) * blocks),
            }
        }
    }

    /// # Safety
    /// As [`Acts::column_mut`].
    unsafe fn finish_column(&self, c: usize) {
        let blocks = self.blocks();
        let d = self.d.slice(c * blocks..(c + 1) * blocks);
        let sums = self.sums.slice(2 * c * blocks..2 * (c + 1) * blocks);
        // SAFETY: the caller's contract.
        let ds = unsafe { self.ds.slice_mut(c * blocks..(c + 1) * blocks) };
        for (b, ds) in ds.iter_mut().enumerate() {
            *ds = d[b] * (f32::from(sums[2 * b]) + f32::from(sums[2 * b + 1]));
        }
    }

    /// Copies row `from` of `other` (of the same shape) to row `t`.
    ///
    /// # Safety
    /// No other thread touches row `t` until the next barrier.
    pub unsafe fn copy_row(&self, t: usize, other: &Acts, from: usize) {
        assert_eq!((self.width, self.needs), (other.width, other.needs));
        let blocks = self.blocks();
        unsafe fn copy<T: Copy>(to: &Shared<T>, from: &Shared<T>, t: usize, f: usize, n: usize) {
            let source = from.slice(f * n..(f + 1) * n);
            // SAFETY: the row is the caller's.
            unsafe { to.slice_mut(t * n..(t + 1) * n) }.copy_from_slice(source);
        }
        // SAFETY: the caller's contract.
        unsafe {
            if self.needs.float {
                copy(&self.x, &other.x, t, from, blocks * BLOCK);
                copy(&self.x_sums, &other.x_sums, t, from, 2 * blocks);
            }
            if self.needs.int8.is_some() {
                let c = self.columns_per_row();
                copy(&self.q, &other.q, t, from, c * blocks * BLOCK);
                copy(&self.d, &other.d, t, from, c * blocks);
                copy(&self.ds, &other.ds, t, from, c * blocks);
                copy(&self.sums, &other.sums, t, from, 2 * c * blocks);
            }
        }
    }

    /// Rows as the columns of a product with float or with quantized weights.
    pub fn columns(&self, float_weights: bool, rows: Range<usize>) -> Columns<'_> {
        let blocks = self.blocks();
        let n = rows.len();
        let per = |size: usize| rows.start * size..rows.end * size;
        match self.needs.int8 {
            Some(kind) if !float_weights => {
                let c = self.columns_per_row();
                let columns = Int8Columns {
                    n: n * c,
                    blocks,
                    q: self.q.slice(per(c * blocks * BLOCK)),
                    d: self.d.slice(per(c * blocks)),
                    ds: self.ds.slice(per(c * blocks)),
                    sums: self.sums.slice(per(2 * c * blocks)),
                };
                match kind {
                    Int8Kind::Single => Columns::Int8(columns),
                    Int8Kind::Split => Columns::Split(columns),
                }
            }
            _ => Columns::Float(FloatColumns {
                n,
                blocks,
                x: self.x.slice(per(blocks * BLOCK)),
                sums: self.x_sums.slice(per(2 * blocks)),
            }),
        }
    }
}
