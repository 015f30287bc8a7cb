//! Where a model file's bytes come from.
//!
//! Readers see a [`ByteSource`]: a memory map ([`Mapping`]) in the engine, a vector
//! ([`MemorySource`]) in tests and fuzzing. A source is read-only, of fixed length, and hands out
//! plain slices; what the bytes mean is not its business.

mod huge_pages;
mod mapping;
mod watch;

pub use mapping::{Advice, Mapping};
pub use watch::{all_whole, explain_bus_errors};

use std::ops::Range;

/// Read-only bytes of a known length that can be borrowed.
pub trait ByteSource: Send + Sync {
    /// All of the bytes.
    fn bytes(&self) -> &[u8];

    /// Length in bytes.
    fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The bytes at `offset..offset + len`, or `None` where any of them lies outside the source.
    fn slice(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = usize::try_from(offset.checked_add(len)?).ok()?;
        self.bytes().get(start..end)
    }

    /// Fills `out` from `offset`; `false`, with `out` untouched, where that passes the end.
    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        match self.slice(offset, out.len() as u64) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Tells the operating system how a range will be used. A hint: sources that are not maps, and
    /// systems that do not know the advice, ignore it.
    fn advise(&self, _advice: Advice, _range: Range<usize>) {}
}

/// Bytes in memory.
#[derive(Debug, Clone, Default)]
pub struct MemorySource(pub Vec<u8>);

impl ByteSource for MemorySource {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl ByteSource for Mapping {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn advise(&self, advice: Advice, range: Range<usize>) {
        // A refused hint costs speed at most, and callers of the trait asked for no more.
        let _ = Mapping::advise(self, advice, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside() {
        let s = MemorySource(vec![1, 2, 3, 4]);
        assert_eq!(s.slice(1, 2), Some(&[2u8, 3][..]));
        assert_eq!(s.slice(4, 0), Some(&[][..]));
        assert_eq!(s.slice(4, 1), None);
        assert_eq!(s.slice(u64::MAX, 2), None);
        let mut out = [9; 3];
        assert!(!s.read(2, &mut out));
        assert_eq!(out, [9; 3]);
        assert!(s.read(1, &mut out));
        assert_eq!(out, [2, 3, 4]);
    }
}
