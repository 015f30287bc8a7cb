//! Split heads against plain ones, and intervals against what they must hold.

use super::*;
use crate::CpuFeatures;
use crate::matmul::tests::{Inputs, Matrix, Random, every_cpu, matrix, product, random_row};
use crate::matmul::{Output, Scratch, run_panels_high};
use crate::pack::PackedLayout;
use dunlin_spec::WeightType;

const TYPE: WeightType = WeightType::Q8_0;
const COLS: [usize; 2] = [96, 640];

fn both(rows: &[Vec<u8>], cols: usize) -> (Matrix, Matrix) {
    let plain = PackedLayout::new(TYPE, rows.len(), cols).unwrap();
    let split = PackedLayout::of_head(TYPE, rows.len(), cols).unwrap();
    assert!(split.can_screen() && !plain.can_screen());
    // Nothing is held twice: what is more than the file's are the radii and rounding to lines.
    assert!(split.bytes() <= plain.bytes() + 128 * split.panels());
    (matrix(plain, rows), matrix(split, rows))
}

fn random_rows(count: usize, cols: usize, random: &mut Random) -> Vec<Vec<u8>> {
    (0..count).map(|_| random_row(TYPE, cols, random)).collect()
}

fn high(cpu: CpuFeatures, m: &Matrix, columns: &Columns<'_>) -> Vec<f32> {
    let rows = m.layout.rows();
    let mut y = vec![f32::NAN; columns.n() * rows];
    let out = Output::new(&mut y, rows, false);
    let panels = 0..m.layout.panels();
    run_panels_high(cpu, &m.packed(), panels, columns, &out, &mut Scratch::default());
    y
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn split_codes_give_the_bits_of_plain_ones() {
    let mut random = Random(40);
    for cols in COLS {
        let rows = random_rows(41, cols, &mut random);
        let (plain, split) = both(&rows, cols);
        for n in [1, 2, 3, 4, 7, 8, 10, 13, 26] {
            let inputs = Inputs::random(n, cols, &mut random);
            let mut modes = vec![Columns::Float(inputs.float()), Columns::Int8(inputs.int8())];
            if n % 2 == 0 {
                modes.push(Columns::Split(inputs.int8()));
            }
            for cpu in every_cpu() {
                for columns in &modes {
                    let (a, b) = (product(cpu, &plain, columns), product(cpu, &split, columns));
                    assert_eq!(bits(&a), bits(&b), "{cols} inputs, {n} columns, {cpu:?}");
                }
            }
        }
        let (mut a, mut b) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..rows.len() {
            plain.packed().dequantize_row(row, &mut a);
            split.packed().dequantize_row(row, &mut b);
            assert_eq!(a, b, "row {row}");
        }
    }
}

#[test]
fn high_bits_give_the_same_bits_on_every_instruction_set() {
    let mut random = Random(41);
    let scalar = CpuFeatures::for_isa(crate::Isa::Scalar).unwrap();
    for cols in COLS {
        let (_, split) = both(&random_rows(41, cols, &mut random), cols);
        for n in [1, 2, 4, 10] {
            let inputs = Inputs::random(n, cols, &mut random);
            let columns = Columns::Int8(inputs.int8());
            let want = bits(&high(scalar, &split, &columns));
            for cpu in every_cpu() {
                assert_eq!(bits(&high(cpu, &split, &columns)), want, "{n} columns, {cpu:?}");
            }
        }
    }
}

/// The interval of each row in column `t`: approximation and radius.
fn intervals(m: &Matrix, columns: &Columns<'_>, t: usize) -> Vec<(f32, f32)> {
    let norm = column_norm(columns, t).unwrap();
    let rows = m.layout.rows();
    let values = high(CpuFeatures::best(), m, columns);
    let radii = (0..m.layout.panels()).flat_map(|p| m.packed().radii(p));
    let radii = radii.map(|r| r.mul_add(norm, f32::MIN_POSITIVE));
    values[t * rows..(t + 1) * rows].iter().copied().zip(radii).collect()
}

#[test]
fn exact_products_lie_in_their_intervals() {
    let mut random = Random(42);
    let mut widest = 0.0f32;
    for cols in COLS {
        for round in 0..20 {
            let mut rows = random_rows(35, cols, &mut random);
            let mut inputs = Inputs::random(2, cols, &mut random);
            if round % 2 == 1 {
                // The worst that low bits can do: all far from their middle, in step with the inputs.
                let int8 = inputs.int8();
                for row in &mut rows {
                    for (b, block) in row.chunks_exact_mut(34).enumerate() {
                        block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
                        for (k, code) in block[2..].iter_mut().enumerate() {
                            let low = if int8.q[b * 32 + k] > 0 { 7 } else { 0 };
                            *code = *code & !7 | low;
                        }
                    }
                }
            }
            let size = 2f32.powi(round - 10);
            inputs.d.iter_mut().chain(&mut inputs.ds).for_each(|d| *d *= size);
            let (_, split) = both(&rows, cols);
            for columns in [Columns::Int8(inputs.int8()), Columns::Split(inputs.int8())] {
                let exact = product(CpuFeatures::best(), &split, &columns);
                for t in 0..columns.n() {
                    let found = intervals(&split, &columns, t).into_iter();
                    for ((a, radius), &y) in found.zip(&exact[t * rows.len()..]) {
                        let error = (f64::from(y) - f64::from(a)).abs();
                        assert!(error <= f64::from(radius), "{y} is {error} from {a}: {radius}");
                        widest = widest.max(error as f32 / radius);
                    }
                }
            }
        }
    }
    // The bound is not idle: the worst rows come near it.
    assert!((0.8..=1.0).contains(&widest), "{widest}");
}

#[test]
fn rows_that_nothing_is_known_of_have_the_whole_line() {
    let (cols, mut random) = (96, Random(43));
    let mut rows = random_rows(20, cols, &mut random);
    for block in rows[3].chunks_exact_mut(34) {
        block[..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    }
    rows[18][..2].copy_from_slice(&half::f16::INFINITY.to_le_bytes());
    let (_, split) = both(&rows, cols);
    let w = split.packed();
    let inputs = Inputs::random(1, cols, &mut random);
    let columns = Columns::Int8(inputs.int8());
    let values = high(CpuFeatures::best(), &split, &columns);
    let norm = column_norm(&columns, 0).unwrap();
    for cpu in every_cpu() {
        let mut upper = [0.0; 2];
        let lower =
            bounds(cpu, Approximations { w: &w, panel: 0, values: &values, norm }, &mut upper);
        assert_eq!(upper, [f32::INFINITY; 2]);
        assert!(lower.is_finite());
        // Columns that are NaN or too large say nothing of any row.
        for norm in [f32::NAN, f32::INFINITY, 1e36] {
            let rows = Approximations { w: &w, panel: 0, values: &values, norm };
            assert_eq!(bounds(cpu, rows, &mut upper), f32::NEG_INFINITY);
            assert_eq!(upper, [f32::INFINITY; 2]);
        }
    }
}

#[test]
fn the_best_is_that_of_the_definition() {
    let mut random = Random(44);
    for n in [1, 2, 15, 16, 17, 200] {
        for _ in 0..50 {
            let mut values: Vec<f32> = (0..n).map(|_| (random.next() % 7) as f32 - 3.0).collect();
            match random.next() % 5 {
                0 => values[random.next() as usize % n] = f32::NAN,
                1 => values[random.next() as usize % n] = f32::INFINITY,
                2 => values.fill(f32::NEG_INFINITY),
                3 => values[random.next() as usize % n] = -0.0,
                _ => {}
            }
            let want = Best::of(&values);
            for cpu in every_cpu() {
                let got = best_of(cpu, &values, 100);
                assert_eq!(got.logit.to_bits(), want.logit.to_bits(), "{values:?}");
                if !want.logit.is_nan() {
                    assert_eq!(got.token, want.token + 100, "{values:?}");
                }
            }
        }
    }
}
