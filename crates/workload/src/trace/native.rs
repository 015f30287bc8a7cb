//! Our own rows: everything that a [`Request`] has, one JSON object a line.
//!
//! Generated workloads are written so, and so is what the engine records, with the moments at which
//! requests really arrived. Fields that have their usual value are left out; unknown ones are errors.
//!
//! ```text
//! {"arrival_ns":0,"prompt_tokens":812,"output_tokens":95,"client":3,"session":77,
//!  "pieces":[[11,512],[77,300]]}
//! ```

use std::io::Write;
use std::num::{NonZeroU32, NonZeroU64};

use dunlin_units::{SessionId, Time};
use serde::{Deserialize, Serialize};

use super::error::{Column, Problem};
use super::mooncake::parse;
use super::{Format, Row};
use crate::request::{ClientId, Content, GroupId, Piece, Request, Wait};

#[derive(Debug)]
pub(super) struct Native;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    arrival_ns: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    client: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    turn: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<NonZeroU32>,
    #[serde(default, skip_serializing_if = "is_default")]
    wait: Wait,
    #[serde(default, skip_serializing_if = "is_default")]
    delay_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deadline_ns: Option<NonZeroU64>,
    /// Blocks of so many tokens, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "<[u64]>::is_empty")]
    blocks: Box<[u64]>,
    /// (stream, tokens).
    #[serde(default, skip_serializing_if = "<[(u64, u32)]>::is_empty")]
    pieces: Box<[(u64, u32)]>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes one request and the end of its line.
///
/// # Errors
/// What `into` fails with.
pub fn write(request: &Request, mut into: impl Write) -> std::io::Result<()> {
    let (block_tokens, blocks, pieces) = match &request.content {
        Content::Unique => Default::default(),
        Content::Blocks { ids, block_tokens } => (Some(*block_tokens), ids.clone(), <_>::default()),
        Content::Pieces(pieces) => {
            (None, <_>::default(), pieces.iter().map(|p| (p.stream, p.tokens)).collect())
        }
    };
    let fields = Fields {
        arrival_ns: request.arrival.0,
        prompt_tokens: request.prompt_tokens,
        output_tokens: request.output_tokens,
        client: request.client.0,
        session: request.session.map(|s| s.0),
        turn: request.turn,
        group: request.group.map(|g| g.0),
        wait: request.wait,
        delay_ns: request.delay_ns,
        deadline_ns: request.deadline_ns,
        block_tokens,
        blocks,
        pieces,
    };
    serde_json::to_writer(&mut into, &fields)?;
    into.write_all(b"\n")
}

impl Format for Native {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let fields: Fields = parse(line)?;
        let link = |name, problem| Err((Column::Name(name), Problem::Link(problem)));
        let content = match (fields.block_tokens, fields.pieces.is_empty()) {
            (Some(_), false) => return link("pieces", "a prompt has blocks or pieces, not both"),
            (Some(0), _) => return link("block_tokens", "blocks without tokens"),
            (Some(block_tokens), true) => Content::Blocks { ids: fields.blocks, block_tokens },
            (None, _) if !fields.blocks.is_empty() => {
                return link("block_tokens", "blocks of unknown length");
            }
            (None, false) => {
                let sum: u64 = fields.pieces.iter().map(|p| u64::from(p.1)).sum();
                if sum != u64::from(fields.prompt_tokens) {
                    return link("pieces", "their tokens are not as many as the prompt's");
                }
                let piece = |&(stream, tokens): &(u64, u32)| Piece { stream, tokens };
                Content::Pieces(fields.pieces.iter().map(piece).collect())
            }
            (None, true) => Content::Unique,
        };
        match fields.wait {
            Wait::PreviousTurn if fields.session.is_none() || fields.turn == 0 => {
                return link("wait", "there is no turn before it");
            }
            Wait::Group { group, .. } if fields.group == Some(group.0) => {
                return link("wait", "it waits for the group that it belongs to");
            }
            _ => {}
        }
        Ok(Row::Request(Request {
            client: ClientId(fields.client),
            turn: fields.turn,
            session: fields.session.map(SessionId),
            group: fields.group.map(GroupId),
            wait: fields.wait,
            delay_ns: fields.delay_ns,
            deadline_ns: fields.deadline_ns,
            content,
            ..Request::new(Time(fields.arrival_ns), fields.prompt_tokens, fields.output_tokens)
        }))
    }
}
