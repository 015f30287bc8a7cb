//! BurstGPT: `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`. The timestamp
//! counts seconds from midnight of the first day; models and log types (`Conversation log`,
//! `API log`) become clients, numbered as they first appear.

use std::collections::BTreeMap;

use dunlin_units::Time;

use super::csv::Csv;
use super::error::{Column, Problem};
use super::field;
use super::{Format, Row};
use crate::request::{ClientId, Request};

pub(super) const COLUMNS: [&str; 6] =
    ["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"];

/// More kinds of clients than this are one kind.
const MAX_CLIENTS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct BurstGpt {
    csv: Csv<6>,
    clients: BTreeMap<(String, String), u32>,
    /// The client of the row before, which is often the next one's too.
    last: Option<(String, String, u32)>,
}

impl BurstGpt {
    pub(super) fn new(header: &str) -> Result<Self, (Column, Problem)> {
        Ok(Self { csv: Csv::new(header, COLUMNS, 6)?, clients: BTreeMap::new(), last: None })
    }

    fn client(&mut self, model: &str, log: &str) -> ClientId {
        if let Some((last_model, last_log, id)) = &self.last
            && last_model == model
            && last_log == log
        {
            return ClientId(*id);
        }
        let key = (model.to_string(), log.to_string());
        let next = self.clients.len().min(MAX_CLIENTS);
        let id = match self.clients.get(&key) {
            Some(id) => *id,
            None if next == MAX_CLIENTS => MAX_CLIENTS as u32,
            None => *self.clients.entry(key).or_insert(next as u32),
        };
        self.last = Some((model.to_string(), log.to_string(), id));
        ClientId(id)
    }
}

impl Format for BurstGpt {
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)> {
        let [time, model, prompt, output, total, log] = self.csv.fields(line)?;
        let arrival = field::nanoseconds(time, 1_000_000_000).map_err(|p| (self.csv.name(0), p))?;
        let prompt = field::tokens(prompt).map_err(|p| (self.csv.name(2), p))?;
        let output = field::tokens(output).map_err(|p| (self.csv.name(3), p))?;
        let total = field::count(total).map_err(|p| (self.csv.name(4), p))?;
        if output == 0 {
            return Ok(Row::Failed);
        }
        let (p, o) = (u64::from(prompt), u64::from(output));
        if total != p + o {
            return Err((self.csv.name(4), Problem::Sum { total, prompt: p, output: o }));
        }
        let mut request = Request::new(Time(arrival), prompt, output);
        request.client = self.client(model, log);
        Ok(Row::Request(request))
    }
}
