//! Tiny random models, written as GGUF files and as Hugging Face folders.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod entry;

use std::collections::BTreeMap;

use dunlin_checkpoint::{gguf::GgufWriter, hf::MemoryFolder};
use dunlin_spec::WeightType;

/// A generator of reproducible numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }

    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// The seed of random tests: `DUNLIN_SEED`, or a fixed one. It is printed, so that a failure can
/// be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("DUNLIN_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!("DUNLIN_SEED={seed}");
    seed
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A tensor of floats; the shape has its outermost dimension first.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// Tensors of a model, by name, in order.
#[derive(Debug, Clone, Default)]
pub struct Tensors(pub Vec<Tensor>);

impl Tensors {
    pub fn add(&mut self, rng: &mut Rng, name: impl Into<String>, shape: &[usize]) -> &mut Self {
        let data = rng.floats(shape.iter().product());
        self.0.push(Tensor { name: name.into(), shape: shape.to_vec(), data });
        self
    }

    pub fn get(&self, name: &str) -> &Tensor {
        self.0.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn remove(&mut self, name: &str) {
        self.0.retain(|t| t.name != name);
    }

    /// A GGUF file of F32 tensors with the metadata that `writer` has.
    pub fn gguf(&self, mut writer: GgufWriter) -> Vec<u8> {
        for t in &self.0 {
            let dims: Vec<u64> = t.shape.iter().rev().map(|d| *d as u64).collect();
            writer.tensor(&t.name, &dims, WeightType::F32).unwrap();
        }
        let data: Vec<Vec<u8>> = self.0.iter().map(|t| bytes(&t.data)).collect();
        writer.to_bytes(&data).unwrap()
    }

    /// A safetensors file, by the reference library.
    pub fn safetensors(&self) -> Vec<u8> {
        let data: Vec<Vec<u8>> = self.0.iter().map(|t| bytes(&t.data)).collect();
        let views = self.0.iter().zip(&data).map(|(t, d)| {
            let dtype = safetensors::Dtype::F32;
            let view = safetensors::tensor::TensorView::new(dtype, t.shape.clone(), d).unwrap();
            (t.name.clone(), view)
        });
        safetensors::serialize(views, None).unwrap()
    }
}

/// Sizes of the tiny models.
pub const VOCAB: usize = 16;
pub const D: usize = 32;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD: usize = 16;
pub const FF: usize = 24;
pub const LAYERS: usize = 2;

/// The metadata of a tiny GGUF model.
pub fn gguf_metadata(arch: &str) -> GgufWriter {
    let mut w = GgufWriter::new();
    w.meta("general.architecture", arch)
        .meta("general.name", "tiny")
        .meta(format!("{arch}.block_count"), LAYERS as u32)
        .meta(format!("{arch}.context_length"), 256u32)
        .meta(format!("{arch}.embedding_length"), D as u32)
        .meta(format!("{arch}.feed_forward_length"), FF as u32)
        .meta(format!("{arch}.attention.head_count"), HEADS as u32)
        .meta(format!("{arch}.attention.head_count_kv"), KV_HEADS as u32)
        .meta(format!("{arch}.attention.key_length"), HEAD as u32)
        .meta(format!("{arch}.attention.value_length"), HEAD as u32)
        .meta(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32)
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.tokens", (0..VOCAB).map(|i| format!("t{i}")).collect::<Vec<_>>());
    w
}

/// The tensors of a tiny dense llama, under GGUF's names.
pub fn gguf_llama(rng: &mut Rng) -> Tensors {
    let mut t = Tensors::default();
    t.add(rng, "token_embd.weight", &[VOCAB, D]).add(rng, "output_norm.weight", &[D]);
    for l in 0..LAYERS {
        for (name, shape) in [
            ("attn_norm", &[D][..]),
            ("attn_q", &[HEADS * HEAD, D]),
            ("attn_k", &[KV_HEADS * HEAD, D]),
            ("attn_v", &[KV_HEADS * HEAD, D]),
            ("attn_output", &[D, HEADS * HEAD]),
            ("ffn_norm", &[D]),
            ("ffn_gate", &[FF, D]),
            ("ffn_up", &[FF, D]),
            ("ffn_down", &[D, FF]),
        ] {
            t.add(rng, format!("blk.{l}.{name}.weight"), shape);
        }
    }
    t
}

/// `config.json` of a tiny model, with more keys, or other values, from `more`.
pub fn hf_config(class: &str, more: serde_json::Value) -> serde_json::Value {
    let mut config = serde_json::json!({
        "architectures": [class],
        "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 256,
        "hidden_size": D,
        "intermediate_size": FF,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "torch_dtype": "float32",
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// The tensors of a tiny dense llama, under Hugging Face's names.
pub fn hf_llama(rng: &mut Rng) -> Tensors {
    let mut t = Tensors::default();
    t.add(rng, "model.embed_tokens.weight", &[VOCAB, D]).add(rng, "model.norm.weight", &[D]);
    for l in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", &[D][..]),
            ("self_attn.q_proj", &[HEADS * HEAD, D]),
            ("self_attn.k_proj", &[KV_HEADS * HEAD, D]),
            ("self_attn.v_proj", &[KV_HEADS * HEAD, D]),
            ("self_attn.o_proj", &[D, HEADS * HEAD]),
            ("post_attention_layernorm", &[D]),
            ("mlp.gate_proj", &[FF, D]),
            ("mlp.up_proj", &[FF, D]),
            ("mlp.down_proj", &[D, FF]),
        ] {
            t.add(rng, format!("model.layers.{l}.{name}.weight"), shape);
        }
    }
    t
}

/// A folder in memory with these files.
pub fn folder(config: &serde_json::Value, tensors: &Tensors) -> MemoryFolder {
    MemoryFolder(BTreeMap::from([
        ("config.json".into(), config.to_string().into_bytes()),
        ("model.safetensors".into(), tensors.safetensors()),
    ]))
}
