//! How many threads this process should run on: the physical cores that it may use, and no more
//! than its CPU quota is worth.

use std::collections::BTreeSet;

/// The default number of threads. Affinity and cgroup quota bound it (through the standard
/// library), and threads of one core count once, since they share its arithmetic units.
pub fn default_threads() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(logical, |cores| cores.min(logical)).max(1)
}

/// Physical cores among those that this process may run on, where the system tells.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = BTreeSet::new();
    for cpu in parse_cpu_list(allowed)? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        // A core's sibling list is the same for each of its threads, and so names the core.
        cores.insert(std::fs::read_to_string(path).ok()?);
    }
    Some(cores.len()).filter(|&n| n > 0)
}

/// Reads lists such as `0-3,8,10-11`.
fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("\t0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list("5"), Some(vec![5]));
        for bad in ["", "x", "3-1", "0-", "0-4294967295"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_default_is_within_what_is_available() {
        let logical = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=logical).contains(&default_threads()));
    }
}
