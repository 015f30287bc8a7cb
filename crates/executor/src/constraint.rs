//! What a grammar allows a choice to go on with, computed while the model runs.
//!
//! What is allowed after some tokens is known as soon as they are, a whole forward pass before it is
//! needed. A thread of its own computes it meanwhile; where it has not come to it, whoever needs it
//! does. Both ways give the same.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

use dunlin_tokenizer::grammar::{Grammar, GrammarError, GrammarMatcher};

/// One choice's way through its grammar.
#[derive(Debug)]
pub(crate) struct Constraint(Arc<Mutex<GrammarMatcher>>);

impl Clone for Constraint {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }
}

impl Constraint {
    /// At the start of a text.
    pub(crate) fn new(grammar: &Grammar) -> Self {
        Self(Arc::new(Mutex::new(grammar.matcher())))
    }

    fn lock(&self) -> MutexGuard<'_, GrammarMatcher> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` with the tokens that may follow the choice's tokens.
    pub(crate) fn with_allowed<R>(
        &self,
        tokens: &[u32],
        with: impl FnOnce(Result<&[u32], GrammarError>) -> R,
    ) -> R {
        with(self.lock().allowed(tokens))
    }

    /// Whether the choice's tokens make a complete text that nothing can follow.
    pub(crate) fn completed_by(&self, tokens: &[u32]) -> bool {
        let mut matcher = self.lock();
        // What is wrong with the text is told when it is to go on.
        matcher.follow(tokens).is_ok() && matcher.is_complete()
    }
}

/// The thread that computes ahead. It is started with the first constraint.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
}

/// A matcher, and the choice's tokens after which something is wanted.
type Job = (Arc<Mutex<GrammarMatcher>>, Vec<u32>);

impl Ahead {
    /// Has it computed what may follow these tokens of a choice.
    pub(crate) fn prepare(&mut self, constraint: &Constraint, tokens: &[u32]) {
        if self.thread.is_none() {
            let (jobs, inbox) = channel::<Job>();
            let thread = std::thread::Builder::new().name("dunlin-grammar".into());
            let run = move || {
                for (matcher, tokens) in inbox {
                    let mut matcher = matcher.lock().unwrap_or_else(PoisonError::into_inner);
                    // Whoever needs it is told of errors.
                    let _ = matcher.allowed(&tokens);
                }
            };
            // Without a thread nothing is computed ahead.
            self.thread = thread.spawn(run).ok().map(|thread| (jobs, thread));
        }
        if let Some((jobs, _)) = &self.thread {
            // It lives as long as its jobs' sender.
            let _ = jobs.send((constraint.0.clone(), tokens.to_vec()));
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            // A panic of its own ended no request.
            let _ = thread.join();
        }
    }
}
