//! What several tests share. Each test file is a program of its own that uses a part of it.
#![allow(
    dead_code,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a test reads files, takes its seed from outside and prints it"
)]

use dunlin_workload::Request;
use dunlin_workload::trace::{BadRows, ReadOptions, TraceKind, TraceReader};

/// The seed of a random test: another than the usual one by `DUNLIN_SEED`.
pub fn seed(usual: u64) -> u64 {
    let seed = std::env::var("DUNLIN_SEED").map(|text| text.parse().expect("a number"));
    let seed = seed.unwrap_or(usual);
    println!("seed {seed}");
    seed
}

/// An excerpt of a recorded trace.
pub fn excerpt(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/data/{name}", env!("CARGO_MANIFEST_DIR"))).expect("it is there")
}

/// The excerpts, with the formats that they should be found to have.
pub const EXCERPTS: [(&str, TraceKind); 7] = [
    ("azure_conv.csv", TraceKind::Azure),
    ("azure_code.csv", TraceKind::Azure),
    ("mooncake_conversation.jsonl", TraceKind::Mooncake),
    ("mooncake_synthetic.jsonl", TraceKind::Mooncake),
    ("vidur_arxiv.csv", TraceKind::LengthPairs),
    ("etalon_sharegpt.csv", TraceKind::LengthPairs),
    ("llmservingsim_sharegpt.jsonl", TraceKind::LlmServingSim),
];

/// A reader that leaves bad rows out.
pub fn lenient(bytes: &[u8]) -> TraceReader<&[u8]> {
    let options = ReadOptions { bad_rows: BadRows::Skip, ..ReadOptions::default() };
    TraceReader::new(bytes, None, options).expect("a header")
}

/// All requests of a trace without bad rows.
pub fn read(bytes: &[u8]) -> Vec<Request> {
    let reader = TraceReader::new(bytes, None, ReadOptions::default()).expect("a header");
    reader.collect::<Result<_, _>>().expect("good rows")
}

/// The largest distance between the sample's distribution and `cdf`, times the root of the sample's
/// size: above 1.95 with a probability of 0.001 (Kolmogorov), and less often where `cdf` has steps.
pub fn kolmogorov(sample: &mut [f64], cdf: impl Fn(f64) -> f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    let n = sample.len() as f64;
    let distance = |(i, x): (usize, &f64)| {
        let p = cdf(*x);
        (p - i as f64 / n).max((i + 1) as f64 / n - p)
    };
    sample.iter().enumerate().map(distance).fold(0.0, f64::max) * n.sqrt()
}

/// As [`kolmogorov`], between two samples.
pub fn smirnov(a: &mut [f64], b: &mut [f64]) -> f64 {
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let (mut i, mut j, mut largest) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        let x = a[i].min(b[j]);
        i += a[i..].iter().take_while(|v| **v <= x).count();
        j += b[j..].iter().take_while(|v| **v <= x).count();
        largest = largest.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    let (n, m) = (a.len() as f64, b.len() as f64);
    largest * (n * m / (n + m)).sqrt()
}

/// The limit of both, passed with a probability of 0.001.
pub const KOLMOGOROV_LIMIT: f64 = 1.95;
