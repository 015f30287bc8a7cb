//! A forward pass as data: a list of operations over buffers, run by a team of threads.
//!
//! `model` assembles a [`Program`] from a model's spec; a [`Machine`] owns the buffers and the
//! threads and runs it once a step. Every thread walks through the same list and takes its share of
//! each operation; a barrier follows each one. Which thread computes what changes no bit, because
//! every output element is computed alone in a fixed order.

mod attend;
mod best;
mod buffers;
mod machine;
mod moe;
mod ops;

pub use buffers::ActNeeds;
pub use machine::{Machine, StepTimes, Weights};

use dunlin_spec::{Activation, AttnSpec};

/// A packed matrix of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixId(pub usize);
/// An f32 vector of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VectorId(pub usize);
/// A buffer of f32 rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FloatBuf(pub usize);
/// A buffer of activations that enter matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ActBuf(pub usize);

/// How many rows a buffer has in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One for each new token.
    Tokens,
    /// One for each position whose logits, or the best of them, are wanted.
    Wanted,
    /// One for each position all of whose logits are wanted.
    Full,
    /// One for each new token and chosen expert.
    Routed {
        /// Experts that each token uses.
        per_token: usize,
    },
}

/// One operation. Buffer shapes are those of [`Program`].
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Row `t` of `out` is the embedding of token `t`, times `scale`.
    Embed {
        /// `[vocab, d]`.
        table: MatrixId,
        /// Multiplies every value.
        scale: Option<f32>,
        /// `[tokens, d]`.
        out: FloatBuf,
    },
    /// `out = rms_norm(x) * weight`, as activations.
    Norm {
        /// `[rows, d]`.
        x: FloatBuf,
        /// `[d]`.
        weight: VectorId,
        /// Added to the mean square.
        eps: f32,
        /// `[rows, d]`.
        out: ActBuf,
    },
    /// `out = x`, as activations.
    Quantize {
        /// `[rows, d]`.
        x: FloatBuf,
        /// `[rows, d]`.
        out: ActBuf,
    },
    /// `out[:, at..] = acts * matrix^T` for each matrix, or `+=` with `add`, as many rows as `out` has.
    MatMul {
        /// Matrices `[n, d]` and the column of `out` where each one's rows begin.
        parts: Vec<(MatrixId, usize)>,
        /// `[rows, d]`.
        acts: ActBuf,
        /// `[rows, width]`.
        out: FloatBuf,
        /// Add to what is there.
        add: bool,
    },
    /// Adds biases, normalizes heads, rotates queries and keys, scales queries, and stores keys and
    /// values: everything between the projections and attention.
    Heads {
        /// The layer of the KV pool.
        layer: usize,
        /// Heads and RoPE.
        spec: AttnSpec,
        /// Index of the RoPE table.
        rope: usize,
        /// `[tokens, q + k + v]`.
        qkv: FloatBuf,
        /// `[q + k + v]`.
        bias: Option<VectorId>,
        /// Weights `[head_dim]` of the query's and the key's norm, and its epsilon.
        norms: Option<(VectorId, VectorId, f32)>,
    },
    /// Causal attention of the queries in `qkv` over the stored keys and values.
    Attend {
        /// The layer of the KV pool.
        layer: usize,
        /// Heads and window.
        spec: AttnSpec,
        /// `[tokens, q + k + v]`, of which the queries are read.
        qkv: FloatBuf,
        /// `[tokens, n_heads * v_head_dim]`.
        out: FloatBuf,
    },
    /// `x += rms_norm(y) * weight`.
    NormAdd {
        /// `[rows, d]`.
        y: FloatBuf,
        /// `[d]`.
        weight: VectorId,
        /// Added to the mean square.
        eps: f32,
        /// `[rows, d]`.
        x: FloatBuf,
    },
    /// `x += bias`.
    AddBias {
        /// `[rows, d]`.
        x: FloatBuf,
        /// `[d]`.
        bias: VectorId,
    },
    /// `out = act(gate) * up`, as activations.
    Gated {
        /// `[rows, 2 * d_ff]`: gates, then ups.
        gate_up: FloatBuf,
        /// The function of the gate.
        activation: Activation,
        /// `[rows, d_ff]`.
        out: ActBuf,
    },
    /// Keeps the rows whose logits are wanted.
    Select {
        /// `[tokens, d]`.
        x: FloatBuf,
        /// `[wanted, d]`.
        out: FloatBuf,
    },
    /// The best token of each position that wants no more: of `acts * matrix^T`, scaled and capped as
    /// [`Op::Logits`] says.
    Best {
        /// `[vocab, d]`.
        matrix: MatrixId,
        /// `[wanted, d]`, of which those past the ones wanted in full are read.
        acts: ActBuf,
        /// Multiplies every value.
        scale: Option<f32>,
        /// The cap.
        cap: Option<f32>,
    },
    /// Scales and caps logits: `x = cap * tanh(x * scale / cap)`.
    Logits {
        /// `[full, vocab]`.
        x: FloatBuf,
        /// Multiplies every value.
        scale: Option<f32>,
        /// The cap.
        cap: Option<f32>,
    },
    /// Chooses experts from router logits and gathers their tokens' activations side by side.
    Route {
        /// `[tokens, n_experts]`.
        logits: FloatBuf,
        /// Experts that each token uses.
        per_token: usize,
        /// Whether the chosen weights are divided by their sum.
        renormalize: bool,
        /// `[tokens, d]`.
        acts: ActBuf,
        /// `[routed, d]`, sorted by expert.
        out: ActBuf,
    },
    /// Each expert's product with the tokens that chose it.
    ExpertMatMul {
        /// For each expert: matrices and the column of `out` where each one's rows begin.
        experts: Vec<Vec<(MatrixId, usize)>>,
        /// `[routed, d]`.
        acts: ActBuf,
        /// `[routed, width]`.
        out: FloatBuf,
    },
    /// `x += sum over a token's experts, best first, of weight * y`.
    Combine {
        /// `[routed, d]`.
        y: FloatBuf,
        /// Experts that each token uses.
        per_token: usize,
        /// `[tokens, d]`.
        x: FloatBuf,
        /// Overwrite instead of adding.
        replace: bool,
    },
}

/// A forward pass.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Operations, in order.
    pub ops: Vec<Op>,
    /// Rows and width of each f32 buffer.
    pub floats: Vec<(Rows, usize)>,
    /// Rows, width and needed precisions of each activation buffer.
    pub acts: Vec<(Rows, usize, ActNeeds)>,
    /// RoPE tables that [`Op::Heads`] names.
    pub ropes: Vec<dunlin_spec::RopeSpec>,
    /// Where the logits end up.
    pub logits: Option<FloatBuf>,
    /// What the head reads, before its norm: `[wanted, d]`; the norm's weight, and its epsilon.
    pub hidden: Option<(FloatBuf, VectorId, f32)>,
}
