//! How fast memory can be read, with huge pages and without.

use super::timed;
use std::{alloc, io, ptr::NonNull};

/// The size of the huge pages that are asked for, and the alignment of the tested memory.
const HUGE_PAGE: usize = 2 << 20;

/// Which pages the tested memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pages {
    /// Transparent huge pages, where the system grants them.
    Huge,
    /// The system's plain pages (4 KiB on x86-64), even where it would grant larger ones.
    Plain,
}

/// Memory to read, larger than any cache, allocated and filled once.
///
/// ```no_run
/// use dunlin_kernels_cpu::probe::{Pages, ReadProbe};
/// let probe = ReadProbe::new(1 << 30, Pages::Huge).unwrap();
/// println!("{:.1} GB/s", probe.bytes_per_second(2) / 1e9);
/// ```
#[derive(Debug)]
pub struct ReadProbe {
    start: NonNull<u8>,
    layout: alloc::Layout,
}

// SAFETY: the memory is owned, and after construction it is only read.
unsafe impl Send for ReadProbe {}
// SAFETY: as above.
unsafe impl Sync for ReadProbe {}

impl ReadProbe {
    /// Allocates and fills `bytes` (rounded up to whole huge pages, at least one).
    ///
    /// # Errors
    /// The memory cannot be had.
    pub fn new(bytes: usize, pages: Pages) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(HUGE_PAGE);
        let layout = alloc::Layout::from_size_align(bytes, HUGE_PAGE)
            .map_err(|e| io::Error::new(io::ErrorKind::OutOfMemory, e))?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc::alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("no memory for a read test of {bytes} bytes"),
            ));
        };
        advise(start, bytes, pages);
        // The first touch, so after the advice. A value that is not zero: no page may be shared.
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { start.write_bytes(0x5a, bytes) };
        Ok(ReadProbe { start, layout })
    }

    /// The bytes that one pass reads.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never: there is at least one huge page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The bytes that lie in huge pages, where the system says so (Linux).
    pub fn huge_bytes(&self) -> Option<usize> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.start.as_ptr() as usize;
        huge_bytes_at(&smaps, start)
    }

    /// Reads everything once with `threads` threads, each its own part; bytes a second.
    pub fn bytes_per_second(&self, threads: usize) -> f64 {
        let threads = threads.clamp(1, self.len() / HUGE_PAGE);
        let bytes = self.bytes();
        let part = (bytes.len() / threads).next_multiple_of(4096);
        let time = timed(threads, |t| {
            let start = (t * part).min(bytes.len());
            let end = (start + part).min(bytes.len());
            std::hint::black_box(sum(&bytes[start..end]));
        });
        bytes.len() as f64 / time.as_secs_f64()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `new` has initialized all of it, and nothing writes to it afterwards.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for ReadProbe {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Asks for or against huge pages. Advice only: a system that refuses changes nothing else.
fn advise(start: NonNull<u8>, bytes: usize, pages: Pages) {
    #[cfg(target_os = "linux")]
    {
        let advice = match pages {
            Pages::Huge => libc::MADV_HUGEPAGE,
            Pages::Plain => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the range is this allocation, aligned to 2 MiB.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes, pages);
}

/// The bytes in huge pages of the mapping that holds `address`, from the text of
/// `/proc/self/smaps`.
fn huge_bytes_at(smaps: &str, address: usize) -> Option<usize> {
    let mut inside = false;
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next()?;
        if let Some((from, to)) = first.split_once('-') {
            let from = usize::from_str_radix(from, 16);
            let to = usize::from_str_radix(to, 16);
            if let (Ok(from), Ok(to)) = (from, to) {
                inside = (from..to).contains(&address);
            }
        } else if inside && first == "AnonHugePages:" {
            let kib: usize = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
            return kib.checked_mul(1024);
        }
    }
    None
}

/// A sum over the bytes as words: a reason to read them all.
fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { sum_avx2(bytes) };
    }
    sum_plain(bytes)
}

fn sum_plain(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 16];
    for block in bytes.as_chunks::<128>().0 {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = lane.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

/// How far ahead the loop prefetches, in bytes: what the decode kernels found best, too.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 2560;

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_avx2(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut lanes = [_mm256_setzero_si256(); 8];
    let blocks = bytes.as_chunks::<256>().0;
    for block in blocks {
        let p = block.as_ptr();
        for line in 0..4 {
            // A prefetch is a hint: an address past the end is harmless, so none is computed with
            // `add`, which would promise that it is inside.
            _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(PREFETCH + line * 64).cast());
        }
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: 8 loads of 32 bytes are the block's 256.
            let v = unsafe { _mm256_loadu_si256(p.add(i * 32).cast()) };
            *lane = _mm256_add_epi64(*lane, v);
        }
    }
    let all = lanes.into_iter().fold(_mm256_setzero_si256(), |a, b| _mm256_add_epi64(a, b));
    let mut words = [0u64; 4];
    // SAFETY: 32 bytes of room.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), all) };
    words.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut bytes = vec![0u8; 4096];
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = (i * 7 + i / 256) as u8;
        }
        let words = bytes.as_chunks::<8>().0.iter();
        let want = words.fold(0u64, |a, w| a.wrapping_add(u64::from_le_bytes(*w)));
        assert_eq!(sum_plain(&bytes), want);
        assert_eq!(sum(&bytes), want);
    }

    #[test]
    fn a_pass_over_little_memory_works_with_any_number_of_threads() {
        let probe = ReadProbe::new(3 << 20, Pages::Plain).unwrap();
        assert_eq!(probe.len(), 4 << 20, "whole huge pages");
        for threads in [0, 1, 2, 3, 100] {
            let rate = probe.bytes_per_second(threads);
            assert!(rate.is_finite() && rate > 0.0, "{threads} threads: {rate}");
        }
    }

    #[test]
    fn huge_pages_are_read_from_the_right_mapping() {
        let smaps = "1000-2000 rw-p 00000000 00:00 0 \n\
                     Size: 4 kB\nAnonHugePages: 8 kB\n\
                     2000-9000 rw-p 00000000 00:00 0 [heap]\n\
                     AnonHugePages:      2048 kB\n";
        assert_eq!(huge_bytes_at(smaps, 0x1fff), Some(8192));
        assert_eq!(huge_bytes_at(smaps, 0x2000), Some(2 << 20));
        assert_eq!(huge_bytes_at(smaps, 0x9000), None);
        assert_eq!(huge_bytes_at("", 0x9000), None);
    }
}
