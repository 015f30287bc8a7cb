//! The event log in the trace event format that Chrome's and Perfetto's viewers read: steps as
//! slices of their replica, requests as spans, KV blocks in use as a counter.

use std::io::Write;

use dunlin_units::Time;

use crate::events::{EventSink, LogEvent, What};

/// Writes events as they come. Call [`ChromeTrace::finish`] at the end.
#[derive(Debug)]
pub struct ChromeTrace<W: Write> {
    into: W,
    first: bool,
    failed: Option<std::io::Error>,
}

/// A moment in microseconds, as the format has it, without losing nanoseconds.
fn us(at: Time) -> String {
    format!("{}.{:03}", at.0 / 1000, at.0 % 1000)
}

impl<W: Write> ChromeTrace<W> {
    /// Into a file, say. Give it a buffer.
    pub fn new(into: W) -> Self {
        Self { into, first: true, failed: None }
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        if self.failed.is_some() {
            return;
        }
        let before = if self.first { "[\n" } else { ",\n" };
        self.first = false;
        if let Err(error) =
            self.into.write_all(before.as_bytes()).and_then(|()| self.into.write_fmt(text))
        {
            self.failed = Some(error);
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(mut self) -> std::io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let end = if self.first { "[]\n" } else { "\n]\n" };
        self.into.write_all(end.as_bytes())?;
        self.into.flush()
    }
}

impl<W: Write + Send> EventSink for ChromeTrace<W> {
    fn event(&mut self, event: &LogEvent) {
        let (at, pid) = (us(event.at), event.replica);
        match event.what {
            What::Step { step, began, sequences, tokens, blocks } => {
                let ns = event.at.since(began);
                let duration = us(Time(ns));
                let began = us(began);
                self.write(format_args!(
                    "{{\"name\":\"step\",\"cat\":\"step\",\"ph\":\"X\",\"ts\":{began},\"dur\":{duration},\
                     \"pid\":{pid},\"tid\":0,\"args\":{{\"step\":{step},\"sequences\":{sequences},\
                     \"tokens\":{tokens}}}}}"
                ));
                self.write(format_args!(
                    "{{\"name\":\"KV blocks\",\"ph\":\"C\",\"ts\":{began},\"pid\":{pid},\
                     \"args\":{{\"in use\":{blocks}}}}}"
                ));
            }
            What::Arrive { request } => self.span("b", request, &at, pid, ""),
            What::FirstToken { request } => {
                self.span("n", request, &at, pid, ",\"args\":{\"what\":\"first token\"}");
            }
            What::End { request, tokens, complete, .. } => {
                let args = format!(",\"args\":{{\"tokens\":{tokens},\"complete\":{complete}}}");
                self.span("e", request, &at, pid, &args);
            }
            What::Move { until, bytes } => {
                let duration = us(Time(until.since(event.at)));
                self.write(format_args!(
                    "{{\"name\":\"move\",\"cat\":\"kv\",\"ph\":\"X\",\"ts\":{at},\"dur\":{duration},\
                     \"pid\":{pid},\"tid\":1,\"args\":{{\"bytes\":{bytes}}}}}"
                ));
            }
            What::Up => self.instant("up", &at, pid),
            What::Down => self.instant("down", &at, pid),
        }
    }
}

impl<W: Write> ChromeTrace<W> {
    fn span(&mut self, phase: &str, request: u64, at: &str, pid: u32, more: &str) {
        self.write(format_args!(
            "{{\"name\":\"request\",\"cat\":\"request\",\"ph\":\"{phase}\",\"id\":{request},\
             \"ts\":{at},\"pid\":{pid},\"tid\":0{more}}}"
        ));
    }

    fn instant(&mut self, name: &str, at: &str, pid: u32) {
        self.write(format_args!(
            "{{\"name\":\"{name}\",\"ph\":\"i\",\"s\":\"p\",\"ts\":{at},\"pid\":{pid},\"tid\":0}}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_json_and_loses_no_nanosecond() {
        let mut out = Vec::new();
        let mut trace = ChromeTrace::new(&mut out);
        let event = |at, what| LogEvent { at: Time(at), class: 0, replica: 3, sequence: 0, what };
        let step =
            What::Step { step: 1, began: Time(1_000_001), sequences: 2, tokens: 9, blocks: 4 };
        for (at, what) in [
            (5, What::Arrive { request: 7 }),
            (2_000_003, step),
            (2_000_003, What::FirstToken { request: 7 }),
            (2_000_004, What::Move { until: Time(2_000_005), bytes: 1 }),
            (2_000_009, What::End { request: 7, tokens: 1, energy_uj: 0, complete: true }),
            (3_000_000, What::Down),
        ] {
            trace.event(&event(at, what));
        }
        trace.finish().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let rows = value.as_array().unwrap();
        assert_eq!(rows.len(), 7);
        assert_eq!(
            (rows[1]["ts"].as_f64(), rows[1]["dur"].as_f64()),
            (Some(1000.001), Some(1000.002))
        );
        assert_eq!(rows[2]["args"]["in use"], 4);
        let mut empty = Vec::new();
        ChromeTrace::new(&mut empty).finish().unwrap();
        assert_eq!(empty, b"[]\n");
    }
}
