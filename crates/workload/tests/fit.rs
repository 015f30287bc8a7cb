//! A workload fitted client by client is closer to the one it was fitted to than a Poisson process
//! with the pooled lengths: rates' dispersion, bursts' correlation, distributions of lengths.
#![allow(clippy::disallowed_macros, reason = "random tests print their seed")]

mod common;

use common::{seed, smirnov};
use dunlin_units::Time;
use dunlin_workload::stats::{Report, Summary, SummaryOptions};
use dunlin_workload::{
    ArrivalSpec, ClientId, ClientSpec, CountSpec, DistSpec, GapSpec, LengthsSpec, RateSpec,
    Request, Shape, WorkloadSpec, fit_clients,
};

const HOUR: Time = Time(3_600_000_000_000);

/// A steady client with short prompts, one that sends long prompts in bursts, and one that is only
/// there for a part of the time.
fn mixture() -> WorkloadSpec {
    let lengths = |prompt, output| LengthsSpec::Independent {
        prompt: CountSpec::new(DistSpec::LogNormal { median: prompt, sigma: 0.5 }),
        output: CountSpec::new(DistSpec::Exponential { mean: output }),
    };
    let open = |gaps, rate| ArrivalSpec::Open { gaps, rate };
    let steps = RateSpec::Profile {
        points: vec![(0.0, 1.0), (1200.0, 12.0), (1800.0, 0.5)],
        shape: Shape::Steps,
        period_s: None,
    };
    let clients = vec![
        ClientSpec::new("steady", ArrivalSpec::poisson(4.0), lengths(100.0, 300.0)),
        ClientSpec::new(
            "bursts",
            open(GapSpec::Gamma { cv: 5.0 }, RateSpec::Constant { per_s: 3.0 }),
            lengths(4000.0, 20.0),
        ),
        ClientSpec::new("midday", open(GapSpec::Gamma { cv: 2.0 }, steps), lengths(700.0, 90.0)),
    ];
    WorkloadSpec { clients, ..WorkloadSpec::default() }
}

fn hour(spec: &WorkloadSpec, seed: u64) -> Vec<Request> {
    spec.build(seed).unwrap().take_while(|r| r.arrival < HOUR).collect()
}

fn report(rows: &[Request]) -> Report {
    let mut summary = Summary::new(&SummaryOptions::default());
    rows.iter().for_each(|r| summary.add(r));
    summary.report()
}

/// How far apart two workloads are: dispersion over ten seconds and a minute (as ratios), the
/// correlation of minutes, and the distance between their prompts' distributions in minutes of
/// heavy load, when it matters who is sending.
fn distances(truth: &[Request], other: &[Request]) -> [f64; 4] {
    let (a, b) = (report(truth), report(other));
    let ratio = |i: usize| {
        let (x, y) = (a.windows[i].dispersion.unwrap(), b.windows[i].dispersion.unwrap());
        (x / y).max(y / x)
    };
    let correlation = (a.windows[2].correlation.unwrap() - b.windows[2].correlation.unwrap()).abs();
    let heavy = |rows: &[Request]| -> Vec<f64> {
        let minute = |r: &Request| (r.arrival.0 / 60_000_000_000) as usize;
        let mut counts = [0u32; 60];
        rows.iter().for_each(|r| counts[minute(r)] += 1);
        let mut sorted = counts;
        sorted.sort_unstable();
        let loaded = rows.iter().filter(|r| counts[minute(r)] >= sorted[54]);
        loaded.map(|r| f64::from(r.prompt_tokens)).collect()
    };
    [ratio(1), ratio(2), correlation, smirnov(&mut heavy(truth), &mut heavy(other))]
}

#[test]
fn clients_fitted_one_by_one_are_closer_than_their_sum() {
    let seed = seed(51);
    let truth = hour(&mixture(), seed);
    let fitted = fit_clients(truth.iter().cloned(), 300.0).unwrap();
    assert_eq!(fitted.len(), 3);
    let fitted = WorkloadSpec { clients: fitted, ..WorkloadSpec::default() };
    let rows: Vec<(u32, u32)> = truth.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
    let naive = ClientSpec::new(
        "all",
        ArrivalSpec::poisson(truth.len() as f64 / 3600.0),
        LengthsSpec::Rows { rows: rows.into() },
    );
    let naive = WorkloadSpec { clients: vec![naive], ..WorkloadSpec::default() };
    let (fitted, naive) = (hour(&fitted, seed + 1), hour(&naive, seed + 1));
    let (close, far) = (distances(&truth, &fitted), distances(&truth, &naive));
    println!("seed {seed}: fitted {close:.3?}, naive {far:.3?}");
    for (i, (close, far)) in close.iter().zip(&far).enumerate() {
        assert!(close < far, "seed {seed}, distance {i}: {close} and {far}");
    }
    assert!(close[0] < 1.5 && close[1] < 2.0 && close[2] < 0.2, "seed {seed}: {close:?}");
    assert!(far[1] > 5.0, "seed {seed}: {far:?}");
}

#[test]
fn a_fit_finds_rates_and_burstiness() {
    let seed = seed(52);
    let truth = hour(&mixture(), seed);
    let fitted = fit_clients(truth.iter().cloned(), 600.0).unwrap();
    let of = |id: u32| fitted.iter().find(|c| c.name == format!("client {id}")).unwrap();
    let gaps = |id| match &of(id).arrival {
        ArrivalSpec::Open {
            gaps: GapSpec::Gamma { cv },
            rate: RateSpec::Profile { points, .. },
        } => (*cv, points.clone()),
        other => panic!("{other:?}"),
    };
    for (id, cv, slack) in [(0, 1.0, 0.05), (1, 5.0, 0.8), (2, 2.0, 0.3)] {
        let (found, points) = gaps(id);
        assert!((found - cv).abs() < slack, "seed {seed}, client {id}: cv {found}");
        assert_eq!(points.len(), 6);
    }
    let (_, points) = gaps(2);
    assert!((points[2].1 - 12.0).abs() < 1.5 && points[4].1 < 1.0, "seed {seed}: {points:?}");
    // The first by frequency comes first.
    let counts = |id| truth.iter().filter(|r| r.client == ClientId(id)).count();
    assert!(fitted[0].name == "client 0" && counts(0) > counts(1));
    assert_eq!(fit_clients(std::iter::empty(), 1.0).unwrap_err().at, "requests");
    assert_eq!(fit_clients(truth.into_iter(), 0.0).unwrap_err().at, "window_s");
}
