//! One choice's way through its grammar.
//!
//! Most choices need no more of the grammar than whether it allows one token
//! ([`crate::sampler::Sampler::sample_following`]). Those that need all allowed tokens have them
//! computed while the model runs, if a core has nothing else to do: what is allowed after some tokens
//! is known as soon as they are, a whole forward pass before it is needed. Where nobody has come to
//! it, whoever needs it does. All ways give the same.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
};

use dunlin_tokenizer::grammar::{ForcedText, Grammar, GrammarMatcher};

/// One choice's way through its grammar.
#[derive(Debug)]
pub(crate) struct Constraint {
    matcher: Arc<Mutex<GrammarMatcher>>,
    grammar: Grammar,
    /// What must come next, once that was asked for.
    forced: Mutex<Option<ForcedText>>,
}

/// Clones part from one another.
impl Clone for Constraint {
    fn clone(&self) -> Self {
        let matcher = Arc::new(Mutex::new(self.lock().clone()));
        Self { matcher, grammar: self.grammar.clone(), forced: Mutex::default() }
    }
}

impl Constraint {
    /// At the start of a text.
    pub(crate) fn new(grammar: &Grammar) -> Self {
        let matcher = Arc::new(Mutex::new(grammar.matcher()));
        Self { matcher, grammar: grammar.clone(), forced: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, GrammarMatcher> {
        self.matcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `with` with the choice's matcher, when nobody else has it.
    pub(crate) fn with_matcher<R>(&self, with: impl FnOnce(&mut GrammarMatcher) -> R) -> R {
        with(&mut self.lock())
    }

    /// So many tokens at most that probably come next since the grammar leaves no choice. Each call's
    /// tokens begin with those of the call before.
    pub(crate) fn forced_after(&self, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut forced = self.forced.lock().unwrap_or_else(PoisonError::into_inner);
        forced.get_or_insert_with(|| self.grammar.forced_text()).after(tokens, most)
    }

    /// Whether the choice's tokens make a complete text that nothing can follow.
    pub(crate) fn completed_by(&self, tokens: &[u32]) -> bool {
        // What is wrong with the text is told when it is to go on.
        self.lock().is_completed_by(tokens).unwrap_or(false)
    }
}

/// The thread that computes ahead. It is started with the first job.
#[derive(Debug)]
pub(crate) struct Ahead {
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
    /// A core is left over. Threads of a step that wait for each other in loops lose more to one that
    /// takes a core from them than it has to do.
    idle_core: bool,
}

/// A matcher, and the choice's tokens after which something is wanted.
type Job = (Arc<Mutex<GrammarMatcher>>, Vec<u32>);

impl Ahead {
    /// For a model that runs on so many threads.
    pub(crate) fn beside(threads: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { thread: None, idle_core: cores > threads }
    }

    /// Whether it computes anything.
    pub(crate) fn is_on(&self) -> bool {
        self.idle_core
    }

    /// Has it computed what may follow these tokens of a choice.
    pub(crate) fn prepare(&mut self, constraint: &Constraint, tokens: &[u32]) {
        if self.thread.is_none() {
            let (jobs, inbox) = channel::<Job>();
            let builder = thread::Builder::new().name("dunlin-grammar".into());
            let run = move || {
                for (matcher, tokens) in inbox {
                    let mut matcher = matcher.lock().unwrap_or_else(PoisonError::into_inner);
                    // Whoever needs it is told of errors.
                    let _ = matcher.allowed(&tokens);
                }
            };
            // Without a thread nothing is computed ahead.
            self.thread = builder.spawn(run).ok().map(|thread| (jobs, thread));
        }
        if let Some((jobs, _)) = &self.thread {
            // It lives as long as its jobs' sender.
            let _ = jobs.send((constraint.matcher.clone(), tokens.to_vec()));
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
