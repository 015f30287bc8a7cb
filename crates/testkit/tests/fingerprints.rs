//! The same bits on every machine: fingerprints of logits, recorded once in
//! `data/fingerprints.txt` and compared wherever the tests run, on any CPU, with any compiler.
//!
//! A change of any order of sums, rounding or weight layout that reaches a logit changes a line. If
//! it was meant, write the file anew as the failure says, and say so in the commit.

use dunlin_model::{LoadOptions, load};
use dunlin_spec::{ActivationPrecision, KvType};
use dunlin_testkit::engine::{Route, logits_from};
use dunlin_testkit::{check_generated, tiny};

/// FNV-1a over the bits of all logits.
fn fingerprint(logits: &[f32]) -> u64 {
    let bytes = logits.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn logits_are_those_recorded() {
    use ActivationPrecision::{F32, Int8, Split};
    let settings: Vec<_> = [Int8, F32, Split]
        .into_iter()
        .flat_map(|a| [KvType::F16, KvType::Int8, KvType::F32].map(|kv| (a, kv)))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    // The last ones are long enough for several attention segments.
    let long = ["llama-q4_k", "gemma3-q5_0", "mistral"].map(|name| (tiny::named(name), 1100));
    let short = tiny::all().into_iter().chain(tiny::all_types()).map(|model| (model, 70));
    for (i, (model, length)) in short.chain(long).enumerate() {
        // Each model meets one pair of settings, the next model the next.
        let (activations, kv_type) = settings[i % settings.len()];
        let options = LoadOptions {
            threads: Some(2),
            activations,
            kv_type,
            kv_tokens: Some(2048),
            pack_folder: None,
            ..LoadOptions::default()
        };
        let path = model.write_gguf(folder.path());
        let mut loaded = load(&path, &options).unwrap();
        // The seed is fixed: a fingerprint is of one input.
        let tokens = tiny::random_tokens(2, length);
        let route = Route::ThenOnes(length - 9);
        let logits = logits_from(&mut loaded.backend, &tokens, route, 0, length - 30);
        let hash = fingerprint(&logits);
        let name = &model.name;
        lines += &format!("{name} {activations} {kv_type} {length} {hash:016x}\n");
    }
    check_generated(
        "crates/testkit/data/fingerprints.txt",
        &format!(
            "# model, activations, KV type, tokens, FNV-1a of the last 30 tokens' logits\n{lines}"
        ),
        "cargo test -p dunlin-testkit --test fingerprints",
    );
}
