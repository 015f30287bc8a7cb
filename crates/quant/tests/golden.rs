//! Blocks against the `gguf` Python package: decoded values and encoded blocks, bit for bit.

use dunlin_quant::{WeightType, dequantize_row, is_quantized, quantize_row, repack, unpack};

fn data(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (chunks, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    chunks.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The blocks of a decode file and the values that they mean.
fn decode_file(ty: WeightType) -> (Vec<u8>, Vec<f32>) {
    let bytes = data(&format!("decode_{ty}.bin"));
    let per_block = ty.block_bytes() + 4 * ty.block_len();
    assert_eq!(bytes.len() % per_block, 0);
    let blocks = bytes.len() / per_block;
    assert!(blocks >= 10);
    let (blocks, values) = bytes.split_at(blocks * ty.block_bytes());
    (blocks.to_vec(), floats(values))
}

#[test]
fn values_equal_the_reference() {
    for ty in WeightType::ALL {
        if ty == WeightType::F32 {
            continue;
        }
        let (blocks, want) = decode_file(ty);
        let mut got = vec![f32::NAN; want.len()];
        dequantize_row(ty, &blocks, &mut got);
        assert_eq!(bits(&got), bits(&want), "{ty}");
    }
}

#[test]
fn golden_blocks_survive_unpack_and_repack() {
    for ty in WeightType::ALL.into_iter().filter(|&t| is_quantized(t)) {
        for block in decode_file(ty).0.chunks_exact(ty.block_bytes()) {
            let mut again = vec![0xaa; block.len()];
            repack(ty, &unpack(ty, block), &mut again);
            assert_eq!(again, block, "{ty}");
        }
    }
}

#[test]
fn blocks_of_the_simple_types_equal_the_reference() {
    use WeightType::*;
    for ty in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4] {
        let bytes = data(&format!("encode_{ty}.bin"));
        let rows = bytes.len() / (4 * 32 + ty.block_bytes());
        assert!(rows >= 20);
        let (values, want) = bytes.split_at(rows * 4 * 32);
        let mut got = vec![0; want.len()];
        quantize_row(ty, &floats(values), &mut got).unwrap();
        let both = got.chunks(ty.block_bytes()).zip(want.chunks(ty.block_bytes()));
        for (row, (got, want)) in both.enumerate() {
            assert_eq!(got, want, "{ty}, row {row}");
        }
    }
}
