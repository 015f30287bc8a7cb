//! Sessions over the service: what they hold is what one prompt would, whoever asks for it.

use std::{fs, os::unix::fs::symlink};

use dunlin_kvcache::TenantId;
use dunlin_scheduler::Keep;
use dunlin_server::{
    engine::SessionSettings,
    service::{InSession, SessionCall, SessionState, Usage},
};

use super::*;

const NOBODY: TenantId = TenantId(0);

/// A service that saves into a folder, with tenants called x and y.
fn saving(folder: &std::path::Path) -> EngineService<Toy> {
    let settings = SessionSettings {
        folder: Some(folder.into()),
        most: 6,
        tenants: vec!["x".into(), "y".into()],
    };
    let service = EngineService::with_sessions(settings);
    let engine = Engine::new(Toy::new(200, 4, 16), Some(tokenizer()), EngineConfig::new(256));
    service.set_model(engine.unwrap(), tokenizer(), info()).unwrap();
    service
}

fn ask(text: &str, session: Option<(&str, Keep)>, tenant: TenantId) -> Generate {
    let session = session.map(|(id, keep)| InSession { id: id.into(), keep });
    Generate { max_tokens: Some(6), session, tenant, ..long(text) }
}

/// The text that comes of a request, and what it cost.
fn run(service: &EngineService<Toy>, request: Generate) -> (String, Usage) {
    let chunks = all(service.generate(request).unwrap());
    let Some(&Chunk::Done(usage)) = chunks.last() else { panic!("{chunks:?}") };
    let text = chunks.iter().filter_map(|chunk| match chunk {
        Chunk::Token { text, .. } => Some(text.as_str()),
        _ => None,
    });
    (text.collect(), usage)
}

fn append(service: &EngineService<Toy>, tenant: TenantId, id: &str, text: &str) {
    let request = Generate { max_tokens: Some(0), ..ask(text, Some((id, Keep::Prompt)), tenant) };
    assert_eq!(run(service, request).0, "");
}

fn call(
    service: &EngineService<Toy>,
    tenant: TenantId,
    id: &str,
    call: SessionCall,
) -> Result<SessionState, ServiceError> {
    service.session(tenant, "toy", id, call)
}

fn tokens(service: &EngineService<Toy>, tenant: TenantId, id: &str) -> usize {
    call(service, tenant, id, SessionCall::Get).unwrap().tokens
}

fn prune(from: usize, to: usize) -> SessionCall {
    SessionCall::Prune { from, to, keep_kv: false }
}

/// What the same text gives as one prompt.
fn whole(service: &EngineService<Toy>, text: &str) -> String {
    run(service, ask(text, None, NOBODY)).0
}

#[test]
fn a_session_gives_what_one_prompt_gives() {
    let service = service();
    assert_eq!(call(&service, NOBODY, "s", SessionCall::Create).unwrap().tokens, 0);
    append(&service, NOBODY, "s", "abcdefgh");
    append(&service, NOBODY, "s", "ijk");
    assert_eq!(tokens(&service, NOBODY, "s"), 11);
    let query = |text: &str, keep| run(&service, ask(text, Some(("s", keep)), NOBODY));
    let (text, usage) = query("lm", Keep::Nothing);
    assert_eq!(text, whole(&service, "abcdefghijklm"));
    assert_eq!(usage.prompt_tokens, 13);
    assert_eq!(tokens(&service, NOBODY, "s"), 11, "nothing was kept");
    query("lm", Keep::Prompt);
    assert_eq!(tokens(&service, NOBODY, "s"), 13);
    let (answer, _) = query("n", Keep::All);
    assert_eq!(answer, whole(&service, "abcdefghijklmn"));
    let held = format!("abcdefghijklmn{answer}");
    assert_eq!(tokens(&service, NOBODY, "s"), held.len());
    assert_eq!(query("o", Keep::Nothing).0, whole(&service, &format!("{held}o")));
    // Copied, cut back, cut out of.
    let copy = call(&service, NOBODY, "s", SessionCall::Fork { to: "t".into() }).unwrap();
    assert_eq!((copy.id.as_str(), copy.tokens), ("t", held.len()));
    call(&service, NOBODY, "s", SessionCall::Rewind { tokens: 5 }).unwrap();
    assert_eq!(query("xy", Keep::Nothing).0, whole(&service, "abcdexy"));
    let pruned = call(&service, NOBODY, "t", prune(2, 9)).unwrap();
    assert_eq!((pruned.tokens, pruned.busy), (held.len() - 7, false));
    let (text, _) = run(&service, ask("z", Some(("t", Keep::Nothing)), NOBODY));
    assert_eq!(text, whole(&service, &format!("{}{}z", &held[..2], &held[9..])));
    let listed = service.sessions(NOBODY, "toy").unwrap();
    assert_eq!(listed.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["s", "t"]);
    assert!(!service.is_idle(), "a model with sessions is not let go of");
    for id in ["s", "t"] {
        call(&service, NOBODY, id, SessionCall::Close).unwrap();
        assert!(matches!(
            call(&service, NOBODY, id, SessionCall::Get),
            Err(ServiceError::NotFound(_))
        ));
    }
    assert_eq!(service.stats().kv_blocks_used, 0);
    assert!(service.is_idle());
}

#[test]
fn tenants_share_no_sessions_and_no_prefixes() {
    let folder = tempfile::tempdir().unwrap();
    let service = saving(folder.path());
    let (x, y) = (TenantId(1), TenantId(2));
    call(&service, x, "s", SessionCall::Create).unwrap();
    append(&service, x, "s", "abcdefghabcdefgh");
    for op in [
        SessionCall::Get,
        SessionCall::Close,
        SessionCall::Rewind { tokens: 1 },
        SessionCall::Save { file: "f".into() },
        SessionCall::Fork { to: "t".into() },
    ] {
        assert!(matches!(call(&service, y, "s", op), Err(ServiceError::NotFound(_))));
    }
    let foreign = service.generate(ask("a", Some(("s", Keep::Nothing)), y)).unwrap_err();
    assert!(matches!(foreign, ServiceError::NotFound(_)));
    assert!(service.sessions(y, "toy").unwrap().is_empty());
    // The same name is another's own.
    call(&service, y, "s", SessionCall::Create).unwrap();
    assert_eq!((tokens(&service, x, "s"), tokens(&service, y, "s")), (16, 0));
    // What one has computed is not found by the other.
    let cached = |tenant| run(&service, ask("abcdefghabcdefgh", None, tenant)).1.cached_tokens;
    assert_eq!((cached(y), cached(x) > 0), (0, true));
    assert!(cached(y) > 0, "but one's own is");
    // Nor is what it has saved.
    call(&service, x, "s", SessionCall::Save { file: "f".into() }).unwrap();
    let restore = || SessionCall::Restore { file: "f".into() };
    assert!(matches!(call(&service, y, "r", restore()), Err(ServiceError::NotFound(_))));
    assert_eq!(call(&service, x, "r", restore()).unwrap().tokens, 16);
}

#[test]
fn what_is_saved_comes_back_and_a_full_disk_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let service = saving(folder.path());
    call(&service, NOBODY, "s", SessionCall::Create).unwrap();
    append(&service, NOBODY, "s", "abcdefghij");
    let save = || SessionCall::Save { file: "f".into() };
    call(&service, NOBODY, "s", save()).unwrap();
    append(&service, NOBODY, "s", "klm");
    // The file that is written beside it goes to where there is never any room.
    let file = folder.path().join("default/f.session");
    let before = fs::read(&file).unwrap();
    let part = folder.path().join(format!("default/f.session.{}.part", std::process::id()));
    symlink("/dev/full", &part).unwrap();
    let error = call(&service, NOBODY, "s", save()).unwrap_err();
    let ServiceError::Storage(message) = &error else { panic!("{error:?}") };
    assert!(!message.contains("default") && !message.contains('/'), "{message}");
    assert!(fs::read(&file).unwrap() == before, "what was saved before is there still");
    assert!(!part.exists());
    // The session goes on, and can be saved when there is room again.
    let query = |id: &str| run(&service, ask("n", Some((id, Keep::Nothing)), NOBODY)).0;
    let expected = whole(&service, "abcdefghijklmn");
    assert_eq!(query("s"), expected);
    call(&service, NOBODY, "s", save()).unwrap();
    // Another server brings it back.
    let other = saving(folder.path());
    let restore = |file: &str| SessionCall::Restore { file: file.into() };
    assert_eq!(call(&other, NOBODY, "r", restore("f")).unwrap().tokens, 13);
    assert_eq!(run(&other, ask("n", Some(("r", Keep::Nothing)), NOBODY)).0, expected);
    // What is no session of this model is refused, and leaves no name behind.
    for (name, bytes) in
        [("empty", &b""[..]), ("short", &before[..before.len() - 3]), ("noise", b"DUNLIN???")]
    {
        fs::write(folder.path().join(format!("default/{name}.session")), bytes).unwrap();
        let error = call(&other, NOBODY, "q", restore(name)).unwrap_err();
        assert!(
            matches!(&error, ServiceError::Unusable { field: Some("file"), message }
                if !message.contains('/')),
            "{name}: {error:?}"
        );
    }
    let none = call(&other, NOBODY, "q", restore("nothing")).unwrap_err();
    assert!(matches!(none, ServiceError::NotFound(_)));
    assert!(matches!(call(&other, NOBODY, "q", SessionCall::Get), Err(ServiceError::NotFound(_))));
    let taken = call(&other, NOBODY, "r", restore("f")).unwrap_err();
    assert!(matches!(taken, ServiceError::Conflict(_)));
    let nowhere = self::service();
    call(&nowhere, NOBODY, "s", SessionCall::Create).unwrap();
    append(&nowhere, NOBODY, "s", "a");
    assert!(matches!(call(&nowhere, NOBODY, "s", save()), Err(ServiceError::Conflict(_))));
}

#[test]
fn questions_are_answered_ahead_of_time() {
    let service = service();
    call(&service, NOBODY, "s", SessionCall::Create).unwrap();
    append(&service, NOBODY, "s", "abcdefgh");
    let register = || service.register(ask("qu", Some(("s", Keep::Nothing)), NOBODY));
    let question = register().unwrap();
    let answered = |id: u64| service.question(NOBODY, "toy", "s", id, false);
    wait_until("it is answered", || answered(question).unwrap());
    let text = |generation: Generation| {
        let chunks = all(generation);
        assert!(matches!(chunks.last(), Some(Chunk::Done(_))));
        let text = chunks.iter().filter_map(|chunk| match chunk {
            Chunk::Token { text, .. } => Some(text.as_str()),
            _ => None,
        });
        text.collect::<String>()
    };
    let expected = whole(&service, "abcdefghqu");
    assert_eq!(text(service.ask(NOBODY, "toy", "s", question).unwrap()), expected);
    // New data makes a new answer, whether it is waited for or not.
    append(&service, NOBODY, "s", "i");
    wait_until("it is answered again", || answered(question).unwrap());
    let expected = whole(&service, "abcdefghiqu");
    assert_eq!(text(service.ask(NOBODY, "toy", "s", question).unwrap()), expected);
    // Before it is answered ahead of time as well; what was computed then stays.
    append(&service, NOBODY, "s", "j");
    let expected = whole(&service, "abcdefghijqu");
    assert_eq!(text(service.ask(NOBODY, "toy", "s", question).unwrap()), expected);
    assert_eq!(tokens(&service, NOBODY, "s"), 10, "a question leaves no trace");
    let unknown = |result: Result<bool, ServiceError>| {
        assert!(matches!(result, Err(ServiceError::NotFound(_))), "{result:?}");
    };
    unknown(answered(question + 1));
    unknown(service.question(TenantId(1), "toy", "s", question, true));
    assert_eq!(service.question(NOBODY, "toy", "s", question, true), Ok(true));
    unknown(answered(question));
    for _ in 0..64 {
        register().unwrap();
    }
    assert_eq!(register().unwrap_err(), ServiceError::Overloaded);
    call(&service, NOBODY, "s", SessionCall::Close).unwrap();
    wait_until("nothing is left", || service.stats().running + service.stats().waiting == 0);
    assert_eq!(service.stats().kv_blocks_used, 0);
}

#[test]
fn one_request_at_a_time_extends_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let service = saving(folder.path());
    call(&service, NOBODY, "s", SessionCall::Create).unwrap();
    let endless = Generate { max_tokens: None, ..ask("abc", Some(("s", Keep::All)), NOBODY) };
    let mut first = service.generate(endless).unwrap();
    assert!(first.chunks.blocking_recv().is_some());
    let state = call(&service, NOBODY, "s", SessionCall::Get).unwrap();
    if state.busy {
        for op in [
            SessionCall::Rewind { tokens: 0 },
            SessionCall::Close,
            SessionCall::Save { file: "f".into() },
            prune(0, 1),
        ] {
            let refused = call(&service, NOBODY, "s", op);
            if matches!(refused, Err(ServiceError::Conflict(_))) {
                continue;
            }
            // It may have ended meanwhile, and then what is asked is done.
            assert!(refused.is_ok(), "{refused:?}");
            break;
        }
    }
    // A client that leaves frees the session.
    drop(first);
    wait_until("it rests", || {
        call(&service, NOBODY, "s", SessionCall::Get).is_ok_and(|state| !state.busy)
            || call(&service, NOBODY, "s", SessionCall::Get).is_err()
    });
}

#[test]
fn there_is_a_limit_to_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let service = saving(folder.path());
    for i in 0..6 {
        call(&service, NOBODY, &format!("s{i}"), SessionCall::Create).unwrap();
    }
    let one_more = || call(&service, NOBODY, "t", SessionCall::Create);
    assert_eq!(one_more().unwrap_err(), ServiceError::Overloaded);
    assert!(matches!(
        call(&service, NOBODY, "s1", SessionCall::Create),
        Err(ServiceError::Conflict(_))
    ));
    call(&service, NOBODY, "s0", SessionCall::Close).unwrap();
    one_more().unwrap();
    let range = call(&service, NOBODY, "t", SessionCall::Rewind { tokens: 5 }).unwrap_err();
    assert!(matches!(range, ServiceError::Conflict(_)), "it holds nothing: {range:?}");
    append(&service, NOBODY, "t", "abc");
    for (op, field) in
        [(SessionCall::Rewind { tokens: 5 }, "tokens"), (prune(2, 9), "to"), (prune(2, 1), "to")]
    {
        let error = call(&service, NOBODY, "t", op).unwrap_err();
        assert!(matches!(error, ServiceError::Unusable { field: Some(f), .. } if f == field));
    }
}
