//! Conversations: turns that carry what was said before.
//!
//! Users who think are of this form, and so are agents: a turn is a step, the gap is the tool's work,
//! and the prompt's new tokens are what the tool returned. Rounds of reasoning are turns without gaps.
//! Users of a closed loop wait for their answers but begin afresh ([`Context::Fresh`]).

use dunlin_units::{SeedTree, SessionId, Stream, Time};
use serde::{Deserialize, Serialize};

use crate::client::nanoseconds;
use crate::dist::{Dist, DistSpec};
use crate::error::SpecError;
use crate::length::{Count, CountSpec, LengthStreams, Lengths, MAX_TOKENS};
use crate::prefix::Prefixes;
use crate::request::{Content, Piece, Request, Wait};

/// How a session goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationSpec {
    /// How many turns a session has.
    pub turns: CountSpec,
    /// Seconds between turns: the user's thinking, the tool's work.
    pub gap_s: DistSpec,
    /// From when the gap counts.
    #[serde(default)]
    pub pacing: Pacing,
    /// What a turn's prompt begins with.
    #[serde(default)]
    pub context: Context,
    /// A session ends before the turn whose prompt and answer would be longer. Its first turn is
    /// sent whatever its length.
    #[serde(default = "no_limit")]
    pub max_context_tokens: u32,
}

const fn no_limit() -> u32 {
    MAX_TOKENS
}

/// From when the gap between turns counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// From the end of the answer: the next turn waits for it ([`Wait::PreviousTurn`]).
    #[default]
    AfterAnswer,
    /// From the arrival of the turn before, whether it was answered or not: as a trace that only
    /// recorded arrivals.
    AfterArrival,
}

/// What a turn's prompt begins with, after the session's shared prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Context {
    /// All prompts and answers of the turns before.
    #[default]
    Grow,
    /// Nothing: turns only wait for each other.
    Fresh,
}

/// What sessions are made of.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    turns: Count,
    gap_s: Dist,
    pacing: Pacing,
    context: Context,
    max_context_tokens: u32,
}

impl ConversationSpec {
    pub(crate) fn build(&self) -> Result<Conversation, SpecError> {
        if self.turns.min == 0 {
            return Err(SpecError::new("turns.min", "a session has at least one turn"));
        }
        Ok(Conversation {
            turns: self.turns.build().map_err(|e| e.within("turns"))?,
            gap_s: self.gap_s.build().map_err(|e| e.within("gap_s"))?,
            pacing: self.pacing,
            context: self.context,
            max_context_tokens: self.max_context_tokens,
        })
    }
}

/// A session that has turns to come. It draws from streams of its own, so when it starts, and what
/// other sessions do, changes nothing in it.
#[derive(Debug)]
pub(crate) struct OpenSession {
    /// When the next turn arrives, at the earliest.
    pub(crate) at: Time,
    id: SessionId,
    turn: u32,
    turns: u32,
    delay_ns: u64,
    /// Tokens of the turns so far, answers included, without shared prefixes.
    context: u32,
    prefix: Vec<Piece>,
    prefix_tokens: u32,
    lengths: LengthStreams,
    gaps: Stream,
    seeds: SeedTree,
}

impl OpenSession {
    /// A session that starts at `at`, seeded at `seeds`.
    pub(crate) fn new(
        conversation: &Conversation,
        prefixes: &Prefixes,
        at: Time,
        seeds: SeedTree,
    ) -> Self {
        let mut prefix = Vec::new();
        let prefix_tokens = prefixes.draw(&mut seeds.child("prefix").stream(), &mut prefix);
        Self {
            at,
            id: SessionId(seeds.seed()),
            turn: 0,
            turns: conversation.turns.draw(&mut seeds.child("turns").stream()),
            delay_ns: 0,
            context: 0,
            prefix,
            prefix_tokens,
            lengths: LengthStreams::new(seeds),
            gaps: seeds.child("gaps").stream(),
            seeds,
        }
    }

    /// The next turn; none when the session is over. Moves `at` to the turn after it.
    pub(crate) fn next_turn(
        &mut self,
        conversation: &Conversation,
        lengths: &Lengths,
    ) -> Option<Request> {
        if self.turn == self.turns {
            return None;
        }
        let (new, output) = lengths.draw(&mut self.lengths);
        let own = self.context.saturating_add(new);
        let prompt = self.prefix_tokens.saturating_add(own);
        let total = prompt.saturating_add(output);
        if self.turn > 0 && total > conversation.max_context_tokens {
            return None;
        }
        let stream = match conversation.context {
            Context::Grow => self.id.0,
            Context::Fresh => self.seeds.child_at(u64::from(self.turn)).seed(),
        };
        let mut pieces = Vec::with_capacity(self.prefix.len() + 1);
        pieces.extend_from_slice(&self.prefix);
        pieces.push(Piece { stream, tokens: own });
        let waits = self.turn > 0 && conversation.pacing == Pacing::AfterAnswer;
        let request = Request {
            turn: self.turn,
            session: Some(self.id),
            wait: if waits { Wait::PreviousTurn } else { Wait::Nothing },
            delay_ns: if waits { self.delay_ns } else { 0 },
            content: Content::Pieces(pieces.into()),
            ..Request::new(self.at, prompt, output)
        };
        if conversation.context == Context::Grow {
            self.context = own.saturating_add(output);
        }
        self.turn += 1;
        self.delay_ns = nanoseconds(conversation.gap_s.draw(&mut self.gaps));
        self.at = self.at.after(self.delay_ns);
        Some(request)
    }
}
