//! Queues whose behaviour is known: the simulator must agree, exactly where the theory is exact.

mod common;

use common::{cluster, constant, core, poisson, replica, run, usual};
use dunlin_workload::Request;

const STEP_NS: u64 = 10_000_000;

/// Waiting times by Lindley's recursion: an oracle that shares nothing with the simulator.
fn lindley(requests: &[Request], service_ns: impl Fn(&Request) -> u64) -> u128 {
    let (mut free, mut sum) = (0u64, 0u128);
    for request in requests {
        let begin = free.max(request.arrival.0);
        sum += u128::from(begin - request.arrival.0);
        free = begin + service_ns(request);
    }
    sum
}

/// One request at a time, each a step of the same length: M/D/1.
#[test]
fn m_d_1() {
    let (rate, count) = (50.0, 800_000);
    let requests = poisson(11, rate, count, |_| (1, 1));
    let one = cluster(replica(core(64, 1), constant(STEP_NS as f64)), 1);
    let report = run(&one, requests.iter().cloned()).unwrap();
    assert_eq!(report.metrics.queue.sum_ns(), lindley(&requests, |_| STEP_NS));
    let mean_s = report.metrics.queue.sum_ns() as f64 / count as f64 / 1e9;
    let (service_s, load) = (STEP_NS as f64 / 1e9, rate * STEP_NS as f64 / 1e9);
    let expected_s = load * service_s / (2.0 * (1.0 - load));
    assert!((mean_s / expected_s - 1.0).abs() < 0.01, "{mean_s} {expected_s}");
}

/// The same with a geometric number of steps: M/Geo/1, by the formula of Pollaczek and Khinchine.
#[test]
fn m_geo_1() {
    let (rate, stop, count) = (14.0, 1.0 / 3.5, 400_000);
    let requests = poisson(12, rate, count, |s| {
        let steps = ((1.0 - s.next_unit()).ln() / (1.0f64 - stop).ln()).ceil();
        (1, steps.max(1.0) as u32)
    });
    let one = cluster(replica(core(64, 1), constant(STEP_NS as f64)), 1);
    let report = run(&one, requests.iter().cloned()).unwrap();
    let service = |r: &Request| u64::from(r.output_tokens) * STEP_NS;
    assert_eq!(report.metrics.queue.sum_ns(), lindley(&requests, service));
    let mean_s = report.metrics.queue.sum_ns() as f64 / count as f64 / 1e9;
    // E[n] = 1/p, E[n^2] = (2 - p) / p^2.
    let step_s = STEP_NS as f64 / 1e9;
    let load = rate * step_s / stop;
    let second = (2.0 - stop) / (stop * stop) * step_s * step_s;
    let expected_s = rate * second / (2.0 * (1.0 - load));
    assert!((mean_s / expected_s - 1.0).abs() < 0.02, "{mean_s} {expected_s}");
}

/// Steps that take all that wait, and always the same time: a gated bulk queue. Whoever arrives
/// during a step waits for its end, on average half a step; whoever finds the server idle not at
/// all. Of the a = rate * step arrivals during a step there are none with probability e^-a, and then
/// one ends the idle time: the mean wait is a * step / 2 / (a + e^-a).
#[test]
fn gated_bulk_queue() {
    let (rate, count) = (180.0, 300_000);
    let requests = poisson(13, rate, count, |_| (1, 1));
    let one = cluster(replica(core(4096, 1024), constant(STEP_NS as f64)), 1);
    let report = run(&one, requests.iter().cloned()).unwrap();
    let step_s = STEP_NS as f64 / 1e9;
    let a = rate * step_s;
    let expected_s = a * step_s / 2.0 / (a + (-a).exp());
    let mean_s = report.metrics.queue.sum_ns() as f64 / count as f64 / 1e9;
    assert!((mean_s / expected_s - 1.0).abs() < 0.01, "{mean_s} {expected_s}");
    // Exactly: each leaves at the end of the step after the one during which it came.
    let (mut sum, mut free, mut i) = (0u128, 0u64, 0);
    while i < requests.len() {
        let begin = free.max(requests[i].arrival.0);
        // The first of an idle time begins alone; completions come before arrivals.
        let alone = begin == requests[i].arrival.0;
        let first = i;
        while i < requests.len()
            && (requests[i].arrival.0 < begin || alone && requests[i].arrival.0 == begin)
        {
            sum += u128::from(begin - requests[i].arrival.0);
            i += 1;
        }
        assert!(i > first);
        free = begin + STEP_NS;
    }
    assert_eq!(report.metrics.queue.sum_ns(), sum);
}

/// Little's law, to the nanosecond: requests in the system, over time, are the times that they spent
/// in it, however they were served.
#[test]
fn littles_law_is_exact() {
    for (running, blocks, placement_count) in [(4, 80, 1), (64, 300, 1), (8, 60, 3)] {
        let requests =
            poisson(14, 60.0, 3000, |s| (1 + s.next_below(100) as u32, s.next_below(400) as u32));
        let many = cluster(replica(core(blocks, running), usual()), placement_count);
        let report = run(&many, requests).unwrap();
        let m = &report.metrics;
        assert_eq!((m.arrived, m.finished, m.rejected), (3000, 3000, 0));
        let bins = m.timeline.bins();
        let in_system: u128 = bins.iter().map(|b| b.waiting_ns + b.running_ns).sum();
        assert_eq!(in_system, m.e2e.sum_ns());
        let busy: u128 = bins.iter().map(|b| b.busy_ns).sum();
        assert_eq!(busy, m.busy_ns);
        assert!(m.preemptions > 0 || running != 64, "memory is short in the second");
    }
}
