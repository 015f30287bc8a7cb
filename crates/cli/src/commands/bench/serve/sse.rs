//! Server-sent events, read strictly: what is no event is told, never skipped.

use std::io::{self, BufRead, Read as _};

/// Longer lines than this are no event of a chat.
const MAX_LINE: u64 = 1 << 20;

/// What comes next in a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// The data of an event.
    Data(&'a str),
    /// The stream ended, between two events.
    End,
    /// The stream ended within an event.
    Cut,
    /// Something that is no event; what it was.
    Malformed(&'static str),
}

/// Reads the events of a stream.
#[derive(Debug)]
pub struct Events<R> {
    from: R,
    line: Vec<u8>,
    data: Vec<u8>,
}

impl<R: BufRead> Events<R> {
    /// The events of this stream.
    pub fn new(from: R) -> Self {
        Self { from, line: Vec::new(), data: Vec::new() }
    }

    /// The next event's data; returns as soon as the event is complete.
    ///
    /// # Errors
    /// Those of reading.
    pub fn next(&mut self) -> io::Result<Next<'_>> {
        self.data.clear();
        let mut begun = false;
        loop {
            self.line.clear();
            let read = (&mut self.from).take(MAX_LINE).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(if begun { Next::Cut } else { Next::End });
            }
            if self.line.last() != Some(&b'\n') {
                let whole = read as u64 == MAX_LINE;
                return Ok(if whole { Next::Malformed("a line is too long") } else { Next::Cut });
            }
            let line = self.line[..read - 1].strip_suffix(b"\r").unwrap_or(&self.line[..read - 1]);
            if line.is_empty() {
                if begun {
                    break;
                }
                continue;
            }
            let (name, value) = match line.iter().position(|&byte| byte == b':') {
                Some(0) => continue,
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (line, &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" => {
                    if begun {
                        self.data.push(b'\n');
                    }
                    begun = true;
                    if self.data.len() + value.len() > MAX_LINE as usize {
                        return Ok(Next::Malformed("an event is too long"));
                    }
                    self.data.extend_from_slice(value);
                }
                b"event" | b"id" | b"retry" => {}
                _ => return Ok(Next::Malformed("a line is no field of an event")),
            }
        }
        Ok(match std::str::from_utf8(&self.data) {
            Ok(data) => Next::Data(data),
            Err(_) => Next::Malformed("an event is not UTF-8"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<String> {
        let mut events = Events::new(text.as_bytes());
        let mut found = Vec::new();
        loop {
            let next = events.next().unwrap();
            found.push(format!("{next:?}"));
            if !matches!(next, Next::Data(_)) {
                return found;
            }
        }
    }

    #[test]
    fn streams_are_read_as_the_standard_says() {
        for (text, expected) in [
            ("", &["End"][..]),
            (": hello\n\n\n", &["End"]),
            ("data: a\n\ndata:b\r\n\r\n", &["Data(\"a\")", "Data(\"b\")", "End"]),
            ("event: x\ndata: a\ndata: b\nid: 5\n\n", &["Data(\"a\\nb\")", "End"]),
            ("data: a\n", &["Cut"]),
            ("data: a\n\ndata: b", &["Data(\"a\")", "Cut"]),
            ("data\n\n", &["Data(\"\")", "End"]),
            ("{\"error\": 5}\n\n", &["Malformed(\"a line is no field of an event\")"]),
            ("<html>\n", &["Malformed(\"a line is no field of an event\")"]),
        ] {
            assert_eq!(all(text), expected, "{text:?}");
        }
        let mut events = Events::new(&b"data: \xff\n\n"[..]);
        assert_eq!(events.next().unwrap(), Next::Malformed("an event is not UTF-8"));
        let long = vec![b'x'; MAX_LINE as usize + 5];
        assert_eq!(Events::new(&long[..]).next().unwrap(), Next::Malformed("a line is too long"));
    }
}
