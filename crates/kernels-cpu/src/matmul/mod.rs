//! Matrix products of packed weights with activations, under the law of same bits.
//!
//! # The order of every sum
//!
//! An output element `y[t][n]` is accumulated alone, from zero, over the blocks `b` of 32 inputs
//! in ascending order. It depends on row `n` of the weights and on column `t` of the activations
//! and on nothing else: not on the number of columns, the tile, the thread or the instruction set.
//! Every kernel here computes, with `fma` fused and all other operations rounded to f32:
//!
//! *int8 activations* (`q`, scale `d`, for each column and block):
//! ```text
//! i   = sum over the block of w * q                            (exact integer)
//! acc = fma(f32(i) * scale, d, acc)
//! acc = fma(min, d * f32(sum of q), acc)                       (types with a minimum)
//! ```
//! *types whose half blocks have integer scales* `s0`, `s1` (i0, i1: the halves' exact sums; the
//! products stay below 2^24, so `t` is exact whatever the order):
//! ```text
//! t   = fma(f32(i1), s1, f32(i0) * s0)
//! acc = fma(t * scale, d, acc)
//! acc = fma(fma(m1, f32(sum1), m0 * f32(sum0)) * -dmin, d, acc)   (Q2_K)
//! ```
//! *f32 activations* `x`: `i` becomes `p`, a chain of `fma(w, x, p)` in ascending order from zero,
//! `d` becomes 1 and the sums of `q` become chains of additions over each half block:
//! ```text
//! acc = fma(p, scale, acc);  acc = fma(min, sum0 + sum1, acc)
//! acc = fma(t, scale, acc)                                     (half blocks with scales)
//! ```
//! *float weights* always meet f32 activations: `acc = acc + p`.
//!
//! *high bits* `h` of split codes `c = 8 h + l` (only to choose among rows, see [`crate::screen`]): int8
//! activations as above with `w = h - 16`, `8 scale` for the scale, and the minimum `3.5 scale`.
//!
//! *split activations* are two int8 columns, the high and the low part; `y = acc_high + acc_low`.
//!
//! # Why an exact integer
//!
//! Inside a block the order is free, so each instruction set uses its widest byte dot product.
//! Bounds with |q| <= 127: 4-bit codes may take 8 multiply-add steps in an int16 lane (30,480),
//! 5-bit 4 (31,496), 6-bit 2 (32,004); signed bytes one, in the form `|w| * sign(q, w)` (32,512).
//! With VNNI the accumulator is an int32 (at most 4 * 32 * 255 * 127) and any code is made
//! unsigned by an offset that is taken back exactly.

mod acts;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod format;
mod generic;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

pub use acts::{FloatColumns, Int8Columns, half_block_sum};

use self::format::Bits;
use crate::isa::{CpuFeatures, Isa};
use crate::pack::{PANEL_ROWS, PackedMatrix};
use std::ops::Range;

/// The activations of a product: `n` columns of `cols` inputs.
#[derive(Debug, Clone, Copy)]
pub enum Columns<'a> {
    /// int8 with a scale for each block.
    Int8(Int8Columns<'a>),
    /// int8 high and low parts: columns `2 t` and `2 t + 1` make output column `t`.
    Split(Int8Columns<'a>),
    /// f32.
    Float(FloatColumns<'a>),
}

/// Where a product's result goes: element `[t][n]` at `t * stride + n`.
///
/// Threads write disjoint row ranges of one buffer, hence the raw pointer.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    ptr: *mut f32,
    len: usize,
    stride: usize,
    /// The row that stands first in each column.
    first: usize,
    add: bool,
}

// SAFETY: an `Output` is only written through `run_panels`, whose callers give each panel to one
// thread at a time.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Results overwrite (or, with `add`, are added to) `buffer`, whose row length is `stride`.
    pub fn new(buffer: &mut [f32], stride: usize, add: bool) -> Self {
        Output { ptr: buffer.as_mut_ptr(), len: buffer.len(), stride, first: 0, add }
    }

    /// Results of the rows from `first` on overwrite `buffer`: element `[t][n]` at
    /// `t * stride + n - first`.
    pub fn of_rows(buffer: &mut [f32], stride: usize, first: usize) -> Self {
        Output { first, ..Output::new(buffer, stride, false) }
    }

    /// As [`Output::new`], from a raw buffer of `len` floats.
    ///
    /// # Safety
    /// The buffer must stay valid while the output is used.
    pub(crate) unsafe fn from_raw(ptr: *mut f32, len: usize, stride: usize, add: bool) -> Self {
        Output { ptr, len, stride, first: 0, add }
    }

    /// Where row `row` of column `t` goes.
    ///
    /// # Safety
    /// The element lies in the buffer.
    #[inline(always)]
    unsafe fn at(&self, t: usize, row: usize) -> *mut f32 {
        // SAFETY: the caller's contract.
        unsafe { self.ptr.add(t * self.stride + row - self.first) }
    }

    /// Writes up to 16 values of column `t` from row `row`.
    ///
    /// # Safety
    /// The values' elements must lie in the buffer, and no other thread may touch them.
    #[inline(always)]
    unsafe fn write(&self, t: usize, row: usize, values: &[f32]) {
        debug_assert!(t * self.stride + row - self.first + values.len() <= self.len);
        // SAFETY: the caller's contract.
        let out = unsafe { std::slice::from_raw_parts_mut(self.at(t, row), values.len()) };
        for (y, v) in out.iter_mut().zip(values) {
            *y = if self.add { *y + *v } else { *v };
        }
    }
}

/// Working memory of one thread.
#[derive(Debug, Default)]
pub struct Scratch {
    codes: Vec<Aligned>,
    floats: Vec<Aligned>,
    sums: Vec<Aligned>,
}

/// A cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Aligned([u8; 64]);

/// A 64-byte-aligned buffer of at least `bytes`.
fn reserve(buffer: &mut Vec<Aligned>, bytes: usize) -> *mut u8 {
    let lines = bytes.div_ceil(64);
    if buffer.len() < lines {
        buffer.resize(lines, Aligned([0; 64]));
    }
    buffer.as_mut_ptr().cast()
}

impl Columns<'_> {
    /// Output columns.
    pub fn n(&self) -> usize {
        match self {
            Columns::Int8(a) => a.n,
            Columns::Split(a) => a.n / 2,
            Columns::Float(a) => a.n,
        }
    }

    fn check(&self, w: &PackedMatrix<'_>, panels: &Range<usize>, out: &Output) {
        let blocks = w.layout().blocks();
        match self {
            Columns::Int8(a) | Columns::Split(a) => {
                assert!(!w.layout().spec().is_float(), "float weights need f32 activations");
                a.check(blocks);
            }
            Columns::Float(a) => a.check(blocks),
        }
        assert!(panels.end <= w.layout().panels());
        if self.n() > 0 && !panels.is_empty() {
            assert!(out.first <= panels.start * PANEL_ROWS);
            let end = (panels.end * PANEL_ROWS).min(w.layout().rows()) - out.first;
            assert!(end <= out.stride && (self.n() - 1) * out.stride + end <= out.len);
        }
    }
}

/// Computes the output rows of `panels` for all columns. Concurrent calls must name disjoint
/// panels (they write disjoint elements of `out`).
///
/// # Panics
/// Where shapes disagree.
pub fn run_panels(
    cpu: CpuFeatures,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    columns: &Columns<'_>,
    out: &Output,
    scratch: &mut Scratch,
) {
    run(cpu, Bits::All, w, panels, columns, out, scratch);
}

/// [`run_panels`] with the high bits of split codes alone: `y` as if each code's three low bits were
/// 3.5. How far that may be from the product is in [`crate::screen`].
///
/// # Panics
/// Where shapes disagree, codes are not split, or the activations are f32.
pub fn run_panels_high(
    cpu: CpuFeatures,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    columns: &Columns<'_>,
    out: &Output,
    scratch: &mut Scratch,
) {
    assert!(w.layout().can_screen() && !matches!(columns, Columns::Float(_)));
    run(cpu, Bits::High, w, panels, columns, out, scratch);
}

fn run(
    cpu: CpuFeatures,
    bits: Bits,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    columns: &Columns<'_>,
    out: &Output,
    scratch: &mut Scratch,
) {
    columns.check(w, &panels, out);
    match cpu.isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: shapes were checked; the features are those the CPU has.
        Isa::Avx512 => unsafe { avx512::run(bits, w, panels, columns, out, scratch) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: shapes were checked; the features are those the CPU has.
        Isa::Avx2 => unsafe { avx2::run(cpu, bits, w, panels, columns, out, scratch) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: shapes were checked; the features are those the CPU has.
        Isa::Neon => unsafe { neon::run(cpu, bits, w, panels, columns, out, scratch) },
        _ => {
            let _ = scratch;
            scalar::run(bits, w, panels, columns, out);
        }
    }
}

/// The rows of a panel that exist.
fn panel_rows(w: &PackedMatrix<'_>, panel: usize) -> usize {
    (w.layout().rows() - panel * PANEL_ROWS).min(PANEL_ROWS)
}

#[cfg(test)]
pub(crate) mod tests;
