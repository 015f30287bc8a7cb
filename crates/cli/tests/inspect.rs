//! `dunlin inspect` on a file written here, whose every figure is known.

use std::process::{Command, Output};

use dunlin_checkpoint::gguf::GgufWriter;
use dunlin_spec::WeightType;

const D: u64 = 64;
const VOCAB: u64 = 32;
const FF: u64 = 96;

/// A one-layer Llama with two heads of 32, one KV head, F32 norms and Q8_0 matrices.
fn tiny() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.meta("general.architecture", "llama")
        .meta("general.name", "tiny\n\u{1b}[2J")
        .meta("llama.block_count", 1u32)
        .meta("llama.context_length", 256u32)
        .meta("llama.embedding_length", D as u32)
        .meta("llama.feed_forward_length", FF as u32)
        .meta("llama.attention.head_count", 2u32)
        .meta("llama.attention.head_count_kv", 1u32)
        .meta("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.tokens", (0..VOCAB).map(|i| format!("t{i}")).collect::<Vec<_>>());
    let shapes: [(&str, &[u64]); 11] = [
        ("token_embd", &[D, VOCAB]),
        ("output_norm", &[D]),
        ("blk.0.attn_norm", &[D]),
        ("blk.0.attn_q", &[D, D]),
        ("blk.0.attn_k", &[D, D / 2]),
        ("blk.0.attn_v", &[D, D / 2]),
        ("blk.0.attn_output", &[D, D]),
        ("blk.0.ffn_norm", &[D]),
        ("blk.0.ffn_gate", &[D, FF]),
        ("blk.0.ffn_up", &[D, FF]),
        ("blk.0.ffn_down", &[FF, D]),
    ];
    let mut data = Vec::new();
    for (name, dims) in shapes {
        let ty = if dims.len() == 1 { WeightType::F32 } else { WeightType::Q8_0 };
        w.tensor(format!("{name}.weight"), dims, ty).unwrap();
        let row = ty.row_bytes(dims[0] as usize).unwrap();
        data.push(vec![0u8; row * dims.get(1).map_or(1, |rows| *rows as usize)]);
    }
    w.to_bytes(&data).unwrap()
}

fn inspect(bytes: &[u8], args: &[&str]) -> Output {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.arg("inspect").arg("-m").arg(file.path()).args(args);
    command.env_remove("DUNLIN_CONTEXT").env_remove("DUNLIN_KV_TYPE").output().unwrap()
}

#[test]
fn json_holds_the_figures() {
    let output = inspect(&tiny(), &["--json", "-c", "100", "--kv-type", "f32"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let matrices = VOCAB * D + 3 * D * D + 3 * D * FF;
    assert_eq!(facts["architecture"], "llama");
    assert_eq!(facts["parameters"], matrices + 3 * D);
    let bytes = matrices / 32 * 34 + 4 * 3 * D;
    assert_eq!(facts["tensor_bytes"], bytes);
    assert_eq!(facts["decode_bytes"], bytes, "the head is the embedding, so all of it is read");
    assert_eq!(facts["kv_bytes_per_token"]["f16"], 2 * 2 * 32);
    assert_eq!(facts["memory"]["kv"], 100 * 2 * 32 * 4);
    assert_eq!(facts["memory"]["context"], 100);
    assert_eq!(facts["types"][0]["ty"], "Q8_0");
    assert_eq!(facts["tensors"].as_array().unwrap().len(), 11);
    assert_eq!(facts["tensors"][0]["shape"], serde_json::json!([VOCAB, D]));
}

#[test]
fn text_names_everything_and_sends_no_escapes() {
    let output = inspect(&tiny(), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["llama", "Q8_0", "blk.0.ffn_down.weight", "128 in f16", "llama.block_count = 1"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "a name in the file moves the cursor");
}

#[test]
fn the_models_own_context_is_zero() {
    let output = inspect(&tiny(), &["--json", "-c", "0"]);
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["memory"]["context"], 256);
}

/// What the default model's authors say of it, and what its file's size says.
#[test]
fn the_default_model_is_what_it_is_known_to_be() {
    let model = dunlin_testkit::golden::MODELS[0];
    let test = "the_default_model_is_what_it_is_known_to_be";
    let Some(path) = dunlin_testkit::models::find(model.file, test) else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.arg("inspect").arg("-m").arg(&path).arg("--json");
    let output =
        command.env_remove("DUNLIN_CONTEXT").env_remove("DUNLIN_KV_TYPE").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["architecture"], "llama");
    for (size, value) in [
        ("n_layers", 30),
        ("d_model", 576),
        ("n_heads", 9),
        ("n_kv_heads", 3),
        ("head_dim", 64),
        ("d_ff", 1536),
        ("vocab_size", 49_152),
        ("context_length", 8192),
    ] {
        assert_eq!(facts["sizes"][size], value, "{size}");
    }
    assert_eq!(facts["sizes"]["tied_head"], true);
    assert_eq!(facts["parameters"], 134_515_008);
    // Two of each layer's 3 KV heads of 64.
    for (kv, bytes) in [("f32", 4), ("f16", 2)] {
        assert_eq!(facts["kv_bytes_per_token"][kv], 30 * 2 * 3 * 64 * bytes);
    }
    let file = std::fs::metadata(&path).unwrap().len();
    let tensors = facts["tensor_bytes"].as_u64().unwrap();
    assert!(
        tensors < file && file - tensors < 4 << 20,
        "{tensors} of {file}: the rest is metadata"
    );
    let listed = facts["tensors"].as_array().unwrap();
    assert_eq!(listed.len(), 2 + 30 * 9);
    let sum: u64 = listed.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, tensors);
    let memory = &facts["memory"];
    assert_eq!(memory["kv"], 8192 * 30 * 2 * 3 * 64 * 2);
    let parts = ["weights", "kv", "working"].map(|part| memory[part].as_u64().unwrap());
    assert_eq!(memory["total"], parts.iter().sum::<u64>());
}

#[test]
fn files_that_are_no_models_are_errors() {
    let bytes = tiny();
    let mut unknown = bytes.clone();
    let at = unknown.windows(5).position(|w| w == b"llama").unwrap();
    unknown[at..at + 5].copy_from_slice(b"llamb");
    for (file, says) in [
        (&bytes[..bytes.len() - 100], "truncated"),
        (b"GGUF", ""),
        (b"", ""),
        (&[0xA5; 4096][..], "GGUF"),
        (&unknown, "llamb"),
    ] {
        let output = inspect(file, &["--json"]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(output.stdout.is_empty() && !told.is_empty() && told.contains(says), "{told}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_dunlin"))
        .args(["inspect", "-m", "/nonexistent/model.gguf"])
        .output()
        .unwrap();
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nonexistent/model.gguf"));
    assert_ne!(missing.status.code(), Some(0));
}
