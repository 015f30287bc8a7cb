//! A simulation as a file: TOML in which unknown keys are errors.
//!
//! Files that it names are looked for beside it. Times are in the unit of their key's last word.

mod replica;
mod site;
mod workload;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use dunlin_costmodel::Site;
use dunlin_router::PlacementKind;
use dunlin_units::Time;
use serde::Deserialize;

pub use replica::{ReplicaGroup, build_cost};
pub use site::SiteConfig;
pub use workload::{Requests, WorkloadConfig, open_trace};

use crate::{
    Autoscale, Change, ChangeKind, ClusterSpec, ReplicaSpec, Role, SimError, Transfer,
    metrics::Slo, recorded::Recording,
};

/// A file that no simulation can be made of.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It, or a file that it names, cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// The failure.
        source: std::io::Error,
    },
    /// It is not the TOML that is expected.
    #[error("{}: {message}", path.display())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// A value that makes no sense.
    #[error("{key}: {problem}")]
    Value {
        /// The key, with the names of the tables that it lies in.
        key: String,
        /// What is wrong with it, and what would do.
        problem: String,
    },
    /// What the simulator itself refuses.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl ConfigFileError {
    /// A value that makes no sense.
    pub fn value(key: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Value { key: key.into(), problem: problem.to_string() }
    }

    /// The same error, seen from outside a table.
    #[must_use]
    fn within(self, table: &str) -> Self {
        match self {
            Self::Value { key, problem } => Self::Value { key: format!("{table}.{key}"), problem },
            other => other,
        }
    }
}

/// A simulation, described.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimConfig {
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// The seed of all that is drawn.
    #[serde(default)]
    pub seed: u64,
    /// Threads; results do not depend on them.
    #[serde(default = "one")]
    pub threads: usize,
    /// Who asks for what and when.
    pub workload: WorkloadConfig,
    /// Who answers.
    pub cluster: ClusterConfig,
    /// What a request must keep to count as good.
    #[serde(default)]
    pub slo: SloConfig,
    /// Where the cluster stands, for the carbon and water of its energy.
    #[serde(default)]
    pub site: Option<SiteConfig>,
    /// What a real system did with the same workload, to be compared with.
    #[serde(default)]
    pub recorded: Option<PathBuf>,
    /// Where the file lies.
    #[serde(skip)]
    pub folder: PathBuf,
}

const fn one() -> usize {
    1
}

/// A cluster, described.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Which replica a request goes to.
    #[serde(default)]
    pub placement: PlacementKind,
    /// How old what the router knows may be.
    #[serde(default)]
    pub report_interval_ms: f64,
    /// Replicas, group by group.
    pub replicas: Vec<ReplicaGroup>,
    /// Hand-over of KV.
    #[serde(default)]
    pub transfer: TransferConfig,
    /// Replicas that go down for a while.
    #[serde(default)]
    pub outages: Vec<OutageConfig>,
    /// Replicas that are slow for a while.
    #[serde(default)]
    pub stragglers: Vec<StragglerConfig>,
    /// Numbers of replicas that follow the load: one for each role at most.
    #[serde(default)]
    pub autoscale: Vec<AutoscaleConfig>,
}

/// Hand-over of KV between replicas.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransferConfig {
    /// From a transfer's last byte to its use.
    pub latency_us: f64,
    /// Layers whose KV leaves as soon as it is computed; 0 for all at the end.
    pub overlap_layers: u32,
}

/// A replica that goes down.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutageConfig {
    /// Which, from 0.
    pub replica: u32,
    /// When.
    pub at_s: f64,
    /// For how long; for good without.
    #[serde(default)]
    pub for_s: Option<f64>,
}

/// A replica that is slow for a while.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StragglerConfig {
    /// Which, from 0.
    pub replica: u32,
    /// From when.
    #[serde(default)]
    pub from_s: f64,
    /// Until when; to the end without.
    #[serde(default)]
    pub until_s: Option<f64>,
    /// How much longer its steps take; 2 for twice as long.
    pub slowdown: f64,
}

/// A number of replicas that follows the load.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoscaleConfig {
    /// Replicas of which role; `mixed` without.
    #[serde(default)]
    pub role: Role,
    /// The fewest.
    pub least: u32,
    /// The most.
    pub most: u32,
    /// Requests that one replica should have.
    pub requests_per_replica: u32,
    /// Between looks at the load.
    pub interval_s: f64,
    /// Until a replica that was asked for takes requests.
    pub start_s: f64,
    /// Looks in a row at which fewer would do before one is let go.
    #[serde(default)]
    pub patience: u32,
}

/// Goals.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SloConfig {
    /// To the first token.
    pub ttft_ms: Option<f64>,
    /// Between tokens, on average.
    pub tpot_ms: Option<f64>,
    /// To the last token.
    pub e2e_ms: Option<f64>,
}

/// A duration in nanoseconds.
///
/// # Errors
/// A number that is no duration.
pub(crate) fn nanoseconds(key: &str, value: f64, unit_ns: f64) -> Result<u64, ConfigFileError> {
    if value.is_finite() && (0.0..=1e18).contains(&(value * unit_ns)) {
        return Ok((value * unit_ns + 0.5) as u64);
    }
    Err(ConfigFileError::value(key, format!("{value} is no duration; it is a number from 0 on")))
}

const US: f64 = 1e3;
const MS: f64 = 1e6;
const S: f64 = 1e9;

impl SloConfig {
    fn build(&self) -> Result<Slo, ConfigFileError> {
        let ns = |key: &str, ms: Option<f64>| ms.map(|ms| nanoseconds(key, ms, MS)).transpose();
        Ok(Slo {
            ttft_ns: ns("slo.ttft_ms", self.ttft_ms)?,
            tpot_ns: ns("slo.tpot_ms", self.tpot_ms)?,
            e2e_ns: ns("slo.e2e_ms", self.e2e_ms)?,
        })
    }
}

impl SimConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, and TOML that is none or has keys that are not known.
    pub fn read(path: &Path) -> Result<Self, ConfigFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigFileError::Io { path: path.into(), source })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::parse(&text, folder)
            .map_err(|message| ConfigFileError::Toml { path: path.into(), message })
    }

    /// Reads a file's text; files that it names lie in `folder`.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        Ok(Self { folder: folder.into(), ..config })
    }

    /// The recorded run that the simulation is to be compared with, if there is one.
    ///
    /// # Errors
    /// A file that cannot be read, or is no recording.
    pub fn recording(&self) -> Result<Option<Recording>, ConfigFileError> {
        let path = self.recorded.as_ref().map(|file| self.folder.join(file));
        path.map(|path| Recording::read(&path)).transpose()
    }

    /// Where the cluster stands, if that is said.
    ///
    /// # Errors
    /// Values that make no sense.
    pub fn site(&self) -> Result<Option<Site>, ConfigFileError> {
        self.site.as_ref().map(SiteConfig::build).transpose()
    }

    /// The cluster.
    ///
    /// # Errors
    /// Values that make no sense; a model that does not fit into memory, with what would.
    pub fn cluster(&self) -> Result<ClusterSpec, ConfigFileError> {
        let c = &self.cluster;
        let mut replicas: Vec<Arc<ReplicaSpec>> = Vec::new();
        let mut files = BTreeMap::new();
        for (index, group) in c.replicas.iter().enumerate() {
            let built = group.build(&self.folder, &mut files);
            let spec = built.map_err(|e| e.within(&format!("cluster.replicas[{index}]")))?;
            if replicas.len() + group.count as usize > MAX_REPLICAS {
                let problem = format!("a cluster has at most {MAX_REPLICAS} replicas");
                return Err(ConfigFileError::value("cluster.replicas", problem));
            }
            let spec = Arc::new(spec);
            replicas.extend(std::iter::repeat_n(spec, group.count as usize));
        }
        let interval = c.report_interval_ms;
        let spec = ClusterSpec {
            replicas,
            placement: c.placement,
            report_interval_ns: nanoseconds("cluster.report_interval_ms", interval, MS)?,
            slo: self.slo.build()?,
            transfer: Transfer {
                latency_ns: nanoseconds("cluster.transfer.latency_us", c.transfer.latency_us, US)?,
                overlap_layers: Some(c.transfer.overlap_layers).filter(|l| *l > 0),
            },
            changes: self.changes()?,
            autoscale: c.autoscale.iter().map(autoscale).collect::<Result<_, _>>()?,
        };
        spec.validate()?;
        Ok(spec)
    }

    fn changes(&self) -> Result<Vec<Change>, ConfigFileError> {
        let mut changes = Vec::new();
        let mut push = |key: &str, at_s: f64, replica: u32, kind: ChangeKind| {
            let at = Time(nanoseconds(&format!("cluster.{key}"), at_s, S)?);
            changes.push(Change { at, replica, kind });
            Ok::<(), ConfigFileError>(())
        };
        for o in &self.cluster.outages {
            push("outages.at_s", o.at_s, o.replica, ChangeKind::Down)?;
            if let Some(for_s) = o.for_s {
                push("outages.for_s", o.at_s + for_s, o.replica, ChangeKind::Up)?;
            }
        }
        for s in &self.cluster.stragglers {
            if !(0.01..=1e4).contains(&s.slowdown) {
                let problem = format!("{} should be from 0.01 to 10,000", s.slowdown);
                return Err(ConfigFileError::value("cluster.stragglers.slowdown", problem));
            }
            let percent = (s.slowdown * 100.0 + 0.5) as u32;
            push("stragglers.from_s", s.from_s, s.replica, ChangeKind::Slow { percent })?;
            if let Some(until_s) = s.until_s {
                let usual = ChangeKind::Slow { percent: 100 };
                push("stragglers.until_s", until_s, s.replica, usual)?;
            }
        }
        changes.sort_by_key(|c| c.at);
        Ok(changes)
    }
}

/// Replicas at most.
const MAX_REPLICAS: usize = 1 << 16;

fn autoscale(a: &AutoscaleConfig) -> Result<Autoscale, ConfigFileError> {
    Ok(Autoscale {
        role: a.role,
        least: a.least,
        most: a.most,
        requests_per_replica: a.requests_per_replica,
        interval_ns: nanoseconds("cluster.autoscale.interval_s", a.interval_s, S)?,
        start_ns: nanoseconds("cluster.autoscale.start_s", a.start_s, S)?,
        patience: a.patience,
    })
}
