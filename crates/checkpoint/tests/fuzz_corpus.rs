//! The fuzz targets' entry functions over the committed corpus and a bounded number of seeded
//! mutations of it.
//!
//! The seeds of the corpus are made here; `DUNLIN_UPDATE=1` writes them anew. Other files in its
//! folders are crashes that were found and mended.

mod common;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use common::{Rng, Tensor, Tensors, entry, seed};
use dunlin_checkpoint::{gguf::GgufWriter, hf::MemoryFolder};
use dunlin_spec::WeightType;
use serde_json::json;

/// Mutations of each file of the corpus.
const MUTATIONS: usize = 3000;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Metadata of a model of one layer, eight features, and one head of eight.
fn metadata(arch: &str) -> GgufWriter {
    let mut w = GgufWriter::new();
    w.meta("general.architecture", arch);
    for (key, value) in [
        ("block_count", 1u32),
        ("context_length", 64),
        ("embedding_length", 8),
        ("feed_forward_length", 8),
        ("attention.head_count", 1),
        ("attention.head_count_kv", 1),
    ] {
        w.meta(format!("{arch}.{key}"), value);
    }
    w.meta(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6f32);
    w
}

fn tensors(names: &[(&str, &[usize])]) -> Tensors {
    let tensor = |(name, shape): &(&str, &[usize])| Tensor {
        name: (*name).into(),
        shape: shape.to_vec(),
        data: vec![1.0; shape.iter().product()],
    };
    Tensors(names.iter().map(tensor).collect())
}

const EDGES: [(&str, &[usize]); 3] = [
    ("token_embd.weight", &[4, 8]),
    ("output_norm.weight", &[8]),
    ("blk.0.attn_norm.weight", &[8]),
];
const ATTENTION: [(&str, &[usize]); 5] = [
    ("blk.0.attn_q.weight", &[8, 8]),
    ("blk.0.attn_k.weight", &[8, 8]),
    ("blk.0.attn_v.weight", &[8, 8]),
    ("blk.0.attn_output.weight", &[8, 8]),
    ("blk.0.ffn_norm.weight", &[8]),
];
const DENSE: [(&str, &[usize]); 3] = [
    ("blk.0.ffn_gate.weight", &[8, 8]),
    ("blk.0.ffn_up.weight", &[8, 8]),
    ("blk.0.ffn_down.weight", &[8, 8]),
];

fn gguf_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut llama = metadata("llama");
    llama
        .meta("llama.rope.scaling.type", "linear")
        .meta("llama.rope.scaling.factor", 2.0f32)
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", vec![vec![b'a'], vec![0xff], vec![], b"word".to_vec()])
        .meta("tokenizer.ggml.scores", vec![0.0f32, -1.0, -2.0, -3.0])
        .meta("tokenizer.ggml.token_type", vec![1i32, 6, 3, 1])
        .meta("tokenizer.ggml.bos_token_id", 1u32)
        .meta("tokenizer.ggml.add_bos_token", true)
        .meta("tokenizer.chat_template", "{{ messages }}");
    let mut all = [&EDGES[..], &ATTENTION, &DENSE].concat();
    all.push(("rope_freqs.weight", &[4]));
    let llama = tensors(&all).gguf(llama);

    let mut moe = metadata("qwen3moe");
    moe.meta("qwen3moe.expert_count", 2u32)
        .meta("qwen3moe.expert_used_count", 1u32)
        .meta("qwen3moe.expert_feed_forward_length", 8u32);
    let experts: [(&str, &[usize]); 6] = [
        ("blk.0.attn_q_norm.weight", &[8]),
        ("blk.0.attn_k_norm.weight", &[8]),
        ("blk.0.ffn_gate_inp.weight", &[2, 8]),
        ("blk.0.ffn_gate_exps.weight", &[2, 8, 8]),
        ("blk.0.ffn_up_exps.weight", &[2, 8, 8]),
        ("blk.0.ffn_down_exps.weight", &[2, 8, 8]),
    ];
    let moe = tensors(&[&EDGES[..], &ATTENTION, &experts].concat()).gguf(moe);

    let mut gemma = metadata("gemma3");
    gemma
        .meta("gemma3.attention.sliding_window", 16u32)
        .meta("gemma3.attention.sliding_window_pattern", vec![true])
        .meta("gemma3.attention.key_length", 8u32);
    let norms: [(&str, &[usize]); 4] = [
        ("blk.0.attn_q_norm.weight", &[8]),
        ("blk.0.attn_k_norm.weight", &[8]),
        ("blk.0.post_attention_norm.weight", &[8]),
        ("blk.0.post_ffw_norm.weight", &[8]),
    ];
    let gemma = tensors(&[&EDGES[..], &ATTENTION, &DENSE, &norms].concat()).gguf(gemma);

    let mut phi = metadata("phi3");
    phi.meta("phi3.rope.scaling.original_context_length", 32u32)
        .meta("phi3.rope.scaling.attn_factor", 1.25f32);
    let fused: [(&str, &[usize]); 7] = [
        ("blk.0.attn_qkv.weight", &[24, 8]),
        ("blk.0.attn_output.weight", &[8, 8]),
        ("blk.0.ffn_norm.weight", &[8]),
        ("blk.0.ffn_up.weight", &[16, 8]),
        ("blk.0.ffn_down.weight", &[8, 8]),
        ("rope_factors_long.weight", &[4]),
        ("rope_factors_short.weight", &[4]),
    ];
    let phi = tensors(&[&EDGES[..], &fused].concat()).gguf(phi);

    let mut types = GgufWriter::new();
    types.meta("general.architecture", "none").meta("general.alignment", 32u32);
    let mut data = Vec::new();
    for ty in WeightType::ALL {
        types.tensor(ty.name(), &[256], ty).expect("whole blocks");
        data.push(vec![0; ty.row_bytes(256).expect("whole blocks")]);
    }
    let types = types.to_bytes(&data).expect("sizes as declared");
    let py = include_bytes!("data/gguf-py.gguf").to_vec();
    vec![
        ("llama", llama),
        ("moe", moe),
        ("gemma3", gemma),
        ("phi3", phi),
        ("types", types),
        ("python", py),
    ]
}

fn hf_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let config = |class: &str, more: serde_json::Value| {
        let mut config = json!({
            "architectures": [class], "vocab_size": 4, "num_hidden_layers": 1,
            "max_position_embeddings": 64, "hidden_size": 8, "intermediate_size": 8,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8,
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true,
        });
        for (key, value) in more.as_object().expect("an object") {
            config[key] = value.clone();
        }
        config.to_string().into_bytes()
    };
    let names: [(&str, &[usize]); 11] = [
        ("model.embed_tokens.weight", &[4, 8]),
        ("model.norm.weight", &[8]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[8, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
        ("model.layers.0.post_attention_layernorm.weight", &[8]),
        ("model.layers.0.mlp.gate_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.up_proj.weight", &[8, 8]),
        ("model.layers.0.mlp.down_proj.weight", &[8, 8]),
    ];
    let weights = tensors(&names).safetensors();
    let gemma_names: [(&str, &[usize]); 4] = [
        ("model.layers.0.self_attn.q_norm.weight", &[8]),
        ("model.layers.0.self_attn.k_norm.weight", &[8]),
        ("model.layers.0.pre_feedforward_layernorm.weight", &[8]),
        ("model.layers.0.post_feedforward_layernorm.weight", &[8]),
    ];
    let gemma_weights = tensors(&[&names[..], &gemma_names].concat()).safetensors();
    let pack = |files: Vec<(&str, Vec<u8>)>| {
        let files: BTreeMap<_, _> = files.into_iter().map(|(n, f)| (n.to_owned(), f)).collect();
        entry::pack_folder(&MemoryFolder(files))
    };
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}});
    let gemma = json!({"sliding_window": 16, "layer_types": ["sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}});
    let map: BTreeMap<&str, &str> = names.iter().map(|(n, _)| (*n, "part.safetensors")).collect();
    let index = json!({"metadata": {}, "weight_map": map}).to_string().into_bytes();
    vec![
        (
            "llama",
            pack(vec![
                ("config.json", config("LlamaForCausalLM", yarn)),
                ("model.safetensors", weights.clone()),
                ("tokenizer.json", b"{}".to_vec()),
                ("tokenizer_config.json", br#"{"bos_token":{"content":"<s>"},"chat_template":[{"name":"default","template":"x"}]}"#.to_vec()),
                ("generation_config.json", br#"{"eos_token_id":[1,2],"bos_token_id":1}"#.to_vec()),
                ("chat_template.jinja", b"{{ x }}".to_vec()),
            ]),
        ),
        (
            "gemma3",
            pack(vec![
                ("config.json", config("Gemma3ForCausalLM", gemma)),
                ("model.safetensors", gemma_weights),
            ]),
        ),
        (
            "sharded",
            pack(vec![
                ("config.json", config("MistralForCausalLM", json!({"sliding_window": 8}))),
                ("model.safetensors.index.json", index),
                ("part.safetensors", weights),
            ]),
        ),
    ]
}

/// The corpus is what is made here, and more.
fn check_seeds(target: &str, seeds: Vec<(&str, Vec<u8>)>) {
    for (name, want) in seeds {
        let path = corpus(target).join(name);
        if std::env::var_os("DUNLIN_UPDATE").is_some() {
            std::fs::write(&path, want).expect("the corpus can be written");
            continue;
        }
        let found = std::fs::read(&path).unwrap_or_default();
        // The order of a JSON object's keys depends on which features of serde_json the rest of
        // the build turns on, so the bytes are compared as a bag.
        let bag = |mut bytes: Vec<u8>| {
            bytes.sort_unstable();
            bytes
        };
        assert!(
            bag(found) == bag(want),
            "{} is not what its source makes; write it anew with\n    DUNLIN_UPDATE=1 cargo test \
             -p dunlin-checkpoint --test fuzz_corpus",
            path.display()
        );
    }
}

fn files(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = std::fs::read_dir(corpus(target)).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = folder.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|p| (p.clone(), std::fs::read(p).expect("a file"))).collect()
}

/// Numbers at which lengths and counts break.
const EVIL: [u64; 10] =
    [0, 1, 2, 31, 0xff, 0x7fff_ffff, 0xffff_ffff, 1 << 32, i64::MAX as u64, u64::MAX];

/// One change: a flipped bit, an evil number, a copy of another stretch, a cut or an insertion.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next() as u8,
        2 => {
            let evil = EVIL[rng.below(EVIL.len())].wrapping_sub(rng.below(3) as u64);
            let len = [1, 2, 4, 8][rng.below(4)].min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&evil.to_le_bytes()[..len]);
        }
        3 => {
            let (from, len) = (rng.below(bytes.len()), 1 + rng.below(16));
            let piece = bytes[from..(from + len).min(bytes.len())].to_vec();
            let end = (at + piece.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&piece[..end - at]);
        }
        4 => {
            let end = (at + 1 + rng.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        _ => {
            let digits = [b'0' + rng.below(10) as u8; 3];
            bytes.splice(at..at, digits);
        }
    }
}

fn run(target: &str, entry: fn(&[u8]) -> bool, seeds: Vec<(&str, Vec<u8>)>) {
    let accepted = seeds.iter().filter(|(_, bytes)| entry(bytes)).count();
    assert!(accepted + 2 >= seeds.len() && accepted > 2, "{accepted} seeds are models");
    check_seeds(target, seeds);
    let mut rng = Rng(seed());
    for (path, whole) in files(target) {
        // A panic's output shows the file and, by the seed, the mutation.
        println!("{}", path.display());
        entry(&whole);
        for _ in 0..MUTATIONS {
            let mut bytes = whole.clone();
            for _ in 0..1 + rng.below(4) {
                mutate(&mut rng, &mut bytes);
            }
            entry(&bytes);
        }
    }
}

#[test]
fn gguf_survives_its_corpus() {
    run("gguf", entry::gguf, gguf_seeds());
}

#[test]
fn hf_survives_its_corpus() {
    run("hf", entry::hf, hf_seeds());
}
