//! A unit's rows against the keys and values of one segment, block by block and tile by tile.
//!
//! With few rows (decode) a block is converted in registers each time that it is read, and the
//! next one is prefetched. With many it is converted once, into scratch. Either way each element
//! of the result is the same chain of operations on the same numbers.

use super::SEGMENT_TOKENS;
use super::item::{Scratch, Work};
use super::later::Later;
use super::plan::{Part, Unit};
use super::tiles::{
    self, Keys, QUERY_STRIDE, SCORE_STRIDE, Values, convert_keys, convert_scales, convert_values,
};
use crate::kv::{
    BLOCK_TOKENS, Codec, F16Codec, F32Codec, HeadPtr, Int8Codec, VALUE_GROUP, bytes_of,
};
use crate::simd::{LANES, Simd};
use dunlin_spec::KvType;
use std::ops::Range;

/// The rows of the largest tile that converts blocks in registers.
const DIRECT_TILE: usize = 4;

/// Positions of a segment, relative to its start, from the first up to but not the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    #[inline(always)]
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The part in a block, relative to the block's start; empty ones keep their place, below or
    /// above.
    #[inline(always)]
    fn in_block(self, block: usize) -> Range<usize> {
        let start = block * BLOCK_TOKENS;
        let clip = |t: u32| (t as usize).saturating_sub(start).min(BLOCK_TOKENS);
        clip(self.start)..clip(self.end)
    }
}

/// Calls a kernel with its type parameter for the pool's type of KV.
macro_rules! with_codec {
    ($kv_type:expr, |$codec:ident| $body:expr) => {
        match $kv_type {
            KvType::F32 => {
                type $codec = F32Codec;
                $body
            }
            KvType::F16 => {
                type $codec = F16Codec;
                $body
            }
            KvType::Int8 => {
                type $codec = Int8Codec;
                $body
            }
        }
    };
}

/// Calls a kernel with a constant for the number of rows, one of those listed.
macro_rules! with_rows {
    ($rows:expr, |$mr:ident| $body:expr; $($n:literal if $when:expr),*) => {
        match $rows {
            $($n if $when => {
                const $mr: usize = $n;
                $body
            })*
            _ => {
                const $mr: usize = 1;
                $body
            }
        }
    };
}

/// Whether a unit of so many rows converts blocks in registers.
#[inline(always)]
const fn is_direct(rows: usize) -> bool {
    // Two tiles convert everything twice and are still faster than going through scratch.
    rows <= 2 * DIRECT_TILE
}

/// The rows of the next tile of a unit of `rows`, of which `left` are left. [`segment_scores`] and
/// [`block_outputs`] have kernels for these sizes and no others.
#[inline(always)]
fn tile_rows<S: Simd>(rows: usize, left: usize) -> usize {
    match left {
        _ if !S::TILED => 1,
        0..=4 => left,
        // Two middling tiles are better than a large one and a single row.
        5 => 3,
        7 => 4,
        6 if is_direct(rows) => 3,
        8 if is_direct(rows) => 4,
        12.. if S::WIDE => 12,
        _ => 6,
    }
}

/// A unit in one segment, as runs of rows and blocks that share keys and values. In order: for each
/// part the blocks below the common ones, then those for all rows, then for each part the blocks
/// above. Any of them may be empty.
#[derive(Clone, Copy)]
pub(super) struct Runs<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) unit: &'a Unit,
    parts: &'a [Part],
    /// The segment's first block in the units' tables.
    pub(super) first_block: usize,
    /// The common blocks that lie in the segment, relative to its start.
    pub(super) common_start: usize,
    pub(super) common_end: usize,
    goes_on: bool,
}

impl<'a> Runs<'a> {
    /// The spans of the rows must be in scratch whenever a run is used.
    #[inline(always)]
    pub(super) fn new(work: &'a Work<'a>, unit: &'a Unit, segment: usize, goes_on: bool) -> Self {
        let blocks = SEGMENT_TOKENS / BLOCK_TOKENS;
        let first_block = segment * blocks;
        let clip = |block: usize| block.saturating_sub(first_block).min(blocks);
        let parts = &work.plan.parts[unit.parts.clone()];
        Runs {
            work,
            unit,
            parts,
            first_block,
            common_start: clip(unit.common.start),
            common_end: clip(unit.common.end),
            // Several parts go on in different places.
            goes_on: goes_on && parts.len() == 1,
        }
    }

    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        2 * self.parts.len() + 1
    }

    /// Run `i`.
    ///
    /// # Safety
    /// The work's parts fit together, and the rows' spans are in scratch.
    #[inline(always)]
    pub(super) unsafe fn get(&self, i: usize) -> Segment<'a> {
        let (work, n, group) = (self.work, self.parts.len(), self.work.plan.shape.group());
        let all = i == n;
        let part = &self.parts[if i > n { i - n - 1 } else { i % n }];
        let queries = if all { &self.unit.queries } else { &part.queries };
        let first_row = (queries.start - self.unit.queries.start) * group;
        let rows = queries.len() * group;
        let scratch = work.scratch.rows_from(first_row, work.layer.v_stride);
        let (start, end) = if all {
            (self.common_start, self.common_end)
        } else {
            // SAFETY: the caller's: the spans are there. Both of their ends ascend with the rows of
            // a part.
            let (first, last) = unsafe { (*scratch.spans, *scratch.spans.add(rows - 1)) };
            let start = first.start as usize / BLOCK_TOKENS;
            let end = (last.end as usize).div_ceil(BLOCK_TOKENS);
            if i < n {
                (start, end.min(self.common_start))
            } else {
                (start.max(self.common_end), end)
            }
        };
        Segment {
            work,
            scratch,
            // A shorter sequence may have no blocks here; its runs are empty then.
            table: work.plan.tables.get(part.table + self.first_block..).unwrap_or_default(),
            kv_head: self.unit.kv_head,
            rows,
            is_common: all,
            start,
            end,
            goes_on: self.goes_on,
        }
    }
}

/// Rows of a unit against blocks of one segment that they read together.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    work: &'a Work<'a>,
    /// Starts at the first of the rows.
    scratch: Scratch,
    /// The block table from the segment's start on.
    table: &'a [u32],
    kv_head: usize,
    rows: usize,
    /// Whether these are the unit's common blocks.
    is_common: bool,
    /// The first block and the one after the last, relative to the segment's start.
    start: usize,
    end: usize,
    /// Whether the same thread goes on with the next segment of the same table.
    goes_on: bool,
}

impl Segment<'_> {
    #[inline(always)]
    fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    #[inline(always)]
    unsafe fn span(&self, row: usize) -> Span {
        debug_assert!(row < self.rows);
        // SAFETY: the caller's: spans of all rows are there.
        unsafe { self.scratch().spans.add(row).read() }
    }

    #[inline(always)]
    fn head(&self, block: usize) -> HeadPtr {
        self.work.pool.head(self.work.layer, self.table[block] as usize, self.kv_head)
    }

    /// The distance in bytes from a block's keys to those of the next, or to the first values.
    #[inline(always)]
    fn ahead_of_keys(&self, block: usize) -> isize {
        let next =
            if block + 1 < self.end { self.head(block + 1).k } else { self.head(self.start).v };
        (next as isize).wrapping_sub(self.head(block).k as isize)
    }

    /// The distance in bytes from a block's values to those of the next, or to the next segment's
    /// first keys.
    #[inline(always)]
    fn ahead_of_values(&self, block: usize) -> isize {
        let next = if block + 1 < self.end {
            self.head(block + 1).v
        } else if self.goes_on {
            self.head(block + 1).k
        } else {
            return 0;
        };
        (next as isize).wrapping_sub(self.head(block).v as isize)
    }
}

/// The scores of all rows against the positions that they see. (Others may be written too; what
/// they hold means nothing.)
///
/// # Safety
/// The work's parts fit together; the unit's queries are in scratch.
#[inline(always)]
pub(super) unsafe fn segment_scores<S: Simd>(s: S, x: Segment<'_>, later: &mut Later<'_>) {
    let features = x.work.plan.shape.head_dim;
    let kv_type = x.work.layer.k_type;
    let scratch = x.scratch();
    for block in x.start..x.end {
        let head = x.head(block);
        let ahead = x.ahead_of_keys(block);
        let mut keys = Keys { at: head.k, scales: head.k_scales, ahead };
        // SAFETY: the caller's; the table's blocks exist.
        unsafe {
            if !is_direct(x.rows) && kv_type != KvType::F32 {
                with_codec!(kv_type, |C| convert_keys::<S, C>(s, keys, features, scratch.keys));
                keys.at = scratch.keys.cast();
            }
            let mut row = 0;
            while row < x.rows {
                let n = tile_rows::<S>(x.rows, x.rows - row);
                let first = x.span(row).in_block(block);
                let last = x.span(row + n - 1).in_block(block);
                let span = first.start / LANES * LANES..last.end;
                if !span.is_empty() {
                    let q = scratch.q.add(row * QUERY_STRIDE).cast_const();
                    let out = scratch.scores.add(row * SCORE_STRIDE + block * BLOCK_TOKENS);
                    if is_direct(x.rows) {
                        with_codec!(kv_type, |C| with_rows!(n, |MR| {
                            block_scores::<S, C, MR, true>(s, q, keys, features, span, out)
                        }; 4 if S::TILED, 3 if S::TILED, 2 if S::TILED));
                    } else {
                        with_rows!(n, |MR| {
                            block_scores::<S, F32Codec, MR, false>(s, q, keys, features, span, out)
                        }; 12 if S::WIDE, 6 if S::TILED, 4 if S::TILED, 3 if S::TILED,
                           2 if S::TILED);
                    }
                }
                keys.ahead = 0;
                row += n;
                if x.is_common {
                    later.ask(s, n);
                }
            }
        }
    }
}

/// The scores of one tile against the vectors of a block that hold `span`.
#[inline(always)]
unsafe fn block_scores<S: Simd, C: Codec, const MR: usize, const AHEAD: bool>(
    s: S,
    q: *const f32,
    keys: Keys,
    features: usize,
    span: Range<usize>,
    out: *mut f32,
) {
    // SAFETY: the caller's.
    unsafe {
        if S::WIDE || (S::TILED && MR <= 3) {
            tiles::scores::<S, C, MR, 2, AHEAD>(s, q, keys, features, out);
        } else {
            for lane in span.step_by(LANES) {
                let at = keys.at.add(lane * C::BYTES);
                let keys = Keys { at, scales: keys.scales.wrapping_add(lane), ..keys };
                tiles::scores::<S, C, MR, 1, AHEAD>(s, q, keys, features, out.add(lane));
            }
        }
    }
}

/// Adds the segment's values to the outputs of all rows, each value of a position that the row
/// sees times its weight, and nothing else.
///
/// # Safety
/// As [`segment_scores`]; the scores have become weights.
#[inline(always)]
pub(super) unsafe fn segment_outputs<S: Simd>(s: S, x: Segment<'_>, later: &mut Later<'_>) {
    let stride = x.work.layer.v_stride;
    let features = x.work.plan.shape.v_head_dim;
    let kv_type = x.work.layer.v_type;
    let scratch = x.scratch();
    for block in x.start..x.end {
        let head = x.head(block);
        let row_bytes = stride * bytes_of(kv_type);
        let ahead = x.ahead_of_values(block);
        let mut values = Values { at: head.v, row_bytes, scales: scratch.scales, ahead };
        // SAFETY: the caller's; the table's blocks exist.
        unsafe {
            if kv_type == KvType::Int8 {
                convert_scales(s, head.v_scales, features.div_ceil(VALUE_GROUP), scratch.scales);
            }
            if is_direct(x.rows) {
                with_codec!(kv_type, |C| block_outputs::<S, C, true>(s, x, block, values));
                continue;
            }
            if kv_type != KvType::F32 {
                let (tokens, out) = (x.span(x.rows - 1).in_block(block).end, scratch.values);
                with_codec!(kv_type, |C| {
                    convert_values::<S, C>(s, values, tokens, stride / LANES, out)
                });
                (values.at, values.row_bytes) = (out.cast(), stride * 4);
            }
            block_outputs::<S, F32Codec, false>(s, x, block, values);
            if x.is_common {
                later.ask(s, x.rows);
            }
        }
    }
}

/// Adds a block's values to the outputs of all rows, tile by tile: together over the positions that
/// all rows of a tile see, alone where they differ.
#[inline(always)]
unsafe fn block_outputs<S: Simd, C: Codec, const DIRECT: bool>(
    s: S,
    x: Segment<'_>,
    block: usize,
    mut values: Values,
) {
    let stride = x.work.layer.v_stride;
    let mut row = 0;
    while row < x.rows {
        let n = tile_rows::<S>(x.rows, x.rows - row);
        // SAFETY: the caller's.
        unsafe {
            let first = x.span(row).in_block(block);
            let last = x.span(row + n - 1).in_block(block);
            // Both ends ascend with the rows.
            let common = last.start..first.end.max(last.start);
            let p = x.scratch().scores.add(row * SCORE_STRIDE + block * BLOCK_TOKENS).cast_const();
            let o = x.scratch().outputs.add(row * stride);
            for phase in [Phase::Before, Phase::Common, Phase::After] {
                let from = match phase {
                    Phase::Before if first.start < common.start => 0..common.start,
                    Phase::After if last.end > common.end => common.end..BLOCK_TOKENS,
                    Phase::Common => {
                        let span = common.clone();
                        if DIRECT {
                            with_rows!(n, |MR| {
                                add_values::<S, C, MR, true>(s, p, values, span, o, stride)
                            }; 4 if S::TILED, 3 if S::TILED, 2 if S::TILED);
                        } else {
                            with_rows!(n, |MR| {
                                add_values::<S, C, MR, false>(s, p, values, span, o, stride)
                            }; 12 if S::WIDE, 6 if S::TILED, 4 if S::TILED, 3 if S::TILED,
                               2 if S::TILED);
                        }
                        continue;
                    }
                    _ => continue,
                };
                for r in 0..n {
                    let seen = x.span(row + r).in_block(block);
                    let span = seen.start.max(from.start)..seen.end.min(from.end);
                    let (p, o) = (p.add(r * SCORE_STRIDE), o.add(r * stride));
                    add_values::<S, C, 1, false>(s, p, values, span, o, stride);
                }
            }
        }
        values.ahead = 0;
        row += n;
    }
}

/// The positions of a block that only some rows of a tile see, and those that all see.
#[derive(Clone, Copy)]
enum Phase {
    Before,
    Common,
    After,
}

/// Adds the values of a block's tokens `span` to the outputs of `MR` rows.
#[inline(always)]
unsafe fn add_values<S: Simd, C: Codec, const MR: usize, const AHEAD: bool>(
    s: S,
    p: *const f32,
    values: Values,
    span: Range<usize>,
    o: *mut f32,
    stride: usize,
) {
    if span.is_empty() {
        return;
    }
    let vectors = stride / LANES;
    let mut vector = 0;
    // SAFETY: the caller's.
    unsafe {
        let p = p.add(span.start);
        let n = span.len();
        macro_rules! step {
            ($nv:literal) => {
                while vectors - vector >= $nv {
                    let feature = vector * LANES;
                    let group = feature / VALUE_GROUP * BLOCK_TOKENS;
                    let values = Values {
                        at: values.at.add(span.start * values.row_bytes + feature * C::BYTES),
                        scales: values.scales.wrapping_add(group + span.start),
                        ..values
                    };
                    tiles::weighted::<S, C, MR, $nv, AHEAD>(
                        s,
                        p,
                        values,
                        n,
                        o.add(feature),
                        stride,
                    );
                    vector += $nv;
                }
            };
        }
        if S::TILED && (MR == 1 || (S::WIDE && MR <= 6)) {
            step!(4);
        } else if S::TILED && (MR <= 3 || S::WIDE) {
            step!(2);
        }
        step!(1);
    }
}
