//! Mapped files that others shorten.
//!
//! A process that reads a page which its mapped file no longer has is sent `SIGBUS`, which ends it.
//! Nothing can give the bytes back, but two things can be done about it: [`all_whole`] sees a file
//! that was shortened before its bytes are needed, and [`explain_bus_errors`] says which file it was
//! where they already were.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

/// More mappings than these are not named by [`explain_bus_errors`].
const SLOTS: usize = 64;
/// The most bytes of a file's name that are told.
const NAME: usize = 256;

/// Where a mapping lies, and its file's name, for a signal handler: it may take no lock and no memory.
struct Slot {
    start: AtomicUsize,
    /// 0 where the slot is free.
    end: AtomicUsize,
    name_len: AtomicUsize,
    name: [AtomicU8; NAME],
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name_len: AtomicUsize::new(0),
        name: [const { AtomicU8::new(0) }; NAME],
    }
}; SLOTS];

/// All files that are mapped.
static WATCHED: Mutex<Vec<Weak<Watched>>> = Mutex::new(Vec::new());

/// A file that is mapped.
#[derive(Debug)]
pub(super) struct Watched {
    file: File,
    len: u64,
    slot: Option<usize>,
}

fn watched() -> MutexGuard<'static, Vec<Weak<Watched>>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Watches a file whose `len` first bytes are mapped at `start`.
    pub(super) fn new(file: File, path: &Path, start: *const u8, len: usize) -> Arc<Self> {
        let mut all = watched();
        all.retain(|other| other.strong_count() > 0);
        // Slots are taken and given back under the lock alone.
        let slot = TABLE.iter().position(|slot| slot.end.load(Ordering::Relaxed) == 0);
        if let Some(slot) = slot.map(|at| &TABLE[at]) {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let name = &name.as_bytes()[..name.len().min(NAME)];
            for (place, &byte) in slot.name.iter().zip(name) {
                place.store(byte, Ordering::Relaxed);
            }
            slot.name_len.store(name.len(), Ordering::Relaxed);
            slot.start.store(start.addr(), Ordering::Relaxed);
            slot.end.store(start.addr() + len, Ordering::Release);
        }
        let new = Arc::new(Self { file, len: len as u64, slot });
        all.push(Arc::downgrade(&new));
        new
    }

    /// Whether the file has the bytes that are mapped. A file that cannot be asked is given credit.
    pub(super) fn is_whole(&self) -> bool {
        self.file.metadata().map_or(true, |now| now.len() >= self.len)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _all = watched();
        if let Some(slot) = self.slot {
            TABLE[slot].end.store(0, Ordering::Release);
        }
    }
}

/// Whether all files that are mapped are at least as long as when they were mapped. A file that was
/// removed, or replaced by another of its name, is whole: what is mapped stays. Takes a microsecond
/// a file.
pub fn all_whole() -> bool {
    let all: Vec<_> = watched().iter().filter_map(Weak::upgrade).collect();
    all.iter().all(|file| file.is_whole())
}

/// From now on a process that reads what a mapped file no longer has says so, names the file, and
/// ends with exit code 1. Bus errors of other origin end it as before.
///
/// # Errors
/// The system refuses the handler.
#[cfg(unix)]
pub fn explain_bus_errors() -> std::io::Result<()> {
    handler::install()
}

/// Nothing is installed on systems without such signals.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn explain_bus_errors() -> std::io::Result<()> {
    Ok(())
}

#[cfg(unix)]
mod handler {
    use std::{io, mem::MaybeUninit, sync::OnceLock, sync::atomic::Ordering};

    use super::{NAME, Slot, TABLE};

    const BEFORE: &[u8] = b"dunlin: the mapped file ";
    const AFTER: &[u8] =
        b" was shortened, or its disk failed: what it held is lost. Replace model \
        files by renaming, never by writing into them.\n";

    /// What was there before.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install() -> io::Result<()> {
        let mut previous = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: a null pointer for the new action only asks; on success the old one is written.
        let previous = unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            previous.assume_init()
        };
        // Installed once: the handler must not find itself as what was there before.
        if PREVIOUS.set(previous).is_err() {
            return Ok(());
        }
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_error;
        // SAFETY: all zeros is a valid sigaction, with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // On the stack that std keeps for signals, as its own handler.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what is
        // allowed in handlers: atomic loads, sigaction, write and _exit.
        let rc = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    extern "C" fn on_bus_error(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _: *mut libc::c_void,
    ) {
        // SAFETY: SA_SIGINFO passes a valid record, and for SIGBUS its address is set.
        let address = unsafe { (*info).si_addr() }.addr();
        let holds = |slot: &&Slot| {
            let end = slot.end.load(Ordering::Acquire);
            address < end && address >= slot.start.load(Ordering::Relaxed)
        };
        if let Some(slot) = TABLE.iter().find(holds) {
            let mut name = [0; NAME];
            let len = slot.name_len.load(Ordering::Relaxed).min(NAME);
            for (byte, place) in name.iter_mut().zip(&slot.name) {
                *byte = place.load(Ordering::Relaxed);
            }
            for text in [BEFORE, &name[..len], AFTER] {
                // SAFETY: the pointer and the length are of one slice. Nothing can be done about an
                // error.
                unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
            }
            // SAFETY: ends the process without running anything.
            unsafe { libc::_exit(1) };
        }
        // Not ours: the same instruction faults again, under what was there before.
        if let Some(previous) = PREVIOUS.get() {
            // SAFETY: an action that sigaction itself has given out.
            unsafe { libc::sigaction(signal, previous, std::ptr::null_mut()) };
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Command};

    use super::*;
    use crate::source::Mapping;

    const PAGES: usize = 64 << 10;

    fn shorten(path: &Path, len: u64) {
        File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    #[test]
    fn shortened_files_are_seen_and_vanished_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("whole");
        std::fs::write(&path, vec![7; PAGES]).unwrap();
        for open in [Mapping::open, Mapping::open_huge_aligned] {
            let map = open(&path).unwrap();
            let whole = || map.is_whole();
            assert!(whole());
            shorten(&path, PAGES as u64 - 1);
            assert!(!whole(), "a byte less");
            std::fs::write(&path, vec![7; PAGES + 1]).unwrap();
            assert!(whole(), "a byte more");
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, b"another").unwrap();
            assert!(whole() && map[PAGES - 1] == 7, "its name is another's");
            std::fs::write(&path, vec![7; PAGES]).unwrap();
        }
    }

    /// The other half of the next test, in a process of its own.
    #[test]
    fn reads_what_was_lost() {
        let Some(path) = std::env::var_os("DUNLIN_TEST_LOST_FILE") else { return };
        let path = Path::new(&path);
        explain_bus_errors().unwrap();
        explain_bus_errors().unwrap();
        let map = Mapping::open_huge_aligned(path).unwrap();
        assert!(all_whole());
        shorten(path, 10);
        assert!(!all_whole());
        if std::env::var_os("DUNLIN_TEST_FOREIGN").is_some() {
            drop(map);
            // A bus error that no mapping of ours has to do with.
            // SAFETY: a mapping of the shortened file, read where the file has nothing.
            let lost = unsafe {
                std::fs::write(path, vec![7; PAGES]).unwrap();
                let map = memmap2::Mmap::map(&File::open(path).unwrap()).unwrap();
                shorten(path, 0);
                map[PAGES / 2]
            };
            unreachable!("{lost}");
        }
        unreachable!("{}", map[PAGES - 1]);
    }

    #[test]
    fn a_lost_page_names_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.pack");
        let run = |foreign: bool| {
            std::fs::write(&path, vec![7; PAGES]).unwrap();
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "source::watch::tests::reads_what_was_lost", "--nocapture"]);
            command.env("DUNLIN_TEST_LOST_FILE", &path);
            if foreign {
                command.env("DUNLIN_TEST_FOREIGN", "1");
            }
            command.output().unwrap()
        };
        let ran = run(false);
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{told}");
        assert!(told.contains("dunlin: the mapped file model.pack was shortened"), "{told}");
        assert!(!told.contains(&*dir.path().to_string_lossy()), "no path: {told}");
        let ran = run(true);
        assert_eq!(ran.status.signal(), Some(libc::SIGBUS));
        assert!(!String::from_utf8_lossy(&ran.stderr).contains("the mapped file"));
    }
}
