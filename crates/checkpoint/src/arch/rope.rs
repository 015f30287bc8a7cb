//! RoPE's base, width and scaling, from metadata and, in GGUF, from factor tensors.

use dunlin_spec::{RopeScaling, RopeSpec};

use super::Meta;
use crate::{
    CheckpointError,
    container::{Container, floats},
    error::Result,
};

/// Where RoPE's numbers are; see [`Keys`](super::Keys) for the notation.
pub(crate) struct RopeKeys {
    pub base: &'static str,
    /// How many features rotate.
    pub dim: &'static str,
    /// Which share of the features rotates.
    pub partial: &'static str,
    pub scaling: &'static str,
    pub factor: &'static str,
    pub original_context: &'static str,
    /// What cos and sin are multiplied by.
    pub attn_factor: &'static str,
    /// `attn_factor` stands in for the scaling's own formula; otherwise it multiplies YaRN's, and is
    /// all there is of LongRoPE's.
    pub attn_factor_replaces: bool,
    /// YaRN's share of extrapolation; only 1 is supported.
    pub ext_factor: &'static str,
    pub beta_fast: &'static str,
    pub beta_slow: &'static str,
    pub low_freq_factor: &'static str,
    pub high_freq_factor: &'static str,
    /// Lists of factors for contexts beyond the original one, and within it.
    pub long_factors: &'static str,
    pub short_factors: &'static str,
    /// Tensors of factors: for every context, beyond the original one, and within it.
    pub factor_tensor: &'static str,
    pub long_tensor: &'static str,
    pub short_tensor: &'static str,
}

/// A scaling with two sets of factors, between which the context that is asked for decides.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LongRope {
    pub original_context: usize,
    pub short: RopeScaling,
    pub long: RopeScaling,
}

/// The names of scalings that are supported, for messages.
const SUPPORTED: &str = "none, default, linear, llama3, yarn, longrope (su)";

/// RoPE of layers without a window of their own; of two sets of factors, those for the whole
/// context length are used.
pub(super) fn rope(
    meta: &Meta<'_>,
    keys: &RopeKeys,
    store: &dyn Container,
    head_dim: usize,
    context: usize,
) -> Result<(RopeSpec, Option<LongRope>)> {
    let base = meta.positive(keys.base)?.unwrap_or(10_000.0);
    let dim = match (meta.count(keys.dim)?, meta.positive(keys.partial)?) {
        (Some(dim), _) => dim,
        (None, Some(share)) => (head_dim as f64 * share) as usize,
        (None, None) => head_dim,
    };
    let r = Scaling { meta, keys, store, dim, context };
    let (scaling, long) = r.read()?;
    Ok((RopeSpec { base, dim, scaling }, long))
}

struct Scaling<'a> {
    meta: &'a Meta<'a>,
    keys: &'a RopeKeys,
    store: &'a dyn Container,
    dim: usize,
    context: usize,
}

impl Scaling<'_> {
    fn read(&self) -> Result<(RopeScaling, Option<LongRope>)> {
        let kind = self.meta.string(self.keys.scaling)?;
        let factor = self.meta.number(self.keys.factor)?.filter(|f| *f != 0.0);
        let factors = self.factors("", self.keys.factor_tensor)?;
        let long = self.factors(self.keys.long_factors, self.keys.long_tensor)?;
        let short = self.factors(self.keys.short_factors, self.keys.short_tensor)?;
        // Files that name a factor and no kind of scaling mean the linear one.
        let default = if factor.is_some() { "linear" } else { "none" };
        let scaling = match kind.as_deref().unwrap_or(default) {
            "longrope" | "su" => return self.long_rope(short, long),
            _ if long.is_some() || short.is_some() => return self.long_rope(short, long),
            "none" | "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: self.above_zero(self.keys.factor)? },
            "llama3" => RopeScaling::Llama3 {
                factor: self.above_zero(self.keys.factor)?,
                low_freq_factor: self.above_zero(self.keys.low_freq_factor)?,
                high_freq_factor: self.above_zero(self.keys.high_freq_factor)?,
                original_context: self.meta.need_count(self.keys.original_context)?,
            },
            "yarn" => self.yarn()?,
            other => {
                return Err(CheckpointError::UnsupportedFeature {
                    what: format!("RoPE scaling {other:?}"),
                    supported: SUPPORTED.into(),
                });
            }
        };
        Ok((self.with_factors(scaling, factors)?, None))
    }

    fn above_zero(&self, key: &str) -> Result<f64> {
        self.meta.positive(key)?.ok_or_else(|| self.meta.missing(key))
    }

    fn yarn(&self) -> Result<RopeScaling> {
        let keys = self.keys;
        let factor = self.above_zero(keys.factor)?;
        if let Some(share) = self.meta.number(keys.ext_factor)?.filter(|s| *s != 1.0) {
            return Err(CheckpointError::UnsupportedFeature {
                what: format!("YaRN with an extrapolation share of {share}"),
                supported: "1".into(),
            });
        }
        let given = self.meta.positive(keys.attn_factor)?;
        let attn_factor = match given {
            Some(x) if !keys.attn_factor_replaces => Some(x * (0.1 * factor.ln() + 1.0)),
            other => other,
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_context: match self.meta.count(keys.original_context)? {
                Some(n) if n > 0 => n,
                _ => self.context,
            },
            beta_fast: self.meta.positive(keys.beta_fast)?.unwrap_or(32.0),
            beta_slow: self.meta.positive(keys.beta_slow)?.unwrap_or(1.0),
            attn_factor,
        })
    }

    /// Joins a scaling with factors from a tensor: both divide the frequencies.
    fn with_factors(&self, scaling: RopeScaling, factors: Option<Vec<f32>>) -> Result<RopeScaling> {
        let Some(factors) = factors else { return Ok(scaling) };
        match scaling {
            RopeScaling::None => Ok(RopeScaling::Factors { factors, attn_factor: 1.0 }),
            RopeScaling::Linear { factor } => Ok(RopeScaling::Factors {
                factors: factors.iter().map(|f| (f64::from(*f) * factor) as f32).collect(),
                attn_factor: 1.0,
            }),
            _ => Err(CheckpointError::UnsupportedFeature {
                what: format!("tensor {} together with this RoPE scaling", self.keys.factor_tensor),
                supported: "it alone, or with linear scaling".into(),
            }),
        }
    }

    fn long_rope(
        &self,
        short: Option<Vec<f32>>,
        long: Option<Vec<f32>>,
    ) -> Result<(RopeScaling, Option<LongRope>)> {
        let keys = self.keys;
        let need = |f: Option<Vec<f32>>, list: &str, tensor: &str| {
            f.ok_or_else(|| match list {
                "" => CheckpointError::MissingTensor { name: tensor.into() },
                key => self.meta.missing(key),
            })
        };
        let short = need(short, keys.short_factors, keys.short_tensor)?;
        let long = need(long, keys.long_factors, keys.long_tensor)?;
        let original = self.meta.need_count(keys.original_context)?;
        let attn_factor = match self.meta.positive(keys.attn_factor)? {
            Some(x) => x,
            None if !keys.attn_factor_replaces => 1.0,
            None => {
                let ratio = self.context as f64 / original as f64;
                long_rope_attn_factor(self.meta.positive(keys.factor)?.unwrap_or(ratio), original)
            }
        } as f32;
        let short = RopeScaling::Factors { factors: short, attn_factor };
        let long = RopeScaling::Factors { factors: long, attn_factor };
        let now = if self.context > original { &long } else { &short };
        Ok((now.clone(), Some(LongRope { original_context: original, short, long })))
    }

    /// Factors from a list or a tensor, one for each rotated pair.
    fn factors(&self, list: &str, tensor: &str) -> Result<Option<Vec<f32>>> {
        let (name, values) = match (self.meta.numbers(list)?, tensor) {
            (Some(v), _) => (list, v.into_iter().map(|x| x as f32).collect()),
            (None, "") => return Ok(None),
            (None, name) => match self.store.tensor(name) {
                Some(t) => (name, floats(self.store, name, &t)?),
                None => return Ok(None),
            },
        };
        let bad = |problem: String| CheckpointError::BadTensor { name: name.into(), problem };
        if values.len() != self.dim / 2 {
            let (n, dim) = (values.len(), self.dim);
            return Err(bad(format!("{n} factors for {dim} rotated features; {} needed", dim / 2)));
        }
        match values.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            Some(f) => Err(bad(format!("a RoPE factor is {f}"))),
            None => Ok(Some(values)),
        }
    }
}

/// LongRoPE's default factor on cos and sin (arXiv 2402.13753 as Phi-3 uses it).
fn long_rope_attn_factor(scale: f64, original: usize) -> f64 {
    if scale <= 1.0 || original <= 1 {
        1.0
    } else {
        (1.0 + scale.ln() / (original as f64).ln()).sqrt()
    }
}
