//! The worker with the least to do; of equals, the first.

use crate::{Placement, RequestView, WorkerView};

/// See the module.
#[derive(Debug, Default)]
pub struct LeastLoaded;

/// The lightest of the workers that accept.
pub(crate) fn lightest(workers: &[WorkerView]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (place, worker) in workers.iter().enumerate() {
        if worker.accepting && best.is_none_or(|b| worker.lighter_than(&workers[b])) {
            best = Some(place);
        }
    }
    best
}

impl Placement for LeastLoaded {
    fn place(&mut self, _: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize> {
        lightest(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_then_the_first() {
        let view = |requests, prompt_tokens| WorkerView {
            requests,
            prompt_tokens,
            ..WorkerView::default()
        };
        let place = |w: &[WorkerView]| LeastLoaded.place(&RequestView::default(), w);
        assert_eq!(place(&[view(3, 0), view(1, 9), view(1, 8), view(1, 8)]), Some(2));
        assert_eq!(place(&[view(2, 0), view(2, 0)]), Some(0));
    }
}
