//! Memory for packs that are not mapped from a file.

use crate::KernelError;
use crate::kv::Memory;

/// Zeroed bytes from the system, page-aligned, in huge pages where it has them.
#[derive(Debug)]
pub struct PackBuffer {
    memory: Memory,
    len: usize,
}

impl PackBuffer {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(len: usize) -> Result<Self, KernelError> {
        Ok(PackBuffer { memory: Memory::new(len)?, len })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` initialized bytes for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.memory.ptr(), self.len) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr(), self.len) }
    }
}
