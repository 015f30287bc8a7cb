//! Distributions of numbers that are zero or above: token counts, seconds, factors.
//!
//! [`DistSpec`] is the description, as it stands in a file; [`Dist`] is what draws. All but the
//! gamma distribution take one uniform number for one draw and turn it through the inverse of their
//! distribution function, so with the same seed a larger parameter gives larger numbers and two
//! variants of a workload differ by no more than what was changed.

mod alias;
mod gamma;

use std::sync::Arc;

use dunlin_units::Stream;
use serde::{Deserialize, Serialize};

pub(crate) use alias::Alias;
use gamma::Gamma;

use crate::error::{SpecError, not_negative, positive};
use crate::math;

/// A distribution, described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DistSpec {
    /// Always the same.
    Constant {
        /// The number.
        value: f64,
    },
    /// Every number between two alike.
    Uniform {
        /// The least.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// Every whole number from one to another alike.
    Integers {
        /// The least.
        low: u32,
        /// The largest.
        high: u32,
    },
    /// Exponential: no memory.
    Exponential {
        /// The mean.
        mean: f64,
    },
    /// The logarithm is normal. The mean is `median * exp(sigma^2 / 2)`.
    #[serde(rename = "lognormal")]
    LogNormal {
        /// The median.
        median: f64,
        /// The standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Pareto (type I): `P(X > x) = (scale / x)^alpha` from `scale` on. No mean for `alpha <= 1`.
    Pareto {
        /// The least.
        scale: f64,
        /// How fast the tail falls.
        alpha: f64,
    },
    /// Gamma.
    Gamma {
        /// The mean.
        mean: f64,
        /// Standard deviation over mean; 1 is exponential.
        cv: f64,
    },
    /// Weibull.
    Weibull {
        /// The mean.
        mean: f64,
        /// Standard deviation over mean; 1 is exponential.
        cv: f64,
    },
    /// The whole numbers from 1 to `n`, `k` with a weight of `k^-exponent`.
    Zipf {
        /// The largest number, at most 2^20.
        n: u32,
        /// How fast the weights fall; 0 is uniform.
        exponent: f64,
    },
    /// One of several, by weight.
    Mixture {
        /// Which.
        parts: Vec<Part>,
    },
    /// As in a sample: the sample's quantiles, linear between its sorted values (type 7 of Hyndman
    /// and Fan, The American Statistician 50, 1996).
    Empirical {
        /// The sample, in any order.
        values: Arc<[f64]>,
    },
}

/// A part of a mixture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its share is this over the sum of all weights.
    pub weight: f64,
    /// The distribution.
    pub of: DistSpec,
}

/// A distribution that draws.
#[derive(Debug, Clone)]
pub struct Dist(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Constant(f64),
    Uniform {
        low: f64,
        width: f64,
    },
    Integers {
        low: u32,
        count: u64,
    },
    Exponential {
        mean: f64,
    },
    LogNormal {
        mu: f64,
        sigma: f64,
    },
    Pareto {
        scale: f64,
        alpha: f64,
    },
    Gamma(Gamma),
    Weibull {
        scale: f64,
        shape: f64,
    },
    Zipf {
        ranks: Alias,
        mean: f64,
    },
    Mixture {
        choice: Alias,
        weights: Vec<f64>,
        parts: Vec<Dist>,
    },
    /// Sorted.
    Empirical(Arc<[f64]>),
}

/// The most entries of a table that a distribution draws from.
const MAX_TABLE: usize = 1 << 20;

impl DistSpec {
    /// What draws from it.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn build(&self) -> Result<Dist, SpecError> {
        Ok(Dist(match self {
            Self::Constant { value } => Kind::Constant(not_negative("value", *value)?),
            Self::Uniform { low, high } => {
                let width = not_negative("high", *high)? - not_negative("low", *low)?;
                Kind::Uniform { low: *low, width: not_negative("high less low", width)? }
            }
            Self::Integers { low, high } => {
                let width = high.checked_sub(*low);
                let width = width.ok_or_else(|| SpecError::new("high", "it is below low"))?;
                Kind::Integers { low: *low, count: u64::from(width) + 1 }
            }
            Self::Exponential { mean } => Kind::Exponential { mean: positive("mean", *mean)? },
            Self::LogNormal { median, sigma } => Kind::LogNormal {
                mu: math::ln(positive("median", *median)?),
                sigma: not_negative("sigma", *sigma)?,
            },
            Self::Pareto { scale, alpha } => Kind::Pareto {
                scale: positive("scale", *scale)?,
                alpha: positive("alpha", *alpha)?,
            },
            Self::Gamma { mean, cv } => {
                Kind::Gamma(Gamma::new(positive("mean", *mean)?, positive("cv", *cv)?))
            }
            Self::Weibull { mean, cv } => {
                let (mean, shape) = (positive("mean", *mean)?, weibull_shape(*cv)?);
                Kind::Weibull { scale: mean / gamma_of(1.0 + 1.0 / shape), shape }
            }
            Self::Zipf { n, exponent } => zipf(*n, not_negative("exponent", *exponent)?)?,
            Self::Mixture { parts } => mixture(parts)?,
            Self::Empirical { values } => empirical(values)?,
        }))
    }
}

impl Dist {
    /// The next number.
    #[inline]
    pub fn draw(&self, random: &mut Stream) -> f64 {
        match &self.0 {
            Kind::Constant(value) => *value,
            Kind::Uniform { low, width } => low + width * random.next_unit(),
            Kind::Integers { low, count } => f64::from(*low) + random.next_below(*count) as f64,
            Kind::Exponential { mean } => mean * unit_exponential(random),
            Kind::LogNormal { mu, sigma } => math::exp(mu + sigma * unit_normal(random)),
            // The exponential of an exponential.
            Kind::Pareto { scale, alpha } => scale * math::exp(unit_exponential(random) / alpha),
            Kind::Gamma(gamma) => gamma.draw(random),
            Kind::Weibull { scale, shape } => {
                scale * math::pow(unit_exponential(random), 1.0 / shape)
            }
            Kind::Zipf { ranks, .. } => f64::from(ranks.draw(random) + 1),
            Kind::Mixture { choice, parts, .. } => parts[choice.draw(random) as usize].draw(random),
            Kind::Empirical(sorted) => interpolated(sorted, random.next_unit()),
        }
    }

    /// The mean, which may be infinite.
    pub fn mean(&self) -> f64 {
        match &self.0 {
            Kind::Constant(value) => *value,
            Kind::Uniform { low, width } => low + width / 2.0,
            Kind::Integers { low, count } => f64::from(*low) + (count - 1) as f64 / 2.0,
            Kind::Exponential { mean } | Kind::Zipf { mean, .. } => *mean,
            Kind::LogNormal { mu, sigma } => math::exp(mu + sigma * sigma / 2.0),
            Kind::Pareto { alpha, .. } if *alpha <= 1.0 => f64::INFINITY,
            Kind::Pareto { scale, alpha } => scale * alpha / (alpha - 1.0),
            Kind::Gamma(gamma) => gamma.mean(),
            Kind::Weibull { scale, shape } => scale * gamma_of(1.0 + 1.0 / shape),
            Kind::Mixture { weights, parts, .. } => {
                let sum: f64 = weights.iter().sum();
                weights.iter().zip(parts).map(|(w, p)| w * p.mean()).sum::<f64>() / sum
            }
            Kind::Empirical(sorted) => match sorted.len() {
                1 => sorted[0],
                n => {
                    let halves = (sorted[0] + sorted[n - 1]) / 2.0;
                    (sorted.iter().sum::<f64>() - halves) / (n - 1) as f64
                }
            },
        }
    }
}

/// Exponential with mean 1: between 0 and 36.8.
#[inline]
pub(crate) fn unit_exponential(random: &mut Stream) -> f64 {
    // The uniform number may be 0 but not 1. Adding zero turns -0 into 0.
    -math::ln(1.0 - random.next_unit()) + 0.0
}

/// Normal with mean 0 and deviation 1: within 8.3 of zero.
#[inline]
pub(crate) fn unit_normal(random: &mut Stream) -> f64 {
    // Half a step inward, since neither end has a quantile.
    math::normal_quantile(random.next_unit() + 0.5 / (1u64 << 53) as f64)
}

/// The gamma function.
fn gamma_of(x: f64) -> f64 {
    math::exp(math::ln_gamma(x))
}

/// The shape of the Weibull distribution with this deviation over mean: the root of
/// `Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 = 1 + cv^2`, by halving, to the last bit.
fn weibull_shape(cv: f64) -> Result<f64, SpecError> {
    positive("cv", cv)?;
    let target = math::ln(1.0 + cv * cv);
    let ratio = |k: f64| math::ln_gamma(1.0 + 2.0 / k) - 2.0 * math::ln_gamma(1.0 + 1.0 / k);
    // The ratio falls as the shape rises.
    let (mut low, mut high) = (0.05, 1000.0);
    if ratio(low) < target || ratio(high) > target {
        return Err(SpecError::new("cv", format!("{cv} is beyond what a Weibull shape can give")));
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if ratio(middle) > target {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(high)
}

fn zipf(n: u32, exponent: f64) -> Result<Kind, SpecError> {
    if n == 0 || n as usize > MAX_TABLE {
        return Err(SpecError::new("n", format!("{n} should be from 1 to {MAX_TABLE}")));
    }
    let weights: Vec<f64> = (1..=n).map(|k| math::pow(f64::from(k), -exponent)).collect();
    let sum: f64 = weights.iter().sum();
    let mean = weights.iter().enumerate().map(|(k, w)| (k + 1) as f64 * w).sum::<f64>() / sum;
    Ok(Kind::Zipf { ranks: Alias::new(&weights)?, mean })
}

fn mixture(parts: &[Part]) -> Result<Kind, SpecError> {
    let weights: Vec<f64> = parts.iter().map(|p| p.weight).collect();
    let build = |(i, p): (usize, &Part)| p.of.build().map_err(|e| e.within(&format!("parts[{i}]")));
    let built = parts.iter().enumerate().map(build).collect::<Result<_, _>>()?;
    Ok(Kind::Mixture {
        choice: Alias::new(&weights).map_err(|e| e.within("parts"))?,
        weights,
        parts: built,
    })
}

fn empirical(values: &[f64]) -> Result<Kind, SpecError> {
    if values.is_empty() {
        return Err(SpecError::new("values", "an empty sample has no distribution"));
    }
    for &value in values {
        not_negative("values", value)?;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Ok(Kind::Empirical(sorted.into()))
}

/// The quantile `u`, in [0, 1), of a sorted sample.
fn interpolated(sorted: &[f64], u: f64) -> f64 {
    let place = u * (sorted.len() - 1) as f64;
    let at = place as usize;
    let low = sorted[at];
    let high = sorted[(at + 1).min(sorted.len() - 1)];
    low + (place - at as f64) * (high - low)
}
