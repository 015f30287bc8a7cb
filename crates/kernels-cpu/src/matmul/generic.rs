//! The loops of a product, over the vectors of any instruction set.
//!
//! An instruction set implements [`Dot`]: how packed codes become vectors of rows and what one
//! multiply-add step is. Few columns meet weights that are unpacked in registers; many columns
//! meet tiles of rows that are unpacked once into a buffer in the first-level cache.
//!
//! Everything here is `inline(always)` so that it is compiled within its caller's target features.

#![allow(clippy::needless_range_loop, reason = "an index names a register here, and unrolls")]

use super::format::{Format, Min, Q80Split, Unpacked};
use super::{FloatColumns, Int8Columns, Output, Scratch, panel_rows, reserve};
use crate::pack::{BLOCK, Codes, PANEL_ROWS, PackedLayout, PackedMatrix};
use std::ops::Range;

/// From this many int8 columns on, rows are unpacked into a buffer where that is the faster way.
const TILE_FROM: usize = 8;
/// Blocks unpacked at a time by the many-column kernels.
const TILE_BLOCKS: usize = 16;
/// Packed weights and columns that are met together by the kernels that unpack in registers.
const PANEL_BLOCK_BYTES: usize = 128 << 10;
const COLUMN_BLOCK_BYTES: usize = 192 << 10;

/// Vector operations of one instruction set. A *part* is [`Dot::ROWS`] rows of a panel.
///
/// # Safety
/// Every function requires the instruction set; pointers are readable for what is loaded.
pub(super) trait Dot: Copy {
    /// Rows in a vector; divides 16.
    const ROWS: usize;
    /// The most columns that meet weights unpacked in registers at once: 4 or 8.
    const FEW: usize;
    /// Software prefetch runs this far ahead of the codes being read. Measured: AVX2 machines
    /// (Zen 3) lose 5 to 20% at 1 or 4 KiB, AVX-512 ones (Zen 5) gain 3 to 5% at 4 KiB.
    const PREFETCH_BYTES: usize;
    /// Whether many columns meet rows unpacked into a buffer: where there are too few registers
    /// for a block's codes and eight columns.
    const TILES: bool;
    /// `ROWS` floats.
    type F: Copy;
    /// `ROWS` by four code bytes.
    type C: Copy;
    /// Exact integer sums in progress of one column block.
    type Acc: Copy;
    /// Four inputs, in every row.
    type X: Copy;

    /// The eight code groups of a part of a block.
    unsafe fn codes<F: Format>(planes: &Planes, b: usize, part: usize) -> [Self::C; 8];
    /// Reads back codes written by `put_codes`.
    unsafe fn get_codes(at: *const u8) -> Self::C;
    /// Writes `4 * ROWS` bytes of codes.
    unsafe fn put_codes(at: *mut u8, codes: Self::C);
    /// Scales and minimums of a part of a block.
    unsafe fn terms<F: Format>(planes: &Planes, b: usize, part: usize) -> Terms<Self::F>;
    /// Four inputs of a column.
    unsafe fn inputs(q: *const i8) -> Self::X;
    /// The sums of a block before its first step; `sums` are the sums of `q` over its halves.
    unsafe fn start<F: Format>(sums: *const i16) -> Self::Acc;
    /// Adds code group `g` times its inputs.
    unsafe fn step<F: Format>(acc: &mut Self::Acc, g: usize, codes: Self::C, x: Self::X);
    /// The exact sums of the halves as floats, or of the whole block in the first.
    unsafe fn sums<F: Format>(acc: Self::Acc) -> [Self::F; 2];
    /// Input `i` of each row's four codes as a signed float.
    unsafe fn code_float<F: Format>(codes: Self::C, i: usize) -> Self::F;
    /// `ROWS` weights of a float type.
    unsafe fn weights(codes: Codes, at: *const u8) -> Self::F;

    /// A value in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Stores `ROWS` floats.
    unsafe fn put(at: *mut f32, x: Self::F);
    /// Loads `ROWS` floats.
    unsafe fn get(at: *const f32) -> Self::F;
    /// Asks for the cache line at `at`.
    unsafe fn prefetch(at: *const u8);

    /// The order in which a tile's buffer holds the code groups of a part of a block.
    #[inline(always)]
    unsafe fn for_tile(codes: [Self::C; 8]) -> [Self::C; 8] {
        codes
    }

    /// The exact sums of one block of a tile: two parts by `C` columns. `codes` are those of the
    /// buffer, `[part][8][4 * ROWS]`.
    #[inline(always)]
    unsafe fn tile_sums<F: Format, const C: usize>(
        codes: *const u8,
        columns: &[ColumnBlock; C],
    ) -> [[Self::Acc; C]; 2] {
        // SAFETY: the caller's contract.
        unsafe { tile_steps::<Self, F, C>(codes, columns) }
    }
}

/// [`Dot::tile_sums`] by [`Dot::step`].
#[inline(always)]
pub(super) unsafe fn tile_steps<D: Dot, F: Format, const C: usize>(
    codes: *const u8,
    columns: &[ColumnBlock; C],
) -> [[D::Acc; C]; 2] {
    // SAFETY: the buffer holds the block, and the columns have it.
    unsafe {
        let start: [D::Acc; C] = std::array::from_fn(|c| D::start::<F>(columns[c].sums));
        let mut sums = [start; 2];
        for g in 0..8 {
            let codes = [0, 8].map(|p| D::get_codes(codes.add((p + g) * 4 * D::ROWS)));
            for c in 0..C {
                let x = D::inputs(columns[c].q.add(4 * g));
                for p in 0..2 {
                    D::step::<F>(&mut sums[p][c], g, codes[p], x);
                }
            }
        }
        sums
    }
}

/// One panel's planes.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub supers: *const u8,
    pub scales: *const u8,
    pub mins: *const u8,
    pub high: *const u8,
    pub low: *const u8,
    /// The low bits of split codes.
    pub rest: *const u8,
    /// The codebook, where codes index one.
    pub book: [i8; 16],
}

impl Planes {
    #[inline(always)]
    unsafe fn new(w: &PackedMatrix<'_>, panel: usize) -> Self {
        let layout: &PackedLayout = w.layout();
        let (panel, rest) = (w.panel(panel).as_ptr(), w.rest(panel).as_ptr());
        // SAFETY: the offsets lie in the panel.
        unsafe {
            Planes {
                rest,
                supers: panel.add(layout.super_at),
                scales: panel.add(layout.scales_at),
                mins: panel.add(layout.mins_at),
                high: panel.add(layout.high_at),
                low: panel.add(layout.low_at),
                book: layout.spec().codebook.copied().unwrap_or_default(),
            }
        }
    }
}

/// What a block's codes are scaled with.
#[derive(Clone, Copy)]
pub(super) struct Terms<F> {
    /// The scale of each row.
    pub scale: F,
    /// The integer scales of the two halves.
    pub halves: [F; 2],
    /// The block's minimum; or the negated super minimum and the halves' integer minimums.
    pub mins: [F; 3],
}

/// [`Dot::terms`], where the codes are high bits for those.
#[inline(always)]
unsafe fn terms<D: Dot, F: Format>(planes: &Planes, b: usize, part: usize) -> Terms<D::F> {
    // SAFETY: the caller's contract.
    unsafe {
        let mut terms = D::terms::<F>(planes, b, part);
        if F::HIGH {
            // Both products are exact: an f16 times a number of three bits.
            terms.mins[0] = D::mul(terms.scale, D::splat(3.5));
            terms.scale = D::mul(terms.scale, D::splat(8.0));
        }
        terms
    }
}

/// A block of one int8 column.
#[derive(Clone, Copy)]
pub(super) struct ColumnBlock {
    /// The inputs.
    pub q: *const i8,
    d: *const f32,
    ds: *const f32,
    /// The sums of the inputs over both halves.
    pub sums: *const i16,
}

impl ColumnBlock {
    #[inline(always)]
    unsafe fn of(a: &Int8Columns<'_>, t: usize, b: usize) -> Self {
        let at = t * a.blocks + b;
        // SAFETY: column `t` and block `b` exist.
        unsafe {
            ColumnBlock {
                q: a.q.as_ptr().add(at * BLOCK),
                d: a.d.as_ptr().add(at),
                ds: a.ds.as_ptr().add(at),
                sums: a.sums.as_ptr().add(2 * at),
            }
        }
    }

    /// Adds the block's integer sums to the accumulator, in the order the module states.
    #[inline(always)]
    unsafe fn finish<D: Dot, F: Format>(
        &self,
        acc: D::F,
        sums: D::Acc,
        terms: &Terms<D::F>,
    ) -> D::F {
        // SAFETY: the block's scales are readable.
        unsafe {
            let d = D::splat(*self.d);
            let [mut value, second] = D::sums::<F>(sums);
            if F::HALVES {
                value = D::fma(second, terms.halves[1], D::mul(value, terms.halves[0]));
            }
            let acc = D::fma(D::mul(value, terms.scale), d, acc);
            match F::MIN {
                Min::None => acc,
                Min::Block => D::fma(terms.mins[0], D::splat(*self.ds), acc),
                Min::Half => {
                    let sum0 = D::splat(f32::from(*self.sums));
                    let sum1 = D::splat(f32::from(*self.sums.add(1)));
                    let inner = D::fma(terms.mins[2], sum1, D::mul(terms.mins[1], sum0));
                    D::fma(D::mul(inner, terms.mins[0]), d, acc)
                }
            }
        }
    }
}

/// A product's operands that every kernel needs.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub w: &'a PackedMatrix<'a>,
    pub out: &'a Output,
    /// Columns are pairs of a high and a low part, whose products are added.
    pub split: bool,
}

impl Product<'_> {
    /// Stores accumulators of one part for columns `t..`, adding pairs where activations are split.
    #[inline(always)]
    unsafe fn store<D: Dot>(&self, panel: usize, part: usize, t: usize, acc: &[D::F]) {
        let step = if self.split { 2 } else { 1 };
        let first = part * D::ROWS;
        let rows = panel_rows(self.w, panel);
        if rows <= first {
            return;
        }
        for (i, acc) in acc.chunks_exact(step).enumerate() {
            // SAFETY: the elements lie in the output (checked by the caller of `run_panels`), and
            // rows that do not exist are left out.
            unsafe {
                let mut y = acc[0];
                if self.split {
                    y = D::add(y, acc[1]);
                }
                let (column, row) = (t / step + i, panel * PANEL_ROWS + first);
                if rows >= first + D::ROWS {
                    let at = self.out.at(column, row);
                    D::put(at, if self.out.add { D::add(D::get(at), y) } else { y });
                } else {
                    let mut values = [0.0f32; PANEL_ROWS];
                    D::put(values.as_mut_ptr(), y);
                    self.out.write(column, row, &values[..rows - first]);
                }
            }
        }
    }
}

/// int8 columns, or pairs of them.
#[inline(always)]
pub(super) unsafe fn int8<D: Dot, F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if D::TILES && a.n >= TILE_FROM {
            tiles::<D, F, 4>(product, panels, a, scratch);
        } else {
            few::<D, F>(product, panels, a, scratch);
        }
    }
}

/// Few columns, or many where unpacking in registers is the faster way: blocks of panels that stay
/// in the second-level cache meet blocks of columns that do too.
#[inline(always)]
unsafe fn few<D: Dot, F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    let panel_block = (PANEL_BLOCK_BYTES / product.w.layout().panel_bytes()).max(1);
    let column_block = (COLUMN_BLOCK_BYTES / (a.blocks * BLOCK)).next_multiple_of(8);
    // Split codes cost more to unpack than to multiply a few times: many columns meet them unpacked.
    let unpack = !D::TILES && matches!(F::CODES, Codes::Bits5And3) && a.n >= TILE_FROM;
    let buffer = match unpack {
        true => reserve(&mut scratch.codes, a.blocks * BLOCK * PANEL_ROWS),
        false => std::ptr::null_mut(),
    };
    let mut first = panels.start;
    while first < panels.end {
        let end = (first + panel_block).min(panels.end);
        let mut columns = 0;
        while columns < a.n {
            let columns_end = (columns + column_block).min(a.n);
            for panel in first..end {
                // SAFETY: the panel and the columns exist, and the buffer holds a panel.
                unsafe {
                    let mut planes = Planes::new(product.w, panel);
                    if unpack {
                        unpack_panel::<D, F>(&planes, a.blocks, buffer);
                        planes.low = buffer;
                        few_block::<D, Unpacked>(product, panel, &planes, a, columns..columns_end);
                    } else {
                        few_block::<D, F>(product, panel, &planes, a, columns..columns_end);
                    }
                }
            }
            columns = columns_end;
        }
        first = end;
    }
}

/// Unpacks a panel's codes into `buffer`, `[block][8][4 * 16]`.
#[inline(always)]
unsafe fn unpack_panel<D: Dot, F: Format>(planes: &Planes, blocks: usize, buffer: *mut u8) {
    for b in 0..blocks {
        // SAFETY: the block exists, and the buffer holds it.
        unsafe {
            for part in 0..PANEL_ROWS / D::ROWS {
                let to = buffer.add(b * BLOCK * PANEL_ROWS + 4 * D::ROWS * part);
                for (g, code) in D::codes::<F>(planes, b, part).into_iter().enumerate() {
                    D::put_codes(to.add(4 * PANEL_ROWS * g), code);
                }
            }
        }
    }
}

/// Asks for block `b` of two planes, as it lies `ahead` bytes further on in each.
#[inline(always)]
unsafe fn prefetch_block<D: Dot, F: Format>(
    (main, rest): (*const u8, *const u8),
    b: usize,
    ahead: (usize, usize),
) {
    let rest_bytes = F::CODES.rest_bytes();
    for line in 0..F::BLOCK_BYTES.div_ceil(64) {
        // SAFETY: a prefetch may name any address.
        unsafe { D::prefetch(main.wrapping_add(b * F::BLOCK_BYTES + ahead.0 + 64 * line)) };
    }
    for line in 0..rest_bytes.div_ceil(64) {
        // SAFETY: as above.
        unsafe { D::prefetch(rest.wrapping_add(b * rest_bytes + ahead.1 + 64 * line)) };
    }
}

#[inline(always)]
unsafe fn few_block<D: Dot, F: Format>(
    product: Product<'_>,
    panel: usize,
    planes: &Planes,
    a: &Int8Columns<'_>,
    columns: Range<usize>,
) {
    let mut t = columns.start;
    // SAFETY: the caller's contract.
    unsafe {
        while t < columns.end {
            t += match columns.end - t {
                8.. if D::FEW >= 8 => few_parts::<D, F, 8>(product, panel, planes, a, t),
                4.. => few_parts::<D, F, 4>(product, panel, planes, a, t),
                2.. => few_parts::<D, F, 2>(product, panel, planes, a, t),
                _ => few_parts::<D, F, 1>(product, panel, planes, a, t),
            };
        }
    }
}

#[inline(always)]
unsafe fn few_parts<D: Dot, F: Format, const C: usize>(
    product: Product<'_>,
    panel: usize,
    planes: &Planes,
    a: &Int8Columns<'_>,
    t: usize,
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        match PANEL_ROWS / D::ROWS {
            1 => few_columns::<D, F, C, 1>(product, panel, planes, a, t),
            2 => few_columns::<D, F, C, 2>(product, panel, planes, a, t),
            _ => few_columns::<D, F, C, 4>(product, panel, planes, a, t),
        }
    }
}

/// `C` columns against the `P` parts of one panel.
#[inline(always)]
unsafe fn few_columns<D: Dot, F: Format, const C: usize, const P: usize>(
    product: Product<'_>,
    panel: usize,
    planes: &Planes,
    a: &Int8Columns<'_>,
    t: usize,
) -> usize {
    let bytes = (product.w.panel(panel).as_ptr(), planes.rest);
    let layout = product.w.layout();
    // SAFETY: blocks and columns exist; a prefetch may name any address.
    unsafe {
        let mut acc = [[D::splat(0.0); C]; P];
        for b in 0..a.blocks {
            if t == 0 && F::UNPACKED {
                // What is multiplied was unpacked before: the next panel comes meanwhile.
                let next = (layout.panel_bytes(), layout.rest_bytes());
                prefetch_block::<D, Q80Split>(bytes, b, next);
            } else if t == 0 {
                prefetch_block::<D, F>(bytes, b, (D::PREFETCH_BYTES, D::PREFETCH_BYTES));
            }
            for (part, acc) in acc.iter_mut().enumerate() {
                let codes = D::codes::<F>(planes, b, part);
                let terms = terms::<D, F>(planes, b, part);
                for (c, acc) in acc.iter_mut().enumerate() {
                    let column = ColumnBlock::of(a, t + c, b);
                    let mut sums = D::start::<F>(column.sums);
                    for (g, code) in codes.iter().enumerate() {
                        D::step::<F>(&mut sums, g, *code, D::inputs(column.q.add(4 * g)));
                    }
                    *acc = column.finish::<D, F>(*acc, sums, &terms);
                }
            }
        }
        for (part, acc) in acc.iter().enumerate() {
            product.store::<D>(panel, part, t, acc);
        }
    }
    C
}

/// Many columns: tiles of two parts by up to `C` columns.
#[inline(always)]
unsafe fn tiles<D: Dot, F: Format, const C: usize>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &Int8Columns<'_>,
    scratch: &mut Scratch,
) {
    let codes = reserve(&mut scratch.codes, TILE_BLOCKS * 2 * 32 * D::ROWS);
    let terms = reserve(&mut scratch.floats, TILE_BLOCKS * 2 * size_of::<Terms<D::F>>());
    let chunks = a.blocks.div_ceil(TILE_BLOCKS);
    let sums = match chunks {
        1 => std::ptr::null_mut(),
        _ => reserve(&mut scratch.sums, a.n * 2 * size_of::<D::F>()).cast(),
    };
    let parts = PANEL_ROWS / D::ROWS;
    let (mut part, end) = (panels.start * parts, panels.end * parts);
    while part < end {
        for chunk in 0..chunks {
            let tile = Tile::<D> {
                product,
                a,
                part,
                end,
                blocks: chunk * TILE_BLOCKS..((chunk + 1) * TILE_BLOCKS).min(a.blocks),
                codes,
                terms: terms.cast(),
                sums,
                first: chunk == 0,
                last: chunk + 1 == chunks,
            };
            // SAFETY: the buffers hold TILE_BLOCKS blocks of two parts; parts and columns exist.
            unsafe {
                tile.unpack::<F>();
                let mut t = 0;
                while t < a.n {
                    let left = a.n - t;
                    t += match left {
                        _ if left >= C => tile.run::<F, C>(t),
                        2.. => tile.run::<F, 2>(t),
                        _ => tile.run::<F, 1>(t),
                    };
                }
            }
        }
        part += 2;
    }
}

/// Some blocks of two parts, unpacked and ready to meet any column.
struct Tile<'a, D: Dot> {
    product: Product<'a>,
    a: &'a Int8Columns<'a>,
    /// The first of the two parts, counted over all panels.
    part: usize,
    /// One past the last part of this call.
    end: usize,
    blocks: Range<usize>,
    /// `[block][part][8][4 * ROWS]`.
    codes: *mut u8,
    /// `[block][part]`.
    terms: *mut Terms<D::F>,
    /// Accumulators between chunks of blocks, `[column][part]`.
    sums: *mut D::F,
    first: bool,
    last: bool,
}

impl<D: Dot> Tile<'_, D> {
    #[inline(always)]
    unsafe fn unpack<F: Format>(&self) {
        let parts = PANEL_ROWS / D::ROWS;
        for p in 0..2 {
            // Where there is no second part the last one stands in; its results are not stored.
            let part = (self.part + p).min(self.end - 1);
            // SAFETY: as the caller says.
            unsafe {
                let planes = Planes::new(self.product.w, part / parts);
                for (i, b) in self.blocks.clone().enumerate() {
                    let codes = D::for_tile(D::codes::<F>(&planes, b, part % parts));
                    for (g, code) in codes.into_iter().enumerate() {
                        D::put_codes(self.codes_at(i, p, g), code);
                    }
                    let terms = terms::<D, F>(&planes, b, part % parts);
                    self.terms.add(i * 2 + p).write(terms);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn codes_at(&self, i: usize, p: usize, g: usize) -> *mut u8 {
        // SAFETY: the caller names an unpacked block.
        unsafe { self.codes.add(((i * 2 + p) * 8 + g) * 4 * D::ROWS) }
    }

    #[inline(always)]
    unsafe fn run<F: Format, const C: usize>(&self, t: usize) -> usize {
        // SAFETY: buffers hold the blocks; columns `t..t + C` exist.
        unsafe {
            let mut acc = [[D::splat(0.0); C]; 2];
            if !self.first {
                for c in 0..C {
                    for p in 0..2 {
                        acc[p][c] = self.sums.add((t + c) * 2 + p).read();
                    }
                }
            }
            for (i, b) in self.blocks.clone().enumerate() {
                self.block::<F, C>(i, b, t, &mut acc);
            }
            if self.last {
                let parts = PANEL_ROWS / D::ROWS;
                for p in 0..(self.end - self.part).min(2) {
                    let part = self.part + p;
                    self.product.store::<D>(part / parts, part % parts, t, &acc[p]);
                }
            } else {
                for c in 0..C {
                    for p in 0..2 {
                        self.sums.add((t + c) * 2 + p).write(acc[p][c]);
                    }
                }
            }
        }
        C
    }

    #[inline(always)]
    unsafe fn block<F: Format, const C: usize>(
        &self,
        i: usize,
        b: usize,
        t: usize,
        acc: &mut [[D::F; C]; 2],
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let columns: [ColumnBlock; C] =
                std::array::from_fn(|c| ColumnBlock::of(self.a, t + c, b));
            let sums = D::tile_sums::<F, C>(self.codes_at(i, 0, 0), &columns);
            for p in 0..2 {
                let terms = &*self.terms.add(i * 2 + p);
                for c in 0..C {
                    acc[p][c] = columns[c].finish::<D, F>(acc[p][c], sums[p][c], terms);
                }
            }
        }
    }
}

/// Quantized weights with f32 activations: the reference mode.
#[inline(always)]
pub(super) unsafe fn mixed<D: Dot, F: Format>(
    product: Product<'_>,
    panels: Range<usize>,
    a: &FloatColumns<'_>,
) {
    for panel in panels {
        for part in 0..PANEL_ROWS / D::ROWS {
            let mut t = 0;
            // SAFETY: the panel and the columns exist.
            unsafe {
                while t < a.n {
                    t += match a.n - t {
                        4.. => mixed_columns::<D, F, 4>(product, panel, part, a, t),
                        _ => mixed_columns::<D, F, 1>(product, panel, part, a, t),
                    };
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn mixed_columns<D: Dot, F: Format, const C: usize>(
    product: Product<'_>,
    panel: usize,
    part: usize,
    a: &FloatColumns<'_>,
    t: usize,
) -> usize {
    // SAFETY: blocks and columns exist.
    unsafe {
        let planes = Planes::new(product.w, panel);
        let mut acc = [D::splat(0.0); C];
        for b in 0..a.blocks {
            let mut p = [[D::splat(0.0); 2]; C];
            for (g, codes) in D::codes::<F>(&planes, b, part).into_iter().enumerate() {
                let half = if F::HALVES { g / 4 } else { 0 };
                for i in 0..4 {
                    let q = D::code_float::<F>(codes, i);
                    for (c, p) in p.iter_mut().enumerate() {
                        let x = *a.x.as_ptr().add(((t + c) * a.blocks + b) * BLOCK + 4 * g + i);
                        p[half] = D::fma(q, D::splat(x), p[half]);
                    }
                }
            }
            let terms = terms::<D, F>(&planes, b, part);
            for c in 0..C {
                let sums = a.sums.as_ptr().add(2 * ((t + c) * a.blocks + b));
                acc[c] = mixed_finish::<D, F>(acc[c], p[c], &terms, [*sums, *sums.add(1)]);
            }
        }
        product.store::<D>(panel, part, t, &acc);
    }
    C
}

#[inline(always)]
unsafe fn mixed_finish<D: Dot, F: Format>(
    acc: D::F,
    p: [D::F; 2],
    terms: &Terms<D::F>,
    sum: [f32; 2],
) -> D::F {
    // SAFETY: the instruction set is there.
    unsafe {
        let mut value = p[0];
        if F::HALVES {
            value = D::fma(p[1], terms.halves[1], D::mul(p[0], terms.halves[0]));
        }
        let acc = D::fma(value, terms.scale, acc);
        match F::MIN {
            Min::None => acc,
            Min::Block => D::fma(terms.mins[0], D::splat(sum[0] + sum[1]), acc),
            Min::Half => {
                let first = D::mul(terms.mins[1], D::splat(sum[0]));
                let inner = D::fma(terms.mins[2], D::splat(sum[1]), first);
                D::add(D::mul(inner, terms.mins[0]), acc)
            }
        }
    }
}

/// Float weights.
#[inline(always)]
pub(super) unsafe fn floats<D: Dot>(
    codes: Codes,
    product: Product<'_>,
    panels: Range<usize>,
    a: &FloatColumns<'_>,
) {
    for panel in panels {
        for part in 0..PANEL_ROWS / D::ROWS {
            let mut t = 0;
            // SAFETY: the panel and the columns exist.
            unsafe {
                while t < a.n {
                    t += match a.n - t {
                        8.. => float_columns::<D, 8>(codes, product, panel, part, a, t),
                        4.. => float_columns::<D, 4>(codes, product, panel, part, a, t),
                        2.. => float_columns::<D, 2>(codes, product, panel, part, a, t),
                        _ => float_columns::<D, 1>(codes, product, panel, part, a, t),
                    };
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn float_columns<D: Dot, const C: usize>(
    codes: Codes,
    product: Product<'_>,
    panel: usize,
    part: usize,
    a: &FloatColumns<'_>,
    t: usize,
) -> usize {
    let size = codes.plane_bytes().0 / (BLOCK * PANEL_ROWS);
    // SAFETY: blocks and columns exist; a prefetch may name any address.
    unsafe {
        let base = product.w.panel(panel).as_ptr().add(product.w.layout().low_at);
        let base = base.add(part * D::ROWS * size);
        let mut acc = [D::splat(0.0); C];
        for b in 0..a.blocks {
            let mut p = [D::splat(0.0); C];
            for k in b * BLOCK..(b + 1) * BLOCK {
                let at = base.add(k * PANEL_ROWS * size);
                if t == 0 && part == 0 {
                    D::prefetch(at.wrapping_add(D::PREFETCH_BYTES));
                }
                let weight = D::weights(codes, at);
                for (c, p) in p.iter_mut().enumerate() {
                    let x = *a.x.as_ptr().add((t + c) * a.blocks * BLOCK + k);
                    *p = D::fma(weight, D::splat(x), *p);
                }
            }
            for (acc, p) in acc.iter_mut().zip(p) {
                *acc = D::add(*acc, p);
            }
        }
        product.store::<D>(panel, part, t, &acc);
    }
    C
}
