//! Whether a mapping got huge pages: what was asked for is a hint, and bandwidth depends on it.

use super::Mapping;

impl Mapping {
    /// How many bytes of the mapping the kernel serves with huge pages now, by
    /// `/proc/self/smaps`; `None` where the system does not say. Pages count once they are
    /// touched.
    pub fn huge_page_bytes(&self) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.as_ptr().addr() as u64;
        huge_bytes(&smaps, start, start + self.len() as u64)
    }
}

/// Sums what maps that begin within `start..end` have in huge pages.
fn huge_bytes(smaps: &str, start: u64, end: u64) -> Option<u64> {
    let (mut inside, mut total, mut known) = (false, 0u64, false);
    for line in smaps.lines() {
        let (head, rest) = line.split_once([' ', ':'])?;
        if let Some((from, _)) = head.split_once('-') {
            inside = u64::from_str_radix(from, 16).is_ok_and(|from| (start..end).contains(&from));
        } else if inside && (head == "FilePmdMapped" || head == "ShmemPmdMapped") {
            let kib = rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
            total = total.checked_add(kib.checked_mul(1024)?)?;
            known = true;
        }
    }
    known.then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 r--s 00000000 08:01 123 /cache/x.pack
Size:               4096 kB
FilePmdMapped:      2048 kB
VmFlags: rd sh mr mw me
7f0000400000-7f0000600000 r--s 00400000 08:01 123 /cache/x.pack
FilePmdMapped:      1024 kB
7f0000700000-7f0000800000 rw-p 00000000 00:00 0
FilePmdMapped:      4096 kB
";

    #[test]
    fn only_the_mapping_counts() {
        let base = 0x7f00_0000_0000;
        assert_eq!(huge_bytes(SMAPS, base, base + 0x60_0000), Some(3 << 20));
        assert_eq!(huge_bytes(SMAPS, base, base + 0x40_0000), Some(2 << 20));
        assert_eq!(huge_bytes(SMAPS, 0, 1), None);
        assert_eq!(huge_bytes("", base, base + 1), None);
    }

    #[test]
    fn a_small_file_has_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"small").unwrap();
        let map = Mapping::open_huge_aligned(&dir.path().join("f")).unwrap();
        assert!(matches!(map.huge_page_bytes(), None | Some(0)));
    }
}
