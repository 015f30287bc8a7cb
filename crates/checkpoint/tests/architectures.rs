//! Every architecture, as a Hugging Face folder and as the GGUF file that llama.cpp's converter
//! would make of it: both must give the same spec and the same rows.

mod common;

use common::{
    D, FF, HEAD, HEADS, KV_HEADS, LAYERS, Rng, Tensor, Tensors, VOCAB, entry, folder,
    gguf_metadata, hf_config, hf_llama,
};
use dunlin_checkpoint::{ModelFile, Role, TokenizerSource, gguf::GgufWriter};
use dunlin_spec::{Activation, FfnSpec, ModelSpec, RopeScaling};
use serde_json::{Value, json};

const Q: usize = HEADS * HEAD;
const K: usize = KV_HEADS * HEAD;

/// An architecture in both forms.
struct Case {
    class: &'static str,
    config: Value,
    tensors: Tensors,
    arch: &'static str,
    metadata: GgufWriter,
    /// The converter's changes to a tensor, after it is renamed.
    convert: fn(&mut Tensor),
}

impl Case {
    fn new(class: &'static str, arch: &'static str, config: Value) -> Self {
        Self {
            class,
            config,
            tensors: hf_llama(&mut Rng(21)),
            arch,
            metadata: gguf_metadata(arch),
            convert: |_| {},
        }
    }

    /// Adds a tensor to every layer.
    fn each_layer(mut self, name: &str, shape: &[usize]) -> Self {
        let mut rng = Rng(name.len() as u64);
        for l in 0..LAYERS {
            self.tensors.add(&mut rng, format!("model.layers.{l}.{name}"), shape);
        }
        self
    }

    fn without(mut self, end: &str) -> Self {
        self.tensors.0.retain(|t| !t.name.ends_with(end));
        self
    }

    fn hf(&self) -> ModelFile {
        let config = hf_config(self.class, self.config.clone());
        ModelFile::from_folder(&folder(&config, &self.tensors)).unwrap()
    }

    fn gguf(&self) -> ModelFile {
        let renamed = self.tensors.0.iter().map(|t| {
            let mut t = Tensor { name: gguf_name(&t.name), ..t.clone() };
            (self.convert)(&mut t);
            t
        });
        entry::read_gguf(&stack_experts(renamed.collect()).gguf(self.metadata.clone())).unwrap()
    }

    /// Checks that both forms agree, and gives the spec.
    fn check(&self) -> ModelSpec {
        let (hf, gguf) = (self.hf(), self.gguf());
        let spec = hf.spec().clone();
        assert_eq!(spec.architecture, self.class);
        assert_eq!(gguf.spec().architecture, self.arch);
        let names =
            |s: &ModelSpec| ModelSpec { architecture: String::new(), name: None, ..s.clone() };
        assert_eq!(names(&spec), names(gguf.spec()));
        let mut compared = 0;
        for role in Role::ALL {
            for l in 0..LAYERS {
                for e in 0..3 {
                    let (a, b) = (hf.matrix(role, l, e), gguf.matrix(role, l, e));
                    assert_eq!(a.is_some(), b.is_some(), "{role:?}");
                    if let (Some(a), Some(b)) = (a, b) {
                        assert_eq!((a.rows, a.cols), (b.rows, b.cols), "{role:?}");
                        (0..a.rows).for_each(|i| assert_eq!(a.row(i), b.row(i), "{role:?} {i}"));
                        compared += 1;
                    }
                }
                let (a, b) = (hf.vector(role, l), gguf.vector(role, l));
                assert_eq!(a, b, "{role:?}");
                compared += usize::from(a.is_some());
            }
        }
        assert!(compared > 20, "{compared}");
        let (a, b) = (hf.inspect(), gguf.inspect());
        assert_eq!((a.parameters, a.decode_bytes), (b.parameters, b.decode_bytes));
        assert_eq!(a.active_parameters, b.active_parameters);
        spec
    }
}

/// llama.cpp's name for a Hugging Face tensor.
fn gguf_name(name: &str) -> String {
    let name = name.replace("model.embed_tokens.", "token_embd.").replace("lm_head.", "output.");
    let Some(rest) = name.strip_prefix("model.layers.") else {
        return name.replace("model.norm.", "output_norm.");
    };
    let (layer, rest) = rest.split_once('.').unwrap();
    let mut rest = rest.to_owned();
    for (from, to) in [
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("block_sparse_moe.experts", "mlp.experts"),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    ] {
        rest = rest.replace(from, to);
    }
    format!("blk.{layer}.{rest}")
}

/// Joins `blk.L.mlp.experts.E.KIND_proj.weight` over E.
fn stack_experts(tensors: Vec<Tensor>) -> Tensors {
    let mut out: Vec<Tensor> = Vec::new();
    for t in tensors {
        let Some((head, tail)) = t.name.split_once(".mlp.experts.") else {
            out.push(t);
            continue;
        };
        let kind = tail.split_once('.').unwrap().1.replace("_proj.weight", "");
        let name = format!("{head}.ffn_{kind}_exps.weight");
        match out.iter_mut().find(|o| o.name == name) {
            Some(stack) => {
                stack.shape[0] += 1;
                stack.data.extend(&t.data);
            }
            None => out.push(Tensor { name, shape: [&[1], &t.shape[..]].concat(), data: t.data }),
        }
    }
    Tensors(out)
}

/// The converter's permutation of llama's query and key rows: in each head, row 2i + s of the file
/// is row i of half s.
fn permute(t: &mut Tensor) {
    if ![".attn_q.", ".attn_k."].iter().any(|n| t.name.contains(n)) {
        return;
    }
    let cols = if t.shape.len() == 2 { D } else { 1 };
    let old = t.data.clone();
    for (to, row) in t.data.chunks_mut(cols).enumerate() {
        let (head, in_head) = (to / HEAD, to % HEAD);
        let (i, s) = (in_head / 2, in_head % 2);
        row.copy_from_slice(&old[(head * HEAD + s * HEAD / 2 + i) * cols..][..cols]);
    }
}

#[test]
fn llama() {
    let mut case = Case::new("LlamaForCausalLM", "llama", json!({"attention_bias": true}))
        .each_layer("self_attn.q_proj.bias", &[Q])
        .each_layer("self_attn.k_proj.bias", &[K])
        .each_layer("self_attn.v_proj.bias", &[K])
        .each_layer("self_attn.o_proj.bias", &[D]);
    case.convert = permute;
    let spec = case.check();
    let a = &spec.layers[1].attn;
    assert_eq!((a.n_heads, a.n_kv_heads, a.head_dim, a.rope.dim), (4, 2, 16, 16));
    assert_eq!((a.score_scale, a.qkv_bias, a.out_bias, a.window), (0.25, true, true, None));
    assert_eq!((spec.norm_eps, spec.vocab_size, spec.tied_head), (1e-5, VOCAB, true));
    assert_eq!(spec.layers[0].ffn, FfnSpec::Gated { d_ff: FF, activation: Activation::Silu });
    // The head of its own, where it is not tied.
    let mut untied = Case::new("LlamaForCausalLM", "llama", json!({"tie_word_embeddings": false}));
    untied.tensors.add(&mut Rng(2), "lm_head.weight", &[VOCAB, D]);
    untied.convert = permute;
    assert!(!untied.check().tied_head);
    let config = hf_config("LlamaForCausalLM", json!({"tie_word_embeddings": false}));
    let error = ModelFile::from_folder(&folder(&config, &hf_llama(&mut Rng(1)))).unwrap_err();
    assert!(error.to_string().contains("lm_head.weight is missing"), "{error}");
    // Without the key, it is tied where there is no head.
    assert!(
        Case::new("LlamaForCausalLM", "llama", json!({"tie_word_embeddings": null}))
            .hf()
            .spec()
            .tied_head
    );
}

#[test]
fn folders_on_disk_by_any_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let config = hf_config("LlamaForCausalLM", json!({}));
    for (name, bytes) in folder(&config, &hf_llama(&mut Rng(1))).0 {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    for name in ["", "config.json", "model.safetensors"] {
        let file = ModelFile::open(&dir.path().join(name)).unwrap();
        assert_eq!(file.spec().d_model, D);
        assert_eq!(file.files(), [dir.path().join("model.safetensors")]);
        let Some(TokenizerSource::HfJson(t)) = file.tokenizer() else { panic!("tokenizer.json") };
        assert_eq!(t.path, dir.path().join("tokenizer.json"));
        assert_eq!(file.inspect().format, "safetensors");
    }
    // Shared between threads.
    fn shared<T: Send + Sync>() {}
    shared::<ModelFile>();
}

#[test]
fn mistral_with_a_window_and_mixtral() {
    let mut mistral = Case::new("MistralForCausalLM", "llama", json!({"sliding_window": 64}));
    mistral.convert = permute;
    mistral.metadata.meta("llama.attention.sliding_window", 64u32);
    assert!(mistral.check().layers.iter().all(|l| l.attn.window == Some(64)));
    for beyond in [json!(256), json!(null), json!(4096)] {
        let case = Case::new("MistralForCausalLM", "llama", json!({"sliding_window": beyond}));
        assert!(case.hf().spec().layers.iter().all(|l| l.attn.window.is_none()));
    }

    let config = json!({"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": null});
    let mut mixtral = Case::new("MixtralForCausalLM", "llama", config)
        .without("gate_proj.weight")
        .without("up_proj.weight")
        .without("down_proj.weight")
        .each_layer("block_sparse_moe.gate.weight", &[3, D]);
    for e in 0..3 {
        for (name, shape) in [("w1", [FF, D]), ("w2", [D, FF]), ("w3", [FF, D])] {
            let name = format!("block_sparse_moe.experts.{e}.{name}.weight");
            mixtral = mixtral.each_layer(&name, &shape);
        }
    }
    mixtral.convert = permute;
    mixtral.metadata.meta("llama.expert_count", 3u32).meta("llama.expert_used_count", 2u32);
    let spec = mixtral.check();
    let FfnSpec::Moe(moe) = &spec.layers[1].ffn else { panic!("experts") };
    assert_eq!((moe.n_experts, moe.n_used, moe.d_ff, moe.renormalize), (3, 2, FF, true));
    let facts = mixtral.gguf().inspect();
    let expert = 3 * FF * D * LAYERS;
    assert_eq!(facts.parameters - facts.active_parameters, expert as u64);

    // Files from before experts were stacked have one tensor for each.
    let renamed = mixtral.tensors.0.iter().map(|t| {
        let mut t = Tensor { name: gguf_name(&t.name), ..t.clone() };
        permute(&mut t);
        if let Some((head, tail)) = t.name.split_once(".mlp.experts.") {
            let (e, kind) = tail.split_once('.').unwrap();
            t.name = format!("{head}.ffn_{}.{e}.weight", kind.replace("_proj.weight", ""));
        }
        t
    });
    let bytes = Tensors(renamed.collect()).gguf(mixtral.metadata.clone());
    let (old, new) = (entry::read_gguf(&bytes).unwrap(), mixtral.gguf());
    for role in [Role::ExpertGate, Role::ExpertUp, Role::ExpertDown] {
        for e in 0..3 {
            let (a, b) = (old.matrix(role, 1, e).unwrap(), new.matrix(role, 1, e).unwrap());
            assert_eq!(a.contiguous().unwrap(), b.contiguous().unwrap());
        }
        assert!(old.matrix(role, 1, 3).is_none() && new.matrix(role, 1, 3).is_none());
    }
}

#[test]
fn qwen2_and_its_switch_for_windows() {
    let case = |config: Value| {
        Case::new("Qwen2ForCausalLM", "qwen2", config)
            .each_layer("self_attn.q_proj.bias", &[Q])
            .each_layer("self_attn.k_proj.bias", &[K])
            .each_layer("self_attn.v_proj.bias", &[K])
    };
    let off = json!({"use_sliding_window": false, "sliding_window": 64, "max_window_layers": 1});
    let spec = case(off).check();
    assert!(spec.layers.iter().all(|l| l.attn.window.is_none()));
    assert_eq!((spec.layers[0].attn.qkv_bias, spec.layers[0].attn.out_bias), (true, false));
    let windows = |config: Value| -> Vec<Option<usize>> {
        case(config).hf().spec().layers.iter().map(|l| l.attn.window).collect()
    };
    let on = json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 1});
    assert_eq!(windows(on), [None, Some(64)]);
    let types = json!({"use_sliding_window": true, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(windows(types), [Some(64), None]);
}

#[test]
fn qwen3() {
    let case = Case::new("Qwen3ForCausalLM", "qwen3", json!({}))
        .each_layer("self_attn.q_norm.weight", &[HEAD])
        .each_layer("self_attn.k_norm.weight", &[HEAD]);
    let spec = case.check();
    assert!(spec.layers.iter().all(|l| l.attn.qk_norm && !l.attn.qkv_bias));
}

#[test]
fn qwen3_moe() {
    let config = json!({"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []});
    let mut case = Case::new("Qwen3MoeForCausalLM", "qwen3moe", config)
        .each_layer("self_attn.q_norm.weight", &[HEAD])
        .each_layer("self_attn.k_norm.weight", &[HEAD])
        .without("gate_proj.weight")
        .without("up_proj.weight")
        .without("down_proj.weight")
        .each_layer("mlp.gate.weight", &[3, D]);
    for e in 0..3 {
        for (name, shape) in [("gate", [8, D]), ("up", [8, D]), ("down", [D, 8])] {
            case = case.each_layer(&format!("mlp.experts.{e}.{name}_proj.weight"), &shape);
        }
    }
    case.metadata
        .meta("qwen3moe.expert_count", 3u32)
        .meta("qwen3moe.expert_used_count", 1u32)
        .meta("qwen3moe.expert_feed_forward_length", 8u32);
    let spec = case.check();
    let FfnSpec::Moe(moe) = &spec.layers[0].ffn else { panic!("experts") };
    assert_eq!((moe.n_experts, moe.n_used, moe.d_ff, moe.renormalize), (3, 1, 8, true));
    // Without the key, the class does not renormalize.
    let config = json!({"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 8});
    let file = Case { config, tensors: case.tensors.clone(), ..case }.hf();
    let FfnSpec::Moe(moe) = &file.spec().layers[0].ffn else { panic!("experts") };
    assert!(!moe.renormalize);
    // A layer that is named as dense has a plain network.
    let config = json!({"num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
        "mlp_only_layers": [0]});
    let mut tensors = case.tensors.clone();
    tensors.0.retain(|t| !t.name.starts_with("model.layers.0.mlp."));
    for (name, shape) in [("gate", [FF, D]), ("up", [FF, D]), ("down", [D, FF])] {
        tensors.add(&mut Rng(3), format!("model.layers.0.mlp.{name}_proj.weight"), &shape);
    }
    let config = hf_config("Qwen3MoeForCausalLM", config);
    let file = ModelFile::from_folder(&folder(&config, &tensors)).unwrap();
    assert_eq!(
        file.spec().layers[0].ffn,
        FfnSpec::Gated { d_ff: FF, activation: Activation::Silu }
    );
    assert!(matches!(file.spec().layers[1].ffn, FfnSpec::Moe(_)));
}

fn gemma3(config: Value) -> Case {
    let mut case = Case::new("Gemma3ForCausalLM", "gemma3", config)
        .without("post_attention_layernorm.weight")
        .each_layer("post_attention_layernorm.weight", &[D])
        .each_layer("pre_feedforward_layernorm.weight", &[D])
        .each_layer("post_feedforward_layernorm.weight", &[D])
        .each_layer("self_attn.q_norm.weight", &[HEAD])
        .each_layer("self_attn.k_norm.weight", &[HEAD]);
    case.convert = |t| {
        // Here the name means what it says; and norms lose their offset.
        if let Some(layer) = t.name.strip_suffix(".ffn_norm.weight")
            && t.data[0].to_bits() == first_post_attention(layer).to_bits()
        {
            t.name = format!("{layer}.post_attention_norm.weight");
        }
        if t.name.contains("norm") {
            t.data.iter_mut().for_each(|v| *v += 1.0);
        }
    };
    case.metadata
        .meta("gemma3.rope.freq_base", 1e6f32)
        .meta("gemma3.attention.sliding_window", 64u32);
    case
}

/// The first value of a layer's norm after attention, by which the renaming tells it from the norm
/// before the feed-forward network.
fn first_post_attention(layer: &str) -> f32 {
    let name = "post_attention_layernorm.weight";
    let mut rng = Rng(name.len() as u64);
    let layer: usize = layer.strip_prefix("blk.").unwrap().parse().unwrap();
    (0..=layer).map(|_| rng.floats(D)[0]).last().unwrap()
}

#[test]
fn gemma3_in_both_generations_of_its_configuration() {
    let old = json!({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": null,
        "sliding_window": 64, "sliding_window_pattern": 2, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let mut case = gemma3(old);
    case.metadata
        .meta("gemma3.attention.sliding_window_pattern", 2u32)
        .meta("gemma3.rope.scaling.type", "linear")
        .meta("gemma3.rope.scaling.factor", 8.0f32);
    let spec = case.check();
    let [local, global] = &spec.layers[..] else { panic!("two layers") };
    assert_eq!((local.attn.window, local.attn.rope.base), (Some(64), 1e4));
    assert_eq!(local.attn.rope.scaling, RopeScaling::None);
    assert_eq!((global.attn.window, global.attn.rope.base), (None, 1e6));
    assert_eq!(global.attn.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(spec.embed_scale, Some((D as f64).sqrt() as f32));
    assert_eq!(local.ffn, FfnSpec::Gated { d_ff: FF, activation: Activation::GeluTanh });
    assert!(local.post_attn_norm && local.post_ffn_norm && local.attn.qk_norm);
    let norm = case.hf().vector(Role::OutputNorm, 0).unwrap();
    let stored = &case.tensors.get("model.norm.weight").data;
    assert!(norm.iter().zip(stored).all(|(a, b)| *a == b + 1.0));

    // Newer files: RoPE for each kind of layer, layers listed; GGUF with a list of bools.
    let new = json!({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": null,
        "sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 64, "rope_theta": null,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3}}});
    let mut case = gemma3(new);
    case.metadata
        .meta("gemma3.attention.sliding_window_pattern", vec![false, true])
        .meta("gemma3.rope.freq_base_swa", 5e3f32)
        .meta("gemma3.attention.scale", 0.125f32);
    let spec = case.check();
    assert_eq!(spec.layers[0].attn.window, None);
    assert_eq!((spec.layers[1].attn.window, spec.layers[1].attn.rope.base), (Some(64), 5e3));
    assert_eq!(spec.layers[1].attn.score_scale, 0.125);
}

fn phi3(config: Value) -> Case {
    Case::new("Phi3ForCausalLM", "phi3", config)
        .without("q_proj.weight")
        .without("k_proj.weight")
        .without("v_proj.weight")
        .without("gate_proj.weight")
        .without("up_proj.weight")
        .each_layer("self_attn.qkv_proj.weight", &[Q + 2 * K, D])
        .each_layer("mlp.gate_up_proj.weight", &[2 * FF, D])
}

#[test]
fn phi3_is_cut_into_its_parts() {
    let mut case = phi3(json!({"sliding_window": 100, "partial_rotary_factor": 0.75}));
    case.metadata
        .meta("phi3.attention.sliding_window", 100u32)
        .meta("phi3.rope.dimension_count", 12u32);
    let spec = case.check();
    assert_eq!((spec.layers[0].attn.window, spec.layers[0].attn.rope.dim), (Some(100), 12));
    let file = case.hf();
    let qkv = common::bytes(&case.tensors.get("model.layers.1.self_attn.qkv_proj.weight").data);
    let part = |role: Role| file.matrix(role, 1, 0).unwrap().contiguous().unwrap().to_vec();
    let (q, k, v) = (part(Role::Q), part(Role::K), part(Role::V));
    assert_eq!([q.len(), k.len(), v.len()], [Q * D * 4, K * D * 4, K * D * 4]);
    assert_eq!([q, k, v].concat(), qkv);
    let stacked = common::bytes(&case.tensors.get("model.layers.1.mlp.gate_up_proj.weight").data);
    assert_eq!([part(Role::Gate), part(Role::Up)].concat(), stacked);
}

#[test]
fn longrope_has_two_sets_of_factors() {
    let short: Vec<f32> = (0..8).map(|i| 1.0 + i as f32 / 8.0).collect();
    let long: Vec<f32> = (0..8).map(|i| 2.0 + i as f32).collect();
    let mut case = phi3(json!({
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}}));
    // 256 of 64 tokens: sqrt(1 + ln 4 / ln 64).
    let attn_factor = (1.0 + 4f64.ln() / 64f64.ln()).sqrt() as f32;
    case.metadata
        .meta("phi3.rope.scaling.original_context_length", 64u32)
        .meta("phi3.rope.scaling.attn_factor", attn_factor);
    let mut gguf = case.gguf_tensors();
    for (name, factors) in [("short", &short), ("long", &long)] {
        let name = format!("rope_factors_{name}.weight");
        gguf.0.push(Tensor { name, shape: vec![8], data: factors.clone() });
    }
    let gguf = entry::read_gguf(&gguf.gguf(case.metadata.clone())).unwrap();
    for file in [case.hf(), gguf] {
        let scaling = |spec: &ModelSpec| spec.layers[1].attn.rope.scaling.clone();
        let want = |f: &[f32]| RopeScaling::Factors { factors: f.to_vec(), attn_factor };
        assert_eq!(scaling(file.spec()), want(&long));
        assert_eq!(scaling(&file.spec_for_context(64)), want(&short));
        assert_eq!(scaling(&file.spec_for_context(65)), want(&long));
    }
}

impl Case {
    fn gguf_tensors(&self) -> Tensors {
        Tensors(
            self.tensors
                .0
                .iter()
                .map(|t| Tensor { name: gguf_name(&t.name), ..t.clone() })
                .collect(),
        )
    }
}

#[test]
fn rope_scalings() {
    let scaling = |hf: Value, gguf: &[(&str, f32)], kind: &str| {
        let mut case = Case::new("Qwen3ForCausalLM", "qwen3", json!({"rope_scaling": hf}))
            .each_layer("self_attn.q_norm.weight", &[HEAD])
            .each_layer("self_attn.k_norm.weight", &[HEAD]);
        if !kind.is_empty() {
            case.metadata.meta("qwen3.rope.scaling.type", kind);
        }
        for (key, value) in gguf {
            let key = format!("qwen3.rope.scaling.{key}");
            // Contexts are whole numbers, all else is a float.
            if key.ends_with("context_length") {
                case.metadata.meta(key, *value as u32);
            } else {
                case.metadata.meta(key, *value);
            }
        }
        case.check().layers[0].attn.rope.scaling.clone()
    };
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(
        scaling(json!({"type": "linear", "factor": 4}), &[("factor", 4.0)], "linear"),
        linear
    );
    assert_eq!(
        scaling(json!({"rope_type": "linear", "factor": 4.0}), &[("factor", 4.0)], ""),
        linear
    );
    assert_eq!(scaling(json!({"rope_type": "default"}), &[], "none"), RopeScaling::None);
    assert_eq!(
        scaling(
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
            &[("factor", 4.0), ("original_context_length", 64.0)],
            "yarn",
        ),
        RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: None,
        }
    );
    // Hugging Face's attention factor replaces the default, GGUF's multiplies it.
    let product = 0.5 * (0.1 * 4f64.ln() + 1.0);
    assert_eq!(
        scaling(
            json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0,
                "attention_factor": product}),
            &[
                ("factor", 4.0),
                ("yarn_beta_fast", 16.0),
                ("yarn_beta_slow", 2.0),
                ("attn_factor", 0.5),
                ("yarn_ext_factor", 1.0)
            ],
            "yarn",
        ),
        RopeScaling::Yarn {
            factor: 4.0,
            original_context: 256,
            beta_fast: 16.0,
            beta_slow: 2.0,
            attn_factor: Some(product),
        }
    );
}

/// Newer folders keep everything about RoPE in one object.
#[test]
fn rope_parameters_in_one_object() {
    let rope = |parameters: Value| {
        let config = json!({"rope_theta": null, "rope_parameters": parameters});
        let case = Case::new("LlamaForCausalLM", "llama", config);
        case.hf().spec().layers[0].attn.rope.clone()
    };
    let plain = rope(json!({"rope_theta": 5e5, "rope_type": "default"}));
    assert_eq!((plain.base, plain.dim, plain.scaling), (5e5, HEAD, RopeScaling::None));
    let partial =
        rope(json!({"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}));
    assert_eq!(partial.dim, HEAD / 2);
    let yarn = rope(json!({"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64, "beta_fast": null}));
    let want = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attn_factor: None,
    };
    assert_eq!((yarn.base, yarn.scaling), (1e6, want));
}

#[test]
fn llama3_scaling_and_factor_tensors() {
    let config = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}});
    let file = Case::new("LlamaForCausalLM", "llama", config).hf();
    assert_eq!(
        file.spec().layers[0].attn.rope.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64,
        }
    );
    // GGUF stores what comes of it as a tensor, in the order of pairs.
    let mut case = Case::new("LlamaForCausalLM", "llama", json!({}));
    let factors: Vec<f32> = (1..9).map(|i| i as f32).collect();
    let tensor = Tensor { name: "rope_freqs.weight".into(), shape: vec![8], data: factors.clone() };
    let mut tensors = case.gguf_tensors();
    tensors.0.push(tensor);
    let read = |case: &Case| entry::read_gguf(&tensors.gguf(case.metadata.clone()));
    let scaling = |file: ModelFile| file.spec().layers[1].attn.rope.scaling.clone();
    let want = |f: Vec<f32>| RopeScaling::Factors { factors: f, attn_factor: 1.0 };
    assert_eq!(scaling(read(&case).unwrap()), want(factors.clone()));
    case.metadata.meta("llama.rope.scaling.factor", 2.0f32);
    assert_eq!(scaling(read(&case).unwrap()), want(factors.iter().map(|f| f * 2.0).collect()));
    case.metadata.meta("llama.rope.dimension_count", 12u32);
    let error = read(&case).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight") && error.contains("6 needed"), "{error}");
}

#[test]
fn what_is_not_supported_is_named() {
    let gguf = |arch: &str| {
        let case = Case::new("LlamaForCausalLM", "llama", json!({}));
        let metadata = gguf_metadata(arch);
        entry::read_gguf(&case.gguf_tensors().gguf(metadata)).unwrap_err().to_string()
    };
    let error = gguf("mamba");
    assert!(error.contains("\"mamba\"") && error.contains("llama, qwen2, qwen3"), "{error}");
    let error = gguf("qwen2moe");
    assert!(error.contains("shared experts"), "{error}");
    for (key, value, says) in [
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}), "\"dynamic\""),
        ("rope_scaling", json!({"rope_type": "linear"}), "factor"),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}), "mscale"),
        ("rope_scaling", json!({"rope_type": "linear", "factor": -2.0}), "above zero"),
        ("rope_scaling", json!({"rope_type": 3}), "string"),
        ("hidden_act", json!("relu"), "silu, gelu_pytorch_tanh"),
        ("quantization_config", json!({"quant_method": "awq"}), "quantization_config"),
        ("mlp_bias", json!(true), "mlp_bias"),
        ("num_hidden_layers", json!("2"), "num_hidden_layers"),
        ("num_hidden_layers", json!(2.5), "num_hidden_layers"),
        ("num_hidden_layers", json!(100000), "at most 1024"),
        ("hidden_size", json!(-32), "hidden_size"),
        ("rms_norm_eps", json!(0), "rms_norm_eps"),
        ("rms_norm_eps", json!(null), "rms_norm_eps is missing"),
        ("rope_theta", json!(f64::INFINITY), "JSON"),
        ("head_dim", json!(12), "multiple of 8"),
        ("vocab_size", json!(17), "model.embed_tokens.weight"),
    ] {
        let text = hf_config("LlamaForCausalLM", json!({key: value})).to_string();
        // JSON has no such number; serde_json writes null for it.
        let text = if says == "JSON" {
            text.replace("\"rope_theta\":null", "\"rope_theta\":1e999")
        } else {
            text
        };
        let mut files = folder(&json!({}), &hf_llama(&mut Rng(1)));
        files.0.insert("config.json".into(), text.into_bytes());
        let error = ModelFile::from_folder(&files).unwrap_err().to_string();
        assert!(error.contains(says), "{key}: {error}");
    }
}

#[test]
fn tokenizer_files_and_templates() {
    let config = hf_config("LlamaForCausalLM", json!({"eos_token_id": 1, "bos_token_id": 0}));
    let mut files = folder(&config, &hf_llama(&mut Rng(1)));
    let file = ModelFile::from_folder(&files).unwrap();
    assert!(file.tokenizer().is_none());
    assert!(file.chat_template().unwrap().is_none());
    let mut add = |name: &str, text: &str| {
        files.0.insert(name.into(), text.as_bytes().to_vec());
        ModelFile::from_folder(&files).unwrap()
    };
    add("tokenizer.json", "{}");
    add("generation_config.json", r#"{"eos_token_id": [2, 3]}"#);
    let file = add(
        "tokenizer_config.json",
        r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "x": [1, {}],
            "add_bos_token": true, "add_eos_token": null,
            "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
    );
    let Some(TokenizerSource::HfJson(t)) = file.tokenizer() else { panic!("tokenizer.json") };
    assert_eq!((t.json, t.bos_token, t.eos_token), (&b"{}"[..], Some("<s>"), Some("</s>")));
    assert_eq!(
        (t.bos_id, t.eos_ids, t.add_bos, t.add_eos),
        (Some(0), &[2, 3][..], Some(true), None)
    );
    assert_eq!(file.chat_template().unwrap(), Some("D"));
    assert_eq!(file.chat_templates().unwrap(), [("tool_use", "T"), ("default", "D")]);
    let file = add("chat_template.jinja", "J");
    assert_eq!(file.chat_templates().unwrap(), [("default", "J"), ("tool_use", "T")]);

    let mut w = gguf_metadata("llama");
    w.meta("tokenizer.chat_template", "D").meta("tokenizer.chat_template.rag", "R");
    let file = entry::read_gguf(&common::gguf_llama(&mut Rng(1)).gguf(w)).unwrap();
    assert_eq!(file.chat_templates().unwrap(), [("default", "D"), ("rag", "R")]);
}
