//! Attention against a plain f64 version, and against itself under every change that must not
//! matter: instruction sets, threads, chunks, companions in the batch, block tables, and garbage in
//! lanes that nobody may see.

use super::*;
use crate::kv::{KvGeometry, KvPool};
use crate::{CpuFeatures, Isa};
use dunlin_spec::KvType;
use std::ops::Range;

mod sharing;

const SEED: u64 = 11;

struct Rng(u64);

impl Rng {
    fn new(salt: u64) -> Self {
        println!("seed {SEED}, salt {salt}");
        Rng(SEED ^ salt << 20)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    }
    fn vector(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| self.uniform() * size).collect()
    }
    fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut v: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            v.swap(i, self.next() as usize % (i + 1));
        }
        v
    }
}

/// Numbers of threads to try; the scalar reference is too slow for more than one.
fn thread_counts(cpu: CpuFeatures, all: &[usize]) -> &[usize] {
    if cpu.isa() == Isa::Scalar { &all[1..2] } else { all }
}

fn shape(n_kv_heads: usize, group: usize, head_dim: usize) -> AttnShape {
    AttnShape {
        n_heads: n_kv_heads * group,
        n_kv_heads,
        head_dim,
        v_head_dim: head_dim,
        score_scale: 1.0 / (head_dim as f32).sqrt(),
        window: None,
        softcap: None,
    }
}

/// One sequence's queries, keys and values in f32, row by row.
struct Sequence {
    shape: AttnShape,
    tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn new(shape: AttnShape, tokens: usize, salt: u64) -> Self {
        let mut rng = Rng::new(salt);
        let widths = Self::widths(&shape);
        let [q, k, v] = widths.map(|w| rng.vector(tokens * w, 2.0));
        Sequence { shape, tokens, q, k, v }
    }
    fn widths(s: &AttnShape) -> [usize; 3] {
        [s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim, s.n_kv_heads * s.v_head_dim]
    }
    fn out_width(&self) -> usize {
        self.shape.n_heads * self.shape.v_head_dim
    }
    fn blocks(&self) -> usize {
        self.tokens.div_ceil(BLOCK_TOKENS)
    }
    fn store(&self, pool: &mut KvPool, table: &[u32], positions: Range<usize>) {
        let [_, wk, wv] = Self::widths(&self.shape);
        for p in positions {
            let (k, v) = (&self.k[p * wk..(p + 1) * wk], &self.v[p * wv..(p + 1) * wv]);
            let (block, lane) = (table[p / BLOCK_TOKENS], p % BLOCK_TOKENS);
            pool.store(CpuFeatures::best(), 0, block, lane, k, v);
        }
    }
    fn queries(&self, positions: Range<usize>) -> &[f32] {
        let w = Self::widths(&self.shape)[0];
        &self.q[positions.start * w..positions.end * w]
    }
}

/// A pool whose memory is all ones bits: NaN in f32 and f16, NaN scales in int8.
fn pool(shape: &AttnShape, kv_type: KvType, blocks: usize) -> KvPool {
    let g = KvGeometry {
        n_kv_heads: shape.n_kv_heads,
        head_dim: shape.head_dim,
        v_head_dim: shape.v_head_dim,
        // Any will do; this mixes both kinds into the tests.
        wide_keys: shape.n_heads.is_multiple_of(2),
    };
    let mut pool = KvPool::new(&[g], kv_type, blocks).unwrap();
    pool.fill(0xff);
    pool
}

/// The outputs of some positions of one sequence, alone in the batch.
fn attend_alone(
    cpu: CpuFeatures,
    sequence: &Sequence,
    pool: &KvPool,
    table: &[u32],
    positions: Range<usize>,
    threads: usize,
) -> Vec<f32> {
    let batch = [AttnSequence {
        first_row: 0,
        tokens: positions.len(),
        first_position: positions.start,
        block_table: table,
    }];
    let plan = Plan::new(sequence.shape, &batch, threads).unwrap();
    let mut out = vec![f32::NAN; positions.len() * sequence.out_width()];
    attend(cpu, &plan, pool, 0, sequence.queries(positions), &mut out, threads).unwrap();
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Attention of one position in f64, over the keys and values that the pool holds.
fn reference(s: &Sequence, pool: &KvPool, table: &[u32], position: usize) -> Vec<f64> {
    let shape = &s.shape;
    let [wq, wk, wv] = Sequence::widths(shape);
    let lo = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for p in lo..=position {
        let (mut k, mut v) = (vec![0.0; wk], vec![0.0; wv]);
        pool.export(0, table[p / BLOCK_TOKENS], p % BLOCK_TOKENS, &mut k, &mut v);
        keys.push(k);
        values.push(v);
    }
    let mut out = Vec::new();
    for h in 0..shape.n_heads {
        let kv = h / (shape.n_heads / shape.n_kv_heads);
        let q = &s.q[position * wq + h * shape.head_dim..][..shape.head_dim];
        let scores: Vec<f64> = keys
            .iter()
            .map(|k| {
                let k = &k[kv * shape.head_dim..][..shape.head_dim];
                let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let score = dot * f64::from(shape.score_scale);
                shape.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
            })
            .collect();
        let top = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
        let p: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
        let sum: f64 = p.iter().sum();
        for d in 0..shape.v_head_dim {
            let dot: f64 = p
                .iter()
                .zip(&values)
                .map(|(p, v)| p * f64::from(v[kv * shape.v_head_dim + d]))
                .sum();
            out.push(dot / sum);
        }
    }
    out
}

/// Checks the outputs of some positions against f64. Values lie within +-2 (2.01 in int8).
fn check_accuracy(
    s: &Sequence,
    pool: &KvPool,
    table: &[u32],
    positions: Range<usize>,
    out: &[f32],
) {
    let w = s.out_width();
    for (i, p) in positions.enumerate() {
        let want = reference(s, pool, table, p);
        for (g, w) in out[i * w..(i + 1) * w].iter().zip(&want) {
            // Scores: chains of head_dim steps on numbers up to 2 * 2 * sqrt(head_dim); sums and
            // outputs: chains of up to 512 steps. All roundings 6e-8, adding up at random.
            assert!((f64::from(*g) - w).abs() < 8e-6, "position {p}: {g} against {w}");
        }
    }
}

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

/// Runs a sequence chunk by chunk, storing each chunk just before its queries, and checks accuracy
/// and that instruction sets, threads and chunk sizes make no difference.
fn check_sequence(shape: AttnShape, kv_type: KvType, tokens: usize, chunks: &[usize], salt: u64) {
    let s = Sequence::new(shape, tokens, salt);
    let table = Rng::new(salt + 1).shuffled(s.blocks());
    let mut whole = pool(&shape, kv_type, s.blocks());
    s.store(&mut whole, &table, 0..tokens);
    let want = attend_alone(CpuFeatures::best(), &s, &whole, &table, 0..tokens, 1);
    check_accuracy(&s, &whole, &table, 0..tokens, &want);
    for cpu in CpuFeatures::available() {
        for &threads in thread_counts(cpu, &[1, 3]) {
            let got = attend_alone(cpu, &s, &whole, &table, 0..tokens, threads);
            assert_eq!(bits(&got), bits(&want), "{} with {threads} threads", cpu.isa());
        }
    }
    for &chunk in chunks {
        // Another table, and later lanes full of NaN.
        let table = Rng::new(salt + chunk as u64).shuffled(s.blocks());
        let mut pool = pool(&shape, kv_type, s.blocks());
        let mut got = Vec::new();
        for start in (0..tokens).step_by(chunk) {
            let positions = start..(start + chunk).min(tokens);
            s.store(&mut pool, &table, positions.clone());
            let threads = 1 + start % 2;
            got.extend(attend_alone(CpuFeatures::best(), &s, &pool, &table, positions, threads));
        }
        assert_eq!(bits(&got), bits(&want), "chunks of {chunk}");
    }
}

#[test]
fn every_head_size_and_group() {
    for (i, head_dim) in [64, 80, 96, 128, 256].into_iter().enumerate() {
        for (j, group) in [1, 3, 4, 7, 8].into_iter().enumerate() {
            let kv_type = TYPES[(i + j) % 3];
            println!("head_dim {head_dim}, group {group}, {kv_type}");
            check_sequence(shape(1 + j % 2, group, head_dim), kv_type, 70, &[1, 7, 32], 10);
        }
    }
}

#[test]
fn every_type_and_several_kv_heads() {
    for kv_type in TYPES {
        check_sequence(shape(3, 3, 64), kv_type, 150, &[1, 7, 32, 33], 20);
    }
}

#[test]
fn odd_shapes() {
    // Heads of no whole vectors, values of another size, a prime group, more rows than any tile.
    let odd = AttnShape { v_head_dim: 23, ..shape(2, 5, 18) };
    let wide = AttnShape { v_head_dim: 48, ..shape(1, 13, 40) };
    for kv_type in TYPES {
        check_sequence(odd, kv_type, 75, &[1, 7, 32], 30);
        check_sequence(wide, kv_type, 40, &[1, 9], 40);
    }
}

#[test]
fn sliding_windows() {
    for (window, tokens) in [(1, 40), (5, 70), (32, 100), (33, 100), (100, 300), (512, 600)] {
        for (i, group) in [1, 4].into_iter().enumerate() {
            let shape = AttnShape { window: Some(window), ..shape(1, group, 32) };
            check_sequence(shape, TYPES[(window + i) % 3], tokens, &[1, 7, 32], 50);
        }
    }
}

#[test]
fn capped_scores() {
    let shape = AttnShape { softcap: Some(1.5), ..shape(1, 2, 64) };
    check_sequence(shape, KvType::F16, 80, &[1, 32], 60);
    let both = AttnShape { window: Some(20), ..shape };
    check_sequence(both, KvType::F32, 80, &[1, 7], 61);
}

/// Positions around segment borders, deep in a sequence, on every path.
#[test]
fn segments_are_merged_the_same_way_on_every_path() {
    for (kv_type, window) in [
        (KvType::F16, None),
        (KvType::Int8, None),
        (KvType::F32, Some(700)),
        (KvType::F16, Some(513)),
    ] {
        let shape = AttnShape { window, ..shape(2, 3, 64) };
        let s = Sequence::new(shape, 2100, 70);
        let table = Rng::new(71).shuffled(s.blocks());
        let mut pool = pool(&shape, kv_type, s.blocks());
        s.store(&mut pool, &table, 0..2100);
        for positions in [500..530, 1020..1030, 1500..1560, 2047..2050, 2095..2100] {
            let want = attend_alone(CpuFeatures::best(), &s, &pool, &table, positions.clone(), 1);
            check_accuracy(&s, &pool, &table, positions.clone(), &want);
            for cpu in CpuFeatures::available() {
                for &threads in thread_counts(cpu, &[1, 2, 5, 64]) {
                    let got = attend_alone(cpu, &s, &pool, &table, positions.clone(), threads);
                    assert_eq!(bits(&got), bits(&want), "{} {threads} {positions:?}", cpu.isa());
                }
            }
            let one_by_one: Vec<f32> = positions
                .clone()
                .flat_map(|p| attend_alone(CpuFeatures::best(), &s, &pool, &table, p..p + 1, 2))
                .collect();
            assert_eq!(bits(&one_by_one), bits(&want), "{positions:?} one by one");
        }
    }
}

#[test]
fn strangers_in_the_batch_change_nothing() {
    let shape = shape(2, 3, 64);
    // (tokens of the sequence, first of them that is a query now).
    let lengths = [(700, 699), (40, 0), (513, 511), (1, 0), (90, 60), (1200, 1199), (33, 32)];
    let sequences: Vec<Sequence> =
        lengths.iter().enumerate().map(|(i, l)| Sequence::new(shape, l.0, 80 + i as u64)).collect();
    let blocks: usize = sequences.iter().map(|s| s.blocks()).sum();
    for kv_type in TYPES {
        let mut pool = pool(&shape, kv_type, blocks);
        let ids = Rng::new(90).shuffled(blocks);
        let mut tables: Vec<&[u32]> = Vec::new();
        let mut at = 0;
        for s in &sequences {
            tables.push(&ids[at..at + s.blocks()]);
            s.store(&mut pool, tables[tables.len() - 1], 0..s.tokens);
            at += s.blocks();
        }
        let alone: Vec<Vec<f32>> = (0..lengths.len())
            .map(|i| {
                let range = lengths[i].1..lengths[i].0;
                attend_alone(CpuFeatures::best(), &sequences[i], &pool, tables[i], range, 1)
            })
            .collect();
        let (mut batch, mut q, mut row) = (Vec::new(), Vec::new(), 0);
        for i in [4, 0, 3, 6, 2, 5, 1] {
            let range = lengths[i].1..lengths[i].0;
            let n = range.len();
            batch.push((
                i,
                AttnSequence {
                    first_row: row,
                    tokens: n,
                    first_position: range.start,
                    block_table: tables[i],
                },
            ));
            q.extend_from_slice(sequences[i].queries(range));
            row += n;
        }
        let list: Vec<AttnSequence<'_>> = batch.iter().map(|b| b.1).collect();
        let width = sequences[0].out_width();
        for cpu in CpuFeatures::available() {
            for &threads in thread_counts(cpu, &[1, 2, 7]) {
                let plan = Plan::new(shape, &list, threads).unwrap();
                let mut out = vec![f32::NAN; row * width];
                attend(cpu, &plan, &pool, 0, &q, &mut out, threads).unwrap();
                for (i, b) in &batch {
                    let got = &out[b.first_row * width..(b.first_row + b.tokens) * width];
                    assert_eq!(bits(got), bits(&alone[*i]), "{kv_type}, sequence {i}");
                }
            }
        }
    }
}

#[test]
fn a_later_position_with_infinite_keys_is_not_seen() {
    let shape = shape(1, 3, 64);
    let mut s = Sequence::new(shape, 64, 100);
    let table = [1, 0];
    let mut clean = pool(&shape, KvType::F16, 2);
    s.store(&mut clean, &table, 0..50);
    let want = attend_alone(CpuFeatures::best(), &s, &clean, &table, 0..50, 1);
    // f16 overflows to infinity here.
    s.k[50 * 64..].fill(1e9);
    s.v[50 * 64..].fill(-1e9);
    s.store(&mut clean, &table, 50..64);
    let all = attend_alone(CpuFeatures::best(), &s, &clean, &table, 0..64, 1);
    assert_eq!(bits(&all[..want.len()]), bits(&want));
    assert!(want.iter().all(|x| x.is_finite()));
    assert!(all[want.len()..].iter().all(|x| !x.is_finite()));
}

#[test]
fn plans_cover_each_row_once_and_refuse_what_cannot_be() {
    let shape = shape(2, 3, 64);
    let table: Vec<u32> = (0..40).collect();
    let sequence = |first_row, tokens, first_position| AttnSequence {
        first_row,
        tokens,
        first_position,
        block_table: &table,
    };
    let batch = [sequence(0, 100, 900), sequence(100, 1, 1279), sequence(101, 0, 0)];
    for threads in [1, 2, 16] {
        let plan = Plan::new(shape, &batch, threads).unwrap();
        let mut seen = vec![0; 101 * 2];
        for unit in &plan.units {
            for q in &plan.queries[unit.queries.clone()] {
                seen[q.row * 2 + unit.kv_head] += 1;
            }
        }
        assert!(seen.iter().all(|n| *n == 1));
        for (i, unit) in plan.units.iter().enumerate() {
            let mut segments: Vec<usize> = plan
                .items
                .iter()
                .filter(|item| item.unit == i)
                .flat_map(|item| item.segments.clone())
                .collect();
            segments.sort_unstable();
            assert_eq!(segments, unit.segments.clone().collect::<Vec<_>>());
        }
        assert!(plan.check(&pool(&shape, KvType::F16, 40), 0).is_ok());
        assert!(plan.check(&pool(&shape, KvType::F16, 39), 0).is_err());
        assert!(plan.check(&pool(&shape, KvType::F16, 40), 1).is_err());
    }
    assert!(Plan::new(shape, &[sequence(0, 2, 1279)], 1).is_err());
    assert!(Plan::new(shape, &[sequence(0, usize::MAX, 1)], 1).is_err());
    assert!(Plan::new(AttnShape { n_kv_heads: 4, ..shape }, &[], 1).is_err());
    assert!(Plan::new(AttnShape { window: Some(0), ..shape }, &[], 1).is_err());
    assert!(Plan::new(AttnShape { head_dim: MAX_HEAD_DIM + 1, ..shape }, &[], 1).is_err());
}

#[test]
fn jobs_refuse_short_tensors() {
    let shape = shape(1, 2, 64);
    let table = [0];
    let batch = [AttnSequence { first_row: 3, tokens: 2, first_position: 0, block_table: &table }];
    let plan = Plan::new(shape, &batch, 1).unwrap();
    let pool = pool(&shape, KvType::F16, 1);
    let (q, mut out) = (vec![0.0; 5 * 128], vec![0.0; 5 * 128]);
    let cpu = CpuFeatures::best();
    assert!(attend(cpu, &plan, &pool, 0, &q[1..], &mut out, 1).is_err());
    assert!(attend(cpu, &plan, &pool, 0, &q, &mut out[1..], 1).is_err());
    assert!(attend(cpu, &plan, &pool, 0, &q, &mut out, 1).is_ok());
}
