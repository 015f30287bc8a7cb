//! What a tensor is for, whatever its file calls it.

use dunlin_spec::{FfnSpec, LayerSpec, ModelSpec};

/// The place of a tensor in the forward pass. Matrices are `[output rows, input columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Embeddings, `[vocab_size, d_model]`; also the head where that is tied.
    TokenEmbd,
    /// The norm before the head, `[d_model]`.
    OutputNorm,
    /// The head, `[vocab_size, d_model]`; absent where it is tied.
    Output,
    /// The norm before attention, `[d_model]`.
    AttnNorm,
    /// Query projection, `[n_heads * head_dim, d_model]`.
    Q,
    /// Key projection, `[n_kv_heads * head_dim, d_model]`.
    K,
    /// Value projection, `[n_kv_heads * v_head_dim, d_model]`.
    V,
    /// Attention's output projection, `[d_model, n_heads * v_head_dim]`.
    O,
    /// Bias of [`Role::Q`].
    QBias,
    /// Bias of [`Role::K`].
    KBias,
    /// Bias of [`Role::V`].
    VBias,
    /// Bias of [`Role::O`].
    OBias,
    /// The norm of each query head, `[head_dim]`.
    QNorm,
    /// The norm of each key head, `[head_dim]`.
    KNorm,
    /// The norm after attention, `[d_model]`.
    PostAttnNorm,
    /// The norm before the feed-forward network, `[d_model]`.
    FfnNorm,
    /// Gate projection, `[d_ff, d_model]`.
    Gate,
    /// Up projection, `[d_ff, d_model]`.
    Up,
    /// Down projection, `[d_model, d_ff]`.
    Down,
    /// The norm after the feed-forward network, `[d_model]`.
    PostFfnNorm,
    /// Router of a mixture of experts, `[n_experts, d_model]`.
    Router,
    /// An expert's gate projection, `[d_ff, d_model]`.
    ExpertGate,
    /// An expert's up projection, `[d_ff, d_model]`.
    ExpertUp,
    /// An expert's down projection, `[d_model, d_ff]`.
    ExpertDown,
}

/// The shape that a role's tensor must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// So many values.
    Vector(usize),
    /// Rows and columns.
    Matrix(usize, usize),
}

impl Role {
    /// Every role, in the order in which a forward pass meets them.
    pub const ALL: [Role; 24] = {
        use Role::*;
        [
            TokenEmbd,
            AttnNorm,
            Q,
            QBias,
            K,
            KBias,
            V,
            VBias,
            QNorm,
            KNorm,
            O,
            OBias,
            PostAttnNorm,
            FfnNorm,
            Gate,
            Up,
            Down,
            Router,
            ExpertGate,
            ExpertUp,
            ExpertDown,
            PostFfnNorm,
            OutputNorm,
            Output,
        ]
    };

    /// Whether a model has the tensor once, not once a layer.
    pub fn is_global(self) -> bool {
        matches!(self, Self::TokenEmbd | Self::OutputNorm | Self::Output)
    }

    /// Whether a layer has the tensor once for each expert.
    pub fn is_expert(self) -> bool {
        matches!(self, Self::ExpertGate | Self::ExpertUp | Self::ExpertDown)
    }

    /// Whether the role is a norm's weight.
    pub(crate) fn is_norm(self) -> bool {
        use Role::*;
        matches!(self, OutputNorm | AttnNorm | QNorm | KNorm | PostAttnNorm | FfnNorm | PostFfnNorm)
    }

    /// Whether its rows (or values) are those of rotated heads.
    pub(crate) fn is_rotated(self) -> bool {
        matches!(self, Self::Q | Self::K | Self::QBias | Self::KBias)
    }

    /// The shape of a global role's tensor, `None` where the model has none.
    pub(crate) fn global_shape(self, spec: &ModelSpec) -> Option<Shape> {
        match self {
            Self::TokenEmbd => Some(Shape::Matrix(spec.vocab_size, spec.d_model)),
            Self::OutputNorm => Some(Shape::Vector(spec.d_model)),
            Self::Output if !spec.tied_head => Some(Shape::Matrix(spec.vocab_size, spec.d_model)),
            _ => None,
        }
    }

    /// The shape of a layer's tensor (of one expert's, for experts' roles), `None` where the layer
    /// has none.
    pub(crate) fn layer_shape(self, d: usize, layer: &LayerSpec) -> Option<Shape> {
        use Shape::{Matrix, Vector};
        let a = &layer.attn;
        let (q, k) = (a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim);
        let (v, o) = (a.n_kv_heads * a.v_head_dim, a.n_heads * a.v_head_dim);
        let (dense, moe) = match &layer.ffn {
            FfnSpec::Gated { d_ff, .. } => (Some(*d_ff), None),
            FfnSpec::Moe(m) => (None, Some(m)),
        };
        let only = |present: bool, shape: Shape| present.then_some(shape);
        match self {
            Self::TokenEmbd | Self::OutputNorm | Self::Output => None,
            Self::AttnNorm | Self::FfnNorm => Some(Vector(d)),
            Self::Q => Some(Matrix(q, d)),
            Self::K => Some(Matrix(k, d)),
            Self::V => Some(Matrix(v, d)),
            Self::O => Some(Matrix(d, o)),
            Self::QBias => only(a.qkv_bias, Vector(q)),
            Self::KBias => only(a.qkv_bias, Vector(k)),
            Self::VBias => only(a.qkv_bias, Vector(v)),
            Self::OBias => only(a.out_bias, Vector(d)),
            Self::QNorm | Self::KNorm => only(a.qk_norm, Vector(a.head_dim)),
            Self::PostAttnNorm => only(layer.post_attn_norm, Vector(d)),
            Self::PostFfnNorm => only(layer.post_ffn_norm, Vector(d)),
            Self::Gate | Self::Up => dense.map(|f| Matrix(f, d)),
            Self::Down => dense.map(|f| Matrix(d, f)),
            Self::Router => moe.map(|m| Matrix(m.n_experts, d)),
            Self::ExpertGate | Self::ExpertUp => moe.map(|m| Matrix(m.d_ff, d)),
            Self::ExpertDown => moe.map(|m| Matrix(d, m.d_ff)),
        }
    }
}
