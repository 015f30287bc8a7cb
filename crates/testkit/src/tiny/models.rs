//! The tiny models: one for each architecture, each RoPE scaling and each weight type.

use dunlin_spec::WeightType;
use serde_json::{Value, json};

use super::{MetaList, Reference, Rng, Tensor, Tiny, VOCAB};

/// The sizes and options that tensors follow from.
#[derive(Debug, Clone)]
struct Plan {
    name: String,
    class: &'static str,
    arch: &'static str,
    seed: u64,
    ty: WeightType,
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    d_ff: usize,
    context: usize,
    tied: bool,
    qkv_bias: bool,
    qk_norm: bool,
    /// Queries with keys and values, and gate with up, are one tensor each.
    fused: bool,
    /// Gemma's norms after attention and after the feed-forward network.
    post_norms: bool,
    /// Experts and how many of them a token uses.
    experts: Option<(usize, usize)>,
}

impl Plan {
    fn llama(name: &str) -> Self {
        Self {
            name: name.into(),
            class: "LlamaForCausalLM",
            arch: "llama",
            // The name decides the weights, so that no two models share any.
            seed: name.bytes().fold(7, |h: u64, b| h.wrapping_mul(31) + u64::from(b)),
            ty: WeightType::F32,
            layers: 3,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            d_ff: 96,
            context: 2048,
            tied: false,
            qkv_bias: false,
            qk_norm: false,
            fused: false,
            post_norms: false,
            experts: None,
        }
    }

    /// Another architecture's names on the same sizes.
    fn of(name: &str, class: &'static str, arch: &'static str) -> Self {
        Self { class, arch, ..Self::llama(name) }
    }

    fn build(self) -> Tiny {
        let gemma = self.arch == "gemma3";
        Tiny {
            config: self.config(),
            metadata: self.metadata(),
            tensors: self.tensors(),
            arch: self.arch,
            ty: self.ty,
            reference: Reference::Both,
            gguf_only: Vec::new(),
            norms_plus_one: gemma,
            interleaved: self.arch == "llama",
            name: self.name,
        }
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "architectures": [self.class],
            "vocab_size": VOCAB,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "intermediate_size": self.d_ff,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
        });
        if let Some((experts, used)) = self.experts {
            let count = if self.arch == "llama" { "num_local_experts" } else { "num_experts" };
            config[count] = json!(experts);
            config["num_experts_per_tok"] = json!(used);
            config["moe_intermediate_size"] = json!(self.d_ff);
            config["norm_topk_prob"] = json!(true);
        }
        config
    }

    fn metadata(&self) -> MetaList {
        let mut list = MetaList::default();
        list.add("general.architecture", self.arch);
        // Not the architecture: llama.cpp looks for tokens of some models by their names.
        list.add("general.name", "tiny");
        let mut add = |key: &str, n: usize| list.add(format!("{}.{key}", self.arch), n as u32);
        add("block_count", self.layers);
        add("context_length", self.context);
        add("embedding_length", self.width);
        add("feed_forward_length", self.d_ff);
        add("attention.head_count", self.heads);
        add("attention.head_count_kv", self.kv_heads);
        add("attention.key_length", self.head_dim);
        add("attention.value_length", self.head_dim);
        add("rope.dimension_count", self.head_dim);
        add("vocab_size", VOCAB);
        if let Some((experts, used)) = self.experts {
            add("expert_count", experts);
            add("expert_used_count", used);
            add("expert_feed_forward_length", self.d_ff);
        }
        list.add(format!("{}.attention.layer_norm_rms_epsilon", self.arch), 1e-5f32);
        list.add(format!("{}.rope.freq_base", self.arch), 10_000f32);
        list
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut make = Maker { rng: Rng(self.seed), gemma: self.arch == "gemma3", out: Vec::new() };
        let d = self.width;
        make.embedding(VOCAB, d);
        for l in 0..self.layers {
            make.norm(l, "input_layernorm", d);
            self.attention(&mut make, l);
            make.norm(l, "post_attention_layernorm", d);
            if self.post_norms {
                make.norm(l, "pre_feedforward_layernorm", d);
                make.norm(l, "post_feedforward_layernorm", d);
            }
            self.feed_forward(&mut make, l);
        }
        make.vector("model.norm.weight".into(), d, true);
        if !self.tied {
            make.matrix("lm_head.weight".into(), VOCAB, d);
        }
        make.out
    }

    fn attention(&self, make: &mut Maker, l: usize) {
        let (q, k) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        if self.fused {
            make.layer(l, "self_attn.qkv_proj", q + 2 * k, self.width);
        } else {
            for (name, rows) in [("q", q), ("k", k), ("v", k)] {
                make.layer(l, &format!("self_attn.{name}_proj"), rows, self.width);
                if self.qkv_bias {
                    let name = format!("model.layers.{l}.self_attn.{name}_proj.bias");
                    make.vector(name, rows, false);
                }
            }
        }
        if self.qk_norm {
            make.norm(l, "self_attn.q_norm", self.head_dim);
            make.norm(l, "self_attn.k_norm", self.head_dim);
        }
        make.layer(l, "self_attn.o_proj", self.width, q);
    }

    fn feed_forward(&self, make: &mut Maker, l: usize) {
        let (d, f) = (self.width, self.d_ff);
        if let Some((experts, _)) = self.experts {
            let mixtral = self.arch == "llama";
            let block = if mixtral { "block_sparse_moe" } else { "mlp" };
            let names =
                if mixtral { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
            make.layer(l, &format!("{block}.gate"), experts, d);
            for e in 0..experts {
                for (name, rows, columns) in [(names[0], f, d), (names[1], f, d), (names[2], d, f)]
                {
                    make.layer(l, &format!("{block}.experts.{e}.{name}"), rows, columns);
                }
            }
            return;
        }
        if self.fused {
            make.layer(l, "mlp.gate_up_proj", 2 * f, d);
        } else {
            make.layer(l, "mlp.gate_proj", f, d);
            make.layer(l, "mlp.up_proj", f, d);
        }
        make.layer(l, "mlp.down_proj", d, f);
    }
}

/// Draws tensors one after another.
struct Maker {
    rng: Rng,
    /// Norms are stored minus one.
    gemma: bool,
    out: Vec<Tensor>,
}

impl Maker {
    fn matrix(&mut self, name: String, rows: usize, columns: usize) {
        let scale = 1.0 / (columns as f32).sqrt();
        let data = (0..rows * columns).map(|_| self.rng.normal() * scale).collect();
        self.out.push(Tensor { name, shape: vec![rows, columns], data });
    }

    fn layer(&mut self, l: usize, name: &str, rows: usize, columns: usize) {
        self.matrix(format!("model.layers.{l}.{name}.weight"), rows, columns);
    }

    fn embedding(&mut self, rows: usize, columns: usize) {
        let data = (0..rows * columns).map(|_| self.rng.normal()).collect();
        let name = "model.embed_tokens.weight".into();
        self.out.push(Tensor { name, shape: vec![rows, columns], data });
    }

    fn norm(&mut self, l: usize, name: &str, n: usize) {
        self.vector(format!("model.layers.{l}.{name}.weight"), n, true);
    }

    /// A norm's weight, around one, or a bias, around zero.
    fn vector(&mut self, name: String, n: usize, norm: bool) {
        let centre = if norm && !self.gemma { 1.0 } else { 0.0 };
        let data = (0..n).map(|_| centre + 0.3 * self.rng.normal()).collect();
        self.out.push(Tensor { name, shape: vec![n], data });
    }
}

impl Tiny {
    /// Adds a key to both forms.
    fn set(
        mut self,
        hf: &str,
        value: Value,
        gguf: &str,
        meta: impl Into<dunlin_checkpoint::gguf::MetaValue>,
    ) -> Self {
        self.config[hf] = value;
        let key = format!("{}.{gguf}", self.arch);
        self.metadata.add(key, meta);
        self
    }

    /// The oracle does not know this model.
    fn extra(mut self) -> Self {
        self.reference = Reference::Extra;
        self
    }
}

/// A tiny Llama whose matrices are all of one type.
fn of_type(ty: WeightType) -> Tiny {
    let name = format!("llama-{}", ty.name().to_lowercase());
    // Blocks of 256 want rows that long.
    let plan = Plan { ty, layers: 2, width: 256, head_dim: 64, d_ff: 512, ..Plan::llama(&name) };
    plan.build()
}

/// Llama 3's factors as its converter stores them in a tensor.
fn llama3_factors(head_dim: usize, factor: f64, low: f64, high: f64, original: f64) -> Vec<f32> {
    let pairs = (0..head_dim / 2).map(|i| 10_000f64.powf(2.0 * i as f64 / head_dim as f64));
    pairs
        .map(|inverse| {
            let wavelength = 2.0 * std::f64::consts::PI * inverse;
            let turns = original / wavelength;
            let factor = if turns > high {
                1.0
            } else if turns < low {
                factor
            } else {
                let smooth = (turns - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            factor as f32
        })
        .collect()
}

fn rope_models() -> Vec<Tiny> {
    let mut linear = Plan::llama("llama-linear").build().extra();
    linear.config["rope_scaling"] = json!({"rope_type": "linear", "factor": 4.0});
    linear.metadata.add("llama.rope.scaling.type", "linear");
    linear.metadata.add("llama.rope.scaling.factor", 4f32);

    let mut yarn = Plan { head_dim: 32, ..Plan::llama("llama-yarn") }.build().extra();
    yarn.config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 8.0,
                                         "original_max_position_embeddings": 256});
    yarn.metadata.add("llama.rope.scaling.type", "yarn");
    yarn.metadata.add("llama.rope.scaling.factor", 8f32);
    yarn.metadata.add("llama.rope.scaling.original_context_length", 256u32);

    let mut llama3 = Plan { head_dim: 32, ..Plan::llama("llama-3-factors") }.build();
    llama3.config["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let data = llama3_factors(32, 8.0, 1.0, 4.0, 64.0);
    let shape = vec![data.len()];
    llama3.gguf_only.push(Tensor { name: "rope_freqs.weight".into(), shape, data });

    vec![linear, yarn, llama3, phi3_longrope()]
}

fn phi3_longrope() -> Tiny {
    let plan = Plan::of("phi3-longrope", "Phi3ForCausalLM", "phi3");
    let plan = Plan { fused: true, heads: 2, kv_heads: 1, head_dim: 32, ..plan };
    let mut phi = plan.build().extra();
    let short: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 16.0).collect();
    let long: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 4.0).collect();
    phi.config["original_max_position_embeddings"] = json!(512);
    phi.config["rope_scaling"] =
        json!({"type": "longrope", "short_factor": short, "long_factor": long});
    phi.metadata.add("phi3.rope.scaling.original_context_length", 512u32);
    // sqrt(1 + ln(2048 / 512) / ln(512)), as the converter writes it.
    phi.metadata.add("phi3.rope.scaling.attn_factor", (11.0f64 / 9.0).sqrt() as f32);
    for (name, data) in [("short", short), ("long", long)] {
        let name = format!("rope_factors_{name}.weight");
        phi.gguf_only.push(Tensor { name, shape: vec![data.len()], data });
    }
    phi
}

fn gemma3(name: &str, ty: WeightType) -> Tiny {
    let plan = Plan::of(name, "Gemma3ForCausalLM", "gemma3");
    let plan = Plan { layers: 7, kv_heads: 1, head_dim: 32, tied: true, qk_norm: true, ..plan };
    let gemma = Plan { post_norms: true, ty, ..plan }.build();
    let mut gemma = gemma.set("sliding_window", json!(8), "attention.sliding_window", 8u32);
    gemma.config["hidden_activation"] = json!("gelu_pytorch_tanh");
    gemma.config["query_pre_attn_scalar"] = json!(32);
    gemma.config["rope_local_base_freq"] = json!(1000.0);
    gemma.config["rope_scaling"] = json!({"rope_type": "linear", "factor": 8.0});
    gemma.metadata.add("gemma3.rope.freq_base_swa", 1000f32);
    gemma.metadata.add("gemma3.rope.scaling.type", "linear");
    gemma.metadata.add("gemma3.rope.scaling.factor", 8f32);
    gemma
}

fn mixtral(name: &str, ty: WeightType) -> Tiny {
    let plan = Plan { class: "MixtralForCausalLM", experts: Some((4, 2)), ..Plan::llama(name) };
    Plan { ty, layers: 2, ..plan }.build()
}

/// One model for every architecture and RoPE scaling, and some of them quantized.
pub fn all() -> Vec<Tiny> {
    let mistral = Plan { class: "MistralForCausalLM", ..Plan::llama("mistral") }.build();
    let qwen2 = Plan::of("qwen2", "Qwen2ForCausalLM", "qwen2");
    let qwen3 = Plan::of("qwen3", "Qwen3ForCausalLM", "qwen3");
    let moe = Plan::of("qwen3moe", "Qwen3MoeForCausalLM", "qwen3moe");
    let moe = Plan { qk_norm: true, d_ff: 32, experts: Some((8, 3)), ..moe };
    let phi = Plan::of("phi3", "Phi3ForCausalLM", "phi3");
    let bf16 = Plan { ty: WeightType::BF16, tied: true, qkv_bias: true, ..qwen2 };
    let f16 = Plan { ty: WeightType::F16, head_dim: 32, qk_norm: true, ..qwen3 };
    let mut models = vec![
        Plan::llama("llama").build(),
        mistral.set("sliding_window", json!(8), "attention.sliding_window", 8u32).extra(),
        mixtral("mixtral", WeightType::F32),
        mixtral("mixtral-q4_1", WeightType::Q4_1),
        bf16.build(),
        f16.build(),
        moe.clone().build(),
        Plan { name: "qwen3moe-q8_0".into(), ty: WeightType::Q8_0, ..moe }.build(),
        gemma3("gemma3", WeightType::F32),
        gemma3("gemma3-q5_0", WeightType::Q5_0),
        Plan { fused: true, ..phi }.build().extra(),
    ];
    models.extend(rope_models());
    models
}

/// One model for every weight type.
pub fn all_types() -> Vec<Tiny> {
    WeightType::ALL.into_iter().map(of_type).collect()
}

/// The model of that name.
///
/// # Panics
/// Where there is none.
pub fn named(name: &str) -> Tiny {
    let mut every = all().into_iter().chain(all_types());
    every.find(|m| m.name == name).unwrap_or_else(|| panic!("no tiny model is called {name}"))
}
