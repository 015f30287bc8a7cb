//! What this machine can do at best: reading memory, and arithmetic on registers.
//!
//! `dunlin bench` sets its rows beside these limits. The loops here do nothing useful and touch no
//! kernel: a limit measured through a kernel would hide the kernel's own faults. They are not the
//! data sheet's limits either; what a loop of the plainest kind reaches in the same run, on the same
//! shared machine, is what an engine can be held to.

mod arithmetic;
mod read;

pub use arithmetic::{ArithmeticRates, arithmetic};
pub use read::{Pages, ReadProbe};

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

/// Runs `work(thread)` on `threads` threads that start together, and says how long it took until
/// the last was done. Zero threads count as one.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> Duration {
    let threads = threads.max(1);
    let start = Barrier::new(threads);
    let run = |thread: usize| {
        start.wait();
        let begin = Instant::now();
        work(thread);
        (begin, Instant::now())
    };
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || run(t))).collect();
        let (mut first, mut last) = run(0);
        for other in others {
            // A thread that panicked has no times; `work` here cannot panic.
            if let Ok((begin, end)) = other.join() {
                first = first.min(begin);
                last = last.max(end);
            }
        }
        last - first
    })
}
