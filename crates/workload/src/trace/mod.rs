//! Recorded traces, read row by row and never held whole unless asked.
//!
//! [`TraceReader`] reads any of the formats of [`TraceKind`] from what the caller opened. A row that
//! cannot be is named with its line, its column and what is wrong with it; then it either ends the
//! reading or is counted and left out ([`BadRows`]). Nothing is guessed or repaired.
//!
//! A format is one file: its columns, their units and how they become a [`Request`]. What the engine
//! records for itself is written and read as [`native`] rows.

mod azure;
mod burstgpt;
mod csv;
mod error;
mod field;
mod length_pairs;
mod line;
mod llmservingsim;
mod mooncake;
pub mod native;
mod servegen;

use std::io::BufRead;

use dunlin_units::Time;

pub use error::{BadRow, Column, Problem, TraceError};
use line::{Line, Lines};

use crate::request::{Request, Wait};

/// The formats that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TraceKind {
    /// Azure LLM inference traces (CSV; Splitwise, ISCA 2024): dates and times to 100 ns,
    /// `ContextTokens`, `GeneratedTokens`. Times count from the first row.
    Azure,
    /// BurstGPT (CSV; arXiv 2401.17644): seconds, model, `Request tokens`, `Response tokens`. Rows
    /// without response tokens are requests that failed: they are counted and left out.
    BurstGpt,
    /// What ServeGen writes (CSV; NSDI 2026): `timestamp` in seconds, `input_tokens`,
    /// `output_tokens`.
    ServeGen,
    /// Pairs of lengths without times (CSV; Vidur, MLSys 2024, and Etalon's ShareGPT):
    /// `num_prefill_tokens`, `num_decode_tokens`. All arrive at once, unless there is a column
    /// `arrived_at` in seconds.
    LengthPairs,
    /// Mooncake (JSON lines; FAST 2025): `timestamp` in milliseconds, `input_length`,
    /// `output_length`, `hash_ids` of blocks of 512 tokens.
    Mooncake,
    /// LLMServingSim's ShareGPT workloads with token ids replaced by chained block ids (JSON lines):
    /// `arrival_time_ns`, `input_toks`, `output_toks`, `block_ids_16` of blocks of 16 tokens that go
    /// on into the answer.
    LlmServingSim,
    /// Our own rows ([`native`]).
    Native,
}

/// What becomes of rows that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadRows {
    /// The first one is an error, and the last thing read.
    #[default]
    Refuse,
    /// They are counted and left out. A time that is wrong but possible is taken for right, and the
    /// rows after it for out of order.
    Skip,
}

/// How to read a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// What becomes of rows that cannot be.
    pub bad_rows: BadRows,
    /// How many of them the report describes.
    pub described: usize,
    /// More tokens than this in a prompt or an answer are taken for an error.
    pub max_tokens: u32,
    /// Later arrivals than this, in nanoseconds from the trace's zero, are taken for an error.
    pub max_time_ns: u64,
    /// Longer lines than this, in bytes, are not read.
    pub max_line: usize,
}

impl Default for ReadOptions {
    /// Refuses bad rows; at most 2^24 tokens, ten years and 16 MiB a line.
    fn default() -> Self {
        Self {
            bad_rows: BadRows::Refuse,
            described: 10,
            max_tokens: crate::length::MAX_TOKENS,
            max_time_ns: 10 * 366 * 86_400 * 1_000_000_000,
            max_line: 16 << 20,
        }
    }
}

/// What was read so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadReport {
    /// Rows that became requests.
    pub rows: u64,
    /// Rows that record a failed request, left out.
    pub failed: u64,
    /// Bad rows left out.
    pub bad: u64,
    /// The first few bad rows.
    pub described: Vec<BadRow>,
}

/// A row that is well formed.
pub(crate) enum Row {
    Request(Request),
    /// The system that wrote the trace failed this request.
    Failed,
}

/// A format: how lines become requests. It checks everything but the limits and the order of times.
pub(crate) trait Format: std::fmt::Debug + Send {
    /// Whether rows have times.
    fn has_times(&self) -> bool {
        true
    }

    /// The row on this line.
    fn row(&mut self, line: &str) -> Result<Row, (Column, Problem)>;
}

/// Reads a trace, one request at a time. After an error it ends.
#[derive(Debug)]
pub struct TraceReader<R> {
    lines: Lines<R>,
    format: Box<dyn Format>,
    kind: TraceKind,
    options: ReadOptions,
    report: ReadReport,
    latest: Time,
    /// What the first line was, when it is a row that was read to find out the format.
    pending: Option<Line>,
    ordered: bool,
    done: bool,
}

impl TraceKind {
    /// The format whose header, or first row, this line is.
    pub fn detect(first_line: &str) -> Option<Self> {
        let line = first_line.trim_start_matches('\u{feff}').trim();
        if line.starts_with('{') {
            let keys: [(&str, Self); 3] = [
                ("\"hash_ids\"", Self::Mooncake),
                ("\"block_ids_16\"", Self::LlmServingSim),
                ("\"arrival_ns\"", Self::Native),
            ];
            return keys.into_iter().find(|(key, _)| line.contains(key)).map(|(_, kind)| kind);
        }
        let has = |name: &str| line.split(',').any(|field| field.trim_matches('"') == name);
        let columns: [(&[&str], Self); 4] = [
            (&azure::COLUMNS, Self::Azure),
            (&burstgpt::COLUMNS, Self::BurstGpt),
            (&servegen::COLUMNS, Self::ServeGen),
            (&length_pairs::COLUMNS, Self::LengthPairs),
        ];
        columns.into_iter().find(|(names, _)| names.iter().all(|n| has(n))).map(|(_, kind)| kind)
    }

    /// Whether the first line names columns instead of being a row.
    const fn has_header(self) -> bool {
        matches!(self, Self::Azure | Self::BurstGpt | Self::ServeGen | Self::LengthPairs)
    }

    fn format(self, first_line: &str) -> Result<Box<dyn Format>, (Column, Problem)> {
        Ok(match self {
            Self::Azure => Box::new(azure::Azure::new(first_line)?),
            Self::BurstGpt => Box::new(burstgpt::BurstGpt::new(first_line)?),
            Self::ServeGen => Box::new(servegen::ServeGen::new(first_line)?),
            Self::LengthPairs => Box::new(length_pairs::LengthPairs::new(first_line)?),
            Self::Mooncake => Box::new(mooncake::Mooncake),
            Self::LlmServingSim => Box::new(llmservingsim::LlmServingSim),
            Self::Native => Box::new(native::Native),
        })
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads `input` as a trace of `kind`; without one it is found from the first line.
    ///
    /// # Errors
    /// An empty file, a header without a column that the format needs, a first line that belongs to
    /// no format, or a failure to read.
    pub fn new(
        input: R,
        kind: Option<TraceKind>,
        options: ReadOptions,
    ) -> Result<Self, TraceError> {
        let mut lines = Lines::new(input, options.max_line);
        let line = lines.next().map_err(|source| TraceError::Io { line: 1, source })?;
        if line == Line::End {
            return Err(TraceError::Empty);
        }
        let number = lines.number();
        let bad = |(column, problem)| TraceError::Row(BadRow { line: number, column, problem });
        let first = match line {
            Line::TooLong => Err((Column::Row, Problem::LongLine)),
            _ => utf8(lines.text()),
        };
        let kind = match kind {
            Some(kind) => kind,
            None => TraceKind::detect(first.clone().map_err(bad)?)
                .ok_or_else(|| bad((Column::Row, Problem::UnknownFormat)))?,
        };
        let format = match first {
            // A first row that is bad is judged as a row, which may be left out.
            Err(_) if !kind.has_header() => kind.format(""),
            first => first.and_then(|header| kind.format(header)),
        };
        let format = format.map_err(bad)?;
        Ok(Self {
            lines,
            format,
            kind,
            options,
            report: ReadReport::default(),
            latest: Time(0),
            pending: (!kind.has_header()).then_some(line),
            ordered: true,
            done: false,
        })
    }

    /// The trace's format.
    pub const fn kind(&self) -> TraceKind {
        self.kind
    }

    /// What was read so far.
    pub const fn report(&self) -> &ReadReport {
        &self.report
    }

    /// Whether the trace has times; otherwise everything arrives at once.
    pub fn has_times(&self) -> bool {
        self.format.has_times()
    }

    /// Reads all that is left into memory and sorts it by arrival, rows of one moment in the order
    /// of the file: for traces whose rows are not in order. Where times count from the first row, it
    /// has to be the earliest all the same.
    ///
    /// # Errors
    /// As the iterator's.
    pub fn read_sorted(mut self) -> Result<(Vec<Request>, ReadReport), TraceError> {
        self.ordered = false;
        let mut rows = self.by_ref().collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|r| r.arrival);
        Ok((rows, self.report))
    }

    /// The request on the current line.
    fn judge(&mut self) -> Result<Row, (Column, Problem)> {
        let row = self.format.row(utf8(self.lines.text())?)?;
        if let Row::Request(request) = &row {
            let limits = [
                ("prompt", u64::from(request.prompt_tokens), u64::from(self.options.max_tokens)),
                ("output", u64::from(request.output_tokens), u64::from(self.options.max_tokens)),
                ("arrival", request.arrival.0, self.options.max_time_ns),
            ];
            for (name, value, most) in limits {
                if value > most {
                    return Err((Column::Name(name), Problem::TooLarge { value, most }));
                }
            }
            if request.prompt_tokens == 0 {
                return Err((Column::Name("prompt"), Problem::NoPrompt));
            }
            if self.ordered && request.arrival < self.latest {
                let (at, before) = (request.arrival.0, self.latest.0);
                return Err((Column::Name("arrival"), Problem::Unsorted { at, before }));
            }
        }
        Ok(row)
    }

    fn end(&mut self, error: TraceError) -> Option<Result<Request, TraceError>> {
        self.done = true;
        Some(Err(error))
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            let line = match self.pending.take() {
                Some(line) => line,
                None => match self.lines.next() {
                    Ok(line) => line,
                    Err(source) => {
                        let line = self.lines.number() + 1;
                        return self.end(TraceError::Io { line, source });
                    }
                },
            };
            let judged = match line {
                Line::Text => self.judge(),
                Line::TooLong => Err((Column::Row, Problem::LongLine)),
                Line::End if self.report.rows == 0 => {
                    let bad = self.report.bad;
                    return self.end(TraceError::NoRows { bad });
                }
                Line::End => break,
            };
            match judged {
                Ok(Row::Request(request)) => {
                    self.report.rows += 1;
                    self.latest = request.arrival;
                    return Some(Ok(request));
                }
                Ok(Row::Failed) => self.report.failed += 1,
                Err((column, problem)) => {
                    let row = BadRow { line: self.lines.number(), column, problem };
                    if self.options.bad_rows == BadRows::Refuse {
                        return self.end(TraceError::Row(row));
                    }
                    self.report.bad += 1;
                    if self.report.described.len() < self.options.described {
                        self.report.described.push(row);
                    }
                }
            }
        }
        self.done = true;
        None
    }
}

/// A line as text.
fn utf8(line: &[u8]) -> Result<&str, (Column, Problem)> {
    std::str::from_utf8(line).map_err(|e| (Column::Byte(e.valid_up_to() as u32 + 1), Problem::Utf8))
}

/// Stretches a recorded trace in time by `factor`: 0.5 doubles the load. Delays are left as they
/// are, since they belong to users and tools, and so are deadlines.
pub fn stretch(
    requests: impl Iterator<Item = Request>,
    factor: f64,
) -> impl Iterator<Item = Request> {
    requests.map(move |mut request| {
        if request.wait == Wait::Nothing {
            request.arrival = Time((request.arrival.0 as f64 * factor + 0.5) as u64);
        }
        request
    })
}
