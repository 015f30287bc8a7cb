//! The layout of activations that enter a product.

use crate::pack::BLOCK;

/// int8 columns, `blocks` blocks of 32 inputs each (padded with zeros).
#[derive(Debug, Clone, Copy)]
pub struct Int8Columns<'a> {
    /// Columns.
    pub n: usize,
    /// Blocks in a column.
    pub blocks: usize,
    /// `[n][32 * blocks]`.
    pub q: &'a [i8],
    /// Scales, `[n][blocks]`.
    pub d: &'a [f32],
    /// `d * f32(sum of q over the block)`, `[n][blocks]`.
    pub ds: &'a [f32],
    /// Sums of `q` over each half block, `[n][blocks][2]`.
    pub sums: &'a [i16],
}

impl Int8Columns<'_> {
    pub(super) fn check(&self, blocks: usize) {
        assert_eq!(self.blocks, blocks);
        assert_eq!(self.q.len(), self.n * blocks * BLOCK);
        assert_eq!(self.d.len(), self.n * blocks);
        assert_eq!(self.ds.len(), self.n * blocks);
        assert_eq!(self.sums.len(), 2 * self.n * blocks);
    }
}

/// f32 columns, padded with zeros to whole blocks.
#[derive(Debug, Clone, Copy)]
pub struct FloatColumns<'a> {
    /// Columns.
    pub n: usize,
    /// Blocks in a column.
    pub blocks: usize,
    /// `[n][32 * blocks]`.
    pub x: &'a [f32],
    /// Sums of `x` over each half block, ascending from zero, `[n][blocks][2]`.
    pub sums: &'a [f32],
}

impl FloatColumns<'_> {
    pub(super) fn check(&self, blocks: usize) {
        assert_eq!(self.blocks, blocks);
        assert_eq!(self.x.len(), self.n * blocks * BLOCK);
        assert_eq!(self.sums.len(), 2 * self.n * blocks);
    }
}

/// The sum of half a block, ascending from zero.
pub fn half_block_sum(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, v| sum + v)
}
