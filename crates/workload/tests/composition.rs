//! Workloads composed of clients: order, independence, conversations, prefixes, rollouts.
#![allow(clippy::disallowed_macros, reason = "random tests print their seed")]

mod common;

use std::collections::BTreeMap;

use common::seed;
use dunlin_units::{SessionId, Time};
use dunlin_workload::stats::{Summary, SummaryOptions};
use dunlin_workload::trace::native;
use dunlin_workload::{
    ArrivalSpec, ClientId, ClientSpec, Content, Context, ConversationSpec, CountSpec, DistSpec,
    GapSpec, LengthsSpec, Pacing, Part, Piece, PopulationSpec, PrefixPoolSpec, PrefixUse, RateSpec,
    Request, RolloutSpec, Wait, WorkloadSpec,
};

fn lengths(prompt: f64, output: f64) -> LengthsSpec {
    LengthsSpec::Independent {
        prompt: CountSpec::new(DistSpec::LogNormal { median: prompt, sigma: 0.7 }),
        output: CountSpec::new(DistSpec::Exponential { mean: output }),
    }
}

fn pool(name: &str, prefixes: u32, exponent: f64, tokens: u32) -> PrefixPoolSpec {
    let dist = DistSpec::Uniform { low: f64::from(tokens), high: f64::from(2 * tokens) };
    PrefixPoolSpec { name: name.into(), prefixes, exponent, tokens: CountSpec::new(dist) }
}

fn uses(pool: &str, chance: f64) -> PrefixUse {
    PrefixUse { pool: pool.into(), chance }
}

fn chat(pacing: Pacing, context: Context) -> ConversationSpec {
    ConversationSpec {
        turns: CountSpec::new(DistSpec::Exponential { mean: 4.0 }),
        gap_s: DistSpec::LogNormal { median: 5.0, sigma: 1.0 },
        pacing,
        context,
        max_context_tokens: 4000,
    }
}

fn gamma(per_s: f64, cv: f64) -> ArrivalSpec {
    ArrivalSpec::Open { gaps: GapSpec::Gamma { cv }, rate: RateSpec::Constant { per_s } }
}

/// A client of each kind.
fn clients() -> Vec<ClientSpec> {
    let mut single = ClientSpec::new("single", gamma(5.0, 2.0), lengths(300.0, 80.0));
    single.prefixes = vec![uses("system", 0.8), uses("shots", 0.5)];
    single.deadline_s = Some(2.5);
    let mut chatting = ClientSpec::new("chat", ArrivalSpec::poisson(1.0), lengths(60.0, 120.0));
    chatting.prefixes = vec![uses("system", 1.0)];
    chatting.conversation = Some(chat(Pacing::AfterAnswer, Context::Grow));
    let mut recorded = ClientSpec::new("recorded", gamma(0.5, 1.5), lengths(60.0, 120.0));
    recorded.conversation = Some(chat(Pacing::AfterArrival, Context::Grow));
    recorded.from_s = 20.0;
    recorded.until_s = Some(150.0);
    let mut users =
        ClientSpec::new("users", ArrivalSpec::ClosedLoop { users: 6 }, lengths(100.0, 50.0));
    users.conversation = Some(chat(Pacing::AfterAnswer, Context::Fresh));
    users.prefixes = vec![uses("shots", 1.0)];
    let plain = ClientSpec::new("plain", ArrivalSpec::poisson(3.0), lengths(900.0, 10.0));
    vec![single, chatting, recorded, users, plain]
}

fn workload(clients: Vec<ClientSpec>) -> WorkloadSpec {
    let prefix_pools = vec![pool("system", 30, 1.0, 400), pool("shots", 5, 0.0, 150)];
    WorkloadSpec { prefix_pools, clients, ..WorkloadSpec::default() }
}

/// The requests of the first 300 seconds.
fn until_300s(spec: &WorkloadSpec, seed: u64) -> Vec<Request> {
    let end = Time(300_000_000_000);
    spec.build(seed).unwrap().take_while(|r| r.arrival < end).collect()
}

#[test]
fn merging_is_sorting() {
    let seed = seed(41);
    let merged = until_300s(&workload(clients()), seed);
    assert!(merged.len() > 2000, "{} requests", merged.len());
    // Each client alone, then all rows sorted by arrival and client.
    let mut rows = Vec::new();
    for (id, client) in clients().into_iter().enumerate() {
        let alone = until_300s(&workload(vec![client]), seed);
        rows.extend(alone.into_iter().map(|r| Request { client: ClientId(id as u32), ..r }));
    }
    rows.sort_by_key(|r| (r.arrival, r.client));
    assert_eq!(merged, rows, "seed {seed}");
}

#[test]
fn adding_a_client_changes_nobody_else() {
    let seed = seed(42);
    let before = until_300s(&workload(clients()), seed);
    let mut more = clients();
    let mut late = ClientSpec::new("late", gamma(30.0, 4.0), lengths(10.0, 10.0));
    late.prefixes = vec![uses("system", 1.0)];
    more.push(late);
    let after = until_300s(&workload(more), seed);
    let others: Vec<Request> = after.into_iter().filter(|r| r.client != ClientId(5)).collect();
    assert_eq!(others, before, "seed {seed}");
}

#[test]
fn one_seed_one_workload() {
    let spec = workload(clients());
    let bytes = |seed| {
        let mut bytes = Vec::new();
        until_300s(&spec, seed).iter().for_each(|r| native::write(r, &mut bytes).unwrap());
        bytes
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
    // The description survives being written down.
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<WorkloadSpec>(&text).unwrap(), spec);
}

#[test]
fn conversations_carry_what_was_said() {
    let seed = seed(43);
    let rows = until_300s(&workload(clients()), seed);
    let mut sessions: BTreeMap<SessionId, Vec<&Request>> = BTreeMap::new();
    for row in &rows {
        if let Some(id) = row.session {
            sessions.entry(id).or_default().push(row);
        }
    }
    assert!(sessions.len() > 250, "{} sessions", sessions.len());
    let mut compared = 0;
    for turns in sessions.values() {
        for (i, turn) in turns.iter().enumerate() {
            assert_eq!((turn.turn, turn.client), (i as u32, turns[0].client));
            let waits = i > 0 && turn.client != ClientId(2);
            assert_eq!(turn.wait, if waits { Wait::PreviousTurn } else { Wait::Nothing });
        }
        for pair in turns.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            assert!(after.prompt_tokens + after.output_tokens <= 4000, "seed {seed}");
            if after.wait == Wait::PreviousTurn {
                assert_eq!(after.arrival, before.arrival.after(after.delay_ns));
            }
            let (mut old, mut new) = (Vec::new(), Vec::new());
            before.prompt_ids(1, 32_000, &mut old);
            after.prompt_ids(2, 32_000, &mut new);
            // Users of the closed loop share their template alone.
            if before.client == ClientId(3) {
                let shared = old.iter().zip(&new).take_while(|(a, b)| a == b).count() as u32;
                let Content::Pieces(pieces) = &before.content else { panic!("{before:?}") };
                assert_eq!((pieces.len(), shared), (2, pieces[0].tokens));
                continue;
            }
            before.answer_ids(1, 32_000, &mut old);
            assert_eq!(new[..old.len()], old, "seed {seed}: {before:?} {after:?}");
            assert!(new.len() > old.len());
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} pairs of turns");
    // A session's turns do not depend on when it began.
    let mut fast = clients();
    fast[1].arrival = ArrivalSpec::poisson(10.0);
    let fast = until_300s(&workload(fast), seed);
    let first = |rows: &[Request]| {
        let id = rows.iter().find(|r| r.client == ClientId(1)).unwrap().session;
        let turns = rows.iter().filter(|r| r.session == id);
        turns.map(|r| (r.turn, r.delay_ns, r.content.clone())).collect::<Vec<_>>()
    };
    let (slow, fast) = (first(&rows), first(&fast));
    let both = slow.len().min(fast.len());
    assert_eq!(slow[..both], fast[..both]);
}

#[test]
fn clients_keep_to_their_time_and_limit() {
    let rows = until_300s(&workload(clients()), 3);
    let begun = rows.iter().filter(|r| r.client == ClientId(2) && r.turn == 0);
    assert!(begun.clone().count() > 20);
    assert!(begun.clone().all(|r| (20..150).contains(&(r.arrival.0 / 1_000_000_000))));
    // Turns of sessions that have begun come later as well.
    let last = rows.iter().rev().find(|r| r.client == ClientId(2)).unwrap();
    assert!(last.arrival > Time(150_000_000_000));
    assert!(rows.iter().all(|r| {
        r.deadline_ns.map(u64::from) == (r.client == ClientId(0)).then_some(2_500_000_000)
    }));
    let mut limited = clients();
    limited.iter_mut().for_each(|c| c.limit = Some(7));
    let rows: Vec<Request> = workload(limited).build(3).unwrap().collect();
    for client in 0..5 {
        let begun = rows.iter().filter(|r| r.client == ClientId(client) && r.turn == 0).count();
        assert_eq!(begun, if client == 3 { 6 } else { 7 }, "client {client}");
    }
}

#[test]
fn popular_prefixes_are_popular() {
    let seed = seed(44);
    let mut client = ClientSpec::new("one", ArrivalSpec::poisson(100.0), lengths(100.0, 10.0));
    client.prefixes = vec![uses("system", 0.75)];
    let spec = WorkloadSpec {
        prefix_pools: vec![pool("system", 8, 1.2, 300)],
        clients: vec![client],
        ..WorkloadSpec::default()
    };
    let rows: Vec<Request> = spec.build(seed).unwrap().take(40_000).collect();
    let mut counts: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    for row in &rows {
        let Content::Pieces(pieces) = &row.content else { panic!("{row:?}") };
        assert_eq!(pieces.iter().map(|p| p.tokens).sum::<u32>(), row.prompt_tokens);
        if let [prefix, _] = **pieces {
            let entry = counts.entry(prefix.stream).or_insert((0, prefix.tokens));
            entry.0 += 1;
            assert_eq!(entry.1, prefix.tokens, "a prefix has one length");
        }
    }
    let mut found: Vec<u64> = counts.values().map(|c| c.0).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    let weights: Vec<f64> = (1..=8).map(|k| f64::from(k).powf(-1.2)).collect();
    let sum: f64 = weights.iter().sum();
    let expected = |k: usize| 40_000.0 * 0.75 * weights[k] / sum;
    let chi2: f64 = found
        .iter()
        .enumerate()
        .map(|(k, n)| (*n as f64 - expected(k)).powi(2) / expected(k))
        .sum();
    // 8 degrees of freedom, the total being free: 26.1.
    assert!(chi2 < 26.1, "seed {seed}: {chi2}");
    // What can be shared is every prefix but its first use: nothing else is.
    let all: u64 = counts.values().map(|(n, tokens)| (n - 1) * u64::from(*tokens)).sum();
    let mut summary = Summary::new(&SummaryOptions::default());
    rows.iter().for_each(|r| summary.add(r));
    assert_eq!(summary.report().sharing.tokens, all as f64);
}

#[test]
fn rollouts_wait_for_the_step_before() {
    let spec = RolloutSpec {
        name: "train".into(),
        steps: 4,
        prompts: 5,
        samples: 3,
        prompt: CountSpec::new(DistSpec::LogNormal { median: 200.0, sigma: 0.5 }),
        output: CountSpec::new(DistSpec::Exponential { mean: 700.0 }),
        prefixes: vec![uses("system", 1.0)],
        update_s: DistSpec::Constant { value: 12.5 },
        from_s: 3.0,
    };
    let other = RolloutSpec { name: "other".into(), steps: 2, ..spec.clone() };
    let whole = WorkloadSpec { rollouts: vec![spec, other], ..workload(vec![]) };
    let rows: Vec<Request> = whole.build(9).unwrap().collect();
    assert_eq!(rows.len(), (4 + 2) * 15);
    let train: Vec<&Request> = rows.iter().filter(|r| r.client == ClientId(0)).collect();
    for (i, row) in train.iter().enumerate() {
        let step = i as u32 / 15;
        assert_eq!(row.group.unwrap().0.get(), step + 1);
        match (step, row.wait) {
            (0, Wait::Nothing) => assert_eq!(row.delay_ns, 0),
            (_, Wait::Group { group, members: 15 }) => {
                assert_eq!((group.0.get(), row.delay_ns), (step, 12_500_000_000));
            }
            (_, wait) => panic!("step {step}: {wait:?}"),
        }
        let at = 3_000_000_000 + u64::from(step) * 12_500_000_000;
        assert_eq!(row.arrival, Time(at));
        let of_prompt = &train[i / 3 * 3];
        let (mut a, mut b) = (Vec::new(), Vec::new());
        row.prompt_ids(1, 1 << 20, &mut a);
        of_prompt.prompt_ids(2, 1 << 20, &mut b);
        assert_eq!(a, b, "samples of one prompt");
        a.clear();
        b.clear();
        row.answer_ids(1, 1 << 20, &mut a);
        of_prompt.answer_ids(2, 1 << 20, &mut b);
        assert!(i % 3 == 0 || a.iter().zip(&b).take(8).filter(|(x, y)| x == y).count() < 2);
    }
    // The other run has groups of its own.
    let groups: Vec<u32> =
        rows.iter().filter(|r| r.client == ClientId(1)).map(|r| r.group.unwrap().0.get()).collect();
    assert_eq!((groups[0], groups[29]), (5, 6));
}

#[test]
fn a_few_clients_of_a_population_send_most() {
    let seed = seed(45);
    let population = PopulationSpec {
        name: "everyone".into(),
        clients: 500,
        rate: RateSpec::Constant { per_s: 400.0 },
        skew: 1.2,
        cv: (0.8, 3.0),
        lengths: lengths(400.0, 100.0),
        scale: (0.5, 2.0),
        prefixes: vec![],
        conversation: None,
        deadline_s: None,
        from_s: 0.0,
        until_s: None,
    };
    let spec = WorkloadSpec { populations: vec![population], ..workload(clients()) };
    let mut summary = Summary::new(&SummaryOptions::default());
    let mut counts = vec![0u64; 505];
    for row in spec.build(seed).unwrap().take(200_000) {
        counts[row.client.0 as usize] += 1;
        summary.add(&row);
    }
    let share = |k: usize| (k as f64).powf(-1.2);
    let sum: f64 = (1..=500).map(share).sum();
    let all: u64 = counts[5..].iter().sum();
    for k in [1, 2, 10, 50] {
        let found = counts[4 + k] as f64 / all as f64;
        let expected = share(k) / sum;
        // Counts of bursty clients: the cv is at most 3.
        let slack = 4.0 * 3.0 / (expected * all as f64).sqrt();
        assert!((found / expected - 1.0).abs() < slack, "seed {seed}, {k}: {found} {expected}");
    }
    let report = summary.report();
    assert!(report.clients > 400 && report.clients_for_half < 10, "{report:?}");
}

#[test]
fn descriptions_that_cannot_be_are_named() {
    let check = |spec: WorkloadSpec, at: &str| {
        let error = spec.build(1).err().unwrap_or_else(|| panic!("no error at {at}"));
        assert_eq!(error.at, at, "{error}");
    };
    let with = |change: &dyn Fn(&mut ClientSpec)| {
        let mut spec = workload(clients());
        change(&mut spec.clients[1]);
        spec
    };
    check(with(&|c| c.name = "single".into()), "clients.single");
    check(with(&|c| c.arrival = ArrivalSpec::poisson(-1.0)), "clients.chat.arrival.rate.per_s");
    check(with(&|c| c.prefixes[0].pool = "none".into()), "clients.chat.prefixes");
    check(with(&|c| c.prefixes[0].chance = 1.5), "clients.chat.prefixes.chance");
    check(with(&|c| c.from_s = f64::NAN), "clients.chat.from_s");
    check(with(&|c| c.deadline_s = Some(-1.0)), "clients.chat.deadline_s");
    let turns = |c: &mut ClientSpec| c.conversation.as_mut().unwrap().turns.min = 0;
    check(with(&turns), "clients.chat.conversation.turns.min");
    let gap = |c: &mut ClientSpec| {
        let of = DistSpec::Exponential { mean: -1.0 };
        c.conversation.as_mut().unwrap().gap_s =
            DistSpec::Mixture { parts: vec![Part { weight: 1.0, of }] };
    };
    check(with(&gap), "clients.chat.conversation.gap_s.parts[0].mean");
    let mut twice = workload(clients());
    twice.prefix_pools.push(pool("shots", 2, 0.0, 5));
    check(twice, "prefix_pools.shots");
    let mut empty = workload(vec![]);
    empty.prefix_pools.push(pool("empty", 0, 0.0, 5));
    check(empty, "prefix_pools.empty.prefixes");
    let unknown = serde_json::from_str::<WorkloadSpec>(r#"{"client": []}"#).unwrap_err();
    assert!(unknown.to_string().contains("unknown field `client`"), "{unknown}");
    assert_eq!(workload(vec![]).build(1).unwrap().count(), 0);
}

#[test]
fn prefixes_come_in_order() {
    // Prefixes in the order in which the client names them, then its own tokens.
    let rows = until_300s(&workload(clients()), 6);
    let all = rows.iter().filter(|r| r.client == ClientId(0)).map(|r| match &r.content {
        Content::Pieces(pieces) => pieces.to_vec(),
        other => panic!("{other:?}"),
    });
    let longest: Vec<Piece> = all.max_by_key(Vec::len).unwrap();
    assert_eq!(longest.len(), 3);
    assert!((400..=800).contains(&longest[0].tokens) && (150..=300).contains(&longest[1].tokens));
}
