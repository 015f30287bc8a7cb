//! The worker that had the session's turn before, as long as it takes requests; what has no session,
//! or no such worker, goes to the one with the least to do.

use crate::{Placement, RequestView, WorkerView, least_loaded::lightest, memory::Memory};

/// Sessions that are remembered.
const SESSIONS: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct SessionSticky {
    sessions: Memory,
}

impl Default for SessionSticky {
    fn default() -> Self {
        Self { sessions: Memory::new(SESSIONS) }
    }
}

impl Placement for SessionSticky {
    fn place(&mut self, request: &RequestView<'_>, workers: &[WorkerView]) -> Option<usize> {
        let Some(session) = request.session else { return lightest(workers) };
        let before = self.sessions.get(session.0).map(|w| w as usize);
        let chosen = before
            .filter(|&w| workers.get(w).is_some_and(|w| w.accepting))
            .or_else(|| lightest(workers))?;
        self.sessions.put(session.0, chosen as u32);
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_units::SessionId;

    #[test]
    fn a_session_stays_until_its_worker_leaves() {
        let mut workers = vec![WorkerView::default(); 3];
        let mut policy = SessionSticky::default();
        let turn = RequestView { session: Some(SessionId(8)), ..RequestView::default() };
        assert_eq!(policy.place(&turn, &workers), Some(0));
        workers[0].requests = 100;
        assert_eq!(policy.place(&turn, &workers), Some(0));
        assert_eq!(policy.place(&RequestView::default(), &workers), Some(1));
        workers[0].accepting = false;
        assert_eq!(policy.place(&turn, &workers), Some(1));
        workers[0] = WorkerView::default();
        assert_eq!(policy.place(&turn, &workers), Some(1), "it has moved, and stays");
    }
}
