//! Real models against the float64 oracle's golden files, at every precision of activations and
//! every type of KV.

use std::path::Path;

use dunlin_model::{CpuModel, LoadOptions, load};
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_tensor::Backend;
use dunlin_testkit::engine::{Route, logits_from};
use dunlin_testkit::golden::{GoldenModel, MODELS, Prompt, relative_l2};
use dunlin_testkit::models;

/// llama.cpp's mean error over the short prompts' probe logits, with its int8 activations and f32
/// KV, in the order of `MODELS`; ours may be 1.1 times that.
const LLAMA_CPP_INT8: [f64; 3] = [2.7e-2, 4.1e-2, 1.8e-2];

const INT8_SHARE: f64 = 1.1;

/// A prompt of a golden file, short or long.
struct Golden {
    ids: Vec<u32>,
    /// The first position whose probe logits are known.
    from: usize,
    probe_ids: Vec<u32>,
    probe_logits: Vec<f64>,
}

fn prompts(model: &GoldenModel) -> Vec<Golden> {
    let short = model.prompts().into_iter().map(|p| Golden {
        ids: p.ids,
        from: 0,
        probe_ids: p.probe_ids,
        probe_logits: p.probe_logits.concat(),
    });
    let long = model.long();
    let from = long.ids.len() - long.last_positions;
    let long = Golden {
        ids: long.ids,
        from,
        probe_ids: long.probe_ids,
        probe_logits: long.probe_logits.concat(),
    };
    short.chain([long]).collect()
}

fn open(path: &Path, activations: ActivationPrecision, kv_type: KvType) -> CpuModel {
    let options = LoadOptions {
        threads: None,
        activations,
        kv_type,
        context: Some(2560),
        pack_folder: Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("packs")),
        ..LoadOptions::default()
    };
    load(path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display())).backend
}

/// The error on each prompt, the long one last.
fn errors(model: &mut CpuModel, prompts: &[Golden]) -> Vec<f64> {
    let vocab = model.spec().vocab_size;
    let error = |p: &Golden| {
        let all = logits_from(model, &p.ids, Route::Whole, 0, p.from);
        let rows = all.chunks_exact(vocab);
        let probes = rows.flat_map(|row| p.probe_ids.iter().map(|&id| row[id as usize]));
        relative_l2(&probes.collect::<Vec<f32>>(), &p.probe_logits)
    };
    prompts.iter().map(error).collect()
}

/// Runs `check` on every golden model that is here.
fn on_each(test: &str, check: impl Fn(usize, &Path, &[Golden])) {
    for (i, model) in MODELS.iter().enumerate() {
        if let Some(path) = models::find(model.file, test) {
            check(i, &path, &prompts(model));
        }
    }
}

fn shown(errors: &[f64]) -> String {
    errors.iter().map(|e| format!("{e:.1e}")).collect::<Vec<_>>().join(" ")
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().sum::<f64>() / errors.len() as f64
}

#[test]
fn f32_and_split_activations_are_within_their_bounds() {
    on_each("f32_and_split_activations_are_within_their_bounds", |_, path, prompts| {
        for (activations, bound) in
            [(ActivationPrecision::F32, 1e-5), (ActivationPrecision::Split, 5e-4)]
        {
            let errors = errors(&mut open(path, activations, KvType::F32), prompts);
            println!("{}: {activations}: {}", path.display(), shown(&errors));
            assert!(errors.iter().all(|e| *e <= bound), "{activations}: {errors:?}");
        }
    });
}

#[test]
fn int8_activations_err_no_more_than_the_usual() {
    on_each("int8_activations_err_no_more_than_the_usual", |i, path, prompts| {
        let mut model = open(path, ActivationPrecision::Int8, KvType::F32);
        let short = &prompts[..prompts.len() - 1];
        let errors = errors(&mut model, short);
        let bound = INT8_SHARE * LLAMA_CPP_INT8[i];
        println!("{}: int8: {}, mean {:.2e}", path.display(), shown(&errors), mean(&errors));
        assert!(mean(&errors) <= bound, "mean {} > {bound}", mean(&errors));
    });
}

/// What a KV type adds is measured against the same run with f32 KV, on every prompt.
#[test]
fn int8_kv_adds_no_more_than_int8_activations() {
    on_each("int8_kv_adds_no_more_than_int8_activations", |_, path, prompts| {
        use ActivationPrecision::{F32, Int8};
        let activations = errors(&mut open(path, Int8, KvType::F32), prompts);
        for (kv_type, share) in [(KvType::F16, 0.1), (KvType::Int8, 1.0)] {
            let added = errors(&mut open(path, F32, kv_type), prompts);
            println!("{}: {kv_type} KV adds {}", path.display(), shown(&added));
            for (i, (added, own)) in added.iter().zip(&activations).enumerate() {
                assert!(*added <= share * own, "prompt {i}: {kv_type} KV {added} > {share} {own}");
            }
        }
    });
}

/// Along the golden continuations, the best token is the oracle's wherever its lead is more than
/// twice the mode's largest error of any logit.
#[test]
fn the_best_token_is_the_oracles() {
    const TEST: &str = "the_best_token_is_the_oracles";
    for golden in MODELS {
        let Some(path) = models::find(golden.file, TEST) else { continue };
        for p in golden.prompts() {
            let ids = [&p.ids[..], &p.greedy[..p.greedy.len() - 1]].concat();
            let run = |activations| {
                let mut model = open(&path, activations, KvType::F32);
                logits_from(&mut model, &ids, Route::Whole, 0, 0)
            };
            let f32_logits = run(ActivationPrecision::F32);
            let exact = probe_error(&f32_logits, &p);
            let mut certain = follow(&f32_logits, 2.0 * exact, &p);
            for activations in [ActivationPrecision::Split, ActivationPrecision::Int8] {
                // Every logit's error, as far as f32 activations know it.
                let logits = run(activations);
                let pairs = logits.iter().zip(&f32_logits);
                let error = pairs.map(|(a, b)| f64::from((a - b).abs())).fold(exact, f64::max);
                certain += follow(&logits, 2.0 * (error + exact), &p);
            }
            println!("{}: {certain} of {} steps are certain", golden.name, 3 * p.greedy.len());
            assert!(certain > p.greedy.len(), "hardly any step is certain");
        }
    }
}

/// The largest error of a logit that the golden file knows.
fn probe_error(logits: &[f32], p: &Prompt) -> f64 {
    let positions = p.ids.len() + p.greedy.len() - 1;
    let rows = logits.chunks_exact(logits.len() / positions).zip(&p.probe_logits);
    let errors = rows.flat_map(|(row, expected)| {
        let pairs = p.probe_ids.iter().zip(expected);
        pairs.map(|(&id, e)| (f64::from(row[id as usize]) - e).abs())
    });
    errors.fold(0.0, f64::max)
}

/// Asserts that every step with a margin above `doubt` has the oracle's token; how many have.
fn follow(logits: &[f32], doubt: f64, p: &Prompt) -> usize {
    let positions = p.ids.len() + p.greedy.len() - 1;
    let rows = logits.chunks_exact(logits.len() / positions).skip(p.ids.len() - 1);
    let mut certain = 0;
    for ((row, &token), &margin) in rows.zip(&p.greedy).zip(&p.margins) {
        if margin > doubt {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            assert_eq!(best.map(|b| b.0), Some(token as usize), "after {:?}", p.text);
            certain += 1;
        }
    }
    certain
}
