//! Nobody starves: traffic that is made to overtake, without end, and a request in the middle of it
//! that must end within the bound that `policy` states.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests may look outside")]

mod support;

use dunlin_kvcache::TenantId;
use dunlin_scheduler::{
    Class, Event, Submission,
    policy::{MAX_SLACK_NS, PolicyKind},
};
use dunlin_units::{RequestId, Time};
use support::{Rules, World, config, namespace};

/// The request that is overtaken.
const VICTIM: RequestId = RequestId(0);

/// A step with one token takes so long: one place serves some five requests a second.
const STEP_NS: u64 = 50_000_000;

/// The victim, as late as the policy can make it.
fn victim(policy: PolicyKind) -> Submission {
    let mut s = Submission::new(VICTIM, namespace(0), vec![7; 30], 8);
    s.class = Class::Low;
    s.tenant = TenantId(1);
    s.predicted_tokens = Some(1 << 20);
    s.due = (policy == PolicyKind::Deadline).then_some(Time(u64::MAX / 2));
    s
}

/// One that goes before the victim for as long as anything may.
fn rival(policy: PolicyKind, id: u64, now: Time) -> Submission {
    // For the prefix policy, all but the end is cached.
    let mut prompt = vec![3; 28];
    prompt.extend([id as u32, id as u32 + 1]);
    let mut s = Submission::new(RequestId(id), namespace(0), prompt, 4);
    s.class = Class::High;
    s.predicted_tokens = Some(1);
    s.due = Some(now);
    if policy == PolicyKind::Fair {
        // A tenant that never asked before.
        s.tenant = TenantId(id as u32 + 1);
    }
    s
}

/// Runs rivals at twice the rate at which they can be served, and returns when the victim ended.
fn victim_ends(policy: PolicyKind, flood: u64) -> Time {
    let mut settings = config(4, 12, 64);
    settings.policy = policy;
    settings.max_running = 1;
    settings.max_waiting = u32::MAX;
    let rules = Rules { step_ns: STEP_NS, token_ns: 0, ..Rules::default() };
    let mut world = World::new(settings, rules);
    // The tenant of the victim has asked for much before, where that counts.
    let mut before = victim(policy);
    before.request = RequestId(1);
    let mut id = 2;
    let first = rival(policy, id, Time(0));
    world.advance([before, victim(policy), first].map(|s| Event::Submit(Box::new(s))).to_vec());
    let every = 2 * STEP_NS;
    loop {
        world.pass_until(world.now.after(every));
        if let Some(over) = world.over.get(&VICTIM) {
            assert_eq!(over.outputs[0].len(), 8);
            return over.at;
        }
        id += 1;
        if world.now.0 < flood {
            let next = rival(policy, id, world.now);
            world.advance(vec![Event::Submit(Box::new(next))]);
        }
        assert!(world.now.0 < 40 * MAX_SLACK_NS, "{policy} starves it");
    }
}

/// The bound: those that arrive in the first three slacks may all go first, and nobody later does.
#[test]
fn whoever_arrives_late_enough_does_not_go_first() {
    // Each rival takes four steps.
    let ahead = 3 * MAX_SLACK_NS / (2 * STEP_NS) + 2;
    let work_ns = (ahead * 4 + 100) * STEP_NS;
    for policy in PolicyKind::ALL {
        let at = victim_ends(policy, u64::MAX);
        assert!(at.0 <= work_ns.max(3 * MAX_SLACK_NS), "{policy}: {} s", at.0 / 1_000_000_000);
        // And without a flood it is soon done, so that the flood was what it waited for.
        let alone = victim_ends(policy, 1);
        assert!(alone.0 < 60 * STEP_NS && alone < at, "{policy}: {} ns", alone.0);
    }
}

/// Memory that is short all the time keeps nobody out either: the victim needs most of it.
#[test]
fn a_large_one_gets_its_memory_beside_many_small_ones() {
    for policy in PolicyKind::ALL {
        for inflight in [1, 2] {
            let mut settings = config(4, 12, 64);
            settings.policy = policy;
            settings.steps_in_flight = inflight;
            let rules = Rules { step_ns: STEP_NS, token_ns: 0, ..Rules::default() };
            let mut world = World::new(settings, rules);
            let mut large = victim(policy);
            large.max_tokens = 8;
            large.class = Class::Normal;
            for i in 2..5 {
                let s = rival(policy, i, world.now);
                world.advance(vec![Event::Submit(Box::new(s))]);
            }
            world.advance(vec![Event::Submit(Box::new(large))]);
            let mut id = 5;
            while !world.over.contains_key(&VICTIM) {
                world.pass_until(world.now.after(STEP_NS / 2));
                id += 1;
                let mut next = rival(policy, id, world.now);
                next.class = Class::Normal;
                next.prompt = [id as u32; 5].into();
                world.advance(vec![Event::Submit(Box::new(next))]);
                assert!(world.now.0 < 40 * MAX_SLACK_NS, "{policy} starves it");
            }
        }
    }
}
