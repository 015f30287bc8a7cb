//! What the process takes of the machine, as Linux tells it; nothing elsewhere.

use std::fs;

/// Kernels count processor time for programs in hundredths of a second, on every architecture that
/// runs models.
const TICKS_PER_SECOND: f64 = 100.0;

/// What the process takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Process {
    /// Bytes of memory that are in RAM, mapped files included.
    pub resident_bytes: u64,
    /// Seconds of processor time of all its threads since it began.
    pub cpu_seconds: f64,
    /// Files and connections that are open.
    pub open_files: u64,
}

impl Process {
    /// This process now.
    pub fn now() -> Option<Self> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Some(Self {
            resident_bytes: resident_bytes(&status)?,
            cpu_seconds: cpu_seconds(&stat)?,
            // The one that lists them is among them.
            open_files: (fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1),
        })
    }
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The program's name comes before and may hold anything, parentheses too.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_texts_are_read() {
        let status = "Name:\tdunlin\nVmHWM:\t   99 kB\nVmRSS:\t   12 kB\n";
        assert_eq!(resident_bytes(status), Some(12 << 10));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 9 0 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        for text in ["", "VmRSS: kB", "VmRSS: x kB", "7 (a) S 1"] {
            assert_eq!((resident_bytes(text), cpu_seconds(text)), (None, None), "{text}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_holds_memory_and_files() {
        let before = Process::now().unwrap();
        assert!(before.resident_bytes > 100_000 && before.open_files >= 3, "{before:?}");
        let file = fs::File::open("/proc/self/stat").unwrap();
        // Other tests open and close files meanwhile.
        assert!(Process::now().is_some_and(|now| now.open_files >= 4));
        drop(file);
    }
}
