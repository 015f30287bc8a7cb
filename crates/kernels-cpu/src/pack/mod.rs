//! The packed layout of weight matrices: one SIMD lane holds one output row.
//!
//! A matrix `[rows, cols]` is cut into **panels** of [`PANEL_ROWS`] output rows (the last one
//! padded with zero weights) and each panel's inputs into **blocks** of [`BLOCK`] columns. A panel
//! is a few byte planes, each aligned to 64 bytes, so that every kernel reads whole vectors:
//!
//! - *codes*: for each block eight groups of four inputs; within a group the byte of row `r`,
//!   input `i` stands at `4 r + i`, which is what byte dot-product instructions want. Codes under 8
//!   bits are split into a low plane and a high plane (4-bit: group `j` in the low nibble and group
//!   `j + 4` in the high one).
//! - *scales*, *minimums*, *super scales*: one value for each row and block (or half block, or
//!   super block), 16 rows side by side, kept in the file's own precision so that a pack is about
//!   as large as the file.
//!
//! Float weights are `[col][row]` within a panel.
//!
//! A head of whole bytes is split ([`Codes::Bits5And3`]): the panels hold each code's five high bits,
//! and 64 bytes of *radii* before them; the three low bits of all panels follow the last panel. Of
//! them a block has three vectors of 64 bytes: groups `2 j` and `2 j + 1` in bits 0 to 2 and 3 to 5 of
//! vector `j`; bit `j` of groups 6 and 7 in bits 6 and 7 of vector `j`.
//!
//! The layout is the same for every instruction set, so a pack made on one CPU serves another.
//! Nothing is lost: packing is a permutation of the file's codes and scales.

mod buffer;
mod layout;
mod read;
mod write;

pub use buffer::PackBuffer;
pub use layout::{Codes, PackSpec, PackedLayout, Scales};
pub use read::{BlockScales, MinTerm, PanelBlock};
pub use write::{pack_rest, pack_rows};

/// Output rows in a panel.
pub const PANEL_ROWS: usize = 16;
/// Inputs in a block: the unit of exact integer sums and of activation scales.
pub const BLOCK: usize = 32;
/// Inputs in a super block of the K types.
pub const SUPER: usize = 256;

/// A packed matrix: its layout and its bytes (64-byte aligned).
#[derive(Debug, Clone, Copy)]
pub struct PackedMatrix<'a> {
    layout: &'a PackedLayout,
    data: &'a [u8],
}

impl<'a> PackedMatrix<'a> {
    /// A view of packed bytes, or `None` where the length or the alignment is wrong.
    pub fn new(layout: &'a PackedLayout, data: &'a [u8]) -> Option<Self> {
        let right = data.len() == layout.bytes() && (data.as_ptr() as usize).is_multiple_of(64);
        right.then_some(PackedMatrix { layout, data })
    }

    /// The layout.
    pub fn layout(&self) -> &'a PackedLayout {
        self.layout
    }

    /// The bytes of panel `p`.
    pub fn panel(&self, p: usize) -> &'a [u8] {
        let n = self.layout.panel_bytes();
        &self.data[p * n..(p + 1) * n]
    }

    /// The low bits of panel `p`, where codes are split; else nothing.
    pub fn rest(&self, p: usize) -> &'a [u8] {
        let n = self.layout.rest_bytes();
        let first = self.layout.panel_bytes() * self.layout.panels();
        &self.data[first + p * n..][..n]
    }

    /// The radii of panel `p`'s rows, where codes are split: see [`crate::screen`].
    ///
    /// # Panics
    /// Where codes are not split.
    pub fn radii(&self, p: usize) -> [f32; PANEL_ROWS] {
        assert!(self.layout.can_screen());
        let bytes = &self.panel(p)[self.layout.radii_at..][..4 * PANEL_ROWS];
        let float = |r: usize| [0, 1, 2, 3].map(|i| bytes[4 * r + i]);
        std::array::from_fn(|r| f32::from_le_bytes(float(r)))
    }

    /// All bytes.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }
}
