//! The closed form of energy against a surface that is not its own: a roofline with power by what is
//! busy. Few points are measured, with noise; the rest is predicted, and configurations are chosen by
//! the prediction.

#![allow(clippy::disallowed_macros, reason = "tests may print")]

use dunlin_costmodel::{
    EnergyForm, EnergyPhase, EnergyPoint, Phase, PowerSpec, Roofline, SeqShape, StepCost,
    StepShape, ValueBytes,
};
use dunlin_spec::{ComputeType, HardwareSpec, LinkSpec, ModelShape, ParallelSpec, PeakFlops};
use dunlin_units::SeedTree;

/// An H200 by its data sheet, with the efficiencies that AIConfigurator's file for it gives.
fn device() -> HardwareSpec {
    HardwareSpec {
        name: "H200".into(),
        flops: PeakFlops { bf16: 989e12, ..PeakFlops::default() },
        memory_bytes: 151_397_597_184,
        memory_bytes_per_s: 4.8e12,
        flops_efficiency: 0.75,
        memory_efficiency: 0.8,
        layer_overhead_ns: 4e3,
        step_overhead_ns: 5e5,
        devices_per_node: 64,
        link: Some(LinkSpec { latency_ns: 1e4, bytes_per_s: 450e9 }),
        network: None,
        idle_watts: 75.0,
        peak_watts: 700.0,
        node_watts: 0.0,
        price_per_hour: 0.0,
        embodied_gco2: 0.0,
        lifetime_hours: 1.0,
    }
}

fn model() -> ModelShape {
    ModelShape {
        name: "70B".into(),
        layers: 80,
        d_model: 8192,
        n_heads: 64,
        n_kv_heads: 8,
        head_dim: 128,
        d_ff: 28_672,
        vocab_size: 128_256,
        n_experts: 0,
        n_experts_used: 0,
        window: None,
        global_every: 0,
        tied_head: false,
        context_length: 131_072,
    }
}

const POWER: PowerSpec = PowerSpec {
    idle_watts: 75.0,
    compute_watts: 480.0,
    memory_watts: 150.0,
    link_watts: 40.0,
    active_watts: 60.0,
    voltage_floor: 0.6,
    lowest_clock: 0.2,
};

/// What the machine draws beside its devices, whatever their number.
const HOST_WATTS: f64 = 800.0;

const DEGREES: [(u32, u32); 8] = [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (2, 4)];

struct Surface(Vec<Roofline>);

impl Surface {
    fn new() -> Self {
        let spec = model().spec().unwrap();
        let roofline = |(tensor, pipeline)| {
            let parallel = ParallelSpec { tensor, pipeline, ..ParallelSpec::default() };
            let made =
                Roofline::new(&spec, &device(), parallel, ComputeType::Bf16, ValueBytes::default());
            made.unwrap().with_power(POWER)
        };
        Self(DEGREES.map(roofline).into())
    }

    /// Joules and nanoseconds a token.
    fn truth(&self, degrees: usize, phase: EnergyPhase, batch: u32, tokens: u32) -> (f64, f64) {
        let seq = match phase {
            EnergyPhase::Prefill => {
                SeqShape { new_tokens: tokens, context: 0, phase: Phase::Prefill }
            }
            EnergyPhase::Decode => {
                SeqShape { new_tokens: 1, context: tokens, phase: Phase::Decode }
            }
        };
        let shape = StepShape { seqs: vec![seq; batch as usize], sampled: batch, experts: None };
        let price = self.0[degrees].price(&shape);
        let per = match phase {
            EnergyPhase::Prefill => f64::from(batch * tokens),
            EnergyPhase::Decode => f64::from(batch),
        };
        let joules = price.energy_uj as f64 * 1e-6 + HOST_WATTS * price.time_ns as f64 * 1e-9;
        (joules / per, price.time_ns as f64 / per)
    }
}

fn point(degrees: usize, phase: EnergyPhase, batch: u32, tokens: u32) -> EnergyPoint {
    let (tensor, pipeline) = DEGREES[degrees];
    EnergyPoint {
        phase,
        tensor: tensor.into(),
        pipeline: pipeline.into(),
        batch: batch.into(),
        tokens: tokens.into(),
    }
}

#[test]
fn few_measurements_choose_the_configuration_of_least_energy() {
    let surface = Surface::new();
    let mut dice = SeedTree::root(11).child("energy").stream();
    let mut below = |n: usize| (dice.next_unit() * n as f64) as usize;
    let phases = [EnergyPhase::Prefill, EnergyPhase::Decode];
    // Fifty points, batches up to 16 and 2,048 tokens, each with 3% of noise.
    let mut samples = Vec::new();
    for i in 0..50 {
        let (phase, degrees) = (phases[i % 2], below(DEGREES.len()));
        let (batch, tokens) = ([1, 2, 4, 8, 16][below(5)], [256, 512, 1024, 2048][below(4)]);
        let noise = 1.0 + 0.03 * (below(2001) as f64 / 1000.0 - 1.0);
        let joules = surface.truth(degrees, phase, batch, tokens).0 * noise;
        samples.push((point(degrees, phase, batch, tokens), joules));
    }
    let form = EnergyForm::fit(&samples).unwrap();
    // Held out: batches and lengths beyond those, too.
    let (mut right, mut apart, mut all) = (0, 0, 0);
    let (mut residual, mut logs) = (0.0, Vec::new());
    let (mut errors, mut regrets) = (Vec::new(), Vec::new());
    for phase in phases {
        for batch in [1, 3, 6, 12, 24, 48] {
            for tokens in [300, 700, 1500, 3000, 6000] {
                let truths: Vec<(f64, f64)> =
                    (0..DEGREES.len()).map(|d| surface.truth(d, phase, batch, tokens)).collect();
                let least = |f: &dyn Fn(usize) -> f64| {
                    (0..DEGREES.len()).min_by(|&a, &b| f(a).total_cmp(&f(b))).unwrap()
                };
                let predicted = |d| form.joules(&point(d, phase, batch, tokens));
                let best = least(&|d| truths[d].0);
                let chosen = least(&predicted);
                right += usize::from(chosen == best);
                regrets.push(truths[chosen].0 / truths[best].0 - 1.0);
                apart += usize::from(least(&|d| truths[d].1) != best);
                all += 1;
                for (d, truth) in truths.iter().enumerate() {
                    errors.push((predicted(d) / truth.0 - 1.0).abs());
                    residual += (predicted(d).ln() - truth.0.ln()).powi(2);
                    logs.push(truth.0.ln());
                }
            }
        }
    }
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let variance: f64 = logs.iter().map(|l| (l - mean).powi(2)).sum();
    let r2 = 1.0 - residual / variance;
    let mape = errors.iter().sum::<f64>() / errors.len() as f64;
    let share = |n: usize| n as f64 / all as f64;
    let regret = regrets.iter().sum::<f64>() / regrets.len() as f64;
    println!(
        "R2 of logarithms {r2:.4}, mean error {mape:.3}, least energy chosen {:.3}, \
         {regret:.4} more than that on average, least time is not least energy {:.3}",
        share(right),
        share(apart)
    );
    assert!(r2 > 0.99 && mape < 0.05);
    assert!(share(right) > 0.85 && regret < 0.01, "{regret}");
    assert!(share(apart) > 0.2);
}
