//! Cost models as data: what a `cost.toml` holds, and the model made of it.

use dunlin_spec::{ComputeType, HardwareSpec, ModelShape, ParallelSpec};
use serde::{Deserialize, Serialize};

use crate::{
    CostError, FittedCost, LinearCost, OperatorProfile, Operators, Phase, PowerSpec, Roofline,
    SeqShape, StepCost, StepPrice, StepShape, ValueBytes, error::above_zero,
};

/// The version of [`CostFile`] that is written, and the only one that is read.
pub const COST_VERSION: u32 = 1;

/// A cost model with where it came from: what a file holds. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostFile {
    /// [`COST_VERSION`].
    pub version: u32,
    /// Where the numbers come from.
    #[serde(default)]
    pub source: String,
    /// The model.
    pub model: CostSpec,
}

impl CostFile {
    /// A file with this model.
    pub fn new(source: impl Into<String>, model: CostSpec) -> Self {
        Self { version: COST_VERSION, source: source.into(), model }
    }

    /// Makes the model ready to price steps.
    ///
    /// # Errors
    /// Another version, and values that make no sense.
    pub fn build(&self) -> Result<CostModel, CostError> {
        if self.version != COST_VERSION {
            let problem =
                format!("{} is not the version that is read, {COST_VERSION}", self.version);
            return Err(CostError::new("version", problem));
        }
        self.model.build().map_err(|e| e.within("model"))
    }
}

/// A cost model, described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CostSpec {
    /// Linear in sums over the step.
    Linear(LinearCost),
    /// The same, fitted to recorded steps.
    Fitted(FittedCost),
    /// Measured operators.
    Operators(Box<OperatorProfile>),
    /// Peak rates and bandwidths.
    Roofline(Box<RooflineSpec>),
    /// Several models, one after the other.
    Sum(SumSpec),
    /// A model whose decodes run in recorded graphs of certain sizes.
    Graphs(GraphsSpec),
    /// A model with a drafter before it.
    Speculative(SpeculativeSpec),
}

/// The times and energies of several models together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SumSpec {
    /// The models.
    pub parts: Vec<CostSpec>,
}

/// Steps of decodes alone are padded to the next size with sequences of one token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphsSpec {
    /// Sequences of the recorded graphs, rising. Larger steps are not padded.
    pub sizes: Vec<u32>,
    /// What the padded step costs.
    pub of: Box<CostSpec>,
}

/// A step that verifies drafts costs the drafter's steps, one for each draft token in a row, too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculativeSpec {
    /// The model that verifies.
    pub target: Box<CostSpec>,
    /// The model that drafts.
    pub drafter: Box<CostSpec>,
}

/// What a [`Roofline`] is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RooflineSpec {
    /// The model.
    pub model: ModelShape,
    /// The device.
    pub hardware: HardwareSpec,
    /// How the model is spread.
    #[serde(default)]
    pub parallel: ParallelSpec,
    /// What products are computed in.
    #[serde(default)]
    pub compute: ComputeType,
    /// Bytes of a weight.
    #[serde(default = "two")]
    pub weight_bytes: f64,
    /// Bytes of an activation.
    #[serde(default = "two")]
    pub activation_bytes: f64,
    /// Bytes of a value in the KV cache.
    #[serde(default = "two")]
    pub kv_bytes: f64,
    /// What the device draws; by its data sheet where it is not given.
    #[serde(default)]
    pub power: Option<PowerSpec>,
}

const fn two() -> f64 {
    2.0
}

impl RooflineSpec {
    /// The roofline.
    ///
    /// # Errors
    /// Values that make no sense.
    pub fn build(&self) -> Result<Roofline, CostError> {
        for (name, value) in [
            ("weight_bytes", self.weight_bytes),
            ("activation_bytes", self.activation_bytes),
            ("kv_bytes", self.kv_bytes),
        ] {
            above_zero(name, value)?;
        }
        let bytes = ValueBytes {
            weight: self.weight_bytes,
            activation: self.activation_bytes,
            kv: self.kv_bytes,
        };
        let model = self.model.spec().map_err(|e| CostError::from(e).within("model"))?;
        let roofline = Roofline::new(&model, &self.hardware, self.parallel, self.compute, bytes)?;
        match self.power {
            None => Ok(roofline),
            Some(power) => {
                power.validate().map_err(|e| e.within("power"))?;
                Ok(roofline.with_power(power))
            }
        }
    }
}

impl CostSpec {
    /// Makes the model ready.
    ///
    /// # Errors
    /// Values that make no sense.
    pub fn build(&self) -> Result<CostModel, CostError> {
        Ok(match self {
            Self::Linear(cost) => {
                cost.validate()?;
                CostModel::Linear(*cost)
            }
            Self::Fitted(cost) => {
                cost.validate()?;
                CostModel::Fitted(*cost)
            }
            Self::Operators(profile) => CostModel::Operators(Box::new(Operators::new(profile)?)),
            Self::Roofline(spec) => CostModel::Roofline(Box::new(spec.build()?)),
            Self::Sum(sum) => {
                if sum.parts.is_empty() {
                    return Err(CostError::new("parts", "a sum needs at least one part"));
                }
                let parts = sum.parts.iter().map(Self::build);
                CostModel::Sum(parts.collect::<Result<_, _>>().map_err(|e| e.within("parts"))?)
            }
            Self::Graphs(graphs) => {
                if graphs.sizes.windows(2).any(|w| w[0] >= w[1]) {
                    return Err(CostError::new("sizes", "sizes must rise"));
                }
                let of = graphs.of.build().map_err(|e| e.within("of"))?;
                CostModel::Graphs { sizes: graphs.sizes.clone(), of: Box::new(of) }
            }
            Self::Speculative(s) => CostModel::Speculative {
                target: Box::new(s.target.build().map_err(|e| e.within("target"))?),
                drafter: Box::new(s.drafter.build().map_err(|e| e.within("drafter"))?),
            },
        })
    }
}

/// A cost model that is ready: any of the kinds of [`CostSpec`].
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the kinds are those of CostSpec")]
pub enum CostModel {
    Linear(LinearCost),
    Fitted(FittedCost),
    Operators(Box<Operators>),
    Roofline(Box<Roofline>),
    Sum(Vec<CostModel>),
    Graphs { sizes: Vec<u32>, of: Box<CostModel> },
    Speculative { target: Box<CostModel>, drafter: Box<CostModel> },
}

impl StepCost for CostModel {
    fn price(&self, shape: &StepShape) -> StepPrice {
        match self {
            Self::Linear(cost) => cost.price(shape),
            Self::Fitted(cost) => cost.price(shape),
            Self::Operators(cost) => cost.price(shape),
            Self::Roofline(cost) => cost.price(shape),
            Self::Sum(parts) => {
                parts.iter().map(|p| p.price(shape)).reduce(together).unwrap_or_default()
            }
            Self::Graphs { sizes, of } => {
                let decodes = shape.seqs.iter().all(|s| s.phase == Phase::Decode);
                let n = shape.seqs.len();
                let next = sizes.partition_point(|s| (*s as usize) < n);
                let padding = sizes.get(next).map_or(0, |s| *s as usize - n);
                if n == 0 || !decodes || padding == 0 {
                    return of.price(shape);
                }
                let mut padded = shape.clone();
                let dummy = SeqShape { new_tokens: 1, context: 0, phase: Phase::Decode };
                padded.seqs.resize(n + padding, dummy);
                of.price(&padded)
            }
            Self::Speculative { target, drafter } => {
                let price = target.price(shape);
                let drafts = shape.seqs.iter().filter(|s| s.phase == Phase::Verify);
                let rounds = drafts.clone().map(|s| s.new_tokens.saturating_sub(1)).max();
                let rounds = u64::from(rounds.unwrap_or(0));
                if rounds == 0 {
                    return price;
                }
                let each = |s: &SeqShape| SeqShape { new_tokens: 1, phase: Phase::Decode, ..*s };
                let seqs: Vec<SeqShape> = drafts.map(each).collect();
                let sampled = seqs.len() as u32;
                let draft = drafter.price(&StepShape { seqs, sampled, experts: None });
                let drafting = StepPrice {
                    time_ns: draft.time_ns * rounds,
                    energy_uj: draft.energy_uj * rounds,
                    ..draft
                };
                together(price, drafting)
            }
        }
    }

    fn least_ns(&self) -> u64 {
        match self {
            Self::Linear(cost) => cost.least_ns(),
            Self::Fitted(cost) => cost.least_ns(),
            Self::Operators(cost) => cost.least_ns(),
            Self::Roofline(cost) => cost.least_ns(),
            Self::Sum(parts) => parts.iter().map(StepCost::least_ns).sum(),
            Self::Graphs { of, .. } => of.least_ns(),
            Self::Speculative { target, .. } => target.least_ns(),
        }
    }
}

/// One price after the other.
fn together(a: StepPrice, b: StepPrice) -> StepPrice {
    StepPrice {
        time_ns: a.time_ns + b.time_ns,
        energy_uj: a.energy_uj + b.energy_uj,
        extrapolated: a.extrapolated || b.extrapolated,
        bound: if a.time_ns >= b.time_ns { a.bound } else { b.bound },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(token_ns: f64) -> CostSpec {
        CostSpec::Linear(LinearCost { fixed_ns: 1000.0, token_ns, ..LinearCost::default() })
    }

    fn decodes(n: usize) -> StepShape {
        let seq = SeqShape { new_tokens: 1, context: 10, phase: Phase::Decode };
        StepShape { seqs: vec![seq; n], sampled: n as u32, experts: None }
    }

    #[test]
    fn composites_add_pad_and_draft() {
        let sum = CostSpec::Sum(SumSpec { parts: vec![linear(10.0), linear(1.0)] });
        assert_eq!(sum.build().unwrap().price(&decodes(3)).time_ns, 2033);
        let graphs = CostSpec::Graphs(GraphsSpec { sizes: vec![4, 8], of: Box::new(linear(10.0)) });
        let graphs = graphs.build().unwrap();
        let times = [1, 4, 5, 8, 9].map(|n| graphs.price(&decodes(n)).time_ns);
        assert_eq!(times, [1040, 1040, 1080, 1080, 1090]);
        let speculative = CostSpec::Speculative(SpeculativeSpec {
            target: Box::new(linear(10.0)),
            drafter: Box::new(linear(1.0)),
        });
        let speculative = speculative.build().unwrap();
        let mut shape = decodes(2);
        shape.seqs[0] = SeqShape { new_tokens: 4, context: 10, phase: Phase::Verify };
        // Five tokens are verified; one sequence drafts three times.
        assert_eq!(speculative.price(&shape).time_ns, 1050 + 3 * 1001);
        assert_eq!(speculative.price(&decodes(2)).time_ns, 1020);
    }

    #[test]
    fn files_are_read_as_they_are_written_and_nothing_else_is() {
        let file = CostFile::new("a test", CostSpec::Sum(SumSpec { parts: vec![linear(10.0)] }));
        let text = toml::to_string(&file).unwrap();
        assert_eq!(toml::from_str::<CostFile>(&text).unwrap(), file, "{text}");
        let read = |text: &str| toml::from_str::<CostFile>(text).map_err(|e| e.to_string());
        let unknown = read("version = 1\n[model]\nkind = 'linear'\nfixed_ms = 1.0\n").unwrap_err();
        assert!(unknown.contains("fixed_ms"), "{unknown}");
        assert!(read("version = 1\nspeed = 2\n[model]\nkind = 'linear'\n").is_err());
        assert!(read("version = 1\n[model]\nkind = 'guess'\n").is_err());
        let build = |text: &str| read(text).unwrap().build().unwrap_err().to_string();
        let newer = build("version = 2\n[model]\nkind = 'linear'\n");
        assert!(newer.contains("version"), "{newer}");
        let bad = build("version = 1\n[model]\nkind = 'linear'\ntoken_ns = nan\n");
        assert!(bad.contains("model.token_ns"), "{bad}");
        let bad = build("version = 1\n[model]\nkind = 'linear'\ntoken_ns = -1\n");
        assert!(bad.contains("-1"), "{bad}");
    }
}
