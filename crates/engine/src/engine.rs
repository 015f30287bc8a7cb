//! The driver: tells the core what happened, does what it decides, and turns both into results.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use dunlin_executor::{
    Executor, GenerationParams,
    drafter::{Drafter, store::StoreDrafter},
    text::{ChoiceText, TextOptions},
};
use dunlin_scheduler::{
    Core, Effects, Event as CoreEvent, Finished, Keep, Load, Output, SeqOp, StepKind, StepOutcome,
    StepPlan, Submission,
};
use dunlin_tensor::Backend;
use dunlin_tokenizer::Tokenizer;
use dunlin_units::{RequestId, StepId, Time};

use crate::{
    config::{EngineConfig, EngineError},
    energy::{EnergyMeter, EnergySource, Joules, split},
    job::{FlashOf, Job, forget_untold},
    recorder::{Header, Recorder},
    request::{Completion, ContextOverflow, Event, Request, RequestError},
    session::{Restoring, Sessions},
    tier::DiskTier,
};

/// The longest sleep while there is nothing to do but to wait: flags are looked at in between.
const NAP: Duration = Duration::from_millis(2);

/// Runs a model for any number of requests at once, on the caller's thread: [`Engine::step`] is one
/// turn of the core and the forward pass that it plans.
pub struct Engine<B> {
    pub(crate) core: Core,
    pub(crate) executor: Executor<B>,
    tokenizer: Option<Tokenizer>,
    pub(crate) config: EngineConfig,
    /// The most tokens of a sequence.
    context: usize,
    /// Time zero of the core's time.
    start: Instant,
    next_request: u64,
    pub(crate) jobs: BTreeMap<RequestId, Job>,
    /// What the core has not been told yet.
    events: Vec<CoreEvent>,
    /// The outcome of the last step, which it is told last.
    step_done: Option<CoreEvent>,
    pub(crate) effects: Effects,
    /// Steps planned and not run.
    planned: VecDeque<StepPlan>,
    /// What the core said of requests, and nobody was told yet.
    notices: VecDeque<Notice>,
    tier: Option<DiskTier>,
    meter: EnergyMeter,
    recorder: Option<Recorder>,
    pub(crate) sessions: Sessions,
    /// A session whose KV is about to be asked for.
    pub(crate) restoring: Option<Restoring>,
    /// Sessions with KV of their own made so far: each has a root of its own.
    pub(crate) prunes: u64,
    totals: Totals,
    /// Scratch: parts of a step's energy.
    shares: Vec<u64>,
}

/// Something that the core said of a request.
enum Notice {
    Output(Output),
    Finished(Box<Finished>),
}

/// What the engine has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Steps run.
    pub steps: u64,
    /// Token positions that went through the model.
    pub computed_tokens: u64,
    /// Nanoseconds spent in steps.
    pub step_ns: u64,
    /// Nanoseconds spent in the core.
    pub core_ns: u64,
    /// The most nanoseconds of one call of the core.
    pub core_max_ns: u64,
    /// Calls of the core.
    pub core_calls: u64,
    /// The energy of all steps.
    pub energy: Joules,
}

/// How an engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStats {
    /// What the core has to do.
    pub load: Load,
    /// What was done.
    pub totals: Totals,
}

impl<B: Backend> Engine<B> {
    /// An engine without requests. Sequences hold at most the configured context, and no more than
    /// the backend has KV for. Without a tokenizer there is no text, and stop strings are refused.
    ///
    /// # Errors
    /// Settings that make no sense, and files that cannot be made.
    pub fn new(
        backend: B,
        tokenizer: Option<Tokenizer>,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        Self::with_drafters(backend, tokenizer, config, Vec::new())
    }

    /// The same, with drafters that cost steps of their own.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_drafters(
        backend: B,
        tokenizer: Option<Tokenizer>,
        config: EngineConfig,
        drafters: Vec<Box<dyn Drafter>>,
    ) -> Result<Self, EngineError> {
        let kinds = drafters.iter().map(|d| (d.kind(), d.pass_permille(&backend))).collect();
        let core_config = config.core(&backend, kinds);
        let tier =
            match &config.disk {
                None => None,
                Some(_) if backend.kv_token_bytes() == 0 => return Err(EngineError::NoExport),
                Some(disk) => Some(DiskTier::new(&disk.folder, disk.blocks).map_err(|source| {
                    EngineError::DiskTier { path: disk.folder.clone(), source }
                })?),
            };
        let header = Header {
            config: core_config.clone(),
            budgets: config.budgets.clone(),
            model: config.model.name.clone(),
            dunlin: env!("CARGO_PKG_VERSION").into(),
        };
        let mut core = Core::new(core_config)?;
        for &(tenant, blocks) in &config.budgets {
            core.set_budget(tenant, usize::try_from(blocks).ok());
        }
        let recorder = config.record.as_ref().map(|path| {
            Recorder::create(path, &header)
                .map_err(|source| EngineError::Record { path: path.clone(), source })
        });
        // One block more than a sequence fills: a copy on write holds two for a moment.
        let kv_tokens = backend.block_count().saturating_sub(1) * backend.block_tokens();
        let context = config.context.min(kv_tokens);
        let mut executor = Executor::new(backend, config.threads);
        *executor.store_mut() = StoreDrafter::new(config.draft_store_tokens);
        drafters.into_iter().for_each(|drafter| executor.add_drafter(drafter));
        Ok(Self {
            core,
            tokenizer,
            context,
            start: Instant::now(),
            next_request: 0,
            jobs: BTreeMap::new(),
            events: Vec::new(),
            step_done: None,
            effects: Effects::default(),
            planned: VecDeque::new(),
            notices: VecDeque::new(),
            tier,
            meter: EnergyMeter::new(config.threads),
            recorder: recorder.transpose()?,
            sessions: Sessions::default(),
            restoring: None,
            prunes: 0,
            totals: Totals::default(),
            shares: Vec::new(),
            executor,
            config,
        })
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        self.executor.backend()
    }

    /// Earlier answers that drafts may come from.
    pub fn draft_store_mut(&mut self) -> &mut StoreDrafter {
        self.executor.store_mut()
    }

    /// Ends the engine, and gives its backend back.
    pub fn into_backend(self) -> B {
        self.executor.into_backend()
    }

    /// The core, to look at.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// How the engine is doing.
    pub fn stats(&self) -> EngineStats {
        EngineStats { load: self.core.load(), totals: self.totals }
    }

    /// Where the joules of its bills come from.
    pub fn energy_source(&self) -> EnergySource {
        self.meter.source()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A request that could never run is refused here.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        self.submit_for(request, None)
    }

    pub(crate) fn submit_for(
        &mut self,
        request: Request,
        flash: Option<FlashOf>,
    ) -> Result<RequestId, RequestError> {
        let (max_tokens, ends_at_context) = self.check(&request)?;
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let extends = request.session.filter(|u| u.keep != Keep::Nothing).map(|u| u.session);
        // A grammar is of all of the text, a space in front included.
        let begins_text = request.text.begins_text && request.grammar.is_none();
        let text = TextOptions { begins_text, ..request.text };
        let params = GenerationParams {
            text: ChoiceText::new(self.tokenizer.as_ref(), &request.stop_strings, text),
            choices: request.choices,
            max_tokens,
            stop_tokens: request.stop_tokens,
            logprobs: request.logprobs,
            speculate: request.speculate,
            max_draft: request.max_draft,
            tenant: request.tenant,
            max_branches: request.max_branches,
            acceptance: request.acceptance,
            sampling: request.sampling,
            grammar: request.grammar,
            hidden: request.hidden,
        };
        self.executor.register(id, params);
        let job = Job {
            cancel: request.cancel,
            aborted: false,
            ends_at_context,
            wants_logprobs: request.logprobs.is_some(),
            told: vec![0; request.choices as usize],
            microjoules: 0,
            steps: 0,
            last_step: StepId(0),
            extends,
            flash,
        };
        self.jobs.insert(id, job);
        if let Some(session) = extends {
            self.session_changes(session, request.tenant);
        }
        let now = self.now();
        let of_session = request.session.and_then(|usage| self.sessions.known.get(&usage.session));
        let of_session = of_session.filter(|info| info.tenant == request.tenant);
        let own = of_session.and_then(|info| info.namespace);
        let namespace = own.unwrap_or_else(|| self.config.namespace(request.tenant));
        self.events.push(CoreEvent::Submit(Box::new(Submission {
            tenant: request.tenant,
            choices: request.choices,
            class: request.class,
            due: request.due_ns.map(|ns| now.after(ns)),
            expires: request.expires_ns.map(|ns| now.after(ns)),
            predicted_tokens: request.predicted_tokens,
            session: request.session,
            speculate: request.speculate,
            max_draft: request.max_draft,
            max_branches: request.max_branches,
            ..Submission::new(id, namespace, request.prompt, max_tokens)
        })));
        Ok(id)
    }

    /// Checks a request; how many tokens its choices may have, and whether the context sets that
    /// limit.
    fn check(&self, request: &Request) -> Result<(u32, bool), RequestError> {
        let vocab_size = self.backend().spec().vocab_size;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocab_size) {
            return Err(RequestError::TokenOutOfRange { token, vocab_size });
        }
        request.sampling.validate(vocab_size)?;
        let core = self.core.config();
        let limit = core.max_step_tokens.min(core.max_running) as usize;
        if request.choices == 0 || request.choices as usize > limit {
            return Err(RequestError::BadChoices { choices: request.choices, limit });
        }
        if request.stop_strings.iter().any(String::is_empty) {
            return Err(RequestError::EmptyStopString);
        }
        if self.tokenizer.is_none() && !request.stop_strings.is_empty() {
            return Err(RequestError::NoTokenizer);
        }
        let base = request.session.and_then(|usage| self.core.session_tokens(usage.session));
        let prompt = base.unwrap_or(0) as usize + request.prompt.len();
        let (max_tokens, ends_at_context) = self.length_limit(request, prompt)?;
        let block_tokens = self.backend().block_tokens();
        let shared = prompt / block_tokens;
        let longest = (prompt + max_tokens).div_ceil(block_tokens);
        let needed = shared + (longest - shared) * request.choices as usize + 1;
        let available = self.core.kv().room(request.tenant);
        if needed > available {
            return Err(RequestError::KvTooSmall {
                needed: needed * block_tokens,
                available: available * block_tokens,
            });
        }
        // A context fits.
        Ok((max_tokens as u32, ends_at_context))
    }

    /// How many tokens a choice may have after `prompt` tokens, and whether the context says so.
    fn length_limit(
        &self,
        request: &Request,
        prompt: usize,
    ) -> Result<(usize, bool), RequestError> {
        let context = self.context;
        if prompt > context || (prompt == context && request.max_tokens != Some(0)) {
            return Err(RequestError::PromptTooLong { prompt, context });
        }
        match request.max_tokens {
            Some(0) if request.session.is_none() => Err(RequestError::NoTokensWanted),
            Some(max_tokens) if max_tokens <= context - prompt => Ok((max_tokens, false)),
            Some(max_tokens) if request.overflow == ContextOverflow::Refuse => {
                Err(RequestError::OutputTooLong { prompt, max_tokens, context })
            }
            _ => Ok((context - prompt, true)),
        }
    }

    /// Runs until nothing is left to do.
    pub fn run(&mut self, mut on_event: impl FnMut(Event<'_>)) {
        while self.step(&mut on_event) {}
    }

    /// One request from submission to end, beside whatever else is under way (whose events are
    /// given out too).
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn complete(
        &mut self,
        request: Request,
        mut on_event: impl FnMut(&Event<'_>),
    ) -> Result<Completion, RequestError> {
        let id = self.submit(request)?;
        let mut result = None;
        while result.is_none() {
            let more = self.step(&mut |event| {
                on_event(&event);
                if let Event::Finished { request, completion } = event
                    && request == id
                {
                    result = Some(completion);
                }
            });
            assert!(more || result.is_some(), "a run ends when every request has");
        }
        Ok(result.expect("the loop ends with a result"))
    }

    /// Whether there is anything to do.
    pub fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
            || self.step_done.is_some()
            || !(self.events.is_empty() && self.planned.is_empty() && self.notices.is_empty())
    }

    /// Raises the flag of every request.
    pub fn cancel_all(&self) {
        for job in self.jobs.values() {
            job.cancel.cancel();
        }
    }

    /// One turn of the core, and the forward pass that it plans. Returns whether there is more to
    /// do. A token is told at the beginning of the step after the one that chose it.
    pub fn step(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> bool {
        if self.planned.is_empty() {
            self.queue_aborts();
            // Last, so that a request that is cancelled does not gain the step's token.
            self.events.extend(self.step_done.take());
            self.turn();
        }
        self.tell(on_event);
        if let Some(plan) = self.planned.pop_front() {
            self.run_plan(&plan);
            // The next turn clears it, and uses its memory again.
            self.effects.plan = Some(plan);
        } else if self.events.is_empty() && !self.jobs.is_empty() {
            self.wait();
        }
        self.is_busy()
    }

    /// The core's time: nanoseconds since the engine was made.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn queue_aborts(&mut self) {
        for (&id, job) in &mut self.jobs {
            if !job.aborted && job.cancel.is_cancelled() {
                job.aborted = true;
                self.events.push(CoreEvent::Abort(id));
            }
        }
    }

    /// Sleeps until something may have changed.
    fn wait(&self) {
        let deadline = self.core.next_deadline().unwrap_or(Time::NEVER);
        let left = Duration::from_nanos(deadline.since(self.now()));
        std::thread::sleep(left.min(NAP));
    }

    /// Queues an event for the core's next turn.
    pub(crate) fn queue(&mut self, event: CoreEvent) {
        self.events.push(event);
    }

    /// Tells the core what happened, and carries out what it decides; a step that it plans is not
    /// run yet.
    pub(crate) fn turn(&mut self) {
        let now = self.now();
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(now, &self.events);
        }
        let started = Instant::now();
        self.core.advance(now, &mut self.events, &mut self.effects);
        let core_ns = nanoseconds(started);
        self.totals.core_ns += core_ns;
        self.totals.core_max_ns = self.totals.core_max_ns.max(core_ns);
        self.totals.core_calls += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.end(&self.effects);
        }
        let mut effects = std::mem::take(&mut self.effects);
        for op in &effects.ops {
            if let SeqOp::Fill { seq, session } = *op {
                self.fill(seq, session);
            } else {
                self.executor.apply(op);
            }
        }
        for it in &effects.moves {
            let backend = self.executor.backend_mut();
            let ok = self.tier.as_mut().is_some_and(|tier| tier.carry_out(backend, it));
            self.events.push(CoreEvent::MoveDone { id: it.id, ok });
        }
        self.notices.extend(effects.outputs.drain(..).map(Notice::Output));
        let finished = effects.finished.drain(..);
        self.notices.extend(finished.map(|f| Notice::Finished(Box::new(f))));
        self.planned.extend(effects.plan.take());
        self.effects = effects;
    }

    fn run_plan(&mut self, plan: &StepPlan) {
        let mut outcome = Box::new(StepOutcome::default());
        self.meter.begin();
        let started = Instant::now();
        self.executor.run(plan, &mut outcome);
        outcome.duration_ns = nanoseconds(started);
        let microjoules = self.meter.end(outcome.duration_ns);
        outcome.microjoules = microjoules;
        let entries = plan.entries.iter().map(|e| (e.seq, u64::from(e.tokens + e.draft)));
        let parts = entries.chain(plan.wanted.iter().map(|w| (w.seq, 1)));
        split(microjoules, parts.clone().map(|p| p.1), &mut self.shares);
        for ((seq, _), &share) in parts.zip(&self.shares) {
            let request = self.executor.request(seq);
            if let Some(job) = request.and_then(|request| self.jobs.get_mut(&request)) {
                job.microjoules += share;
                let counts = plan.kind == StepKind::Run && job.last_step != plan.step;
                job.steps += usize::from(counts);
                job.last_step = plan.step;
            }
        }
        self.totals.steps += 1;
        let computed = plan.entries.iter().map(|e| u64::from(e.tokens + e.draft));
        self.totals.computed_tokens += computed.sum::<u64>();
        self.totals.step_ns += outcome.duration_ns;
        self.totals.energy.microjoules += microjoules;
        self.totals.energy.source = self.meter.source();
        self.step_done = Some(CoreEvent::StepDone(outcome));
    }

    /// Gives out what the core said.
    fn tell(&mut self, on_event: &mut dyn FnMut(Event<'_>)) {
        while let Some(notice) = self.notices.pop_front() {
            match notice {
                Notice::Output(output) => self.tell_output(output, on_event),
                Notice::Finished(finished) => self.tell_finished(&finished, on_event),
            }
        }
    }

    fn tell_output(&mut self, output: Output, on_event: &mut dyn FnMut(Event<'_>)) {
        let Output { request, choice, token } = output;
        let job = self.jobs.get_mut(&request).expect("outputs are of unfinished requests");
        let index = job.told[choice as usize];
        job.told[choice as usize] += 1;
        if job.untold() {
            return;
        }
        let generation = self.executor.generation(request).expect("and these are known");
        let state = &generation.choices[choice as usize];
        assert_eq!(state.tokens.get(index), Some(&token), "the core and the executor agree");
        let from = index.checked_sub(1).map_or(0, |before| state.text_ends[before]);
        on_event(Event::Token {
            request,
            choice,
            token,
            text: &state.text.as_str()[from..state.text_ends[index]],
            logprobs: state.logprobs.get(index),
        });
    }

    fn tell_finished(&mut self, finished: &Finished, on_event: &mut dyn FnMut(Event<'_>)) {
        let request = finished.request;
        let job = self.jobs.remove(&request).expect("a request ends once");
        let mut generation = self.executor.release(request).expect("a job has its generation");
        for ((state, &told), choice) in generation.choices.iter_mut().zip(&job.told).zip(0..) {
            forget_untold(state, told);
            let from = state.text_ends.last().copied().unwrap_or(0);
            state.text.flush();
            let rest = &state.text.as_str()[from..];
            if !rest.is_empty() && !job.untold() {
                on_event(Event::Text { request, choice, text: rest });
            }
        }
        let block_bytes = self.backend().block_bytes() as u64;
        let completion = job.complete(finished, generation, block_bytes, self.meter.source());
        if let Some(session) = job.extends {
            self.session_changed(session);
        }
        if let Some(flash) = job.flash {
            self.keep_answer(flash, request, completion.clone());
        }
        if !job.untold() {
            on_event(Event::Finished { request, completion });
        }
    }

    /// Writes out what the recorder has buffered.
    ///
    /// # Errors
    /// The first thing that went wrong with the record.
    pub fn flush_record(&mut self) -> std::io::Result<()> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::flush)
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
