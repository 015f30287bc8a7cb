//! Rooflines from data sheets against times measured on H100s: how far one gets without any
//! measurement of the model. The data's source and licence stand at its head.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

use std::collections::BTreeMap;

use dunlin_costmodel::{Phase, Roofline, SeqShape, StepCost, StepShape, ValueBytes};
use dunlin_spec::{ComputeType, HardwareSpec, LinkSpec, ModelShape, ParallelSpec, PeakFlops};

const DATA: &str = include_str!("data/silicon.csv");

/// H100 SXM by its data sheet. The shares of peak that kernels reach are the medians measured on its
/// sibling H200 for large and for narrow products (AIConfigurator's GEMM tables: 69% of the
/// arithmetic, 72% of the bandwidth); overheads are guesses in round numbers.
fn h100() -> HardwareSpec {
    HardwareSpec {
        name: "H100".into(),
        flops: PeakFlops { bf16: 989e12, ..PeakFlops::default() },
        memory_bytes: 80_000_000_000,
        memory_bytes_per_s: 3.35e12,
        flops_efficiency: 0.69,
        memory_efficiency: 0.72,
        layer_overhead_ns: 5e3,
        step_overhead_ns: 3e5,
        devices_per_node: 8,
        link: Some(LinkSpec { latency_ns: 5e3, bytes_per_s: 450e9 }),
        network: None,
        idle_watts: 75.0,
        peak_watts: 700.0,
        node_watts: 0.0,
        price_per_hour: 0.0,
        embodied_gco2: 0.0,
        lifetime_hours: 1.0,
    }
}

fn model(name: &str) -> ModelShape {
    let (layers, d_model, n_heads, d_ff, vocab_size) = match name {
        "llama-3.1-8b" => (32, 4096, 32, 14_336, 128_256),
        "qwen3-32b" => (64, 5120, 64, 25_600, 151_936),
        _ => panic!("{name}"),
    };
    ModelShape {
        name: name.into(),
        layers,
        d_model,
        n_heads,
        n_kv_heads: 8,
        head_dim: 128,
        d_ff,
        vocab_size,
        n_experts: 0,
        n_experts_used: 0,
        window: None,
        global_every: 0,
        tied_head: false,
        context_length: 131_072,
    }
}

/// In a closed loop every sequence that decodes makes room for a prompt when it ends, so a step has,
/// on average, as many prompt tokens as the ratio of the lengths says.
fn step(isl: u32, osl: u32, concurrency: u32) -> StepShape {
    let decode = SeqShape { new_tokens: 1, context: isl + osl / 2, phase: Phase::Decode };
    let mut seqs = vec![decode; concurrency as usize];
    let tokens = (f64::from(concurrency) * f64::from(isl) / f64::from(osl)).round() as u32;
    if tokens > 0 {
        seqs.push(SeqShape { new_tokens: tokens, context: isl / 2, phase: Phase::Prefill });
    }
    StepShape { seqs, sampled: concurrency, experts: None }
}

#[test]
fn time_between_tokens_from_data_sheets_alone() {
    let mut errors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in DATA.lines().filter(|l| !l.starts_with('#')).skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        let n = |i: usize| f[i].parse::<u32>().unwrap();
        let (isl, osl, concurrency, tensor) = (n(2), n(3), n(4), n(5));
        let parallel = ParallelSpec { tensor, ..ParallelSpec::default() };
        let spec = model(f[0]).spec().unwrap();
        let roofline =
            Roofline::new(&spec, &h100(), parallel, ComputeType::Bf16, ValueBytes::default())
                .unwrap();
        // Where KV does not fit, fewer run than were sent.
        let most = roofline.kv_blocks(16, 0.9, 4_000_000_000).unwrap() * 16 / u64::from(isl + osl);
        if most < u64::from(concurrency) {
            continue;
        }
        let ms = roofline.price(&step(isl, osl, concurrency)).time_ns as f64 / 1e6;
        let measured: f64 = f[7].parse().unwrap();
        errors.entry(format!("{} {}", f[0], f[1])).or_default().push(ms / measured - 1.0);
    }
    for (name, errors) in &mut errors {
        errors.sort_by(f64::total_cmp);
        let signed = errors[errors.len() / 2];
        let mut absolute: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        absolute.sort_by(f64::total_cmp);
        let (median, p90) = (absolute[absolute.len() / 2], absolute[absolute.len() * 9 / 10]);
        println!(
            "{name}: {} points, median error {signed:+.3}, absolute {median:.3}, p90 {p90:.3}",
            errors.len()
        );
        assert!(errors.len() > 40 && median < 0.3, "{name}");
    }
}
