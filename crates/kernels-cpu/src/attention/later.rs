//! Asking memory for what parts of a unit read on their own.

use super::SEGMENT_TOKENS;
use super::item::Work;
use super::plan::Unit;
use super::segment::Runs;
use crate::kv::BLOCK_TOKENS;
use crate::simd::Simd;

/// Blocks of a part that are asked for: those of a short tail. In a long one, kernels ask for each
/// block while they work on the one before.
const BLOCKS_AHEAD: usize = 4;
/// The most lines that are asked for with each row of a common block, about what memory can bring
/// in that time.
const LINES_EACH: usize = 8;

/// What parts read on their own above the common blocks, as cache lines to be asked for while the
/// last of the common blocks are computed: those are in cache already, these would be waited for.
pub(super) struct Later<'a> {
    work: &'a Work<'a>,
    unit: &'a Unit,
    /// Whether it is the values rather than the keys.
    values: bool,
    /// The block that no part goes beyond.
    end: usize,
    /// The part and the block that come next.
    part: usize,
    block: usize,
    /// Lines of the block before it that are left to ask for.
    at: *const u8,
    lines: usize,
    /// Lines to ask for with each row of a common block.
    each: usize,
}

impl<'a> Later<'a> {
    /// `values` rather than keys, in a segment of an item that goes on to `end_segment`.
    #[inline(always)]
    pub(super) fn new(runs: &Runs<'a>, values: bool, end_segment: usize) -> Self {
        const BLOCKS: usize = SEGMENT_TOKENS / BLOCK_TOKENS;
        let (work, unit) = (runs.work, runs.unit);
        let mut later = Later {
            work,
            unit,
            values,
            end: end_segment * BLOCKS,
            part: 0,
            block: unit.common.end,
            at: std::ptr::null(),
            lines: 0,
            each: 0,
        };
        let common = runs.common_end - runs.common_start;
        if common > 0 && unit.common.end <= runs.first_block + BLOCKS {
            let parts = 0..unit.parts.len();
            let blocks: usize = parts.map(|i| later.end_of(i).saturating_sub(later.block)).sum();
            let rows = unit.queries.len() * work.plan.shape.group();
            let each = (blocks * later.lines_of_block()).div_ceil(common * rows);
            later.each = each.min(LINES_EACH);
        }
        later
    }

    /// The block after the last that a part reads.
    #[inline(always)]
    fn end_of(&self, part: usize) -> usize {
        let part = &self.work.plan.parts[self.unit.parts.start + part];
        let last = self.work.plan.queries[part.queries.end - 1].position;
        let far = self.unit.common.end + BLOCKS_AHEAD;
        (last / BLOCK_TOKENS + 1).min(self.end).min(far)
    }

    #[inline(always)]
    fn lines_of_block(&self) -> usize {
        let keys = self.work.layer.key_bytes();
        let bytes = if self.values { self.work.layer.head_bytes - keys } else { keys };
        bytes.div_ceil(64)
    }

    /// Asks for the lines that go with `rows` rows.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&mut self, s: S, rows: usize) {
        for _ in 0..self.each * rows {
            while self.lines == 0 {
                if self.part == self.unit.parts.len() {
                    return;
                }
                if self.block >= self.end_of(self.part) {
                    (self.part, self.block) = (self.part + 1, self.unit.common.end);
                    continue;
                }
                let table = self.work.plan.parts[self.unit.parts.start + self.part].table;
                let block = self.work.plan.tables[table + self.block] as usize;
                let head = self.work.pool.head(self.work.layer, block, self.unit.kv_head);
                self.at = if self.values { head.v } else { head.k };
                self.lines = self.lines_of_block();
                self.block += 1;
            }
            s.prefetch(self.at);
            self.at = self.at.wrapping_add(64);
            self.lines -= 1;
        }
    }
}
