//! Joules: measured by RAPL where the machine has it and lets us read it, otherwise a model that says
//! so.
//!
//! RAPL is the processor's own estimate of the energy that its packages took (and, on some, the
//! memory beside them), as Linux shows it under `/sys/class/powercap`. It covers everything that ran
//! meanwhile, not this process alone.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Watts of a busy thread in the model: the average of the most that a vCPU takes, over the server
/// processors of one large cloud, as the Cloud Carbon Footprint project publishes it (its
/// methodology, "Average Max Watts" for AWS: 3.5).
const THREAD_WATTS: f64 = 3.5;
/// A reading is this old before a step begins with a new one.
const FRESH: Duration = Duration::from_millis(2);

/// Where joules come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnergySource {
    /// The processor's counters.
    Rapl,
    /// Time, threads and a constant.
    #[default]
    Model,
}

impl EnergySource {
    /// A label for reports, with the model's constant.
    pub fn label(self) -> &'static str {
        match self {
            Self::Rapl => "rapl: the machine's processor packages",
            Self::Model => "model: 3.5 W for each busy thread (Cloud Carbon Footprint's average)",
        }
    }
}

/// Energy, in whole microjoules, so that parts add up to the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Joules {
    /// Microjoules.
    pub microjoules: u64,
    /// Where the number comes from.
    pub source: EnergySource,
}

impl Joules {
    /// As joules.
    pub fn joules(self) -> f64 {
        self.microjoules as f64 / 1e6
    }
}

/// One RAPL domain: a processor package, or the memory of one.
#[derive(Debug)]
struct Domain {
    counter: PathBuf,
    /// The counter starts again from zero after this value.
    range: u64,
    last: u64,
}

impl Domain {
    fn open(folder: &Path) -> Option<Self> {
        let counter = folder.join("energy_uj");
        let last = read_number(&counter)?;
        let range = read_number(&folder.join("max_energy_range_uj"))?;
        Some(Self { counter, range, last })
    }

    /// Microjoules since the last call; `None` where the counter cannot be read any more.
    fn advance(&mut self) -> Option<u64> {
        let now = read_number(&self.counter)?;
        let last = std::mem::replace(&mut self.last, now);
        // It has gone round at most once: that takes a minute and more even at full power.
        Some(if now >= last { now - last } else { (self.range - last.min(self.range)) + now })
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Measures steps.
#[derive(Debug)]
pub struct EnergyMeter {
    /// Empty where the model is used.
    domains: Vec<Domain>,
    threads: usize,
    read_at: Instant,
}

impl EnergyMeter {
    /// A meter for steps on so many threads.
    pub fn new(threads: usize) -> Self {
        Self::open(Path::new("/sys/class/powercap"), threads)
    }

    /// A meter over this folder of RAPL domains.
    fn open(powercap: &Path, threads: usize) -> Self {
        let mut folders: Vec<PathBuf> = fs::read_dir(powercap)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| counts(path))
            .collect();
        folders.sort_unstable();
        let domains: Option<Vec<Domain>> = folders.iter().map(|path| Domain::open(path)).collect();
        Self { domains: domains.unwrap_or_default(), threads, read_at: Instant::now() }
    }

    /// Where its joules come from.
    pub fn source(&self) -> EnergySource {
        if self.domains.is_empty() { EnergySource::Model } else { EnergySource::Rapl }
    }

    /// A step begins: what was used since the last reading is not its.
    pub fn begin(&mut self) {
        if !self.domains.is_empty() && self.read_at.elapsed() > FRESH {
            self.read();
        }
    }

    /// A step that took so long has ended: the microjoules since [`EnergyMeter::begin`].
    pub fn end(&mut self, duration_ns: u64) -> u64 {
        if !self.domains.is_empty()
            && let Some(microjoules) = self.read()
        {
            return microjoules;
        }
        let joules = THREAD_WATTS * self.threads as f64 * duration_ns as f64 / 1e9;
        (joules * 1e6) as u64
    }

    /// Reads all counters; falls back to the model for good where one cannot be read any more.
    fn read(&mut self) -> Option<u64> {
        self.read_at = Instant::now();
        let total = self.domains.iter_mut().map(Domain::advance).sum::<Option<u64>>();
        if total.is_none() {
            self.domains.clear();
        }
        total
    }
}

/// Whether a folder is a domain whose energy counts: a package, or the memory beside one. Cores and
/// the like are parts of their package, and `psys` is the whole machine again.
fn counts(folder: &Path) -> bool {
    let id = folder.file_name().unwrap_or_default().to_string_lossy();
    let Some(id) = id.strip_prefix("intel-rapl:") else { return false };
    let name = fs::read_to_string(folder.join("name")).unwrap_or_default();
    let name = name.trim();
    if id.contains(':') { name == "dram" } else { name.starts_with("package") }
}

/// Splits a whole into parts in proportion to `weights`, so that they add up to it exactly.
pub(crate) fn split(total: u64, weights: impl Iterator<Item = u64> + Clone, parts: &mut Vec<u64>) {
    parts.clear();
    let all: u128 = weights.clone().map(u128::from).sum();
    let (mut seen, mut given) = (0u128, 0u64);
    for weight in weights {
        seen += u128::from(weight);
        let until = (u128::from(total) * seen / all.max(1)) as u64;
        parts.push(until - given);
        given = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(powercap: &Path, id: &str, name: &str, energy: u64) -> PathBuf {
        let folder = powercap.join(id);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("energy_uj"), format!("{energy}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "1000\n").unwrap();
        folder
    }

    #[test]
    fn packages_and_their_memory_count_and_wrap_around() {
        let powercap = tempfile::tempdir().unwrap();
        let package = domain(powercap.path(), "intel-rapl:0", "package-0", 900);
        let core = domain(powercap.path(), "intel-rapl:0:0", "core", 500);
        let dram = domain(powercap.path(), "intel-rapl:0:1", "dram", 10);
        domain(powercap.path(), "intel-rapl:1", "psys", 7);
        domain(powercap.path(), "dtpm:0", "package-0", 7);
        let mut meter = EnergyMeter::open(powercap.path(), 2);
        assert_eq!(meter.source(), EnergySource::Rapl);
        fs::write(package.join("energy_uj"), "100").unwrap();
        fs::write(core.join("energy_uj"), "999").unwrap();
        fs::write(dram.join("energy_uj"), "15").unwrap();
        assert_eq!(meter.end(1_000_000_000), 200 + 5);
        assert_eq!(meter.end(1_000_000_000), 0);
        // A counter that goes away: the model takes over.
        fs::remove_file(dram.join("energy_uj")).unwrap();
        assert_eq!(meter.end(1_000_000_000), 7_000_000);
        assert_eq!(meter.source(), EnergySource::Model);
    }

    #[test]
    fn without_counters_the_model_is_used_and_says_so() {
        let powercap = tempfile::tempdir().unwrap();
        let mut meter = EnergyMeter::open(&powercap.path().join("nothing"), 4);
        assert_eq!(meter.source(), EnergySource::Model);
        assert!(meter.source().label().starts_with("model: 3.5 W"));
        meter.begin();
        assert_eq!(meter.end(500_000_000), 7_000_000);
        // Counters that this process may not read are as good as none.
        let folder = domain(powercap.path(), "intel-rapl:0", "package-0", 900);
        fs::remove_file(folder.join("energy_uj")).unwrap();
        fs::create_dir(folder.join("energy_uj")).unwrap();
        let meter = EnergyMeter::open(powercap.path(), 4);
        assert_eq!(meter.source(), EnergySource::Model);
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut parts = Vec::new();
        for total in [0, 1, 7, 1000, u64::MAX] {
            for weights in [&[1, 1, 1][..], &[5], &[3, 0, 9, 1], &[u64::MAX, 2]] {
                split(total, weights.iter().copied(), &mut parts);
                assert_eq!(parts.iter().sum::<u64>(), total, "{weights:?}");
                assert_eq!(parts.len(), weights.len());
            }
        }
        split(10, [1, 3, 1].into_iter(), &mut parts);
        assert_eq!(parts, [2, 6, 2]);
        split(10, [].into_iter(), &mut parts);
        assert!(parts.is_empty());
    }
}
