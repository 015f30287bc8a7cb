//! Many clients of one kind: unequal rates, burstiness and lengths.

use dunlin_units::{SeedTree, Stream};
use serde::{Deserialize, Serialize};

use crate::arrival::{ArrivalSpec, GapSpec, MarkovState, RateSpec};
use crate::client::ClientSpec;
use crate::dist::{DistSpec, Part};
use crate::error::{SpecError, not_negative, positive};
use crate::length::{CountSpec, LengthsSpec};
use crate::math;
use crate::prefix::PrefixUse;
use crate::session::ConversationSpec;

/// A population of clients, described. Client `k` is named `name.k`, counted from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PopulationSpec {
    /// Its name.
    pub name: String,
    /// How many clients.
    pub clients: u32,
    /// Arrivals of all of them together. Rates that change at random do so for each client by itself.
    pub rate: RateSpec,
    /// Client `k` has a share of `k^-skew`: with 1 to 1.5, a few send most.
    pub skew: f64,
    /// Standard deviation over mean of a client's gaps, from one number to another, its logarithm
    /// uniform. They are gamma gaps.
    pub cv: (f64, f64),
    /// Tokens of prompts and answers, before they are scaled.
    pub lengths: LengthsSpec,
    /// A client's lengths are multiplied by a factor from one number to another, its logarithm
    /// uniform; prompts and answers by different ones. Rows of traces are left as they are.
    #[serde(default = "unscaled")]
    pub scale: (f64, f64),
    /// What prompts begin with.
    #[serde(default)]
    pub prefixes: Vec<PrefixUse>,
    /// How sessions go on.
    #[serde(default)]
    pub conversation: Option<ConversationSpec>,
    /// As [`ClientSpec::deadline_s`].
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// As [`ClientSpec::from_s`].
    #[serde(default)]
    pub from_s: f64,
    /// As [`ClientSpec::until_s`].
    #[serde(default)]
    pub until_s: Option<f64>,
}

const fn unscaled() -> (f64, f64) {
    (1.0, 1.0)
}

impl PopulationSpec {
    /// Its clients. What client `k` is like does not depend on how many there are, but for its share
    /// of the rate.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn expand(&self, seeds: SeedTree) -> Result<Vec<ClientSpec>, SpecError> {
        not_negative("skew", self.skew)?;
        for (at, (low, high)) in [("cv", self.cv), ("scale", self.scale)] {
            if positive(at, low)? > positive(at, high)? {
                return Err(SpecError::new(at, "the first number is above the second"));
            }
        }
        let seeds = seeds.child("population").child(&self.name);
        let weight = |k: u32| math::pow(f64::from(k), -self.skew);
        let sum: f64 = (1..=self.clients).map(weight).sum();
        let client = |k: u32| {
            let mut random = seeds.child_at(u64::from(k)).stream();
            let cv = log_uniform(self.cv, &mut random);
            let (prompt, output) =
                (log_uniform(self.scale, &mut random), log_uniform(self.scale, &mut random));
            ClientSpec {
                name: format!("{}.{k}", self.name),
                arrival: ArrivalSpec::Open {
                    gaps: GapSpec::Gamma { cv },
                    rate: scaled_rate(&self.rate, weight(k) / sum),
                },
                lengths: scaled_lengths(&self.lengths, prompt, output),
                prefixes: self.prefixes.clone(),
                conversation: self.conversation.clone(),
                deadline_s: self.deadline_s,
                from_s: self.from_s,
                until_s: self.until_s,
                limit: None,
            }
        };
        Ok((1..=self.clients).map(client).collect())
    }
}

fn log_uniform((low, high): (f64, f64), random: &mut Stream) -> f64 {
    low * math::pow(high / low, random.next_unit())
}

fn scaled_rate(rate: &RateSpec, by: f64) -> RateSpec {
    match rate {
        RateSpec::Constant { per_s } => RateSpec::Constant { per_s: per_s * by },
        RateSpec::Profile { points, shape, period_s } => RateSpec::Profile {
            points: points.iter().map(|(at, per_s)| (*at, per_s * by)).collect(),
            shape: *shape,
            period_s: *period_s,
        },
        RateSpec::Markov { states } => RateSpec::Markov {
            states: states
                .iter()
                .map(|s| MarkovState { per_s: s.per_s * by, ..s.clone() })
                .collect(),
        },
    }
}

fn scaled_lengths(lengths: &LengthsSpec, prompt_by: f64, output_by: f64) -> LengthsSpec {
    let scaled =
        |count: &CountSpec, by| CountSpec { dist: scaled_dist(&count.dist, by), ..count.clone() };
    match lengths {
        LengthsSpec::Independent { prompt, output } => LengthsSpec::Independent {
            prompt: scaled(prompt, prompt_by),
            output: scaled(output, output_by),
        },
        LengthsSpec::Rows { .. } => lengths.clone(),
    }
}

/// The distribution of a number of `dist` times `by`. Distributions of whole numbers stay as they
/// are.
fn scaled_dist(dist: &DistSpec, by: f64) -> DistSpec {
    match dist {
        DistSpec::Constant { value } => DistSpec::Constant { value: value * by },
        DistSpec::Uniform { low, high } => DistSpec::Uniform { low: low * by, high: high * by },
        DistSpec::Exponential { mean } => DistSpec::Exponential { mean: mean * by },
        DistSpec::LogNormal { median, sigma } => {
            DistSpec::LogNormal { median: median * by, sigma: *sigma }
        }
        DistSpec::Pareto { scale, alpha } => DistSpec::Pareto { scale: scale * by, alpha: *alpha },
        DistSpec::Gamma { mean, cv } => DistSpec::Gamma { mean: mean * by, cv: *cv },
        DistSpec::Weibull { mean, cv } => DistSpec::Weibull { mean: mean * by, cv: *cv },
        DistSpec::Integers { .. } | DistSpec::Zipf { .. } => dist.clone(),
        DistSpec::Mixture { parts } => DistSpec::Mixture {
            parts: parts
                .iter()
                .map(|p| Part { weight: p.weight, of: scaled_dist(&p.of, by) })
                .collect(),
        },
        DistSpec::Empirical { values } => {
            DistSpec::Empirical { values: values.iter().map(|v| v * by).collect() }
        }
    }
}
