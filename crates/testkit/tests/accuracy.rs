//! The engine's logits against float64, on tiny models of every architecture, RoPE scaling and
//! weight type.

use std::path::Path;

use dunlin_model::{LoadOptions, load};
use dunlin_spec::{ActivationPrecision, KvType, WeightType};
use dunlin_testkit::engine::{Route, logits};
use dunlin_testkit::golden::relative_l2;
use dunlin_testkit::oracle::Script;
use dunlin_testkit::tiny::{self, Reference, Tiny};

fn options(activations: ActivationPrecision) -> LoadOptions {
    LoadOptions {
        threads: Some(1),
        activations,
        kv_type: KvType::F32,
        pack_folder: None,
        ..LoadOptions::default()
    }
}

fn run(path: &Path, tokens: &[u32], options: &LoadOptions) -> Vec<f32> {
    let mut model = load(path, options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    logits(&mut model.backend, tokens, Route::Whole, 0)
}

/// The float64 logits of a model that is written to `gguf`.
fn reference(
    model: &Tiny,
    gguf: &Path,
    folder: &Path,
    tokens: &[u32],
    context: usize,
) -> Option<Vec<f64>> {
    match model.reference {
        Reference::Both => Script::Oracle.logits(gguf, tokens, context, "accuracy"),
        Reference::Extra => {
            let hf = model.write_hf(folder, 1).expect("such models hold floats");
            Script::Extra.logits(&hf, tokens, context, "accuracy")
        }
    }
}

/// The most that the errors of `f32`, `split` and `int8` activations may be on a model. Random
/// weights average nothing out, so `int8` errs more here than on a trained model.
fn bounds(ty: WeightType) -> [(ActivationPrecision, f64); 3] {
    use ActivationPrecision::{F32, Int8, Split};
    let float = matches!(ty, WeightType::F32 | WeightType::F16 | WeightType::BF16);
    // Float weights meet f32 activations whatever the setting.
    let (split, int8) = if float { (1e-5, 1e-5) } else { (5e-4, 3e-2) };
    [(F32, 1e-5), (Split, split), (Int8, int8)]
}

fn check(models: impl Iterator<Item = Tiny>) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tiny::random_tokens(tiny::seed(), 40);
    for model in models {
        let gguf = model.write_gguf(folder.path());
        let context = 128;
        let Some(expected) = reference(&model, &gguf, folder.path(), &tokens, context) else {
            return;
        };
        for (activations, bound) in bounds(model.ty) {
            let options = LoadOptions { context: Some(context), ..options(activations) };
            let error = relative_l2(&run(&gguf, &tokens, &options), &expected);
            println!("{:16} {activations:6} {error:.1e}", model.name);
            assert!(error <= bound, "{} at {activations}: {error:e} > {bound:e}", model.name);
        }
    }
}

#[test]
fn every_architecture_and_scaling() {
    check(tiny::all().into_iter());
}

#[test]
fn every_weight_type() {
    check(tiny::all_types().into_iter());
}

/// Long enough for several attention segments and many KV blocks, and past every window.
#[test]
fn long_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tiny::random_tokens(tiny::seed(), 1200);
    for name in ["llama", "mistral", "gemma3", "llama-yarn"] {
        let model = tiny::named(name);
        let gguf = model.write_gguf(folder.path());
        let Some(expected) = reference(&model, &gguf, folder.path(), &tokens, 2048) else {
            return;
        };
        let options = options(ActivationPrecision::F32);
        let error = relative_l2(&run(&gguf, &tokens, &options), &expected);
        println!("{name:16} {error:.1e}");
        assert!(error <= 1e-5, "{name}: {error:e}");
    }
}

/// LongRoPE has two sets of factors; the context that a run has room for decides.
#[test]
fn short_contexts_take_the_short_factors() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tiny::random_tokens(tiny::seed(), 24);
    let model = tiny::named("phi3-longrope");
    let gguf = model.write_gguf(folder.path());
    for context in [512, 513] {
        let Some(expected) = reference(&model, &gguf, folder.path(), &tokens, context) else {
            return;
        };
        let options = LoadOptions { context: Some(context), ..options(ActivationPrecision::F32) };
        let error = relative_l2(&run(&gguf, &tokens, &options), &expected);
        assert!(error <= 1e-5, "context {context}: {error:e}");
    }
}

/// The same weights from a folder, sharded or not, and from a GGUF file: the same bits.
#[test]
fn a_folder_and_a_file_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tiny::random_tokens(tiny::seed(), 40);
    let mut compared = 0;
    for model in tiny::all().into_iter().chain(tiny::all_types()) {
        let Some(hf) = model.write_hf(folder.path(), 1) else { continue };
        // Its factors are computed from the configuration in the folder and rounded to f32 in the
        // file: equal only as numbers.
        if model.name == "llama-3-factors" {
            continue;
        }
        let options = options(ActivationPrecision::Int8);
        let expected = run(&model.write_gguf(folder.path()), &tokens, &options);
        let sharded = model.write_hf(folder.path(), 3).expect("as above");
        for path in [hf, sharded] {
            let found = run(&path, &tokens, &options);
            assert!(found == expected, "{} from {}", model.name, path.display());
        }
        compared += 1;
    }
    assert!(compared > 10, "{compared} models compared");
}
