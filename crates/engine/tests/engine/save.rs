//! Sessions in files.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use dunlin_engine::{Engine, EngineConfig, ModelIdentity, Request};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::{Keep, SessionUse};
use dunlin_testkit::toy::Toy;
use dunlin_units::{SeedTree, SessionId};

use super::support::*;

const SESSION: SessionId = SessionId(1);
const TENANT: TenantId = TenantId(0);
/// Names the file that the child process saves to.
const SAVE_TO: &str = "DUNLIN_TEST_SAVE_TO";

fn open(model: u128) -> Engine<Toy> {
    let mut config = EngineConfig::new(3000);
    config.model = ModelIdentity {
        name: format!("toy {model}"),
        fingerprint: model,
        activations: "int8".into(),
        kv_type: "f16".into(),
    };
    engine_over(Toy::new(800, 4, 64), config)
}

fn append(engine: &mut Engine<Toy>, tokens: &[u32]) {
    engine.append_session(SESSION, TENANT, tokens.to_vec()).unwrap();
    drain(engine);
}

fn query(keep: Keep) -> Request {
    Request { session: Some(SessionUse { session: SESSION, keep }), ..request(4, 3, 6) }
}

#[test]
fn a_session_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for length in [1, 3, 4, 5, 41] {
        for answered in [false, true] {
            let mut engine = open(1);
            append(&mut engine, &Toy::prompt(1, length));
            if answered {
                // The last token of an answer has no KV yet.
                run_one(&mut engine, &query(Keep::All));
            }
            let history = engine.session_tokens(SESSION).unwrap().to_vec();
            engine.save_session(SESSION, &path).unwrap();
            let expected = reference_after(&history, &query(Keep::Nothing), 0);
            let mut other = open(1);
            let pending = other.restore_session(SESSION, TENANT, &path).unwrap();
            assert_eq!(pending.is_some(), answered);
            drain(&mut other);
            let steps = other.backend().steps.len();
            assert_eq!(steps, usize::from(answered), "what was saved is not computed again");
            assert_eq!(other.session_tokens(SESSION).unwrap(), history);
            let done = run_one(&mut other, &query(Keep::All));
            assert_eq!(done.choices[0].token_ids, expected);
            assert_eq!(done.bill.computed_tokens, 3 + 5);
            // And again, over the file that is there.
            other.save_session(SESSION, &path).unwrap();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
        }
    }
}

#[test]
fn foreign_and_damaged_files_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let mut engine = open(1);
    append(&mut engine, &Toy::prompt(1, 41));
    engine.save_session(SESSION, &path).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut other = open(2);
    let mut refused = |bytes: &[u8], says: &str| {
        fs::write(&path, bytes).unwrap();
        let error = other.restore_session(SESSION, TENANT, &path).unwrap_err().to_string();
        assert!(error.contains(says), "{error:?} should say {says:?}");
        assert_eq!(other.sessions().count(), 0);
        assert_eq!(free_blocks(&other), 800);
    };
    refused(&whole, "was saved with the model toy 1 (0000");
    let mut other = open(1);
    let mut refused = |bytes: &[u8], says: &[&str]| {
        fs::write(&path, bytes).unwrap();
        let error = other.restore_session(SESSION, TENANT, &path).unwrap_err().to_string();
        assert!(says.iter().any(|s| error.contains(s)), "{error:?} should say {says:?}");
        assert_eq!(other.sessions().count(), 0);
        assert_eq!(free_blocks(&other), 800);
    };
    refused(b"", &["no session"]);
    refused(b"DUNLINSS\x02\0\0\0 of another version", &["no session"]);
    for cut in 1..whole.len() {
        refused(&whole[..cut], &["no session", "is cut short"]);
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        refused(&bytes, &["no session", "is damaged", "is cut short"]);
    }
    refused(&[&whole[..], &[0]].concat(), &["is damaged"]);
    fs::write(&path, &whole).unwrap();
    other.restore_session(SESSION, TENANT, &path).unwrap();
    assert!(other.restore_session(SESSION, TENANT, &path).is_err(), "the name is taken");
    let nowhere = folder.path().join("none").join("session");
    let error = engine.save_session(SESSION, &nowhere).unwrap_err().to_string();
    assert!(error.contains("cannot write"), "{error}");
}

/// Saves a growing session over and over, and says so, when it is told where to.
#[test]
fn child_that_saves() {
    let Some(path) = std::env::var_os(SAVE_TO) else { return };
    let mut engine = open(1);
    for round in 1..60 {
        append(&mut engine, &Toy::prompt(round, 40));
        engine.save_session(SESSION, Path::new(&path)).unwrap();
        println!("\nsaved {round}");
    }
}

#[test]
fn a_process_that_is_killed_while_it_saves_loses_nothing_saved_before() {
    let seed = std::process::id().into();
    let mut random = SeedTree::root(seed).stream();
    for _ in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("session");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["save::child_that_saves", "--exact", "--nocapture"])
            .env(SAVE_TO, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let saved = |line: &str| line.strip_prefix("saved ").and_then(|n| n.parse().ok());
        let mut known: u64 = 0;
        let wanted = 1 + random.next_below(20);
        while known < wanted {
            let line = lines.next().expect("the child goes on").unwrap();
            known = saved(&line).unwrap_or(known);
        }
        std::thread::sleep(Duration::from_micros(random.next_below(3000)));
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            known = saved(&line).unwrap_or(known);
        }
        let mut engine = open(1);
        engine.restore_session(SESSION, TENANT, &path).unwrap();
        drain(&mut engine);
        let tokens = engine.session_tokens(SESSION).unwrap();
        let rounds = tokens.len() as u64 / 40;
        assert!(rounds >= known, "{rounds} rounds are there, {known} were saved (seed {seed})");
        let all: Vec<u32> = (1..=rounds).flat_map(|round| Toy::prompt(round, 40)).collect();
        assert_eq!(tokens, all, "seed {seed}");
    }
}
