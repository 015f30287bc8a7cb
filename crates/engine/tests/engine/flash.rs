//! Questions answered ahead of time.

use std::collections::BTreeMap;

use dunlin_engine::{Asked, CancelFlag, Engine, Event, QuestionId};
use dunlin_kvcache::TenantId;
use dunlin_testkit::toy::Toy;
use dunlin_units::{RequestId, SessionId};

use super::support::*;

const SESSION: SessionId = SessionId(1);

fn append(engine: &mut Engine<Toy>, tokens: &[u32]) {
    engine.append_session(SESSION, TenantId(0), tokens.to_vec()).unwrap();
}

fn answer(engine: &mut Engine<Toy>, question: QuestionId) -> Vec<u32> {
    match engine.ask(SESSION, question, CancelFlag::new()).unwrap() {
        Asked::Answered(completion) => completion.choices[0].token_ids.clone(),
        Asked::Submitted(_) => panic!("it should have been answered ahead of time"),
    }
}

/// Runs until nothing is left; the tokens of what ended.
fn ends(engine: &mut Engine<Toy>) -> BTreeMap<RequestId, Vec<u32>> {
    let mut ended = BTreeMap::new();
    while engine.is_busy() {
        engine.step(&mut |event| {
            if let Event::Finished { request, completion } = event {
                ended.insert(request, completion.choices[0].token_ids.clone());
            }
        });
    }
    ended
}

#[test]
fn an_answer_is_there_without_a_forward_pass_and_follows_the_data() {
    let mut engine = engine(200, 4, 16, 150);
    let mut history = Toy::prompt(1, 30);
    append(&mut engine, &history);
    drain(&mut engine);
    let questions = [request(2, 5, 6), request(3, 4, 7)];
    let ids: Vec<QuestionId> =
        questions.iter().map(|q| engine.register_question(SESSION, q.clone()).unwrap()).collect();
    for round in 0..3 {
        drain(&mut engine);
        let steps = engine.backend().steps.len();
        for (question, &id) in questions.iter().zip(&ids) {
            assert!(engine.is_answered(SESSION, id));
            assert_eq!(answer(&mut engine, id), reference_after(&history, question, 0));
        }
        assert!(!engine.is_busy());
        assert_eq!(engine.backend().steps.len(), steps, "no forward pass");
        match round {
            0 => {
                let more = Toy::prompt(7, 9);
                append(&mut engine, &more);
                history.extend(more);
            }
            1 => {
                engine.rewind_session(SESSION, 17).unwrap();
                history.truncate(17);
            }
            _ => {}
        }
        if round < 2 {
            assert!(!engine.is_answered(SESSION, ids[0]), "the data has changed");
        }
    }
    engine.drop_question(SESSION, ids[0]);
    assert!(engine.ask(SESSION, ids[0], CancelFlag::new()).is_err());
    engine.close_session(SESSION).unwrap();
    drain(&mut engine);
    assert_eq!(free_blocks(&engine), 200);
}

#[test]
fn who_asks_before_it_is_answered_is_served_at_once() {
    let mut engine = engine(200, 4, 16, 150);
    let history = Toy::prompt(1, 30);
    append(&mut engine, &history);
    drain(&mut engine);
    let question = request(2, 5, 20);
    let id = engine.register_question(SESSION, question.clone()).unwrap();
    for _ in 0..4 {
        engine.step(&mut |_| {});
    }
    assert!(!engine.is_answered(SESSION, id));
    let Asked::Submitted(submitted) = engine.ask(SESSION, id, CancelFlag::new()).unwrap() else {
        panic!("it is not answered yet");
    };
    let done = drain(&mut engine);
    assert_eq!(done.keys().copied().collect::<Vec<_>>(), [submitted]);
    let expected = reference_after(&history, &question, 0);
    assert_eq!(done[&submitted].choices[0].token_ids, expected);
    // Whoever asks next finds that answer.
    assert!(engine.is_answered(SESSION, id));
    assert_eq!(answer(&mut engine, id), expected);
}

#[test]
fn who_asks_is_served_though_the_data_changes_and_may_leave() {
    let mut engine = engine(200, 4, 16, 150);
    let mut history = Toy::prompt(1, 30);
    append(&mut engine, &history);
    drain(&mut engine);
    let question = request(2, 5, 20);
    let id = engine.register_question(SESSION, question.clone()).unwrap();
    let Asked::Submitted(submitted) = engine.ask(SESSION, id, CancelFlag::new()).unwrap() else {
        panic!("it is not answered yet");
    };
    for _ in 0..4 {
        engine.step(&mut |_| {});
    }
    let more = Toy::prompt(7, 9);
    append(&mut engine, &more);
    let before = reference_after(&history, &question, 0);
    history.extend(more);
    let done = ends(&mut engine);
    assert_eq!(done[&submitted], before, "of the data when it was asked");
    let after = reference_after(&history, &question, 0);
    assert_eq!(answer(&mut engine, id), after, "of the data now");
    // An asker who leaves early leaves no half answer.
    engine.rewind_session(SESSION, 30).unwrap();
    let leaves = CancelFlag::new();
    let Asked::Submitted(left) = engine.ask(SESSION, id, leaves.clone()).unwrap() else {
        panic!("it is not answered yet");
    };
    for _ in 0..3 {
        engine.step(&mut |_| {});
    }
    leaves.cancel();
    let tokens = &ends(&mut engine)[&left];
    assert!(tokens.len() < before.len(), "{tokens:?}");
    assert_eq!(answer(&mut engine, id), before);
    engine.close_session(SESSION).unwrap();
    drain(&mut engine);
    assert_eq!(free_blocks(&engine), 200);
}

#[test]
fn real_work_comes_first() {
    let mut engine = engine(200, 4, 16, 150);
    append(&mut engine, &Toy::prompt(1, 30));
    drain(&mut engine);
    let id = engine.register_question(SESSION, request(2, 5, 60)).unwrap();
    for _ in 0..3 {
        engine.step(&mut |_| {});
    }
    let steps = engine.backend().steps.len();
    let real = request(5, 20, 10);
    let done = engine.complete(real.clone(), |_| {}).unwrap();
    assert_eq!(done.choices[0].token_ids, reference(&real, 0));
    // Two for the prompt, nine more tokens, and nothing else; the step in which it arrived may have
    // been planned already.
    assert!(engine.backend().steps.len() <= steps + 13, "{:?}", &engine.backend().steps[steps..]);
    drain(&mut engine);
    assert!(engine.is_answered(SESSION, id));
}
