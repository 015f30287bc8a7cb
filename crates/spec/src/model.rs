//! The architecture of a decoder-only transformer, as data.

use serde::{Deserialize, Serialize};

/// Values of a spec that contradict each other or are out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The field, named as the model file names it where that is known.
    pub field: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

/// A decoder-only transformer.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct ModelSpec {
    /// The architecture's name in the model file ("llama", "qwen2", "gemma3", ...): for messages
    /// only; no code may branch on it.
    pub architecture: String,
    /// The model's own name, where the file gives one.
    pub name: Option<String>,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// The longest context the model was trained for, in tokens.
    pub context_length: usize,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Embeddings are multiplied by this (Gemma: the square root of `d_model`).
    pub embed_scale: Option<f32>,
    /// The head is the embedding matrix.
    pub tied_head: bool,
    /// Final logits become `cap * tanh(logit / cap)` (Gemma 2).
    pub logit_softcap: Option<f32>,
    /// Final logits are multiplied by this before any cap.
    pub logit_scale: Option<f32>,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
}

/// One transformer layer: `x += post(attn(norm(x))); x += post(ffn(norm(x)))`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct LayerSpec {
    /// Self-attention.
    pub attn: AttnSpec,
    /// Feed-forward network.
    pub ffn: FfnSpec,
    /// An RMS norm on attention's output before the residual is added (Gemma 2 and 3).
    pub post_attn_norm: bool,
    /// An RMS norm on the feed-forward output before the residual is added (Gemma 2 and 3).
    pub post_ffn_norm: bool,
}

/// Grouped-query self-attention.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct AttnSpec {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Features of a query or key head.
    pub head_dim: usize,
    /// Features of a value head.
    pub v_head_dim: usize,
    /// Scores are multiplied by this (usually `1/sqrt(head_dim)`).
    pub score_scale: f32,
    /// A query at position p sees keys at positions above p - window only.
    pub window: Option<usize>,
    /// RMS norm over each query and key head before RoPE (Qwen3, Gemma 3).
    pub qk_norm: bool,
    /// Biases on the query, key and value projections (Qwen2).
    pub qkv_bias: bool,
    /// A bias on the output projection.
    pub out_bias: bool,
    /// Scores become `cap * tanh(score / cap)` (Gemma 2).
    pub score_softcap: Option<f32>,
    /// Rotary position embedding.
    pub rope: RopeSpec,
}

/// Rotary position embedding. Feature pairs are `(i, i + dim/2)` ("NeoX" order); files that store
/// interleaved pairs have their query and key rows permuted when they are read.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct RopeSpec {
    /// The base of the geometric frequencies.
    pub base: f64,
    /// How many leading features of a head rotate; the others pass unchanged.
    pub dim: usize,
    /// How frequencies are changed for longer contexts.
    pub scaling: RopeScaling,
}

/// Changes of RoPE's frequencies for contexts longer than the pre-training's.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Every frequency divided by `factor` (position interpolation).
    Linear {
        /// The ratio of the new context to the original.
        factor: f64,
    },
    /// Each frequency divided by its own factor, `dim/2` of them (GGUF's `rope_freqs.weight`;
    /// Llama 3's scaling is stored so). LongRoPE's (Phi-3) has an attention factor as well.
    Factors {
        /// Divisors, one for each feature pair.
        factors: Vec<f32>,
        /// Both cos and sin are multiplied by this.
        attn_factor: f32,
    },
    /// Llama 3.1's smooth scaling by wavelength (Hugging Face's `rope_type: llama3`).
    Llama3 {
        /// The ratio of the new context to the original.
        factor: f64,
        /// Below this many turns in the original context a frequency is divided by `factor`.
        low_freq_factor: f64,
        /// Above this many turns in the original context a frequency is left alone.
        high_freq_factor: f64,
        /// The context of the pre-training.
        original_context: usize,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// The ratio of the new context to the original.
        factor: f64,
        /// The context of the pre-training.
        original_context: usize,
        /// Rotations at which interpolation ends (usually 32).
        beta_fast: f64,
        /// Rotations at which interpolation begins (usually 1).
        beta_slow: f64,
        /// Both cos and sin are multiplied by this; `None` means `0.1 ln(factor) + 1`.
        attn_factor: Option<f64>,
    },
}

/// A feed-forward network.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub enum FfnSpec {
    /// `down(act(gate(x)) * up(x))`.
    Gated {
        /// The hidden width.
        d_ff: usize,
        /// The gate's activation function.
        activation: Activation,
    },
    /// A mixture of gated experts.
    Moe(MoeSpec),
}

/// A mixture of experts: softmax over all router logits, the `n_used` best (ties: the lower index
/// first), weights as `renormalize` says.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct MoeSpec {
    /// Experts in the layer.
    pub n_experts: usize,
    /// Experts that each token uses.
    pub n_used: usize,
    /// The hidden width of one expert.
    pub d_ff: usize,
    /// The gate's activation function.
    pub activation: Activation,
    /// Whether the chosen experts' weights are divided by their sum.
    pub renormalize: bool,
}

/// The activation function of a gated feed-forward network.
#[derive(Debug, Clone, Serialize, Deserialize, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

impl AttnSpec {
    /// KV values (keys and values together) that one token adds in this layer.
    pub fn kv_values_per_token(&self) -> usize {
        self.n_kv_heads * (self.head_dim + self.v_head_dim)
    }
}

impl ModelSpec {
    /// KV values (keys and values together) that one token adds over all layers.
    pub fn kv_values_per_token(&self) -> usize {
        self.layers.iter().map(|l| l.attn.kv_values_per_token()).sum()
    }
}
