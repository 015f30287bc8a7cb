//! The reference: the order of sums exactly as the module's documentation states it.

use super::format::Bits;
use super::{Columns, FloatColumns, Int8Columns, Output, panel_rows};
use crate::pack::{BLOCK, BlockScales, MinTerm, PANEL_ROWS, PackedMatrix, PanelBlock};
use std::ops::Range;

pub(super) fn run(
    bits: Bits,
    w: &PackedMatrix<'_>,
    panels: Range<usize>,
    columns: &Columns<'_>,
    out: &Output,
) {
    for panel in panels {
        let rows = panel_rows(w, panel);
        for t in 0..columns.n() {
            let y = match columns {
                Columns::Int8(a) => int8_column(bits, w, panel, a, t),
                Columns::Split(a) => {
                    let high = int8_column(bits, w, panel, a, 2 * t);
                    let low = int8_column(bits, w, panel, a, 2 * t + 1);
                    std::array::from_fn(|r| high[r] + low[r])
                }
                Columns::Float(a) if w.layout().spec().is_float() => float_column(w, panel, a, t),
                Columns::Float(a) => mixed_column(w, panel, a, t),
            };
            // SAFETY: shapes were checked by the caller, and panels are disjoint.
            unsafe { out.write(t, panel * PANEL_ROWS, &y[..rows]) };
        }
    }
}

type Sums = [f32; PANEL_ROWS];

/// Adds a block's minimum, whose inputs sum to `sum` over its halves, scaled by `d`.
fn add_min(acc: &mut f32, r: usize, scales: &BlockScales, sum: [f32; 2], whole: f32, d: f32) {
    match scales.min {
        MinTerm::None => {}
        MinTerm::Block(min) => *acc = min[r].mul_add(whole, *acc),
        MinTerm::Half { neg_dmin, m } => {
            let inner = m[1][r].mul_add(sum[1], m[0][r] * sum[0]);
            *acc = (inner * neg_dmin[r]).mul_add(d, *acc);
        }
    }
}

/// The block as [`Bits::High`] has it.
fn high_bits(PanelBlock { q, scales }: PanelBlock) -> PanelBlock {
    let scale = scales.scale.map(|s| s * 8.0);
    let min = MinTerm::Block(scales.scale.map(|s| s * 3.5));
    // An arithmetic shift rounds down, as dropping the low bits of the unsigned byte does.
    PanelBlock { q: q.map(|row| row.map(|q| q >> 3)), scales: BlockScales { scale, min, ..scales } }
}

fn int8_column(
    bits: Bits,
    w: &PackedMatrix<'_>,
    panel: usize,
    a: &Int8Columns<'_>,
    t: usize,
) -> Sums {
    let mut acc = [0.0f32; PANEL_ROWS];
    for b in 0..a.blocks {
        let block = w.panel_block(panel, b);
        let PanelBlock { q, scales } = match bits {
            Bits::All => block,
            Bits::High => high_bits(block),
        };
        let at = t * a.blocks + b;
        let x = &a.q[at * BLOCK..(at + 1) * BLOCK];
        let sum = [f32::from(a.sums[2 * at]), f32::from(a.sums[2 * at + 1])];
        for (r, acc) in acc.iter_mut().enumerate() {
            let dot = |k: Range<usize>| -> i32 { k.map(|k| q[r][k] * i32::from(x[k])).sum() };
            let value = match scales.half {
                None => dot(0..32) as f32 * scales.scale[r],
                Some(half) => {
                    let first = dot(0..16) as f32 * half[0][r];
                    (dot(16..32) as f32).mul_add(half[1][r], first) * scales.scale[r]
                }
            };
            *acc = value.mul_add(a.d[at], *acc);
            add_min(acc, r, &scales, sum, a.ds[at], a.d[at]);
        }
    }
    acc
}

fn mixed_column(w: &PackedMatrix<'_>, panel: usize, a: &FloatColumns<'_>, t: usize) -> Sums {
    let mut acc = [0.0f32; PANEL_ROWS];
    for b in 0..a.blocks {
        let PanelBlock { q, scales } = w.panel_block(panel, b);
        let at = t * a.blocks + b;
        let x = &a.x[at * BLOCK..(at + 1) * BLOCK];
        let sum = [a.sums[2 * at], a.sums[2 * at + 1]];
        for (r, acc) in acc.iter_mut().enumerate() {
            let chain = |k: Range<usize>| k.fold(0.0f32, |p, k| (q[r][k] as f32).mul_add(x[k], p));
            *acc = match scales.half {
                None => chain(0..32).mul_add(scales.scale[r], *acc),
                Some(half) => {
                    let t = chain(16..32).mul_add(half[1][r], chain(0..16) * half[0][r]);
                    t.mul_add(scales.scale[r], *acc)
                }
            };
            add_min(acc, r, &scales, sum, sum[0] + sum[1], 1.0);
        }
    }
    acc
}

fn float_column(w: &PackedMatrix<'_>, panel: usize, a: &FloatColumns<'_>, t: usize) -> Sums {
    let mut acc = [0.0f32; PANEL_ROWS];
    for b in 0..a.blocks {
        let x = &a.x[(t * a.blocks + b) * BLOCK..][..BLOCK];
        for (r, acc) in acc.iter_mut().enumerate() {
            let p = x
                .iter()
                .enumerate()
                .fold(0.0f32, |p, (k, &x)| w.panel_float(panel, r, b * BLOCK + k).mul_add(x, p));
            *acc += p;
        }
    }
    acc
}
