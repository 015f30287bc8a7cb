//! One client: its arrivals, lengths, prefixes and conversations, as one ordered stream.
//!
//! Production traffic is a sum of clients that differ in all of these, and a few of them send most
//! of it (ServeGen, NSDI 2026); a workload that has the sum's averages but not its parts is
//! smoother than the real one.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use dunlin_units::{SeedTree, Stream, Time};
use serde::{Deserialize, Serialize};

use crate::arrival::{ArrivalSpec, Arrivals};
use crate::error::{SpecError, not_negative};
use crate::length::{LengthStreams, Lengths, LengthsSpec};
use crate::prefix::{PrefixPool, PrefixUse, Prefixes};
use crate::request::{ClientId, Content, Piece, Request};
use crate::session::{Conversation, ConversationSpec, OpenSession};

/// A client, described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientSpec {
    /// Its name, which seeds its randomness: no two clients have the same.
    pub name: String,
    /// When its requests arrive, or with conversations its sessions.
    pub arrival: ArrivalSpec,
    /// Tokens of a prompt, without shared prefixes and earlier turns, and of an answer.
    pub lengths: LengthsSpec,
    /// What prompts begin with.
    #[serde(default)]
    pub prefixes: Vec<PrefixUse>,
    /// How sessions go on. Without, each request is for itself.
    #[serde(default)]
    pub conversation: Option<ConversationSpec>,
    /// Seconds from a request's being ready to when its answer should be complete.
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// Seconds from the start of the workload to the client's.
    #[serde(default)]
    pub from_s: f64,
    /// Seconds from the start of the workload after which no request or session begins. Turns of
    /// sessions that have begun still come.
    #[serde(default)]
    pub until_s: Option<f64>,
    /// The most requests or sessions.
    #[serde(default)]
    pub limit: Option<u64>,
}

impl ClientSpec {
    /// A client that sends requests on their own, for ever.
    pub fn new(name: impl Into<String>, arrival: ArrivalSpec, lengths: LengthsSpec) -> Self {
        Self {
            name: name.into(),
            arrival,
            lengths,
            prefixes: Vec::new(),
            conversation: None,
            deadline_s: None,
            from_s: 0.0,
            until_s: None,
            limit: None,
        }
    }
}

/// Seconds as nanoseconds, rounded; what [`Time`] cannot tell becomes its end.
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9 + 0.5) as u64
}

/// A client's requests, in order of arrival.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    arrivals: Arrivals,
    until: Time,
    left: u64,
    /// When the next session begins.
    next: Option<Time>,
    /// Sessions begun so far.
    begun: u64,
    lengths: Lengths,
    prefixes: Prefixes,
    conversation: Option<Conversation>,
    deadline_ns: Option<NonZeroU64>,
    seeds: SeedTree,
    streams: LengthStreams,
    prefix_choice: Stream,
    /// Sessions with turns to come, by the next turn's arrival and the order in which they began.
    open: BTreeMap<(Time, u64), OpenSession>,
    scratch: Vec<Piece>,
}

impl Client {
    /// The client of `spec`, as number `id` of the workload whose seeds are `seeds`.
    pub(crate) fn new(
        spec: &ClientSpec,
        id: ClientId,
        pools: &[(String, PrefixPool)],
        seeds: SeedTree,
    ) -> Result<Self, SpecError> {
        let own = seeds.child("client").child(&spec.name);
        let start = Time(nanoseconds(not_negative("from_s", spec.from_s)?));
        let mut client = Self {
            id,
            arrivals: spec
                .arrival
                .build(start, own.child("arrivals"))
                .map_err(|e| e.within("arrival"))?,
            until: match spec.until_s {
                Some(seconds) => Time(nanoseconds(not_negative("until_s", seconds)?)),
                None => Time::NEVER,
            },
            left: spec.limit.unwrap_or(u64::MAX),
            next: None,
            begun: 0,
            lengths: spec.lengths.build().map_err(|e| e.within("lengths"))?,
            prefixes: Prefixes::new(&spec.prefixes, pools)?,
            conversation: spec
                .conversation
                .as_ref()
                .map(ConversationSpec::build)
                .transpose()
                .map_err(|e| e.within("conversation"))?,
            deadline_ns: match spec.deadline_s {
                Some(seconds) => {
                    NonZeroU64::new(nanoseconds(not_negative("deadline_s", seconds)?).max(1))
                }
                None => None,
            },
            seeds: own.child("sessions"),
            streams: LengthStreams::new(own.child("lengths")),
            prefix_choice: own.child("prefixes").stream(),
            open: BTreeMap::new(),
            scratch: Vec::new(),
        };
        client.next = next_start(&mut client.arrivals, &mut client.left, client.until);
        Ok(client)
    }

    /// A request for itself, arriving at `at`.
    #[inline]
    fn single(&mut self, at: Time) -> Request {
        let (own, output) = self.lengths.draw(&mut self.streams);
        let mut request = Request::new(at, own, output);
        request.client = self.id;
        request.deadline_ns = self.deadline_ns;
        if !self.prefixes.is_empty() {
            self.scratch.clear();
            let shared = self.prefixes.draw(&mut self.prefix_choice, &mut self.scratch);
            let stream = self.seeds.child_at(self.begun).seed();
            self.scratch.push(Piece { stream, tokens: own });
            request.prompt_tokens = own.saturating_add(shared);
            request.content = Content::Pieces(self.scratch.as_slice().into());
        }
        self.begun += 1;
        request
    }

    /// The next turn of whichever session is first, beginning one if its time has come.
    fn turn(&mut self) -> Option<Request> {
        let conversation = self.conversation.as_ref()?;
        loop {
            let first = self.open.first_key_value().map(|(key, _)| *key);
            let mut session = match (first, self.next) {
                (None, None) => return None,
                (Some(key), next) if next.is_none_or(|at| key.0 <= at) => {
                    (key.1, self.open.remove(&key).expect("it is the first"))
                }
                (_, next) => {
                    let at = next.expect("there is one, or the arm before holds");
                    let seeds = self.seeds.child_at(self.begun);
                    let session = OpenSession::new(conversation, &self.prefixes, at, seeds);
                    self.begun += 1;
                    self.next = next_start(&mut self.arrivals, &mut self.left, self.until);
                    (self.begun - 1, session)
                }
            };
            // A session may be over earlier than planned, when its context is full.
            if let Some(mut request) = session.1.next_turn(conversation, &self.lengths) {
                request.client = self.id;
                request.deadline_ns = self.deadline_ns;
                self.open.insert((session.1.at, session.0), session.1);
                return Some(request);
            }
        }
    }
}

/// When the next session begins, if one does.
#[inline]
fn next_start(arrivals: &mut Arrivals, left: &mut u64, until: Time) -> Option<Time> {
    *left = left.checked_sub(1)?;
    arrivals.next().filter(|at| *at < until)
}

impl Iterator for Client {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        if self.conversation.is_some() {
            return self.turn();
        }
        let at = self.next?;
        self.next = next_start(&mut self.arrivals, &mut self.left, self.until);
        Some(self.single(at))
    }
}
