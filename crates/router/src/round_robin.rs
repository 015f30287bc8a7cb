//! The next in turn, skipping those that take no requests.

use crate::{Placement, RequestView, WorkerView};

/// See the module.
#[derive(Debug, Default)]
pub struct RoundRobin {
    next: usize,
}

impl Placement for RoundRobin {
    fn place(&mut self, _: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize> {
        let count = workers.len();
        let chosen = (0..count).map(|i| (self.next + i) % count).find(|&w| workers[w].accepting)?;
        self.next = (chosen + 1) % count;
        Some(chosen)
    }

    fn looks_at_load(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_in_turn() {
        let mut workers = vec![WorkerView::default(); 4];
        workers[2].accepting = false;
        let mut policy = RoundRobin::default();
        let request = RequestView::default();
        let chosen: Vec<_> = (0..7).map(|_| policy.place(&request, &workers).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 3, 0, 1, 3, 0]);
        // One that has come back has its turn again; one fewer leaves no gap.
        workers[2].accepting = true;
        assert_eq!(policy.place(&request, &workers), Some(1));
        assert_eq!(policy.place(&request, &workers), Some(2));
        assert_eq!(policy.place(&request, &workers[..2]), Some(1));
    }
}
