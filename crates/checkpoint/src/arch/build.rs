//! Fills in a [`ModelSpec`] from an architecture's row and a file's metadata.

use dunlin_spec::{
    Activation, AttnSpec, FfnSpec, LayerSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec, SpecError,
};

use super::{
    Architecture, Datum, Meta, Must, Presence, Tied,
    rope::{LongRope, rope},
};
use crate::{CheckpointError, Role, container::Container, error::Result};

/// A spec, and what of the file it does not hold.
#[derive(Debug)]
pub(crate) struct Built {
    pub spec: ModelSpec,
    /// The two sets of RoPE factors, where there are two.
    pub long_rope: Option<LongRope>,
}

/// More layers than this are a lie. Checked before anything of this length is allocated.
const MAX_LAYERS: usize = 1024;

/// Reads the spec of a model.
///
/// # Errors
/// Missing or bad keys, features that are not supported, values out of range.
pub(crate) fn build(arch: &Architecture, meta: &Meta<'_>, store: &dyn Container) -> Result<Built> {
    Builder { arch, meta, store }.build()
}

struct Builder<'a> {
    arch: &'a Architecture,
    meta: &'a Meta<'a>,
    store: &'a dyn Container,
}

/// Sizes that all layers share.
struct Common {
    n_layers: usize,
    d_model: usize,
    context: usize,
}

impl Builder<'_> {
    fn build(&self) -> Result<Built> {
        let (arch, meta, keys) = (self.arch, self.meta, self.arch.keys);
        self.refuse_unsupported()?;
        let common = Common {
            n_layers: meta.need_count(keys.n_layers)?,
            d_model: meta.need_count(keys.d_model)?,
            context: meta.need_count(keys.context_length)?,
        };
        if common.n_layers > MAX_LAYERS {
            return Err(CheckpointError::BadKey {
                key: keys.n_layers.replace("{a}", arch.name),
                problem: format!("{} layers; at most {MAX_LAYERS}", common.n_layers),
            });
        }
        let (layers, long_rope) = self.layers(&common)?;
        let scale = arch.scaled_embeddings.then(|| (common.d_model as f64).sqrt() as f32);
        let spec = ModelSpec {
            architecture: arch.name.into(),
            name: meta.string(keys.model_name).unwrap_or_default(),
            vocab_size: self.vocab_size()?,
            d_model: common.d_model,
            context_length: common.context,
            norm_eps: meta.positive(keys.norm_eps)?.ok_or_else(|| meta.missing(keys.norm_eps))?
                as f32,
            embed_scale: scale,
            tied_head: self.tied_head()?,
            logit_softcap: self.off_or_positive(keys.logit_softcap)?.map(|x| x as f32),
            logit_scale: self.off_or_positive(keys.logit_scale)?.map(|x| x as f32),
            layers,
        };
        spec.validate()?;
        Ok(Built { spec, long_rope })
    }

    fn refuse_unsupported(&self) -> Result<()> {
        for (key, must) in self.arch.keys.refused {
            let Some((key, value)) = self.meta.find(key) else { continue };
            let (fine, wanted) = match must {
                Must::BeOff => (value.is_off(), "off"),
                Must::BeOn => (value == Datum::Bool(true), "true"),
            };
            if !fine {
                return Err(CheckpointError::UnsupportedFeature {
                    what: format!("{key} = {}", value.show()),
                    supported: format!("{key} {wanted} or absent"),
                });
            }
        }
        Ok(())
    }

    /// The first name of a role's tensor that the file has.
    fn has(&self, role: Role, layer: usize) -> bool {
        let rules = self.arch.tensors.iter().filter(|r| r.role == role);
        rules.into_iter().any(|r| self.store.tensor(&r.name(layer, 0)).is_some())
    }

    fn vocab_size(&self) -> Result<usize> {
        if let Some(n) = self.meta.count(self.arch.keys.vocab_size)? {
            return Ok(n);
        }
        let rule = self.arch.tensors.iter().find(|r| r.role == Role::TokenEmbd);
        let name = rule.map(|r| r.name(0, 0)).unwrap_or_default();
        match self.store.tensor(&name) {
            Some(t) => Ok(t.rows),
            None => Err(CheckpointError::MissingTensor { name }),
        }
    }

    fn tied_head(&self) -> Result<bool> {
        Ok(match self.arch.tied_head {
            Tied::IfHeadAbsent => !self.has(Role::Output, 0),
            Tied::ByKey(default) => match self.meta.flag(self.arch.keys.tied_head)? {
                Some(tied) => tied,
                None => default || !self.has(Role::Output, 0),
            },
        })
    }

    /// A number above zero; zero means that there is none.
    fn off_or_positive(&self, key: &str) -> Result<Option<f64>> {
        match self.meta.find(key) {
            Some((_, value)) if value.is_off() => Ok(None),
            _ => self.meta.positive(key),
        }
    }

    fn layers(&self, c: &Common) -> Result<(Vec<LayerSpec>, Option<LongRope>)> {
        let (meta, keys) = (self.meta, self.arch.keys);
        let n = c.n_layers;
        let heads =
            meta.count_per_layer(keys.n_heads, n)?.ok_or_else(|| meta.missing(keys.n_heads))?;
        let kv_heads = meta.count_per_layer(keys.n_kv_heads, n)?.unwrap_or_else(|| heads.clone());
        let head_dim = self.head_dim(c, &heads)?;
        let v_head_dim = match meta.count(keys.v_head_dim)? {
            Some(v) if v > 0 => v,
            _ => head_dim,
        };
        let (global, long_rope) = rope(meta, &keys.rope, self.store, head_dim, c.context)?;
        let local = self.local_rope(&global)?;
        let windowed = self.windowed_layers(n)?;
        let window = self.off_or_zero_count(self.arch.window.key)?;
        let ffns = self.ffns(n)?;
        let score_scale = self.score_scale(c, heads[0], head_dim)?;
        let score_softcap = self.off_or_positive(keys.score_softcap)?.map(|x| x as f32);
        let layers = ffns.into_iter().enumerate().map(|(l, ffn)| {
            Ok(LayerSpec {
                attn: AttnSpec {
                    n_heads: heads[l],
                    n_kv_heads: kv_heads[l],
                    head_dim,
                    v_head_dim,
                    score_scale,
                    // A window that no context reaches is none.
                    window: window.filter(|w| windowed[l] && *w < c.context),
                    qk_norm: self.arch.qk_norm,
                    qkv_bias: self.bias(
                        self.arch.qkv_bias,
                        &[Role::QBias, Role::KBias, Role::VBias],
                        l,
                    ),
                    out_bias: self.bias(self.arch.out_bias, &[Role::OBias], l),
                    score_softcap,
                    rope: match &local {
                        Some(local) if windowed[l] => local.clone(),
                        _ => global.clone(),
                    },
                },
                ffn,
                post_attn_norm: self.arch.post_norms,
                post_ffn_norm: self.arch.post_norms,
            })
        });
        Ok((layers.collect::<Result<_>>()?, long_rope))
    }

    fn bias(&self, presence: Presence, roles: &[Role], layer: usize) -> bool {
        match presence {
            Presence::Never => false,
            Presence::Required => true,
            Presence::IfInFile => roles.iter().any(|r| self.has(*r, layer)),
        }
    }

    fn head_dim(&self, c: &Common, heads: &[usize]) -> Result<usize> {
        if let Some(d) = self.meta.count(self.arch.keys.head_dim)?.filter(|d| *d > 0) {
            return Ok(d);
        }
        if let Some(d) = self.arch.default_head_dim {
            return Ok(d);
        }
        let n = heads[0];
        if n == 0 || !c.d_model.is_multiple_of(n) || heads.iter().any(|h| *h != n) {
            return Err(SpecError {
                field: self.arch.keys.n_heads.replace("{a}", self.arch.name),
                problem: format!(
                    "{n} heads do not divide the width {} evenly, and no key gives the size of a \
                     head",
                    c.d_model
                ),
            }
            .into());
        }
        Ok(c.d_model / n)
    }

    fn score_scale(&self, c: &Common, n_heads: usize, head_dim: usize) -> Result<f32> {
        let keys = self.arch.keys;
        if let Some(scale) = self.off_or_positive(keys.score_scale)? {
            return Ok(scale as f32);
        }
        let divisor = match self.meta.positive(keys.score_divisor_squared)? {
            Some(d) => d,
            None if self.arch.score_by_width_at_layers == Some(c.n_layers) && n_heads > 0 => {
                c.d_model as f64 / n_heads as f64
            }
            None => head_dim as f64,
        };
        Ok((1.0 / divisor.sqrt()) as f32)
    }

    fn local_rope(&self, global: &RopeSpec) -> Result<Option<RopeSpec>> {
        let Some((key, default)) = self.arch.local_rope_base else { return Ok(None) };
        let base = self.meta.positive(key)?.unwrap_or(default);
        Ok(Some(RopeSpec { base, dim: global.dim, scaling: RopeScaling::None }))
    }

    fn off_or_zero_count(&self, key: &str) -> Result<Option<usize>> {
        Ok(self.meta.count(key)?.filter(|n| *n > 0))
    }

    /// Which layers attend to a window only.
    fn windowed_layers(&self, n: usize) -> Result<Vec<bool>> {
        let (rule, meta) = (&self.arch.window, self.meta);
        if rule.required && meta.find(rule.key).is_none() {
            return Err(meta.missing(rule.key));
        }
        let on = meta.flag(rule.switch)?.unwrap_or(rule.switch.is_empty());
        if !on || self.off_or_zero_count(rule.key)?.is_none() {
            return Ok(vec![false; n]);
        }
        if let Some((key, value)) = meta.find(rule.types) {
            return layer_types(&value, n)
                .ok_or_else(|| bad_pattern(key, "\"sliding_attention\" or \"full_attention\"", n));
        }
        let every = match meta.find(rule.pattern) {
            Some((key, Datum::List(items))) => {
                let flags: Option<Vec<bool>> = items.iter().map(Datum::as_bool).collect();
                return flags.filter(|f| f.len() == n).ok_or_else(|| bad_pattern(key, "a bool", n));
            }
            Some((key, value)) => match value.as_count() {
                Some(every) => Some(every),
                None => return Err(bad_pattern(key, "a bool", n)),
            },
            None => rule.every,
        };
        let first = meta.count(rule.first)?.unwrap_or(0);
        Ok((0..n)
            .map(|l| l >= first && every.is_none_or(|e| e == 0 || !(l + 1).is_multiple_of(e)))
            .collect())
    }

    fn activation(&self) -> Result<Activation> {
        let key = self.arch.keys.activation;
        match self.meta.string(key)?.as_deref() {
            None => Ok(self.arch.activation),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh") => Ok(Activation::GeluTanh),
            Some(other) => Err(CheckpointError::UnsupportedFeature {
                what: format!("activation function {other:?}"),
                supported: "silu, gelu_pytorch_tanh".into(),
            }),
        }
    }

    /// The feed-forward network of every layer.
    fn ffns(&self, n: usize) -> Result<Vec<FfnSpec>> {
        let (meta, keys) = (self.meta, self.arch.keys);
        let activation = self.activation()?;
        let d_ff = meta.count_per_layer(keys.d_ff, n)?;
        let n_experts = meta.count(keys.n_experts)?.unwrap_or(0);
        let step = meta.count(keys.sparse_step)?.unwrap_or(1).max(1);
        let dense = meta.numbers(keys.dense_layers)?.unwrap_or_default();
        let d_ff_expert = self.off_or_zero_count(keys.d_ff_expert)?;
        let n_used = if n_experts > 0 { meta.need_count(keys.n_experts_used)? } else { 0 };
        let renormalize = meta.flag(keys.renormalize)?.unwrap_or(self.arch.renormalize);
        let need = |l: usize| match &d_ff {
            Some(sizes) => Ok(sizes[l]),
            None => Err(meta.missing(keys.d_ff)),
        };
        (0..n)
            .map(|l| {
                let sparse = (l + 1).is_multiple_of(step) && !dense.contains(&(l as f64));
                if n_experts == 0 || !sparse {
                    return Ok(FfnSpec::Gated { d_ff: need(l)?, activation });
                }
                Ok(FfnSpec::Moe(MoeSpec {
                    n_experts,
                    n_used,
                    d_ff: match d_ff_expert {
                        Some(d) => d,
                        None => need(l)?,
                    },
                    activation,
                    renormalize,
                }))
            })
            .collect()
    }
}

fn layer_types(value: &Datum<'_>, n: usize) -> Option<Vec<bool>> {
    let Datum::List(items) = value else { return None };
    let flags: Option<Vec<bool>> = items
        .iter()
        .map(|item| match item {
            Datum::Str(s) if s == "sliding_attention" => Some(true),
            Datum::Str(s) if s == "full_attention" => Some(false),
            _ => None,
        })
        .collect();
    flags.filter(|f| f.len() == n)
}

fn bad_pattern(key: String, wanted: &str, n: usize) -> CheckpointError {
    CheckpointError::BadKey { key, problem: format!("must give {wanted} for each of {n} layers") }
}
