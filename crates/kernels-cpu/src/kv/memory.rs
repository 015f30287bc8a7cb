//! Memory for KV blocks, from the system: zeroed, page-aligned, touched only when written.

use crate::KernelError;

/// An anonymous mapping.
#[derive(Debug)]
pub(crate) struct Memory {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; access through the pointer is synchronized by
// the users of `KvPool`, as its unsafe methods demand.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The first byte; aligned to a page.
    #[inline(always)]
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Maps `bytes` zero bytes and asks for huge pages.
    #[cfg(unix)]
    pub(crate) fn new(bytes: usize) -> Result<Self, KernelError> {
        let bytes = bytes.max(1);
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping touches no existing memory.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read_write, private, -1, 0) };
        if ptr == libc::MAP_FAILED {
            let reason = std::io::Error::last_os_error().to_string();
            return Err(KernelError::KvMemory { bytes, reason });
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice on our own mapping; a refusal changes only speed.
        unsafe {
            libc::madvise(ptr, bytes, libc::MADV_HUGEPAGE);
        }
        Ok(Memory { ptr: ptr.cast(), bytes })
    }

    /// Allocates `bytes` zero bytes.
    #[cfg(not(unix))]
    pub(crate) fn new(bytes: usize) -> Result<Self, KernelError> {
        let bytes = bytes.max(1);
        let failed = |reason: &str| KernelError::KvMemory { bytes, reason: reason.into() };
        let layout = Self::layout(bytes).ok_or_else(|| failed("too large"))?;
        // SAFETY: the layout is not empty.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        if ptr.is_null() { Err(failed("out of memory")) } else { Ok(Memory { ptr, bytes }) }
    }

    #[cfg(not(unix))]
    fn layout(bytes: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes, 4096).ok()
    }
}

impl Drop for Memory {
    #[cfg(unix)]
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length, that nothing refers to any more.
        unsafe {
            libc::munmap(self.ptr.cast(), self.bytes);
        }
    }

    #[cfg(not(unix))]
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.bytes) {
            // SAFETY: allocated with this layout.
            unsafe { std::alloc::dealloc(self.ptr, layout) }
        }
    }
}
