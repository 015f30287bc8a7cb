//! A model in a dozen numbers: enough to count its parameters, operations and bytes without a file.

use serde::{Deserialize, Serialize};

use crate::{
    Activation, AttnSpec, FfnSpec, LayerSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec, SpecError,
};

/// A decoder whose layers are alike, but for which of them have a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// What it is called.
    pub name: String,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Hidden width of the feed-forward network, or of one expert.
    pub d_ff: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Experts of a layer; 0 for a dense model.
    #[serde(default)]
    pub n_experts: usize,
    /// Experts that a token uses.
    #[serde(default)]
    pub n_experts_used: usize,
    /// Positions that a layer with a window sees.
    #[serde(default)]
    pub window: Option<usize>,
    /// Of so many layers, the last sees everything; 0 where all have the window.
    #[serde(default)]
    pub global_every: usize,
    /// The head is the embedding matrix.
    #[serde(default)]
    pub tied_head: bool,
    /// The longest context.
    #[serde(default = "usual_context")]
    pub context_length: usize,
}

const fn usual_context() -> usize {
    131_072
}

impl ModelShape {
    /// The model as a spec. What the numbers do not say (norms, RoPE) is the usual, and changes no
    /// count.
    ///
    /// # Errors
    /// The first number that is out of range.
    pub fn spec(&self) -> Result<ModelSpec, SpecError> {
        let attn = |window| AttnSpec {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.head_dim,
            score_scale: 1.0,
            window,
            qk_norm: false,
            qkv_bias: false,
            out_bias: false,
            score_softcap: None,
            rope: RopeSpec { base: 1e4, dim: self.head_dim, scaling: RopeScaling::None },
        };
        let activation = Activation::Silu;
        let ffn = if self.n_experts > 0 {
            FfnSpec::Moe(MoeSpec {
                n_experts: self.n_experts,
                n_used: self.n_experts_used,
                d_ff: self.d_ff,
                activation,
                renormalize: true,
            })
        } else {
            FfnSpec::Gated { d_ff: self.d_ff, activation }
        };
        // Before anything is made of that many.
        if self.layers > 1024 {
            return Err(SpecError {
                field: "layers".into(),
                problem: format!("{} must be from 1 to 1024", self.layers),
            });
        }
        let layer = |i: usize| {
            let global = self.global_every > 0 && (i + 1).is_multiple_of(self.global_every);
            LayerSpec {
                attn: attn(self.window.filter(|_| !global)),
                ffn: ffn.clone(),
                post_attn_norm: false,
                post_ffn_norm: false,
            }
        };
        let spec = ModelSpec {
            architecture: "shape".into(),
            name: Some(self.name.clone()),
            vocab_size: self.vocab_size,
            d_model: self.d_model,
            context_length: self.context_length,
            norm_eps: 1e-5,
            embed_scale: None,
            tied_head: self.tied_head,
            logit_softcap: None,
            logit_scale: None,
            layers: (0..self.layers).map(layer).collect(),
        };
        spec.validate()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sixth_layer_is_global() {
        let shape = ModelShape {
            name: "x".into(),
            layers: 12,
            d_model: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            d_ff: 128,
            vocab_size: 100,
            n_experts: 0,
            n_experts_used: 0,
            window: Some(512),
            global_every: 6,
            tied_head: true,
            context_length: 4096,
        };
        let spec = shape.spec().unwrap();
        let global: Vec<usize> =
            (0..12).filter(|&i| spec.layers[i].attn.window.is_none()).collect();
        assert_eq!(global, [5, 11]);
        assert!(ModelShape { layers: usize::MAX, ..shape.clone() }.spec().is_err());
        assert!(ModelShape { n_experts: 4, n_experts_used: 5, ..shape }.spec().is_err());
    }
}
