//! Facts of real models, as an independent reader of GGUF printed them. Models are looked for in
//! `DUNLIN_TEST_MODELS` or the cache folder; what is missing is skipped, and says so.

use std::path::PathBuf;

use dunlin_checkpoint::{ModelFile, Role, TokenizerSource};
use dunlin_spec::{Activation, FfnSpec, RopeScaling, WeightType};

fn real_model(name: &str) -> Option<PathBuf> {
    dunlin_testkit::models::find(name, "facts of real models")
}

#[test]
fn smollm2_is_read() {
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = ModelFile::open(&path).unwrap();
    let spec = file.spec();
    assert_eq!(spec.architecture, "llama");
    assert_eq!(spec.name.as_deref(), Some("Smollm2 135M 8k Lc100K Mix1 Ep2"));
    assert_eq!((spec.vocab_size, spec.d_model, spec.context_length), (49152, 576, 8192));
    assert_eq!((spec.norm_eps, spec.embed_scale, spec.tied_head), (1e-5, None, true));
    assert_eq!(spec.layers.len(), 30);
    for layer in &spec.layers {
        let a = &layer.attn;
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim, a.v_head_dim), (9, 3, 64, 64));
        assert_eq!((a.score_scale, a.window, a.qk_norm, a.qkv_bias), (0.125, None, false, false));
        assert_eq!((a.rope.base, a.rope.dim, &a.rope.scaling), (1e5, 64, &RopeScaling::None));
        assert_eq!(layer.ffn, FfnSpec::Gated { d_ff: 1536, activation: Activation::Silu });
        assert!(!layer.post_attn_norm && !layer.post_ffn_norm);
    }
    let embd = file.matrix(Role::TokenEmbd, 0, 0).unwrap();
    assert_eq!((embd.ty, embd.rows, embd.cols), (WeightType::Q8_0, 49152, 576));
    assert!(file.matrix(Role::Output, 0, 0).is_none());
    let data = std::fs::read(&path).unwrap();
    // Data begins at 1785664 rounded up to 32; blk.0.attn_q.weight is at 32020992 in it.
    let start = 1_785_664usize.next_multiple_of(32);
    let q = file.matrix(Role::Q, 0, 0).unwrap();
    assert_eq!((q.ty, q.rows, q.cols, q.row_bytes()), (WeightType::Q4_1, 576, 576, 360));
    let old = |r: usize| &data[start + 32_020_992 + r * 360..][..360];
    for head in 0..9 {
        for i in 0..32 {
            assert_eq!(q.row(head * 64 + i), old(head * 64 + 2 * i));
            assert_eq!(q.row(head * 64 + 32 + i), old(head * 64 + 2 * i + 1));
        }
    }
    let v = file.matrix(Role::V, 29, 0).unwrap();
    assert!(v.is_contiguous());
    assert_eq!((v.rows, v.cols), (192, 576));
    let norm = file.vector(Role::OutputNorm, 0).unwrap();
    let bytes = &data[start + 96_574_464..][..576 * 4];
    let want: Vec<f32> =
        bytes.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(norm, want);
    let Some(TokenizerSource::Gguf(t)) = file.tokenizer() else { panic!("a GGUF tokenizer") };
    assert_eq!((t.model().unwrap(), t.pre().unwrap()), ("gpt2", Some("smollm")));
    assert_eq!(t.tokens().unwrap().len(), 49152);
    assert_eq!(t.tokens().unwrap().next(), Some(&b"<|endoftext|>"[..]));
    let merges: Vec<&[u8]> = t.merges().unwrap().unwrap().collect();
    assert_eq!(merges.len(), 48900);
    assert_eq!(merges[1], "Ġ a".as_bytes());
    assert_eq!((t.bos_id().unwrap(), t.eos_id().unwrap()), (Some(1), Some(2)));
    assert_eq!((t.add_bos().unwrap(), t.add_space_prefix().unwrap()), (Some(false), Some(false)));
    assert!(file.chat_template().unwrap().unwrap().contains("<|im_start|>"));
}

#[test]
fn gemma3_is_read() {
    let Some(path) = real_model("gemma-3-270m-q4_k_m.gguf") else { return };
    let file = ModelFile::open(&path).unwrap();
    let spec = file.spec();
    assert_eq!((spec.vocab_size, spec.d_model, spec.context_length), (262_144, 640, 32768));
    assert_eq!((spec.norm_eps, spec.tied_head), (1e-6, true));
    assert_eq!(spec.embed_scale, Some(640f64.sqrt() as f32));
    assert_eq!(spec.layers.len(), 18);
    for (l, layer) in spec.layers.iter().enumerate() {
        let a = &layer.attn;
        let global = l % 6 == 5;
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim, a.v_head_dim), (4, 1, 256, 256));
        assert_eq!((a.window, a.rope.base), if global { (None, 1e6) } else { (Some(512), 1e4) });
        assert_eq!((a.score_scale, a.qk_norm), (0.0625, true));
        assert_eq!(layer.ffn, FfnSpec::Gated { d_ff: 2048, activation: Activation::GeluTanh });
        assert!(layer.post_attn_norm && layer.post_ffn_norm);
    }
    let q = file.matrix(Role::Q, 3, 0).unwrap();
    assert_eq!((q.ty, q.rows, q.cols, q.is_contiguous()), (WeightType::Q5_0, 1024, 640, true));
    assert_eq!(file.matrix(Role::Down, 0, 0).unwrap().ty, WeightType::Q6_K);
    assert_eq!(file.vector(Role::KNorm, 17).unwrap().len(), 256);
    let Some(TokenizerSource::Gguf(t)) = file.tokenizer() else { panic!("a GGUF tokenizer") };
    assert_eq!(t.model().unwrap(), "llama");
    assert_eq!(t.tokens().unwrap().len(), 262_144);
    assert_eq!(t.scores().unwrap().unwrap().next(), Some(-1000.0));
    assert_eq!(t.token_types().unwrap().unwrap().len(), 262_144);
    assert_eq!((t.add_bos().unwrap(), t.unknown_id().unwrap()), (Some(true), Some(3)));
    assert!(file.chat_template().unwrap().is_none());
}

#[test]
fn qwen2_is_read() {
    for (size, layers, d, heads, ff) in [("0.5b", 24, 896, 14, 4864), ("1.5b", 28, 1536, 12, 8960)]
    {
        let name = format!("qwen2.5-coder-{size}-instruct-q4_k_m.gguf");
        let Some(path) = real_model(&name) else { continue };
        let file = ModelFile::open(&path).unwrap();
        let spec = file.spec();
        assert_eq!((spec.vocab_size, spec.d_model), (151_936, d));
        assert_eq!((spec.layers.len(), spec.tied_head), (layers, false));
        let a = &spec.layers[0].attn;
        assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim), (heads, 2, d / heads));
        assert_eq!((a.qkv_bias, a.out_bias, a.rope.base), (true, false, 1e6));
        let FfnSpec::Gated { d_ff, .. } = spec.layers[0].ffn else { panic!("dense") };
        assert_eq!(d_ff, ff);
        assert_eq!(file.vector(Role::QBias, 1).unwrap().len(), d);
        assert_eq!(file.vector(Role::VBias, 1).unwrap().len(), 2 * d / heads);
        assert_eq!(file.matrix(Role::Output, 0, 0).unwrap().rows, 151_936);
    }
}

#[test]
fn inspection_agrees_with_known_figures() {
    // Bytes that a decoded token reads, in units of 100 kB, as counted when the peers were
    // measured; parameters as their makers state them.
    for (name, decode, parameters) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", 966, 134_515_008),
        ("gemma-3-270m-q4_k_m.gguf", 2466, 268_098_176),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 3919, 630_167_424),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 9801, 1_777_088_000),
    ] {
        let Some(path) = real_model(name) else { continue };
        let file = ModelFile::open(&path).unwrap();
        let facts = file.inspect();
        assert_eq!((facts.decode_bytes + 50_000) / 100_000, decode, "{name}");
        assert_eq!(facts.parameters, parameters, "{name}");
        let total: u64 = facts.types.iter().map(|t| t.bytes).sum();
        assert_eq!(total, facts.tensor_bytes);
        assert!(facts.metadata.iter().all(|m| m.value.len() < 5000));
        serde_json::to_string(&facts).unwrap();
    }
    let Some(path) = real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let file = ModelFile::open(&path).unwrap();
    let kv = file.inspect().kv_bytes_per_token;
    // 30 layers, 3 heads, keys and values of 64: 11520 values, 360 groups of 32.
    assert_eq!((kv.f32, kv.f16, kv.int8), (46_080, 23_040, 11_520 + 720));
    let estimate = file.memory_estimate(1024, dunlin_spec::KvType::F16);
    assert_eq!(estimate.kv, 23_040 * 1024);
}
