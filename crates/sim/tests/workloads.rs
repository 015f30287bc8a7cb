//! What simulation says of workloads and of what a scheduler knows about them.

mod common;

use common::{cluster, core, poisson, replica, run, usual};
use dunlin_scheduler::policy::PolicyKind;
use dunlin_sim::{Prediction, metrics::DurationStats};
use dunlin_workload::{
    ArrivalSpec, ClientSpec, CountSpec, DistSpec, LengthsSpec, PopulationSpec, RateSpec, Request,
    WorkloadSpec, fit_clients,
};

/// Twenty clients, a few of which send most, in bursts; some send long prompts and some short ones.
fn recorded(seed: u64) -> Vec<Request> {
    let population = PopulationSpec {
        name: "clients".into(),
        clients: 20,
        rate: RateSpec::Constant { per_s: 9.0 },
        skew: 1.3,
        cv: (1.0, 5.0),
        lengths: LengthsSpec::Independent {
            prompt: CountSpec {
                max: 4000,
                ..CountSpec::new(DistSpec::LogNormal { median: 400.0, sigma: 0.5 })
            },
            output: CountSpec { max: 1000, ..CountSpec::new(DistSpec::Exponential { mean: 80.0 }) },
        },
        scale: (0.3, 3.0),
        prefixes: vec![],
        conversation: None,
        deadline_s: None,
        from_s: 0.0,
        until_s: Some(900.0),
    };
    let spec = WorkloadSpec { populations: vec![population], ..WorkloadSpec::default() };
    spec.build(seed).unwrap().collect()
}

fn ttft(requests: Vec<Request>) -> DurationStats {
    let one = cluster(replica(core(4000, 64), usual()), 1);
    let count = requests.len() as u64;
    let report = run(&one, requests).unwrap();
    assert_eq!(report.metrics.finished, count);
    report.metrics.ttft.stats().unwrap()
}

/// Capacity planned from a workload's averages is too small: its 99th percentile of the time to the
/// first token is far below that of the trace, and that of clients fitted one by one is not.
#[test]
fn a_workload_is_more_than_its_averages() {
    let trace = recorded(5);
    let span_s = trace.last().unwrap().arrival.0 as f64 / 1e9;
    let rows: Vec<(u32, u32)> = trace.iter().map(|r| (r.prompt_tokens, r.output_tokens)).collect();
    let until = |mut client: ClientSpec| {
        client.until_s = Some(span_s);
        client
    };
    let naive = ClientSpec::new(
        "naive",
        ArrivalSpec::poisson(trace.len() as f64 / span_s),
        LengthsSpec::Rows { rows: rows.into() },
    );
    let fitted: Vec<ClientSpec> =
        fit_clients(trace.iter().cloned(), 60.0).unwrap().into_iter().map(until).collect();
    let generate = |clients: Vec<ClientSpec>| -> Vec<Request> {
        let spec = WorkloadSpec { clients, ..WorkloadSpec::default() };
        spec.build(8).unwrap().collect()
    };
    let (truth, fitted, naive) =
        (ttft(trace), ttft(generate(fitted)), ttft(generate(vec![until(naive)])));
    println!(
        "p99 of the time to the first token: recorded {:.0} ms, clients fitted {:.0} ms, averages {:.0} ms",
        truth.p99_ms, fitted.p99_ms, naive.p99_ms
    );
    assert!(naive.p99_ms < 0.6 * truth.p99_ms);
    let off = |p99: f64| (p99 / truth.p99_ms).ln().abs();
    assert!(off(fitted.p99_ms) < 0.5 * off(naive.p99_ms));
}

/// What predicted lengths are worth: with short answers first, mean latency falls far below first
/// come, first served where predictions or the truth are known, and not where predictions are noise.
#[test]
fn predictions_are_worth_what_they_know() {
    let requests = poisson(41, 18.5, 4000, |s| {
        let long = s.next_unit() < 0.15;
        (50 + s.next_below(200) as u32, if long { 400 } else { 10 } + s.next_below(30) as u32)
    });
    let mean = |policy, prediction| {
        let mut one = replica(core(2000, 8), usual());
        one.core.policy = policy;
        one.prediction = prediction;
        let report = run(&cluster(one, 1), requests.iter().cloned()).unwrap();
        assert_eq!(report.metrics.finished, 4000);
        assert_eq!(report.summary().oracle_lengths, prediction == Prediction::Oracle);
        report.metrics.e2e.stats().unwrap().mean_ms
    };
    let fcfs = mean(PolicyKind::Fcfs, Prediction::None);
    let oracle = mean(PolicyKind::Shortest, Prediction::Oracle);
    let predicted = mean(PolicyKind::Shortest, Prediction::Noisy { percent: 100 });
    let noise = mean(PolicyKind::Shortest, Prediction::Noisy { percent: 100_000 });
    println!(
        "mean latency: first come {fcfs:.0} ms, noise {noise:.0}, predicted within a factor of 2 \
         {predicted:.0}, known {oracle:.0}"
    );
    // The policy weighs lengths against waiting, so knowing them exactly is not the optimum.
    assert!(predicted < 0.8 * fcfs && predicted < 0.9 * noise && oracle < 0.85 * fcfs);
}
