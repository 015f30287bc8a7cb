//! Configurations to try, and the clusters that they are.

use std::{collections::BTreeMap, fmt, sync::Arc};

use dunlin_costmodel::{CostModel, MemoryError, PowerSpec, Roofline, ValueBytes};
use dunlin_kvcache::{CacheConfig, EvictionKind};
use dunlin_scheduler::{Chunking, CoreConfig};
use dunlin_sim::{ClusterSpec, ReplicaSpec, Role, SharedCost, metrics::Slo};
use dunlin_spec::{HardwareSpec, ModelSpec, ParallelSpec};
use serde::Serialize;

use super::{
    PlanError,
    config::{HardwareChoice, MAX_CANDIDATES, ModelConfig, PlanConfig},
    site::SiteConfig,
};

/// Everything that a candidate of a kind of hardware needs, made once: hardware, spread and clock.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Which entry of `hardware`.
    pub hardware: usize,
    /// The device.
    pub device: HardwareSpec,
    /// How the model is spread.
    pub parallel: ParallelSpec,
    /// The clock, of the full one.
    pub clock: f64,
    /// What steps cost.
    pub cost: Arc<CostModel>,
    /// The roofline in it, if that is what it is.
    pub roofline: Option<Arc<Roofline>>,
    /// KV blocks of a replica.
    pub blocks: u64,
    /// Bytes of one on all devices together.
    pub block_bytes: u64,
    /// Bytes a second of a replica's link.
    pub link_bytes_per_s: u64,
    /// What a device draws when it does nothing.
    pub idle_watts: f64,
}

impl Engine {
    /// Devices of a replica.
    pub fn devices(&self) -> u32 {
        self.parallel.devices()
    }
}

/// Equal replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Which engine.
    pub engine: usize,
    /// How many.
    pub replicas: u32,
}

/// A configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    /// Which site.
    pub site: usize,
    /// The replicas; where prefill and decode are apart, those that prefill.
    pub group: Group,
    /// Those that decode, where they are apart.
    pub decode: Option<Group>,
    /// Sequences that run at once on a replica.
    pub max_running: u32,
    /// Tokens of a step.
    pub max_step_tokens: u32,
    /// Which entry of `search.chunking`.
    pub chunking: usize,
}

/// A candidate for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct Described {
    pub site: String,
    pub groups: Vec<DescribedGroup>,
    pub devices: u32,
    pub max_running: u32,
    pub max_step_tokens: u32,
    pub chunking: String,
}

/// Equal replicas, for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "they are what their names say")]
pub struct DescribedGroup {
    pub role: Role,
    pub replicas: u32,
    pub device: String,
    pub tensor: u32,
    pub pipeline: u32,
    pub data: u32,
    pub expert: u32,
    pub clock: f64,
    pub kv_blocks: u64,
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, g) in self.groups.iter().enumerate() {
            let plus = if place > 0 { " + " } else { "" };
            let role = match g.role {
                Role::Prefill => " prefill",
                Role::Decode => " decode",
                Role::Mixed => "",
            };
            write!(f, "{plus}{}{role} x {}", g.replicas, g.device)?;
            for (name, degree) in [("tp", g.tensor), ("pp", g.pipeline), ("dp", g.data)] {
                if degree > 1 {
                    write!(f, " {name}{degree}")?;
                }
            }
            if g.clock < 1.0 {
                write!(f, " at {:.0}% clock", g.clock * 100.0)?;
            }
        }
        write!(f, ", {} running, chunking {}, {}", self.max_running, self.chunking, self.site)
    }
}

/// The candidates, and what they share.
#[derive(Debug, Clone)]
pub struct Space {
    /// Hardware, spread and clock.
    pub engines: Vec<Engine>,
    /// Places.
    pub sites: Vec<SiteConfig>,
    /// Ways to cut prompts.
    pub chunkings: Vec<(String, Chunking)>,
    /// The candidates, in a fixed order.
    pub candidates: Vec<Candidate>,
    /// Spreads that do not fit, with what would.
    pub too_large: Vec<(String, MemoryError)>,
}

/// Cost models that files hold, by their names in the plan.
pub type CostFiles = BTreeMap<std::path::PathBuf, Arc<CostModel>>;

impl Space {
    /// Enumerates.
    ///
    /// # Errors
    /// Values that make no sense, and more candidates than can be tried.
    pub fn new(
        config: &PlanConfig,
        model: &ModelSpec,
        files: &CostFiles,
    ) -> Result<Self, PlanError> {
        let sites = match config.sites.as_slice() {
            [] => vec![SiteConfig::default()],
            sites => sites.to_vec(),
        };
        let chunkings = config.search.chunking.iter().map(|text| {
            let chunking = text.parse().map_err(|e| PlanError::value("search.chunking", e))?;
            Ok((text.clone(), chunking))
        });
        let chunkings = chunkings.collect::<Result<_, PlanError>>()?;
        let (mut engines, mut too_large) = (Vec::new(), Vec::new());
        for (index, choice) in config.hardware.iter().enumerate() {
            let built = engines_of(config, index, choice, model, files, &mut too_large);
            engines.extend(built.map_err(|e| e.within(&format!("hardware[{index}]")))?);
        }
        let mut space = Self { engines, sites, chunkings, candidates: Vec::new(), too_large };
        space.enumerate(config)?;
        Ok(space)
    }

    fn enumerate(&mut self, config: &PlanConfig) -> Result<(), PlanError> {
        let mut layouts: Vec<(Group, Option<Group>)> = Vec::new();
        let counts = |engine: &Engine| config.hardware[engine.hardware].replicas.values();
        for (engine, of) in self.engines.iter().enumerate() {
            layouts
                .extend(counts(of).into_iter().map(|replicas| (Group { engine, replicas }, None)));
        }
        if config.search.disaggregated {
            let linked = |e: &Engine| e.link_bytes_per_s > 0;
            let pairs = self.engines.iter().enumerate().filter(|e| linked(e.1));
            for (p, prefill) in pairs.clone() {
                for (d, decode) in pairs.clone() {
                    for a in counts(prefill) {
                        for b in counts(decode) {
                            let group = Group { engine: p, replicas: a };
                            layouts.push((group, Some(Group { engine: d, replicas: b })));
                        }
                    }
                    if layouts.len() > MAX_CANDIDATES {
                        return Err(too_many(layouts.len()));
                    }
                }
            }
        }
        let search = &config.search;
        let ways = search.max_running.len() * search.max_step_tokens.len() * self.chunkings.len();
        let total = layouts.len().saturating_mul(ways).saturating_mul(self.sites.len());
        if total > MAX_CANDIDATES {
            return Err(too_many(total));
        }
        for site in 0..self.sites.len() {
            for &(group, decode) in &layouts {
                if self.exceeds(site, group, decode) {
                    continue;
                }
                for &max_running in &search.max_running {
                    for &max_step_tokens in &search.max_step_tokens {
                        for chunking in 0..self.chunkings.len() {
                            self.candidates.push(Candidate {
                                site,
                                group,
                                decode,
                                max_running,
                                max_step_tokens,
                                chunking,
                            });
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a place has fewer devices than that.
    fn exceeds(&self, site: usize, group: Group, decode: Option<Group>) -> bool {
        let devices = |g: Group| g.replicas * self.engines[g.engine].devices();
        let all = devices(group) + decode.map_or(0, devices);
        self.sites[site].devices.is_some_and(|most| all > most)
    }

    /// The candidate's groups, with their roles.
    pub fn groups(&self, candidate: &Candidate) -> Vec<(Role, Group)> {
        match candidate.decode {
            None => vec![(Role::Mixed, candidate.group)],
            Some(decode) => vec![(Role::Prefill, candidate.group), (Role::Decode, decode)],
        }
    }

    /// Devices of all groups.
    pub fn devices(&self, candidate: &Candidate) -> u32 {
        let of = |(_, g): (Role, Group)| g.replicas * self.engines[g.engine].devices();
        self.groups(candidate).into_iter().map(of).sum()
    }

    /// The core's settings for a group.
    pub fn core(&self, candidate: &Candidate, group: Group, block_tokens: u32) -> CoreConfig {
        let engine = &self.engines[group.engine];
        let cache = CacheConfig {
            block_tokens: block_tokens as usize,
            block_count: engine.blocks as usize,
            disk_slots: 0,
            eviction: EvictionKind::Lru,
            prefix_cache: true,
            hash_seed: 1,
        };
        CoreConfig {
            max_running: candidate.max_running,
            chunking: self.chunkings[candidate.chunking].1,
            ..CoreConfig::new(cache, candidate.max_step_tokens)
        }
    }

    /// The cluster to simulate.
    pub fn cluster(&self, candidate: &Candidate, config: &PlanConfig, slo: Slo) -> ClusterSpec {
        let mut replicas = Vec::new();
        for (role, group) in self.groups(candidate) {
            let engine = &self.engines[group.engine];
            let core = self.core(candidate, group, config.search.block_tokens);
            let cost: SharedCost = Arc::clone(&engine.cost) as SharedCost;
            let mut spec = ReplicaSpec::new(core, cost);
            spec.role = role;
            spec.block_bytes = engine.block_bytes;
            spec.link_bytes_per_s = engine.link_bytes_per_s;
            let spec = Arc::new(spec);
            replicas.extend(std::iter::repeat_n(spec, group.replicas as usize));
        }
        let first = ReplicaSpec::clone(&replicas[0]);
        ClusterSpec {
            replicas,
            placement: config.search.placement,
            slo,
            ..ClusterSpec::single(first)
        }
    }

    /// The candidate for people and programs.
    pub fn describe(&self, candidate: &Candidate) -> Described {
        let group = |(role, g): (Role, Group)| {
            let engine = &self.engines[g.engine];
            let p = engine.parallel;
            DescribedGroup {
                role,
                replicas: g.replicas,
                device: engine.device.name.clone(),
                tensor: p.tensor,
                pipeline: p.pipeline,
                data: p.data,
                expert: p.expert,
                clock: engine.clock,
                kv_blocks: engine.blocks,
            }
        };
        Described {
            site: self.sites[candidate.site].name.clone(),
            groups: self.groups(candidate).into_iter().map(group).collect(),
            devices: self.devices(candidate),
            max_running: candidate.max_running,
            max_step_tokens: candidate.max_step_tokens,
            chunking: self.chunkings[candidate.chunking].0.clone(),
        }
    }
}

fn too_many(count: usize) -> PlanError {
    let problem = format!(
        "{count} configurations are more than the {MAX_CANDIDATES} that are tried; shorten the lists \
         of replicas, parallel, clocks or sites"
    );
    PlanError::value("search", problem)
}

/// Every spread and clock of a kind of hardware on which the model fits.
fn engines_of(
    config: &PlanConfig,
    index: usize,
    choice: &HardwareChoice,
    model: &ModelSpec,
    files: &CostFiles,
    too_large: &mut Vec<(String, MemoryError)>,
) -> Result<Vec<Engine>, PlanError> {
    let block_tokens = config.search.block_tokens;
    let power = choice.power.unwrap_or_else(|| PowerSpec::of(&choice.device));
    let base = |parallel, clock, cost: Arc<CostModel>| Engine {
        hardware: index,
        device: choice.device.clone(),
        parallel,
        clock,
        cost,
        roofline: None,
        blocks: 0,
        block_bytes: 0,
        link_bytes_per_s: choice.link_bytes_per_s,
        idle_watts: power.idle_watts,
    };
    if let Some(file) = &choice.cost_file {
        let missing = || PlanError::value("cost_file", "the file was not read");
        let cost = files.get(file).cloned().ok_or_else(missing)?;
        let blocks = choice.kv_tokens.unwrap_or(0) / u64::from(block_tokens);
        let bytes = model.kv_values_per_token() as f64 * config.model.kv_bytes;
        let mut engine = base(ParallelSpec::default(), 1.0, cost);
        engine.blocks = blocks.max(1);
        engine.block_bytes = (bytes * f64::from(block_tokens)) as u64;
        return Ok(vec![engine]);
    }
    let mut engines = Vec::new();
    for &parallel in &choice.parallel {
        for &clock in &choice.clocks {
            let (device, power) = clocked(&choice.device, power, clock);
            let roofline = roofline(&config.model, model, &device, parallel)?.with_power(power);
            match roofline.kv_blocks(block_tokens, choice.memory_share, 0) {
                Ok(blocks) => {
                    let bytes = roofline.kv_bytes_per_token_per_device();
                    let cost = Arc::new(CostModel::Roofline(Box::new(roofline.clone())));
                    let mut engine = base(parallel, clock, cost);
                    engine.roofline = Some(Arc::new(roofline));
                    // Below the scheduler's limit; so much KV no simulation fills.
                    engine.blocks = blocks.min(1 << 26);
                    engine.block_bytes = (bytes
                        * f64::from(block_tokens * parallel.tensor * parallel.pipeline))
                        as u64;
                    engines.push(engine);
                }
                Err(e) => {
                    let spread =
                        format!("tensor {} pipeline {}", parallel.tensor, parallel.pipeline);
                    too_large.push((spread, e));
                    break;
                }
            }
        }
    }
    Ok(engines)
}

/// A device and its power at a locked clock: arithmetic in proportion, its power with the clock and
/// the square of the voltage, memory as before (as [`PowerSpec::locked`] has it).
fn clocked(device: &HardwareSpec, power: PowerSpec, clock: f64) -> (HardwareSpec, PowerSpec) {
    let clock = clock.clamp(power.lowest_clock, 1.0);
    let voltage = power.voltage_floor + (1.0 - power.voltage_floor) * clock;
    let core = clock * voltage * voltage;
    let mut slower = device.clone();
    for flops in [
        &mut slower.flops.f32,
        &mut slower.flops.bf16,
        &mut slower.flops.fp8,
        &mut slower.flops.int8,
        &mut slower.flops.fp4,
    ] {
        *flops *= clock;
    }
    let scaled = PowerSpec {
        compute_watts: power.compute_watts * core,
        active_watts: power.active_watts * core,
        ..power
    };
    (slower, scaled)
}

fn roofline(
    config: &ModelConfig,
    model: &ModelSpec,
    device: &HardwareSpec,
    parallel: ParallelSpec,
) -> Result<Roofline, PlanError> {
    let bytes = ValueBytes {
        weight: config.weight_bytes,
        activation: config.activation_bytes,
        kv: config.kv_bytes,
    };
    for (name, value) in [
        ("weight_bytes", bytes.weight),
        ("activation_bytes", bytes.activation),
        ("kv_bytes", bytes.kv),
    ] {
        if !(value.is_finite() && value > 0.0) {
            let problem = format!("{value} should be above zero");
            return Err(PlanError::value(format!("model.{name}"), problem));
        }
    }
    Roofline::new(model, device, parallel, config.compute, bytes)
        .map_err(|e| PlanError::cost("roofline", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_costmodel::Work;

    #[test]
    fn a_clocked_device_is_as_the_closed_form_has_it() {
        let device = HardwareSpec {
            name: "x".into(),
            flops: dunlin_spec::PeakFlops { bf16: 1e15, ..Default::default() },
            memory_bytes: 1 << 36,
            memory_bytes_per_s: 3e12,
            flops_efficiency: 1.0,
            memory_efficiency: 1.0,
            layer_overhead_ns: 0.0,
            step_overhead_ns: 0.0,
            devices_per_node: 8,
            link: None,
            network: None,
            idle_watts: 75.0,
            peak_watts: 700.0,
            node_watts: 0.0,
            price_per_hour: 1.0,
            embodied_gco2: 0.0,
            lifetime_hours: 1.0,
        };
        let power = PowerSpec { active_watts: 60.0, ..PowerSpec::of(&device) };
        let work = Work { compute_ns: 4e5, memory_ns: 1e6 };
        for clock in [0.3, 0.5, 0.8, 1.0] {
            let (slower, scaled) = clocked(&device, power, clock);
            assert!((slower.flops.bf16 / 1e15 - clock).abs() < 1e-12);
            let locked = power.locked(&work, clock);
            let time = (work.compute_ns / clock).max(work.memory_ns);
            let busy = dunlin_costmodel::Busy {
                compute: work.compute_ns / clock / time,
                memory: work.memory_ns / time,
                link: 0.0,
            };
            assert!((scaled.watts(&busy) - locked.watts).abs() < 1e-9, "{clock}");
        }
    }
}
