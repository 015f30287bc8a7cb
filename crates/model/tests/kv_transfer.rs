//! KV that left one backend and came to another computes the same bits.

use dunlin_model::{CpuModel, LoadOptions, load};
use dunlin_spec::KvType;
use dunlin_tensor::{Backend, BackendError, LogitsWanted, SequenceInput};
use dunlin_testkit::engine::block_table;
use dunlin_testkit::tiny::{self, random_tokens};
use std::path::Path;

fn open(path: &Path, packs: &Path, kv_type: KvType, kv_tokens: usize) -> CpuModel {
    let options = LoadOptions {
        threads: Some(2),
        kv_type,
        kv_tokens: Some(kv_tokens),
        pack_folder: Some(packs.to_path_buf()),
        ..LoadOptions::default()
    };
    load(path, &options).unwrap().backend
}

/// Runs `tokens` from `first_position` on and gives the last one's logits.
fn step(backend: &mut CpuModel, tokens: &[u32], first_position: usize, table: &[u32]) -> Vec<u32> {
    let mut logits = Vec::new();
    let (mut rest, mut position) = (tokens, first_position);
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(backend.max_step_tokens()));
        let input = SequenceInput {
            tokens: now,
            first_position: position,
            block_table: table,
            logits: LogitsWanted::Last,
            branch_of: None,
        };
        backend.forward(&[input], &mut logits).unwrap();
        (rest, position) = (later, position + now.len());
    }
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Moves a prefix of `prefix` tokens to another backend and decodes there.
fn check(path: &Path, packs: &Path, kv_type: KvType, tokens: &[u32], prefix: usize) {
    let mut home = open(path, packs, kv_type, 512);
    let mut away = open(path, packs, kv_type, 1024);
    assert_eq!(home.kv_layout_fingerprint(), away.kv_layout_fingerprint());
    let here = block_table(&home, tokens.len(), 2);
    let there = block_table(&away, tokens.len(), 9);
    step(&mut home, &tokens[..prefix], 0, &here);
    let per_block = home.block_tokens();
    for (i, (from, to)) in here.iter().zip(&there).enumerate() {
        let count = prefix.saturating_sub(i * per_block).min(per_block);
        let mut bytes = Vec::new();
        home.export_block(*from, count, &mut bytes);
        assert_eq!(bytes.len(), count * home.kv_token_bytes());
        away.import_block(*to, &bytes).unwrap();
        let mut back = Vec::new();
        away.export_block(*to, count, &mut back);
        assert_eq!(back, bytes);
    }
    for position in prefix..tokens.len() {
        let token = &tokens[position..position + 1];
        let want = step(&mut home, token, position, &here);
        assert_eq!(step(&mut away, token, position, &there), want, "{kv_type}, {position}");
    }
}

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

#[test]
fn decode_goes_on_elsewhere_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen2", "gemma3-q5_0"] {
        let path = tiny::named(name).write_gguf(dir.path());
        for kv_type in TYPES {
            check(&path, dir.path(), kv_type, &random_tokens(3, 90), 77);
        }
    }
}

#[test]
fn decode_of_real_models_goes_on_elsewhere() {
    let packs = tempfile::tempdir().unwrap();
    let test = "decode_of_real_models_goes_on_elsewhere";
    // The second has layers whose keys stay half floats.
    let files = ["SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"];
    for path in files.iter().filter_map(|file| dunlin_testkit::models::find(file, test)) {
        for kv_type in TYPES {
            check(&path, packs.path(), kv_type, &(100..150).collect::<Vec<u32>>(), 45);
        }
    }
}

#[test]
fn foreign_bytes_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny::named("llama").write_gguf(dir.path());
    let mut model = open(&path, dir.path(), KvType::F16, 64);
    let each = model.kv_token_bytes();
    for (block, len) in [(0, each + 1), (0, 33 * each), (2, each), (u32::MAX, 0)] {
        let result = model.import_block(block, &vec![0; len]);
        assert!(matches!(result, Err(BackendError::BadKv { block: b, .. }) if b == block));
    }
    let other = open(&path, dir.path(), KvType::Int8, 64);
    assert_ne!(model.kv_layout_fingerprint(), other.kv_layout_fingerprint());
}
