//! What holds for every block, golden or not: unpack and repack are inverse, the formula of the
//! crate's documentation gives the values, and quantizers stay near what they are given.

use dunlin_quant::{
    QuantError, RawBlock, WeightType, code_bits, code_offset, codebook, dequantize_row, f16_to_f32,
    f32_to_f16, has_min, is_quantized, quantize_row, repack, sub_len, unpack,
};

/// SplitMix64: enough randomness for bytes, and the same everywhere.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = match std::env::var("DUNLIN_TEST_SEED") {
            Ok(seed) => seed.parse().expect("DUNLIN_TEST_SEED is a number"),
            Err(_) => 1,
        };
        println!("DUNLIN_TEST_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Uniform in 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box and Muller).
    fn normal(&mut self) -> f32 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}

fn quantized() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.into_iter().filter(|&t| is_quantized(t))
}

fn quantize(ty: WeightType, values: &[f32]) -> Vec<u8> {
    let mut row = vec![0xaa; ty.row_bytes(values.len()).unwrap()];
    quantize_row(ty, values, &mut row).unwrap();
    row
}

fn dequantize(ty: WeightType, row: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; row.len() / ty.block_bytes() * ty.block_len()];
    dequantize_row(ty, row, &mut out);
    out
}

/// A block with every field drawn from its whole range.
fn random_block(ty: WeightType, random: &mut Random) -> RawBlock {
    use WeightType::*;
    let mut raw = RawBlock::default();
    let code_mask = ((1u32 << code_bits(ty)) - 1) as u8;
    for code in &mut raw.codes[..ty.block_len()] {
        *code = random.next() as u8 & code_mask;
    }
    raw.d = random.next() as u16;
    if ty == MXFP4 {
        raw.d &= 0xff;
    }
    if has_min(ty) {
        raw.dmin = random.next() as u16;
    }
    raw.sub_scales[0] = 1;
    let subs = ty.block_len() / sub_len(ty);
    for s in 0..subs {
        let bits = random.next();
        match ty {
            Q2_K => raw.sub_scales[s] = (bits & 15) as i16,
            Q3_K | IQ4_XS => raw.sub_scales[s] = (bits & 63) as i16 - 32,
            Q4_K | Q5_K => raw.sub_scales[s] = (bits & 63) as i16,
            Q6_K => raw.sub_scales[s] = i16::from(bits as i8),
            _ => {}
        }
        match ty {
            Q2_K => raw.sub_mins[s] = (bits >> 8 & 15) as u8,
            Q4_K | Q5_K => raw.sub_mins[s] = (bits >> 8 & 63) as u8,
            _ => {}
        }
    }
    raw
}

#[test]
fn every_bit_of_a_block_survives() {
    let mut random = Random::new();
    for ty in quantized() {
        for _ in 0..200 {
            let block = random.bytes(ty.block_bytes());
            let mut again = vec![0xaa; block.len()];
            repack(ty, &unpack(ty, &block), &mut again);
            assert_eq!(again, block, "{ty}");
        }
    }
}

#[test]
fn every_field_of_a_raw_block_survives() {
    let mut random = Random::new();
    for ty in quantized() {
        for _ in 0..200 {
            let raw = random_block(ty, &mut random);
            let mut block = vec![0xaa; ty.block_bytes()];
            repack(ty, &raw, &mut block);
            assert_eq!(unpack(ty, &block), raw, "{ty}");
        }
    }
}

/// The documented formula with exact scales, in f64, where small integers and halves are exact:
/// f32 must be its rounding when every step fits in 24 bits.
#[test]
fn values_follow_the_documented_formula() {
    let mut random = Random::new();
    for ty in quantized() {
        for _ in 0..50 {
            let mut raw = random_block(ty, &mut random);
            // Powers of two keep every product and sum exact.
            raw.d = if ty == WeightType::MXFP4 { 120 } else { f32_to_f16(0.25) };
            raw.dmin = f32_to_f16(-0.5);
            let mut block = vec![0; ty.block_bytes()];
            repack(ty, &raw, &mut block);
            for (i, got) in dequantize(ty, &block).into_iter().enumerate() {
                let level = match codebook(ty) {
                    Some(book) => f64::from(book[usize::from(raw.codes[i])]),
                    None => f64::from(i32::from(raw.codes[i]) - code_offset(ty)),
                };
                let sub = i / sub_len(ty);
                let d = if ty == WeightType::MXFP4 { 2f64.powi(120 - 128) } else { 0.25 };
                let min = match ty {
                    WeightType::Q4_1 | WeightType::Q5_1 => -0.5,
                    _ if has_min(ty) => 0.5 * f64::from(raw.sub_mins[sub]),
                    _ => 0.0,
                };
                let want = d * f64::from(raw.sub_scales[sub]) * level + min;
                assert_eq!(f64::from(got), want, "{ty}, value {i}");
            }
        }
    }
}

/// Relative root mean square error of a type on normal values, against what its step allows.
#[test]
fn normal_values_come_back_within_the_types_precision() {
    use WeightType::*;
    let mut random = Random::new();
    let values: Vec<f32> = (0..256 * 64).map(|_| random.normal() * 0.02).collect();
    let square: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
    for ty in WeightType::ALL {
        let error: f64 = dequantize(ty, &quantize(ty, &values))
            .iter()
            .zip(&values)
            .map(|(got, want)| (f64::from(*got) - f64::from(*want)).powi(2))
            .sum();
        let relative = (error / square).sqrt();
        // The largest of 32 normal values is about 2.1 deviations out, of 16 about 1.8; a
        // uniform step of `range / 2^bits` errs by its size over the root of 12.
        let allowed = match ty {
            F32 => 0.0,
            F16 => 3e-4,
            BF16 => 2e-3,
            Q8_0 => 6e-3,
            Q6_K => 2.2e-2,
            Q5_0 | Q5_1 | Q5_K => 4.5e-2,
            Q4_0 | Q4_1 | Q4_K | IQ4_NL | IQ4_XS => 9.5e-2,
            MXFP4 => 0.13,
            Q3_K => 0.18,
            Q2_K => 0.36,
        };
        println!("{ty}: {relative:.4} of {allowed}");
        assert!(relative <= allowed, "{ty}: {relative} > {allowed}");
    }
}

#[test]
fn plain_floats_round_to_nearest() {
    let values = [1.0, -0.0, 0.1, 65504.0, 1e-8];
    let same = |ty| dequantize(ty, &quantize(ty, &values));
    assert_eq!(same(WeightType::F32), values);
    let halves = values.map(|v| f16_to_f32(f32_to_f16(v)));
    assert_eq!(same(WeightType::F16), halves);
    assert_eq!(same(WeightType::BF16)[..3], [1.0, -0.0, 0.100_097_656]);
}

#[test]
fn constant_rows_and_tiny_rows_are_finite_and_near() {
    for ty in quantized() {
        for value in [0.0, 1.0, -1.0, 1e-6, -3e-7, 1e-9, 1e-30, 1e-44, 700.0] {
            let values = vec![value; 256];
            for got in dequantize(ty, &quantize(ty, &values)) {
                // Half of a step, or of what a subnormal half scale can say.
                let allowed = value.abs() * 0.2 + 1e-5;
                assert!((got - value).abs() <= allowed, "{ty}: {got} for {value}");
            }
        }
    }
}

#[test]
fn quantizing_what_was_decoded_changes_nothing_in_simple_types() {
    use WeightType::*;
    let mut random = Random::new();
    let values: Vec<f32> = (0..256 * 16).map(|_| random.normal()).collect();
    for ty in [Q4_0, Q5_0, F16, BF16] {
        let decoded = dequantize(ty, &quantize(ty, &values));
        assert_eq!(dequantize(ty, &quantize(ty, &decoded)), decoded, "{ty}");
    }
}

#[test]
fn bad_rows_are_refused() {
    for ty in WeightType::ALL {
        let mut values = vec![1.0; 256];
        let mut row = vec![0; ty.row_bytes(256).unwrap()];
        assert!(matches!(
            quantize_row(ty, &values, &mut row[1..]),
            Err(QuantError::RowLength { values: 256, .. })
        ));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            values[77] = bad;
            assert!(matches!(
                quantize_row(ty, &values, &mut row),
                Err(QuantError::NotFinite { index: 77, .. })
            ));
        }
        values[77] = f32::MAX;
        let result = quantize_row(ty, &values, &mut row);
        if matches!(ty, WeightType::F32 | WeightType::MXFP4) {
            assert_eq!(result, Ok(()), "{ty}");
            let got = dequantize(ty, &row)[77];
            assert!(got.is_finite() && got > 1e38, "{ty}: {got}");
        } else {
            let index = 77 / ty.block_len() * ty.block_len();
            assert_eq!(result, Err(QuantError::TooLarge { ty, index }));
        }
    }
}
