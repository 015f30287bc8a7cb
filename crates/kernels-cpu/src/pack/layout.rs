//! Where each plane of a panel stands.

use super::{BLOCK, PANEL_ROWS, SUPER};
use dunlin_quant as quant;
use dunlin_spec::WeightType;

/// How codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Two bits.
    Bits2,
    /// Two bits and a high bit.
    Bits3,
    /// A nibble.
    Bits4,
    /// A nibble and a high bit.
    Bits5,
    /// A nibble and two high bits.
    Bits6,
    /// A signed byte.
    Bits8,
    /// A byte as its five high bits, stored as those of [`Codes::Bits5`] are, and its three low ones,
    /// which lie behind all panels: products with the high bits alone read nothing else.
    Bits5And3,
    /// An IEEE half float, `[col][row]`.
    F16,
    /// A bfloat16, `[col][row]`.
    BF16,
    /// A float, `[col][row]`.
    F32,
}

/// How a block's scales and minimums are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scales {
    /// Float weights have none.
    None,
    /// A half-float scale for each block.
    Block,
    /// A half-float scale and minimum for each block.
    BlockMin,
    /// A power of two for each block (MXFP4).
    Exponent,
    /// A half-float super scale times an int8 for each block.
    Super,
    /// Super scale and super minimum, each times a byte for each block.
    SuperMin,
    /// A super scale times an int8 for each half block.
    SuperHalf,
    /// Super scale and super minimum, each times a byte for each half block.
    SuperHalfMin,
}

/// How one weight type is packed and what its codes mean:
/// `value = scale * (code - offset) + min`, or `scale * codebook[code]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackSpec {
    /// The file's type.
    pub ty: WeightType,
    /// How codes are stored.
    pub codes: Codes,
    /// How scales are stored.
    pub scales: Scales,
    /// Subtracted from each code (zero where the stored code is signed or indexes a codebook).
    pub offset: i32,
    /// Signed values that 4-bit codes index.
    pub codebook: Option<&'static [i8; 16]>,
}

impl PackSpec {
    /// How `ty` is packed.
    pub fn of(ty: WeightType) -> PackSpec {
        use WeightType::*;
        let (codes, scales) = match ty {
            F32 => (Codes::F32, Scales::None),
            F16 => (Codes::F16, Scales::None),
            BF16 => (Codes::BF16, Scales::None),
            Q4_0 | IQ4_NL => (Codes::Bits4, Scales::Block),
            Q4_1 => (Codes::Bits4, Scales::BlockMin),
            Q5_0 => (Codes::Bits5, Scales::Block),
            Q5_1 => (Codes::Bits5, Scales::BlockMin),
            Q8_0 => (Codes::Bits8, Scales::Block),
            Q2_K => (Codes::Bits2, Scales::SuperHalfMin),
            Q3_K => (Codes::Bits3, Scales::SuperHalf),
            Q4_K => (Codes::Bits4, Scales::SuperMin),
            Q5_K => (Codes::Bits5, Scales::SuperMin),
            Q6_K => (Codes::Bits6, Scales::SuperHalf),
            IQ4_XS => (Codes::Bits4, Scales::Super),
            MXFP4 => (Codes::Bits4, Scales::Exponent),
        };
        let codebook = quant::codebook(ty);
        let offset = match codes {
            Codes::Bits8 | Codes::Bits5And3 | Codes::F16 | Codes::BF16 | Codes::F32 => 0,
            _ if codebook.is_some() => 0,
            _ => quant::code_offset(ty),
        };
        PackSpec { ty, codes, scales, offset, codebook }
    }

    /// How `ty` is packed as a head whose best row is looked for: whole bytes are split, so that few
    /// rows' low bits have to be read (see [`crate::screen`]).
    pub fn of_head(ty: WeightType) -> PackSpec {
        let plain = Self::of(ty);
        match plain.codes {
            Codes::Bits8 => PackSpec { codes: Codes::Bits5And3, ..plain },
            _ => plain,
        }
    }

    /// Whether the weights are floats.
    pub fn is_float(&self) -> bool {
        self.scales == Scales::None
    }
}

impl Codes {
    /// Bytes of the low and of the high plane for one block of a panel. (Low alone for bytes and
    /// floats; of split bytes, the planes of the five high bits.)
    pub const fn plane_bytes(self) -> (usize, usize) {
        match self {
            Codes::Bits2 => (128, 0),
            Codes::Bits3 => (128, 64),
            Codes::Bits4 => (256, 0),
            Codes::Bits5 | Codes::Bits5And3 => (256, 64),
            Codes::Bits6 => (256, 128),
            Codes::Bits8 => (512, 0),
            Codes::F16 | Codes::BF16 => (2 * BLOCK * PANEL_ROWS, 0),
            Codes::F32 => (4 * BLOCK * PANEL_ROWS, 0),
        }
    }

    /// Bytes of the low bits of one block that lie behind all panels.
    pub const fn rest_bytes(self) -> usize {
        match self {
            Codes::Bits5And3 => 192,
            _ => 0,
        }
    }
}

impl Scales {
    /// Bytes for one panel: scales of a block, minimums of a block, super scales and minimums of a
    /// super block.
    pub const fn plane_bytes(self) -> (usize, usize, usize) {
        const R: usize = PANEL_ROWS;
        match self {
            Scales::None => (0, 0, 0),
            Scales::Block => (2 * R, 0, 0),
            Scales::BlockMin => (2 * R, 2 * R, 0),
            Scales::Exponent => (R, 0, 0),
            Scales::Super => (R, 0, 2 * R),
            Scales::SuperMin => (R, R, 4 * R),
            Scales::SuperHalf => (2 * R, 0, 2 * R),
            Scales::SuperHalfMin => (2 * R, 2 * R, 4 * R),
        }
    }

    /// Whether each half block has its own scale.
    pub const fn halves(self) -> bool {
        matches!(self, Scales::SuperHalf | Scales::SuperHalfMin)
    }
}

/// The layout of one packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedLayout {
    spec: PackSpec,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    /// Bytes of a panel's low bits, behind all panels.
    rest_bytes: usize,
    /// Offset in a panel of the rows' radii (see [`crate::screen`]), where codes are split.
    pub(crate) radii_at: usize,
    /// Offsets in a panel of the planes: super, scales, minimums, high codes, low codes.
    pub(crate) super_at: usize,
    pub(crate) scales_at: usize,
    pub(crate) mins_at: usize,
    pub(crate) high_at: usize,
    pub(crate) low_at: usize,
}

impl PackedLayout {
    /// The layout of a matrix, or `None` where its size overflows or `cols` is not a whole number
    /// of the type's blocks.
    pub fn new(ty: WeightType, rows: usize, cols: usize) -> Option<Self> {
        Self::of(PackSpec::of(ty), rows, cols)
    }

    /// The layout of a head's matrix ([`PackSpec::of_head`]); `None` as above.
    pub fn of_head(ty: WeightType, rows: usize, cols: usize) -> Option<Self> {
        Self::of(PackSpec::of_head(ty), rows, cols)
    }

    fn of(spec: PackSpec, rows: usize, cols: usize) -> Option<Self> {
        spec.ty.row_bytes(cols)?;
        if rows == 0 || cols == 0 {
            return None;
        }
        let blocks = cols.div_ceil(BLOCK);
        let supers = cols.div_ceil(SUPER);
        let (scale, min, sup) = spec.scales.plane_bytes();
        let (low, high) = spec.codes.plane_bytes();
        let mut at = 0usize;
        let mut plane = |n: usize, each: usize| -> Option<usize> {
            let here = at;
            at = at.checked_add(n.checked_mul(each)?.checked_next_multiple_of(64)?)?;
            Some(here)
        };
        let radii_at = plane(usize::from(spec.codes.rest_bytes() > 0), 4 * PANEL_ROWS)?;
        let super_at = plane(supers, sup)?;
        let scales_at = plane(blocks, scale)?;
        let mins_at = plane(blocks, min)?;
        let high_at = plane(blocks, high)?;
        let low_at = plane(blocks, low)?;
        let layout = PackedLayout {
            spec,
            rows,
            cols,
            panel_bytes: at,
            rest_bytes: blocks.checked_mul(spec.codes.rest_bytes())?,
            radii_at,
            super_at,
            scales_at,
            mins_at,
            high_at,
            low_at,
        };
        let all = at.checked_add(layout.rest_bytes)?;
        all.checked_mul(layout.panels()).filter(|&n| n <= isize::MAX as usize)?;
        Some(layout)
    }

    /// How the type is packed.
    pub fn spec(&self) -> &PackSpec {
        &self.spec
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Blocks of inputs.
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Panels of output rows.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes of one panel, a multiple of 64.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of one panel's low bits, which stand behind all panels; a multiple of 64, and zero but
    /// for split codes.
    pub fn rest_bytes(&self) -> usize {
        self.rest_bytes
    }

    /// Whether the best row can be looked for with the high bits alone.
    pub fn can_screen(&self) -> bool {
        self.rest_bytes > 0
    }

    /// Bytes of the whole packed matrix.
    pub fn bytes(&self) -> usize {
        (self.panel_bytes + self.rest_bytes) * self.panels()
    }
}
