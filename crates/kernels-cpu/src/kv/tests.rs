//! Storage: what is written is what is read, in every type, whatever stood there before.

use super::*;
use crate::Isa;

const SEED: u64 = 7;

fn random(n: usize, salt: u64) -> Vec<f32> {
    let mut state = SEED ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

const GEOMETRY: [KvGeometry; 3] = [
    KvGeometry { n_kv_heads: 3, head_dim: 64, v_head_dim: 64, wide_keys: false },
    KvGeometry { n_kv_heads: 1, head_dim: 80, v_head_dim: 72, wide_keys: false },
    KvGeometry { n_kv_heads: 2, head_dim: 6, v_head_dim: 17, wide_keys: true },
];

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

fn pool(kv_type: KvType, n_blocks: usize) -> KvPool {
    println!("seed {SEED}");
    let mut pool = KvPool::new(&GEOMETRY, kv_type, n_blocks).unwrap();
    // NaN in every type that has them.
    pool.fill(0xff);
    pool
}

fn token(layer: usize, salt: u64) -> (Vec<f32>, Vec<f32>) {
    let g = GEOMETRY[layer];
    (random(g.n_kv_heads * g.head_dim, salt), random(g.n_kv_heads * g.v_head_dim, salt + 1000))
}

fn read(pool: &KvPool, layer: usize, block: u32, lane: usize) -> (Vec<f32>, Vec<f32>) {
    let g = GEOMETRY[layer];
    let mut k = vec![0.0; g.n_kv_heads * g.head_dim];
    let mut v = vec![0.0; g.n_kv_heads * g.v_head_dim];
    pool.export(layer, block, lane, &mut k, &mut v);
    (k, v)
}

#[test]
fn tokens_are_read_back_within_the_types_error() {
    for kv_type in TYPES {
        for cpu in CpuFeatures::available() {
            let mut pool = pool(kv_type, 4);
            for layer in 0..3 {
                for lane in [31, 0, 7] {
                    let (k, v) = token(layer, lane as u64);
                    pool.store(cpu, layer, 2, lane, &k, &v);
                    let (k2, v2) = read(&pool, layer, 2, lane);
                    for (x, y) in k.iter().chain(&v).zip(k2.iter().chain(&v2)) {
                        let bound = match kv_type {
                            KvType::F32 => 0.0,
                            KvType::F16 => x.abs() / 2048.0 + 3e-8,
                            // Half a step of a group whose largest magnitude is at most 1.5, and
                            // the scale's own rounding.
                            KvType::Int8 => 1.5 / 254.0 * 1.001,
                        };
                        assert!((x - y).abs() <= bound, "{kv_type}: {x} became {y}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_stored_form_is_the_same_on_every_instruction_set_and_batch() {
    for kv_type in TYPES {
        let scalar = CpuFeatures::for_isa(Isa::Scalar).unwrap();
        let mut reference = pool(kv_type, 1);
        for layer in 0..3 {
            for lane in 3..20 {
                let (k, v) = token(layer, lane as u64);
                reference.store(scalar, layer, 0, lane, &k, &v);
            }
        }
        for cpu in CpuFeatures::available() {
            let pool = pool(kv_type, 1);
            for layer in 0..3 {
                let (k, v): (Vec<_>, Vec<_>) = (3..20).map(|lane| token(layer, lane)).unzip();
                let (k_stride, v_stride) = (k[0].len(), v[0].len());
                let (k, v) = (k.concat(), v.concat());
                let rows = KvRows { k: &k, k_stride, v: &v, v_stride, n: 17 };
                // SAFETY: this is the only thread.
                unsafe { pool.store_rows(cpu, layer, 0, 3, rows) };
                for lane in 3..20 {
                    let (a, b) = (read(&pool, layer, 0, lane), read(&reference, layer, 0, lane));
                    assert_eq!(a, b, "{kv_type} on {}", cpu.isa());
                }
            }
        }
    }
}

#[test]
fn what_is_exported_can_be_stored_again_unchanged() {
    let cpu = CpuFeatures::best();
    for kv_type in TYPES {
        let mut a = pool(kv_type, 2);
        let mut b = pool(kv_type, 2);
        for size in [1e-4f32, 1.0, 200.0] {
            for lane in 0..32 {
                let (k, v) = token(0, lane as u64);
                let scaled = |x: Vec<f32>| -> Vec<f32> { x.iter().map(|x| x * size).collect() };
                a.store(cpu, 0, 1, lane, &scaled(k), &scaled(v));
                let (k, v) = read(&a, 0, 1, lane);
                b.store(cpu, 0, 0, lane, &k, &v);
                assert_eq!(read(&b, 0, 0, lane), (k, v), "{kv_type}, size {size}");
            }
        }
    }
}

#[test]
fn wide_keys_keep_half_floats_in_an_int8_pool() {
    let cpu = CpuFeatures::best();
    let g = KvGeometry { n_kv_heads: 2, head_dim: 64, v_head_dim: 32, wide_keys: true };
    let narrow = KvGeometry { wide_keys: false, ..g };
    let (k, v) = (random(128, 1), random(64, 2));
    let stored = |g: KvGeometry, kv_type| {
        let mut pool = KvPool::new(&[g], kv_type, 2).unwrap();
        pool.fill(0xff);
        pool.store(cpu, 0, 0, 9, &k, &v);
        pool.copy_block(0, 1, 10);
        let (mut k2, mut v2) = (vec![0.0; 128], vec![0.0; 64]);
        pool.export(0, 1, 9, &mut k2, &mut v2);
        (k2, v2, pool.block_bytes())
    };
    let (wide_k, wide_v, bytes) = stored(g, KvType::Int8);
    let (half_k, _, half_bytes) = stored(narrow, KvType::F16);
    let (_, int8_v, int8_bytes) = stored(narrow, KvType::Int8);
    assert_eq!((wide_k, wide_v), (half_k, int8_v));
    assert!(int8_bytes < bytes && bytes < half_bytes);
    assert_eq!(stored(g, KvType::F32).0, k, "f32 pools have no wide keys");
}

#[test]
fn large_biases_ask_for_wide_keys() {
    let mut bias = vec![1.0; 128];
    assert!(!needs_wide_keys(&bias, 64, 64));
    bias[70] = 12.0;
    assert!(!needs_wide_keys(&bias, 64, 64));
    // Its partner in the second head: 12^2 + 12^2 > 16^2.
    bias[70 + 32] = -12.0;
    assert!(needs_wide_keys(&bias, 64, 64));
    assert!(!needs_wide_keys(&bias, 64, 20), "with another pairing they do not meet");
    bias[127] = 17.0;
    assert!(needs_wide_keys(&bias, 64, 20), "a channel that does not rotate");
    assert!(!needs_wide_keys(&[], 64, 64));
}

#[test]
fn odd_values_do_not_reach_their_neighbours() {
    let cpu = CpuFeatures::best();
    let g = KvGeometry { n_kv_heads: 1, head_dim: 64, v_head_dim: 64, wide_keys: false };
    let mut pool = KvPool::new(&[g], KvType::Int8, 1).unwrap();
    let mut k = random(64, 3);
    k[40] = f32::INFINITY;
    let v = vec![1e30; 64];
    pool.store(cpu, 0, 0, 4, &k, &v);
    let (mut k2, mut v2) = (vec![0.0; 64], vec![0.0; 64]);
    pool.export(0, 0, 4, &mut k2, &mut v2);
    assert!(k2[40].is_nan() && k2[..KEY_GROUP].iter().all(|x| x.is_finite()));
    assert!(v2.iter().all(|x| *x > 30_000.0 && x.is_finite()), "too large a value saturates");
}

#[test]
fn blocks_are_copied_up_to_a_token() {
    let cpu = CpuFeatures::best();
    for kv_type in TYPES {
        let mut pool = pool(kv_type, 3);
        for layer in 0..3 {
            for lane in 0..32 {
                let (k, v) = token(layer, lane as u64);
                pool.store(cpu, layer, 0, lane, &k, &v);
                let (k, v) = token(layer, lane as u64 + 500);
                pool.store(cpu, layer, 2, lane, &k, &v);
            }
        }
        pool.copy_block(0, 2, 13);
        pool.copy_block(1, 1, 5);
        for layer in 0..3 {
            for lane in 0..32 {
                let got = read(&pool, layer, 2, lane);
                if lane < 13 {
                    assert_eq!(got, read(&pool, layer, 0, lane));
                } else {
                    let mut other = KvPool::new(&GEOMETRY, kv_type, 1).unwrap();
                    let (k, v) = token(layer, lane as u64 + 500);
                    other.store(cpu, layer, 0, lane, &k, &v);
                    assert_eq!(got, read(&other, layer, 0, lane));
                }
            }
        }
    }
}

#[test]
fn sizes_are_what_they_should_be_and_impossible_ones_are_refused() {
    let g = [KvGeometry { n_kv_heads: 3, head_dim: 64, v_head_dim: 64, wide_keys: false }; 30];
    let per_token = |t| KvPool::bytes_per_block(&g, t).unwrap() as f64 / 32.0;
    assert_eq!(per_token(KvType::F32), (30 * 3 * 128 * 4) as f64);
    assert_eq!(per_token(KvType::F16), (30 * 3 * 128 * 2) as f64);
    assert_eq!(
        per_token(KvType::Int8),
        (30 * 3 * (128 + 64 / KEY_GROUP * 2 + 64 / VALUE_GROUP * 2)) as f64
    );
    let none = [KvGeometry { n_kv_heads: 0, head_dim: 64, v_head_dim: 64, wide_keys: false }];
    assert!(KvPool::new(&none, KvType::F16, 1).is_err());
    assert!(matches!(
        KvPool::new(&g, KvType::F16, usize::MAX / 2),
        Err(KernelError::KvMemory { .. })
    ));
    // More than any machine has: the system's refusal is an error, not an abort.
    assert!(matches!(KvPool::new(&g, KvType::F16, 1 << 40), Err(KernelError::KvMemory { .. })));
}

/// A head's record as the layout's table says, from what queries see: f32 as it is, half floats by
/// another implementation, int8 undone by its scales.
fn check_record(record: &mut &[u8], values: &[f32], kv_type: KvType, group: usize) {
    let (stored, rest) = record.split_at(values.len() * bytes_of(kv_type));
    let scales = if kv_type == KvType::Int8 { 2 * values.len().div_ceil(group) } else { 0 };
    let (scales, rest) = rest.split_at(scales);
    *record = rest;
    let half_at = |bytes: &[u8], i: usize| {
        half::f16::from_ne_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
    };
    for (i, x) in values.iter().enumerate() {
        let got = match kv_type {
            KvType::F32 => f32::from_ne_bytes(stored[4 * i..4 * i + 4].try_into().unwrap()),
            KvType::F16 => half_at(stored, i),
            KvType::Int8 => f32::from(stored[i] as i8) * (half_at(scales, i / group) / 256.0),
        };
        assert_eq!(got.to_bits(), x.to_bits(), "{kv_type}, feature {i}");
    }
}

#[test]
fn exported_blocks_have_the_layout_that_is_written_down() {
    let cpu = CpuFeatures::best();
    for kv_type in TYPES {
        let mut pool = pool(kv_type, 2);
        for (layer, lane) in (0..3).flat_map(|layer| (0..32).map(move |lane| (layer, lane))) {
            let (k, v) = token(layer, lane as u64);
            pool.store(cpu, layer, 1, lane, &k, &v);
        }
        for tokens in [0, 1, 13, 32] {
            let mut bytes = vec![7; 3];
            pool.export_block(1, tokens, &mut bytes);
            assert_eq!(bytes.len(), 3 + tokens * pool.token_bytes());
            let mut left = &bytes[3..];
            for (lane, layer) in (0..tokens).flat_map(|lane| (0..3).map(move |l| (lane, l))) {
                let g = GEOMETRY[layer];
                let (k, v) = read(&pool, layer, 1, lane);
                let wide = kv_type == KvType::Int8 && g.wide_keys;
                let k_type = if wide { KvType::F16 } else { kv_type };
                for (k, v) in k.chunks(g.head_dim).zip(v.chunks(g.v_head_dim)) {
                    check_record(&mut left, k, k_type, KEY_GROUP);
                    check_record(&mut left, v, kv_type, VALUE_GROUP);
                }
            }
            assert!(left.is_empty());
        }
    }
}

#[test]
fn imported_blocks_are_the_exported_ones_and_nothing_else_changes() {
    let cpu = CpuFeatures::best();
    for kv_type in TYPES {
        for tokens in [1, 2, 15, 31, 32] {
            let (mut from, mut to) = (pool(kv_type, 1), pool(kv_type, 3));
            for (layer, lane) in (0..3).flat_map(|layer| (0..32).map(move |lane| (layer, lane))) {
                let (k, v) = token(layer, lane as u64);
                from.store(cpu, layer, 0, lane, &k, &v);
                let (k, v) = token(layer, lane as u64 + 500);
                (0..3).for_each(|block| to.store(cpu, layer, block, lane, &k, &v));
            }
            let mut before = Vec::new();
            to.export_block(2, 32, &mut before);
            let (mut bytes, mut after) = (Vec::new(), Vec::new());
            from.export_block(0, tokens, &mut bytes);
            to.import_block(1, &bytes).unwrap();
            to.export_block(1, 32, &mut after);
            assert_eq!(after[..bytes.len()], bytes, "{kv_type}, {tokens} tokens");
            assert_eq!(after[bytes.len()..], before[bytes.len()..], "{kv_type}, {tokens} tokens");
            for layer in 0..3 {
                for lane in 0..tokens {
                    assert_eq!(read(&to, layer, 1, lane), read(&from, layer, 0, lane));
                }
            }
            for block in [0, 2] {
                after.clear();
                to.export_block(block, 32, &mut after);
                assert_eq!(after, before, "the neighbour {block}");
            }
        }
    }
}

#[test]
fn bytes_that_do_not_fit_a_block_are_refused_and_nothing_is_written() {
    for kv_type in TYPES {
        let mut pool = pool(kv_type, 2);
        let each = pool.token_bytes();
        let mut before = Vec::new();
        pool.export_block(1, 32, &mut before);
        for len in [1, each - 1, each + 1, 31 * each + 5, 32 * each + 1, 33 * each] {
            assert!(pool.import_block(1, &vec![1; len]).is_err(), "{len} bytes");
        }
        assert!(pool.import_block(2, &[]).is_err());
        assert!(pool.import_block(u32::MAX, &vec![0; each]).is_err());
        assert!(pool.import_block(1, &[]).is_ok());
        let mut after = Vec::new();
        pool.export_block(1, 32, &mut after);
        assert_eq!(after, before);
    }
}

#[test]
fn fingerprints_tell_layouts_apart() {
    let g = KvGeometry { n_kv_heads: 2, head_dim: 64, v_head_dim: 32, wide_keys: false };
    let print = |layers: &[KvGeometry], kv_type, blocks| {
        KvPool::new(layers, kv_type, blocks).unwrap().layout_fingerprint()
    };
    let base = print(&[g, g], KvType::Int8, 1);
    assert_eq!(base, print(&[g, g], KvType::Int8, 9), "the pool's size does not matter");
    let wide = KvGeometry { wide_keys: true, ..g };
    assert_eq!(print(&[wide], KvType::F16, 1), print(&[g], KvType::F16, 1), "int8 pools only");
    let mut others = vec![
        base,
        print(&[g, g], KvType::F16, 1),
        print(&[g, g], KvType::F32, 1),
        print(&[g], KvType::Int8, 1),
        print(&[g, wide], KvType::Int8, 1),
        print(&[wide, g], KvType::Int8, 1),
        print(&[KvGeometry { n_kv_heads: 1, ..g }, g], KvType::Int8, 1),
        print(&[KvGeometry { head_dim: 32, ..g }, g], KvType::Int8, 1),
        print(&[KvGeometry { v_head_dim: 64, ..g }, g], KvType::Int8, 1),
    ];
    let count = others.len();
    others.sort_unstable();
    others.dedup();
    assert_eq!(others.len(), count);
}

#[test]
fn moved_tokens_are_those_of_other_positions() {
    use crate::elementwise::{RopeTable, rope_neox};
    use dunlin_spec::{RopeScaling, RopeSpec};
    let table = |dim| {
        let spec = RopeSpec { base: 10_000.0, dim, scaling: RopeScaling::None };
        let mut table = RopeTable::new(&spec).unwrap();
        table.grow(600);
        table
    };
    // The second layer rotates a part of each head.
    let ropes = [table(64), table(48), table(6)];
    for kv_type in TYPES {
        for cpu in CpuFeatures::available() {
            for (position, by) in [(500i64, -437i64), (20, 501), (77, 0)] {
                let mut pool = pool(kv_type, 3);
                for layer in 0..3 {
                    let g = GEOMETRY[layer];
                    for i in 0..5 {
                        let (mut k, v) = token(layer, 10 + i);
                        let (cos, sin) = ropes[layer].row((position + i as i64) as usize);
                        k.chunks_exact_mut(g.head_dim).for_each(|h| rope_neox(cpu, h, cos, sin));
                        pool.store(cpu, layer, 0, 7 + i as usize, &k, &v);
                    }
                }
                let tables: Vec<_> = ropes.iter().collect();
                pool.move_tokens(cpu, (0, 7), (2, 27), 5, &tables, by).unwrap();
                for layer in 0..3 {
                    let g = GEOMETRY[layer];
                    for i in 0..5 {
                        let moved = read(&pool, layer, 2, 27 + i);
                        let left = read(&pool, layer, 0, 7 + i);
                        assert_eq!(moved.1, left.1, "values carry no position");
                        if by == 0 {
                            assert_eq!(moved.0, left.0);
                            continue;
                        }
                        let (mut k, _) = token(layer, 10 + i as u64);
                        let (cos, sin) = ropes[layer].row((position + by) as usize + i);
                        k.chunks_exact_mut(g.head_dim).for_each(|h| rope_neox(cpu, h, cos, sin));
                        for (x, y) in k.iter().zip(&moved.0) {
                            let bound = match kv_type {
                                KvType::F32 => 4e-6,
                                KvType::F16 => 3e-3,
                                // Two roundings, each turned by at most a pair's two errors.
                                KvType::Int8 => 2.5 * 2.2 / 254.0,
                            };
                            assert!((x - y).abs() <= bound, "{kv_type} {by}: {x} and {y}");
                        }
                    }
                }
            }
        }
    }
    let mut pool = pool(KvType::F32, 2);
    let cpu = CpuFeatures::for_isa(Isa::Scalar).unwrap();
    let tables: Vec<_> = ropes.iter().collect();
    for (from, to, tokens) in [
        ((2, 0), (0, 0), 1),
        ((0, 0), (2, 0), 1),
        ((0, 31), (1, 0), 2),
        ((0, 0), (1, 30), 3),
        ((1, 0), (1, 16), 1),
        ((0, usize::MAX), (1, 0), 1),
    ] {
        assert!(pool.move_tokens(cpu, from, to, tokens, &tables, 1).is_err(), "{from:?} {to:?}");
    }
}
