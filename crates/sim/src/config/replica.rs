//! A group of equal replicas, described.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use dunlin_costmodel::{CostFile, CostModel, CostSpec, Link, Roofline};
use dunlin_kvcache::{CacheConfig, EvictionKind};
use dunlin_scheduler::{Admission, CoreConfig, policy::PolicyKind};
use serde::Deserialize;

use super::{ConfigFileError, US, nanoseconds};
use crate::{
    CERTAIN, ExpertSpec, ExpertSpread, Prediction, ReplicaSpec, Role, SharedCost, Speculation,
    Tier, afd::AfdCost,
};

/// Equal replicas.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaGroup {
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// What they do.
    #[serde(default)]
    pub role: Role,
    /// Their speed beside others', for placement.
    #[serde(default = "one")]
    pub weight: u32,
    /// What a step costs.
    #[serde(default)]
    pub cost: Option<CostSpec>,
    /// The same in a file of its own.
    #[serde(default)]
    pub cost_file: Option<PathBuf>,
    /// What goes into a step.
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    /// KV memory.
    pub kv: KvConfig,
    /// What the host needs between steps; hidden where two steps may be in flight.
    #[serde(default)]
    pub host_us: f64,
    /// What is drawn beside the energy of steps.
    #[serde(default)]
    pub idle_watts: f64,
    /// Carbon of making the replica's machines, in grams of CO2-equivalent.
    #[serde(default)]
    pub embodied_gco2: f64,
    /// Hours of use over which that is spread.
    #[serde(default)]
    pub lifetime_hours: Option<f64>,
    /// To and from other replicas, for each device.
    #[serde(default)]
    pub link_bytes_per_s: u64,
    /// A drafter.
    #[serde(default)]
    pub speculation: Option<SpeculationConfig>,
    /// How tokens spread over experts.
    #[serde(default)]
    pub experts: Option<ExpertConfig>,
    /// Feed-forward networks on devices of their own; `cost` is then that of attention.
    #[serde(default)]
    pub ffn: Option<FfnConfig>,
}

const fn one() -> u32 {
    1
}

/// What goes into a step.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// The order in which requests are taken on.
    pub policy: String,
    /// How much memory a request must find: `headroom`, or `prompt` as vLLM has it.
    pub admission: Admission,
    /// Tokens of a step at most.
    pub max_step_tokens: u32,
    /// Sequences that run at once at most.
    pub max_running: u32,
    /// Requests that wait at most.
    pub max_waiting: u32,
    /// How much prompt goes beside decodes: `full`, a number of tokens, or a percentage.
    pub chunking: String,
    /// 2 to plan a step while another runs.
    pub steps_in_flight: u32,
    /// The most output tokens that a request may ask for.
    pub max_output_tokens: Option<u32>,
    /// What the scheduler is told of output lengths: `none`, `oracle`, or an error in percent.
    pub predicted_lengths: String,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: "fcfs".into(),
            max_step_tokens: 2048,
            max_running: 256,
            max_waiting: 1 << 20,
            chunking: "full".into(),
            steps_in_flight: 1,
            admission: Admission::default(),
            max_output_tokens: None,
            predicted_lengths: "none".into(),
        }
    }
}

/// KV memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvConfig {
    /// Tokens of a block.
    #[serde(default = "usual_block")]
    pub block_tokens: usize,
    /// Blocks in memory. Without, as many as fit beside the weights of a roofline's model.
    #[serde(default)]
    pub blocks: Option<usize>,
    /// The share of a device's memory that may be used, where blocks are as many as fit.
    #[serde(default = "usual_share")]
    pub memory_share: f64,
    /// Bytes of it that activations take.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Bytes of a token's KV on one device; a roofline knows.
    #[serde(default)]
    pub token_bytes: Option<u64>,
    /// Bytes of a device's memory: with them, a number of blocks that is given is checked.
    #[serde(default)]
    pub device_bytes: Option<u64>,
    /// Bytes of weights on one device, for that check.
    #[serde(default)]
    pub weight_bytes: u64,
    /// Whether prompts share what begins alike.
    #[serde(default = "yes")]
    pub prefix_cache: bool,
    /// Which block goes first.
    #[serde(default = "usual_eviction")]
    pub eviction: EvictionKind,
    /// Blocks of the tier below memory.
    #[serde(default)]
    pub tier_blocks: usize,
    /// What that tier moves.
    #[serde(default = "usual_tier")]
    pub tier_bytes_per_s: u64,
    /// Before a move's first byte.
    #[serde(default = "usual_latency")]
    pub tier_latency_us: f64,
}

const fn usual_block() -> usize {
    16
}

const fn usual_share() -> f64 {
    0.9
}

const fn yes() -> bool {
    true
}

const fn usual_eviction() -> EvictionKind {
    EvictionKind::Lru
}

const fn usual_tier() -> u64 {
    3_000_000_000
}

const fn usual_latency() -> f64 {
    100.0
}

/// A drafter, by its effect.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculationConfig {
    /// For each draft token, the chance that it is accepted, given that those before it were.
    pub acceptance: Vec<f64>,
    /// What drafting takes in a step.
    #[serde(default)]
    pub step_us: f64,
    /// And for each draft token.
    #[serde(default)]
    pub token_us: f64,
}

/// Feed-forward networks on devices of their own.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FfnConfig {
    /// What those of all layers cost on one of their devices.
    pub cost: CostSpec,
    /// Layers.
    pub layers: u32,
    /// Micro-batches that a step is cut into.
    pub micro_batches: u32,
    /// Devices with attention.
    pub attention_devices: u32,
    /// Devices with feed-forward networks.
    pub ffn_devices: u32,
    /// Bytes of a token's row between the two.
    pub row_bytes: f64,
    /// The link between the two.
    pub link: Link,
}

/// How tokens spread over experts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertConfig {
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a token uses.
    pub used: u32,
    /// Ranks that they are spread over.
    pub ranks: u32,
    /// The exponent of a power law; 0 or none for an even spread.
    #[serde(default)]
    pub exponent: f64,
    /// A file of recorded steps: the tokens of each expert in a layer, a line of comma-separated
    /// numbers a step.
    #[serde(default)]
    pub recorded: Option<PathBuf>,
}

/// A cost model, from the table or from the file.
///
/// # Errors
/// Neither or both; a file that cannot be read; values that make no sense.
pub fn build_cost(
    cost: Option<&CostSpec>,
    file: Option<&Path>,
    folder: &Path,
) -> Result<CostModel, ConfigFileError> {
    match (cost, file) {
        (Some(cost), None) => cost.build().map_err(|e| ConfigFileError::value("cost", e)),
        (None, Some(file)) => {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigFileError::Io { path: path.clone(), source })?;
            let read: CostFile = toml::from_str(&text).map_err(|e| ConfigFileError::Toml {
                path: path.clone(),
                message: e.to_string(),
            })?;
            read.build().map_err(|e| ConfigFileError::Toml { path, message: e.to_string() })
        }
        _ => Err(ConfigFileError::value("cost", "give either `cost` or `cost_file`")),
    }
}

/// The roofline in a cost model, if there is one: it knows sizes.
fn roofline(cost: &CostModel) -> Option<&Roofline> {
    match cost {
        CostModel::Roofline(roofline) => Some(roofline),
        CostModel::Sum(parts) => parts.iter().find_map(roofline),
        CostModel::Graphs { of, .. } => roofline(of),
        CostModel::Speculative { target, .. } => roofline(target),
        _ => None,
    }
}

impl KvConfig {
    /// Whether so many blocks fit beside the weights, where the device's memory is given.
    fn check(&self, blocks: usize, block_bytes: u64) -> Result<(), ConfigFileError> {
        let Some(device) = self.device_bytes else { return Ok(()) };
        if block_bytes == 0 {
            let problem = "say how many bytes a token's KV takes, or blocks cannot be checked";
            return Err(ConfigFileError::value("kv.token_bytes", problem));
        }
        let usable = (device as f64 * self.memory_share) as u64;
        let room = usable.saturating_sub(self.weight_bytes).saturating_sub(self.reserved_bytes);
        let most = room / block_bytes;
        if blocks as u64 <= most {
            return Ok(());
        }
        let needed = (blocks as u64).saturating_mul(block_bytes);
        let problem = format!(
            "{blocks} blocks take {needed} bytes and {room} are left of the {usable} that may be \
             used beside weights and activations: {most} fit, or a device of {} bytes",
            ((needed + self.weight_bytes + self.reserved_bytes) as f64 / self.memory_share) as u64
        );
        Err(ConfigFileError::value("kv.blocks", problem))
    }
}

impl ReplicaGroup {
    pub(super) fn build(
        &self,
        folder: &Path,
        files: &mut BTreeMap<PathBuf, Arc<CostModel>>,
    ) -> Result<ReplicaSpec, ConfigFileError> {
        let cached = self.cost_file.as_ref().and_then(|f| files.get(f)).map(Arc::clone);
        let cost = match cached {
            Some(cost) => cost,
            None => {
                let file = self.cost_file.as_deref();
                Arc::new(build_cost(self.cost.as_ref(), file, folder)?)
            }
        };
        if let Some(file) = &self.cost_file {
            files.insert(file.clone(), Arc::clone(&cost));
        }
        let (block_bytes, blocks) = self.memory(&cost)?;
        let cost: SharedCost = match &self.ffn {
            None => cost,
            Some(ffn) => Arc::new(apart(cost, ffn)?),
        };
        let mut spec = ReplicaSpec::new(self.core(blocks, block_bytes)?, cost);
        spec.host_ns = nanoseconds("host_us", self.host_us, US)?;
        spec.weight = self.weight.max(1);
        spec.max_output_tokens = self.scheduler.max_output_tokens;
        spec.prediction = prediction(&self.scheduler.predicted_lengths)?;
        spec.role = self.role;
        spec.link_bytes_per_s = self.link_bytes_per_s;
        spec.block_bytes = block_bytes;
        spec.tier = Tier {
            bytes_per_s: self.kv.tier_bytes_per_s.max(1),
            latency_ns: nanoseconds("kv.tier_latency_us", self.kv.tier_latency_us, US)?,
        };
        if !(0.0..=1e9).contains(&self.idle_watts) {
            let problem = format!("{} should be a number from 0 on", self.idle_watts);
            return Err(ConfigFileError::value("idle_watts", problem));
        }
        spec.idle_uw = (self.idle_watts * 1e6 + 0.5) as u64;
        spec.embodied_ugco2_per_hour = self.embodied()?;
        spec.speculation = self.speculation.as_ref().map(speculation).transpose()?;
        spec.experts = self.experts.as_ref().map(|e| experts(e, folder)).transpose()?;
        Ok(spec)
    }

    /// Micrograms of CO2-equivalent of making it, for each hour of its life.
    fn embodied(&self) -> Result<u64, ConfigFileError> {
        if !(0.0..=1e12).contains(&self.embodied_gco2) {
            let problem = format!("{} should be a number of grams from 0 on", self.embodied_gco2);
            return Err(ConfigFileError::value("embodied_gco2", problem));
        }
        let Some(hours) = self.lifetime_hours else {
            if self.embodied_gco2 > 0.0 {
                let problem = "it is needed with `embodied_gco2`; 35,064 are four years";
                return Err(ConfigFileError::value("lifetime_hours", problem));
            }
            return Ok(0);
        };
        if !(1.0..=1e7).contains(&hours) {
            let problem = format!("{hours} should be from an hour to ten million");
            return Err(ConfigFileError::value("lifetime_hours", problem));
        }
        Ok((self.embodied_gco2 * 1e6 / hours + 0.5) as u64)
    }

    /// Bytes of a KV block, and how many blocks there are.
    fn memory(&self, cost: &CostModel) -> Result<(u64, usize), ConfigFileError> {
        let kv = &self.kv;
        if kv.block_tokens == 0 || kv.block_tokens > 1 << 16 {
            return Err(ConfigFileError::value("kv.block_tokens", "it should be from 1 to 65,536"));
        }
        let roofline = roofline(cost);
        let token_bytes = kv
            .token_bytes
            .unwrap_or_else(|| roofline.map_or(0, |r| r.kv_bytes_per_token_per_device() as u64));
        let block_bytes = token_bytes.saturating_mul(kv.block_tokens as u64);
        let blocks = match (kv.blocks, roofline) {
            (Some(blocks), _) => {
                kv.check(blocks, block_bytes)?;
                blocks
            }
            (None, Some(roofline)) => {
                if !(kv.memory_share > 0.0 && kv.memory_share <= 1.0) {
                    let problem = format!("{} should be above 0 and at most 1", kv.memory_share);
                    return Err(ConfigFileError::value("kv.memory_share", problem));
                }
                let fit =
                    roofline.kv_blocks(kv.block_tokens as u32, kv.memory_share, kv.reserved_bytes);
                fit.map_err(|e| ConfigFileError::value("kv", e))? as usize
            }
            (None, None) => {
                let problem =
                    "say how many blocks there are; only a roofline's model knows by itself";
                return Err(ConfigFileError::value("kv.blocks", problem));
            }
        };
        if blocks.saturating_add(kv.tier_blocks) >= 1 << 31 {
            return Err(ConfigFileError::value("kv.blocks", "there are fewer than 2^31 blocks"));
        }
        Ok((block_bytes, blocks))
    }

    fn core(&self, blocks: usize, block_bytes: u64) -> Result<CoreConfig, ConfigFileError> {
        let (s, kv) = (&self.scheduler, &self.kv);
        let cache = CacheConfig {
            block_tokens: kv.block_tokens,
            block_count: blocks,
            disk_slots: kv.tier_blocks,
            eviction: kv.eviction,
            prefix_cache: kv.prefix_cache,
            hash_seed: 1,
        };
        let mut core = CoreConfig::new(cache, s.max_step_tokens);
        core.max_running = s.max_running;
        core.max_waiting = s.max_waiting;
        core.steps_in_flight = s.steps_in_flight;
        core.admission = s.admission;
        let value = |key: &str, e: &dyn std::fmt::Display| ConfigFileError::value(key, e);
        core.chunking = s.chunking.parse().map_err(|e| value("scheduler.chunking", &e))?;
        core.policy = s.policy.parse::<PolicyKind>().map_err(|e| value("scheduler.policy", &e))?;
        core.swap.block_bytes = block_bytes;
        core.swap.bytes_per_s = kv.tier_bytes_per_s;
        core.validate().map_err(|e| value("scheduler", &e))?;
        Ok(core)
    }
}

/// Attention and feed-forward networks on devices of their own.
fn apart(attention: Arc<CostModel>, f: &FfnConfig) -> Result<AfdCost, ConfigFileError> {
    for (key, value) in [
        ("ffn.layers", f.layers),
        ("ffn.micro_batches", f.micro_batches),
        ("ffn.attention_devices", f.attention_devices),
        ("ffn.ffn_devices", f.ffn_devices),
    ] {
        if !(1..=4096).contains(&value) {
            return Err(ConfigFileError::value(key, format!("{value} should be from 1 to 4,096")));
        }
    }
    let link = f.link.bytes_per_s > 0.0 && f.link.latency_ns >= 0.0 && f.row_bytes >= 0.0;
    if !link {
        let problem = "a link carries something, after a latency of 0 or more";
        return Err(ConfigFileError::value("ffn.link", problem));
    }
    let ffn = f.cost.build().map_err(|e| ConfigFileError::value("ffn.cost", e))?;
    Ok(AfdCost {
        attention,
        ffn: Arc::new(ffn),
        layers: f.layers,
        micro_batches: f.micro_batches,
        attention_devices: f.attention_devices,
        ffn_devices: f.ffn_devices,
        row_bytes: f.row_bytes,
        link: f.link,
    })
}

fn prediction(text: &str) -> Result<Prediction, ConfigFileError> {
    match text {
        "none" => Ok(Prediction::None),
        "oracle" => Ok(Prediction::Oracle),
        _ => match text.strip_suffix('%').and_then(|n| n.parse().ok()) {
            Some(percent) => Ok(Prediction::Noisy { percent }),
            None => {
                let problem =
                    format!("{text:?} should be `none`, `oracle`, or an error like `30%`");
                Err(ConfigFileError::value("scheduler.predicted_lengths", problem))
            }
        },
    }
}

fn speculation(s: &SpeculationConfig) -> Result<Speculation, ConfigFileError> {
    let chance = |&a: &f64| {
        if !(0.0..=1.0).contains(&a) {
            let problem = format!("{a} is no chance; it should be from 0 to 1");
            return Err(ConfigFileError::value("speculation.acceptance", problem));
        }
        Ok((a * f64::from(CERTAIN) + 0.5) as u32)
    };
    if s.acceptance.is_empty() || s.acceptance.len() > 64 {
        let problem = "there should be a chance for each draft token, 1 to 64 of them";
        return Err(ConfigFileError::value("speculation.acceptance", problem));
    }
    Ok(Speculation {
        acceptance: s.acceptance.iter().map(chance).collect::<Result<_, _>>()?,
        step_ns: nanoseconds("speculation.step_us", s.step_us, US)?,
        token_ns: nanoseconds("speculation.token_us", s.token_us, US)?,
    })
}

fn experts(e: &ExpertConfig, folder: &Path) -> Result<ExpertSpec, ConfigFileError> {
    let bad = |key: &str, problem: String| Err(ConfigFileError::value(key, problem));
    if e.experts == 0 || e.experts > 4096 || e.used == 0 || e.used > e.experts {
        let problem =
            format!("{} of {}: there are 1 to 4,096, and a token uses some", e.used, e.experts);
        return bad("experts.used", problem);
    }
    if e.ranks == 0 || e.ranks > e.experts {
        return bad("experts.ranks", format!("{} should be from 1 to {}", e.ranks, e.experts));
    }
    if !(0.0..=10.0).contains(&e.exponent) {
        return bad("experts.exponent", format!("{} should be from 0 to 10", e.exponent));
    }
    let spread = match &e.recorded {
        None if e.exponent == 0.0 => ExpertSpread::Balanced,
        None => ExpertSpread::PowerLaw { exponent: e.exponent },
        Some(file) => {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ConfigFileError::Io { path: path.clone(), source })?;
            let mut rows = Vec::new();
            for (number, line) in text.lines().enumerate().filter(|l| !l.1.trim().is_empty()) {
                let row: Result<Box<[u32]>, _> =
                    line.split(',').map(|n| n.trim().parse::<u32>()).collect();
                match row {
                    Ok(row) if row.len() == e.experts as usize => rows.push(row),
                    _ => {
                        let message =
                            format!("line {}: not {} whole numbers", number + 1, e.experts);
                        return Err(ConfigFileError::Toml { path, message });
                    }
                }
            }
            if rows.is_empty() {
                return Err(ConfigFileError::Toml { path, message: "there are no rows".into() });
            }
            ExpertSpread::Recorded { rows: rows.into() }
        }
    };
    Ok(ExpertSpec { experts: e.experts, used: e.used, ranks: e.ranks, spread })
}
