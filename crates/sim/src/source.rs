//! The requests of a run: read as far as time has come, and held back while they wait for others.
//!
//! Of a stream only those rows are in memory that wait for something. What is remembered of the past
//! is, for each session, its latest answered turn, and for each group how many of it have ended.

use std::collections::{BTreeMap, HashMap};

use dunlin_units::{SessionId, Time};
use dunlin_workload::{GroupId, Request, Wait};

use crate::error::SimError;

/// A request with its number: the place of its row.
#[derive(Debug, Clone)]
pub(crate) struct Numbered {
    pub number: u64,
    pub request: Request,
}

/// What is known of a session.
#[derive(Debug, Default)]
struct Session {
    /// The turn that ended latest, and when.
    ended: Option<(u32, Time)>,
    held: Vec<Numbered>,
}

/// What is known of a group.
#[derive(Debug, Default)]
struct Group {
    ended: u32,
    latest: Time,
    held: Vec<Numbered>,
}

/// See the module.
pub(crate) struct Source<I> {
    rows: I,
    next: Option<Numbered>,
    numbered: u64,
    before: Time,
    taken: Time,
    sessions: HashMap<SessionId, Session>,
    groups: HashMap<GroupId, Group>,
    /// Delays of those that are held, counted.
    delays: BTreeMap<u64, u64>,
    held: u64,
    /// Whether any row so far waits for another.
    coupled: bool,
}

/// Where a row goes when it is read.
pub(crate) enum Next {
    /// It is ready now, or was, by its delay.
    Ready(Time, Numbered),
    /// It waits.
    Held,
}

impl<I> Source<I>
where
    I: Iterator<Item = Result<Request, SimError>>,
{
    pub(crate) fn new(rows: I) -> Result<Self, SimError> {
        let mut source = Self {
            rows,
            next: None,
            numbered: 0,
            before: Time(0),
            taken: Time(0),
            sessions: HashMap::new(),
            groups: HashMap::new(),
            delays: BTreeMap::new(),
            held: 0,
            coupled: false,
        };
        source.read()?;
        Ok(source)
    }

    fn read(&mut self) -> Result<(), SimError> {
        let Some(row) = self.rows.next() else { return Ok(()) };
        let (request, number) = (row?, self.numbered);
        if request.arrival < self.before {
            return Err(SimError::Unsorted { number, at: request.arrival, before: self.before });
        }
        self.before = request.arrival;
        self.numbered += 1;
        self.coupled |= request.wait != Wait::Nothing;
        self.next = Some(Numbered { number, request });
        Ok(())
    }

    /// When the next row arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.next.as_ref().map(|n| n.request.arrival)
    }

    /// When the latest row that was taken arrives.
    pub(crate) fn taken(&self) -> Time {
        self.taken
    }

    /// Whether any row read so far waits for another.
    pub(crate) fn is_coupled(&self) -> bool {
        self.coupled
    }

    /// The least time from an end to a request that waits for it, as far as any is held.
    pub(crate) fn least_delay(&self) -> Option<u64> {
        self.delays.first_key_value().map(|(delay, _)| *delay)
    }

    /// Takes the next row.
    pub(crate) fn take(&mut self) -> Result<Option<Next>, SimError> {
        let Some(row) = self.next.take() else { return Ok(None) };
        self.taken = row.request.arrival;
        self.read()?;
        let (arrival, delay) = (row.request.arrival, row.request.delay_ns);
        let since = match row.request.wait {
            Wait::Nothing => return Ok(Some(Next::Ready(arrival, row))),
            Wait::PreviousTurn => {
                let Some(session) = row.request.session else {
                    return Ok(Some(Next::Ready(arrival, row)));
                };
                let state = self.sessions.entry(session).or_default();
                let turn = row.request.turn;
                state.ended.filter(|ended| ended.0 + 1 >= turn).map(|ended| ended.1)
            }
            Wait::Group { group, members } => {
                let state = self.groups.entry(group).or_default();
                (state.ended >= members).then_some(state.latest)
            }
        };
        if let Some(since) = since {
            return Ok(Some(Next::Ready(arrival.max(since.after(delay)), row)));
        }
        *self.delays.entry(delay).or_default() += 1;
        self.held += 1;
        match row.request.wait {
            Wait::Group { group, .. } => self.groups.entry(group).or_default().held.push(row),
            _ => {
                let session = row.request.session.expect("looked at above");
                self.sessions.entry(session).or_default().held.push(row);
            }
        }
        Ok(Some(Next::Held))
    }

    /// A request has ended: those that waited for it are put into `ready`, with their moments.
    pub(crate) fn ended(&mut self, at: Time, request: &Request, ready: &mut Vec<(Time, Numbered)>) {
        let first = ready.len();
        if let Some(session) = request.session {
            let state = self.sessions.entry(session).or_default();
            if state.ended.is_none_or(|ended| ended.0 < request.turn) {
                state.ended = Some((request.turn, at));
            }
            let turn = request.turn;
            ready
                .extend(state.held.extract_if(.., |n| n.request.turn <= turn + 1).map(|n| (at, n)));
        }
        if let Some(group) = request.group {
            let state = self.groups.entry(group).or_default();
            state.ended += 1;
            state.latest = state.latest.max(at);
            let (ended, latest) = (state.ended, state.latest);
            let members = |n: &Numbered| match n.request.wait {
                Wait::Group { members, .. } => members,
                _ => 0,
            };
            let over = state.held.extract_if(.., |n| members(n) <= ended);
            ready.extend(over.map(|n| (latest, n)));
        }
        for (when, row) in &mut ready[first..] {
            let delay = row.request.delay_ns;
            *when = row.request.arrival.max(when.after(delay));
            self.held -= 1;
            let count = self.delays.get_mut(&delay).expect("counted when it was held");
            *count -= 1;
            if *count == 0 {
                self.delays.remove(&delay);
            }
        }
    }

    /// Requests that are held, when nothing else is left to do.
    pub(crate) fn stuck(&self) -> Option<SimError> {
        if self.held == 0 {
            return None;
        }
        let of_sessions = self.least(self.sessions.values().flat_map(|s| &s.held));
        let of_groups = self.least(self.groups.values().flat_map(|g| &g.held));
        let first = self.least(of_sessions.into_iter().chain(of_groups))?;
        let example = match first.request.wait {
            Wait::Group { group, members } => {
                let ended = self.groups.get(&group).map_or(0, |g| g.ended);
                format!(
                    "row {} waits for the {members} members of group {}, of which {ended} have ended",
                    first.number + 1,
                    group.0
                )
            }
            _ => format!(
                "row {} is turn {} of session {} and waits for turn {}, which is not in the trace \
                 or waits in its turn",
                first.number + 1,
                first.request.turn,
                first.request.session.map_or(0, |s| s.0),
                first.request.turn.saturating_sub(1)
            ),
        };
        Some(SimError::Stuck { count: self.held, example })
    }

    /// The first by number, so that the order of hash maps does not matter.
    fn least<'a>(&self, held: impl Iterator<Item = &'a Numbered>) -> Option<&'a Numbered> {
        held.min_by_key(|n| n.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn turn(session: u64, turn: u32, arrival: u64, delay: u64) -> Request {
        Request {
            session: Some(SessionId(session)),
            turn,
            wait: if turn > 0 { Wait::PreviousTurn } else { Wait::Nothing },
            delay_ns: delay,
            ..Request::new(Time(arrival), 1, 1)
        }
    }

    fn source(rows: Vec<Request>) -> Source<impl Iterator<Item = Result<Request, SimError>>> {
        Source::new(rows.into_iter().map(Ok)).unwrap()
    }

    #[test]
    fn turns_wait_for_the_turn_before() {
        let mut s = source(vec![turn(1, 0, 0, 0), turn(1, 1, 5, 5), turn(1, 2, 9, 4)]);
        assert!(matches!(s.take(), Ok(Some(Next::Ready(Time(0), _)))));
        assert!(matches!(s.take(), Ok(Some(Next::Held))));
        assert_eq!(s.least_delay(), Some(5));
        let mut ready = Vec::new();
        s.ended(Time(100), &turn(1, 0, 0, 0), &mut ready);
        assert_eq!((ready.len(), ready[0].0, ready[0].1.number), (1, Time(105), 1));
        assert_eq!(s.least_delay(), None);
        // The third is read only after the second has ended.
        s.ended(Time(110), &turn(1, 1, 5, 5), &mut ready);
        assert!(matches!(s.take(), Ok(Some(Next::Ready(Time(114), _)))));
        assert!(s.stuck().is_none());
        assert!(matches!(s.take(), Ok(None)));
    }

    #[test]
    fn a_group_releases_when_all_have_ended() {
        let group = |n| GroupId(NonZeroU32::new(n).unwrap());
        let member = Request { group: Some(group(1)), ..Request::new(Time(0), 1, 1) };
        let next = Request {
            group: Some(group(2)),
            wait: Wait::Group { group: group(1), members: 2 },
            delay_ns: 7,
            ..Request::new(Time(7), 1, 1)
        };
        let mut s = source(vec![member.clone(), member.clone(), next]);
        for _ in 0..2 {
            assert!(matches!(s.take(), Ok(Some(Next::Ready(..)))));
        }
        assert!(matches!(s.take(), Ok(Some(Next::Held))));
        let mut ready = Vec::new();
        s.ended(Time(50), &member, &mut ready);
        assert!(ready.is_empty());
        assert!(s.stuck().unwrap().to_string().contains("of which 1 have ended"));
        s.ended(Time(60), &member, &mut ready);
        assert_eq!((ready.len(), ready[0].0), (1, Time(67)));
    }

    #[test]
    fn order_is_checked() {
        let rows = vec![turn(1, 0, 5, 0), turn(2, 0, 4, 0)];
        let mut s = source(rows);
        assert!(matches!(s.take(), Err(SimError::Unsorted { number: 1, .. })));
    }
}
