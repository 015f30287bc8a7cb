//! Random worlds: any settings, any traffic, any misfortune, with every call checked and nothing
//! left at the end.
//!
//! `DUNLIN_SEED=n` runs one seed alone, and with `DUNLIN_TRACE=1` shows every call.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests may look outside")]

mod support;

use std::sync::Arc;

use dunlin_kvcache::{CacheConfig, EvictionKind, TenantId};
use dunlin_scheduler::{
    Admission, Chunking, Class, Core, CoreConfig, DraftControl, DrafterKind, Effects, Event, Keep,
    SessionOp, SessionUse, Speculate, SpeculationConfig, Submission, SwapCost, policy::PolicyKind,
};
use dunlin_units::{RequestId, SeedTree, SessionId, Stream, Time};
use support::{Rules, World, mix, namespace};

/// Sessions that are used.
const SESSIONS: u64 = 4;

/// Says which seed it was when a test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was DUNLIN_SEED={}", self.0);
        }
    }
}

struct Dice(Stream);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_below(n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn settings(dice: &mut Dice) -> CoreConfig {
    let block_tokens = dice.of(&[1, 2, 3, 4, 8, 16]);
    let cache = CacheConfig {
        block_tokens,
        block_count: dice.of(&[4, 6, 9, 14, 25, 60]),
        disk_slots: dice.of(&[0, 0, 1, 3, 10, 40]),
        eviction: dice.of(&EvictionKind::ALL),
        prefix_cache: !dice.one_in(6),
        hash_seed: dice.below(100),
    };
    let mut config = CoreConfig::new(cache, dice.of(&[1, 2, 3, 5, 8, 16, 40, 100]));
    config.max_running = dice.of(&[1, 2, 3, 4, 8, 30]);
    config.max_waiting = dice.of(&[2, 5, 100, 100, 100]);
    config.steps_in_flight = dice.of(&[1, 2]);
    config.chunking = match dice.below(4) {
        0 | 1 => Chunking::Full,
        2 => Chunking::Tokens(dice.below(12) as u32),
        _ => Chunking::Slowdown { percent: 101 + dice.below(300) as u32 },
    };
    config.policy = dice.of(&PolicyKind::ALL);
    config.clip_tokens = dice.one_in(4).then_some(dice.below(9) as u32);
    config.speculation = SpeculationConfig {
        control: dice.of(&[DraftControl::Adaptive, DraftControl::Fixed, DraftControl::Fixed]),
        drafters: dice.of(&[None, Some((DrafterKind::Model, 300))]).into_iter().collect(),
        slack_permille: dice.of(&[0, 20, 1000]),
        ..SpeculationConfig::default()
    };
    config.swap = SwapCost { block_bytes: dice.of(&[0, 100, 1 << 20]), bytes_per_s: 1 << 30 };
    config.admission = dice.of(&[Admission::Headroom, Admission::Prompt]);
    config
}

fn misfortunes(dice: &mut Dice, seed: u64) -> Rules {
    let rare = |dice: &mut Dice, most| if dice.one_in(2) { 0 } else { dice.below(most) };
    Rules {
        seed,
        vocabulary: dice.of(&[1, 2, 3, 50_000]),
        same_choices: dice.one_in(2),
        stops: rare(dice, 600),
        failing_entries: rare(dice, 30),
        failing_samples: rare(dice, 30),
        failing_moves: rare(dice, 400),
        slow_steps: rare(dice, 50),
        move_ns: dice.of(&[1, 100_000, 3_000_000]),
        drafts: rare(dice, 1000),
        draft_nodes: dice.below(9),
        ..Rules::default()
    }
}

/// Tokens that often begin like others.
fn prompt(dice: &mut Dice, size: u64) -> Arc<[u32]> {
    let length = match dice.below(12) {
        0 => 0,
        1 => 1,
        _ => dice.below(size) + 1,
    };
    let stream = dice.below(3);
    let same = if dice.one_in(3) { dice.below(length + 1) } else { length };
    let own = dice.below(1000);
    let token = |i| mix(&[if i < same { stream } else { 100 + own }, i]) as u32 % 7;
    (0..length).map(token).collect()
}

fn submission(dice: &mut Dice, id: u64, size: u64, now: Time) -> Submission {
    let mut s = Submission::new(RequestId(id), namespace(0), prompt(dice, size), 0);
    s.tenant = TenantId(if dice.one_in(3) { 1 } else { 0 });
    if dice.one_in(4) {
        s.namespace = namespace(1);
    }
    s.choices = if dice.one_in(5) { dice.below(5) as u32 } else { 1 };
    s.max_tokens = if dice.one_in(10) { 0 } else { dice.below(20) as u32 };
    s.class = dice.of(&[Class::Normal, Class::Normal, Class::Idle, Class::Low, Class::High]);
    s.due = dice.one_in(3).then(|| now.after(dice.below(20_000_000)));
    s.speculate = dice.of(&[
        Speculate::Off,
        Speculate::Auto,
        Speculate::Auto,
        Speculate::Only(DrafterKind::Lookup),
        Speculate::Only(DrafterKind::Model),
    ]);
    s.max_draft = dice.of(&[0, 1, 5, 31]);
    s.max_branches = dice.of(&[1, 2, 8]);
    s.expires = dice.one_in(8).then(|| Time(now.0.saturating_sub(10) + dice.below(20_000_000)));
    s.predicted_tokens = dice.one_in(3).then(|| dice.below(30) as u32);
    if dice.one_in(4) {
        let session = SessionId(dice.below(SESSIONS));
        s.session =
            Some(SessionUse { session, keep: dice.of(&[Keep::All, Keep::Prompt, Keep::Nothing]) });
        // A session is its tenant's.
        s.tenant = TenantId((session.0 % 2) as u32);
        s.namespace = namespace(u64::from(dice.one_in(10)));
    }
    s
}

fn session_op(dice: &mut Dice, size: u64, holds: bool) -> SessionOp {
    let session = SessionId(dice.below(SESSIONS));
    match dice.below(if holds { 8 } else { 5 }) {
        0 => SessionOp::Fork { from: session, to: SessionId(dice.below(SESSIONS)) },
        1 | 2 => SessionOp::Rewind { session, tokens: dice.below(size) as u32 },
        3 => SessionOp::Close(session),
        5.. => SessionOp::Hold { session, held: dice.one_in(2) },
        _ => SessionOp::Restore {
            session,
            tenant: TenantId((session.0 % 2) as u32),
            namespace: namespace(0),
            tokens: prompt(dice, size),
        },
    }
}

/// Runs one world, and returns it at its end.
fn run(seed: u64, events: u64, keep_log: bool) -> World {
    let _seed = Seed(seed);
    let mut dice = Dice(SeedTree::root(seed).child("fuzz").stream());
    let config = settings(&mut dice);
    let rules = misfortunes(&mut dice, seed);
    let capacity = (config.cache.block_tokens * config.cache.block_count) as u64;
    let size = (capacity / dice.of(&[1, 2, 4])).clamp(1, 80);
    let gap_ns = dice.of(&[1, 50_000, 400_000, 2_000_000]);
    if std::env::var_os("DUNLIN_TRACE").is_some() {
        eprintln!("{config:?}\n{rules:?}");
    }
    let mut world = World::new(config, rules);
    if keep_log {
        world.log = Some(Vec::new());
    }
    if dice.one_in(3) {
        let blocks = dice.below(world.checked.core.config().cache.block_count as u64) + 1;
        world.set_budget(1, blocks as usize);
    }
    // Of some, so that the others stay as they were.
    let holds = seed % 4 == 1;
    let mut next_id = 0;
    for _ in 0..events {
        let to = world.now.after(dice.below(gap_ns));
        world.pass_until(to);
        let mut events = Vec::new();
        for _ in 0..=dice.below(2) {
            match dice.below(10) {
                0..=5 => {
                    let s = submission(&mut dice, next_id, size, world.now);
                    next_id += 1;
                    events.push(Event::Submit(Box::new(s)));
                }
                6 | 7 => {
                    let back = dice.below(12);
                    events.push(Event::Abort(RequestId(next_id.saturating_sub(back))));
                }
                _ => events.push(Event::Session(session_op(&mut dice, size, holds))),
            }
        }
        if dice.one_in(8) {
            // Something ends just now.
            world.executor.ended(world.now, &mut events);
        }
        world.advance(events);
    }
    // What is held for ever may leave a request waiting for ever.
    let sessions = (0..SESSIONS).map(SessionId);
    let known = sessions.clone().filter(|&s| world.checked.core.session_tokens(s).is_some());
    let let_go = known.map(|session| Event::Session(SessionOp::Hold { session, held: false }));
    world.advance(let_go.collect());
    world.end(sessions);
    world
}

#[test]
fn anything_may_happen_and_everything_ends() {
    if let Some(seed) = std::env::var("DUNLIN_SEED").ok().and_then(|s| s.parse().ok()) {
        run(seed, 400, false);
        return;
    }
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    let (mut over, mut rejected) = (0, 0);
    // Those that have found something since stay.
    for seed in (0..seeds).chain([846, 1038, 3219, 4140, 5275]) {
        let world = run(seed, 400, false);
        over += world.over.len();
        rejected += world.rejected;
    }
    println!("{over} requests ended and {rejected} were rejected");
}

#[test]
fn the_same_calls_give_the_same_effects_to_the_byte() {
    for seed in 1000..1020 {
        let world = run(seed, 150, true);
        let _seed = Seed(seed);
        let mut core = Core::new(world.checked.core.config().clone()).unwrap();
        let mut dice = Dice(SeedTree::root(seed).child("fuzz").stream());
        set_the_same_budget(&mut core, &mut dice, seed);
        let mut effects = Effects::default();
        for (now, mut events, expected) in world.log.unwrap() {
            core.advance(now, &mut events, &mut effects);
            let text = serde_json::to_string(&effects).unwrap();
            assert_eq!(text, serde_json::to_string(&expected).unwrap(), "at {}", now.0);
            assert_eq!(serde_json::from_str::<Effects>(&text).unwrap(), effects);
        }
    }
}

/// Draws what [`run`] draws before its first event.
fn set_the_same_budget(core: &mut Core, dice: &mut Dice, seed: u64) {
    settings(dice);
    misfortunes(dice, seed);
    dice.of(&[1, 2, 4]);
    dice.of(&[1, 2, 3, 4]);
    if dice.one_in(3) {
        let blocks = dice.below(core.config().cache.block_count as u64) + 1;
        core.set_budget(TenantId(1), Some(blocks as usize));
    }
}
