//! The worker that was last given the longest beginning of the prompt, whose KV it probably still
//! has, unless that has too much to do; then the one with the least.
//!
//! "Too much" compares with the lightest worker: more than [`PrefixAffine::slack`] requests above it
//! and more than [`PrefixAffine::factor_percent`] of its load. (Both conditions, as routers of
//! several servers have them: the one alone would scatter a quiet system, the other never a busy
//! one.)

use crate::{Placement, RequestView, WorkerView, least_loaded::lightest, memory::Memory};

/// Beginnings that are remembered.
const PREFIXES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct PrefixAffine {
    /// Requests above the lightest worker's from which it may be too much.
    pub slack: u32,
    /// Percent of the lightest worker's load from which it may be too much.
    pub factor_percent: u32,
    prefixes: Memory,
}

impl Default for PrefixAffine {
    fn default() -> Self {
        Self { slack: 8, factor_percent: 150, prefixes: Memory::new(PREFIXES) }
    }
}

impl PrefixAffine {
    /// Whether a worker has too much to do beside the lightest.
    fn too_much(&self, worker: &WorkerView, least: &WorkerView) -> bool {
        let per = |w: &WorkerView, other: &WorkerView| {
            u64::from(w.requests) * u64::from(other.weight.max(1))
        };
        let (own, least_load) = (per(worker, least), per(least, worker));
        let slack = u64::from(self.slack) * u64::from(worker.weight) * u64::from(least.weight);
        own > least_load + slack && own * 100 > least_load * u64::from(self.factor_percent)
    }
}

impl Placement for PrefixAffine {
    fn place(&mut self, request: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize> {
        let least = lightest(workers)?;
        let known = request.prefixes.iter().rev().find_map(|&key| {
            self.prefixes
                .get(key)
                .map(|w| w as usize)
                .filter(|&w| workers.get(w).is_some_and(|w| w.accepting))
        });
        let chosen =
            known.filter(|&w| !self.too_much(&workers[w], &workers[least])).unwrap_or(least);
        for &key in request.prefixes {
            self.prefixes.put(key, chosen as u32);
        }
        Some(chosen)
    }

    fn looks_at_prefix(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_wins_until_its_worker_is_overloaded() {
        let mut workers = vec![WorkerView::default(); 3];
        let mut policy = PrefixAffine::default();
        let mut place = |keys: &[u64], workers: &[WorkerView]| {
            policy.place(&RequestView { prefixes: keys, ..RequestView::default() }, workers)
        };
        assert_eq!(place(&[1, 2, 3], &workers), Some(0));
        workers[0].requests = 4;
        assert_eq!(place(&[9], &workers), Some(1));
        workers[1].requests = 1;
        assert_eq!(place(&[1, 2, 4], &workers), Some(0), "two blocks of it were there");
        assert_eq!(place(&[9, 10], &workers), Some(1));
        workers[0].requests = 50;
        assert_eq!(place(&[1, 2, 3], &workers), Some(2), "it moves to the least loaded");
        workers[0].requests = 0;
        assert_eq!(place(&[1, 2, 3, 5], &workers), Some(2), "and stays there");
    }
}
