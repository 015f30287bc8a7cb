//! Architectures in GGUF files.

use dunlin_spec::Activation;

use super::{Architecture, Keys, Must, NameRule, Part, Presence, Tied, WindowRule, rope::RopeKeys};
use crate::Role;

/// Known and refused, with the reason.
pub(super) const REFUSED: [(&str, &str); 3] = [
    ("qwen2moe", "its shared experts are not implemented"),
    ("gemma3n", "its per-layer embeddings are not implemented"),
    ("deepseek2", "its latent attention is not implemented"),
];

const KEYS: Keys = Keys {
    model_name: "general.name",
    vocab_size: "{a}.vocab_size",
    n_layers: "{a}.block_count",
    context_length: "{a}.context_length",
    d_model: "{a}.embedding_length",
    d_ff: "{a}.feed_forward_length",
    n_heads: "{a}.attention.head_count",
    n_kv_heads: "{a}.attention.head_count_kv",
    head_dim: "{a}.attention.key_length",
    v_head_dim: "{a}.attention.value_length",
    norm_eps: "{a}.attention.layer_norm_rms_epsilon",
    activation: "",
    tied_head: "",
    logit_scale: "{a}.logit_scale",
    logit_softcap: "{a}.final_logit_softcapping",
    score_softcap: "{a}.attn_logit_softcapping",
    score_scale: "{a}.attention.scale",
    score_divisor_squared: "",
    n_experts: "{a}.expert_count",
    n_experts_used: "{a}.expert_used_count",
    d_ff_expert: "{a}.expert_feed_forward_length",
    renormalize: "{a}.expert_weights_norm",
    sparse_step: "",
    dense_layers: "",
    rope: RopeKeys {
        base: "{a}.rope.freq_base",
        dim: "{a}.rope.dimension_count",
        partial: "",
        scaling: "{a}.rope.scaling.type",
        factor: "{a}.rope.scaling.factor|{a}.rope.scale_linear",
        original_context: "{a}.rope.scaling.original_context_length",
        attn_factor: "{a}.rope.scaling.attn_factor|{a}.rope.scaling.yarn_attn_factor",
        attn_factor_replaces: false,
        ext_factor: "{a}.rope.scaling.yarn_ext_factor",
        beta_fast: "{a}.rope.scaling.yarn_beta_fast",
        beta_slow: "{a}.rope.scaling.yarn_beta_slow",
        low_freq_factor: "",
        high_freq_factor: "",
        long_factors: "",
        short_factors: "",
        factor_tensor: "rope_freqs.weight",
        long_tensor: "rope_factors_long.weight",
        short_tensor: "rope_factors_short.weight",
    },
    refused: &[
        ("{a}.expert_shared_count", Must::BeOff),
        ("{a}.expert_shared_feed_forward_length", Must::BeOff),
        ("{a}.expert_group_count", Must::BeOff),
        ("{a}.leading_dense_block_count", Must::BeOff),
        ("{a}.nextn_predict_layers", Must::BeOff),
        ("{a}.rope.scaling.yarn_log_multiplier", Must::BeOff),
        ("{a}.attention.temperature_scale", Must::BeOff),
        ("{a}.attention.max_alibi_bias", Must::BeOff),
        ("{a}.attention.clamp_kqv", Must::BeOff),
        ("{a}.attention.causal", Must::BeOn),
        ("{a}.embedding_scale", Must::BeOff),
        ("{a}.residual_scale", Must::BeOff),
        ("{a}.use_parallel_residual", Must::BeOff),
        ("adapter.type", Must::BeOff),
    ],
};

/// llama.cpp's names.
const NAMES: [NameRule; 30] = [
    NameRule::whole(Role::TokenEmbd, "token_embd.weight"),
    NameRule::whole(Role::OutputNorm, "output_norm.weight"),
    NameRule::whole(Role::Output, "output.weight"),
    NameRule::whole(Role::AttnNorm, "blk.{l}.attn_norm.weight"),
    NameRule::whole(Role::Q, "blk.{l}.attn_q.weight"),
    NameRule::whole(Role::K, "blk.{l}.attn_k.weight"),
    NameRule::whole(Role::V, "blk.{l}.attn_v.weight"),
    NameRule::part(Role::Q, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::part(Role::K, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::part(Role::V, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::whole(Role::O, "blk.{l}.attn_output.weight"),
    NameRule::whole(Role::QBias, "blk.{l}.attn_q.bias"),
    NameRule::whole(Role::KBias, "blk.{l}.attn_k.bias"),
    NameRule::whole(Role::VBias, "blk.{l}.attn_v.bias"),
    NameRule::whole(Role::OBias, "blk.{l}.attn_output.bias"),
    NameRule::whole(Role::QNorm, "blk.{l}.attn_q_norm.weight"),
    NameRule::whole(Role::KNorm, "blk.{l}.attn_k_norm.weight"),
    NameRule::whole(Role::PostAttnNorm, "blk.{l}.post_attention_norm.weight"),
    NameRule::whole(Role::FfnNorm, "blk.{l}.ffn_norm.weight"),
    NameRule::whole(Role::Gate, "blk.{l}.ffn_gate.weight"),
    NameRule::whole(Role::Up, "blk.{l}.ffn_up.weight"),
    NameRule::whole(Role::Down, "blk.{l}.ffn_down.weight"),
    NameRule::whole(Role::PostFfnNorm, "blk.{l}.post_ffw_norm.weight"),
    NameRule::whole(Role::Router, "blk.{l}.ffn_gate_inp.weight"),
    NameRule::part(Role::ExpertGate, "blk.{l}.ffn_gate_exps.weight", Part::ExpertStack),
    NameRule::part(Role::ExpertUp, "blk.{l}.ffn_up_exps.weight", Part::ExpertStack),
    NameRule::part(Role::ExpertDown, "blk.{l}.ffn_down_exps.weight", Part::ExpertStack),
    // Mixtral files from before experts were stacked.
    NameRule::whole(Role::ExpertGate, "blk.{l}.ffn_gate.{e}.weight"),
    NameRule::whole(Role::ExpertUp, "blk.{l}.ffn_up.{e}.weight"),
    NameRule::whole(Role::ExpertDown, "blk.{l}.ffn_down.{e}.weight"),
];

/// Phi-3 stacks gate and up.
const PHI3_NAMES: [NameRule; 15] = [
    NameRule::whole(Role::TokenEmbd, "token_embd.weight"),
    NameRule::whole(Role::OutputNorm, "output_norm.weight"),
    NameRule::whole(Role::Output, "output.weight"),
    NameRule::whole(Role::AttnNorm, "blk.{l}.attn_norm.weight"),
    NameRule::part(Role::Q, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::part(Role::K, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::part(Role::V, "blk.{l}.attn_qkv.weight", Part::Qkv),
    NameRule::whole(Role::Q, "blk.{l}.attn_q.weight"),
    NameRule::whole(Role::K, "blk.{l}.attn_k.weight"),
    NameRule::whole(Role::V, "blk.{l}.attn_v.weight"),
    NameRule::whole(Role::O, "blk.{l}.attn_output.weight"),
    NameRule::whole(Role::FfnNorm, "blk.{l}.ffn_norm.weight"),
    NameRule::part(Role::Gate, "blk.{l}.ffn_up.weight", Part::GateUp),
    NameRule::part(Role::Up, "blk.{l}.ffn_up.weight", Part::GateUp),
    NameRule::whole(Role::Down, "blk.{l}.ffn_down.weight"),
];

/// What most rows have in common.
const BASE: Architecture = Architecture {
    name: "",
    keys: &KEYS,
    tensors: &NAMES,
    // Read with the metadata.
    ignored: &[("rope_freqs.weight", ""), ("rope_factors_", ".weight")],
    interleaved_rope: false,
    norm_offset: 0.0,
    activation: Activation::Silu,
    scaled_embeddings: false,
    qk_norm: false,
    post_norms: false,
    qkv_bias: Presence::Never,
    out_bias: Presence::Never,
    window: WindowRule::NONE,
    local_rope_base: None,
    default_head_dim: None,
    score_by_width_at_layers: None,
    renormalize: true,
    tied_head: Tied::IfHeadAbsent,
};

/// A window in every layer, where the file gives one.
const WINDOW: WindowRule = WindowRule { key: "{a}.attention.sliding_window", ..WindowRule::NONE };

/// The rows.
pub(super) static TABLE: [Architecture; 6] = [
    // Also Mistral, and Mixtral through its expert count.
    Architecture {
        name: "llama",
        interleaved_rope: true,
        qkv_bias: Presence::IfInFile,
        out_bias: Presence::IfInFile,
        window: WINDOW,
        ..BASE
    },
    Architecture { name: "qwen2", qkv_bias: Presence::IfInFile, ..BASE },
    Architecture { name: "qwen3", qk_norm: true, ..BASE },
    Architecture { name: "qwen3moe", qk_norm: true, ..BASE },
    Architecture {
        name: "gemma3",
        activation: Activation::GeluTanh,
        scaled_embeddings: true,
        qk_norm: true,
        post_norms: true,
        window: WindowRule {
            required: true,
            pattern: "{a}.attention.sliding_window_pattern",
            every: Some(6),
            ..WINDOW
        },
        local_rope_base: Some(("{a}.rope.freq_base_swa", 10_000.0)),
        // The 27B.
        score_by_width_at_layers: Some(62),
        ..BASE
    },
    Architecture { name: "phi3", tensors: &PHI3_NAMES, window: WINDOW, ..BASE },
];
