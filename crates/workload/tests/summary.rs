//! What a summary says of requests that are made up for it.

mod common;

use common::seed;
use dunlin_units::{SeedTree, SessionId, Time};
use dunlin_workload::stats::{Report, Summary, SummaryOptions};
use dunlin_workload::{ClientId, Request, Wait};

fn report(rows: impl IntoIterator<Item = Request>) -> Report {
    let mut summary = Summary::new(&SummaryOptions::default());
    rows.into_iter().for_each(|r| summary.add(&r));
    summary.report()
}

#[test]
fn nothing_has_no_statistics() {
    let found = report([]);
    assert_eq!((found.requests, found.span_ns, found.rate_per_s), (0, 0, None));
    assert_eq!((found.prompt_tokens, found.gaps_ns), (None, None));
    assert_eq!((found.sharing.tokens, found.sharing.share), (0.0, 0.0));
    // It can be written, without numbers that JSON does not have.
    let one = report([Request::new(Time(5), 10, 0)]);
    assert_eq!((one.requests, one.rate_per_s, one.gaps_ns.clone()), (1, None, None));
    let text = serde_json::to_string(&one).unwrap();
    assert!(text.contains("\"p50\":10") && text.contains("\"rate_per_s\":null"), "{text}");
}

#[test]
fn gaps_of_requests_out_of_order_count_as_none() {
    let rows = [5, 3, 9].map(|at| Request::new(Time(at), 1, 1));
    let found = report(rows);
    let gaps = found.gaps_ns.unwrap();
    assert_eq!((found.unsorted, found.span_ns, gaps.sum, gaps.max), (1, 4, 4.0, 4));
}

#[test]
fn sessions_and_waiting_requests_are_counted() {
    let turn = |session, turn, wait| Request {
        session: Some(SessionId(session)),
        turn,
        wait,
        ..Request::new(Time(0), 1, 1)
    };
    let found = report([
        turn(1, 0, Wait::Nothing),
        turn(2, 0, Wait::Nothing),
        turn(1, 1, Wait::PreviousTurn),
        turn(1, 2, Wait::PreviousTurn),
        Request::new(Time(0), 1, 1),
    ]);
    assert_eq!((found.sessions, found.turns_per_session, found.waiting), (2, Some(2.0), 2));
}

#[test]
fn clients_beyond_the_limit_are_counted_together() {
    let row = |client| Request { client: ClientId(client), ..Request::new(Time(0), 1, 1) };
    let found = report((0..70_000).chain([3, 3, 69_999]).map(row));
    assert_eq!((found.clients, found.other_clients), (65_536, 70_000 - 65_536 + 1));
    // Of ten clients one sends half, and five nine tenths.
    let counts = [50, 10, 10, 10, 10, 2, 2, 2, 2, 2];
    let rows = counts.iter().enumerate().flat_map(|(id, n)| (0..*n).map(move |_| row(id as u32)));
    let found = report(rows);
    assert_eq!((found.clients_for_half, found.clients_for_most), (1, 5));
}

/// Means and deviations against two passes over the numbers, also where they are near what 64 bits
/// hold and hardly differ.
#[test]
fn deviations_are_exact() {
    let mut random = SeedTree::root(seed(61)).stream();
    for (offset, spread) in [(0u64, 1000u64), (1_000_000_000_000_000, 1000), (3, 1 << 50)] {
        let gaps: Vec<u64> = (0..3000).map(|_| offset + random.next_below(spread)).collect();
        let mut at = 0;
        let rows = std::iter::once(0).chain(gaps.iter().copied()).map(|gap| {
            at += gap;
            Request::new(Time(at), 1, 1)
        });
        let found = report(rows).gaps_ns.unwrap();
        // Deviations from the offset are small enough to be exact.
        let n = gaps.len() as f64;
        let mean = gaps.iter().map(|g| (g - offset) as f64).sum::<f64>() / n;
        let deviation = |g: &u64| (g - offset) as f64 - mean;
        let variance = gaps.iter().map(|g| deviation(g).powi(2)).sum::<f64>() / n;
        let (mean, cv) = (mean + offset as f64, variance.sqrt() / (mean + offset as f64));
        assert!((found.mean / mean - 1.0).abs() < 1e-12, "{found:?}");
        assert!((found.cv.unwrap() / cv - 1.0).abs() < 1e-9, "{found:?}: {cv}");
    }
}
