//! Reads a record call by call.

use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use dunlin_scheduler::{Effects, Event};
use dunlin_units::Time;

use super::{Header, ReplayError, frames};

/// One call of the core, as it was recorded.
#[derive(Debug)]
pub struct Call {
    /// The core's time.
    pub now: Time,
    /// What it was told.
    pub events: Vec<Event>,
    /// What it answered.
    pub effects: Effects,
}

/// The calls of a record, in order. It ends with the last whole call; an error is the last thing it
/// gives.
#[derive(Debug)]
pub struct Calls {
    path: PathBuf,
    file: BufReader<File>,
    frame: Vec<u8>,
    header: Header,
    read: u64,
    truncated: bool,
    over: bool,
}

impl Calls {
    /// Opens a record.
    ///
    /// # Errors
    /// Files that cannot be read or are no records.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let io_error = |source| ReplayError::Io { path: path.into(), source };
        let not_a_record = || ReplayError::NotARecord { path: path.into() };
        let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(io_error)?);
        if !frames::read_start(&mut file).map_err(io_error)? {
            return Err(not_a_record());
        }
        let mut frame = Vec::new();
        let frames::Next::Frame = frames::read(&mut file, &mut frame).map_err(io_error)? else {
            return Err(not_a_record());
        };
        let header = postcard::from_bytes(&frame).map_err(|_| not_a_record())?;
        Ok(Self { path: path.into(), file, frame, header, read: 0, truncated: false, over: false })
    }

    /// How the record begins.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether it ended within a call, as it does when the process was killed.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The next call's time and events, and the bytes of its effects; `None` at the end.
    pub(super) fn next_raw(&mut self) -> Result<Option<(Time, Vec<Event>, &[u8])>, ReplayError> {
        let io_error = |source: io::Error| ReplayError::Io { path: self.path.clone(), source };
        match frames::read(&mut self.file, &mut self.frame).map_err(io_error)? {
            frames::Next::Frame => {}
            frames::Next::End => return Ok(None),
            frames::Next::Torn => {
                self.truncated = true;
                return Ok(None);
            }
            frames::Next::Damaged => return Err(self.damaged()),
        }
        let read = postcard::take_from_bytes::<(Time, Vec<Event>)>(&self.frame);
        let Ok(((now, events), effects)) = read else { return Err(self.damaged()) };
        self.read += 1;
        Ok(Some((now, events, effects)))
    }

    fn damaged(&self) -> ReplayError {
        ReplayError::Damaged { path: self.path.clone(), call: self.read }
    }
}

impl Iterator for Calls {
    type Item = Result<Call, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let call = match self.next_raw() {
            Ok(None) => None,
            Ok(Some((now, events, effects))) => match postcard::from_bytes(effects) {
                Ok(effects) => Some(Ok(Call { now, events, effects })),
                Err(_) => {
                    self.read -= 1;
                    Some(Err(self.damaged()))
                }
            },
            Err(error) => Some(Err(error)),
        };
        self.over = !matches!(call, Some(Ok(_)));
        call
    }
}
