//! How far a replica may fall behind the others without anybody's missing news from it.
//!
//! News are ends of requests. An answer that lacks `n` tokens takes at least `n` more steps, whatever
//! else is delivered meanwhile, and the cost model knows the least that a step takes. So a replica
//! need not be run when its next step ends, but when its next request may end: a lower bound, which
//! is the conservative kind of parallel simulation (Chandy and Misra, "Distributed simulation", IEEE
//! TSE SE-5, 1979). The simulator may look at lengths of answers, which no policy can see, since what
//! it learns from them is only when to look again.

use dunlin_units::Time;

use super::{Job, NOBODY, Replica, Role, key};

impl Replica {
    /// No news come from here before this key, whatever may be delivered until then (which says its
    /// own, [`Replica::job_horizon`]); [`u64::MAX`] where nothing is going on.
    pub(crate) fn horizon(&self) -> u64 {
        let next = self.next_key();
        if !self.looks_ahead() || next == u64::MAX {
            return next;
        }
        let least = self.least_step_ns();
        // The first tokens come with the step in flight, or with one that begins at the next event.
        let first = self.steps.front().map_or(Time(next / 2).after(least), |step| step.done);
        // Those that wait outside the core come in only when one that is there has ended.
        let here = self.seqs.iter().filter(|s| s.slot != NOBODY.slot).map(|s| s.left).min();
        let end = here.map(|left| match u64::from(left).checked_sub(1) {
            Some(more) => key(first.after(least.saturating_mul(more)), false),
            // It wants nothing, and may be over whenever the core is called.
            None => next,
        });
        let coming = self.inbox.iter().map(|job| self.job_horizon(job));
        end.into_iter().chain(coming).min().unwrap_or(next).max(next)
    }

    /// No news come of this request before this key.
    pub(crate) fn job_horizon(&self, job: &Job) -> u64 {
        let wanted = job.request.output_tokens.saturating_sub(job.done_tokens);
        let prompt = job.request.prompt_tokens.saturating_add(job.done_tokens);
        let tokens = wanted.min(self.spec.output_limit(prompt));
        // It may be refused at once, or end without a step.
        if tokens == 0 || !self.looks_ahead() {
            return key(job.came, true);
        }
        key(job.came.after(self.least_step_ns().saturating_mul(tokens.into())), false)
    }

    /// Whether requests end with their last token and never otherwise, and a step gives a sequence
    /// one token at most.
    fn looks_ahead(&self) -> bool {
        let core = &self.spec.core;
        self.spec.role == Role::Mixed
            && self.spec.speculation.is_none()
            && core.clip_tokens.is_none()
            && (self.unfinished() as u64) < u64::from(core.max_waiting)
            && self.driver.core().next_deadline().is_none()
    }

    /// Nanoseconds that a step takes at least.
    fn least_step_ns(&self) -> u64 {
        self.step_ns(self.least_ns)
    }
}
