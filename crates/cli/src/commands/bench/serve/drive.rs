//! Sends requests when they are due, or as fast as a number of clients takes them.
//!
//! Open loop: a request goes out at its time whatever has become of those before it, and its times
//! count from the moment at which it was due, so that neither a slow server nor a slow client can
//! hide a wait (coordinated omission). Requests of a trace that wait for others are due when those
//! have ended.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use dunlin_units::SessionId;
use dunlin_workload::{GroupId, Wait};

use super::{
    client::{Client, Failure, Outcome},
    plan::Ask,
};

/// Threads that wait for answers need little.
const STACK: usize = 256 << 10;

/// How requests went.
#[derive(Debug)]
pub struct Run {
    /// In the order of their numbers.
    pub outcomes: Vec<Outcome>,
    /// What was asked, by number.
    pub asked: BTreeMap<usize, Ask>,
    /// The most requests that were under way at once.
    pub peak: usize,
}

/// Each of so many clients asks, waits for the answer, and asks again, until there is nothing left
/// to ask or so much time has passed.
pub fn closed_loop(
    client: &Client,
    asks: impl Iterator<Item = Ask> + Send,
    clients: usize,
    duration: Option<Duration>,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    let asks = Mutex::new(asks);
    let found = Mutex::new((Vec::new(), BTreeMap::new()));
    let (now, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let work = || {
            loop {
                if duration.is_some_and(|most| start.elapsed() >= most) {
                    return;
                }
                let Some(ask) = asks.lock().unwrap_or_else(|e| e.into_inner()).next() else {
                    return;
                };
                peak.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                // Due when the client is free.
                let outcome = client.call(&ask, start.elapsed(), start);
                now.fetch_sub(1, Ordering::Relaxed);
                let mut found = lock(&found);
                found.0.push(outcome);
                found.1.insert(ask.index, ask);
            }
        };
        for _ in 0..clients {
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        }
        anyhow::Ok(())
    })?;
    let (mut outcomes, asked) = found.into_inner().unwrap_or_else(|e| e.into_inner());
    outcomes.sort_by_key(|outcome: &Outcome| outcome.index);
    Ok(Run { outcomes, asked, peak: peak.into_inner() })
}

type Found = (Vec<Outcome>, BTreeMap<usize, Ask>);

fn lock(found: &Mutex<Found>) -> std::sync::MutexGuard<'_, Found> {
    found.lock().unwrap_or_else(|e| e.into_inner())
}

/// Sends each request when it is due. With `most` under way the next waits, which its lateness
/// tells.
pub fn open_loop(
    client: &Client,
    asks: impl Iterator<Item = Ask>,
    most: usize,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    let mut waits = Waits::default();
    let mut run = Run { outcomes: Vec::new(), asked: BTreeMap::new(), peak: 0 };
    let mut asks = asks.peekable();
    let (sender, ended) = mpsc::channel::<Outcome>();
    let mut under_way = 0;
    thread::scope(|scope| {
        loop {
            // A request's earliest moment is its arrival, so what has not arrived cannot be due.
            while let Some(ask) = asks.next_if(|ask| arrival(ask) <= waits.horizon(start)) {
                waits.add(ask);
            }
            let next = asks.peek().map(arrival);
            let due = waits.next_due();
            let idle = under_way == 0;
            let wait_until = match (due, next) {
                (Some(due), _) if due <= start.elapsed() && under_way < most => {
                    if let Some((due, ask)) = waits.pop() {
                        run.asked.insert(ask.index, ask.clone());
                        let sender = sender.clone();
                        thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                            // The receiver is there until all have ended.
                            let _ = sender.send(client.call(&ask, due, start));
                        })?;
                        under_way += 1;
                        run.peak = run.peak.max(under_way);
                    }
                    continue;
                }
                (None, None) if idle => break,
                (due, next) => [due, next].into_iter().flatten().min(),
            };
            let outcome = match wait_until {
                Some(moment) if under_way < most => {
                    let left = moment.saturating_sub(start.elapsed());
                    ended.recv_timeout(left).ok()
                }
                _ => ended.recv().ok(),
            };
            if let Some(outcome) = outcome {
                under_way -= 1;
                waits.ended(&run.asked[&outcome.index], outcome.end);
                run.outcomes.push(outcome);
            }
        }
        anyhow::Ok(())
    })?;
    for ask in waits.never_ready() {
        let due = arrival(&ask);
        let said = "what it waits for is not in the trace".to_string();
        let failure = Some((Failure::NeverReady, said));
        run.outcomes.push(Outcome { index: ask.index, due, failure, ..Outcome::default() });
        run.asked.insert(ask.index, ask);
    }
    run.outcomes.sort_by_key(|outcome| outcome.index);
    Ok(run)
}

fn arrival(ask: &Ask) -> Duration {
    Duration::from_nanos(ask.request.arrival.0)
}

/// What waits for a moment or for others.
#[derive(Default)]
struct Waits {
    /// By when they are due, then by number.
    ready: BinaryHeap<Reverse<(Duration, usize)>>,
    asks: BTreeMap<usize, Ask>,
    held: Vec<Ask>,
    /// The last turn that ended in each session, and when.
    turns: BTreeMap<SessionId, (u32, Duration)>,
    /// How many of each group have ended, and when the last did.
    groups: BTreeMap<GroupId, (u32, Duration)>,
}

impl Waits {
    /// How far ahead requests are read: what is due within a moment is made ready to be sent.
    fn horizon(&self, start: Instant) -> Duration {
        start.elapsed() + Duration::from_millis(50)
    }

    fn add(&mut self, ask: Ask) {
        match self.since(&ask) {
            Some(since) => self.schedule(ask, since),
            None => self.held.push(ask),
        }
    }

    fn schedule(&mut self, ask: Ask, since: Duration) {
        let due = arrival(&ask).max(since + Duration::from_nanos(ask.request.delay_ns));
        let due = if ask.request.wait == Wait::Nothing { arrival(&ask) } else { due };
        self.ready.push(Reverse((due, ask.index)));
        self.asks.insert(ask.index, ask);
    }

    /// Since when a request waits for nobody; none while it does.
    fn since(&self, ask: &Ask) -> Option<Duration> {
        let request = &ask.request;
        match request.wait {
            Wait::Nothing => Some(Duration::ZERO),
            Wait::PreviousTurn => {
                let (turn, at) = self.turns.get(&request.session?)?;
                (turn.saturating_add(1) >= request.turn).then_some(*at)
            }
            Wait::Group { group, members } => {
                let (ended, at) = self.groups.get(&group)?;
                (*ended >= members).then_some(*at)
            }
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.ready.peek().map(|Reverse((due, _))| *due)
    }

    fn pop(&mut self) -> Option<(Duration, Ask)> {
        let Reverse((due, index)) = self.ready.pop()?;
        Some((due, self.asks.remove(&index)?))
    }

    /// A request ended, well or not.
    fn ended(&mut self, ask: &Ask, at: Duration) {
        if let Some(session) = ask.request.session {
            let last = self.turns.entry(session).or_insert((ask.request.turn, at));
            if last.0 <= ask.request.turn {
                *last = (ask.request.turn, at);
            }
        }
        if let Some(group) = ask.request.group {
            let of = self.groups.entry(group).or_insert((0, at));
            *of = (of.0 + 1, of.1.max(at));
        }
        let held = std::mem::take(&mut self.held);
        held.into_iter().for_each(|ask| self.add(ask));
    }

    fn never_ready(self) -> Vec<Ask> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use dunlin_units::Time;
    use dunlin_workload::Request;

    use super::*;
    use crate::commands::bench::serve::plan::Prompt;

    fn ask(index: usize, at: u64, change: impl FnOnce(&mut Request)) -> Ask {
        let mut request = Request::new(Time(at), 1, 1);
        change(&mut request);
        Ask { index, prompt: Prompt::Tokens(vec![1]), output_tokens: 1, seed: 0, request }
    }

    #[test]
    fn turns_and_barriers_are_due_after_what_they_wait_for() {
        let second = 1_000_000_000;
        let group = GroupId(NonZeroU32::MIN);
        let mut waits = Waits::default();
        let turn = |index, turn| {
            ask(index, second, |r| {
                (r.session, r.turn) = (Some(SessionId(7)), turn);
                (r.wait, r.delay_ns) = (Wait::PreviousTurn, 2 * second);
            })
        };
        let first = ask(0, 0, |r| (r.session, r.group) = (Some(SessionId(7)), Some(group)));
        let other = ask(1, 5, |r| r.group = Some(group));
        let barrier = ask(4, 0, |r| r.wait = Wait::Group { group, members: 2 });
        for ask in [first.clone(), other.clone(), turn(2, 1), turn(3, 2), barrier] {
            waits.add(ask);
        }
        let due = |waits: &mut Waits| waits.pop().map(|(due, ask)| (due.as_nanos(), ask.index));
        assert_eq!((due(&mut waits), due(&mut waits)), (Some((0, 0)), Some((5, 1))));
        assert_eq!(due(&mut waits), None);
        waits.ended(&first, Duration::from_secs(3));
        assert_eq!(due(&mut waits), Some((5_000_000_000, 2)));
        assert_eq!(due(&mut waits), None);
        waits.ended(&other, Duration::from_secs(4));
        assert_eq!(due(&mut waits), Some((4_000_000_000, 4)));
        assert_eq!(waits.never_ready().len(), 1, "the third turn");
    }
}
