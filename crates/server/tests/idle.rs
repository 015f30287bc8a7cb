//! Many streams that wait, in a process of their own: what they hold, and what they take.

#[path = "http/client.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod client;
#[path = "http/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of HTTP")]
mod fake;

use std::{io::Write as _, thread, time::Duration};

use client::{read_until, request};
use dunlin_server::Config;
use fake::Server;

/// Streams where the system allows so many open files: each has one at either end.
const STREAMS: usize = 1000;
/// What a stream may hold: 1,000 of them less than 100 MB.
const BYTES_EACH: f64 = 100_000.0;

/// The most files that this process may have open.
fn file_limit() -> usize {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}

fn gauge(server: &Server, name: &str) -> f64 {
    let metrics = server.get("/metrics");
    let line = metrics.text().lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap_or_else(|| panic!("{name}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn streams_that_wait_hold_little_and_take_no_time() {
    let streams = STREAMS.min((file_limit() - 100) / 2);
    let config = Config { max_requests: 2 * STREAMS, ..Config::default() };
    let server = Server::with(config).holding();
    let body = r#"{"messages":[{"role":"user","content":"Hi"}],"stream":true}"#;
    let open = || {
        let mut stream = server.connect();
        stream.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
        read_until(&mut stream, "lo");
        stream
    };
    // What the first ones make once and for all is not counted.
    let first: Vec<_> = (0..16).map(|_| open()).collect();
    let before = gauge(&server, "process_resident_memory_bytes");
    let waiting: Vec<_> = (0..streams).map(|_| open()).collect();
    assert_eq!(server.fake.live.load(std::sync::atomic::Ordering::SeqCst), 16 + streams);
    let held = gauge(&server, "process_resident_memory_bytes") - before;
    println!("{streams} streams: {:.1} kB each", held / streams as f64 / 1e3);
    assert!(held < BYTES_EACH * streams as f64, "{streams} streams hold {held} bytes");
    let seconds = gauge(&server, "process_cpu_seconds_total");
    thread::sleep(Duration::from_secs(2));
    let seconds = gauge(&server, "process_cpu_seconds_total") - seconds;
    println!("{seconds:.2} s of processor time in 2 s");
    // Asking for it takes a little.
    assert!(seconds <= 0.04, "{seconds} s of processor time in 2 s");
    drop((first, waiting));
    server.fake.wait_for_live(0);
}
