//! What a request is before anybody serves it: when, how long, whose, and which tokens it shares.

use std::num::{NonZeroU32, NonZeroU64};

use dunlin_units::{SessionId, Time};
use serde::{Deserialize, Serialize};

/// Whoever sends requests: a place in the list of clients that a workload was composed of, or a
/// label of a trace.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct ClientId(pub u32);

/// A number of requests that belong together, counted from 1: those that wait for a group wait for
/// all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub NonZeroU32);

/// One request. 96 bytes, and what its [`Content`] lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it arrives. For a request that waits ([`Request::wait`]) the earliest moment at which it
    /// can be ready: the arrival of what it waits for and the delay. So in a stream ordered by
    /// arrival, whoever has read all rows up to a moment has read everything that can be ready then.
    pub arrival: Time,
    /// Tokens of the prompt, shared ones included; at least one.
    pub prompt_tokens: u32,
    /// Tokens of the answer. Only an oracle may look at it before they are generated.
    pub output_tokens: u32,
    /// Whose.
    pub client: ClientId,
    /// The place within the session, from 0.
    pub turn: u32,
    /// The conversation that it is a turn of.
    pub session: Option<SessionId>,
    /// The group that counts it as a member.
    pub group: Option<GroupId>,
    /// What must have finished before it is ready.
    pub wait: Wait,
    /// Nanoseconds from that to being ready.
    pub delay_ns: u64,
    /// Nanoseconds from being ready to when the answer should be complete.
    pub deadline_ns: Option<NonZeroU64>,
    /// Which tokens the prompt has.
    pub content: Content,
}

/// What must have finished before a request is ready. The delay ([`Request::delay_ns`]) comes on
/// top: a user's thinking, a tool's work, an update of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Nothing: ready when it arrives.
    #[default]
    Nothing,
    /// The turn before it in its session.
    PreviousTurn,
    /// All `members` requests of a group: a barrier.
    Group {
        /// Which.
        group: GroupId,
        /// How many requests it has.
        members: u32,
    },
}

/// The first `tokens` tokens of a stream of tokens. Streams are endless, named, and unrelated to
/// each other; nobody stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Piece {
    /// The stream's name.
    pub stream: u64,
    /// How many of its tokens, from the first.
    pub tokens: u32,
}

/// Which tokens a prompt has, as far as sharing is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Content {
    /// Tokens that no other request has.
    #[default]
    Unique,
    /// A chain of blocks, as traces record it: equal ids mean that the block and everything before
    /// it are equal. The last block may be cut short by the prompt's end; tokens beyond the chain
    /// are the request's own. A chain longer than the prompt goes on into the answer.
    Blocks {
        /// The blocks' names, in order.
        ids: Box<[u64]>,
        /// Tokens of a block.
        block_tokens: u32,
    },
    /// Pieces of streams one after the other (a system prompt, a template, a conversation), of as
    /// many tokens together as the prompt. The answer goes on with the last piece's stream, so the
    /// next turn of a conversation has a longer piece of the same stream.
    Pieces(Box<[Piece]>),
}

impl Request {
    /// A request that waits for nothing and shares nothing.
    pub const fn new(arrival: Time, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            arrival,
            prompt_tokens,
            output_tokens,
            client: ClientId(0),
            turn: 0,
            session: None,
            group: None,
            wait: Wait::Nothing,
            delay_ns: 0,
            deadline_ns: None,
            content: Content::Unique,
        }
    }

    /// Appends to `into` the ids of the prompt's tokens, each below `vocabulary`: equal where the
    /// content says that they are equal, and unrelated otherwise. `own` names the stream of the
    /// tokens that no other request has: one name for each request.
    pub fn prompt_ids(&self, own: u64, vocabulary: u32, into: &mut Vec<u32>) {
        self.ids(own, vocabulary, 0, self.prompt_tokens, into);
    }

    /// As [`Request::prompt_ids`], for the answer's tokens.
    pub fn answer_ids(&self, own: u64, vocabulary: u32, into: &mut Vec<u32>) {
        let end = self.prompt_tokens.saturating_add(self.output_tokens);
        self.ids(own, vocabulary, self.prompt_tokens, end, into);
    }

    /// The answer's tokens, one by one without an end: the first are those of
    /// [`Request::answer_ids`].
    pub fn answer(&self, own: u64, vocabulary: u32) -> Answer {
        let mut answer = Answer { head: Vec::new(), stream: own, first: self.prompt_tokens };
        match &self.content {
            Content::Unique => {}
            Content::Blocks { ids, block_tokens } => {
                let chain = (ids.len() as u64 * u64::from(*block_tokens)).min(u64::from(u32::MAX));
                let chain = chain as u32;
                // What the chain says of the answer; behind it the request's own stream begins.
                self.ids(own, vocabulary, self.prompt_tokens, chain, &mut answer.head);
                answer.first = self.prompt_tokens.saturating_sub(chain);
            }
            Content::Pieces(pieces) => {
                if let Some(last) = pieces.last() {
                    (answer.stream, answer.first) = (last.stream, last.tokens);
                }
            }
        }
        answer
    }

    /// The tokens of positions `from..to` of prompt and answer together.
    fn ids(&self, own: u64, vocabulary: u32, from: u32, to: u32, into: &mut Vec<u32>) {
        into.reserve(to.saturating_sub(from) as usize);
        let mut put = |stream: u64, range: std::ops::Range<u32>| {
            into.extend(range.map(|i| stream_token(stream, i, vocabulary)));
        };
        let mut at = 0;
        // A run of `tokens` positions that begins at `at`, cut to what is asked for.
        let mut run = |stream: u64, tokens: u32, first: u32| {
            let (low, high) = (from.max(at), to.min(at.saturating_add(tokens)));
            if low < high {
                put(stream, low - at + first..high - at + first);
            }
            at = at.saturating_add(tokens);
        };
        match &self.content {
            Content::Unique => run(own, u32::MAX, 0),
            Content::Blocks { ids, block_tokens } => {
                ids.iter().for_each(|&id| run(id, *block_tokens, 0));
                run(own, u32::MAX, 0);
            }
            Content::Pieces(pieces) => {
                pieces.iter().for_each(|piece| run(piece.stream, piece.tokens, 0));
                if let Some(last) = pieces.last() {
                    run(last.stream, u32::MAX, last.tokens);
                }
            }
        }
    }
}

/// An answer as a stream of tokens: those of `head`, then those of a stream from index `first` on
/// ([`stream_token`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The first tokens.
    pub head: Vec<u32>,
    /// The stream that the others are of.
    pub stream: u64,
    /// The index of the first of those.
    pub first: u32,
}

/// Token `index` of a stream: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable
/// pseudorandom number generators", OOPSLA 2014), scaled to the vocabulary.
#[inline]
pub fn stream_token(stream: u64, index: u32, vocabulary: u32) -> u32 {
    let mut x = stream ^ u64::from(index).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    ((u128::from(x) * u128::from(vocabulary)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(request: &Request, own: u64) -> (Vec<u32>, Vec<u32>) {
        let (mut prompt, mut answer) = (Vec::new(), Vec::new());
        request.prompt_ids(own, 50_000, &mut prompt);
        request.answer_ids(own, 50_000, &mut answer);
        assert_eq!(prompt.len(), request.prompt_tokens as usize);
        assert_eq!(answer.len(), request.output_tokens as usize);
        // The same one by one.
        let Answer { mut head, stream, first } = request.answer(own, 50_000);
        head.truncate(answer.len());
        let rest = answer.len() - head.len();
        head.extend((0..rest as u32).map(|i| stream_token(stream, first + i, 50_000)));
        assert_eq!(head, answer);
        (prompt, answer)
    }

    #[test]
    fn a_row_is_small() {
        assert!(size_of::<Request>() <= 96, "{} bytes", size_of::<Request>());
    }

    #[test]
    fn unique_content_is_the_requests_own() {
        let request = Request::new(Time(0), 100, 20);
        let (a, b) = (ids(&request, 1), ids(&request, 2));
        assert_ne!(a.0, b.0);
        assert_eq!(a, ids(&request, 1));
        assert!(a.0.iter().all(|&t| t < 50_000));
    }

    #[test]
    fn blocks_share_their_tokens_and_may_reach_into_the_answer() {
        let with = |ids: &[u64], prompt, output| Request {
            content: Content::Blocks { ids: ids.into(), block_tokens: 4 },
            ..Request::new(Time(0), prompt, output)
        };
        // 10 tokens: two whole blocks, and half of the third.
        let (long, answer) = ids(&with(&[7, 8, 9], 10, 6), 1);
        let (short, _) = ids(&with(&[7, 8, 11], 10, 0), 2);
        assert_eq!(long[..8], short[..8]);
        assert_ne!(long[8..], short[8..]);
        // The rest of block 9 is the answer's first two tokens; what follows is the request's own.
        let (whole, _) = ids(&with(&[7, 8, 9], 12, 0), 3);
        assert_eq!(whole[10..], answer[..2]);
        let (next, _) = ids(&with(&[7, 8, 9, 12], 16, 0), 3);
        assert_ne!(next[12..], answer[2..]);
    }

    #[test]
    fn a_turn_begins_with_the_turn_before_it_and_its_answer() {
        let turn = |tokens, output| Request {
            content: Content::Pieces(
                [Piece { stream: 5, tokens: 8 }, Piece { stream: 6, tokens: tokens - 8 }].into(),
            ),
            ..Request::new(Time(0), tokens, output)
        };
        let (first, answer) = ids(&turn(20, 7), 1);
        let (second, _) = ids(&turn(40, 0), 2);
        assert_eq!(second[..20], first);
        assert_eq!(second[20..27], answer);
    }
}
