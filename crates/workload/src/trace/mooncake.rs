//! Mooncake: JSON lines with `timestamp` in milliseconds, `input_length`, `output_length` and
//! `hash_ids`, the names of the prompt's blocks of 512 tokens; the last block may be cut short.

use dunlin_units::Time;
use serde::Deserialize;

use super::error::{Column, Problem};
use super::field;
use super::{Format, Row};
use crate::request::{Content, Request};

/// Tokens of a block.
const BLOCK_TOKENS: u32 = 512;

#[derive(Debug)]
pub(super) struct Mooncake;

#[derive(Deserialize)]
struct Fields {
    timestamp: serde_json::Number,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// A line of JSON. Fields that it does not name are passed over.
pub(super) fn parse<'a, T: Deserialize<'a>>(line: &'a str) -> Result<T, (Column, Problem)> {
    serde_json::from_str(line).map_err(|e| {
        let problem = without_end(line, e.column()).unwrap_or_else(|| {
            let text = e.to_string();
            // The place is told apart.
            Problem::Json(text.split(" at line ").next().unwrap_or(&text).to_string())
        });
        (Column::Byte(e.column() as u32), problem)
    })
}

/// What Python writes for numbers that JSON does not have, if that is what stands at byte `column`
/// (from 1) or just before it.
fn without_end(line: &str, column: usize) -> Option<Problem> {
    (1..=2).find_map(|back| {
        let rest = line.get(column.checked_sub(back)?..)?;
        match rest.as_bytes() {
            [b'N', b'a', b'N', ..] => Some(Problem::NaN),
            [b'I', b'n', b'f', ..] => Some(Problem::Infinite),
            _ => None,
        }
    })
}

impl Format for Mooncake {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let fields: Fields = parse(line)?;
        let named = |name| move |problem| (Column::Name(name), problem);
        // Whole milliseconds are the rule.
        let arrival = match fields.timestamp.as_u64() {
            Some(ms) => ms.checked_mul(1_000_000).ok_or((
                Column::Name("timestamp"),
                Problem::TooLarge { value: ms, most: u64::MAX / 1_000_000 },
            ))?,
            None => field::nanoseconds(&fields.timestamp.to_string(), 1_000_000)
                .map_err(named("timestamp"))?,
        };
        let prompt = field::narrow(fields.input_length).map_err(named("input_length"))?;
        let output = field::narrow(fields.output_length).map_err(named("output_length"))?;
        let (found, expected) =
            (fields.hash_ids.len() as u64, u64::from(prompt.div_ceil(BLOCK_TOKENS)));
        if found != expected {
            return Err((Column::Name("hash_ids"), Problem::Blocks { found, expected }));
        }
        let mut request = Request::new(Time(arrival), prompt, output);
        request.content =
            Content::Blocks { ids: fields.hash_ids.into(), block_tokens: BLOCK_TOKENS };
        Ok(Row::Request(request))
    }
}
