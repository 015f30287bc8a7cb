//! Damaged traces: whatever the bytes, a reader returns rows that obey the limits, or names the
//! line, and never panics.

mod common;

use common::{EXCERPTS, excerpt, seed};
use dunlin_units::{SeedTree, Stream, Time};
use dunlin_workload::stats::{Summary, SummaryOptions};
use dunlin_workload::trace::{BadRows, ReadOptions, TraceError, TraceKind, TraceReader};

const KINDS: [TraceKind; 7] = [
    TraceKind::Azure,
    TraceKind::BurstGpt,
    TraceKind::ServeGen,
    TraceKind::LengthPairs,
    TraceKind::Mooncake,
    TraceKind::LlmServingSim,
    TraceKind::Native,
];

/// Reads `bytes` both ways and checks everything that must hold.
fn survive(bytes: &[u8], kind: Option<TraceKind>, name: &str) {
    let lines = bytes.iter().filter(|b| **b == b'\n').count() as u64 + 1;
    for bad_rows in [BadRows::Refuse, BadRows::Skip] {
        let options = ReadOptions { bad_rows, ..ReadOptions::default() };
        let mut reader = match TraceReader::new(bytes, kind, options.clone()) {
            Ok(reader) => reader,
            Err(TraceError::Row(row)) => {
                assert!((1..=lines).contains(&row.line), "{name}: {row}");
                continue;
            }
            Err(TraceError::Empty) => continue,
            Err(other) => panic!("{name}: {other}"),
        };
        let mut summary = Summary::new(&SummaryOptions::default());
        let mut latest = Time(0);
        let mut rows = 0;
        for row in reader.by_ref() {
            match row {
                Ok(request) => {
                    assert!(request.arrival >= latest, "{name}");
                    assert!((1..=options.max_tokens).contains(&request.prompt_tokens), "{name}");
                    assert!(request.output_tokens <= options.max_tokens, "{name}");
                    latest = request.arrival;
                    summary.add(&request);
                    rows += 1;
                }
                Err(TraceError::Row(row)) => {
                    assert_eq!(bad_rows, BadRows::Refuse, "{name}: {row}");
                    assert!((1..=lines).contains(&row.line), "{name}: {row}");
                }
                Err(TraceError::NoRows { .. }) => assert_eq!(rows, 0, "{name}"),
                Err(other) => panic!("{name}: {other}"),
            }
        }
        let report = reader.report();
        assert_eq!(report.rows, rows, "{name}");
        assert!(report.rows + report.bad + report.failed <= lines, "{name}: {report:?}");
        assert_eq!(report.described.len() as u64, report.bad.min(10), "{name}");
        assert_eq!(summary.report().requests, rows, "{name}");
    }
}

/// The first lines, so that many damages can be tried.
fn head(bytes: &[u8], lines: usize) -> Vec<u8> {
    bytes.split_inclusive(|b| *b == b'\n').take(lines).flatten().copied().collect()
}

fn pick(bytes: &[u8], random: &mut Stream) -> u8 {
    bytes[random.next_below(bytes.len() as u64) as usize]
}

fn damage(bytes: &mut Vec<u8>, random: &mut Stream) {
    for _ in 0..1 + random.next_below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.next_below(bytes.len() as u64) as usize;
        match random.next_below(6) {
            0 => bytes[at] ^= 1 << random.next_below(8),
            1 => bytes[at] = random.next_u64() as u8,
            2 => bytes[at] = pick(b"0123456789,.-+eE\"\n\r{}[]: nN", random),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, bytes[at]),
            _ => bytes.truncate(at.max(1)),
        }
    }
}

#[test]
fn damaged_excerpts() {
    let seed = seed(31);
    let mut random = SeedTree::root(seed).stream();
    for (name, kind) in EXCERPTS {
        let whole = head(&excerpt(name), 12);
        for round in 0..3000 {
            let mut bytes = whole.clone();
            damage(&mut bytes, &mut random);
            let given = (round % 2 == 0).then_some(kind);
            survive(&bytes, given, &format!("seed {seed}, {name}, round {round}"));
        }
    }
}

#[test]
fn one_byte_changed_everywhere() {
    for (name, kind) in EXCERPTS {
        let whole = head(&excerpt(name), 4);
        for at in 0..whole.len().min(600) {
            for byte in [0u8, b'-', b'9', b',', b'"', b'\n', 0xFF] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                survive(&bytes, Some(kind), &format!("{name}, byte {at} is {byte}"));
            }
        }
    }
}

#[test]
fn noise_and_traces_taken_for_others() {
    let seed = seed(32);
    let mut random = SeedTree::root(seed).stream();
    for round in 0..2000 {
        let length = 1 + random.next_below(200);
        let bytes: Vec<u8> = (0..length)
            .map(|_| match round % 2 {
                0 => random.next_u64() as u8,
                _ => pick(b"0123456789,.-eE\"\n{}[]: abTN", &mut random),
            })
            .collect();
        let kind = KINDS[random.next_below(7) as usize];
        survive(&bytes, Some(kind), &format!("seed {seed}, round {round}, {kind:?}"));
        survive(&bytes, None, &format!("seed {seed}, round {round}"));
    }
    for (name, _) in EXCERPTS {
        let bytes = head(&excerpt(name), 20);
        for kind in KINDS {
            survive(&bytes, Some(kind), &format!("{name} as {kind:?}"));
        }
    }
}
