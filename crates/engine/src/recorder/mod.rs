//! A run on record: every call of the core's `advance`, with what it was told and what it answered.
//!
//! The file is a magic number and a version, then frames: length, XXH3 checksum, and postcard bytes.
//! The first frame is the [`Header`], each of the others one call: the time, the events, the
//! effects. [`replay`] tells a fresh core the same and compares its answers byte for byte; [`Calls`]
//! reads the record for whoever has another use for it.

mod frames;
mod read;
mod replay;

use std::{
    fs::File,
    io::{self, BufWriter},
    path::Path,
};

use dunlin_kvcache::TenantId;
use dunlin_scheduler::{CoreConfig, Effects, Event};
use dunlin_units::Time;
use serde::{Deserialize, Serialize};

pub use read::{Call, Calls};
pub use replay::{Difference, ReplayError, ReplayReport, replay};

/// How a record begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The core's settings.
    pub config: CoreConfig,
    /// KV blocks that tenants may hold.
    pub budgets: Vec<(TenantId, u64)>,
    /// The model's name.
    pub model: String,
    /// The version of dunlin that made the record.
    pub dunlin: String,
}

/// Writes a record.
#[derive(Debug)]
pub struct Recorder {
    out: BufWriter<File>,
    /// The frame in hand.
    frame: Vec<u8>,
    /// The first thing that went wrong; nothing is written after it.
    problem: Option<io::Error>,
}

impl Recorder {
    /// Begins a record in this file, which is made anew.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, header: &Header) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 16, File::create(path)?);
        frames::write_start(&mut out)?;
        let frame = postcard::to_extend(header, Vec::new()).map_err(io::Error::other)?;
        frames::write(&mut out, &frame)?;
        Ok(Self { out, frame, problem: None })
    }

    /// Takes down what the core is about to be told.
    pub(crate) fn begin(&mut self, now: Time, events: &Vec<Event>) {
        self.frame.clear();
        self.add(&(now, events));
    }

    /// Takes down its answer, and writes the record.
    pub(crate) fn end(&mut self, effects: &Effects) {
        self.add(effects);
        if self.problem.is_none()
            && let Err(error) = frames::write(&mut self.out, &self.frame)
        {
            self.problem = Some(error);
        }
    }

    fn add(&mut self, what: &impl Serialize) {
        match postcard::to_extend(what, std::mem::take(&mut self.frame)) {
            Ok(frame) => self.frame = frame,
            Err(error) => self.problem = Some(io::Error::other(error)),
        }
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The first thing that went wrong since the record began: it ends there.
    pub fn flush(&mut self) -> io::Result<()> {
        match self.problem.take() {
            Some(error) => Err(error),
            None => io::Write::flush(&mut self.out),
        }
    }
}
