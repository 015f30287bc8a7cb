//! The engine's sessions under the names that tenants give them.
//!
//! A name is a tenant's own: nobody can learn of another's. The engine knows a session from its first
//! tokens on; a name is there from its making. Saved sessions lie in a folder for each tenant.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dunlin_engine::{Asked, CancelFlag, Completion, QuestionId, SessionFailure, SessionFileError};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::{Keep, SessionProblem, SessionUse};
use dunlin_tensor::Backend;
use dunlin_units::{RequestId, SessionId};
use tokio::sync::mpsc;

use super::{EngineService, Loaded, Sink, refused};
use crate::service::{
    Chunk, Generate, Generation, InSession, OnDrop, ServiceError, SessionCall, SessionState,
};

/// The most questions of a session.
const MAX_QUESTIONS: usize = 64;
/// The tenant of those who bring no key, or one of the server's own.
const NO_TENANT: &str = "default";

/// What may be done with sessions.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Where they are saved; none cannot be.
    pub folder: Option<PathBuf>,
    /// The most that are there at once.
    pub most: usize,
    /// The tenants' names, the first of which is tenant 1.
    pub tenants: Vec<String>,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { folder: None, most: 1024, tenants: Vec::new() }
    }
}

/// The names that there are.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    sessions: BTreeMap<(u32, String), Entry>,
    next: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    session: SessionId,
    /// The stop strings of each registered question.
    questions: BTreeMap<u64, Arc<[String]>>,
}

const UNKNOWN: ServiceError = ServiceError::NotFound("there is no session of this name");
const NO_QUESTION: ServiceError = ServiceError::NotFound("there is no such question");
const BUSY: ServiceError = ServiceError::Conflict("a request is using the session");

impl Names {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, tenant: TenantId, id: &str) -> Result<SessionId, ServiceError> {
        self.lock().entry(tenant, id).map(|entry| entry.session)
    }

    /// Gives a name to a session that is to come.
    fn make(&self, tenant: TenantId, id: &str, most: usize) -> Result<SessionId, ServiceError> {
        let mut known = self.lock();
        let key = (tenant.0, id.to_string());
        if known.sessions.contains_key(&key) {
            return Err(ServiceError::Conflict("a session of this name is there already"));
        }
        if known.sessions.len() >= most {
            return Err(ServiceError::Overloaded);
        }
        let session = SessionId(known.next);
        known.next += 1;
        known.sessions.insert(key, Entry { session, questions: BTreeMap::new() });
        Ok(session)
    }

    fn forget(&self, tenant: TenantId, id: &str) {
        self.lock().sessions.remove(&(tenant.0, id.to_string()));
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().sessions.is_empty()
    }
}

impl Known {
    fn entry(&mut self, tenant: TenantId, id: &str) -> Result<&mut Entry, ServiceError> {
        self.sessions.get_mut(&(tenant.0, id.to_string())).ok_or(UNKNOWN)
    }
}

/// The engine's refusal, without the paths that it names.
fn failure(failure: SessionFailure) -> ServiceError {
    let unusable = |field, problem: String| ServiceError::Unusable {
        field: Some(field),
        message: format!("{field}: {problem}"),
    };
    match failure {
        SessionFailure::Problem(SessionProblem::Unknown) => {
            ServiceError::Conflict("the session holds nothing yet")
        }
        SessionFailure::Problem(SessionProblem::Busy) => BUSY,
        SessionFailure::Problem(SessionProblem::Exists) => {
            ServiceError::Conflict("a session of this name is there already")
        }
        SessionFailure::Problem(SessionProblem::TooShort) => {
            unusable("tokens", "the session has fewer".into())
        }
        SessionFailure::Problem(SessionProblem::NoMemory) => ServiceError::Overloaded,
        SessionFailure::BadRange { tokens, .. } => {
            unusable("to", format!("the range must be within the session's {tokens} tokens"))
        }
        SessionFailure::Request(error) => refused(error),
        SessionFailure::CannotMove(problem) => unusable("keep_kv", problem),
        SessionFailure::UnknownQuestion => NO_QUESTION,
        SessionFailure::File(error) => match error {
            SessionFileError::Io { action: "open", source, .. }
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                ServiceError::NotFound("there is no saved session of this name")
            }
            SessionFileError::Io { source, .. } => {
                ServiceError::Storage(format!("the session's file: {}", source.kind()))
            }
            SessionFileError::NoExport => {
                ServiceError::Conflict("this backend's sessions cannot be saved")
            }
            SessionFileError::NotASession { .. } => {
                unusable("file", "it is no session that this version reads".into())
            }
            SessionFileError::CutShort { .. } => unusable("file", "it is cut short".into()),
            SessionFileError::Damaged { part, .. } => {
                unusable("file", format!("it is damaged: {part} do not match their checksum"))
            }
            SessionFileError::Foreign { what, .. } => {
                unusable("file", format!("it was saved with another setting: {what}"))
            }
            SessionFileError::Refused { .. } => {
                unusable("file", "this backend does not take what it holds".into())
            }
            SessionFileError::TooLong { tokens, context, .. } => unusable(
                "file",
                format!("it holds {tokens} tokens, and the context holds {context}"),
            ),
        },
    }
}

/// A request in a session, and how many tokens the session holds.
pub(super) struct Placed {
    pub(super) usage: Option<SessionUse>,
    pub(super) tokens: usize,
}

impl<B: Backend + 'static> Loaded<B> {
    /// The session that a request continues.
    pub(super) fn place(
        &self,
        tenant: TenantId,
        session: Option<&InSession>,
    ) -> Result<Placed, ServiceError> {
        let Some(InSession { id, keep }) = session else {
            return Ok(Placed { usage: None, tokens: 0 });
        };
        let (tokens, busy) = self.state_of(self.names.get(tenant, id)?)?;
        if busy && *keep != Keep::Nothing {
            return Err(BUSY);
        }
        let session = self.names.get(tenant, id)?;
        Ok(Placed { usage: Some(SessionUse { session, keep: *keep }), tokens })
    }

    /// A session's tokens, and whether a request is extending it.
    fn state_of(&self, session: SessionId) -> Result<(usize, bool), ServiceError> {
        let state = self.thread.handle().call(move |engine| match engine.session_tokens(session) {
            Ok(tokens) => (tokens.len(), false),
            Err(SessionFailure::Problem(SessionProblem::Busy)) => {
                (engine.core().session_tokens(session).unwrap_or(0) as usize, true)
            }
            Err(_) => (0, false),
        });
        state.map_err(|_| ServiceError::Unavailable)
    }

    fn state(&self, tenant: TenantId, id: &str) -> Result<SessionState, ServiceError> {
        let (tokens, busy) = self.state_of(self.names.get(tenant, id)?)?;
        Ok(SessionState { id: id.into(), tokens, busy })
    }

    /// Has the engine do something between two steps.
    fn with_engine<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dunlin_engine::Engine<B>) -> Result<R, SessionFailure> + Send + 'static,
    ) -> Result<R, ServiceError> {
        let result = self.thread.handle().call(work).map_err(|_| ServiceError::Unavailable)?;
        result.map_err(failure)
    }

    /// Has the engine do something, and waits for the request that it may come to.
    fn compute(
        &self,
        work: impl FnOnce(&mut dunlin_engine::Engine<B>) -> Result<Option<RequestId>, SessionFailure>
        + Send
        + 'static,
    ) -> Result<(), ServiceError> {
        let watched = self.thread.handle().watch(CancelFlag::new(), move |engine| {
            work(engine).map_err(Some)?.ok_or(None::<SessionFailure>)
        });
        match watched.map_err(|_| ServiceError::Unavailable)? {
            Ok(request) => request.wait().map(drop).map_err(|_| ServiceError::Unavailable),
            Err(None) => Ok(()),
            Err(Some(problem)) => Err(failure(problem)),
        }
    }

    /// The file of a saved session. Names were checked: they are no paths.
    fn file(
        &self,
        settings: &SessionSettings,
        tenant: TenantId,
        name: &str,
    ) -> Result<PathBuf, ServiceError> {
        let folder = settings.folder.as_ref().ok_or(ServiceError::Conflict(
            "this server has no folder for sessions; its settings can name one",
        ))?;
        let whose = (tenant.0 as usize).checked_sub(1).and_then(|i| settings.tenants.get(i));
        let folder = folder.join(whose.map_or(NO_TENANT, String::as_str));
        let made = std::fs::create_dir_all(&folder);
        made.map_err(|e| ServiceError::Storage(format!("the folder of sessions: {}", e.kind())))?;
        Ok(folder.join(format!("{name}.session")))
    }
}

impl<B: Backend + 'static> EngineService<B> {
    pub(super) fn do_session(
        &self,
        tenant: TenantId,
        id: &str,
        call: SessionCall,
    ) -> Result<SessionState, ServiceError> {
        let loaded = self.model()?;
        let most = self.settings.most;
        match call {
            SessionCall::Get => {}
            SessionCall::Create => {
                loaded.names.make(tenant, id, most)?;
            }
            SessionCall::Fork { to } => {
                let from = loaded.names.get(tenant, id)?;
                let empty = loaded.state_of(from)? == (0, false);
                let copy = loaded.names.make(tenant, &to, most)?;
                if !empty
                    && let Err(error) = loaded.with_engine(move |e| e.fork_session(from, copy))
                {
                    loaded.names.forget(tenant, &to);
                    return Err(error);
                }
                return loaded.state(tenant, &to);
            }
            SessionCall::Rewind { tokens } => {
                let session = loaded.names.get(tenant, id)?;
                loaded.with_engine(move |e| e.rewind_session(session, tokens))?;
            }
            SessionCall::Prune { from, to, keep_kv } => {
                let session = loaded.names.get(tenant, id)?;
                loaded.compute(move |engine| {
                    if keep_kv {
                        engine.prune_session_keeping(session, from..to)
                    } else {
                        engine.prune_session(session, from..to)
                    }
                })?;
            }
            SessionCall::Save { file } => {
                let session = loaded.names.get(tenant, id)?;
                let path = loaded.file(&self.settings, tenant, &file)?;
                loaded.with_engine(move |e| e.save_session(session, &path))?;
            }
            SessionCall::Restore { file } => {
                let path = loaded.file(&self.settings, tenant, &file)?;
                let session = loaded.names.make(tenant, id, most)?;
                let restored = loaded.compute(move |e| e.restore_session(session, tenant, &path));
                if let Err(error) = restored {
                    loaded.names.forget(tenant, id);
                    return Err(error);
                }
            }
            SessionCall::Close => {
                let session = loaded.names.get(tenant, id)?;
                let last = loaded.state(tenant, id)?;
                let closed = loaded.with_engine(move |e| match e.close_session(session) {
                    // It never held anything.
                    Err(SessionFailure::Problem(SessionProblem::Unknown)) => Ok(()),
                    closed => closed,
                });
                closed?;
                loaded.names.forget(tenant, id);
                return Ok(last);
            }
        }
        loaded.state(tenant, id)
    }

    pub(super) fn list_sessions(
        &self,
        tenant: TenantId,
    ) -> Result<Vec<SessionState>, ServiceError> {
        let loaded = self.model()?;
        let names: Vec<String> = {
            let known = loaded.names.lock();
            let own = known.sessions.keys().filter(|(whose, _)| *whose == tenant.0);
            own.map(|(_, name)| name.clone()).collect()
        };
        // One may end meanwhile.
        Ok(names.iter().filter_map(|name| loaded.state(tenant, name).ok()).collect())
    }

    pub(super) fn register_question(&self, generate: Generate) -> Result<u64, ServiceError> {
        let loaded = self.model()?;
        let tenant = generate.tenant;
        let id = generate.session.as_ref().map(|session| session.id.clone()).ok_or(UNKNOWN)?;
        let stops: Arc<[String]> = generate.stop_strings.clone().into();
        let speculation = self.speculate(&generate)?;
        let planned = loaded.plan(generate, speculation)?;
        let session = {
            let mut known = loaded.names.lock();
            let entry = known.entry(tenant, &id)?;
            if entry.questions.len() >= MAX_QUESTIONS {
                return Err(ServiceError::Overloaded);
            }
            entry.session
        };
        let request = planned.request;
        let question = loaded.with_engine(move |e| e.register_question(session, request))?;
        loaded.names.lock().entry(tenant, &id)?.questions.insert(question.0, stops);
        Ok(question.0)
    }

    /// The session of a question and its stop strings.
    fn find_question(
        loaded: &Loaded<B>,
        tenant: TenantId,
        id: &str,
        question: u64,
    ) -> Result<(SessionId, Arc<[String]>), ServiceError> {
        let mut known = loaded.names.lock();
        let entry = known.entry(tenant, id)?;
        let stops = entry.questions.get(&question).cloned().ok_or(NO_QUESTION)?;
        Ok((entry.session, stops))
    }

    pub(super) fn look_at_question(
        &self,
        tenant: TenantId,
        id: &str,
        question: u64,
        forget: bool,
    ) -> Result<bool, ServiceError> {
        let loaded = self.model()?;
        let (session, _) = Self::find_question(&loaded, tenant, id, question)?;
        let answered = loaded.with_engine(move |engine| {
            let answered = engine.is_answered(session, QuestionId(question));
            if forget {
                engine.drop_question(session, QuestionId(question));
            }
            Ok(answered)
        })?;
        if forget {
            loaded.names.lock().entry(tenant, id)?.questions.remove(&question);
        }
        Ok(answered)
    }

    pub(super) fn ask_question(
        &self,
        tenant: TenantId,
        id: &str,
        question: u64,
    ) -> Result<Generation, ServiceError> {
        let loaded = self.model()?;
        let (session, stops) = Self::find_question(&loaded, tenant, id, question)?;
        let (chunks, receiver) = mpsc::channel(loaded.info.context + 8);
        let flag = CancelFlag::new();
        let sink = || Sink {
            chunks: chunks.clone(),
            cancel: flag.clone(),
            tokenizer: loaded.tokenizer.clone(),
            stop_strings: stops.to_vec(),
            preemptions: self.preemptions.clone(),
        };
        let whole = sink();
        let live = sink();
        let cancel = flag.clone();
        enum Not {
            Needed(Box<Completion>),
            Possible(SessionFailure),
        }
        let asked = loaded.thread.handle().watch_to(
            flag.clone(),
            move |event| live.take(event),
            move |engine| match engine.ask(session, QuestionId(question), cancel) {
                Ok(Asked::Submitted(request)) => Ok(request),
                Ok(Asked::Answered(completion)) => Err(Not::Needed(completion)),
                Err(problem) => Err(Not::Possible(problem)),
            },
        );
        match asked.map_err(|_| ServiceError::Unavailable)? {
            Ok(_) => {}
            Err(Not::Possible(problem)) => return Err(failure(problem)),
            Err(Not::Needed(completion)) => {
                for (choice, answer) in (0..).zip(&completion.choices) {
                    let text = answer.text.clone();
                    whole.send(Chunk::Token { choice, text, logprobs: None });
                }
                whole.finish(&completion);
            }
        }
        Ok(Generation {
            prompt_tokens: 0,
            chunks: receiver,
            cancel: OnDrop::new(move || flag.cancel()),
        })
    }
}
