//! Frames of a record: a length, a checksum, bytes.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a record, the version among them.
const START: &[u8; 12] = b"DUNLINRC\x03\0\0\0";
/// No call has more to tell; a longer frame is a damaged one.
const MAX_FRAME: u32 = 1 << 30;

/// What comes next in a file.
pub(super) enum Next {
    /// A whole frame; its bytes are in the buffer.
    Frame,
    /// The end, after a whole frame.
    End,
    /// The file ends within a frame.
    Torn,
    /// The frame is not what was written.
    Damaged,
}

pub(super) fn write_start(out: &mut impl Write) -> io::Result<()> {
    out.write_all(START)
}

/// Whether the file begins as a record of this version does.
pub(super) fn read_start(from: &mut impl Read) -> io::Result<bool> {
    let mut start = Vec::new();
    from.by_ref().take(START.len() as u64).read_to_end(&mut start)?;
    Ok(start == START)
}

pub(super) fn write(out: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).ok().filter(|&n| n <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::other("a record is too long"))?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&xxh3_64(frame).to_le_bytes())?;
    out.write_all(frame)
}

/// Reads the next frame into `frame`.
pub(super) fn read(from: &mut impl Read, frame: &mut Vec<u8>) -> io::Result<Next> {
    let mut head = Vec::with_capacity(12);
    from.by_ref().take(12).read_to_end(&mut head)?;
    let Some((length, checksum)) = head.split_first_chunk::<4>() else {
        return Ok(if head.is_empty() { Next::End } else { Next::Torn });
    };
    let Ok(checksum) = <[u8; 8]>::try_from(checksum) else { return Ok(Next::Torn) };
    let length = u32::from_le_bytes(*length);
    if length > MAX_FRAME {
        return Ok(Next::Damaged);
    }
    frame.clear();
    from.by_ref().take(u64::from(length)).read_to_end(frame)?;
    if frame.len() < length as usize {
        return Ok(Next::Torn);
    }
    let good = xxh3_64(frame) == u64::from_le_bytes(checksum);
    Ok(if good { Next::Frame } else { Next::Damaged })
}
