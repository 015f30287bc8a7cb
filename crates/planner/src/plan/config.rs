//! A plan's question as a file: TOML in which unknown keys are errors.

use std::path::PathBuf;

use dunlin_costmodel::PowerSpec;
use dunlin_router::PlacementKind;
use dunlin_spec::{ComputeType, HardwareSpec, ModelShape, ParallelSpec};
use serde::{Deserialize, Serialize};

use super::{PlanError, geo::Weights, site::SiteConfig};
use crate::workload::WorkloadConfig;

/// Candidates at most; more are not enumerated.
pub const MAX_CANDIDATES: usize = 200_000;

/// What is asked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanConfig {
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// The seed of all that is drawn.
    #[serde(default)]
    pub seed: u64,
    /// What is to be served.
    pub model: ModelConfig,
    /// Who asks for what and when.
    pub workload: WorkloadConfig,
    /// What must hold.
    #[serde(default)]
    pub goals: Goals,
    /// What to serve it on.
    pub hardware: Vec<HardwareChoice>,
    /// Where; without, at a place that adds nothing to the devices' own energy.
    #[serde(default)]
    pub sites: Vec<SiteConfig>,
    /// What to try.
    #[serde(default)]
    pub search: SearchConfig,
    /// Where users are, to spread their requests over the sites hour by hour.
    #[serde(default)]
    pub regions: Vec<RegionConfig>,
    /// What spreading trades off.
    #[serde(default)]
    pub weights: Weights,
}

/// Users of one part of the world.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionConfig {
    /// What it is called.
    pub name: String,
    /// Output tokens that they ask for: one number, or one for each hour of the day.
    pub tokens_per_hour: Vec<f64>,
    /// Milliseconds to each site and back, in the order of sites.
    pub network_ms: Vec<f64>,
}

impl RegionConfig {
    fn validate(&self, sites: usize) -> Result<(), PlanError> {
        if ![1, 24].contains(&self.tokens_per_hour.len()) {
            let problem = "it is one number, or one for each of the 24 hours of the day";
            return Err(PlanError::value("tokens_per_hour", problem));
        }
        if self.network_ms.len() != sites {
            let problem = format!("{} numbers for {sites} sites", self.network_ms.len());
            return Err(PlanError::value("network_ms", problem));
        }
        let all = self.tokens_per_hour.iter().chain(&self.network_ms);
        match all.clone().find(|v| !(v.is_finite() && **v >= 0.0)) {
            Some(bad) => {
                let problem = format!("{bad} should be a number from 0 on");
                Err(PlanError::value("tokens_per_hour or network_ms", problem))
            }
            None => Ok(()),
        }
    }
}

/// The model, as far as its cost depends on it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The model in a dozen numbers.
    #[serde(default)]
    pub shape: Option<ModelShape>,
    /// A model file whose numbers are taken, beside the plan's file.
    #[serde(default)]
    pub file: Option<PathBuf>,
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
}

const fn two() -> f64 {
    2.0
}

/// What must hold. What is not given does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Goals {
    /// A request is good if its first token comes within this,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// its tokens on average within this,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// and its last within this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
    /// Of all requests, the share that must be good; 0.99 where not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub good_share: Option<f64>,
    /// Money an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_hour: Option<f64>,
    /// Money for a million output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_mtok: Option<f64>,
    /// Joules of facility energy for an output token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
    /// Grams of CO2-equivalent for a million output tokens, making the hardware included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gco2_per_mtok: Option<f64>,
    /// Litres of water for a million output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub litres_per_mtok: Option<f64>,
    /// Watts on average at the facility's meter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facility_watts: Option<f64>,
}

impl Goals {
    /// The share of requests that must be good.
    pub fn share(&self) -> f64 {
        self.good_share.unwrap_or(0.99)
    }

    fn validate(&self) -> Result<(), PlanError> {
        let all = [
            ("ttft_ms", self.ttft_ms),
            ("tpot_ms", self.tpot_ms),
            ("e2e_ms", self.e2e_ms),
            ("cost_per_hour", self.cost_per_hour),
            ("cost_per_mtok", self.cost_per_mtok),
            ("joules_per_token", self.joules_per_token),
            ("gco2_per_mtok", self.gco2_per_mtok),
            ("litres_per_mtok", self.litres_per_mtok),
            ("facility_watts", self.facility_watts),
        ];
        for (name, value) in all {
            if let Some(value) = value.filter(|v| !(v.is_finite() && *v > 0.0)) {
                let problem = format!("{value} is no goal; it should be a number above zero");
                return Err(PlanError::value(format!("goals.{name}"), problem));
            }
        }
        if !(self.share() > 0.0 && self.share() <= 1.0) {
            let problem = format!("{} should be above 0 and at most 1", self.share());
            return Err(PlanError::value("goals.good_share", problem));
        }
        Ok(())
    }
}

/// A kind of device to serve on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HardwareChoice {
    /// The device, with its price.
    pub device: HardwareSpec,
    /// What it draws; by its data sheet where not given.
    #[serde(default)]
    pub power: Option<PowerSpec>,
    /// A cost model in a file (of `dunlin calibrate`), in place of a roofline. KV memory is then
    /// `kv_tokens`.
    #[serde(default)]
    pub cost_file: Option<PathBuf>,
    /// KV positions in the memory of a replica with a cost model from a file.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// How the model may be spread over devices.
    #[serde(default = "one_way")]
    pub parallel: Vec<ParallelSpec>,
    /// How many replicas there may be.
    pub replicas: Counts,
    /// The share of memory that may be used.
    #[serde(default = "usual_share")]
    pub memory_share: f64,
    /// Bytes a second of a replica's link to others, for hand-over of KV; 0 where it hands none over.
    #[serde(default)]
    pub link_bytes_per_s: u64,
    /// Clocks to try, of the full one.
    #[serde(default = "full_clock")]
    pub clocks: Vec<f64>,
}

fn one_way() -> Vec<ParallelSpec> {
    vec![ParallelSpec::default()]
}

const fn usual_share() -> f64 {
    0.9
}

fn full_clock() -> Vec<f64> {
    vec![1.0]
}

/// Numbers to try.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Counts {
    /// These.
    List(Vec<u32>),
    /// All from one to another.
    Range(CountRange),
}

/// All numbers from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRange {
    /// The fewest.
    pub least: u32,
    /// The most.
    pub most: u32,
}

impl Counts {
    /// The numbers, rising.
    pub fn values(&self) -> Vec<u32> {
        let mut all = match self {
            Self::List(list) => list.clone(),
            Self::Range(range) => (range.least..=range.most).collect(),
        };
        all.sort_unstable();
        all.dedup();
        all
    }

    fn validate(&self, key: &str) -> Result<(), PlanError> {
        let (first, last, empty) = match self {
            Self::List(l) => (l.iter().min().copied(), l.iter().max().copied(), l.is_empty()),
            Self::Range(r) => (Some(r.least), Some(r.most), r.least > r.most),
        };
        if empty || first == Some(0) || last > Some(4096) {
            let problem = "it should be a list of numbers from 1 to 4,096, or { least, most }";
            return Err(PlanError::value(key, problem));
        }
        Ok(())
    }
}

/// What to try, and how hard.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchConfig {
    /// Sequences that run at once on a replica.
    pub max_running: Vec<u32>,
    /// Tokens of a step.
    pub max_step_tokens: Vec<u32>,
    /// How much prompt goes beside decodes: `full`, a number of tokens, or a percentage.
    pub chunking: Vec<String>,
    /// Which replica a request goes to.
    pub placement: PlacementKind,
    /// Tokens of a KV block.
    pub block_tokens: u32,
    /// Whether to try prefill and decode on different replicas, of every pair of kinds of hardware
    /// whose links have bandwidth.
    pub disaggregated: bool,
    /// What the front trades off, and in which order plans are preferred: `cost`, `energy`,
    /// `carbon`, `water`, `ttft`, `tpot`, `e2e`.
    pub objectives: Vec<Objective>,
    /// Requests of a replication.
    pub requests: usize,
    /// Replications of those that are left at the end, at least two.
    pub replications: usize,
    /// How much faster than the closed form says a replica may be before the form rules it out:
    /// prefixes that are shared and computed once make it so.
    pub capacity_margin: f64,
    /// Whether a queueing estimate of the time between tokens under load rules candidates out.
    pub queueing_estimate: bool,
    /// Threads that simulate.
    pub threads: usize,
}

impl Default for SearchConfig {
    fn default() -> Self {
        Self {
            max_running: vec![256],
            max_step_tokens: vec![2048],
            chunking: vec!["full".into()],
            placement: PlacementKind::LeastLoaded,
            block_tokens: 16,
            disaggregated: false,
            objectives: vec![Objective::Cost, Objective::Ttft],
            requests: 2000,
            replications: 5,
            capacity_margin: 1.25,
            queueing_estimate: true,
            threads: 1,
        }
    }
}

/// What a plan is good for; less is better of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Money an hour.
    Cost,
    /// Joules for an output token, at the facility's meter.
    Energy,
    /// Grams of CO2-equivalent for a million output tokens.
    Carbon,
    /// Litres for a million output tokens.
    Water,
    /// Milliseconds to the first token, 99th percentile.
    Ttft,
    /// Milliseconds between tokens, 99th percentile of requests.
    Tpot,
    /// Milliseconds to the last token, 99th percentile.
    E2e,
}

impl PlanConfig {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut config: Self = toml::from_str(text).map_err(|e| PlanError::Toml(e.to_string()))?;
        for (i, site) in config.sites.iter_mut().enumerate() {
            site.look_up().map_err(|e| e.within(&format!("sites[{i}]")))?;
        }
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), PlanError> {
        self.goals.validate()?;
        if self.hardware.is_empty() {
            return Err(PlanError::value("hardware", "there is none to choose from"));
        }
        match (&self.model.shape, &self.model.file) {
            (Some(_), Some(_)) | (None, None) => {
                return Err(PlanError::value("model", "give one of `shape` and `file`"));
            }
            _ => {}
        }
        for (i, choice) in self.hardware.iter().enumerate() {
            choice.validate().map_err(|e| e.within(&format!("hardware[{i}]")))?;
        }
        for (i, site) in self.sites.iter().enumerate() {
            site.validate().map_err(|e| e.within(&format!("sites[{i}]")))?;
        }
        for (i, region) in self.regions.iter().enumerate() {
            let at = format!("regions[{i}]");
            region.validate(self.sites.len()).map_err(|e| e.within(&at))?;
        }
        if !self.regions.is_empty() {
            self.weights.validate().map_err(|e| e.within("weights"))?;
            let without = self.sites.iter().position(|s| s.tokens_per_hour.is_none());
            if let Some(i) = without {
                let problem = "where there are regions, each site says how many tokens it serves";
                return Err(PlanError::value(format!("sites[{i}].tokens_per_hour"), problem));
            }
        }
        self.search.validate().map_err(|e| e.within("search"))
    }
}

impl HardwareChoice {
    fn validate(&self) -> Result<(), PlanError> {
        let value = |e: dunlin_spec::SpecError| PlanError::value(e.field, e.problem);
        self.device.validate().map_err(|e| value(e).within("device"))?;
        self.replicas.validate("replicas")?;
        if self.parallel.is_empty() || self.clocks.is_empty() {
            return Err(PlanError::value("parallel", "it and `clocks` have at least one entry"));
        }
        if !(self.memory_share > 0.0 && self.memory_share <= 1.0) {
            let problem = format!("{} should be above 0 and at most 1", self.memory_share);
            return Err(PlanError::value("memory_share", problem));
        }
        if let Some(bad) = self.clocks.iter().find(|c| !(**c > 0.0 && **c <= 1.0)) {
            return Err(PlanError::value(
                "clocks",
                format!("{bad} should be above 0 and at most 1"),
            ));
        }
        if self.cost_file.is_some() {
            if self.kv_tokens.is_none_or(|t| t == 0) {
                let problem =
                    "a cost model from a file does not say how much KV there is; give this";
                return Err(PlanError::value("kv_tokens", problem));
            }
            if self.clocks != [1.0] {
                let problem = "a cost model from a file is of one clock, which is 1";
                return Err(PlanError::value("clocks", problem));
            }
        }
        Ok(())
    }
}

impl SearchConfig {
    fn validate(&self) -> Result<(), PlanError> {
        let lists =
            [("max_running", &self.max_running), ("max_step_tokens", &self.max_step_tokens)];
        for (name, list) in lists {
            if list.is_empty() || list.contains(&0) {
                return Err(PlanError::value(name, "it is a list of numbers above zero"));
            }
        }
        if self.chunking.is_empty() {
            return Err(PlanError::value("chunking", "it has at least one entry"));
        }
        if self.objectives.is_empty() {
            return Err(PlanError::value("objectives", "it has at least one entry"));
        }
        if !(2..=100).contains(&self.replications) {
            let problem = format!("{} should be from 2 to 100", self.replications);
            return Err(PlanError::value("replications", problem));
        }
        if !(10..=10_000_000).contains(&self.requests) {
            let problem = format!("{} should be from 10 to 10,000,000", self.requests);
            return Err(PlanError::value("requests", problem));
        }
        if !(1..=1 << 16).contains(&self.block_tokens) {
            return Err(PlanError::value("block_tokens", "it should be from 1 to 65,536"));
        }
        if !(self.capacity_margin >= 1.0 && self.capacity_margin.is_finite()) {
            let problem = format!("{} should be 1 or more", self.capacity_margin);
            return Err(PlanError::value("capacity_margin", problem));
        }
        Ok(())
    }
}
