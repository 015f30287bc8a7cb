//! From a file's rows to panels.

use super::{BLOCK, Codes, PANEL_ROWS, PackedLayout, SUPER, Scales};
use crate::screen;
use dunlin_quant::{self as quant, RawBlock};
use half::f16;

/// Packs one panel: `rows` are up to [`PANEL_ROWS`] rows of the file's blocks in output order,
/// `panel` the panel's bytes, which are overwritten. Missing rows become zero weights. What
/// [`pack_rest`] writes is left out.
///
/// # Panics
/// Where a row or the panel has the wrong length: the caller has checked both.
pub fn pack_rows(layout: &PackedLayout, rows: &[&[u8]], panel: &mut [u8]) {
    assert!(rows.len() <= PANEL_ROWS);
    assert_eq!(panel.len(), layout.panel_bytes());
    panel.fill(0);
    let ty = layout.spec().ty;
    for (r, row) in rows.iter().enumerate() {
        assert_eq!(Some(row.len()), ty.row_bytes(layout.cols()));
        if layout.spec().is_float() {
            pack_float_row(layout, r, row, panel);
        } else {
            for (i, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                pack_block(layout, r, i, &quant::unpack(ty, block), panel);
            }
            if layout.can_screen() {
                let radius = screen::radius(row.chunks_exact(ty.block_bytes()).map(|block| {
                    let raw = quant::unpack(ty, block);
                    (f16::from_bits(raw.d).to_f64(), raw.codes)
                }));
                let at = layout.radii_at + 4 * r;
                panel[at..at + 4].copy_from_slice(&radius.to_le_bytes());
            }
        }
    }
}

/// Packs the low bits of one panel, where codes are split: `rows` as in [`pack_rows`], `rest` the
/// panel's share of what stands behind all panels.
///
/// # Panics
/// As [`pack_rows`].
pub fn pack_rest(layout: &PackedLayout, rows: &[&[u8]], rest: &mut [u8]) {
    assert!(rows.len() <= PANEL_ROWS);
    assert_eq!(rest.len(), layout.rest_bytes());
    rest.fill(0);
    let ty = layout.spec().ty;
    let rest_bytes = layout.spec().codes.rest_bytes();
    for (r, row) in rows.iter().enumerate() {
        assert_eq!(Some(row.len()), ty.row_bytes(layout.cols()));
        let blocks = row.chunks_exact(ty.block_bytes()).zip(rest.chunks_exact_mut(rest_bytes));
        for (block, rest) in blocks {
            for (k, code) in quant::unpack(ty, block).codes[..BLOCK].iter().enumerate() {
                let (group, lane, low) = (k / 4, 4 * r + k % 4, code & 7);
                match group {
                    0..6 => rest[64 * (group / 2) + lane] |= low << (3 * (group % 2)),
                    _ => (0..3).for_each(|j| rest[64 * j + lane] |= (low >> j & 1) << group),
                }
            }
        }
    }
}

fn pack_float_row(layout: &PackedLayout, r: usize, row: &[u8], panel: &mut [u8]) {
    let size = layout.spec().ty.block_bytes();
    for (k, value) in row.chunks_exact(size).enumerate() {
        let at = layout.low_at + (k * PANEL_ROWS + r) * size;
        panel[at..at + size].copy_from_slice(value);
    }
}

/// Writes the file's block `i` of row `r`.
fn pack_block(layout: &PackedLayout, r: usize, i: usize, raw: &RawBlock, panel: &mut [u8]) {
    let ty = layout.spec().ty;
    let len = ty.block_len();
    for sub in 0..len / BLOCK {
        let block = i * (len / BLOCK) + sub;
        pack_codes(layout, r, block, &raw.codes[sub * BLOCK..(sub + 1) * BLOCK], panel);
        pack_scales(layout, r, block, sub, raw, panel);
    }
    let (_, _, sup) = layout.spec().scales.plane_bytes();
    if sup > 0 {
        debug_assert_eq!(len, SUPER);
        let at = layout.super_at + i * sup + 2 * r;
        panel[at..at + 2].copy_from_slice(&raw.d.to_le_bytes());
        if sup > 2 * PANEL_ROWS {
            let at = at + 2 * PANEL_ROWS;
            panel[at..at + 2].copy_from_slice(&raw.dmin.to_le_bytes());
        }
    }
}

fn pack_scales(
    layout: &PackedLayout,
    r: usize,
    block: usize,
    sub: usize,
    raw: &RawBlock,
    panel: &mut [u8],
) {
    let (scale, min, _) = layout.spec().scales.plane_bytes();
    let scale_at = layout.scales_at + block * scale;
    let min_at = layout.mins_at + block * min;
    match layout.spec().scales {
        Scales::None => {}
        Scales::Block | Scales::BlockMin => {
            panel[scale_at + 2 * r..][..2].copy_from_slice(&raw.d.to_le_bytes());
            if min > 0 {
                panel[min_at + 2 * r..][..2].copy_from_slice(&raw.dmin.to_le_bytes());
            }
        }
        Scales::Exponent => panel[scale_at + r] = raw.d as u8,
        Scales::Super | Scales::SuperMin => {
            panel[scale_at + r] = raw.sub_scales[sub] as u8;
            if min > 0 {
                panel[min_at + r] = raw.sub_mins[sub];
            }
        }
        Scales::SuperHalf | Scales::SuperHalfMin => {
            for half in 0..2 {
                let at = half * PANEL_ROWS + r;
                panel[scale_at + at] = raw.sub_scales[2 * sub + half] as u8;
                if min > 0 {
                    panel[min_at + at] = raw.sub_mins[2 * sub + half];
                }
            }
        }
    }
}

/// Writes the 32 codes of one block of row `r`; the layout of bits is described in [`super`].
fn pack_codes(layout: &PackedLayout, r: usize, block: usize, codes: &[u8], panel: &mut [u8]) {
    let kind = layout.spec().codes;
    let (low_bytes, high_bytes) = kind.plane_bytes();
    let low_at = layout.low_at + block * low_bytes;
    let high_at = layout.high_at + block * high_bytes;
    for (k, &code) in codes.iter().enumerate() {
        let (group, lane) = (k / 4, 4 * r + k % 4);
        match kind {
            Codes::Bits8 => panel[low_at + 64 * group + lane] = code ^ 0x80,
            Codes::Bits5And3 => {
                let nibble = (code >> 3 & 15) << (4 * (group / 4));
                panel[low_at + 64 * (group % 4) + lane] |= nibble;
            }
            Codes::Bits4 | Codes::Bits5 | Codes::Bits6 => {
                let nibble = (code & 15) << (4 * (group / 4));
                panel[low_at + 64 * (group % 4) + lane] |= nibble;
            }
            Codes::Bits2 | Codes::Bits3 => {
                panel[low_at + 64 * (group / 4) + lane] |= (code & 3) << (2 * (group % 4));
            }
            Codes::F16 | Codes::BF16 | Codes::F32 => unreachable!("floats have no codes"),
        }
        match kind {
            Codes::Bits3 => panel[high_at + lane] |= (code >> 2) << group,
            Codes::Bits5 => panel[high_at + lane] |= (code >> 4) << group,
            Codes::Bits5And3 => panel[high_at + lane] |= (code >> 7) << group,
            Codes::Bits6 => {
                panel[high_at + 64 * (group / 4) + lane] |= (code >> 4) << (2 * (group % 4));
            }
            _ => {}
        }
    }
}
