//! The engine as a [`Service`]: templates and tokens in front of it, its thread behind.
//!
//! Events go from the engine's thread straight into the channel of the request, which has room for
//! all that the request can bring: the engine never waits for a reader. What a slow reader can make
//! the server hold is so bounded by the context, and by the limit on writes for how long.

mod sessions;

use std::sync::{
    Arc, OnceLock, RwLock,
    atomic::{AtomicU64, Ordering},
};

use dunlin_engine::{
    CancelFlag, Completion, ContextOverflow, DrafterKind, EngineThread, Finish as EngineFinish,
    PositionLogprobs, Request, RequestError, RequestEvent, Speculate, SubmitError, TextOptions,
    drafter::DraftAcceptance,
};
use dunlin_executor::sampler::{SampleError, TokenLogprob as EngineLogprob};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::Rejection;
use dunlin_tensor::Backend;
use dunlin_tokenizer::{
    ChatInput, ChatTemplate, EncodeOptions, LocalTime, Tokenizer, TokenizerError,
    grammar::{Grammar, GrammarCompiler, GrammarError},
};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::constraint::Constraint;
use crate::service::{
    Chat, ChatEnding, Chunk, Finish, Generate, Generation, Health, Input, ModelInfo, OnDrop,
    Service, ServiceError, SessionCall, SessionState, Stats, TokenLogprob, TokenLogprobs, Usage,
};
pub use sessions::SessionSettings;

/// A model that has been loaded.
struct Loaded<B> {
    thread: EngineThread<B>,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    info: ModelInfo,
    /// KV blocks in all, and tokens in each.
    kv: (usize, usize),
    /// Made when it is first needed.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    names: sessions::Names,
}

/// One model on one engine. It starts empty, so that a server can answer while the model is loaded.
pub struct EngineService<B> {
    loaded: RwLock<Option<Arc<Loaded<B>>>>,
    preemptions: Arc<AtomicU64>,
    speculation: RwLock<Speculation>,
    settings: SessionSettings,
}

/// What the operator allows of speculation.
#[derive(Debug, Clone, Default)]
pub struct Speculation {
    /// Which drafters requests use that do not say.
    pub speculate: Speculate,
    /// Draft tokens of a choice that a step verifies at most.
    pub max_draft: u32,
    /// Branches of such a draft at most.
    pub max_branches: u32,
    /// How draft tokens come to be accepted where a request does not say.
    pub acceptance: DraftAcceptance,
    /// Whether there is a draft model.
    pub draft_model: bool,
    /// Whether drafts may come from earlier answers or a corpus.
    pub store: bool,
}

/// A model that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its chat template.
    #[error("the model's chat template cannot be used")]
    Template(#[source] TokenizerError),
    /// The engine's thread.
    #[error("the engine's thread cannot be started")]
    Thread(#[source] std::io::Error),
}

impl<B: Backend + 'static> Default for EngineService<B> {
    fn default() -> Self {
        Self::with_sessions(SessionSettings::default())
    }
}

impl<B: Backend + 'static> EngineService<B> {
    /// A service whose model is still to come.
    pub fn new() -> Self {
        Self::default()
    }

    /// A service whose model is still to come, with these settings of sessions.
    pub fn with_sessions(settings: SessionSettings) -> Self {
        Self {
            loaded: RwLock::new(None),
            preemptions: Arc::default(),
            speculation: RwLock::default(),
            settings,
        }
    }

    /// The model has come: from now on requests are served.
    ///
    /// # Errors
    /// A chat template that is none.
    pub fn set_model(
        &self,
        engine: dunlin_engine::Engine<B>,
        tokenizer: Tokenizer,
        info: ModelInfo,
    ) -> Result<(), ServeError> {
        let template = info.template.as_deref().map(ChatTemplate::new).transpose();
        let template = template.map_err(ServeError::Template)?;
        let kv = (engine.backend().block_count(), engine.backend().block_tokens());
        let info = ModelInfo { context: engine.context(), ..info };
        let thread = EngineThread::new(engine).map_err(ServeError::Thread)?;
        let grammars = OnceLock::new();
        let names = sessions::Names::default();
        let loaded = Loaded { thread, tokenizer, template, info, kv, grammars, names };
        let mut place = self.loaded.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        *place = Some(Arc::new(loaded));
        Ok(())
    }

    /// Sets what requests may speculate. Nothing until then.
    pub fn set_speculation(&self, speculation: Speculation) {
        let place = self.speculation.write();
        *place.unwrap_or_else(std::sync::PoisonError::into_inner) = speculation;
    }

    /// Which drafters a request uses, for how much, and how drafts come to be accepted.
    fn speculate(&self, generate: &Generate) -> Result<Speculation, ServiceError> {
        let allowed = self.speculation.read();
        let allowed = allowed.unwrap_or_else(std::sync::PoisonError::into_inner);
        match generate.speculate {
            Some(Speculate::Only(DrafterKind::Model)) if !allowed.draft_model => {
                Err(unusable("speculate", "this server has no draft model"))
            }
            Some(Speculate::Only(DrafterKind::Store)) if !allowed.store => {
                Err(unusable("speculate", "this server keeps no answers to draft from"))
            }
            Some(layers @ Speculate::Only(DrafterKind::Layers)) if allowed.speculate != layers => {
                Err(unusable("speculate", "this server does not draft with the model's own layers"))
            }
            asked => {
                let speculate = asked.unwrap_or(allowed.speculate);
                let acceptance = generate.acceptance.unwrap_or(allowed.acceptance);
                Ok(Speculation { speculate, acceptance, ..allowed.clone() })
            }
        }
    }

    /// Writes out the record of the run, where there is one.
    ///
    /// # Errors
    /// The first thing that went wrong with it, or the engine's failure.
    pub fn flush_record(&self) -> std::io::Result<()> {
        let Some(loaded) = self.loaded() else { return Ok(()) };
        let flushed = loaded.thread.handle().call(|engine| engine.flush_record());
        flushed.map_err(std::io::Error::other)?
    }

    fn loaded(&self) -> Option<Arc<Loaded<B>>> {
        self.loaded.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The model, if it has come.
    fn model(&self) -> Result<Arc<Loaded<B>>, ServiceError> {
        self.loaded().ok_or(ServiceError::Unavailable)
    }
}

impl<B: Backend + 'static> Service for EngineService<B> {
    fn health(&self) -> Health {
        match self.loaded() {
            None => Health::Loading,
            Some(loaded) if loaded.thread.handle().ended().is_some() => Health::Dead,
            Some(_) => Health::Ready,
        }
    }

    fn models(&self) -> Vec<ModelInfo> {
        self.loaded().map(|loaded| loaded.info.clone()).into_iter().collect()
    }

    fn stats(&self) -> Stats {
        let Some(loaded) = self.loaded() else { return Stats::default() };
        let Ok(stats) = loaded.thread.handle().stats() else { return Stats::default() };
        let (kv_blocks, block_tokens) = loaded.kv;
        let free = usize::try_from(stats.load.available_blocks).unwrap_or(kv_blocks);
        Stats {
            running: stats.load.running as usize,
            waiting: (stats.load.waiting + stats.load.loading) as usize,
            kv_blocks,
            kv_blocks_used: kv_blocks.saturating_sub(free),
            block_tokens,
            preemptions: self.preemptions.load(Ordering::Relaxed),
            steps: stats.totals.steps,
            computed_tokens: stats.totals.computed_tokens,
            step_ns: stats.totals.step_ns,
            microjoules: stats.totals.energy.microjoules,
            energy_source: stats.totals.energy.source.label(),
        }
    }

    fn is_idle(&self) -> bool {
        let Some(loaded) = self.loaded() else { return true };
        let busy = loaded.thread.handle().call(|engine| engine.is_busy()).unwrap_or(false);
        loaded.names.is_empty() && !busy
    }

    fn encode(&self, _: &str, input: &Input) -> Result<Vec<u32>, ServiceError> {
        self.model()?.encode(input)
    }

    fn decode(&self, _: &str, tokens: &[u32]) -> Result<String, ServiceError> {
        let bytes = self.model()?.tokenizer.decode(tokens, false);
        let bytes = bytes.map_err(|error| unusable("tokens", error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn render(&self, _: &str, chat: &Chat) -> Result<String, ServiceError> {
        self.model()?.render(chat)
    }

    fn generate(&self, generate: Generate) -> Result<Generation, ServiceError> {
        let loaded = self.model()?;
        let speculation = self.speculate(&generate)?;
        let planned = loaded.plan(generate, speculation)?;
        let (chunks, receiver) = mpsc::channel(planned.capacity);
        let flag = planned.request.cancel.clone();
        let sink = Sink {
            chunks,
            cancel: flag.clone(),
            tokenizer: loaded.tokenizer.clone(),
            stop_strings: planned.request.stop_strings.clone(),
            preemptions: self.preemptions.clone(),
        };
        let handle = loaded.thread.handle();
        let submitted = handle.submit_to(planned.request, move |event| sink.take(event));
        submitted.map_err(|error| match error {
            SubmitError::Gone(_) => ServiceError::Unavailable,
            SubmitError::Request(error) => refused(error),
        })?;
        Ok(Generation {
            prompt_tokens: planned.prompt_tokens,
            chunks: receiver,
            cancel: OnDrop::new(move || flag.cancel()),
        })
    }

    fn session(
        &self,
        tenant: TenantId,
        _: &str,
        id: &str,
        call: SessionCall,
    ) -> Result<SessionState, ServiceError> {
        self.do_session(tenant, id, call)
    }

    fn sessions(&self, tenant: TenantId, _: &str) -> Result<Vec<SessionState>, ServiceError> {
        self.list_sessions(tenant)
    }

    fn register(&self, request: Generate) -> Result<u64, ServiceError> {
        self.register_question(request)
    }

    fn question(
        &self,
        tenant: TenantId,
        _: &str,
        session: &str,
        question: u64,
        forget: bool,
    ) -> Result<bool, ServiceError> {
        self.look_at_question(tenant, session, question, forget)
    }

    fn ask(
        &self,
        tenant: TenantId,
        _: &str,
        session: &str,
        question: u64,
    ) -> Result<Generation, ServiceError> {
        self.ask_question(tenant, session, question)
    }
}

/// A request as the engine takes it.
struct Planned {
    request: Request,
    /// Tokens of the prompt, without those of its session.
    prompt_tokens: usize,
    /// Chunks that can come of it.
    capacity: usize,
}

impl<B: Backend + 'static> Loaded<B> {
    /// The request as the engine takes it.
    fn plan(&self, generate: Generate, speculation: Speculation) -> Result<Planned, ServiceError> {
        let placed = self.place(generate.tenant, generate.session.as_ref())?;
        let mut prompt = match &generate.input {
            // What follows something begins no text.
            Input::Text(text) if placed.tokens > 0 => self.tokens_of(text, "prompt")?,
            input => self.encode(input)?,
        };
        if generate.hidden && self.tokenizer.adds_eos() {
            // Models trained for embeddings are asked at the end of the text.
            prompt.extend(self.tokenizer.special_ids().eos);
        }
        let grammar = generate.constraint.as_ref().map(|c| self.compile(c)).transpose()?;
        let prompt_tokens = prompt.len();
        let begins_text =
            matches!(&generate.input, Input::Chat(chat) if chat.ending != ChatEnding::Continue);
        let mut stop_tokens = generate.stop_token_ids;
        if !generate.ignore_eos {
            stop_tokens.extend(self.tokenizer.end_ids());
        }
        let room = self.info.context.saturating_sub(placed.tokens + prompt_tokens);
        let most = generate.max_tokens.map_or(room, |most| most.min(room));
        // A token each, the text that was held back, the end of each choice, a hidden state, and the
        // end.
        let capacity = (most + 2) * generate.choices as usize + 2;
        let request = Request {
            choices: generate.choices,
            overflow: ContextOverflow::Stop,
            stop_tokens,
            stop_strings: generate.stop_strings,
            text: TextOptions { show_special: generate.show_special, begins_text },
            grammar,
            hidden: generate.hidden,
            tenant: generate.tenant,
            session: placed.usage,
            logprobs: generate.logprobs,
            speculate: speculation.speculate,
            max_draft: speculation.max_draft,
            max_branches: speculation.max_branches,
            acceptance: speculation.acceptance,
            ..Request::new(prompt, generate.sampling, generate.max_tokens)
        };
        Ok(Planned { request, prompt_tokens, capacity })
    }

    fn compile(&self, constraint: &Constraint) -> Result<Grammar, ServiceError> {
        let compiler = self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer));
        let compiled = match compiler {
            Ok(compiler) => compiler.compile(&constraint.source),
            Err(error) => Err(error.clone()),
        };
        compiled.map_err(|error| match error {
            GrammarError::Busy => ServiceError::Overloaded,
            error => unusable(constraint.field, format!("it cannot be used: {error}")),
        })
    }

    fn encode(&self, input: &Input) -> Result<Vec<u32>, ServiceError> {
        match input {
            Input::Tokens(tokens) => Ok(tokens.clone()),
            Input::Chat(chat) => self.tokens_of(&self.render(chat)?, "messages"),
            Input::Text(text) => {
                let mut tokens = self.tokens_of(text, "prompt")?;
                if let Some(bos) = self.tokenizer.special_ids().bos
                    && self.tokenizer.adds_bos()
                    && tokens.first() != Some(&bos)
                {
                    tokens.insert(0, bos);
                }
                Ok(tokens)
            }
        }
    }

    fn tokens_of(&self, text: &str, field: &'static str) -> Result<Vec<u32>, ServiceError> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        self.tokenizer.encode(text, options).map_err(|error| unusable(field, error))
    }

    fn render(&self, chat: &Chat) -> Result<String, ServiceError> {
        let Some(template) = &self.template else {
            let problem = "the model has no chat template, so it can only continue texts";
            return Err(unusable("messages", problem));
        };
        let ids = self.tokenizer.special_ids();
        let spelt = |id: Option<u32>| {
            let bytes = id.and_then(|id| self.tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let now = jiff::Zoned::now();
        let text = template.render(&ChatInput {
            messages: &chat.messages,
            tools: &chat.tools,
            add_generation_prompt: chat.ending == ChatEnding::Generation,
            bos_token: &spelt(ids.bos),
            eos_token: &spelt(ids.eos),
            now: Some(LocalTime {
                unix_seconds: now.timestamp().as_second(),
                offset_seconds: now.offset().seconds(),
            }),
            variables: Some(&chat.variables),
        });
        let text = text.map_err(|error| match error {
            // What the engine says may quote the conversation.
            TokenizerError::TemplateRender { line, .. } => unusable(
                "messages",
                format!("the chat template fails on this conversation (line {line})"),
            ),
            error => unusable("messages", error),
        })?;
        match chat.ending {
            ChatEnding::Continue => cut_after_last(&text, &chat.messages),
            ChatEnding::Generation | ChatEnding::Closed => Ok(text),
        }
    }
}

/// A rendered conversation up to the end of its last message's text.
fn cut_after_last(text: &str, messages: &[Value]) -> Result<String, ServiceError> {
    let content = messages.last().map(|message| &message["content"]);
    let last = match content {
        Some(Value::String(last)) => Some(last.as_str()),
        Some(Value::Array(parts)) => parts.last().and_then(|part| part["text"].as_str()),
        _ => None,
    };
    // Templates trim what they print.
    let last = last.map(str::trim).filter(|last| !last.is_empty());
    let at = last.and_then(|last| Some(text.rfind(last)? + last.len()));
    at.map(|end| text[..end].to_string()).ok_or_else(|| {
        let problem = "the last message cannot be continued: it is empty, or the chat template \
                       changes it";
        unusable("messages", problem)
    })
}

fn unusable(field: &'static str, problem: impl std::fmt::Display) -> ServiceError {
    ServiceError::Unusable { field: Some(field), message: format!("{field}: {problem}") }
}

/// The engine's refusal in the protocols' terms.
fn refused(error: RequestError) -> ServiceError {
    match error {
        RequestError::PromptTooLong { prompt, context } => {
            ServiceError::ContextExceeded { prompt, context }
        }
        RequestError::Param(param) => {
            ServiceError::Unusable { field: Some(param.field), message: param.to_string() }
        }
        RequestError::EmptyPrompt => unusable("prompt", error),
        RequestError::TokenOutOfRange { .. } => unusable("prompt", error),
        RequestError::OutputTooLong { .. } | RequestError::NoTokensWanted => {
            unusable("max_tokens", error)
        }
        RequestError::BadChoices { .. } => unusable("n", error),
        RequestError::NoTokenizer | RequestError::EmptyStopString => unusable("stop", error),
        RequestError::KvTooSmall { .. } => {
            ServiceError::Unusable { field: None, message: error.to_string() }
        }
    }
}

/// Takes a request's events, on the engine's thread.
struct Sink {
    chunks: mpsc::Sender<Chunk>,
    cancel: CancelFlag,
    tokenizer: Tokenizer,
    stop_strings: Vec<String>,
    preemptions: Arc<AtomicU64>,
}

impl Sink {
    fn take(&self, event: RequestEvent) {
        match event {
            RequestEvent::Token { choice, text, logprobs, .. } => {
                let logprobs = logprobs.map(|logprobs| self.logprobs(&logprobs));
                self.send(Chunk::Token { choice, text, logprobs });
            }
            RequestEvent::Text { choice, text } => {
                self.send(Chunk::Token { choice, text, logprobs: None });
            }
            RequestEvent::Finished(completion) => self.finish(&completion),
        }
    }

    /// The receiver has room for everything; where it does not take this, it is gone.
    fn send(&self, chunk: Chunk) {
        if self.chunks.try_send(chunk).is_err() {
            self.cancel.cancel();
        }
    }

    fn finish(&self, completion: &Completion) {
        let bill = &completion.bill;
        self.preemptions.fetch_add(bill.preemptions as u64, Ordering::Relaxed);
        if let Some(hidden) = completion.choices.first().and_then(|choice| choice.hidden.clone()) {
            self.send(Chunk::Hidden(hidden));
        }
        for (choice, end) in (0..).zip(&completion.choices) {
            let finish = match &end.finish {
                EngineFinish::StopToken(_) | EngineFinish::Complete => Finish::StopToken,
                EngineFinish::StopString(which) => {
                    Finish::StopString(self.stop_strings.get(*which).cloned().unwrap_or_default())
                }
                EngineFinish::MaxTokens | EngineFinish::ContextFull | EngineFinish::Clipped => {
                    Finish::Length
                }
                EngineFinish::Cancelled | EngineFinish::Expired => Finish::Cancelled,
                EngineFinish::Unsampleable(SampleError::Grammar(error)) => {
                    Finish::Stuck(error.to_string())
                }
                EngineFinish::Rejected(Rejection::SessionBusy) => {
                    Finish::Refused(ServiceError::Conflict("a request is using the session"))
                }
                EngineFinish::Rejected(Rejection::QueueFull { .. }) => {
                    Finish::Refused(ServiceError::Overloaded)
                }
                EngineFinish::Rejected(_)
                | EngineFinish::Unsampleable(_)
                | EngineFinish::BackendFailed(_) => {
                    Finish::Failed(end.finish.error().unwrap_or_else(|| "it failed".into()))
                }
            };
            self.send(Chunk::End { choice, finish });
        }
        self.send(Chunk::Done(Usage {
            prompt_tokens: bill.prompt_tokens + bill.context_tokens,
            cached_tokens: bill.cached_tokens,
            output_tokens: bill.output_tokens,
            drafted_tokens: bill.draft_tokens,
            accepted_tokens: bill.accepted_tokens,
            speculation_contract: bill.speculation_contract.name(),
            queue_ns: bill.queue_ns,
            prefill_ns: bill.prefill_ns,
            decode_ns: bill.decode_ns,
        }));
    }

    fn logprobs(&self, position: &PositionLogprobs) -> TokenLogprobs {
        let token = |t: &EngineLogprob| TokenLogprob {
            bytes: self.tokenizer.token_bytes(t.token).unwrap_or_default().to_vec(),
            logprob: t.logprob as f32,
        };
        TokenLogprobs {
            chosen: token(&position.chosen),
            top: position.top.iter().map(token).collect(),
        }
    }
}
