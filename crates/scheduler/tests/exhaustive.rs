//! Small worlds, whole: every order of arrivals, aborts, ends of steps and of moves up to a depth,
//! each run to its end with every call checked.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros, reason = "tests may look outside")]

mod support;

use dunlin_scheduler::{Class, CoreConfig, Event, Keep, SessionUse, Submission, SwapCost};
use dunlin_units::{RequestId, SessionId, Time};
use support::{Rules, World, config, namespace};

/// One thing that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Submit(usize),
    Abort(usize),
    Step,
    FailStep,
    Move,
}

/// What may happen next, given what has.
fn choices(world: &World, requests: &[Submission], path: &[Act]) -> Vec<Act> {
    let mut acts = Vec::new();
    for (i, r) in requests.iter().enumerate() {
        let sent = path.contains(&Act::Submit(i));
        let over = world.over.contains_key(&r.request);
        // Requests come in their order, which loses nothing: the order of their numbers is free.
        if !sent && (i == 0 || path.contains(&Act::Submit(i - 1))) {
            acts.push(Act::Submit(i));
        } else if sent && !over && !path.contains(&Act::Abort(i)) {
            acts.push(Act::Abort(i));
        }
    }
    if world.executor.steps_in_flight() > 0 {
        acts.push(Act::Step);
        if !path.contains(&Act::FailStep) {
            acts.push(Act::FailStep);
        }
    }
    if world.executor.moves_in_flight() > 0 {
        acts.push(Act::Move);
    }
    acts
}

fn act(world: &mut World, requests: &[Submission], act: Act) {
    world.now = Time(world.now.0 + 1000);
    let event = match act {
        Act::Submit(i) => Some(Event::Submit(Box::new(requests[i].clone()))),
        Act::Abort(i) => Some(Event::Abort(requests[i].request)),
        Act::Step => world.executor.step_done(),
        Act::FailStep => world.executor.step_done_with(&[0]),
        Act::Move => world.executor.end_move(),
    };
    world.advance(event.into_iter().collect());
}

/// Runs all paths, and returns how many there are.
fn explore(settings: &CoreConfig, requests: &[Submission], depth: usize) -> usize {
    let mut open: Vec<Vec<Act>> = vec![Vec::new()];
    let mut ends = 0;
    while let Some(path) = open.pop() {
        let rules = Rules { vocabulary: 2, ..Rules::default() };
        let mut world = World::new(settings.clone(), rules);
        for &step in &path {
            act(&mut world, requests, step);
        }
        let next = choices(&world, requests, &path);
        if path.len() < depth && !next.is_empty() {
            open.extend(next.into_iter().map(|a| [path.as_slice(), &[a]].concat()));
            continue;
        }
        ends += 1;
        world.end([SessionId(1)].into_iter());
    }
    ends
}

fn request(id: u64, prompt: &[u32], max_tokens: u32) -> Submission {
    Submission::new(RequestId(id), namespace(0), prompt, max_tokens)
}

#[test]
fn three_requests_with_one_prefix_and_little_memory() {
    for inflight in [1, 2] {
        for (blocks, step) in [(4, 3), (5, 8)] {
            let mut settings = config(2, blocks, step);
            settings.steps_in_flight = inflight;
            let requests =
                [request(1, &[1, 1, 2], 3), request(2, &[1, 1, 3], 3), request(3, &[1, 1], 1)];
            let ends = explore(&settings, &requests, 9);
            println!("{ends} ends");
            assert!(ends > 500, "{ends}");
        }
    }
}

#[test]
fn choices_and_an_idle_request() {
    for inflight in [1, 2] {
        let mut settings = config(2, 5, 6);
        settings.steps_in_flight = inflight;
        let mut parting = request(1, &[1, 1, 2], 2);
        parting.choices = 2;
        let mut idle = request(2, &[1, 1, 2], 2);
        idle.class = Class::Idle;
        let requests = [idle, parting, request(3, &[1, 1, 2], 0)];
        let ends = explore(&settings, &requests, 9);
        println!("{ends} ends");
        assert!(ends > 500, "{ends}");
    }
}

#[test]
fn a_session_and_a_question_to_it() {
    let mut settings = config(2, 5, 3);
    settings.steps_in_flight = 2;
    let mut first = request(1, &[1, 2, 3], 1);
    first.session = Some(SessionUse { session: SessionId(1), keep: Keep::All });
    let mut question = request(2, &[4], 1);
    question.session = Some(SessionUse { session: SessionId(1), keep: Keep::Nothing });
    let mut more = request(3, &[5], 1);
    more.session = Some(SessionUse { session: SessionId(1), keep: Keep::Prompt });
    let ends = explore(&settings, &[first, question, more], 9);
    println!("{ends} ends");
    assert!(ends > 500, "{ends}");
}

#[test]
fn a_disk_tier_with_moves_at_any_time() {
    let mut settings = config(2, 4, 4);
    settings.cache.disk_slots = 2;
    settings.swap = SwapCost { block_bytes: 0, bytes_per_s: 1 };
    let requests =
        [request(1, &[1, 1, 2], 2), request(2, &[3, 3, 3, 3], 1), request(3, &[1, 1, 2], 1)];
    let ends = explore(&settings, &requests, 9);
    println!("{ends} ends");
    assert!(ends > 500, "{ends}");
}
