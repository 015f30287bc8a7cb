//! Closed forms of `queueing` against the simulator: limits on output tokens, batches of all that
//! wait, and the rate that compute and KV memory can hold.

mod common;

use common::{cluster, core, poisson, replica, run};
use dunlin_costmodel::LinearCost;
use dunlin_sim::{
    ClusterSpec,
    queueing::{LengthMeans, best_token_limit, dynamic_batch_wait_s, mg1_wait_s},
};
use dunlin_workload::Request;

const STEP_S: f64 = 0.01;

/// Requests one at a time, whose answers have a few long ones: the mean wait with the limit that the
/// closed form calls best is what the simulator finds, and less than without a limit.
#[test]
fn clipping_few_answers_saves_much_waiting() {
    let rate = 1.5;
    let requests = poisson(31, rate, 60_000, |s| {
        let long = s.next_unit() < 0.02;
        let mean = if long { 600.0 } else { 25.0 };
        (1, 1 + (-(1.0 - s.next_unit()).ln() * mean) as u32)
    });
    let outputs: Vec<u32> = requests.iter().map(|r| r.output_tokens).collect();
    let best = best_token_limit(&outputs, rate, 0.0, STEP_S, 2.0).unwrap();
    assert!(best.cut > 0.001 && best.cut < 0.05, "{best:?}");
    let cost = LinearCost { fixed_ns: STEP_S * 1e9, ..LinearCost::default() };
    let wait_s = |limit: Option<u32>| {
        let mut one = replica(core(4096, 1), cost);
        one.max_output_tokens = limit;
        let report = run(&cluster(one, 1), requests.iter().cloned()).unwrap();
        report.metrics.queue.sum_ns() as f64 / requests.len() as f64 / 1e9
    };
    let clipped = wait_s(Some(best.tokens));
    let whole = wait_s(None);
    println!(
        "limit {} cuts {:.2}% of answers: wait {clipped:.4} s (formula {:.4}), {whole:.4} s without",
        best.tokens,
        best.cut * 100.0,
        best.wait_s
    );
    // 60,000 requests at this load: the sample's own mean is within a few percent.
    assert!((clipped / best.wait_s - 1.0).abs() < 0.05);
    assert!(clipped < 0.8 * whole);
    let squares = outputs.iter().map(|o| (f64::from(*o) * STEP_S).powi(2)).sum::<f64>();
    let mean = outputs.iter().map(|o| f64::from(*o) * STEP_S).sum::<f64>() / 60_000.0;
    let formula = mg1_wait_s(rate, mean, squares / 60_000.0).unwrap();
    assert!((whole / formula - 1.0).abs() < 0.1, "{whole} {formula}");
}

/// Batches of all that wait, whose time grows with their size.
#[test]
fn batches_of_all_that_wait() {
    let cost = LinearCost { fixed_ns: 8e6, token_ns: 1.5e6, ..LinearCost::default() };
    for rate in [40.0, 200.0, 450.0] {
        let requests = poisson(32, rate, 200_000, |_| (1, 1));
        let one = cluster(replica(core(8192, 2000), cost), 1);
        let report = run(&one, requests).unwrap();
        let found = report.metrics.queue.sum_ns() as f64 / 200_000.0 / 1e9;
        let expected = dynamic_batch_wait_s(rate, 150, |n| 0.008 + 0.0015 * n as f64).unwrap();
        println!("{rate}/s: {found:.6} s, by the chain {expected:.6} s");
        assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
    }
}

/// The stability condition: below the critical rate the queue stays, above it grows linearly; and
/// without the memory term the prediction is far off.
#[test]
fn memory_decides_the_stable_rate() {
    let cost = LinearCost {
        fixed_ns: 10e6,
        token_ns: 40e3,
        kv_position_ns: 60.0,
        prefill_pair_ns: 4.0,
        ..LinearCost::default()
    };
    let (blocks, running, step) = (1000, 256, 2048);
    let lengths = |s: &mut dunlin_units::Stream| {
        (20 + s.next_below(800) as u32, 10 + s.next_below(300) as u32)
    };
    let sample = poisson(33, 1.0, 20_000, lengths);
    let means = LengthMeans::new(sample.iter().map(|r| (r.prompt_tokens, r.output_tokens)), 16);
    let capacity = means.capacity(&cost, blocks, running, step).unwrap();
    assert!(capacity.memory_binds && capacity.batch < 60.0, "{capacity:?}");
    let one = |rate: f64, count: usize| -> (f64, f64) {
        let mut core = core(blocks as usize, running);
        core.cache.prefix_cache = false;
        core.max_step_tokens = step;
        let requests = poisson(34, rate, count, lengths);
        let last = requests.last().map_or(0, |r: &Request| r.arrival.0);
        let spec: ClusterSpec = cluster(replica(core, cost), 1);
        let report = run(&spec, requests).unwrap();
        let ended = report.metrics.finished as f64;
        // Requests that wait when the last arrives, and the rate at which they ended.
        let bins = report.metrics.timeline.bins();
        let width = report.metrics.timeline.width_ns();
        let at = ((last / width) as usize).min(bins.len() - 1);
        let waiting = bins[at - 1].waiting_ns as f64 / width as f64;
        (waiting, ended / (report.metrics.last.0 as f64 / 1e9))
    };
    // Far above, requests end at the critical rate, whatever comes.
    let (_, measured) = one(3.0 * capacity.critical_per_s, 6_000);
    let off = capacity.critical_per_s / measured - 1.0;
    let without = capacity.without_memory_per_s / measured - 1.0;
    println!(
        "critical rate {:.3}/s, simulated {measured:.3}/s ({:+.1}%); without memory {:+.1}%",
        capacity.critical_per_s,
        off * 100.0,
        without * 100.0
    );
    assert!(off.abs() < 0.1, "{off}");
    assert!(without.abs() > 3.0 * off.abs() && without > 0.2, "{without}");
    let (few, _) = one(0.9 * capacity.critical_per_s, 8_000);
    let (half, _) = one(1.1 * capacity.critical_per_s, 4_000);
    let (whole, _) = one(1.1 * capacity.critical_per_s, 8_000);
    println!("waiting at 0.9: {few:.1}; at 1.1 after 4,000: {half:.1}, after 8,000: {whole:.1}");
    assert!(few < 60.0 && half > 150.0);
    assert!((whole / half - 2.0).abs() < 0.4, "it grows linearly");
}

/// The fluid estimate of the time between tokens, from light load to near the critical rate: never
/// far above what is simulated, and below it by what scatter adds.
#[test]
fn load_decides_the_time_between_tokens() {
    let cost = LinearCost {
        fixed_ns: 10e6,
        token_ns: 40e3,
        kv_position_ns: 60.0,
        prefill_pair_ns: 4.0,
        ..LinearCost::default()
    };
    let lengths = |s: &mut dunlin_units::Stream| {
        (20 + s.next_below(800) as u32, 10 + s.next_below(300) as u32)
    };
    let (running, step) = (256, 2048);
    for rate in [0.5, 4.0, 10.0, 20.0] {
        let requests = poisson(35, rate, 4_000, lengths);
        let all = requests.iter().map(|r| (r.prompt_tokens, r.output_tokens));
        let means = LengthMeans::new(all, 16);
        let estimate = means.gap_ns(&cost, rate, running, step).unwrap() / 1e6;
        let mut core = core(40_000, running);
        core.max_step_tokens = step;
        let report = run(&cluster(replica(core, cost), 1), requests).unwrap();
        let found = report.metrics.tpot.stats().unwrap().mean_ms;
        println!("{rate}/s: {found:.2} ms, estimated {estimate:.2} ms");
        assert!(estimate < found * 1.02 && estimate > found * 0.8, "{estimate} {found}");
    }
}

/// What a drafter gains: with one sequence, a step of the same length gives as many tokens as the
/// acceptance curve says.
#[test]
fn speculation_gains_what_its_curve_says() {
    use dunlin_sim::Speculation;
    let cost = LinearCost { fixed_ns: 10e6, ..LinearCost::default() };
    let requests = vec![Request::new(dunlin_units::Time(0), 10, 40_000)];
    let mut one = replica(core(4000, 1), cost);
    let plain = run(&cluster(one.clone(), 1), requests.clone()).unwrap();
    let curve = Speculation {
        acceptance: [52_000, 45_000, 30_000].into(),
        ..Speculation::constant(3, 0.0)
    };
    let mean = curve.mean_tokens();
    one.speculation = Some(curve);
    let drafted = run(&cluster(one, 1), requests).unwrap();
    let gain = plain.metrics.steps as f64 / drafted.metrics.steps as f64;
    assert!((gain / mean - 1.0).abs() < 0.02, "{gain} {mean}");
    assert_eq!(drafted.metrics.output_tokens, 40_000);
    assert!(drafted.metrics.accepted_tokens > 0);
}
