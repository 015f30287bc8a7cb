//! Checks of a [`ModelSpec`] against itself and against the limits of this project.

use crate::{AttnSpec, FfnSpec, LayerSpec, ModelSpec, RopeScaling, SpecError};

/// The largest values that a spec may have. No model comes near them; a file that does is lying,
/// and everything below may multiply sizes without overflow.
mod limits {
    pub const LAYERS: usize = 1024;
    pub const D_MODEL: usize = 1 << 17;
    pub const VOCAB: usize = 1 << 22;
    pub const CONTEXT: usize = 1 << 28;
    pub const HEADS: usize = 4096;
    pub const HEAD_DIM: usize = 1024;
    pub const D_FF: usize = 1 << 20;
    pub const EXPERTS: usize = 4096;
    /// Sizes of heads are multiples of this, so that kernels have no tails.
    pub const HEAD_DIM_STEP: usize = 8;
}

impl ModelSpec {
    /// Checks every size, range and relation that the forward pass relies on.
    ///
    /// # Errors
    /// The first field that is wrong, with what would be right.
    pub fn validate(&self) -> Result<(), SpecError> {
        size("vocab_size", self.vocab_size, limits::VOCAB)?;
        size("d_model", self.d_model, limits::D_MODEL)?;
        size("context_length", self.context_length, limits::CONTEXT)?;
        size("layers", self.layers.len(), limits::LAYERS)?;
        positive("norm_eps", self.norm_eps.into())?;
        for (field, value) in [
            ("embed_scale", self.embed_scale),
            ("logit_softcap", self.logit_softcap),
            ("logit_scale", self.logit_scale),
        ] {
            if let Some(v) = value {
                positive(field, v.into())?;
            }
        }
        self.layers.iter().enumerate().try_for_each(|(i, layer)| {
            layer.validate().map_err(|e| SpecError { field: format!("layer {i} {}", e.field), ..e })
        })
    }
}

impl LayerSpec {
    fn validate(&self) -> Result<(), SpecError> {
        self.attn.validate()?;
        match &self.ffn {
            FfnSpec::Gated { d_ff, .. } => size("d_ff", *d_ff, limits::D_FF),
            FfnSpec::Moe(m) => {
                size("expert d_ff", m.d_ff, limits::D_FF)?;
                size("n_experts", m.n_experts, limits::EXPERTS)?;
                size("n_experts_used", m.n_used, m.n_experts)
            }
        }
    }
}

impl AttnSpec {
    fn validate(&self) -> Result<(), SpecError> {
        size("n_heads", self.n_heads, limits::HEADS)?;
        size("n_kv_heads", self.n_kv_heads, self.n_heads)?;
        check("n_heads", self.n_heads.is_multiple_of(self.n_kv_heads), || {
            format!("{} is no multiple of the {} KV heads", self.n_heads, self.n_kv_heads)
        })?;
        for (field, dim) in [("head_dim", self.head_dim), ("v_head_dim", self.v_head_dim)] {
            size(field, dim, limits::HEAD_DIM)?;
            check(field, dim.is_multiple_of(limits::HEAD_DIM_STEP), || {
                format!("{dim} is no multiple of {}", limits::HEAD_DIM_STEP)
            })?;
        }
        positive("score_scale", self.score_scale.into())?;
        if let Some(cap) = self.score_softcap {
            positive("score_softcap", cap.into())?;
        }
        check("window", self.window != Some(0), || "is zero".into())?;
        self.validate_rope()
    }

    fn validate_rope(&self) -> Result<(), SpecError> {
        let dim = self.rope.dim;
        check("rope.dim", dim > 0 && dim.is_multiple_of(2) && dim <= self.head_dim, || {
            format!("{dim} must be even and from 2 to the head's {}", self.head_dim)
        })?;
        check("rope.base", self.rope.base.is_finite() && self.rope.base > 1.0, || {
            format!("{} must be finite and above 1", self.rope.base)
        })?;
        match &self.rope.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope.factor", *factor),
            RopeScaling::Factors { factors, attn_factor } => {
                positive("rope.attn_factor", (*attn_factor).into())?;
                check("rope.factors", factors.len() == dim / 2, || {
                    format!("{} of them; {} needed", factors.len(), dim / 2)
                })?;
                factors.iter().try_for_each(|f| positive("rope.factors", (*f).into()))
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                positive("rope.factor", *factor)?;
                positive("rope.low_freq_factor", *low_freq_factor)?;
                check("rope.high_freq_factor", high_freq_factor > low_freq_factor, || {
                    format!("{high_freq_factor} must be above the low one, {low_freq_factor}")
                })?;
                positive("rope.high_freq_factor", *high_freq_factor)?;
                size("rope.original_context", *original_context, limits::CONTEXT)
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attn_factor } => {
                positive("rope.factor", *factor)?;
                positive("rope.beta_slow", *beta_slow)?;
                positive("rope.beta_fast", *beta_fast)?;
                check("rope.beta_fast", beta_fast >= beta_slow, || {
                    format!("{beta_fast} must not be below beta_slow, {beta_slow}")
                })?;
                if let Some(f) = attn_factor {
                    positive("rope.attn_factor", *f)?;
                }
                size("rope.original_context", *original_context, limits::CONTEXT)
            }
        }
    }
}

fn check(field: &str, fine: bool, problem: impl FnOnce() -> String) -> Result<(), SpecError> {
    if fine { Ok(()) } else { Err(SpecError { field: field.into(), problem: problem() }) }
}

fn size(field: &str, value: usize, max: usize) -> Result<(), SpecError> {
    check(field, (1..=max).contains(&value), || format!("{value} must be from 1 to {max}"))
}

fn positive(field: &str, value: f64) -> Result<(), SpecError> {
    check(field, value.is_finite() && value > 0.0, || {
        format!("{value} must be finite and above zero")
    })
}

#[cfg(test)]
mod tests {
    use crate::{
        Activation, AttnSpec, FfnSpec, LayerSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec,
    };

    fn tiny() -> ModelSpec {
        let rope = RopeSpec { base: 1e4, dim: 16, scaling: RopeScaling::None };
        ModelSpec {
            architecture: "x".into(),
            name: None,
            vocab_size: 10,
            d_model: 32,
            context_length: 64,
            norm_eps: 1e-5,
            embed_scale: None,
            tied_head: true,
            logit_softcap: None,
            logit_scale: None,
            layers: vec![LayerSpec {
                attn: AttnSpec {
                    n_heads: 4,
                    n_kv_heads: 2,
                    head_dim: 16,
                    v_head_dim: 16,
                    score_scale: 0.25,
                    window: None,
                    qk_norm: false,
                    qkv_bias: false,
                    out_bias: false,
                    score_softcap: None,
                    rope,
                },
                ffn: FfnSpec::Gated { d_ff: 64, activation: Activation::Silu },
                post_attn_norm: false,
                post_ffn_norm: false,
            }],
        }
    }

    #[test]
    fn each_wrong_value_is_named() {
        tiny().validate().unwrap();
        let moe = |n_experts, n_used| {
            let activation = Activation::Silu;
            FfnSpec::Moe(MoeSpec { n_experts, n_used, d_ff: 8, activation, renormalize: true })
        };
        type Change = Box<dyn Fn(&mut ModelSpec)>;
        let cases: Vec<(&str, Change)> = vec![
            ("vocab_size", Box::new(|s| s.vocab_size = 0)),
            ("d_model", Box::new(|s| s.d_model = usize::MAX)),
            ("context_length", Box::new(|s| s.context_length = 0)),
            ("layers", Box::new(|s| s.layers.clear())),
            ("norm_eps", Box::new(|s| s.norm_eps = f32::NAN)),
            ("logit_softcap", Box::new(|s| s.logit_softcap = Some(0.0))),
            ("n_heads", Box::new(|s| s.layers[0].attn.n_heads = 3)),
            ("n_kv_heads", Box::new(|s| s.layers[0].attn.n_kv_heads = 0)),
            ("head_dim", Box::new(|s| s.layers[0].attn.head_dim = 20)),
            ("v_head_dim", Box::new(|s| s.layers[0].attn.v_head_dim = 0)),
            ("window", Box::new(|s| s.layers[0].attn.window = Some(0))),
            ("rope.dim", Box::new(|s| s.layers[0].attn.rope.dim = 18)),
            ("rope.dim", Box::new(|s| s.layers[0].attn.rope.dim = 15)),
            ("rope.base", Box::new(|s| s.layers[0].attn.rope.base = f64::INFINITY)),
            ("rope.factors", {
                let scaling = RopeScaling::Factors { factors: vec![1.0; 7], attn_factor: 1.0 };
                Box::new(move |s| s.layers[0].attn.rope.scaling = scaling.clone())
            }),
            (
                "d_ff",
                Box::new(|s| {
                    s.layers[0].ffn = FfnSpec::Gated { d_ff: 0, activation: Activation::Silu };
                }),
            ),
            ("n_experts_used", Box::new(move |s| s.layers[0].ffn = moe(4, 5))),
            ("n_experts", Box::new(move |s| s.layers[0].ffn = moe(0, 0))),
        ];
        for (field, change) in cases {
            let mut spec = tiny();
            change(&mut spec);
            let error = spec.validate().expect_err(field);
            assert!(error.field.ends_with(field), "{field}: {error}");
        }
    }
}
