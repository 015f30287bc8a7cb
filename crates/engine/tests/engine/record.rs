//! Records of runs, and their replay.

use std::{fs, path::Path};

use dunlin_engine::{EngineConfig, Event, recorder};
use dunlin_testkit::toy::Toy;
use dunlin_units::SessionId;

use super::support::*;

/// A run with cancellations, preemptions and a session, on record.
fn record(path: &Path) {
    let mut config = EngineConfig::new(64);
    config.record = Some(path.into());
    config.model.name = "toy".into();
    let mut engine = engine_over(Toy::new(40, 4, 12), config);
    let requests: Vec<_> = (0..20u64).map(|s| request(s, 3 + s as usize, 15)).collect();
    for request in &requests {
        engine.submit(request.clone()).unwrap();
    }
    engine.append_session(SessionId(1), dunlin_kvcache::TenantId(0), vec![1, 2, 3]).unwrap();
    let mut seen = 0;
    engine.run(|event| {
        if let Event::Token { .. } = event {
            seen += 1;
            if seen == 50 {
                requests[3].cancel.cancel();
            }
        }
    });
    engine.rewind_session(SessionId(1), 2).unwrap();
    engine.flush_record().unwrap();
}

#[test]
fn a_run_replays_to_the_same_plans() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    record(&path);
    let report = recorder::replay(&path).unwrap();
    assert!(report.difference.is_none(), "{:?}", report.difference);
    assert!(!report.truncated);
    assert_eq!((report.requests, report.finished), (21, 21));
    assert!(report.preemptions > 0, "so little memory makes some wait");
    assert_eq!(report.header.model, "toy");
    assert!(report.steps > 20 && report.calls > report.steps);
}

#[test]
fn a_record_that_was_cut_short_is_replayed_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    record(&path);
    let whole = fs::read(&path).unwrap();
    let calls = recorder::replay(&path).unwrap().calls;
    let mut last = 0;
    for cut in (0..whole.len()).step_by(97).chain(whole.len() - 13..whole.len()) {
        fs::write(&path, &whole[..cut]).unwrap();
        match recorder::replay(&path) {
            Ok(report) => {
                assert!(report.difference.is_none());
                assert!(report.calls >= last && report.calls < calls);
                last = report.calls;
            }
            Err(error) => {
                assert!(cut < 400, "cut at {cut} of {}", whole.len());
                assert!(error.to_string().contains("no record of a run"), "{error}");
            }
        }
    }
    assert_eq!(last, calls - 1);
}

#[test]
fn damage_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    record(&path);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = recorder::replay(&path).unwrap_err().to_string();
    assert!(error.contains("is damaged at call"), "{error}");
    assert!(recorder::replay(&folder.path().join("none")).is_err());
}

#[test]
fn the_first_difference_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    record(&path);
    // The same record under other settings: as if the core had changed.
    let header = recorder::replay(&path).unwrap().header;
    let mut other = header.clone();
    other.config.max_step_tokens = 9;
    let mut bytes = fs::read(&path).unwrap();
    let frame = postcard::to_stdvec(&other).unwrap();
    let old = 24 + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let length = (frame.len() as u32).to_le_bytes();
    let checksum = xxhash_rust::xxh3::xxh3_64(&frame).to_le_bytes();
    bytes.splice(12..old, [&length[..], &checksum, &frame].concat());
    fs::write(&path, bytes).unwrap();
    let report = recorder::replay(&path).unwrap();
    let difference = report.difference.unwrap();
    assert_eq!(difference.call, report.calls - 1);
    let lines: Vec<&str> = difference.text.lines().collect();
    assert!(lines.iter().any(|l| l.starts_with("- ")), "{}", difference.text);
    assert!(lines.iter().any(|l| l.starts_with("+ ")), "{}", difference.text);
}

#[test]
fn the_calls_of_a_record_are_what_the_engine_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.log");
    record(&path);
    let report = recorder::replay(&path).unwrap();
    let calls: Vec<_> = recorder::Calls::open(&path).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(calls.len() as u64, report.calls);
    assert!(calls.windows(2).all(|pair| pair[0].now <= pair[1].now));
    assert_eq!(calls.iter().map(|c| c.events.len() as u64).sum::<u64>(), report.events);
    assert_eq!(calls.iter().filter(|c| c.effects.plan.is_some()).count() as u64, report.steps);
    assert_eq!(calls.iter().map(|c| c.effects.finished.len() as u64).sum::<u64>(), report.finished);
    // A damaged call is the last thing that comes of it.
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    let damaged: Vec<_> = recorder::Calls::open(&path).unwrap().collect();
    assert_eq!(damaged.len(), calls.len());
    assert!(damaged[..calls.len() - 1].iter().all(Result::is_ok));
    assert!(damaged[calls.len() - 1].as_ref().is_err_and(|e| e.to_string().contains("damaged")));
}
