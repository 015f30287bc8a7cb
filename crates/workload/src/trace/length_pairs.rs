//! Pairs of lengths: `num_prefill_tokens,num_decode_tokens`, as Vidur and Etalon have them, with
//! `num_total_tokens` (checked where it is there) and, in some, `arrived_at` in seconds. The ratio
//! `pd_ratio` follows from the others and is not read.

use dunlin_units::Time;

use super::csv::Csv;
use super::error::{Column, Problem};
use super::field;
use super::{Format, Row};
use crate::request::Request;

pub(super) const COLUMNS: [&str; 2] = ["num_prefill_tokens", "num_decode_tokens"];

#[derive(Debug)]
pub(super) struct LengthPairs {
    csv: Csv<4>,
    has_total: bool,
    has_times: bool,
}

impl LengthPairs {
    pub(super) fn new(header: &str) -> Result<Self, (Column, Problem)> {
        let [prefill, decode] = COLUMNS;
        let csv = Csv::new(header, [prefill, decode, "num_total_tokens", "arrived_at"], 2)?;
        Ok(Self { has_total: csv.has(2), has_times: csv.has(3), csv })
    }
}

impl Format for LengthPairs {
    fn has_times(&self) -> bool {
        self.has_times
    }

    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let [prompt, output, total, time] = self.csv.fields(line)?;
        let prompt = field::tokens(prompt).map_err(|p| (self.csv.name(0), p))?;
        let output = field::tokens(output).map_err(|p| (self.csv.name(1), p))?;
        if self.has_total {
            let total = field::count(total).map_err(|p| (self.csv.name(2), p))?;
            let (p, o) = (u64::from(prompt), u64::from(output));
            if total != p + o {
                return Err((self.csv.name(2), Problem::Sum { total, prompt: p, output: o }));
            }
        }
        let arrival = match self.has_times {
            true => field::nanoseconds(time, 1_000_000_000).map_err(|p| (self.csv.name(3), p))?,
            false => 0,
        };
        Ok(Row::Request(Request::new(Time(arrival), prompt, output)))
    }
}
