//! A team of threads that runs one function together, with barriers inside it.
//!
//! A forward pass is one call of [`Team::run`]: all threads walk through the same operations and
//! meet at spin barriers between them, which costs well under a microsecond where waking threads
//! for each operation would cost several. Threads spin for a short while after a run, because the
//! next token's pass usually follows at once, and then sleep, so that an idle engine uses no CPU.

use crate::KernelError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for the next run before it sleeps.
const SPIN: Duration = Duration::from_millis(2);
/// Turns of a barrier's loop before it yields the CPU: more threads than cores must not stall.
const TURNS_BEFORE_YIELD: u32 = 4096;

type Job = *const (dyn Fn(Worker<'_>) + Sync);

/// A cell that threads take turns on; the pool's own handshakes order every access.
struct JobCell(std::cell::UnsafeCell<Option<Job>>);
// SAFETY: written by the leader only while no worker runs; read by workers after the leader's
// release store of the generation.
unsafe impl Sync for JobCell {}
// SAFETY: the pointer is only followed during `Team::run`, which outlives the workers' use.
unsafe impl Send for JobCell {}

struct Shared {
    count: usize,
    job: JobCell,
    /// Runs started; odd values never occur twice in a row for one run.
    generation: AtomicU32,
    /// Workers that have finished the current run.
    done: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    barrier: Barrier,
}

/// All threads of a run meet here.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    turn: AtomicU32,
    poisoned: AtomicBool,
}

impl Barrier {
    fn wait(&self, count: usize) {
        if count == 1 {
            return;
        }
        let turn = self.turn.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Relaxed);
            self.turn.store(turn.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut turns = 0u32;
        while self.turn.load(Ordering::Acquire) == turn {
            assert!(!self.poisoned.load(Ordering::Relaxed), "another thread of the team panicked");
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// One thread's view of a run.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// This thread's number, `0..count`.
    pub index: usize,
    /// Threads in the team.
    pub count: usize,
    barrier: &'a Barrier,
}

impl Worker<'_> {
    /// Waits until all threads of the team are here. Every thread must call it the same number of
    /// times.
    pub fn barrier(&self) {
        self.barrier.wait(self.count);
    }
}

/// A team that several machines use in turn: two models on the same cores, of which one computes at
/// a time. With a team each, the threads of the one would look for work while the other's compute.
#[derive(Clone)]
pub struct SharedTeam(Arc<Mutex<Team>>);

impl SharedTeam {
    /// Starts a team of `count` threads, the caller included.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(count: usize) -> Result<Self, KernelError> {
        Ok(Self(Arc::new(Mutex::new(Team::new(count)?))))
    }

    /// Threads in the team.
    pub fn count(&self) -> usize {
        self.lock().count()
    }

    /// As [`Team::run`]; waits while another machine has the team.
    ///
    /// # Panics
    /// Where the job panicked on any thread.
    pub fn run(&self, job: &(dyn Fn(Worker<'_>) + Sync)) {
        self.lock().run(job);
    }

    fn lock(&self) -> MutexGuard<'_, Team> {
        // A job that panicked leaves the team fit for the next.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for SharedTeam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedTeam").field(&self.count()).finish()
    }
}

/// A team of threads. The calling thread is its first member.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts a team of `count` threads, the caller included.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(count: usize) -> Result<Self, KernelError> {
        let shared = Arc::new(Shared {
            count: count.max(1),
            job: JobCell(std::cell::UnsafeCell::new(None)),
            generation: AtomicU32::new(0),
            done: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            barrier: Barrier::default(),
        });
        let mut team = Team { shared, threads: Vec::new() };
        for index in 1..team.count() {
            let shared = Arc::clone(&team.shared);
            let thread = std::thread::Builder::new()
                .name(format!("dunlin-{index}"))
                .spawn(move || work(&shared, index))
                .map_err(|e| KernelError::Threads { wanted: count, problem: e.to_string() })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Threads in the team.
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Runs `job` on every thread and returns when all have finished.
    ///
    /// # Panics
    /// Where the job panicked on any thread.
    pub fn run(&mut self, job: &(dyn Fn(Worker<'_>) + Sync)) {
        let shared = &*self.shared;
        let leader = Worker { index: 0, count: shared.count, barrier: &shared.barrier };
        if shared.count == 1 {
            return job(leader);
        }
        // SAFETY: no worker runs now, and all have finished with the pointer when this returns, so
        // its lifetime may be forgotten in between.
        unsafe {
            let job: Job = std::mem::transmute::<*const (dyn Fn(Worker<'_>) + Sync + '_), Job>(job);
            *shared.job.0.get() = Some(job);
        }
        shared.done.store(0, Ordering::Relaxed);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.threads.iter().map(JoinHandle::thread).for_each(Thread::unpark);
        }
        let result = catch_unwind(AssertUnwindSafe(|| job(leader)));
        if result.is_err() {
            shared.barrier.poisoned.store(true, Ordering::SeqCst);
        }
        let mut turns = 0u32;
        while shared.done.load(Ordering::Acquire) < shared.count - 1 {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        if shared.barrier.poisoned.swap(false, Ordering::SeqCst) {
            // Threads may have left in the middle of a barrier.
            shared.barrier.arrived.store(0, Ordering::SeqCst);
            match result {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => panic!("a thread of the team panicked"),
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = wait_for_run(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the leader wrote the job before it started this run, and waits for `done` before
        // the job's borrow ends.
        let job = unsafe { (*shared.job.0.get()).map(|job| &*job) };
        let worker = Worker { index, count: shared.count, barrier: &shared.barrier };
        if let Some(job) = job
            && catch_unwind(AssertUnwindSafe(|| job(worker))).is_err()
        {
            shared.barrier.poisoned.store(true, Ordering::SeqCst);
        }
        shared.done.fetch_add(1, Ordering::Release);
    }
}

/// Returns the new generation.
fn wait_for_run(shared: &Shared, seen: u32) -> u32 {
    let start = Instant::now();
    let mut turns = 0u32;
    loop {
        let generation = shared.generation.load(Ordering::Acquire);
        if generation != seen {
            return generation;
        }
        turns = turns.wrapping_add(1);
        if !turns.is_multiple_of(256) {
            std::hint::spin_loop();
        } else if start.elapsed() < SPIN {
            std::thread::yield_now();
        } else {
            shared.sleeping.fetch_add(1, Ordering::SeqCst);
            // The leader changes the generation before it reads `sleeping`, so either it sees this
            // thread and unparks it or the thread sees the new generation here.
            if shared.generation.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            shared.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_separate_phases() {
        for count in [1, 2, 3, 5] {
            let mut team = Team::new(count).unwrap();
            for _ in 0..50 {
                let before = AtomicUsize::new(0);
                let wrong = AtomicUsize::new(0);
                team.run(&|worker| {
                    for phase in 1..=10 {
                        before.fetch_add(1, Ordering::SeqCst);
                        worker.barrier();
                        if before.load(Ordering::SeqCst) != phase * count {
                            wrong.fetch_add(1, Ordering::SeqCst);
                        }
                        worker.barrier();
                    }
                });
                assert_eq!(wrong.load(Ordering::SeqCst), 0);
            }
        }
    }

    #[test]
    fn sleeping_threads_wake() {
        let mut team = Team::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(3 * SPIN);
            let ran = AtomicUsize::new(0);
            team.run(&|_| {
                ran.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(ran.load(Ordering::SeqCst), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_lives_on() {
        let mut team = Team::new(3).unwrap();
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|worker| {
                    assert!(worker.index != bad, "planned");
                    worker.barrier();
                });
            }));
            assert!(result.is_err());
            let ran = AtomicUsize::new(0);
            team.run(&|worker| {
                worker.barrier();
                ran.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(ran.load(Ordering::SeqCst), 3);
        }
    }
}
