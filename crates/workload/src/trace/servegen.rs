//! What ServeGen writes: `request_id,timestamp,input_tokens,output_tokens` and, for reasoning models,
//! further columns that say nothing about lengths. The timestamp is in seconds.
//!
//! Its multimodal workloads have `text_tokens` and lists of image tokens instead; they are not read.

use dunlin_units::Time;

use super::csv::Csv;
use super::error::{Column, Problem};
use super::field;
use super::{Format, Row};
use crate::request::Request;

pub(super) const COLUMNS: [&str; 3] = ["timestamp", "input_tokens", "output_tokens"];

#[derive(Debug)]
pub(super) struct ServeGen {
    csv: Csv<3>,
}

impl ServeGen {
    pub(super) fn new(header: &str) -> Result<Self, (Column, Problem)> {
        Ok(Self { csv: Csv::new(header, COLUMNS, 3)? })
    }
}

impl Format for ServeGen {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let [time, prompt, output] = self.csv.fields(line)?;
        let arrival = field::nanoseconds(time, 1_000_000_000).map_err(|p| (self.csv.name(0), p))?;
        let prompt = field::tokens(prompt).map_err(|p| (self.csv.name(1), p))?;
        let output = field::tokens(output).map_err(|p| (self.csv.name(2), p))?;
        Ok(Row::Request(Request::new(Time(arrival), prompt, output)))
    }
}
