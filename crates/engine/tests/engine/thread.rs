//! An engine on its thread.

use std::time::Duration;

use dunlin_engine::{
    CancelFlag, EngineConfig, EngineGone, EngineHandle, EngineThread, Finish, Request,
    RequestEvent, SubmitError,
};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::{Keep, SessionUse};
use dunlin_testkit::toy::Toy;
use dunlin_units::SessionId;

use super::support::*;

fn thread(toy: Toy) -> EngineThread<Toy> {
    EngineThread::new(engine_over(toy, EngineConfig::new(2000))).unwrap()
}

fn submit(handle: &EngineHandle<Toy>, request: &Request) -> dunlin_engine::RequestHandle {
    handle.submit(Request { cancel: CancelFlag::new(), ..request.clone() }).unwrap()
}

#[test]
fn many_callers_get_what_each_gets_alone() {
    let thread = thread(Toy::new(500, 4, 64));
    let callers: Vec<_> = (0..8u64)
        .map(|caller| {
            let handle = thread.handle();
            std::thread::spawn(move || {
                for i in 0..6 {
                    let request = request(caller * 10 + i, 3 + i as usize, 12);
                    let under_way = submit(&handle, &request);
                    let mut streamed = Vec::new();
                    let completion = loop {
                        match under_way.recv().unwrap() {
                            RequestEvent::Token { token, .. } => streamed.push(token),
                            RequestEvent::Text { .. } => {}
                            RequestEvent::Finished(completion) => break completion,
                        }
                    };
                    assert_eq!(under_way.recv(), Err(EngineGone::RequestOver));
                    assert_eq!(streamed, completion.choices[0].token_ids);
                    assert_eq!(streamed, reference(&request, 0));
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let stats = thread.handle().stats().unwrap();
    assert_eq!((stats.load.running, stats.load.available_blocks), (0, 500));
    assert_eq!(thread.shut_down(), Ok(()));
}

#[test]
fn requests_end_when_told_to_or_when_nobody_listens() {
    let thread = thread(Toy::new(2000, 4, 64));
    let handle = thread.handle();
    let long = request(1, 5, 1500);
    let kept = submit(&handle, &long);
    let dropped = submit(&handle, &request(2, 5, 1500));
    assert!(matches!(dropped.recv(), Ok(RequestEvent::Token { .. })));
    drop(dropped);
    let (mut tokens, mut aborted) = (0, false);
    let completion = loop {
        match kept.recv().unwrap() {
            RequestEvent::Token { .. } => tokens += 1,
            RequestEvent::Text { .. } => {}
            RequestEvent::Finished(completion) => break completion,
        }
        if tokens == 10 && !aborted {
            aborted = true;
            kept.abort();
        }
    };
    let choice = &completion.choices[0];
    assert_eq!(choice.finish, Finish::Cancelled);
    assert_eq!(choice.token_ids.len(), tokens);
    assert_eq!(choice.token_ids, reference(&request(1, 5, tokens), 0));
    // The one that nobody listens to goes too.
    while handle.stats().unwrap().load.available_blocks < 2000 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // And one that could never run is refused.
    let refused = handle.submit(request(1, 0, 1)).unwrap_err();
    assert!(matches!(refused, SubmitError::Request(_)), "{refused}");
}

#[test]
fn a_panic_is_told_to_all() {
    let mut toy = Toy::new(500, 4, 64);
    toy.panics_on = Some(49);
    let thread = thread(toy);
    let handle = thread.handle();
    let mut innocent = request(2, 5, 1900);
    innocent.prompt = vec![1, 2];
    innocent.sampling.logit_bias = vec![(49, f32::NEG_INFINITY)];
    let innocent = submit(&handle, &innocent);
    let mut bad = request(1, 5, 6);
    bad.prompt = vec![1, 49];
    let told = |gone: EngineGone| {
        assert!(
            matches!(&gone, EngineGone::Panicked(m) if m.contains("as the test wants")),
            "{gone}"
        );
    };
    let bad = submit(&handle, &bad);
    told(bad.wait().unwrap_err());
    told(innocent.wait().unwrap_err());
    told(handle.stats().unwrap_err());
    match handle.submit(request(1, 5, 6)) {
        Err(SubmitError::Gone(gone)) => told(gone),
        other => panic!("{other:?}"),
    }
    told(thread.shut_down().unwrap_err());
}

#[test]
fn a_shutdown_cancels_what_is_under_way() {
    let thread = thread(Toy::new(2000, 4, 64));
    let handle = thread.handle();
    let long = submit(&handle, &request(1, 5, 1500));
    long.recv().unwrap();
    thread.shut_down().unwrap();
    assert_eq!(long.wait().unwrap().choices[0].finish, Finish::Cancelled);
    assert_eq!(handle.stats(), Err(EngineGone::ShutDown));
}

#[test]
fn sessions_work_from_afar() {
    let thread = thread(Toy::new(500, 4, 64));
    let handle = thread.handle();
    let session = SessionId(1);
    let history = Toy::prompt(1, 20);
    let tokens = history.clone();
    let append = handle.watch(CancelFlag::new(), move |engine| {
        engine.append_session(session, TenantId(0), tokens)
    });
    append.unwrap().unwrap().wait().unwrap();
    handle.call(move |engine| engine.rewind_session(session, 11)).unwrap().unwrap();
    let query = request(5, 4, 6);
    let usage = Some(SessionUse { session, keep: Keep::Nothing });
    let done = submit(&handle, &Request { session: usage, ..query.clone() }).wait().unwrap();
    assert_eq!(done.choices[0].token_ids, reference_after(&history[..11], &query, 0));
}
