//! A row for each request, made of the events: memory is that of the requests under way.

use std::{collections::HashMap, io::Write};

use dunlin_units::Time;

use crate::events::{EventSink, LogEvent, What};

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    arrived: Time,
    first_token: Option<Time>,
}

/// Writes comma-separated rows in the order in which requests end: number of the request (its row in
/// the workload, from 0), where it ended, and when it came, got its first token (empty without one)
/// and ended, in nanoseconds; its tokens; its part of the energy of steps, in microjoules; and whether
/// it has all the tokens that it asked for. Call
/// [`RequestCsv::finish`] at the end.
#[derive(Debug)]
pub struct RequestCsv<W: Write> {
    into: W,
    open: HashMap<u64, Open>,
    failed: Option<std::io::Error>,
}

impl<W: Write> RequestCsv<W> {
    /// Into a file, say. Give it a buffer.
    pub fn new(into: W) -> Self {
        let mut csv = Self { into, open: HashMap::new(), failed: None };
        csv.write("request,replica,arrived_ns,first_token_ns,end_ns,tokens,energy_uj,complete\n");
        csv
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = self.into.write_all(text.as_bytes()).err();
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(mut self) -> std::io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.into.flush(),
        }
    }
}

impl<W: Write + Send> EventSink for RequestCsv<W> {
    fn event(&mut self, event: &LogEvent) {
        match event.what {
            What::Arrive { request } => {
                // Who goes on elsewhere keeps its first arrival.
                let open = Open { arrived: event.at, first_token: None };
                self.open.entry(request).or_insert(open);
            }
            What::FirstToken { request } => {
                if let Some(open) = self.open.get_mut(&request) {
                    open.first_token.get_or_insert(event.at);
                }
            }
            What::End { request, tokens, energy_uj, complete } => {
                let Some(open) = self.open.remove(&request) else { return };
                let first = open.first_token.map_or(String::new(), |t| t.0.to_string());
                let (replica, arrived, end) = (event.replica, open.arrived.0, event.at.0);
                self.write(&format!(
                    "{request},{replica},{arrived},{first},{end},{tokens},{energy_uj},{complete}\n"
                ));
            }
            _ => {}
        }
    }
}

/// Events to several.
#[derive(Default)]
pub struct Tee<'a>(pub Vec<&'a mut dyn EventSink>);

impl EventSink for Tee<'_> {
    fn event(&mut self, event: &LogEvent) {
        self.0.iter_mut().for_each(|sink| sink.event(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_each_request_that_ended() {
        let mut out = Vec::new();
        let mut csv = RequestCsv::new(&mut out);
        let at = |at, what| LogEvent { at: Time(at), class: 0, replica: 2, sequence: 0, what };
        for event in [
            at(5, What::Arrive { request: 7 }),
            at(6, What::Arrive { request: 8 }),
            at(9, What::FirstToken { request: 7 }),
            at(10, What::Arrive { request: 7 }),
            at(20, What::End { request: 7, tokens: 3, energy_uj: 12, complete: true }),
            at(21, What::End { request: 8, tokens: 0, energy_uj: 0, complete: false }),
        ] {
            csv.event(&event);
        }
        csv.finish().unwrap();
        let rows: Vec<&str> = std::str::from_utf8(&out).unwrap().lines().skip(1).collect();
        assert_eq!(rows, ["7,2,5,9,20,3,12,true", "8,2,6,,21,0,0,false"]);
    }
}
