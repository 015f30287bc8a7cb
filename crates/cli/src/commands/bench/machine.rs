//! What this machine can do, measured in the same run as the rows.

use std::collections::BTreeMap;

use anyhow::Context as _;
use dunlin_kernels_cpu::{
    CpuFeatures,
    probe::{ArithmeticRates, Pages, ReadProbe, arithmetic},
};
use serde::Serialize;

use super::summary::median;

/// Passes of a read test, of which the best counts: a limit is what is reached undisturbed.
const PASSES: usize = 3;

/// The tests' memory and what they have measured so far.
pub struct MachineProbe {
    features: CpuFeatures,
    threads: usize,
    huge: ReadProbe,
    plain: ReadProbe,
    found: Machine,
}

/// What was measured, as it goes into the report.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The CPU's own name, where the system tells.
    pub cpu: Option<String>,
    /// The instruction set in use.
    pub isa: &'static str,
    /// Threads of the rows.
    pub threads: usize,
    /// Bytes of the read test with huge pages that the system really gave as such.
    pub huge_page_bytes: Option<usize>,
    /// GB/s by number of threads, each repetition's, read through huge pages.
    pub read_huge_gbps: BTreeMap<usize, Vec<f64>>,
    /// The same through plain pages.
    pub read_plain_gbps: BTreeMap<usize, Vec<f64>>,
    /// Billions of operations a second by number of threads: of the best repetition.
    pub arithmetic: BTreeMap<usize, Arithmetic>,
}

/// Billions of operations a second (a multiplication and an addition are two).
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Arithmetic {
    /// f32 fused multiply-add.
    pub f32_fma_gops: Option<f64>,
    /// int8 products widened after every one.
    pub int8_a_gops: Option<f64>,
    /// int8 products widened after every second one.
    pub int8_b_gops: Option<f64>,
    /// int8 dot-product instructions.
    pub int8_dot_gops: Option<f64>,
    #[serde(skip)]
    rates: ArithmeticRates,
}

impl MachineProbe {
    /// Gets the memory: twice `bytes`, which should be many times any cache.
    ///
    /// # Errors
    /// Memory that cannot be had, and an instruction set that the CPU lacks.
    pub fn new(threads: usize, bytes: usize) -> anyhow::Result<Self> {
        let features = CpuFeatures::detect()?;
        let memory = |pages| ReadProbe::new(bytes, pages).context("no memory for the read test");
        let huge = memory(Pages::Huge)?;
        let found = Machine {
            cpu: cpu_name(),
            isa: features.isa().name(),
            threads,
            huge_page_bytes: huge.huge_bytes(),
            read_huge_gbps: BTreeMap::new(),
            read_plain_gbps: BTreeMap::new(),
            arithmetic: BTreeMap::new(),
        };
        Ok(Self { features, threads, huge, plain: memory(Pages::Plain)?, found })
    }

    /// Measures once more; called before each repetition of the rows, since bandwidth drifts.
    pub fn measure(&mut self) {
        let mut counts = vec![1, self.threads];
        counts.dedup();
        for threads in counts {
            for (probe, into) in [
                (&self.huge, &mut self.found.read_huge_gbps),
                (&self.plain, &mut self.found.read_plain_gbps),
            ] {
                let best = (0..PASSES).map(|_| probe.bytes_per_second(threads)).fold(0.0, f64::max);
                into.entry(threads).or_default().push(best / 1e9);
            }
            let rates = arithmetic(self.features, threads);
            let rates = match self.found.arithmetic.get(&threads) {
                Some(before) => best_of(before.rates, rates),
                None => rates,
            };
            self.found.arithmetic.insert(threads, Arithmetic::new(rates));
        }
    }

    /// What was measured.
    pub fn machine(&self) -> &Machine {
        &self.found
    }
}

impl Machine {
    /// Bytes a second that the rows' threads can read: the median of the repetitions, huge pages.
    pub fn read_bytes_per_second(&self) -> f64 {
        let readings = self.read_huge_gbps.get(&self.threads).map_or(&[][..], Vec::as_slice);
        median(readings).unwrap_or(0.0) * 1e9
    }

    /// Arithmetic of the rows' threads.
    pub fn rates(&self) -> ArithmeticRates {
        self.arithmetic.get(&self.threads).map(|a| a.rates).unwrap_or_default()
    }
}

impl Arithmetic {
    fn new(rates: ArithmeticRates) -> Self {
        let giga = |rate: Option<f64>| rate.map(|r| r / 1e9);
        Self {
            f32_fma_gops: giga(rates.f32_fma),
            int8_a_gops: giga(rates.int8_a),
            int8_b_gops: giga(rates.int8_b),
            int8_dot_gops: giga(rates.int8_dot),
            rates,
        }
    }
}

fn best_of(a: ArithmeticRates, b: ArithmeticRates) -> ArithmeticRates {
    let best = |a: Option<f64>, b: Option<f64>| [a, b].into_iter().flatten().reduce(f64::max);
    ArithmeticRates {
        f32_fma: best(a.f32_fma, b.f32_fma),
        int8_a: best(a.int8_a, b.int8_a),
        int8_b: best(a.int8_b, b.int8_b),
        int8_dot: best(a.int8_dot, b.int8_dot),
    }
}

fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}
