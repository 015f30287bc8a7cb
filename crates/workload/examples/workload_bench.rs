//! How fast workloads are generated and traces are read, on one core, as JSON.
//!
//! ```text
//! cargo run --release -p dunlin-workload --example workload_bench [SECONDS_EACH]
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::disallowed_types,
    reason = "a benchmark has a clock, reads files and prints"
)]

use std::hint::black_box;
use std::time::Instant;

use dunlin_workload::stats::{Summary, SummaryOptions};
use dunlin_workload::trace::{ReadOptions, TraceReader};
use dunlin_workload::{
    ArrivalSpec, ClientSpec, Context, ConversationSpec, CountSpec, DistSpec, GapSpec, LengthsSpec,
    Pacing, PopulationSpec, PrefixPoolSpec, PrefixUse, RateSpec, Request, WorkloadSpec,
};
use serde_json::{Value, json};

fn lognormal() -> LengthsSpec {
    LengthsSpec::Independent {
        prompt: CountSpec::new(DistSpec::LogNormal { median: 800.0, sigma: 1.0 }),
        output: CountSpec::new(DistSpec::LogNormal { median: 150.0, sigma: 0.8 }),
    }
}

fn one(client: ClientSpec) -> WorkloadSpec {
    WorkloadSpec { clients: vec![client], ..WorkloadSpec::default() }
}

fn poisson_clients(count: u32) -> WorkloadSpec {
    let client = |i| {
        let arrival = ArrivalSpec::poisson(f64::from(100 + i));
        ClientSpec::new(format!("client {i}"), arrival, lognormal())
    };
    WorkloadSpec { clients: (0..count).map(client).collect(), ..WorkloadSpec::default() }
}

/// Clients with gamma gaps, the first few of which send most.
fn population(clients: u32) -> WorkloadSpec {
    let population = PopulationSpec {
        name: "all".into(),
        clients,
        rate: RateSpec::Constant { per_s: 1000.0 },
        skew: 1.2,
        cv: (0.8, 4.0),
        lengths: lognormal(),
        scale: (0.5, 2.0),
        prefixes: vec![],
        conversation: None,
        deadline_s: None,
        from_s: 0.0,
        until_s: None,
    };
    WorkloadSpec { populations: vec![population], ..WorkloadSpec::default() }
}

/// Workloads from the simplest to those with everything.
fn workloads() -> Vec<(&'static str, WorkloadSpec)> {
    let client = |arrival, lengths| ClientSpec::new("one", arrival, lengths);
    let poisson = || ArrivalSpec::poisson(1000.0);
    let constant = LengthsSpec::Independent {
        prompt: CountSpec::constant(512),
        output: CountSpec::constant(128),
    };
    let rows: Vec<(u32, u32)> = (1..5000).map(|i| (i, i * 7 % 900)).collect();
    let rows = LengthsSpec::Rows { rows: rows.into() };
    let gamma = ArrivalSpec::Open {
        gaps: GapSpec::Gamma { cv: 3.0 },
        rate: RateSpec::Constant { per_s: 1000.0 },
    };
    let mut sharing = client(poisson(), lognormal());
    sharing.prefixes = vec![PrefixUse { pool: "system".into(), chance: 1.0 }];
    let mut chatting = sharing.clone();
    chatting.conversation = Some(ConversationSpec {
        turns: CountSpec::new(DistSpec::Exponential { mean: 5.0 }),
        gap_s: DistSpec::LogNormal { median: 10.0, sigma: 1.0 },
        pacing: Pacing::AfterAnswer,
        context: Context::Grow,
        max_context_tokens: 32_768,
    });
    let pools = |client| WorkloadSpec {
        prefix_pools: vec![PrefixPoolSpec {
            name: "system".into(),
            prefixes: 1000,
            exponent: 1.0,
            tokens: CountSpec::constant(1000),
        }],
        ..one(client)
    };
    vec![
        ("Poisson, constant lengths", one(client(poisson(), constant))),
        ("Poisson, lognormal lengths", one(client(poisson(), lognormal()))),
        ("Poisson, recorded pairs", one(client(poisson(), rows))),
        ("gamma gaps, lognormal lengths", one(client(gamma, lognormal()))),
        ("shared prefixes", pools(sharing)),
        ("conversations", pools(chatting)),
        ("10 Poisson clients, lognormal lengths", poisson_clients(10)),
        ("population of 10", population(10)),
        ("population of 2,400", population(2400)),
    ]
}

/// Runs `work`, which says how much it did, until `seconds` are over; the best rate per second.
fn best(seconds: f64, mut work: impl FnMut() -> f64) -> f64 {
    let (start, mut best) = (Instant::now(), 0.0f64);
    while start.elapsed().as_secs_f64() < seconds {
        let before = Instant::now();
        let done = work();
        best = best.max(done / before.elapsed().as_secs_f64());
    }
    best
}

/// An excerpt's rows over and over, to about `bytes`.
fn grown(name: &str, bytes: usize) -> Vec<u8> {
    let path = format!("{}/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the excerpt");
    let (header, rows) = match name.ends_with(".csv") {
        true => text.split_once('\n').expect("a header"),
        false => ("", text.as_str()),
    };
    let mut all = format!("{header}\n");
    for (i, row) in rows.lines().cycle().enumerate() {
        // Azure's times go on, a millisecond a row.
        match row.strip_prefix("2023-11-16 ").and_then(|row| row.split_once(',')) {
            Some((_, lengths)) => {
                let (s, ms) = (i / 1000, i % 1000);
                let (hour, minute, second) = (s / 3600, s / 60 % 60, s % 60);
                all += &format!(
                    "2023-11-16 {hour:02}:{minute:02}:{second:02}.{ms:03}0000,{lengths}\r\n"
                );
            }
            None => all += &format!("{row}\n"),
        }
        if all.len() >= bytes {
            break;
        }
    }
    all.into_bytes()
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(1.0, |text| text.parse().expect("seconds"));
    let mut results: Vec<Value> = Vec::new();
    for (name, spec) in workloads() {
        const ROWS: usize = 500_000;
        let rate = best(seconds, || {
            let workload = spec.build(1).expect("a workload");
            workload.take(ROWS).for_each(|r| drop(black_box(r)));
            ROWS as f64
        });
        results.push(json!({"generate": name, "million_requests_per_s": rate / 1e6}));
    }
    // Excerpts begin anew, so times are not in order: that check, and it alone, fails on some rows,
    // which are left out. Pairs have no times.
    let options =
        ReadOptions { bad_rows: dunlin_workload::trace::BadRows::Skip, ..ReadOptions::default() };
    for name in ["azure_conv.csv", "vidur_arxiv.csv", "mooncake_conversation.jsonl"] {
        let bytes = grown(name, 16 << 20);
        let rate = best(seconds, || {
            let reader =
                TraceReader::new(bytes.as_slice(), None, options.clone()).expect("a trace");
            for row in reader {
                drop(black_box(row));
            }
            bytes.len() as f64
        });
        results.push(json!({"read": name, "mb_per_s": rate / 1e6}));
    }
    let rows: Vec<Request> = one(ClientSpec::new("one", ArrivalSpec::poisson(1000.0), lognormal()))
        .build(1)
        .expect("a workload")
        .take(500_000)
        .collect();
    let rate = best(seconds, || {
        let mut summary = Summary::new(&SummaryOptions::default());
        rows.iter().for_each(|r| summary.add(r));
        black_box(summary.report());
        rows.len() as f64
    });
    results.push(json!({"summarize": "requests", "million_requests_per_s": rate / 1e6}));
    println!("{}", serde_json::to_string_pretty(&results).expect("plain values"));
}
