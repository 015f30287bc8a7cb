//! An engine on a thread of its own, for many callers at once.
//!
//! The thread owns the model; callers hold an [`EngineHandle`] and talk to it by channels. Between
//! two steps it takes in whatever has come. A request is cancelled at the next step when its
//! [`RequestHandle`] is dropped. If the thread panics, every caller is told so, with the message:
//! nobody waits for ever.

use std::{
    cell::Cell,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use dunlin_executor::PositionLogprobs;
use dunlin_tensor::Backend;
use dunlin_units::RequestId;

use crate::{
    engine::{Engine, EngineStats},
    request::{CancelFlag, Completion, Event, Request, RequestError},
};

/// What a request's caller is told.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestEvent {
    /// A token was chosen.
    Token {
        /// In which sample.
        choice: u32,
        /// The token.
        token: u32,
        /// The text that became certain with it; may be empty.
        text: String,
        /// Its log-probability and alternatives, where they were asked for.
        logprobs: Option<PositionLogprobs>,
    },
    /// Text that was held back became certain when its choice was ended from outside.
    Text {
        /// In which sample.
        choice: u32,
        /// The text.
        text: String,
    },
    /// The request is over; nothing follows.
    Finished(Box<Completion>),
}

/// The engine's thread has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineGone {
    /// It was shut down.
    #[error("the engine was shut down")]
    ShutDown,
    /// Something in it was broken.
    #[error("the engine failed: {0}")]
    Panicked(String),
    /// It may be there still, but this request's end was told already.
    #[error("the request is over; nothing follows")]
    RequestOver,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It could never run.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There is nobody to run it.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// Something to be done on the engine's thread.
type Call<B> = Box<dyn FnOnce(&mut Engine<B>, &mut Watchers) + Send>;

enum Command<B> {
    Call(Call<B>),
    ShutDown,
}

/// Who is told of which request.
type Watchers = HashMap<RequestId, Watcher>;

struct Watcher {
    /// Takes the request's events, on the engine's thread.
    sink: Box<dyn FnMut(RequestEvent) + Send>,
    cancel: CancelFlag,
}

/// Why the thread ended, once it has.
#[derive(Debug, Clone, Default)]
struct Epitaph(Arc<(Mutex<Option<EngineGone>>, Condvar)>);

impl Epitaph {
    fn write(&self, gone: EngineGone) {
        let (said, written) = &*self.0;
        *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(gone);
        written.notify_all();
    }

    /// Why the thread is not there. Channels close a moment before that is written.
    fn read(&self) -> EngineGone {
        let (said, written) = &*self.0;
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*said {
                Some(gone) => return gone.clone(),
                None => said = written.wait(said).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// The thread. Dropping it shuts it down and waits for it.
pub struct EngineThread<B> {
    handle: EngineHandle<B>,
    thread: Option<JoinHandle<()>>,
}

/// A way to the engine; clones lead to the same one.
pub struct EngineHandle<B> {
    commands: Sender<Command<B>>,
    epitaph: Epitaph,
}

impl<B> Clone for EngineHandle<B> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), epitaph: self.epitaph.clone() }
    }
}

/// A request under way. Dropping it cancels the request.
#[derive(Debug)]
pub struct RequestHandle {
    id: RequestId,
    events: Receiver<RequestEvent>,
    /// Whether its end was told.
    over: Cell<bool>,
    cancel: CancelFlag,
    epitaph: Epitaph,
}

impl<B: Backend + 'static> EngineThread<B> {
    /// Gives an engine a thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(engine: Engine<B>) -> std::io::Result<Self> {
        let (commands, inbox) = channel();
        let epitaph = Epitaph::default();
        let own = epitaph.clone();
        let thread = std::thread::Builder::new().name("dunlin-engine".into()).spawn(move || {
            let served = catch_unwind(AssertUnwindSafe(|| serve(engine, &inbox)));
            let end = match served {
                Ok(()) => EngineGone::ShutDown,
                Err(panic) => EngineGone::Panicked(message(panic.as_ref())),
            };
            own.write(end);
            drop(inbox);
        })?;
        let handle = EngineHandle { commands, epitaph };
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A way to the engine.
    pub fn handle(&self) -> EngineHandle<B> {
        self.handle.clone()
    }

    /// Cancels what is under way and ends the thread.
    ///
    /// # Errors
    /// It had ended already, because it panicked.
    pub fn shut_down(mut self) -> Result<(), EngineGone> {
        self.stop();
        match self.handle.gone() {
            EngineGone::ShutDown => Ok(()),
            gone => Err(gone),
        }
    }
}

impl<B> EngineThread<B> {
    fn stop(&mut self) {
        // Closed where the thread has ended.
        let _ = self.handle.commands.send(Command::ShutDown);
        if let Some(thread) = self.thread.take() {
            // Panics were caught within.
            let _ = thread.join();
        }
    }
}

impl<B> Drop for EngineThread<B> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B> EngineHandle<B> {
    /// Why the thread is not there.
    fn gone(&self) -> EngineGone {
        self.epitaph.read()
    }

    /// Why the thread has ended, if it has. Does not wait.
    pub fn ended(&self) -> Option<EngineGone> {
        self.epitaph.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<B: Backend + 'static> EngineHandle<B> {
    /// Runs a function on the engine's thread, between two steps, and returns what it returns:
    /// sessions, questions, statistics.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn call<R: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Engine<B>) -> R + Send + 'static,
    ) -> Result<R, EngineGone> {
        self.call_with(|engine, _| function(engine))
    }

    fn call_with<R: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Engine<B>, &mut Watchers) -> R + Send + 'static,
    ) -> Result<R, EngineGone> {
        let (answer, result) = channel();
        let call: Call<B> = Box::new(move |engine, watchers| {
            // Nobody has to wait for it.
            let _ = answer.send(function(engine, watchers));
        });
        self.commands.send(Command::Call(call)).map_err(|_| self.gone())?;
        result.recv().map_err(|_| self.gone())
    }

    /// Submits a request; its events come to the handle.
    ///
    /// # Errors
    /// The request could never run, or the thread has ended.
    pub fn submit(&self, request: Request) -> Result<RequestHandle, SubmitError> {
        let cancel = request.cancel.clone();
        self.watch(cancel, move |engine| engine.submit(request))?.map_err(SubmitError::Request)
    }

    /// Runs a function on the engine's thread that submits a request, and watches that request.
    /// `cancel` is the request's, where it has one that is known here.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn watch<E: Send + 'static>(
        &self,
        cancel: CancelFlag,
        submit: impl FnOnce(&mut Engine<B>) -> Result<RequestId, E> + Send + 'static,
    ) -> Result<Result<RequestHandle, E>, EngineGone> {
        let (events, receiver) = channel();
        // Whoever is not there any more has cancelled already.
        let sink = move |event| {
            let _ = events.send(event);
        };
        let submitted = self.watch_to(cancel.clone(), sink, submit)?;
        let epitaph = self.epitaph.clone();
        Ok(submitted.map(|id| RequestHandle {
            id,
            events: receiver,
            over: Cell::new(false),
            cancel,
            epitaph,
        }))
    }

    /// Submits a request whose events a function takes: on the engine's thread, so it must not wait.
    /// It is dropped when the request is over or the thread ends. The request's flag cancels it.
    ///
    /// # Errors
    /// The request could never run, or the thread has ended.
    pub fn submit_to(
        &self,
        request: Request,
        sink: impl FnMut(RequestEvent) + Send + 'static,
    ) -> Result<RequestId, SubmitError> {
        let cancel = request.cancel.clone();
        let submit = move |engine: &mut Engine<B>| engine.submit(request);
        self.watch_to(cancel, sink, submit)?.map_err(SubmitError::Request)
    }

    /// The same, with the events taken as [`EngineHandle::submit_to`] does.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn watch_to<E: Send + 'static>(
        &self,
        cancel: CancelFlag,
        sink: impl FnMut(RequestEvent) + Send + 'static,
        submit: impl FnOnce(&mut Engine<B>) -> Result<RequestId, E> + Send + 'static,
    ) -> Result<Result<RequestId, E>, EngineGone> {
        let watcher = Watcher { sink: Box::new(sink), cancel };
        self.call_with(move |engine, watchers| {
            let id = submit(engine)?;
            watchers.insert(id, watcher);
            Ok(id)
        })
    }

    /// How the engine is doing.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn stats(&self) -> Result<EngineStats, EngineGone> {
        self.call(|engine| engine.stats())
    }
}

impl RequestHandle {
    /// The request's name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Stops the request at the next step; its end will be told.
    pub fn abort(&self) {
        self.cancel.cancel();
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// The thread has ended, and with it the request; or its end was told already.
    pub fn recv(&self) -> Result<RequestEvent, EngineGone> {
        self.events.recv().map(|event| self.note(event)).map_err(|_| self.gone())
    }

    /// The next event, where there is one within this time.
    ///
    /// # Errors
    /// As [`RequestHandle::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<RequestEvent>, EngineGone> {
        match self.events.recv_timeout(timeout) {
            Ok(event) => Ok(Some(self.note(event))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    fn note(&self, event: RequestEvent) -> RequestEvent {
        self.over.set(self.over.get() || matches!(event, RequestEvent::Finished(_)));
        event
    }

    fn gone(&self) -> EngineGone {
        if self.over.get() { EngineGone::RequestOver } else { self.epitaph.read() }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As [`RequestHandle::recv`].
    pub fn wait(self) -> Result<Completion, EngineGone> {
        loop {
            if let RequestEvent::Finished(completion) = self.recv()? {
                return Ok(*completion);
            }
        }
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        // Of no effect where it is over.
        self.cancel.cancel();
    }
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_string()
}

/// The thread's life.
fn serve<B: Backend>(mut engine: Engine<B>, inbox: &Receiver<Command<B>>) {
    let mut watchers = Watchers::new();
    loop {
        let command = if engine.is_busy() {
            match inbox.try_recv() {
                Ok(command) => Some(command),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Command::ShutDown),
            }
        } else {
            // Nothing to do until somebody asks, or the last handle is gone.
            Some(inbox.recv().unwrap_or(Command::ShutDown))
        };
        match command {
            Some(Command::Call(call)) => call(&mut engine, &mut watchers),
            Some(Command::ShutDown) => break,
            None => {
                engine.step(&mut |event| tell(&mut watchers, event));
            }
        }
    }
    // What is under way ends, and is told that it was cancelled.
    for watcher in watchers.values() {
        watcher.cancel.cancel();
    }
    engine.cancel_all();
    engine.run(|event| tell(&mut watchers, event));
    // A record that cannot be written is told to whoever flushes it.
    let _ = engine.flush_record();
}

/// Hands an event to whom it concerns.
fn tell(watchers: &mut Watchers, event: Event<'_>) {
    let send = |watchers: &mut Watchers, request: RequestId, event: RequestEvent| {
        if let Some(watcher) = watchers.get_mut(&request) {
            (watcher.sink)(event);
        }
    };
    match event {
        Event::Token { request, choice, token, text, logprobs } => {
            let (text, logprobs) = (text.to_string(), logprobs.cloned());
            send(watchers, request, RequestEvent::Token { choice, token, text, logprobs });
        }
        Event::Text { request, choice, text } => {
            send(watchers, request, RequestEvent::Text { choice, text: text.to_string() });
        }
        Event::Finished { request, completion } => {
            send(watchers, request, RequestEvent::Finished(Box::new(completion)));
            watchers.remove(&request);
        }
    }
}
