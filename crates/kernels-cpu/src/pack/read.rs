//! Reading packed weights one block at a time: the scalar reference of every format.

use super::{BLOCK, Codes, PANEL_ROWS, PackedMatrix, Scales};
use half::{bf16, f16};

/// What is added to a block's product besides its scaled codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MinTerm {
    /// Nothing.
    None,
    /// `min[row] * sum(x)`.
    Block([f32; PANEL_ROWS]),
    /// `-dmin[row] * (m[0][row] * sum(x in the first half) + m[1][row] * sum(x in the second))`.
    Half {
        /// The negated super minimum of each row.
        neg_dmin: [f32; PANEL_ROWS],
        /// The integer minimums of each half and row.
        m: [[f32; PANEL_ROWS]; 2],
    },
}

/// One block of a panel, unpacked.
#[derive(Debug, Clone)]
pub struct PanelBlock {
    /// Signed integer weights, `[row][input]`: codes less their offset, or codebook values.
    pub q: [[i32; BLOCK]; PANEL_ROWS],
    /// Scales and minimums.
    pub scales: BlockScales,
}

/// Scales and minimums of one block of a panel.
#[derive(Debug, Clone, Copy)]
pub struct BlockScales {
    /// The scale of each row.
    pub scale: [f32; PANEL_ROWS],
    /// Where half blocks have scales of their own: the integer factor of each half and row.
    pub half: Option<[[f32; PANEL_ROWS]; 2]>,
    /// The minimum's term.
    pub min: MinTerm,
}

fn halves(bytes: &[u8]) -> [f32; PANEL_ROWS] {
    std::array::from_fn(|r| f16::from_le_bytes([bytes[2 * r], bytes[2 * r + 1]]).to_f32())
}

fn signed(bytes: &[u8]) -> [f32; PANEL_ROWS] {
    std::array::from_fn(|r| f32::from(bytes[r] as i8))
}

fn unsigned(bytes: &[u8]) -> [f32; PANEL_ROWS] {
    std::array::from_fn(|r| f32::from(bytes[r]))
}

fn times(a: [f32; PANEL_ROWS], b: [f32; PANEL_ROWS]) -> [f32; PANEL_ROWS] {
    std::array::from_fn(|r| a[r] * b[r])
}

/// The value of an E8M0 exponent byte, halved because the codebook is doubled: `2^(e - 128)`.
pub(crate) fn exponent_scale(e: u8) -> f32 {
    match e {
        // Below the normal range the scale is subnormal.
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}

impl PackedMatrix<'_> {
    /// Unpacks block `block` of panel `panel` of a quantized matrix.
    pub fn panel_block(&self, panel: usize, block: usize) -> PanelBlock {
        PanelBlock { q: self.panel_codes(panel, block), scales: self.block_scales(panel, block) }
    }

    /// The scales and minimums of one block.
    pub fn block_scales(&self, panel: usize, block: usize) -> BlockScales {
        let layout = self.layout();
        let bytes = self.panel(panel);
        let (scale, min, sup) = layout.spec().scales.plane_bytes();
        let scales = &bytes[layout.scales_at + block * scale..][..scale];
        let mins = &bytes[layout.mins_at + block * min..][..min];
        let sups = &bytes[layout.super_at + block / 8 * sup..][..sup];
        let (first, second) = (PANEL_ROWS, 2 * PANEL_ROWS);
        let (scale, half, min) = match layout.spec().scales {
            Scales::None => unreachable!("float weights are read by value"),
            Scales::Block => (halves(scales), None, MinTerm::None),
            Scales::BlockMin => (halves(scales), None, MinTerm::Block(halves(mins))),
            Scales::Exponent => {
                (std::array::from_fn(|r| exponent_scale(scales[r])), None, MinTerm::None)
            }
            Scales::Super => (times(halves(sups), signed(scales)), None, MinTerm::None),
            Scales::SuperMin => {
                let min = times(halves(&sups[second..]), unsigned(mins)).map(|m| -m);
                (times(halves(sups), unsigned(scales)), None, MinTerm::Block(min))
            }
            Scales::SuperHalf => {
                let half = [signed(scales), signed(&scales[first..])];
                (halves(sups), Some(half), MinTerm::None)
            }
            Scales::SuperHalfMin => {
                let half = [unsigned(scales), unsigned(&scales[first..])];
                let min = MinTerm::Half {
                    neg_dmin: halves(&sups[second..]).map(|m| -m),
                    m: [unsigned(mins), unsigned(&mins[first..])],
                };
                (halves(sups), Some(half), min)
            }
        };
        BlockScales { scale, half, min }
    }

    fn panel_codes(&self, panel: usize, block: usize) -> [[i32; BLOCK]; PANEL_ROWS] {
        std::array::from_fn(|r| self.row_codes(panel, block, r))
    }

    fn row_codes(&self, panel: usize, block: usize, r: usize) -> [i32; BLOCK] {
        let layout = self.layout();
        let spec = layout.spec();
        let bytes = self.panel(panel);
        let (low_bytes, high_bytes) = spec.codes.plane_bytes();
        let low = &bytes[layout.low_at + block * low_bytes..][..low_bytes];
        let high = &bytes[layout.high_at + block * high_bytes..][..high_bytes];
        let rest_bytes = spec.codes.rest_bytes();
        let rest = &self.rest(panel)[block * rest_bytes..][..rest_bytes];
        std::array::from_fn(|k| {
            let (group, lane) = (k / 4, 4 * r + k % 4);
            let nibble = |plane: &[u8]| plane[64 * (group % 4) + lane] >> (4 * (group / 4)) & 15;
            let pair = |plane: &[u8]| plane[64 * (group / 4) + lane] >> (2 * (group % 4)) & 3;
            let bit = |plane: &[u8]| plane[lane] >> group & 1;
            let three = || match group {
                0..6 => rest[64 * (group / 2) + lane] >> (3 * (group % 2)) & 7,
                _ => (0..3).fold(0, |l, j| l | (rest[64 * j + lane] >> group & 1) << j),
            };
            let code = match spec.codes {
                Codes::Bits5And3 => {
                    let byte = (nibble(low) | bit(high) << 4) << 3 | three();
                    return i32::from(byte) - 128;
                }
                Codes::Bits2 => pair(low),
                Codes::Bits3 => pair(low) | bit(high) << 2,
                Codes::Bits4 => nibble(low),
                Codes::Bits5 => nibble(low) | bit(high) << 4,
                Codes::Bits6 => nibble(low) | pair(high) << 4,
                Codes::Bits8 => return i32::from(low[64 * group + lane] as i8),
                Codes::F16 | Codes::BF16 | Codes::F32 => unreachable!("floats have no codes"),
            };
            match spec.codebook {
                Some(book) => i32::from(book[usize::from(code)]),
                None => i32::from(code) - spec.offset,
            }
        })
    }

    /// The float weight of row `r` of panel `panel` at input `k`.
    pub fn panel_float(&self, panel: usize, r: usize, k: usize) -> f32 {
        let layout = self.layout();
        let at = |size: usize| layout.low_at + (k * PANEL_ROWS + r) * size;
        let bytes = self.panel(panel);
        match layout.spec().codes {
            Codes::F16 => f16::from_le_bytes([bytes[at(2)], bytes[at(2) + 1]]).to_f32(),
            Codes::BF16 => bf16::from_le_bytes([bytes[at(2)], bytes[at(2) + 1]]).to_f32(),
            Codes::F32 => f32::from_le_bytes(bytes[at(4)..at(4) + 4].try_into().unwrap()),
            _ => unreachable!("quantized weights are read by block"),
        }
    }

    /// Writes row `row` of the matrix as floats: an embedding look-up.
    ///
    /// # Panics
    /// Where `out` is shorter than the row.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let (panel, r) = (row / PANEL_ROWS, row % PANEL_ROWS);
        let cols = self.layout().cols();
        let out = &mut out[..cols];
        if self.layout().spec().is_float() {
            for (k, value) in out.iter_mut().enumerate() {
                *value = self.panel_float(panel, r, k);
            }
            return;
        }
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let b = self.block_scales(panel, block);
            let q = self.row_codes(panel, block, r);
            for (k, value) in out.iter_mut().enumerate() {
                let half = b.half.map_or(1.0, |h| h[k / 16][r]);
                let min = match b.min {
                    MinTerm::None => 0.0,
                    MinTerm::Block(m) => m[r],
                    MinTerm::Half { neg_dmin, m } => neg_dmin[r] * m[k / 16][r],
                };
                // As the file's own definition does it: scale times integer, then the minimum.
                *value = b.scale[r] * half * q[k] as f32 + min;
            }
        }
    }
}
