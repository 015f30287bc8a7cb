//! A core, its checker and an executor, with what is expected of every request.

use std::collections::BTreeMap;

use dunlin_kvcache::TenantId;
use dunlin_scheduler::{
    CoreConfig, Effects, End, Event, Finished, SessionOp, Submission, checker::CheckedCore,
};
use dunlin_units::{RequestId, SessionId, Time};

use super::{NullExecutor, Rules};

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub finished: Finished,
    /// Tokens by choice.
    pub outputs: Vec<Vec<u32>>,
    pub at: Time,
}

/// See the module. Every call is checked; a fault panics.
#[derive(Debug)]
pub struct World {
    pub checked: CheckedCore,
    pub executor: NullExecutor,
    pub now: Time,
    pub effects: Effects,
    pub requests: BTreeMap<RequestId, Submission>,
    outputs: BTreeMap<RequestId, Vec<Vec<u32>>>,
    /// Requests that are over, but for rejected ones.
    pub over: BTreeMap<RequestId, Outcome>,
    pub rejected: u64,
    /// Every call, with what came of it, where they are kept.
    pub log: Option<Vec<(Time, Vec<Event>, Effects)>>,
    config: CoreConfig,
}

impl World {
    pub fn new(config: CoreConfig, rules: Rules) -> Self {
        Self {
            checked: CheckedCore::new(config.clone()).expect("settings that make sense"),
            executor: NullExecutor::new(rules),
            now: Time(0),
            effects: Effects::default(),
            requests: BTreeMap::new(),
            outputs: BTreeMap::new(),
            over: BTreeMap::new(),
            rejected: 0,
            log: None,
            config,
        }
    }

    /// One call of `advance`, checked and carried out.
    pub fn advance(&mut self, mut events: Vec<Event>) {
        for event in &events {
            if let Event::Submit(submission) = event {
                self.requests.insert(submission.request, (**submission).clone());
            }
        }
        let kept = self.log.is_some().then(|| events.clone());
        let trace = std::env::var_os("DUNLIN_TRACE").is_some();
        if trace {
            eprintln!("{} <- {events:?}", self.now.0);
        }
        let mut effects = std::mem::take(&mut self.effects);
        let result = self.checked.advance(self.now, &mut events, &mut effects);
        if trace {
            eprintln!("{} -> {effects:?}", self.now.0);
        }
        if let Err(violation) = result {
            panic!("{violation}\nevents: {kept:?}\neffects: {effects:?}");
        }
        if let Err(problem) = self.checked.core.check() {
            panic!("at {}: {problem}\neffects: {effects:?}", self.now.0);
        }
        self.executor.take(self.now, &effects);
        self.note(&effects);
        if let (Some(log), Some(events)) = (&mut self.log, kept) {
            log.push((self.now, events, effects.clone()));
        }
        self.effects = effects;
    }

    fn note(&mut self, effects: &Effects) {
        for output in &effects.outputs {
            let choices = self.outputs.entry(output.request).or_default();
            if choices.len() <= output.choice as usize {
                choices.resize(output.choice as usize + 1, Vec::new());
            }
            choices[output.choice as usize].push(output.token);
        }
        for finished in &effects.finished {
            if matches!(finished.ends[..], [End::Rejected(_)]) {
                self.rejected += 1;
                continue;
            }
            let id = finished.request;
            let submission = &self.requests[&id];
            let mut outputs = self.outputs.remove(&id).unwrap_or_default();
            outputs.resize(submission.choices as usize, Vec::new());
            self.check_outputs(submission, finished, &outputs);
            let outcome = Outcome { finished: finished.clone(), outputs, at: self.now };
            assert!(self.over.insert(id, outcome).is_none(), "{id} finished twice");
        }
    }

    /// Outputs are a function of request, choice and position, whatever else has happened.
    fn check_outputs(&self, s: &Submission, finished: &Finished, outputs: &[Vec<u32>]) {
        let rules = &self.executor.rules;
        let prompt_end = (finished.bill.context_tokens + finished.bill.prompt_tokens) as u32;
        assert_eq!(finished.ends.len(), s.choices as usize);
        let clip = self.config.clip_tokens.unwrap_or(u32::MAX);
        for (choice, (end, tokens)) in (0..).zip(finished.ends.iter().zip(outputs)) {
            let got = tokens.len() as u32;
            let right = (0..got)
                .map(|i| rules.token(s.request, choice, prompt_end + i))
                .collect::<Vec<_>>();
            assert_eq!(*tokens, right, "{} choice {choice}", s.request);
            let stop = rules.stops_after(s.request, choice).unwrap_or(u32::MAX);
            let whole = match end {
                End::Stop => Some(stop),
                End::Length => Some(s.max_tokens),
                End::Clipped => Some(clip),
                _ => None,
            };
            assert!(
                whole.is_none_or(|w| w == got) && got <= stop.min(s.max_tokens).min(clip),
                "{} choice {choice} ended with {end:?} after {got} tokens",
                s.request
            );
        }
    }

    /// What ends until `to` happens, each at its time, and it is `to`.
    pub fn pass_until(&mut self, to: Time) {
        while let Some(next) = self.next().filter(|&t| t <= to) {
            self.now = self.now.max(next);
            let mut events = Vec::new();
            self.executor.ended(self.now, &mut events);
            self.advance(events);
        }
        self.now = to;
    }

    /// When something happens next without anything from outside.
    pub fn next(&self) -> Option<Time> {
        let deadline = self.checked.core.next_deadline();
        self.executor.next().into_iter().chain(deadline).min()
    }

    /// Runs until nothing is left to do.
    pub fn drain(&mut self) {
        for _ in 0..200_000 {
            let Some(next) = self.next() else {
                assert!(!self.checked.core.is_busy(), "busy, and nothing happens any more");
                return;
            };
            self.pass_until(next);
        }
        panic!("it does not end: {:#?}", self.checked.core);
    }

    /// Runs until nothing is left to do, ends the sessions, and looks for anything that is left.
    pub fn end(&mut self, sessions: impl Iterator<Item = SessionId>) {
        self.drain();
        let close: Vec<Event> = sessions
            .filter(|&s| self.checked.core.session_tokens(s).is_some())
            .map(|s| Event::Session(SessionOp::Close(s)))
            .collect();
        self.advance(close);
        self.drain();
        let core = &self.checked.core;
        let load = core.load();
        let blocks = self.config.cache.block_count;
        assert_eq!(load.available_blocks, blocks as u64, "blocks leaked");
        assert_eq!((load.waiting, load.running, load.loading, load.sessions), (0, 0, 0, 0));
        assert!((0..blocks as u32).all(|b| core.kv().reference_count(b) == 0));
        assert_eq!(self.requests.len() as u64, self.over.len() as u64 + self.rejected);
    }

    pub fn set_budget(&mut self, tenant: u32, blocks: usize) {
        self.checked.core.set_budget(TenantId(tenant), Some(blocks));
    }
}
