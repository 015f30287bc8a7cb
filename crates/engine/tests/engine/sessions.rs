//! Sessions: whatever is done to one, it answers as its tokens would as one prompt.

use dunlin_engine::{Engine, Finish, Request, SessionFailure};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::{Class, Keep, SessionProblem, SessionUse};
use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, SessionId};

use super::support::*;

const TENANT: TenantId = TenantId(0);

fn within(session: SessionId, keep: Keep, request: Request) -> Request {
    Request { session: Some(SessionUse { session, keep }), ..request }
}

fn append(engine: &mut Engine<Toy>, session: SessionId, tokens: &[u32]) {
    let id = engine.append_session(session, TENANT, tokens.to_vec()).unwrap();
    let done = drain(engine).remove(&id).unwrap();
    assert_eq!(done.choices[0].finish, Finish::MaxTokens);
    assert!(done.choices[0].token_ids.is_empty());
}

/// Asks a session that holds `history`.
fn check(engine: &mut Engine<Toy>, session: SessionId, history: &[u32], seed: u64) {
    assert_eq!(engine.session_tokens(session).unwrap(), history);
    let query = request(seed, 3, 4);
    let done = run_one(engine, &within(session, Keep::Nothing, query.clone()));
    assert_eq!(done.choices[0].token_ids, reference_after(history, &query, 0));
    assert_eq!(done.bill.context_tokens, history.len());
    assert_eq!(engine.session_tokens(session).unwrap(), history, "a question leaves no trace");
}

#[test]
fn random_sessions_answer_as_one_prompt_would() {
    for seed in 0..30u64 {
        let mut random = SeedTree::root(seed).child("session").stream();
        // Now and then so little memory that sessions lose their KV.
        let blocks = if seed % 3 == 0 { 45 } else { 400 };
        let mut engine = engine(blocks, 4, 16, 130);
        let mut all: Vec<(SessionId, Vec<u32>)> = Vec::new();
        let mut next = 0;
        for turn in 0..40u64 {
            let number = seed * 100 + turn;
            if all.is_empty() || random.next_below(8) == 0 && all.len() < 4 {
                all.push((SessionId(next), Vec::new()));
                next += 1;
                let tokens = Toy::prompt(number, 1 + random.next_below(9) as usize);
                let (session, history) = all.last_mut().unwrap();
                append(&mut engine, *session, &tokens);
                history.extend(tokens);
                continue;
            }
            let index = random.next_below(all.len() as u64) as usize;
            let (session, history) = &mut all[index];
            let session = *session;
            if history.len() > 90 {
                history.truncate(20);
                engine.rewind_session(session, 20).unwrap();
            }
            let cut = random.next_below(history.len() as u64 + 1) as usize;
            match random.next_below(8) {
                0 => {
                    let tokens = Toy::prompt(number, 1 + random.next_below(20) as usize);
                    append(&mut engine, session, &tokens);
                    history.extend(tokens);
                }
                1 | 2 => {
                    let keep = if random.next_below(2) == 0 { Keep::All } else { Keep::Prompt };
                    let request = request(number, 1 + random.next_below(6) as usize, 5);
                    let expected = reference_after(history, &request, 0);
                    let done = run_one(&mut engine, &within(session, keep, request.clone()));
                    assert_eq!(done.choices[0].token_ids, expected, "seed {seed} turn {turn}");
                    history.extend(&request.prompt);
                    if keep == Keep::All {
                        history.extend(&expected);
                    }
                }
                3 if cut > 0 => {
                    engine.rewind_session(session, cut).unwrap();
                    history.truncate(cut);
                }
                4 => {
                    let start = random.next_below(cut as u64 + 1) as usize;
                    if start > 0 {
                        engine.prune_session(session, start..cut.max(start)).unwrap();
                        drain(&mut engine);
                        history.drain(start..cut.max(start));
                    }
                }
                5 => {
                    // This backend's keys hold no position, so that keeping is exact, too.
                    let start = random.next_below(cut as u64 + 1) as usize;
                    if start > 0 {
                        match engine.prune_session_keeping(session, start..cut.max(start)) {
                            Ok(_) => {
                                drain(&mut engine);
                                history.drain(start..cut.max(start));
                            }
                            // Where there is no memory for two, it is as it was.
                            Err(SessionFailure::Problem(SessionProblem::NoMemory)) => {}
                            Err(other) => panic!("seed {seed} turn {turn}: {other}"),
                        }
                    }
                }
                6 => {
                    let copy = (SessionId(next), history.clone());
                    next += 1;
                    engine.fork_session(session, copy.0).unwrap();
                    all.push(copy);
                }
                _ if all.len() > 2 => {
                    engine.close_session(session).unwrap();
                    all.remove(index);
                }
                _ => {}
            }
            if all.len() > 4 {
                engine.close_session(all.remove(0).0).unwrap();
            }
            let (session, history) = &all[random.next_below(all.len() as u64) as usize];
            check(&mut engine, *session, history, number);
        }
        for (session, _) in &all {
            engine.close_session(*session).unwrap();
        }
        assert_eq!(free_blocks(&engine), blocks as u64, "seed {seed}");
    }
}

#[test]
fn a_query_costs_its_own_tokens() {
    let mut engine = engine(100, 4, 64, 300);
    let session = SessionId(5);
    let history = Toy::prompt(1, 203);
    append(&mut engine, session, &history);
    for keep in [Keep::Nothing, Keep::All] {
        let query = request(2, 8, 5);
        let done = run_one(&mut engine, &within(session, keep, query.clone()));
        assert_eq!(done.choices[0].token_ids, reference_after(&history, &query, 0));
        assert_eq!(done.bill.computed_tokens, 8 + 4);
        assert_eq!((done.bill.context_tokens, done.bill.cached_tokens), (203, 203));
    }
    assert_eq!(engine.session_tokens(session).unwrap().len(), 203 + 8 + 5);
}

#[test]
fn many_may_ask_and_one_may_append() {
    let mut engine = engine(200, 4, 64, 100);
    let session = SessionId(5);
    let history = Toy::prompt(1, 20);
    append(&mut engine, session, &history);
    let queries: Vec<Request> = (0..5).map(|seed| request(seed, 4, 6)).collect();
    let asks: Vec<Request> =
        queries.iter().map(|q| within(session, Keep::Nothing, q.clone())).collect();
    let done = run_all(&mut engine, &asks);
    for (query, completion) in queries.iter().zip(&done) {
        assert_eq!(completion.choices[0].token_ids, reference_after(&history, query, 0));
    }
    // Two that would both extend it: the second is turned away.
    let both: Vec<Request> =
        queries[..2].iter().map(|q| within(session, Keep::All, q.clone())).collect();
    let done = run_all(&mut engine, &both);
    assert_eq!(done[0].choices[0].token_ids, reference_after(&history, &queries[0], 0));
    assert_eq!(done[1].choices[0].finish.reason(), "error");
    // While one is under way, it may not be cut.
    engine.submit(within(session, Keep::All, queries[2].clone())).unwrap();
    for _ in 0..2 {
        let busy = engine.rewind_session(session, 3);
        assert!(matches!(busy, Err(SessionFailure::Problem(SessionProblem::Busy))), "{busy:?}");
        engine.step(&mut |_| {});
    }
    engine.run(|_| {});
    engine.rewind_session(session, 3).unwrap();
    assert_eq!(engine.session_tokens(session).unwrap(), &history[..3]);
}

#[test]
fn what_cannot_be_done_is_said() {
    let mut engine = engine(100, 4, 16, 60);
    let (a, b) = (SessionId(1), SessionId(2));
    let unknown = engine.rewind_session(a, 0).unwrap_err();
    assert!(matches!(unknown, SessionFailure::Problem(SessionProblem::Unknown)));
    append(&mut engine, a, &[1, 2, 3]);
    engine.fork_session(a, b).unwrap();
    let exists = engine.fork_session(a, b).unwrap_err();
    assert!(matches!(exists, SessionFailure::Problem(SessionProblem::Exists)));
    let short = engine.rewind_session(a, 4).unwrap_err();
    assert!(matches!(short, SessionFailure::Problem(SessionProblem::TooShort)));
    let range = engine.prune_session(a, 2..5).unwrap_err().to_string();
    assert_eq!(range, "tokens 2 to 5 are not within the session's 3");
    let long = engine.append_session(a, TENANT, Toy::prompt(1, 60)).unwrap_err().to_string();
    assert!(long.contains("63 tokens, but the context holds 60"), "{long}");
    // Another tenant may not even look.
    let foreign = Request { tenant: TenantId(3), ..request(1, 2, 2) };
    let done = run_one(&mut engine, &within(a, Keep::Nothing, foreign));
    assert!(matches!(done.choices[0].finish, Finish::Rejected(_)));
    assert_eq!(engine.sessions().collect::<Vec<_>>(), [a, b]);
}

#[test]
fn sessions_at_rest_give_way_to_requests() {
    let mut engine = engine(20, 4, 16, 60);
    let history = Toy::prompt(1, 40);
    append(&mut engine, SessionId(1), &history);
    let large = Request { class: Class::Normal, ..request(9, 40, 20) };
    let done = run_all(&mut engine, std::slice::from_ref(&large));
    assert_as_reference(&[large], &done);
    check(&mut engine, SessionId(1), &history, 4);
}

#[test]
fn later_kv_is_kept_and_stays_private() {
    let mut engine = engine(100, 4, 64, 300);
    let (session, copy) = (SessionId(1), SessionId(2));
    let mut history = Toy::prompt(1, 61);
    append(&mut engine, session, &history);
    assert!(engine.session_is_exact(session).unwrap());
    let steps = engine.stats().totals.steps;
    assert_eq!(engine.prune_session_keeping(session, 9..30).unwrap(), None);
    history.drain(9..30);
    assert_eq!(engine.stats().totals.steps, steps, "nothing is computed");
    check(&mut engine, session, &history, 3);
    assert!(!engine.session_is_exact(session).unwrap());
    // Nobody else's prompt finds that KV, though its tokens begin alike; but what the session had
    // computed before it was cut.
    let prompt = [&history[..], &[7, 8]].concat();
    let other = Request { prompt: prompt.clone(), ..request(5, 1, 3) };
    let done = run_one(&mut engine, &other);
    assert_eq!(done.bill.cached_tokens, 9);
    // Copies, and what is saved and restored, are its like.
    engine.fork_session(session, copy).unwrap();
    assert!(!engine.session_is_exact(copy).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    engine.save_session(session, &path).unwrap();
    engine.close_session(session).unwrap();
    engine.restore_session(session, TENANT, &path).unwrap();
    assert!(!engine.session_is_exact(session).unwrap());
    check(&mut engine, session, &history, 4);
    check(&mut engine, copy, &history, 5);
    // A range at the end keeps nothing, and costs nothing.
    let end = history.len();
    engine.prune_session_keeping(copy, end - 5..end).unwrap();
    check(&mut engine, copy, &history[..end - 5], 6);
    let range = engine.prune_session_keeping(copy, 3..end).unwrap_err();
    assert!(matches!(range, SessionFailure::BadRange { .. }), "{range}");
}

#[test]
fn without_memory_for_two_a_session_stays_as_it_was() {
    let mut engine = engine(20, 4, 16, 70);
    let session = SessionId(1);
    let history = Toy::prompt(1, 60);
    append(&mut engine, session, &history);
    let failed = engine.prune_session_keeping(session, 10..20).unwrap_err();
    assert!(matches!(failed, SessionFailure::Problem(SessionProblem::NoMemory)), "{failed}");
    check(&mut engine, session, &history, 2);
    assert_eq!(engine.sessions().collect::<Vec<_>>(), [session]);
}
