//! Where each bit of a block lies: [`unpack`] takes a block apart, [`repack`] puts it together.
//!
//! Every format scatters its integers the same way, as bit planes, so a format is a table here
//! and one pair of loops reads and writes them all. Only the 6-bit pairs of Q4_K and Q5_K need
//! code of their own.

use dunlin_spec::WeightType;

use crate::format::RawBlock;

/// Some bits of a list of integers, stored interleaved.
///
/// `bytes` bytes from `at` on form spans of `run` bytes. A span holds `8 / width` runs of `run`
/// integers: integer `k * run + l` of a span lies in byte `l` at bit `k * width`. The bits are
/// those of the integer from `shift` on.
struct Plane {
    at: usize,
    bytes: usize,
    width: usize,
    run: usize,
    shift: usize,
}

const fn plane(at: usize, bytes: usize, width: usize, run: usize, shift: usize) -> Plane {
    Plane { at, bytes, width, run, shift }
}

impl Plane {
    /// Ors this plane's bits into `integers`.
    #[inline]
    fn read(&self, block: &[u8], integers: &mut [u8]) {
        let (per_byte, mask) = (8 / self.width, u8::MAX >> (8 - self.width));
        let spans = block[self.at..][..self.bytes].chunks_exact(self.run);
        for (span, integers) in spans.zip(integers.chunks_exact_mut(self.run * per_byte)) {
            for (k, run) in integers.chunks_exact_mut(self.run).enumerate() {
                for (integer, byte) in run.iter_mut().zip(span) {
                    *integer |= ((byte >> (k * self.width)) & mask) << self.shift;
                }
            }
        }
    }

    /// Ors this plane's bits of `integers` into the block.
    fn write(&self, integers: &[u8], block: &mut [u8]) {
        let (per_byte, mask) = (8 / self.width, u8::MAX >> (8 - self.width));
        let spans = block[self.at..][..self.bytes].chunks_exact_mut(self.run);
        for (span, integers) in spans.zip(integers.chunks_exact(self.run * per_byte)) {
            for (k, run) in integers.chunks_exact(self.run).enumerate() {
                for (integer, byte) in run.iter().zip(span.iter_mut()) {
                    *byte |= ((integer >> self.shift) & mask) << (k * self.width);
                }
            }
        }
    }
}

/// How the integer scales of sub-blocks are stored.
enum SubScales {
    /// There are none.
    None,
    /// In bit planes, `bias` above their value. With `mins`, integers 16.. are the minimums.
    Planes { planes: &'static [Plane], count: usize, bias: i16, mins: bool },
    /// 16 int8 from this byte on.
    Int8(usize),
    /// 8 scales and 8 minimums of 6 bits in 12 bytes from this byte on.
    ScaleMin6(usize),
}

/// A block format.
struct Layout {
    /// Byte of the scale: an f16, or in MXFP4 one byte.
    d: usize,
    /// Byte of the second f16, where there is one.
    dmin: Option<usize>,
    sub_scales: SubScales,
    codes: &'static [Plane],
}

/// A format without sub-blocks.
const fn plain(d: usize, dmin: Option<usize>, codes: &'static [Plane]) -> Layout {
    Layout { d, dmin, sub_scales: SubScales::None, codes }
}
static NIBBLES: Layout = plain(0, None, &[plane(2, 16, 4, 16, 0)]);
static NIBBLES_M: Layout = plain(0, Some(2), &[plane(4, 16, 4, 16, 0)]);
static FIVE: Layout = plain(0, None, &[plane(6, 16, 4, 16, 0), plane(2, 4, 1, 1, 4)]);
static FIVE_M: Layout = plain(0, Some(2), &[plane(8, 16, 4, 16, 0), plane(4, 4, 1, 1, 4)]);
static BYTES: Layout = plain(0, None, &[plane(2, 32, 8, 32, 0)]);
static E8M0_NIBBLES: Layout = plain(0, None, &[plane(1, 16, 4, 16, 0)]);
static K2: Layout = Layout {
    d: 80,
    dmin: Some(82),
    sub_scales: SubScales::Planes {
        planes: &[plane(0, 16, 4, 16, 0)],
        count: 16,
        bias: 0,
        mins: true,
    },
    codes: &[plane(16, 64, 2, 32, 0)],
};
static K3: Layout = Layout {
    d: 108,
    dmin: None,
    sub_scales: SubScales::Planes {
        planes: &[plane(96, 8, 4, 8, 0), plane(104, 4, 2, 4, 4)],
        count: 16,
        bias: 32,
        mins: false,
    },
    codes: &[plane(32, 64, 2, 32, 0), plane(0, 32, 1, 32, 2)],
};
static K4: Layout = Layout {
    d: 0,
    dmin: Some(2),
    sub_scales: SubScales::ScaleMin6(4),
    codes: &[plane(16, 128, 4, 32, 0)],
};
static K5: Layout = Layout {
    d: 0,
    dmin: Some(2),
    sub_scales: SubScales::ScaleMin6(4),
    codes: &[plane(48, 128, 4, 32, 0), plane(16, 32, 1, 32, 4)],
};
static K6: Layout = Layout {
    d: 208,
    dmin: None,
    sub_scales: SubScales::Int8(192),
    codes: &[plane(0, 128, 4, 64, 0), plane(128, 64, 2, 32, 4)],
};
static IQ4XS: Layout = Layout {
    d: 0,
    dmin: None,
    sub_scales: SubScales::Planes {
        planes: &[plane(4, 4, 4, 1, 0), plane(2, 2, 2, 1, 4)],
        count: 8,
        bias: 32,
        mins: false,
    },
    codes: &[plane(8, 128, 4, 16, 0)],
};

/// The layout of a quantized type; `None` for plain floats.
fn layout(ty: WeightType) -> Option<&'static Layout> {
    use WeightType::*;
    match ty {
        F32 | F16 | BF16 => None,
        Q4_0 | IQ4_NL => Some(&NIBBLES),
        Q4_1 => Some(&NIBBLES_M),
        Q5_0 => Some(&FIVE),
        Q5_1 => Some(&FIVE_M),
        Q8_0 => Some(&BYTES),
        MXFP4 => Some(&E8M0_NIBBLES),
        Q2_K => Some(&K2),
        Q3_K => Some(&K3),
        Q4_K => Some(&K4),
        Q5_K => Some(&K5),
        Q6_K => Some(&K6),
        IQ4_XS => Some(&IQ4XS),
    }
}

fn checked_layout(ty: WeightType, block: &[u8]) -> &'static Layout {
    assert_eq!(block.len(), ty.block_bytes(), "bytes of one {ty} block");
    match layout(ty) {
        Some(layout) => layout,
        None => panic!("{ty} has no quantized blocks"),
    }
}

/// Takes a block apart. Nothing is rounded; [`repack`] is the inverse.
///
/// # Panics
/// If the type is F32, F16 or BF16, or `block` is not the size of one block.
pub fn unpack(ty: WeightType, block: &[u8]) -> RawBlock {
    let mut raw = RawBlock::default();
    unpack_into(ty, block, &mut raw);
    raw
}

/// As [`unpack`], into a block that exists. Every field is overwritten, but of `codes` only the
/// first `block_len`.
///
/// # Panics
/// As [`unpack`].
pub fn unpack_into(ty: WeightType, block: &[u8], raw: &mut RawBlock) {
    let layout = checked_layout(ty, block);
    let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    raw.d = match ty {
        WeightType::MXFP4 => u16::from(block[layout.d]),
        _ => u16_at(layout.d),
    };
    raw.dmin = layout.dmin.map_or(0, u16_at);
    raw.sub_scales = [0; 16];
    raw.sub_mins = [0; 16];
    match &layout.sub_scales {
        SubScales::None => raw.sub_scales[0] = 1,
        SubScales::Planes { planes, count, bias, mins } => {
            let mut integers = [0u8; 32];
            for plane in *planes {
                plane.read(block, &mut integers);
            }
            for (scale, &integer) in raw.sub_scales.iter_mut().zip(&integers[..*count]) {
                *scale = i16::from(integer) - bias;
            }
            if *mins {
                raw.sub_mins.copy_from_slice(&integers[16..]);
            }
        }
        SubScales::Int8(at) => {
            for (scale, &byte) in raw.sub_scales.iter_mut().zip(&block[*at..][..16]) {
                *scale = i16::from(byte as i8);
            }
        }
        SubScales::ScaleMin6(at) => read_scale_min_6(&block[*at..][..12], raw),
    }
    let codes = &mut raw.codes[..ty.block_len()];
    codes.fill(0);
    for plane in layout.codes {
        plane.read(block, codes);
    }
    if ty == WeightType::Q8_0 {
        flip_signs(codes);
    }
}

/// Puts a block together: the exact inverse of [`unpack`].
///
/// Bits of a code or sub-block integer beyond what the format stores are dropped.
///
/// # Panics
/// As [`unpack`].
pub fn repack(ty: WeightType, raw: &RawBlock, block: &mut [u8]) {
    let layout = checked_layout(ty, block);
    block.fill(0);
    match ty {
        WeightType::MXFP4 => block[layout.d] = raw.d as u8,
        _ => block[layout.d..][..2].copy_from_slice(&raw.d.to_le_bytes()),
    }
    if let Some(at) = layout.dmin {
        block[at..][..2].copy_from_slice(&raw.dmin.to_le_bytes());
    }
    match &layout.sub_scales {
        SubScales::None => {}
        SubScales::Planes { planes, count, bias, mins } => {
            let mut integers = [0u8; 32];
            for (integer, scale) in integers[..*count].iter_mut().zip(&raw.sub_scales) {
                *integer = scale.wrapping_add(*bias) as u8;
            }
            if *mins {
                integers[16..].copy_from_slice(&raw.sub_mins);
            }
            for plane in *planes {
                plane.write(&integers, block);
            }
        }
        SubScales::Int8(at) => {
            for (byte, &scale) in block[*at..][..16].iter_mut().zip(&raw.sub_scales) {
                *byte = scale as u8;
            }
        }
        SubScales::ScaleMin6(at) => write_scale_min_6(raw, &mut block[*at..][..12]),
    }
    let mut codes = raw.codes;
    let codes = &mut codes[..ty.block_len()];
    if ty == WeightType::Q8_0 {
        flip_signs(codes);
    }
    for plane in layout.codes {
        plane.write(codes, block);
    }
}

/// Between int8 and codes offset by 128.
fn flip_signs(codes: &mut [u8]) {
    for code in codes {
        *code ^= 0x80;
    }
}

/// The scales and minimums of Q4_K and Q5_K. Sub-blocks 0..4: the low six bits of bytes 0..4
/// (scale) and 4..8 (minimum). Sub-blocks 4..8: the nibbles of bytes 8..12 (low: scale), with
/// their upper two bits in what the first eight bytes have left.
fn read_scale_min_6(packed: &[u8], raw: &mut RawBlock) {
    for s in 0..4 {
        raw.sub_scales[s] = i16::from(packed[s] & 63);
        raw.sub_mins[s] = packed[s + 4] & 63;
        raw.sub_scales[s + 4] = i16::from(packed[s + 8] & 15 | packed[s] >> 6 << 4);
        raw.sub_mins[s + 4] = packed[s + 8] >> 4 | packed[s + 4] >> 6 << 4;
    }
}

fn write_scale_min_6(raw: &RawBlock, packed: &mut [u8]) {
    for s in 0..4 {
        let (scale, min) = (raw.sub_scales[s] as u8 & 63, raw.sub_mins[s] & 63);
        let (scale4, min4) = (raw.sub_scales[s + 4] as u8 & 63, raw.sub_mins[s + 4] & 63);
        packed[s] = scale | scale4 >> 4 << 6;
        packed[s + 4] = min | min4 >> 4 << 6;
        packed[s + 8] = scale4 & 15 | (min4 & 15) << 4;
    }
}
