//! Which weights a model has, in the order that the pack stores them and the program names them.

use dunlin_checkpoint::Role;
use dunlin_kernels_cpu::pack::PackedLayout;
use dunlin_kernels_cpu::{CpuFeatures, Isa};
use dunlin_spec::{FfnSpec, LayerSpec, ModelSpec, WeightType};

/// One matrix of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixKey {
    pub role: Role,
    pub layer: usize,
    pub expert: usize,
}

/// One vector of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum VectorKey {
    /// A tensor of the file.
    One(Role, usize),
    /// Query, key and value biases of a layer, side by side.
    QkvBias(usize),
}

/// Every matrix of a model.
pub(crate) fn matrices(spec: &ModelSpec) -> Vec<MatrixKey> {
    let global = |role| MatrixKey { role, layer: 0, expert: 0 };
    let mut keys = vec![global(Role::TokenEmbd)];
    for (layer, l) in spec.layers.iter().enumerate() {
        let mut push = |role, expert| keys.push(MatrixKey { role, layer, expert });
        for role in [Role::Q, Role::K, Role::V, Role::O] {
            push(role, 0);
        }
        match &l.ffn {
            FfnSpec::Gated { .. } => {
                for role in [Role::Gate, Role::Up, Role::Down] {
                    push(role, 0);
                }
            }
            FfnSpec::Moe(moe) => {
                push(Role::Router, 0);
                for expert in 0..moe.n_experts {
                    push(Role::ExpertGate, expert);
                    push(Role::ExpertUp, expert);
                    push(Role::ExpertDown, expert);
                }
            }
        }
    }
    if !spec.tied_head {
        keys.push(global(Role::Output));
    }
    keys
}

/// Whether the head's bytes are split into high and low bits when a pack is made on this machine.
/// Every instruction set can use either kind of pack and gives the same bits with both. With AVX-512
/// all logits cost about the same from a split head; with AVX2 putting codes together costs up to a
/// third of the head's speed at one to four positions, more than what greedy choices save.
pub(crate) fn split_head() -> bool {
    CpuFeatures::detect().is_ok_and(|cpu| cpu.isa() == Isa::Avx512)
}

/// The layout of a matrix of the given shape; `None` where there is no such shape.
pub(crate) fn layout(
    spec: &ModelSpec,
    split_head: bool,
    key: &MatrixKey,
    ty: WeightType,
    (rows, cols): (usize, usize),
) -> Option<PackedLayout> {
    let head = if spec.tied_head { Role::TokenEmbd } else { Role::Output };
    if split_head && key.role == head {
        PackedLayout::of_head(ty, rows, cols)
    } else {
        PackedLayout::new(ty, rows, cols)
    }
}

/// Every vector of a model, with its length.
pub(crate) fn vectors(spec: &ModelSpec) -> Vec<(VectorKey, usize)> {
    let mut keys = Vec::new();
    for (layer, l) in spec.layers.iter().enumerate() {
        let mut one = |role, len| keys.push((VectorKey::One(role, layer), len));
        one(Role::AttnNorm, spec.d_model);
        if l.attn.qk_norm {
            one(Role::QNorm, l.attn.head_dim);
            one(Role::KNorm, l.attn.head_dim);
        }
        if l.attn.out_bias {
            one(Role::OBias, spec.d_model);
        }
        if l.post_attn_norm {
            one(Role::PostAttnNorm, spec.d_model);
        }
        one(Role::FfnNorm, spec.d_model);
        if l.post_ffn_norm {
            one(Role::PostFfnNorm, spec.d_model);
        }
        if l.attn.qkv_bias {
            keys.push((VectorKey::QkvBias(layer), qkv_width(l)));
        }
    }
    keys.push((VectorKey::One(Role::OutputNorm, 0), spec.d_model));
    keys
}

/// Values of a token's queries, keys and values.
pub(crate) fn qkv_width(layer: &LayerSpec) -> usize {
    let a = &layer.attn;
    a.n_heads * a.head_dim + a.kv_values_per_token()
}
