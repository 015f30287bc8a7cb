//! What holds in every run: the same log for the same seed on any number of threads, nothing lost,
//! nothing before its cause.

mod common;

use std::{collections::BTreeMap, sync::Arc};

use common::{checked, cluster, core, poisson, replica, run, usual};
use dunlin_costmodel::{GridIntensity, LinearCost, Site};
use dunlin_router::PlacementKind;
use dunlin_scheduler::policy::PolicyKind;
use dunlin_sim::{
    Change, ChangeKind, ClusterSpec, Prediction, Report, RunOptions, SimError, Speculation, Tier,
    events::{LogEvent, What},
    simulate,
};
use dunlin_units::{SeedTree, Time};
use dunlin_workload::{
    ArrivalSpec, ClientSpec, ConversationSpec, CountSpec, DistSpec, LengthsSpec, Pacing,
    PrefixPoolSpec, PrefixUse, Request, RolloutSpec, WorkloadSpec,
};

/// Sessions, agents, shared prefixes and rollouts.
fn everything(seed: u64) -> Vec<Request> {
    let lengths = LengthsSpec::Independent {
        prompt: CountSpec { max: 400, ..CountSpec::new(DistSpec::Exponential { mean: 60.0 }) },
        output: CountSpec { max: 250, ..CountSpec::new(DistSpec::Exponential { mean: 60.0 }) },
    };
    let prefixes = vec![PrefixUse { pool: "system".into(), chance: 0.7 }];
    let chat = |name: &str, gap: DistSpec, rate: f64, limit| ClientSpec {
        conversation: Some(ConversationSpec {
            turns: CountSpec { max: 8, ..CountSpec::new(DistSpec::Exponential { mean: 4.0 }) },
            gap_s: gap,
            pacing: Pacing::AfterAnswer,
            context: dunlin_workload::Context::Grow,
            max_context_tokens: 1200,
        }),
        prefixes: prefixes.clone(),
        limit: Some(limit),
        ..ClientSpec::new(name, ArrivalSpec::poisson(rate), lengths.clone())
    };
    let spec = WorkloadSpec {
        prefix_pools: vec![PrefixPoolSpec {
            name: "system".into(),
            prefixes: 4,
            exponent: 1.0,
            tokens: CountSpec::constant(150),
        }],
        clients: vec![
            chat("users", DistSpec::Exponential { mean: 2.0 }, 6.0, 40),
            // Rounds of reasoning: no time at all between turns.
            chat("rounds", DistSpec::Constant { value: 0.0 }, 3.0, 20),
            ClientSpec {
                prefixes: prefixes.clone(),
                limit: Some(150),
                ..ClientSpec::new("single", ArrivalSpec::poisson(15.0), lengths.clone())
            },
        ],
        rollouts: vec![RolloutSpec {
            name: "training".into(),
            steps: 3,
            prompts: 5,
            samples: 4,
            prompt: CountSpec::constant(40),
            output: CountSpec { max: 120, ..CountSpec::new(DistSpec::Exponential { mean: 30.0 }) },
            prefixes: vec![],
            update_s: DistSpec::Constant { value: 0.3 },
            from_s: 1.0,
        }],
        ..WorkloadSpec::default()
    };
    spec.build(seed).unwrap().collect()
}

fn logged(
    cluster: &ClusterSpec,
    requests: &[Request],
    threads: usize,
    seed: u64,
) -> (Report, Vec<LogEvent>) {
    let mut events = Vec::new();
    let options = RunOptions { threads, seed, events: Some(&mut events), ..RunOptions::default() };
    let report = simulate(cluster, requests.iter().cloned().map(Ok), options).unwrap();
    (report, events)
}

#[test]
fn one_seed_one_log_on_any_number_of_threads() {
    let requests = everything(3);
    for placement in PlacementKind::ALL {
        for interval in [0, 50_000_000] {
            let spec = ClusterSpec {
                placement,
                report_interval_ns: interval,
                ..cluster(replica(core(120, 8), usual()), 5)
            };
            let (report, log) = logged(&spec, &requests, 1, 1);
            assert!(log.windows(2).all(|w| w[0] < w[1]), "in order, and no event twice");
            let summary = serde_json::to_string(&report.summary()).unwrap();
            for threads in [2, 3, 5] {
                let (other, other_log) = logged(&spec, &requests, threads, 1);
                assert_eq!(log, other_log, "{placement}, {threads} threads");
                assert_eq!(summary, serde_json::to_string(&other.summary()).unwrap());
            }
            // Without a log, replicas fall behind as long as nobody can hear of it.
            for threads in [1, 2, 5] {
                let options = RunOptions { threads, seed: 1, ..RunOptions::default() };
                let rows = requests.iter().cloned().map(Ok);
                let other = simulate(&spec, rows, options).unwrap();
                assert_eq!(summary, serde_json::to_string(&other.summary()).unwrap());
            }
            if placement == PlacementKind::PowerOfTwo {
                let (other, _) = logged(&spec, &requests, 1, 2);
                assert_ne!(report.digest, other.digest, "another seed, another log");
            }
        }
    }
}

/// Replicas that fall behind until a request may end on them decide what those decide that keep
/// abreast: where memory is short, queues refuse, answers have no token or one, two steps are in
/// flight and replicas are unequal.
#[test]
fn falling_behind_changes_nothing() {
    let mut refused = 0;
    for seed in 0..24u64 {
        let mut dice = SeedTree::root(seed).child("behind").stream();
        let mut pick = |n: u64| dice.next_below(n);
        let most = 1 + pick(80) as u32;
        let rate = [20.0, 80.0, 400.0][pick(3) as usize];
        let requests = poisson(seed, rate, 400, |s| {
            (1 + s.next_below(150) as u32, s.next_below(u64::from(most)) as u32)
        });
        let mut one = replica(core(30 + 40 * pick(4) as usize, 2 + pick(7) as u32), usual());
        one.core.policy = PolicyKind::ALL[pick(PolicyKind::ALL.len() as u64) as usize];
        one.core.steps_in_flight = 1 + pick(2) as u32;
        one.core.max_waiting = [3, 40, 1 << 20][pick(3) as usize];
        one.host_ns = 3_000_000 * pick(2);
        let mut spec = ClusterSpec {
            placement: PlacementKind::ALL[pick(5) as usize],
            ..cluster(one, 1 + pick(5) as usize)
        };
        let slow = LinearCost { fixed_ns: 9e6, ..usual() };
        Arc::make_mut(&mut spec.replicas[0]).cost = Arc::new(slow);
        let (abreast, _) = logged(&spec, &requests, 1, seed);
        refused += abreast.metrics.rejected;
        let summary = serde_json::to_string(&abreast.summary()).unwrap();
        for threads in [1, 2] {
            let options = RunOptions { threads, seed, ..RunOptions::default() };
            let rows = requests.iter().cloned().map(Ok);
            let behind = simulate(&spec, rows, options).unwrap();
            let behind = serde_json::to_string(&behind.summary()).unwrap();
            assert_eq!(summary, behind, "seed {seed}, {threads} threads");
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Every request's part of the energy, and all of them are that of the steps to the microjoule.
#[test]
fn parts_of_energy_sum_to_the_whole() {
    let requests = everything(6);
    let change = |at_s: u64, kind| Change { at: Time(at_s * 1_000_000_000), replica: 1, kind };
    let plain = cluster(replica(core(120, 8), usual()), 3);
    let mut two = plain.clone();
    Arc::make_mut(&mut two.replicas[0]).core.steps_in_flight = 2;
    let faulty = ClusterSpec {
        changes: vec![change(1, ChangeKind::Down), change(3, ChangeKind::Up)],
        ..plain.clone()
    };
    for spec in [plain, two, faulty] {
        let (report, log) = logged(&spec, &requests, 1, 0);
        let parts = log.iter().filter_map(|e| match e.what {
            What::End { energy_uj, .. } => Some(u128::from(energy_uj)),
            _ => None,
        });
        let m = &report.metrics;
        assert_eq!(parts.sum::<u128>(), m.energy_uj);
        assert_eq!(m.request_energy.sum_ns(), m.energy_uj);
        assert_eq!(m.finished, requests.len() as u64);
        assert!(m.energy_uj > 1_000_000);
    }
}

/// Every decision is checked by the scheduler's plan checker; requests, tokens and blocks are
/// conserved; nothing happens before its cause.
#[test]
fn nothing_is_lost_and_nothing_is_early() {
    let requests = everything(4);
    let tokens: u64 = requests.iter().map(|r| u64::from(r.output_tokens)).sum();
    let mut pressed = 0;
    for (policy, running, blocks, in_flight) in [
        (PolicyKind::Fcfs, 24, 115, 1),
        (PolicyKind::Shortest, 32, 160, 2),
        (PolicyKind::Fair, 4, 110, 1),
        (PolicyKind::Prefix, 16, 130, 2),
    ] {
        let mut one = replica(core(blocks, running), usual());
        one.core.policy = policy;
        one.core.steps_in_flight = in_flight;
        one.speculation = (running == 24).then(|| Speculation::constant(3, 0.7));
        if running == 16 {
            one.core.cache.disk_slots = 400;
            one.core.swap.block_bytes = 4096;
            one.block_bytes = 4096;
            one.tier = Tier { bytes_per_s: 1 << 30, latency_ns: 50_000 };
        }
        let spec = ClusterSpec {
            placement: PlacementKind::SessionSticky,
            ..cluster(one, if running == 4 { 3 } else { 1 })
        };
        let report = checked(&spec, requests.iter().cloned()).unwrap();
        let m = &report.metrics;
        assert_eq!((m.arrived, m.finished), (requests.len() as u64, requests.len() as u64));
        assert_eq!((m.rejected, m.failed, m.clipped), (0, 0, 0));
        assert_eq!(m.output_tokens, tokens);
        assert!(m.cached_tokens > 0);
        pressed += m.preemptions + m.moves;
        let (other, log) = logged(&spec, &requests, 1, 0);
        assert_eq!(report.digest, other.digest, "checking changes nothing");
        causes(&log, &requests, &other);
        println!("{policy}: {} preemptions, {} moves", m.preemptions, m.moves);
    }
    assert!(pressed > 50, "{pressed}: memory is short");
}

/// Arrivals before first tokens before ends; waits kept; steps one after another.
fn causes(log: &[LogEvent], requests: &[Request], report: &Report) {
    let mut seen: BTreeMap<u64, [Option<Time>; 3]> = BTreeMap::new();
    let mut steps: BTreeMap<u32, Time> = BTreeMap::new();
    let mut ends = 0;
    for event in log {
        match event.what {
            What::Arrive { request } => {
                assert!(event.at >= requests[request as usize].arrival);
                seen.entry(request).or_default()[0] = Some(event.at);
            }
            What::FirstToken { request } => {
                let times = seen.get_mut(&request).expect("it has arrived");
                assert!(times[0] < Some(event.at) && times[1].is_none());
                times[1] = Some(event.at);
            }
            What::End { request, tokens, complete, .. } => {
                let row = &requests[request as usize];
                assert!(complete && tokens == row.output_tokens);
                let times = seen.get_mut(&request).expect("it has arrived");
                assert!(times[1] <= Some(event.at) && times[2].is_none());
                assert_eq!(times[1].is_some(), tokens > 0);
                times[2] = Some(event.at);
                ends += 1;
            }
            What::Step { began, .. } => {
                let before = steps.insert(event.replica, event.at).unwrap_or(Time(0));
                assert!(before <= began && began < event.at, "steps overlap");
            }
            _ => {}
        }
    }
    assert_eq!(ends, requests.len());
    // Whoever waits is ready only after what it waits for, and its delay.
    let mut by_turn = BTreeMap::new();
    let mut by_group: BTreeMap<_, Time> = BTreeMap::new();
    for (number, row) in requests.iter().enumerate() {
        let end = seen[&(number as u64)][2].unwrap();
        if let Some(session) = row.session {
            by_turn.insert((session, row.turn), end);
        }
        if let Some(group) = row.group {
            let latest = by_group.entry(group).or_default();
            *latest = (*latest).max(end);
        }
    }
    for (number, row) in requests.iter().enumerate() {
        let came = seen[&(number as u64)][0].unwrap();
        let since = match row.wait {
            dunlin_workload::Wait::Nothing => continue,
            dunlin_workload::Wait::PreviousTurn => by_turn[&(row.session.unwrap(), row.turn - 1)],
            dunlin_workload::Wait::Group { group, .. } => by_group[&group],
        };
        assert_eq!(came, row.arrival.max(since.after(row.delay_ns)), "row {number}");
    }
    assert_eq!(report.metrics.finished as usize, ends);
}

/// Two workloads that differ only in how long answers will be give the same decisions until the
/// first of them ends: nobody has looked ahead.
#[test]
fn no_decision_depends_on_lengths_to_come() {
    let short = poisson(5, 30.0, 120, |s| (1 + s.next_below(200) as u32, 40));
    let long: Vec<Request> =
        short.iter().map(|r| Request { output_tokens: 90, ..r.clone() }).collect();
    for policy in PolicyKind::ALL {
        let mut one = replica(core(400, 16), usual());
        one.core.policy = policy;
        let (a, b) = (
            logged(&cluster(one.clone(), 2), &short, 1, 1).1,
            logged(&cluster(one.clone(), 2), &long, 1, 1).1,
        );
        let ends = |e: &&LogEvent| matches!(e.what, What::End { .. });
        let first = a.iter().find(ends).unwrap().at;
        let until = |log: &[LogEvent]| -> Vec<LogEvent> {
            log.iter().take_while(|e| e.at < first).copied().collect()
        };
        assert!(until(&a).len() > 40);
        assert_eq!(until(&a), until(&b), "{policy}");
        // An oracle does look, and says so.
        one.prediction = Prediction::Oracle;
        let report = run(&cluster(one, 1), short.iter().cloned()).unwrap();
        assert!(report.summary().oracle_lengths);
    }
}

#[test]
fn what_waits_for_ever_is_named() {
    use dunlin_units::SessionId;
    use dunlin_workload::Wait;
    let one = cluster(replica(core(100, 4), usual()), 1);
    let turn = |turn| Request {
        session: Some(SessionId(9)),
        turn,
        wait: Wait::PreviousTurn,
        ..Request::new(Time(0), 5, 5)
    };
    // Turns 3 and 2 wait, and turn 1 is missing.
    let error = run(&one, [Request::new(Time(0), 5, 5), turn(3), turn(2)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 requests wait for what never ends: row 2 is turn 3 of session 9 and waits for turn 2, \
         which is not in the trace or waits in its turn"
    );
    let unsorted = [Request::new(Time(8), 5, 5), Request::new(Time(7), 5, 5)];
    assert!(matches!(run(&one, unsorted), Err(SimError::Unsorted { number: 1, .. })));
    let report = run(&one, []).unwrap();
    assert_eq!((report.metrics.arrived, report.metrics.steps), (0, 0));
}

#[test]
fn what_does_not_fit_is_rejected_and_the_first_is_named() {
    let one = cluster(replica(core(10, 4), usual()), 1);
    let requests = [
        Request::new(Time(0), 100, 5),
        Request::new(Time(0), 500, 5),
        // Its answer is cut where memory ends.
        Request::new(Time(0), 100, 900),
    ];
    let report = checked(&one, requests).unwrap();
    let m = &report.metrics;
    assert_eq!((m.finished, m.rejected, m.clipped), (2, 1, 1));
    assert_eq!(m.output_tokens, 5 + 44);
    let (row, why) = report.rejection.unwrap();
    assert_eq!(row, 1);
    assert!(why.contains("KV blocks"), "{why}");
}

#[test]
fn a_run_can_be_stopped() {
    let one = cluster(replica(core(400, 8), usual()), 1);
    let requests = poisson(6, 50.0, 200_000, |_| (10, 3));
    let mut stop = |at: Time| at > Time(20_000_000_000);
    let options = RunOptions { stop: Some(&mut stop), ..RunOptions::default() };
    let report = simulate(&one, requests.into_iter().map(Ok), options).unwrap();
    assert!(report.stopped && report.metrics.arrived < 150_000);
    assert_eq!(report.metrics.finished, report.metrics.arrived);
}

#[test]
fn a_footprint_is_of_the_energy_when_it_was_drawn() {
    // One replica that draws 1 kW all the time, and steps that draw nothing.
    let mut spec = replica(core(400, 16), LinearCost { power_watts: 0.0, ..usual() });
    (spec.idle_uw, spec.embodied_ugco2_per_hour) = (1_000_000_000, 5_000_000);
    let report = run(&cluster(spec, 2), poisson(3, 4.0, 40, |_| (60, 20))).unwrap();
    let m = &report.metrics;
    assert_eq!(m.energy_uj, 0);
    let idle: u128 = m.timeline.bins().iter().map(|bin| bin.idle_uj_e9).sum();
    assert_eq!(idle, m.idle_uj_e9, "bins hold all of it");
    let site = |gco2_per_kwh: Vec<f64>, step_s| Site {
        pue: 1.5,
        wue_litres_per_kwh: 2.0,
        grid_litres_per_kwh: 0.0,
        grid: GridIntensity { step_s, gco2_per_kwh },
    };
    let seconds = report.duration_s();
    let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-6 * b.abs() + 2e-6, "{a} {b}");
    let f = report.footprint(&site(vec![400.0], 3600.0));
    close(f.machine_joules, 2000.0 * seconds);
    close(f.meter_joules, 3000.0 * seconds);
    close(f.operational_gco2, 3.0 * seconds / 3600.0 * 400.0);
    close(f.embodied_gco2, 2.0 * seconds / 3600.0 * 5.0);
    close(f.water_litres, 2.0 * seconds / 3600.0 * 2.0);
    close(f.gco2_per_request, (f.operational_gco2 + f.embodied_gco2) / m.finished as f64);
    // A grid that is dirty in its first bin's time alone, and clean later.
    let width_s = m.timeline.width_ns() as f64 / 1e9;
    let mut first = vec![0.0; m.timeline.bins().len()];
    first[0] = 1000.0;
    let f = report.footprint(&site(first, width_s));
    close(f.operational_gco2, 3.0 * width_s / 3600.0 * 1000.0);
}
