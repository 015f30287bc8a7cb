//! Whole programs of a head alone: what is chosen must be the best of all logits, bit for bit.

use super::super::Weights;
use super::super::{ActBuf, ActNeeds, FloatBuf, Machine, MatrixId, Op, Program, Rows, VectorId};
use crate::CpuFeatures;
use crate::kv::KvPool;
use crate::matmul::tests::{Matrix, Random, every_cpu, matrix, random_row};
use crate::pack::PackedLayout;
use dunlin_spec::{ActivationPrecision, KvType, WeightType};
use dunlin_tensor::{Best, LogitsWanted, Screening, SequenceInput};
use half::f16;

const COLS: usize = 96;
const ROWS: usize = 75;

/// Embedding, norm and a tied head.
fn program(precision: ActivationPrecision, cap: Option<f32>) -> Program {
    let mut needs = ActNeeds::default();
    needs.add(false, precision);
    let (all, x, logits) = (FloatBuf(0), FloatBuf(1), FloatBuf(2));
    let (acts, matrix) = (ActBuf(0), MatrixId(0));
    let mut ops = vec![
        Op::Embed { table: matrix, scale: None, out: all },
        Op::Select { x: all, out: x },
        Op::Norm { x, weight: VectorId(0), eps: 1e-6, out: acts },
        Op::MatMul { parts: vec![(matrix, 0)], acts, out: logits, add: false },
        Op::Best { matrix, acts, scale: None, cap },
    ];
    if cap.is_some() {
        ops.push(Op::Logits { x: logits, scale: None, cap });
    }
    Program {
        ops,
        floats: vec![(Rows::Tokens, COLS), (Rows::Wanted, COLS), (Rows::Full, ROWS)],
        acts: vec![(Rows::Wanted, COLS, needs)],
        logits: Some(logits),
        ..Program::default()
    }
}

fn head(rows: &[Vec<u8>]) -> Matrix {
    matrix(PackedLayout::of_head(WeightType::Q8_0, rows.len(), COLS).unwrap(), rows)
}

struct Setting {
    cpu: CpuFeatures,
    threads: usize,
    precision: ActivationPrecision,
    cap: Option<f32>,
}

/// What the program chooses after each token and what all its logits say; and what was looked at.
fn run(
    m: &Matrix,
    norm: &[f32],
    tokens: &[u32],
    setting: &Setting,
) -> (Vec<Best>, Vec<Best>, Screening) {
    let program = program(setting.precision, setting.cap);
    let mut machine = Machine::new(setting.cpu, setting.threads, program).unwrap();
    let mut kv = KvPool::new(&[], KvType::F32, 1).unwrap();
    let (matrices, vectors) = ([m.packed()], [norm.to_vec()]);
    let weights = Weights { matrices: &matrices, vectors: &vectors };
    let input = |token| SequenceInput {
        tokens: std::slice::from_ref(token),
        first_position: 0,
        block_table: &[],
        logits: LogitsWanted::Last,
        branch_of: None,
    };
    let batch: Vec<_> = tokens.iter().map(input).collect();
    let (mut logits, mut best) = (Vec::new(), Vec::new());
    machine.run(weights, &mut kv, &batch, &[], (&mut logits, &mut best)).unwrap();
    assert!(best.is_empty());
    let want = logits.chunks_exact(ROWS).map(Best::of).collect();
    let greedy = vec![true; batch.len()];
    machine.run(weights, &mut kv, &batch, &greedy, (&mut logits, &mut best)).unwrap();
    assert!(logits.is_empty());
    (best, want, machine.screening())
}

fn bits(best: &[Best]) -> Vec<(u32, u32)> {
    best.iter()
        .map(|b| {
            (b.token, b.logit.to_bits() & if b.logit.is_nan() { 0x7fc0_0000 } else { u32::MAX })
        })
        .collect()
}

fn scales(rows: &mut [Vec<u8>], scale: impl Fn(usize) -> f16) {
    for (r, row) in rows.iter_mut().enumerate() {
        row.chunks_exact_mut(34).for_each(|b| b[..2].copy_from_slice(&scale(r).to_le_bytes()));
    }
}

/// Rows and the norm's weights, by name.
fn cases(random: &mut Random) -> Vec<(&'static str, Vec<Vec<u8>>, Vec<f32>)> {
    let rows = |random: &mut Random| -> Vec<Vec<u8>> {
        (0..ROWS).map(|_| random_row(WeightType::Q8_0, COLS, random)).collect()
    };
    let ones = || vec![1.0f32; COLS];
    let mut all = vec![("random", rows(random), ones())];
    let few = rows(random);
    let ties = (0..ROWS).map(|r| few[r % 9].clone()).collect();
    all.push(("ties in many panels", ties, ones()));
    let near = (0..ROWS).map(|r| {
        let mut row = few[r % 9].clone();
        row[2 + r % 32] ^= 1;
        row
    });
    all.push(("near ties", near.collect(), ones()));
    let mut zero = rows(random);
    zero.iter_mut().skip(1).for_each(|row| row.fill(0));
    all.push(("zero rows but one", zero, ones()));
    let mut below = rows(random);
    // Padding and zero rows must not stand in for the best of negative logits.
    below[70].fill(0);
    all.push(("a zero row among others", below, ones()));
    let mut huge = rows(random);
    scales(&mut huge, |r| if r % 2 == 0 { f16::MAX } else { f16::from_f32(1e-3) });
    all.push(("huge scales", huge.clone(), ones()));
    all.push(("overflow", huge, vec![1e33; COLS]));
    let mut tiny = rows(random);
    scales(&mut tiny, |_| f16::MIN_POSITIVE_SUBNORMAL);
    all.push(("tiny scales", tiny.clone(), ones()));
    all.push(("tiny everything", tiny, vec![1e-28; COLS]));
    let mut nan = rows(random);
    nan[60][..2].copy_from_slice(&f16::NAN.to_le_bytes());
    all.push(("a NaN scale", nan, ones()));
    let mut infinite = rows(random);
    infinite[61][34..36].copy_from_slice(&f16::INFINITY.to_le_bytes());
    all.push(("an infinite scale", infinite, ones()));
    all.push(("NaN activations", rows(random), vec![f32::NAN; COLS]));
    all.push(("infinite activations", rows(random), vec![f32::INFINITY; COLS]));
    all
}

#[test]
fn greedy_choices_are_the_best_of_all_logits() {
    let mut random = Random(50);
    for (name, rows, norm) in cases(&mut random) {
        let m = head(&rows);
        for count in [1usize, 2, 4, 5, 17] {
            let tokens: Vec<u32> = (0..count).map(|_| random.next() as u32 % 60).collect();
            for cpu in every_cpu() {
                for (threads, precision, cap) in [
                    (1, ActivationPrecision::Int8, None),
                    (3, ActivationPrecision::Int8, None),
                    (2, ActivationPrecision::Split, None),
                    (2, ActivationPrecision::F32, None),
                    (2, ActivationPrecision::Int8, Some(0.01)),
                ] {
                    let setting = Setting { cpu, threads, precision, cap };
                    let (got, want, _) = run(&m, &norm, &tokens, &setting);
                    let what = format!("{name}, {count} tokens, {threads} threads, {precision}");
                    assert_eq!(bits(&got), bits(&want), "{what}, cap {cap:?}, {cpu:?}");
                }
            }
        }
    }
}

#[test]
fn few_panels_of_a_clear_choice_are_multiplied() {
    let mut random = Random(51);
    let mut rows: Vec<Vec<u8>> =
        (0..ROWS).map(|_| random_row(WeightType::Q8_0, COLS, &mut random)).collect();
    scales(&mut rows, |r| f16::from_f32(if r == 40 { 1.0 } else { 1e-3 }));
    // Token 40's own row is by far the most like it.
    let m = head(&rows);
    let setting = Setting {
        cpu: CpuFeatures::best(),
        threads: 2,
        precision: ActivationPrecision::Int8,
        cap: None,
    };
    let (got, want, seen) = run(&m, &[1.0; COLS], &[40], &setting);
    assert_eq!((bits(&got), got[0].token), (bits(&want), 40));
    assert_eq!(seen, Screening { screened: 5, exact: 1 });
}

#[test]
fn screening_that_does_not_pay_pauses_and_is_tried_again() {
    let mut random = Random(53);
    let row = random_row(WeightType::Q8_0, COLS, &mut random);
    // All rows tie, so all panels may win.
    let m = head(&vec![row; ROWS]);
    let mut machine =
        Machine::new(CpuFeatures::best(), 2, program(ActivationPrecision::Int8, None)).unwrap();
    let mut kv = KvPool::new(&[], KvType::F32, 1).unwrap();
    let (matrices, vectors) = ([m.packed()], [vec![1.0; COLS]]);
    let weights = Weights { matrices: &matrices, vectors: &vectors };
    let input = SequenceInput {
        tokens: &[3],
        first_position: 0,
        block_table: &[],
        logits: LogitsWanted::Last,
        branch_of: None,
    };
    let (mut logits, mut best, mut tried) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..20 {
        let before = machine.screening().screened;
        machine.run(weights, &mut kv, &[input], &[true], (&mut logits, &mut best)).unwrap();
        assert_eq!(best[0].token, 0);
        if machine.screening().screened > before {
            tried.push(step);
        }
    }
    assert_eq!(tried, [0, 2, 5, 10, 19]);
}

#[test]
fn positions_keep_their_order_whichever_way_they_are_wanted() {
    let mut random = Random(52);
    let rows: Vec<Vec<u8>> =
        (0..ROWS).map(|_| random_row(WeightType::Q8_0, COLS, &mut random)).collect();
    let m = head(&rows);
    let mut machine =
        Machine::new(CpuFeatures::best(), 2, program(ActivationPrecision::Int8, None)).unwrap();
    let mut kv = KvPool::new(&[], KvType::F32, 1).unwrap();
    let (matrices, vectors) = ([m.packed()], [vec![1.0; COLS]]);
    let weights = Weights { matrices: &matrices, vectors: &vectors };
    let tokens: Vec<u32> = (0..7).map(|_| random.next() as u32 % ROWS as u32).collect();
    let input = |range: std::ops::Range<usize>| SequenceInput {
        tokens: &tokens[range],
        first_position: 0,
        block_table: &[],
        logits: LogitsWanted::All,
        branch_of: None,
    };
    let batch = [input(0..2), input(2..3), input(3..6), input(6..7)];
    let (mut all, mut logits, mut best) = (Vec::new(), Vec::new(), Vec::new());
    machine.run(weights, &mut kv, &batch, &[], (&mut all, &mut best)).unwrap();
    let greedy = [true, false, true, false];
    machine.run(weights, &mut kv, &batch, &greedy, (&mut logits, &mut best)).unwrap();
    let rows: Vec<&[f32]> = all.chunks_exact(ROWS).collect();
    assert_eq!(logits, [rows[2], rows[6]].concat());
    let want: Vec<Best> = [0, 1, 3, 4, 5].map(|i| Best::of(rows[i])).into();
    assert_eq!(bits(&best), bits(&want));
}
