//! Products against a float64 reference, and every instruction set against the scalar one.

use super::*;
use crate::pack::{BLOCK, PackedLayout, pack_rest, pack_rows};
use dunlin_quant as quant;
use dunlin_spec::WeightType;

/// A small generator for test data (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

pub(crate) struct Matrix {
    pub layout: PackedLayout,
    bytes: Vec<Aligned>,
    /// `[rows][cols]`.
    values: Vec<f32>,
}

impl Matrix {
    pub fn packed(&self) -> PackedMatrix<'_> {
        // SAFETY: lines of 64 bytes are bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), self.layout.bytes())
        };
        PackedMatrix::new(&self.layout, bytes).unwrap()
    }
}

/// Random codes with random scales of moderate size.
pub(crate) fn random_row(ty: WeightType, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut row = vec![0u8; ty.row_bytes(cols).unwrap()];
    if !quant::is_quantized(ty) {
        let values: Vec<f32> = (0..cols).map(|_| random.float()).collect();
        quant::quantize_row(ty, &values, &mut row).unwrap();
        return row;
    }
    for block in row.chunks_exact_mut(ty.block_bytes()) {
        for byte in block.iter_mut() {
            *byte = random.next() as u8;
        }
        let mut raw = quant::unpack(ty, block);
        raw.d = match ty {
            WeightType::MXFP4 => 110 + (random.next() % 16) as u16,
            _ => quant::f32_to_f16(random.float() * 0.1),
        };
        raw.dmin = quant::f32_to_f16(random.float() * 0.1);
        quant::repack(ty, &raw, block);
    }
    row
}

fn random_matrix(ty: WeightType, rows: usize, cols: usize, random: &mut Random) -> Matrix {
    let layout = PackedLayout::new(ty, rows, cols).unwrap();
    let source: Vec<Vec<u8>> = (0..rows).map(|_| random_row(ty, cols, random)).collect();
    matrix(layout, &source)
}

/// A matrix of the file's rows.
pub(crate) fn matrix(layout: PackedLayout, source: &[Vec<u8>]) -> Matrix {
    let (ty, rows, cols) = (layout.spec().ty, layout.rows(), layout.cols());
    let mut values = vec![0.0; rows * cols];
    for (row, out) in source.iter().zip(values.chunks_exact_mut(cols)) {
        quant::dequantize_row(ty, row, out);
    }
    let mut bytes = vec![Aligned([0; 64]); layout.bytes() / 64];
    // SAFETY: lines of 64 bytes are bytes.
    let all =
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<u8>(), layout.bytes()) };
    let (panels, rests) = all.split_at_mut(layout.panel_bytes() * layout.panels());
    let mut rests = rests.chunks_exact_mut(layout.rest_bytes().max(1));
    let panels = panels.chunks_exact_mut(layout.panel_bytes());
    for (panel, rows) in panels.zip(source.chunks(PANEL_ROWS)) {
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        pack_rows(&layout, &rows, panel);
        if let Some(rest) = rests.next() {
            pack_rest(&layout, &rows, rest);
        }
    }
    Matrix { layout, bytes, values }
}

pub(crate) struct Inputs {
    n: usize,
    blocks: usize,
    x: Vec<f32>,
    x_sums: Vec<f32>,
    q: Vec<i8>,
    pub d: Vec<f32>,
    pub ds: Vec<f32>,
    sums: Vec<i16>,
}

impl Inputs {
    pub fn random(n: usize, cols: usize, random: &mut Random) -> Self {
        let blocks = cols.div_ceil(BLOCK);
        let mut x = vec![0.0f32; n * blocks * BLOCK];
        for column in x.chunks_exact_mut(blocks * BLOCK) {
            column[..cols].fill_with(|| random.float());
        }
        let x_sums = x.chunks_exact(16).map(acts::half_block_sum).collect();
        let (mut q, mut d, mut ds, mut sums) = (vec![], vec![], vec![], vec![]);
        for block in x.chunks_exact(BLOCK) {
            let scale = block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
            let codes: Vec<i8> = block.iter().map(|v| (v / scale).round() as i8).collect();
            let halves: [i16; 2] =
                [0, 16].map(|h| codes[h..h + 16].iter().map(|&c| i16::from(c)).sum());
            d.push(scale);
            ds.push(scale * f32::from(halves[0] + halves[1]));
            sums.extend(halves);
            q.extend(codes);
        }
        Inputs { n, blocks, x, x_sums, q, d, ds, sums }
    }

    pub fn int8(&self) -> Int8Columns<'_> {
        Int8Columns {
            n: self.n,
            blocks: self.blocks,
            q: &self.q,
            d: &self.d,
            ds: &self.ds,
            sums: &self.sums,
        }
    }

    pub fn float(&self) -> FloatColumns<'_> {
        FloatColumns { n: self.n, blocks: self.blocks, x: &self.x, sums: &self.x_sums }
    }

    /// What the int8 columns stand for.
    fn dequantized(&self, t: usize, k: usize) -> f64 {
        let at = t * self.blocks * BLOCK + k;
        f64::from(self.q[at]) * f64::from(self.d[at / BLOCK])
    }
}

pub(crate) fn product(cpu: CpuFeatures, m: &Matrix, columns: &Columns<'_>) -> Vec<f32> {
    let rows = m.layout.rows();
    let mut y = vec![f32::NAN; columns.n() * rows];
    let out = Output::new(&mut y, rows, false);
    let panels = m.layout.panels();
    let mut scratch = Scratch::default();
    // Two calls, so that odd pairs of panels and reused scratch are met.
    run_panels(cpu, &m.packed(), 0..panels / 2, columns, &out, &mut scratch);
    run_panels(cpu, &m.packed(), panels / 2..panels, columns, &out, &mut scratch);
    y
}

pub(crate) fn every_cpu() -> Vec<CpuFeatures> {
    let mut all = CpuFeatures::available();
    all.extend(CpuFeatures::available().into_iter().map(CpuFeatures::without_extras));
    all
}

/// Whole blocks of every type, an odd tail of panels, and more than one chunk of blocks.
const SHAPES: [(usize, usize); 3] = [(16, 256), (41, 768), (70, 256)];

#[test]
fn every_instruction_set_gives_the_reference_bits() {
    let seed = 20;
    println!("seed {seed}");
    let mut random = Random(seed);
    let scalar = CpuFeatures::for_isa(Isa::Scalar).unwrap();
    for ty in WeightType::ALL {
        for (rows, cols) in SHAPES {
            let m = random_matrix(ty, rows, cols, &mut random);
            for n in [1, 2, 3, 4, 7, 8, 10, 13, 26] {
                let inputs = Inputs::random(n, cols, &mut random);
                let mut modes = vec![Columns::Float(inputs.float())];
                if quant::is_quantized(ty) {
                    modes.push(Columns::Int8(inputs.int8()));
                    if n % 2 == 0 {
                        modes.push(Columns::Split(inputs.int8()));
                    }
                }
                for columns in &modes {
                    let reference = product(scalar, &m, columns);
                    for cpu in every_cpu() {
                        let got = product(cpu, &m, columns);
                        let same =
                            got.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{ty} {rows}x{cols} n={n} {cpu:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_reference_agrees_with_float64() {
    let mut random = Random(21);
    let scalar = CpuFeatures::for_isa(Isa::Scalar).unwrap();
    for ty in WeightType::ALL {
        let (rows, cols, n) = (41, 512, 2);
        let m = random_matrix(ty, rows, cols, &mut random);
        let inputs = Inputs::random(n, cols, &mut random);
        let exact = |x: &dyn Fn(usize, usize) -> f64| -> Vec<(f64, f64)> {
            let mut y = vec![];
            for t in 0..n {
                for row in m.values.chunks_exact(cols) {
                    let terms = row.iter().enumerate().map(|(k, &w)| f64::from(w) * x(t, k));
                    y.push(terms.fold((0.0, 0.0), |(s, a), v| (s + v, a + v.abs())));
                }
            }
            y
        };
        let check = |columns: Columns<'_>, x: &dyn Fn(usize, usize) -> f64| {
            for (got, (y, size)) in product(scalar, &m, &columns).iter().zip(exact(x)) {
                let error = (f64::from(*got) - y).abs();
                assert!(error <= 4e-6 * size, "{ty}: {got} against {y}, terms sum to {size}");
            }
        };
        check(Columns::Float(inputs.float()), &|t, k| {
            f64::from(inputs.x[t * inputs.blocks * BLOCK + k])
        });
        if quant::is_quantized(ty) {
            check(Columns::Int8(inputs.int8()), &|t, k| inputs.dequantized(t, k));
        }
        if quant::is_quantized(ty) {
            let both = |_: usize, k: usize| inputs.dequantized(0, k) + inputs.dequantized(1, k);
            let columns = Columns::Split(inputs.int8());
            for (got, (y, size)) in product(scalar, &m, &columns).iter().zip(exact(&both)) {
                assert!((f64::from(*got) - y).abs() <= 8e-6 * size, "{ty} split");
            }
        }
    }
}

#[test]
fn results_are_added_where_asked() {
    let mut random = Random(22);
    let m = random_matrix(WeightType::Q4_1, 41, 256, &mut random);
    let inputs = Inputs::random(13, 256, &mut random);
    let columns = Columns::Int8(inputs.int8());
    for cpu in every_cpu() {
        let plain = product(cpu, &m, &columns);
        let mut y: Vec<f32> = plain.iter().map(|_| random.float()).collect();
        let want: Vec<f32> = plain.iter().zip(&y).map(|(p, y)| y + p).collect();
        let out = Output::new(&mut y, 41, true);
        run_panels(cpu, &m.packed(), 0..m.layout.panels(), &columns, &out, &mut Scratch::default());
        assert_eq!(y, want);
    }
}

#[test]
fn rows_come_back_as_the_file_defines_them() {
    let mut random = Random(23);
    for ty in WeightType::ALL {
        let m = random_matrix(ty, 35, 512, &mut random);
        let mut row = vec![0.0; 512];
        for r in [0, 16, 34] {
            m.packed().dequantize_row(r, &mut row);
            let want = &m.values[r * 512..(r + 1) * 512];
            for (got, want) in row.iter().zip(want) {
                let close = (got - want).abs() <= 2e-7 * want.abs();
                assert!(close, "{ty} row {r}: {got} against {want}");
            }
        }
    }
}
