//! A driver of the core that works as the engine does, with step times of its own: the simulator,
//! told those times, must decide the same.

use std::sync::Arc;

use dunlin_costmodel::LinearCost;
use dunlin_costmodel::StepCost;
use dunlin_kvcache::{CacheConfig, EvictionKind, Namespace};
use dunlin_planner::{
    calibrate::shape_of,
    validate::{Recording, Sides, decisions, predict},
};
use dunlin_scheduler::{
    Chunking, Commit, Core, CoreConfig, Effects, Event, StepOutcome, StepPlan, Submission,
};
use dunlin_units::{RequestId, SeedTree, Time};
use dunlin_workload::{
    ArrivalSpec, ClientSpec, CountSpec, DistSpec, LengthsSpec, PrefixPoolSpec, PrefixUse, Request,
    WorkloadSpec,
};

const MACHINE: LinearCost = LinearCost {
    fixed_ns: 3e6,
    token_ns: 60e3,
    prefill_token_ns: 0.0,
    decode_seq_ns: 1e4,
    kv_position_ns: 40.0,
    prefill_pair_ns: 2.0,
    sampled_ns: 2e4,
    power_watts: 0.0,
};

fn traffic(seed: u64, per_s: f64, count: u64) -> Vec<Request> {
    let count_of = |median, sigma, max| CountSpec {
        max,
        ..CountSpec::new(DistSpec::LogNormal { median, sigma })
    };
    let lengths = LengthsSpec::Independent {
        prompt: count_of(80.0, 0.9, 500),
        output: count_of(30.0, 0.8, 200),
    };
    let mut client = ClientSpec::new("some", ArrivalSpec::poisson(per_s), lengths.clone());
    client.limit = Some(count);
    let mut shared = ClientSpec::new("shared", ArrivalSpec::poisson(per_s / 3.0), lengths);
    shared.limit = Some(count / 3);
    shared.prefixes = vec![PrefixUse { pool: "system".into(), chance: 1.0 }];
    let pool = PrefixPoolSpec {
        name: "system".into(),
        prefixes: 2,
        exponent: 0.5,
        tokens: CountSpec::constant(96),
    };
    let spec = WorkloadSpec {
        prefix_pools: vec![pool],
        clients: vec![client, shared],
        ..WorkloadSpec::default()
    };
    spec.build(seed).unwrap().collect()
}

fn config(blocks: usize, chunking: Chunking) -> CoreConfig {
    let cache = CacheConfig {
        block_tokens: 32,
        block_count: blocks,
        disk_slots: 0,
        eviction: EvictionKind::Lru,
        prefix_cache: true,
        hash_seed: 0,
    };
    CoreConfig { max_running: 24, chunking, ..CoreConfig::new(cache, 256) }
}

/// Drives a core as the engine does: requests that came during a step are told of with its end.
/// Steps take what the machine takes, and up to a tenth more.
fn drive(config: &CoreConfig, requests: &[Request], seed: u64) -> Recording {
    let mut core = Core::new(config.clone()).unwrap();
    let mut recording = Recording::new(config.clone());
    let seeds = SeedTree::root(seed);
    let mut noise = seeds.child("noise").stream();
    let (mut now, mut told) = (1_000_000, 0);
    let (mut effects, mut running): (Effects, Option<StepPlan>) = (Effects::default(), None);
    let mut unfinished = 0;
    while told < requests.len() || unfinished > 0 {
        // The engine polls a little before it asks for the time.
        let polled = now - 500;
        let mut events = Vec::new();
        while told < requests.len() && requests[told].arrival.0 <= polled {
            let request = &requests[told];
            let mut prompt = Vec::new();
            request.prompt_ids(seeds.child_at(told as u64).seed(), 50_000, &mut prompt);
            let id = RequestId(told as u64);
            let most = request.output_tokens;
            let new = Submission::new(id, Namespace::default(), prompt, most);
            events.push(Event::Submit(Box::new(new)));
            told += 1;
            unfinished += 1;
        }
        if let Some(plan) = running.take() {
            let commits = vec![Commit { tokens: 1, end: None }; plan.samples.len()];
            let tokens = plan.samples.iter().map(|_| (noise.next_u64() % 50_000) as u32).collect();
            let outcome =
                StepOutcome { step: plan.step, commits, tokens, ..StepOutcome::default() };
            events.push(Event::StepDone(Box::new(outcome)));
        }
        let before = events.clone();
        core.advance(Time(now), &mut events, &mut effects);
        recording.call(Time(now), &before, &effects);
        unfinished -= effects.finished.len();
        running = effects.plan.clone();
        now += match &running {
            Some(plan) => {
                let ns = MACHINE.price(&shape_of(plan)).time_ns as f64;
                (ns * (1.0 + 0.1 * noise.next_unit())) as u64 + 1
            }
            None => requests.get(told).map_or(1, |r| r.arrival.0.saturating_sub(now) + 700),
        };
    }
    recording
}

#[test]
fn told_how_long_steps_took_the_simulator_decides_the_same() {
    for (seed, blocks, chunking, per_s) in [
        (1, 400, Chunking::Full, 20.0),
        (2, 40, Chunking::Full, 30.0),
        (3, 60, Chunking::Tokens(32), 60.0),
        (4, 400, Chunking::Full, 2.0),
    ] {
        let requests = traffic(seed, per_s, 120);
        let config = config(blocks, chunking);
        let recording = drive(&config, &requests, seed);
        let found = decisions(&recording, &requests).unwrap();
        assert_eq!(found.differences(), 0, "seed {seed}: {found:?}");
        assert_eq!((found.requests, found.steps), (160, recording.steps.len() as u64));
        assert!(found.steps > 300, "{found:?}");
    }
}

#[test]
fn a_different_core_is_found_out() {
    let requests = traffic(5, 30.0, 60);
    let recording = drive(&config(40, Chunking::Full), &requests, 5);
    let mut other = recording.clone();
    other.config.cache.block_count = 400;
    let found = decisions(&other, &requests).unwrap();
    assert!(found.different_steps > 0 && found.first_difference.is_some(), "{found:?}");
    let mut slower = recording.clone();
    slower.steps[40].ended = slower.steps[40].ended.after(1);
    let found = decisions(&slower, &requests).unwrap();
    assert!(found.different_requests > 0, "{found:?}");
}

#[test]
fn the_error_of_a_cost_model_is_that_of_the_machine() {
    let requests = traffic(6, 25.0, 300);
    let recording = drive(&config(400, Chunking::Full), &requests, 6);
    let scheduled: Vec<Time> = requests.iter().map(|r| r.arrival).collect();
    let real = recording.times(&scheduled);
    // Steps take a twentieth more than the machine's cost, on average.
    let scale = |factor: f64| LinearCost {
        fixed_ns: MACHINE.fixed_ns * factor,
        token_ns: MACHINE.token_ns * factor,
        decode_seq_ns: MACHINE.decode_seq_ns * factor,
        kv_position_ns: MACHINE.kv_position_ns * factor,
        prefill_pair_ns: MACHINE.prefill_pair_ns * factor,
        sampled_ns: MACHINE.sampled_ns * factor,
        ..MACHINE
    };
    let sides = |factor| {
        let cost = Arc::new(scale(factor));
        let (own, _) = predict(&recording.config, cost, requests.clone()).unwrap();
        Sides::new(&real, &own)
    };
    let right = sides(1.05);
    assert_eq!(right.requests, 400);
    let e2e = right.e2e.unwrap();
    assert!(e2e.mean.error_percent.abs() < 3.0, "{e2e:?}");
    assert!(right.throughput_error_percent.abs() < 1.0, "{right:?}");
    let slow = sides(1.5).tpot.unwrap();
    assert!(slow.mean.error_percent > 30.0, "{slow:?}");
}
