//! What is wrong with a trace, and where.

use std::fmt;

/// A trace that cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is nothing in the file.
    #[error("the trace is empty")]
    Empty,
    /// No row became a request.
    #[error("the trace has no row that can be used ({bad} bad rows)")]
    NoRows {
        /// Rows that were left out because they are bad.
        bad: u64,
    },
    /// A row that cannot be.
    #[error(transparent)]
    Row(BadRow),
    /// The input cannot be read.
    #[error("line {line}: {source}")]
    Io {
        /// The line that was being read, from 1.
        line: u64,
        /// The failure.
        source: std::io::Error,
    },
}

/// A row that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, {column}: {problem}")]
pub struct BadRow {
    /// The line of the file, from 1.
    pub line: u64,
    /// Where in the line.
    pub column: Column,
    /// What is wrong there.
    pub problem: Problem,
}

/// A place in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The field of this name.
    Name(&'static str),
    /// The byte of this number, from 1.
    Byte(u32),
    /// The line as a whole.
    Row,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "column `{name}`"),
            Self::Byte(at) => write!(f, "byte {at}"),
            Self::Row => write!(f, "the row"),
        }
    }
}

/// What is wrong with a field or a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The header names no such column.
    #[error("the header has no such column")]
    NoColumn,
    /// Neither the header nor the first row of any format.
    #[error("neither a header nor a row of a known format")]
    UnknownFormat,
    /// Other than as many fields as the header has.
    #[error("{found} fields where the header has {expected}")]
    Fields {
        /// Fields of the row.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// Nothing where a value should be.
    #[error("nothing where a value should be")]
    Missing,
    /// Not a number, by name.
    #[error("NaN is no value")]
    NaN,
    /// A number without end.
    #[error("an infinite value")]
    Infinite,
    /// Below zero.
    #[error("a negative value")]
    Negative,
    /// Not a number at all, or with something behind it.
    #[error("not a number")]
    NotANumber,
    /// A count with a fraction.
    #[error("not a whole number")]
    NotWhole,
    /// Not a date and time.
    #[error("not a date and time")]
    NotATime,
    /// Larger than can be.
    #[error("{value} is more than {most}")]
    TooLarge {
        /// The value, or the largest that can be told.
        value: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A prompt without tokens.
    #[error("a prompt without tokens")]
    NoPrompt,
    /// Earlier than a row before it.
    #[error("{at} ns is before the row above it ({before} ns); rows should be in order of time")]
    Unsorted {
        /// Nanoseconds of the row.
        at: u64,
        /// Nanoseconds of the latest row before it.
        before: u64,
    },
    /// Earlier than the first row, from which time counts.
    #[error("a time before the first row's")]
    BeforeFirst,
    /// A sum that does not add up.
    #[error("{total} is not the sum of {prompt} and {output}")]
    Sum {
        /// The total as stated.
        total: u64,
        /// Prompt tokens.
        prompt: u64,
        /// Output tokens.
        output: u64,
    },
    /// Another number of blocks than the lengths ask for.
    #[error("{found} blocks where the lengths ask for {expected}")]
    Blocks {
        /// Blocks of the row.
        found: u64,
        /// Blocks that the lengths ask for.
        expected: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("not UTF-8")]
    Utf8,
    /// JSON that is malformed or of another shape.
    #[error("{0}")]
    Json(String),
    /// Links between rows that contradict each other.
    #[error("{0}")]
    Link(&'static str),
    /// A line longer than the limit.
    #[error("the line is longer than is read")]
    LongLine,
}
