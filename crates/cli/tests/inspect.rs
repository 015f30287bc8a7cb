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
fn a_truncated_file_is_an_error() {
    let bytes = tiny();
    let output = inspect(&bytes[..bytes.len() - 100], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
}
