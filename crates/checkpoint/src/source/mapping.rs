//! Memory-mapped files.
//!
//! Files are mapped read-only and shared, so weights live in the page cache once, whatever number
//! of processes use them. A file that another process shortens while it is mapped is lost: touching
//! its missing pages ends the process, as for every mapped file ([`super::watch`] says why it did).
//! Writers of shared files must therefore replace them (write beside, then rename), never truncate.

use std::{fs::File, io, ops::Deref, ops::Range, path::Path, sync::Arc};

use super::watch::Watched;

/// The size of a huge page that a mapping from [`Mapping::open_huge_aligned`] is aligned to.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;

/// How a range of a mapping will be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// From front to back, once: read ahead far, keep little.
    Sequential,
    /// Soon: start reading it in.
    WillNeed,
    /// Back it by huge pages where the file system allows it.
    HugePage,
    /// Not again soon: its pages may be dropped from this process (the file is untouched).
    DontNeed,
    /// Now: map every page before returning, so that no page fault comes later (Linux 5.14).
    Populate,
}

/// A file mapped read-only.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// None of an empty file, which cannot become shorter.
    watched: Option<Arc<Watched>>,
}

#[derive(Debug)]
enum Region {
    /// An empty file: the system maps nothing of length zero.
    Empty,
    Plain(memmap2::Mmap),
    #[cfg(target_os = "linux")]
    Aligned(Aligned),
}

impl Mapping {
    /// Maps a regular file. The base is page-aligned, thus 64-byte-aligned.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is no regular file (a pipe would block, a device
    /// has no length).
    pub fn open(path: &Path) -> io::Result<Self> {
        let (file, len) = open_regular(path)?;
        if len == 0 {
            return Ok(Self { region: Region::Empty, watched: None });
        }
        // SAFETY: the map is read-only. Another process that shortens the file makes reads fault
        // (see the module's notes); the contents are only ever interpreted through checked readers.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file)? };
        let watched = Some(Watched::new(file, path, map.as_ptr(), len));
        Ok(Self { region: Region::Plain(map), watched })
    }

    /// Maps a regular file at a virtual address that is a multiple of 2 MiB and asks for huge
    /// pages, so that a file system with large folios can serve it with 2 MiB pages. The same as
    /// [`Mapping::open`] on systems other than Linux.
    ///
    /// # Errors
    /// As for [`Mapping::open`]. That huge pages are refused is no error.
    pub fn open_huge_aligned(path: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        {
            let (file, len) = open_regular(path)?;
            if len == 0 {
                return Ok(Self { region: Region::Empty, watched: None });
            }
            let aligned = Aligned::map(&file, len)?;
            let watched = Some(Watched::new(file, path, aligned.base, len));
            let mapping = Self { region: Region::Aligned(aligned), watched };
            // Kernels without file THP answer EINVAL; small pages still work.
            let _ = mapping.advise(Advice::HugePage, 0..len);
            Ok(mapping)
        }
        #[cfg(not(target_os = "linux"))]
        Self::open(path)
    }

    /// Whether the file is still as long as when it was mapped, or longer. One that was removed, or
    /// replaced by another of its name, is whole.
    pub fn is_whole(&self) -> bool {
        self.watched.as_ref().is_none_or(|watched| watched.is_whole())
    }

    /// Tells the system how the bytes of `range` will be used. The range is clipped to the mapping
    /// and widened to whole pages ([`Advice::DontNeed`]: narrowed, so that neighbours stay).
    /// Does nothing where the system has no such advice at build time.
    ///
    /// # Errors
    /// The system refused the advice, for example because the kernel is too old. The mapping is
    /// usable all the same.
    pub fn advise(&self, advice: Advice, range: Range<usize>) -> io::Result<()> {
        #[cfg(unix)]
        return self.madvise(advice, range);
        #[cfg(not(unix))]
        {
            let _ = (advice, range);
            Ok(())
        }
    }

    #[cfg(unix)]
    fn madvise(&self, advice: Advice, range: Range<usize>) -> io::Result<()> {
        let Some(flag) = advice_flag(advice) else { return Ok(()) };
        let page = page_size();
        let (from, end) = (range.start.min(self.len()), range.end.min(self.len()));
        let (start, end) = match advice {
            // The last page belongs to the mapping alone, so the end may pass the file's.
            Advice::DontNeed if end == self.len() => {
                (from.next_multiple_of(page), end.next_multiple_of(page))
            }
            Advice::DontNeed => (from.next_multiple_of(page), end / page * page),
            _ => (from / page * page, end.next_multiple_of(page)),
        };
        if start >= end {
            return Ok(());
        }
        // SAFETY: the base is page-aligned and start..end lies within the mapping's pages. None of
        // the advice changes what the bytes read as: the map is of a file and never written.
        let rc =
            unsafe { libc::madvise(self.as_ptr().add(start).cast_mut().cast(), end - start, flag) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.region {
            Region::Empty => &[],
            Region::Plain(map) => map,
            #[cfg(target_os = "linux")]
            Region::Aligned(a) => a.bytes(),
        }
    }
}

/// Opens a file of known length that can be mapped.
fn open_regular(path: &Path) -> io::Result<(File, usize)> {
    // Looked at before it is opened: opening a pipe waits for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let len = usize::try_from(len)
        .ok()
        .filter(|&n| isize::try_from(n).is_ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "too large to map"))?;
    Ok((file, len))
}

#[cfg(unix)]
fn advice_flag(advice: Advice) -> Option<libc::c_int> {
    match advice {
        Advice::Sequential => Some(libc::MADV_SEQUENTIAL),
        Advice::WillNeed => Some(libc::MADV_WILLNEED),
        Advice::DontNeed => Some(libc::MADV_DONTNEED),
        #[cfg(target_os = "linux")]
        Advice::HugePage => Some(libc::MADV_HUGEPAGE),
        #[cfg(target_os = "linux")]
        Advice::Populate => Some(libc::MADV_POPULATE_READ),
        #[cfg(not(target_os = "linux"))]
        Advice::HugePage | Advice::Populate => None,
    }
}

#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
}

/// A file mapped inside a larger reserved region, at its first 2 MiB border.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Aligned {
    /// Start and length of the reserved region, which contains the file's pages.
    reserved: *mut libc::c_void,
    reserved_len: usize,
    /// Start and length of the file's bytes.
    base: *const u8,
    len: usize,
}

#[cfg(target_os = "linux")]
impl Aligned {
    /// Maps `len > 0` bytes of `file`. Address space is reserved first and the file mapped over a
    /// part of it, since mmap alone promises no more than page alignment.
    fn map(file: &File, len: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let reserved_len = len
            .checked_next_multiple_of(page_size())
            .and_then(|n| n.checked_add(HUGE_PAGE))
            .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
        let reserved = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved_len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let skip = reserved.align_offset(HUGE_PAGE).min(HUGE_PAGE);
        // SAFETY: skip + len lies within the region reserved above, which nothing else uses, so
        // MAP_FIXED replaces reserved pages only. The address is a multiple of the page size. That
        // the file may be shortened by others is in the module's notes.
        let base = unsafe {
            libc::mmap(
                reserved.byte_add(skip),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            // SAFETY: the region was reserved above and is referred to by nobody.
            unsafe { libc::munmap(reserved, reserved_len) };
            return Err(error);
        }
        Ok(Self { reserved, reserved_len, base: base.cast_const().cast(), len })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: base..base + len is mapped readable until drop, and never written through here.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: the region was reserved by `map`, is owned by self, and no slice outlives self.
        unsafe { libc::munmap(self.reserved, self.reserved_len) };
    }
}

// SAFETY: the pages are read-only and owned by this value alone; no thread can change them
// through it, and unmapping takes `&mut self`.
#[cfg(target_os = "linux")]
unsafe impl Send for Aligned {}
// SAFETY: as above: shared access only reads.
#[cfg(target_os = "linux")]
unsafe impl Sync for Aligned {}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVICE: [Advice; 5] = [
        Advice::Sequential,
        Advice::WillNeed,
        Advice::HugePage,
        Advice::DontNeed,
        Advice::Populate,
    ];

    #[test]
    fn both_ways_of_mapping_read_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let data: Vec<u8> = (0..3_000_017u32).map(|i| ((i * 7) >> 3) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let plain = Mapping::open(&path).unwrap();
        let huge = Mapping::open_huge_aligned(&path).unwrap();
        assert!(*plain == *data);
        assert!(*huge == *data);
        assert_eq!(plain.as_ptr().align_offset(64), 0);
        #[cfg(target_os = "linux")]
        assert_eq!(huge.as_ptr().align_offset(HUGE_PAGE), 0);
        for map in [&plain, &huge] {
            for advice in ADVICE {
                for range in [
                    0..0,
                    0..data.len(),
                    5..4097,
                    4096..usize::MAX,
                    9..9,
                    usize::MAX..usize::MAX,
                    5_000_000..6_000_000,
                ] {
                    let _ = map.advise(advice, range);
                }
            }
            assert!(**map == *data, "advice changes no bytes");
        }
    }

    #[test]
    fn empty_missing_and_special_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        for open in [Mapping::open, Mapping::open_huge_aligned] {
            let map = open(&path).unwrap();
            assert!(map.is_empty());
            for advice in ADVICE {
                map.advise(advice, 0..10).unwrap();
            }
            assert!(open(&dir.path().join("missing")).is_err());
            assert!(open(dir.path()).is_err(), "a folder is no file");
        }
    }
}
