//! Replicas of one thread, and the team of threads that runs them side by side.
//!
//! Between two moments at which anything passes from one replica to another, each runs on its own;
//! so shards may run at once, and the result does not depend on how many there are.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
};

use crate::replica::{Job, Replica, World, key};

/// Replicas, with what they write to.
#[derive(Debug)]
pub(crate) struct Shard {
    pub replicas: Vec<Replica>,
    pub world: World,
    /// When each replica must be run, by key: before news may come from it, or whenever something
    /// happens there. Entries may be outdated.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The key under which each replica stands in the heap.
    queued: Vec<u64>,
    /// Whether replicas may fall behind until news may come from them.
    lazy: bool,
    /// Those that are run in this round, with their keys.
    due: Vec<(u64, u32)>,
}

impl Shard {
    pub(crate) fn new(replicas: Vec<Replica>, world: World, lazy: bool) -> Self {
        let queued = vec![u64::MAX; replicas.len()];
        Self { replicas, world, heap: BinaryHeap::new(), queued, lazy, due: Vec::new() }
    }

    /// Notes when a replica must be run next.
    pub(crate) fn queue(&mut self, local: usize) {
        let replica = &self.replicas[local];
        self.enter(local, if self.lazy { replica.horizon() } else { replica.next_key() });
    }

    fn enter(&mut self, local: usize, key: u64) {
        if key < self.queued[local] {
            self.queued[local] = key;
            self.heap.push(Reverse((key, local as u32)));
        }
    }

    pub(crate) fn deliver(&mut self, local: usize, job: Job) {
        let replica = &mut self.replicas[local];
        let key = if self.lazy { replica.job_horizon(&job) } else { key(job.came, true) };
        replica.deliver(job);
        self.enter(local, key);
    }

    /// The key of what happens next, or [`u64::MAX`].
    pub(crate) fn next_key(&mut self) -> u64 {
        while let Some(&Reverse((key, local))) = self.heap.peek() {
            if self.queued[local as usize] == key {
                return key;
            }
            self.heap.pop();
        }
        u64::MAX
    }

    /// Runs every replica until `bound` that must be run before `soon`: those between the two would
    /// be next, and running them along makes rounds fewer and longer.
    pub(crate) fn run_until(&mut self, bound: u64, soon: u64) {
        let mut due = std::mem::take(&mut self.due);
        while let Some(&Reverse((key, local))) = self.heap.peek()
            && key < soon
        {
            self.heap.pop();
            if self.queued[local as usize] == key {
                self.queued[local as usize] = u64::MAX;
                due.push((key, local));
            }
        }
        for (horizon, local) in due.drain(..) {
            let heard = self.world.notes.len();
            self.replicas[local as usize].run_until(bound, &mut self.world);
            let early = self.world.notes[heard..].iter().any(|n| key(n.at, true) < horizon);
            assert!(!early, "replica {local} ended a request before it could");
            self.queue(local as usize);
        }
        self.due = due;
    }
}

/// Shards and the threads that run them; the first is run by whoever owns the team.
pub(crate) struct Team<'a> {
    shards: &'a [Mutex<Shard>],
    signal: &'a Signal,
    threads: Vec<Thread>,
    /// How much later than a round's bound news may come from those that are run along, in keys.
    along: u64,
}

/// How the owner and its threads tell each other where they are.
pub(crate) struct Signal {
    /// Grows by one with each piece of work; [`STOP`] ends the threads.
    round: AtomicU64,
    /// Up to where, and who takes part.
    bound: AtomicU64,
    soon: AtomicU64,
    /// Threads that have done their part of the round.
    done: AtomicU64,
}

const STOP: u64 = u64::MAX;

/// How often a thread looks for work before it lets others have its core, and before it sleeps.
/// Pieces of work follow each other within microseconds; sleeping and waking cost more.
const LOOKS: u32 = 4_000;
const YIELDS: u32 = 40;

/// Waits a little, for the `looks`-th time.
fn pause(looks: u32) {
    if looks < LOOKS {
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

impl Signal {
    pub(crate) const fn new() -> Self {
        Self {
            round: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            soon: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }
}

/// What a helping thread does until it is stopped.
pub(crate) fn help(shard: &Mutex<Shard>, signal: &Signal) {
    let mut seen = 0;
    loop {
        let mut looks = 0;
        let round = loop {
            let round = signal.round.load(Ordering::Acquire);
            if round != seen {
                break round;
            }
            looks += 1;
            if looks < LOOKS + YIELDS {
                pause(looks);
            } else {
                thread::park();
            }
        };
        if round == STOP {
            return;
        }
        seen = round;
        let bound = signal.bound.load(Ordering::Relaxed);
        lock(shard).run_until(bound, signal.soon.load(Ordering::Relaxed));
        signal.done.fetch_add(1, Ordering::Release);
    }
}

/// A shard whose thread has panicked is of no use, and neither is the run.
pub(crate) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().expect("a thread of the simulation panicked")
}

impl<'a> Team<'a> {
    pub(crate) fn new(
        shards: &'a [Mutex<Shard>],
        signal: &'a Signal,
        threads: Vec<Thread>,
        along: u64,
    ) -> Self {
        Self { shards, signal, threads, along }
    }

    /// The shard of a replica and its place there.
    pub(crate) fn place(&self, replica: u32) -> (usize, usize) {
        let count = self.shards.len();
        (replica as usize % count, replica as usize / count)
    }

    pub(crate) fn shard(&self, index: usize) -> MutexGuard<'a, Shard> {
        lock(&self.shards[index])
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Does something with a replica, and notes what it has to do next.
    pub(crate) fn with<T>(
        &self,
        replica: u32,
        what: impl FnOnce(&mut Replica, &mut World) -> T,
    ) -> T {
        let (shard, local) = self.place(replica);
        let mut shard = self.shard(shard);
        let shard = &mut *shard;
        let result = what(&mut shard.replicas[local], &mut shard.world);
        shard.queue(local);
        result
    }

    pub(crate) fn deliver(&self, replica: u32, job: Job) {
        let (shard, local) = self.place(replica);
        self.shard(shard).deliver(local, job);
    }

    /// The key of what happens next on any replica.
    pub(crate) fn next_key(&self) -> u64 {
        self.shards.iter().map(|s| lock(s).next_key()).min().unwrap_or(u64::MAX)
    }

    /// Runs all replicas until `bound` from which news may come before it, and those along from which
    /// news may come soon: side by side where more than one shard has anything to do.
    pub(crate) fn run_until(&self, bound: u64) {
        if self.next_key() >= bound {
            return;
        }
        let soon = bound.saturating_add(self.along);
        let mut due = [false; MAX_THREADS];
        for (index, shard) in self.shards.iter().enumerate() {
            due[index] = lock(shard).next_key() < soon;
        }
        let busy = due.iter().filter(|d| **d).count();
        if busy < 2 || self.threads.is_empty() {
            if let Some(only) = due.iter().position(|d| *d) {
                lock(&self.shards[only]).run_until(bound, soon);
            }
            return;
        }
        self.signal.bound.store(bound, Ordering::Relaxed);
        self.signal.soon.store(soon, Ordering::Relaxed);
        self.signal.done.store(0, Ordering::Relaxed);
        self.signal.round.fetch_add(1, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
        lock(&self.shards[0]).run_until(bound, soon);
        let mut looks = 0u32;
        while self.signal.done.load(Ordering::Acquire) < self.threads.len() as u64 {
            looks = looks.saturating_add(1);
            pause(looks);
            let dead = self.shards.iter().any(|s| s.is_poisoned());
            assert!(!dead, "a thread of the simulation panicked");
        }
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.signal.round.store(STOP, Ordering::Release);
        for thread in &self.threads {
            thread.unpark();
        }
    }
}

/// Threads at most.
pub(crate) const MAX_THREADS: usize = 64;
