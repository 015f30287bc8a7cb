//! Clusters: hand-over of KV, replicas that fail and that follow the load, and tiers.

mod common;

use std::sync::Arc;

use common::{checked, cluster, constant, core, poisson, replica, run, usual};
use dunlin_router::PlacementKind;
use dunlin_sim::{
    Autoscale, Change, ChangeKind, ClusterSpec, ReplicaSpec, Role, RunOptions, SimError, Transfer,
    simulate,
};
use dunlin_units::Time;
use dunlin_workload::Request;

const BLOCK_BYTES: u64 = 1 << 20;

/// So many replicas that prefill and that decode.
fn disaggregated(prefill: usize, decode: usize, blocks: usize, link: u64) -> ClusterSpec {
    let with = |role| {
        Arc::new(ReplicaSpec {
            role,
            block_bytes: BLOCK_BYTES,
            link_bytes_per_s: link,
            ..replica(core(blocks, 16), usual())
        })
    };
    let prefills = (0..prefill).map(|_| with(Role::Prefill));
    let replicas = prefills.chain((0..decode).map(|_| with(Role::Decode))).collect();
    ClusterSpec { replicas, ..cluster(replica(core(blocks, 16), usual()), 1) }
}

#[test]
fn one_request_takes_prefill_transfer_and_decode() {
    // 100 tokens are 7 blocks: 7 MiB at 1 GiB/s are 6,835,938 ns.
    let prefill_ns = 4_000_000 + 100 * 30_000 + 5 * 5050;
    let bytes = 7 * BLOCK_BYTES;
    let link = 1u64 << 30;
    let wire_ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(link)) as u64;
    let requests = [Request::new(Time(0), 100, 4)];
    let mut spec = disaggregated(1, 1, 100, link);
    spec.transfer.latency_ns = 2_000;
    let report = checked(&spec, requests.clone()).unwrap();
    let m = &report.metrics;
    assert_eq!((m.finished, m.output_tokens, m.transfers, m.transfer_bytes), (1, 4, 1, bytes));
    assert_eq!(m.ttft.sum_ns(), u128::from(prefill_ns));
    assert_eq!(m.handoff.sum_ns(), u128::from(wire_ns + 2_000));
    // Three decodes behind the hand-over.
    let decode = |context: u64| 4_000_000 + 30_000 + 50 * (context + 1);
    let decodes = decode(100) + decode(101) + decode(102);
    assert_eq!(m.e2e.sum_ns(), u128::from(prefill_ns + wire_ns + 2_000 + decodes));
    // Of 32 layers that leave as they are computed, what the last step does not hide is the rest of
    // the wire's time, and at least the last layer.
    for (faster, expected) in [(1, wire_ns.saturating_sub(prefill_ns).max(1)), (16, 1)] {
        let mut spec = disaggregated(1, 1, 100, link * faster);
        spec.transfer = Transfer { latency_ns: 0, overlap_layers: Some(32) };
        let report = checked(&spec, requests.clone()).unwrap();
        let layer_ns = (wire_ns / 32 / faster) as u128;
        let exposed = report.metrics.handoff.sum_ns();
        let expected = u128::from(expected).max(layer_ns);
        assert!(exposed.abs_diff(expected) <= 2, "{exposed} {expected}");
    }
}

/// With every plan checked: KV is reserved first and held on both sides, and nothing is lost even
/// where memory is very short on the side that decodes.
#[test]
fn hand_over_conserves_everything() {
    for (blocks, overlap) in [(400, None), (40, None), (40, Some(8))] {
        let requests =
            poisson(21, 20.0, 400, |s| (1 + s.next_below(200) as u32, s.next_below(90) as u32));
        let tokens: u64 = requests.iter().map(|r| u64::from(r.output_tokens)).sum();
        let mut spec = disaggregated(2, 2, blocks, 1 << 30);
        spec.transfer = Transfer { latency_ns: 10_000, overlap_layers: overlap };
        let report = checked(&spec, requests.iter().cloned()).unwrap();
        let m = &report.metrics;
        assert_eq!((m.arrived, m.finished, m.failed, m.rejected), (400, 400, 0, 0));
        assert_eq!(m.output_tokens, tokens);
        let handed = requests.iter().filter(|r| r.output_tokens > 1).count() as u64;
        assert_eq!(m.transfers, handed);
        let waited = m.reserve.stats().unwrap().max_ms;
        assert_eq!(waited > 0.0, blocks == 40, "{waited} ms for KV");
        let mut log = Vec::new();
        let options = RunOptions { threads: 3, events: Some(&mut log), ..RunOptions::default() };
        let threaded = simulate(&spec, requests.into_iter().map(Ok), options).unwrap();
        assert_eq!(threaded.digest, report.digest);
        assert!(log.is_sorted());
    }
}

/// A replica goes down with all it has; its requests end elsewhere, with all their tokens.
#[test]
fn requests_outlive_their_replica() {
    let requests =
        poisson(22, 30.0, 600, |s| (1 + s.next_below(200) as u32, 1 + s.next_below(90) as u32));
    let tokens: u64 = requests.iter().map(|r| u64::from(r.output_tokens)).sum();
    let change =
        |at_s: u64, replica, kind| Change { at: Time(at_s * 1_000_000_000), replica, kind };
    let spec = ClusterSpec {
        changes: vec![
            change(3, 1, ChangeKind::Down),
            change(4, 0, ChangeKind::Down),
            change(5, 2, ChangeKind::Down),
            change(7, 0, ChangeKind::Up),
            change(9, 1, ChangeKind::Up),
            change(10, 1, ChangeKind::Slow { percent: 300 }),
        ],
        ..cluster(replica(core(300, 16), usual()), 3)
    };
    let report = checked(&spec, requests.iter().cloned()).unwrap();
    let m = &report.metrics;
    assert_eq!((m.arrived, m.finished, m.failed, m.clipped), (600, 600, 0, 0));
    assert_eq!(m.output_tokens, tokens);
    assert!(m.retried > 3);
    let well = ClusterSpec { changes: vec![], ..spec.clone() };
    let without = run(&well, requests.iter().cloned()).unwrap();
    assert!(m.e2e.sum_ns() > without.metrics.e2e.sum_ns());
    // Up time is what the changes say.
    let end = m.last.0 as u128;
    let s = 1_000_000_000u128;
    assert_eq!(m.up_ns, (end - 3 * s) + (end - 6 * s) + 5 * s);
    // Nobody comes back: those that are left found no replica.
    let gone = ClusterSpec { changes: spec.changes[..3].to_vec(), ..spec };
    assert!(matches!(run(&gone, requests), Err(SimError::Nowhere { count }) if count > 100));
}

/// The same where prefill and decode are apart: whichever side goes down, while prompts are computed,
/// while KV is on its way, and while answers are generated.
#[test]
fn hand_overs_outlive_both_sides() {
    let requests =
        poisson(27, 40.0, 900, |s| (1 + s.next_below(300) as u32, 1 + s.next_below(60) as u32));
    let tokens: u64 = requests.iter().map(|r| u64::from(r.output_tokens)).sum();
    let change = |at_ms: u64, replica, kind| Change { at: Time(at_ms * 1_000_000), replica, kind };
    let mut changes = vec![change(15_000, 2, ChangeKind::Slow { percent: 200 })];
    for k in 0..40u64 {
        // Prefill replicas are 0 to 2, those that decode 3 to 5.
        let replica = (k * 5 % 6) as u32;
        changes.push(change(1000 + k * 487, replica, ChangeKind::Down));
        changes.push(change(1700 + k * 487, replica, ChangeKind::Up));
    }
    changes.sort_by_key(|c| c.at);
    for (in_flight, overlap, link) in
        [(1, None, 1 << 30), (2, None, 1 << 27), (1, Some(8), 1 << 28)]
    {
        let mut spec = disaggregated(3, 3, 150, link);
        spec.changes.clone_from(&changes);
        spec.transfer = Transfer { latency_ns: 3_000_000, overlap_layers: overlap };
        for replica in &mut spec.replicas {
            Arc::make_mut(replica).core.steps_in_flight = in_flight;
        }
        let report = checked(&spec, requests.iter().cloned()).unwrap();
        let m = &report.metrics;
        assert_eq!((m.arrived, m.finished, m.failed, m.rejected), (900, 900, 0, 0));
        assert_eq!(m.output_tokens, tokens);
        assert!(m.retried > 40, "{}", m.retried);
        assert_eq!(m.request_energy.sum_ns(), m.energy_uj);
        let options = RunOptions { threads: 3, ..RunOptions::default() };
        let rows = requests.iter().cloned().map(Ok);
        assert_eq!(simulate(&spec, rows, options).unwrap().digest, report.digest);
        let well = ClusterSpec { changes: vec![], ..spec.clone() };
        let without = run(&well, requests.iter().cloned()).unwrap();
        assert!(m.e2e.sum_ns() > without.metrics.e2e.sum_ns());
        // Without anybody to compute prompts nothing goes on, and that is said.
        let down = |replica| change(2000, replica, ChangeKind::Down);
        let gone = ClusterSpec { changes: vec![down(0), down(1), down(2)], ..spec };
        let stuck = run(&gone, requests.iter().cloned());
        assert!(matches!(stuck, Err(SimError::Nowhere { count }) if count > 100));
    }
}

/// Each side follows its own load: long prompts ask for more of those that prefill, long answers for
/// more of those that decode.
#[test]
fn each_role_follows_its_own_load() {
    let scale = |role, requests_per_replica| Autoscale {
        role,
        least: 1,
        most: 4,
        requests_per_replica,
        interval_ns: 500_000_000,
        start_ns: 1_000_000_000,
        patience: 4,
    };
    let steps = |prompt, output| {
        let requests = poisson(28, 20.0, 800, |_| (prompt, output));
        let mut spec = disaggregated(4, 4, 2000, 1 << 32);
        spec.autoscale = vec![scale(Role::Prefill, 2), scale(Role::Decode, 6)];
        let report = checked(&spec, requests.iter().cloned()).unwrap();
        assert_eq!(report.metrics.finished, 800);
        let up = report.metrics.up_ns as f64 / report.metrics.last.0 as f64;
        let ended =
            |from: usize| report.replicas[from..from + 4].iter().filter(|r| r.busy_ns > 0).count();
        (ended(0), ended(4), up)
    };
    let (prefill, decode, up) = steps(1500, 4);
    assert!(prefill > decode, "{prefill} {decode}");
    assert!(up > 2.0 && up < 8.0, "{up}");
    let (prefill, decode, _) = steps(20, 120);
    assert!(decode > prefill, "{prefill} {decode}");
}

#[test]
fn the_number_of_replicas_follows_the_load() {
    // Quiet, busy, quiet.
    let mut requests = poisson(23, 4.0, 100, |_| (50, 20));
    let shift = |r: Request, s: u64| Request { arrival: r.arrival.after(s * 1_000_000_000), ..r };
    let busy = poisson(24, 120.0, 3000, |_| (50, 20));
    requests.extend(busy.into_iter().map(|r| shift(r, 30)));
    requests.extend(poisson(25, 4.0, 100, |_| (50, 20)).into_iter().map(|r| shift(r, 60)));
    requests.sort_by_key(|r| r.arrival);
    let fixed = cluster(replica(core(300, 8), usual()), 6);
    let scaled = ClusterSpec {
        autoscale: vec![Autoscale {
            role: Role::Mixed,
            least: 1,
            most: 6,
            requests_per_replica: 8,
            interval_ns: 500_000_000,
            start_ns: 2_000_000_000,
            patience: 4,
        }],
        ..fixed.clone()
    };
    let report = checked(&scaled, requests.iter().cloned()).unwrap();
    let all = run(&fixed, requests.iter().cloned()).unwrap();
    assert_eq!(report.metrics.finished, 3200);
    let up = |r: &dunlin_sim::Report| r.metrics.up_ns as f64 / r.metrics.last.0 as f64;
    assert!((up(&all) - 6.0).abs() < 1e-9);
    assert!(up(&report) > 1.2 && up(&report) < 4.5, "{}", up(&report));
    assert!(report.metrics.e2e.sum_ns() >= all.metrics.e2e.sum_ns());
}

/// A straggler among equals: placement by load sends it less, and round robin does not.
#[test]
fn placement_by_load_spares_a_straggler() {
    let requests = poisson(26, 60.0, 2000, |s| (20, 1 + s.next_below(40) as u32));
    let with = |placement| {
        let spec = ClusterSpec {
            placement,
            changes: vec![Change {
                at: Time(0),
                replica: 2,
                kind: ChangeKind::Slow { percent: 400 },
            }],
            ..cluster(replica(core(300, 8), usual()), 4)
        };
        run(&spec, requests.iter().cloned()).unwrap()
    };
    let (turn, load, two) = (
        with(PlacementKind::RoundRobin),
        with(PlacementKind::LeastLoaded),
        with(PlacementKind::PowerOfTwo),
    );
    assert!(load.replicas[2].ended * 2 < turn.replicas[2].ended);
    assert!(load.metrics.e2e.sum_ns() < turn.metrics.e2e.sum_ns());
    assert!(two.metrics.e2e.sum_ns() < turn.metrics.e2e.sum_ns());
}

/// Sessions that come back to where their KV is have more of it cached.
#[test]
fn sticky_sessions_find_their_prefix() {
    use dunlin_units::SessionId;
    use dunlin_workload::{Content, Piece, Wait};
    let turns = (0..60u64).flat_map(|s| {
        (0..5u32).map(move |turn| {
            let tokens = 100 + turn * 120;
            Request {
                session: Some(SessionId(s)),
                turn,
                wait: if turn > 0 { Wait::PreviousTurn } else { Wait::Nothing },
                delay_ns: if turn > 0 { 300_000_000 } else { 0 },
                content: Content::Pieces([Piece { stream: s, tokens }].into()),
                ..Request::new(Time(s * 50_000_000 + u64::from(turn) * 300_000_000), tokens, 20)
            }
        })
    });
    let mut requests: Vec<Request> = turns.collect();
    requests.sort_by_key(|r| (r.arrival, r.session, r.turn));
    let share = |placement| {
        let spec = ClusterSpec { placement, ..cluster(replica(core(2000, 16), usual()), 4) };
        let report = checked(&spec, requests.iter().cloned()).unwrap();
        assert_eq!(report.metrics.finished, 300);
        report.summary().kv.prefix_hit_share
    };
    let turn = share(PlacementKind::RoundRobin);
    for placement in [PlacementKind::SessionSticky, PlacementKind::PrefixAffine] {
        assert!(share(placement) > turn + 0.2, "{placement}: {} {turn}", share(placement));
    }
}

#[test]
fn settings_that_cannot_be_are_named() {
    let requests = || [Request::new(Time(0), 5, 5)];
    let error = |spec: ClusterSpec| run(&spec, requests()).unwrap_err().to_string();
    let one = || cluster(replica(core(100, 4), constant(1e6)), 2);
    let mut spec = disaggregated(1, 1, 100, 1 << 30);
    spec.replicas.pop();
    assert!(error(spec).contains("one that decodes"));
    assert!(error(disaggregated(1, 1, 100, 0)).contains("link"));
    let down = Change { at: Time(0), replica: 7, kind: ChangeKind::Down };
    assert!(error(ClusterSpec { changes: vec![down], ..one() }).contains("0 to 1"));
    let scale = Autoscale {
        role: Role::Mixed,
        least: 3,
        most: 2,
        requests_per_replica: 1,
        interval_ns: 1,
        start_ns: 0,
        patience: 0,
    };
    assert!(error(ClusterSpec { autoscale: vec![scale], ..one() }).contains("from 3 to 2"));
    let some = Autoscale { least: 1, most: 2, ..scale };
    assert!(error(ClusterSpec { autoscale: vec![some, some], ..one() }).contains("one role"));
    let other = Autoscale { role: Role::Decode, ..some };
    assert!(error(ClusterSpec { autoscale: vec![other], ..one() }).contains("0 there are"));
    let mut spec = one();
    Arc::make_mut(&mut spec.replicas[1]).core.max_running = 0;
    assert_eq!(error(spec), "replica 1: max_running: it is 0");
    assert!(matches!(
        run(&ClusterSpec { replicas: vec![], ..one() }, requests()),
        Err(SimError::NoReplicas)
    ));
}
