//! Architectures in Hugging Face folders, by the class that `config.json` names.

use dunlin_spec::Activation;

use super::{Architecture, Keys, Must, NameRule, Part, Presence, Tied, WindowRule, rope::RopeKeys};
use crate::Role;

/// Known and refused, with the reason.
pub(super) const REFUSED: [(&str, &str); 3] = [
    ("Qwen2MoeForCausalLM", "its shared experts are not implemented"),
    ("Gemma3ForConditionalGeneration", "only the text model, Gemma3ForCausalLM, is implemented"),
    ("Phi3SmallForCausalLM", "its block-sparse attention is not implemented"),
];

const KEYS: Keys = Keys {
    model_name: "_name_or_path",
    vocab_size: "vocab_size",
    n_layers: "num_hidden_layers",
    context_length: "max_position_embeddings",
    d_model: "hidden_size",
    d_ff: "intermediate_size",
    n_heads: "num_attention_heads",
    n_kv_heads: "num_key_value_heads",
    head_dim: "head_dim",
    v_head_dim: "",
    norm_eps: "rms_norm_eps",
    activation: "hidden_activation|hidden_act",
    tied_head: "tie_word_embeddings",
    logit_scale: "",
    logit_softcap: "final_logit_softcapping",
    score_softcap: "attn_logit_softcapping",
    score_scale: "",
    score_divisor_squared: "query_pre_attn_scalar",
    n_experts: "num_experts|num_local_experts",
    n_experts_used: "num_experts_per_tok",
    d_ff_expert: "moe_intermediate_size",
    renormalize: "norm_topk_prob",
    sparse_step: "decoder_sparse_step",
    dense_layers: "mlp_only_layers",
    rope: RopeKeys {
        base: "rope_parameters.rope_theta|rope_theta",
        dim: "",
        partial: "rope_parameters.partial_rotary_factor|partial_rotary_factor",
        scaling: "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type",
        factor: "rope_parameters.factor|rope_scaling.factor",
        original_context: "rope_parameters.original_max_position_embeddings|\
                           rope_scaling.original_max_position_embeddings|\
                           original_max_position_embeddings",
        attn_factor: "rope_parameters.attention_factor|rope_scaling.attention_factor",
        attn_factor_replaces: true,
        ext_factor: "",
        beta_fast: "rope_parameters.beta_fast|rope_scaling.beta_fast",
        beta_slow: "rope_parameters.beta_slow|rope_scaling.beta_slow",
        low_freq_factor: "rope_parameters.low_freq_factor|rope_scaling.low_freq_factor",
        high_freq_factor: "rope_parameters.high_freq_factor|rope_scaling.high_freq_factor",
        long_factors: "rope_parameters.long_factor|rope_scaling.long_factor",
        short_factors: "rope_parameters.short_factor|rope_scaling.short_factor",
        factor_tensor: "",
        long_tensor: "",
        short_tensor: "",
    },
    refused: &[
        ("quantization_config", Must::BeOff),
        ("compression_config", Must::BeOff),
        ("mlp_bias", Must::BeOff),
        ("use_bidirectional_attention", Must::BeOff),
        ("rope_scaling.mscale", Must::BeOff),
        ("rope_scaling.mscale_all_dim", Must::BeOff),
        ("rope_parameters.mscale", Must::BeOff),
        ("rope_parameters.mscale_all_dim", Must::BeOff),
        ("rope_scaling.short_mscale", Must::BeOff),
        ("rope_scaling.long_mscale", Must::BeOff),
        ("rope_scaling.truncate", Must::BeOn),
        ("rope_parameters.truncate", Must::BeOn),
        ("num_nextn_predict_layers", Must::BeOff),
        ("is_encoder_decoder", Must::BeOff),
    ],
};

/// Gemma 3 keeps one set of RoPE parameters for each kind of layer in newer files.
const GEMMA3_KEYS: Keys = Keys {
    rope: RopeKeys {
        base: "rope_parameters.full_attention.rope_theta|rope_theta",
        scaling: "rope_parameters.full_attention.rope_type|rope_scaling.rope_type|\
                  rope_scaling.type",
        factor: "rope_parameters.full_attention.factor|rope_scaling.factor",
        ..KEYS.rope
    },
    ..KEYS
};

const NAMES: [NameRule; 22] = [
    NameRule::whole(Role::TokenEmbd, "model.embed_tokens.weight"),
    NameRule::whole(Role::OutputNorm, "model.norm.weight"),
    NameRule::whole(Role::Output, "lm_head.weight"),
    NameRule::whole(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    NameRule::whole(Role::Q, "model.layers.{l}.self_attn.q_proj.weight"),
    NameRule::whole(Role::K, "model.layers.{l}.self_attn.k_proj.weight"),
    NameRule::whole(Role::V, "model.layers.{l}.self_attn.v_proj.weight"),
    NameRule::whole(Role::O, "model.layers.{l}.self_attn.o_proj.weight"),
    NameRule::whole(Role::QBias, "model.layers.{l}.self_attn.q_proj.bias"),
    NameRule::whole(Role::KBias, "model.layers.{l}.self_attn.k_proj.bias"),
    NameRule::whole(Role::VBias, "model.layers.{l}.self_attn.v_proj.bias"),
    NameRule::whole(Role::OBias, "model.layers.{l}.self_attn.o_proj.bias"),
    NameRule::whole(Role::QNorm, "model.layers.{l}.self_attn.q_norm.weight"),
    NameRule::whole(Role::KNorm, "model.layers.{l}.self_attn.k_norm.weight"),
    NameRule::whole(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    NameRule::whole(Role::Gate, "model.layers.{l}.mlp.gate_proj.weight"),
    NameRule::whole(Role::Up, "model.layers.{l}.mlp.up_proj.weight"),
    NameRule::whole(Role::Down, "model.layers.{l}.mlp.down_proj.weight"),
    // Qwen3-MoE.
    NameRule::whole(Role::Router, "model.layers.{l}.mlp.gate.weight"),
    NameRule::whole(Role::ExpertGate, "model.layers.{l}.mlp.experts.{e}.gate_proj.weight"),
    NameRule::whole(Role::ExpertUp, "model.layers.{l}.mlp.experts.{e}.up_proj.weight"),
    NameRule::whole(Role::ExpertDown, "model.layers.{l}.mlp.experts.{e}.down_proj.weight"),
];

const MIXTRAL_NAMES: [NameRule; 13] = [
    NameRule::whole(Role::TokenEmbd, "model.embed_tokens.weight"),
    NameRule::whole(Role::OutputNorm, "model.norm.weight"),
    NameRule::whole(Role::Output, "lm_head.weight"),
    NameRule::whole(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    NameRule::whole(Role::Q, "model.layers.{l}.self_attn.q_proj.weight"),
    NameRule::whole(Role::K, "model.layers.{l}.self_attn.k_proj.weight"),
    NameRule::whole(Role::V, "model.layers.{l}.self_attn.v_proj.weight"),
    NameRule::whole(Role::O, "model.layers.{l}.self_attn.o_proj.weight"),
    NameRule::whole(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    NameRule::whole(Role::Router, "model.layers.{l}.block_sparse_moe.gate.weight"),
    NameRule::whole(Role::ExpertGate, "model.layers.{l}.block_sparse_moe.experts.{e}.w1.weight"),
    NameRule::whole(Role::ExpertUp, "model.layers.{l}.block_sparse_moe.experts.{e}.w3.weight"),
    NameRule::whole(Role::ExpertDown, "model.layers.{l}.block_sparse_moe.experts.{e}.w2.weight"),
];

/// Gemma 3: a norm after attention, where other files name the one before the feed-forward
/// network so.
const GEMMA3_NAMES: [NameRule; 16] = [
    NameRule::whole(Role::TokenEmbd, "model.embed_tokens.weight"),
    NameRule::whole(Role::OutputNorm, "model.norm.weight"),
    NameRule::whole(Role::Output, "lm_head.weight"),
    NameRule::whole(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    NameRule::whole(Role::Q, "model.layers.{l}.self_attn.q_proj.weight"),
    NameRule::whole(Role::K, "model.layers.{l}.self_attn.k_proj.weight"),
    NameRule::whole(Role::V, "model.layers.{l}.self_attn.v_proj.weight"),
    NameRule::whole(Role::O, "model.layers.{l}.self_attn.o_proj.weight"),
    NameRule::whole(Role::QNorm, "model.layers.{l}.self_attn.q_norm.weight"),
    NameRule::whole(Role::KNorm, "model.layers.{l}.self_attn.k_norm.weight"),
    NameRule::whole(Role::PostAttnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    NameRule::whole(Role::FfnNorm, "model.layers.{l}.pre_feedforward_layernorm.weight"),
    NameRule::whole(Role::Gate, "model.layers.{l}.mlp.gate_proj.weight"),
    NameRule::whole(Role::Up, "model.layers.{l}.mlp.up_proj.weight"),
    NameRule::whole(Role::Down, "model.layers.{l}.mlp.down_proj.weight"),
    NameRule::whole(Role::PostFfnNorm, "model.layers.{l}.post_feedforward_layernorm.weight"),
];

/// Phi-3 stacks queries, keys and values, and gate and up.
const PHI3_NAMES: [NameRule; 12] = [
    NameRule::whole(Role::TokenEmbd, "model.embed_tokens.weight"),
    NameRule::whole(Role::OutputNorm, "model.norm.weight"),
    NameRule::whole(Role::Output, "lm_head.weight"),
    NameRule::whole(Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    NameRule::part(Role::Q, "model.layers.{l}.self_attn.qkv_proj.weight", Part::Qkv),
    NameRule::part(Role::K, "model.layers.{l}.self_attn.qkv_proj.weight", Part::Qkv),
    NameRule::part(Role::V, "model.layers.{l}.self_attn.qkv_proj.weight", Part::Qkv),
    NameRule::whole(Role::O, "model.layers.{l}.self_attn.o_proj.weight"),
    NameRule::whole(Role::FfnNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    NameRule::part(Role::Gate, "model.layers.{l}.mlp.gate_up_proj.weight", Part::GateUp),
    NameRule::part(Role::Up, "model.layers.{l}.mlp.gate_up_proj.weight", Part::GateUp),
    NameRule::whole(Role::Down, "model.layers.{l}.mlp.down_proj.weight"),
];

/// What most rows have in common.
const BASE: Architecture = Architecture {
    name: "",
    keys: &KEYS,
    tensors: &NAMES,
    // Frequencies follow from the configuration; a tied head may be stored all the same.
    ignored: &[("model.layers.", ".rotary_emb.inv_freq"), ("lm_head.weight", "")],
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
    tied_head: Tied::ByKey(false),
};

/// A window in every layer, where the file gives one.
const WINDOW: WindowRule =
    WindowRule { key: "sliding_window", types: "layer_types", ..WindowRule::NONE };

/// Qwen files give a window and a switch that is off.
const QWEN_WINDOW: WindowRule =
    WindowRule { switch: "use_sliding_window", first: "max_window_layers", ..WINDOW };

/// The rows.
pub(super) static TABLE: [Architecture; 8] = [
    Architecture {
        name: "LlamaForCausalLM",
        qkv_bias: Presence::IfInFile,
        out_bias: Presence::IfInFile,
        ..BASE
    },
    Architecture { name: "MistralForCausalLM", window: WINDOW, ..BASE },
    Architecture { name: "MixtralForCausalLM", tensors: &MIXTRAL_NAMES, window: WINDOW, ..BASE },
    Architecture {
        name: "Qwen2ForCausalLM",
        qkv_bias: Presence::Required,
        window: QWEN_WINDOW,
        ..BASE
    },
    Architecture {
        name: "Qwen3ForCausalLM",
        qk_norm: true,
        qkv_bias: Presence::IfInFile,
        out_bias: Presence::IfInFile,
        default_head_dim: Some(128),
        window: QWEN_WINDOW,
        ..BASE
    },
    Architecture {
        name: "Qwen3MoeForCausalLM",
        qk_norm: true,
        qkv_bias: Presence::IfInFile,
        out_bias: Presence::IfInFile,
        renormalize: false,
        window: QWEN_WINDOW,
        ..BASE
    },
    Architecture {
        name: "Gemma3ForCausalLM",
        keys: &GEMMA3_KEYS,
        tensors: &GEMMA3_NAMES,
        norm_offset: 1.0,
        activation: Activation::GeluTanh,
        scaled_embeddings: true,
        qk_norm: true,
        post_norms: true,
        window: WindowRule {
            required: true,
            pattern: "sliding_window_pattern|_sliding_window_pattern",
            every: Some(6),
            ..WINDOW
        },
        local_rope_base: Some((
            "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq",
            10_000.0,
        )),
        default_head_dim: Some(256),
        tied_head: Tied::ByKey(true),
        ..BASE
    },
    Architecture { name: "Phi3ForCausalLM", tensors: &PHI3_NAMES, window: WINDOW, ..BASE },
];
