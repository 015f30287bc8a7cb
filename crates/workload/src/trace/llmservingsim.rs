//! LLMServingSim's ShareGPT workloads with their token ids replaced by chained block ids: JSON lines
//! with `arrival_time_ns`, `input_toks`, `output_toks` and `block_ids_16`, one for each whole block
//! of 16 tokens of prompt and answer together.

use dunlin_units::Time;
use serde::Deserialize;

use super::error::{Column, Problem};
use super::field;
use super::mooncake::parse;
use super::{Format, Row};
use crate::request::{Content, Request};

/// Tokens of a block.
const BLOCK_TOKENS: u32 = 16;

#[derive(Debug)]
pub(super) struct LlmServingSim;

#[derive(Deserialize)]
struct Fields {
    arrival_time_ns: u64,
    input_toks: u64,
    output_toks: u64,
    block_ids_16: Vec<u64>,
}

impl Format for LlmServingSim {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let fields: Fields = parse(line)?;
        let named = |name| move |problem| (Column::Name(name), problem);
        let prompt = field::narrow(fields.input_toks).map_err(named("input_toks"))?;
        let output = field::narrow(fields.output_toks).map_err(named("output_toks"))?;
        let found = fields.block_ids_16.len() as u64;
        let expected = (u64::from(prompt) + u64::from(output)) / u64::from(BLOCK_TOKENS);
        if found != expected {
            return Err((Column::Name("block_ids_16"), Problem::Blocks { found, expected }));
        }
        let mut request = Request::new(Time(fields.arrival_time_ns), prompt, output);
        request.content =
            Content::Blocks { ids: fields.block_ids_16.into(), block_tokens: BLOCK_TOKENS };
        Ok(Row::Request(request))
    }
}
