//! Lines of a file with their numbers, whatever ends them and however long they are.

use std::io::{BufRead, Read, Result};

#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are the line, without its end.
    length: usize,
    number: u64,
    longest: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A line that is not blank, in [`Lines::text`].
    Text,
    /// One above the limit, which was passed over.
    TooLong,
    /// There are no more.
    End,
}

impl<R: BufRead> Lines<R> {
    pub(super) const fn new(input: R, longest: usize) -> Self {
        Self { input, buffer: Vec::new(), length: 0, number: 0, longest }
    }

    /// The number of the current line, from 1.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn text(&self) -> &[u8] {
        let line = &self.buffer[..self.length];
        match self.number {
            // A byte order mark is no part of the text.
            1 => line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line),
            _ => line,
        }
    }

    /// Goes to the next line that is not blank.
    pub(super) fn next(&mut self) -> Result<Line> {
        loop {
            self.buffer.clear();
            let most = self.longest as u64 + 1;
            let read = (&mut self.input).take(most).read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                self.length = 0;
                return Ok(Line::End);
            }
            self.number += 1;
            let ended = self.buffer.last() == Some(&b'\n');
            if !ended && read as u64 == most {
                self.pass_over()?;
                self.length = 0;
                return Ok(Line::TooLong);
            }
            let end = self.buffer.len() - usize::from(ended);
            self.length = if self.buffer[..end].ends_with(b"\r") { end - 1 } else { end };
            if !self.buffer[..self.length].iter().all(u8::is_ascii_whitespace) {
                return Ok(Line::Text);
            }
        }
    }

    /// Reads to the end of a line and keeps nothing of it.
    fn pass_over(&mut self) -> Result<()> {
        loop {
            let bytes = self.input.fill_buf()?;
            let end = bytes.iter().position(|&b| b == b'\n');
            let used = end.map_or(bytes.len(), |at| at + 1);
            self.input.consume(used);
            if end.is_some() || used == 0 {
                return Ok(());
            }
        }
    }
}
