//! A request under way, as all codecs see it: text and tool calls of each choice, and the end.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    app::{App, Permit},
    constraint::Constraint,
    error::ApiError,
    service::{
        Chunk, Finish, Generate, Generation, OnDrop, Service, ServiceError, TokenLogprobs, Usage,
    },
    tools::{Part, ToolCall, ToolChoice, ToolFormat, ToolParser},
    trace::Trace,
};

/// The tools that an answer may call.
#[derive(Debug, Clone)]
pub struct Tools {
    /// How the model writes calls.
    pub format: ToolFormat,
    /// The tools' names.
    pub names: Vec<String>,
    /// What the answer must be.
    pub constraint: Option<Constraint>,
}

impl Tools {
    /// Tools that are described as OpenAI does it, whether they are called, and the form that a text
    /// is to have.
    pub fn new(
        format: ToolFormat,
        names: Vec<String>,
        choice: ToolChoice,
        described: &[Value],
        form: Option<Constraint>,
    ) -> Self {
        Self { format, names, constraint: choice.constraint(format, described, form) }
    }
}

/// What an answer is made of.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// More text of a choice, with the log-probabilities of a token where they were asked for. The
    /// text may be empty then.
    Text { choice: u32, text: String, logprobs: Option<TokenLogprobs> },
    /// A choice calls a tool; its `index`-th call, named `id`.
    Call { choice: u32, index: usize, id: String, call: ToolCall },
    /// A choice ended, after so many calls.
    End { choice: u32, finish: Finish, calls: usize },
    /// All choices ended.
    Done(Usage),
    /// It failed; nothing follows.
    Failed(ApiError),
}

/// A request's place among those that are under way.
struct Place {
    app: Arc<App>,
    /// Whether its answer was complete, or it was refused.
    settled: bool,
    trace: Trace,
    _permit: Permit,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.settled {
            self.trace.failed("disconnected");
            tracing::info!(target: "dunlin::requests", "the client left");
            self.app.metrics.disconnected();
        }
    }
}

/// A request under way. Dropping it cancels what is left.
pub struct Reply {
    place: Place,
    model: String,
    choices: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    chunks: mpsc::Receiver<Chunk>,
    ready: VecDeque<Piece>,
    /// One for each choice, where there are tools.
    parsers: Vec<ToolParser>,
    tools: Option<Tools>,
    /// Calls of each choice.
    calls: Vec<usize>,
    parts: Vec<Part>,
    arrived: Instant,
    deadline: Option<Instant>,
    begun: bool,
    over: bool,
    /// Cancels the request when this is dropped, or before.
    cancel: Option<OnDrop>,
}

impl Reply {
    /// Hands a request to the engine.
    ///
    /// # Errors
    /// Requests that are not taken.
    pub async fn start(
        app: &Arc<App>,
        mut request: Generate,
        tools: Option<Tools>,
    ) -> Result<Self, ApiError> {
        request.tenant = app.tenant();
        request.show_special |= tools.as_ref().is_some_and(|t| t.format.needs_special());
        let (model, choices) = (request.model.clone(), request.choices);
        Trace::current().asked(&request);
        let mut reply =
            Self::start_with(app, &model, choices, move |service| service.generate(request))
                .await?;
        let parser = |tools: &Tools| ToolParser::new(tools.format, &tools.names);
        reply.parsers = tools.iter().flat_map(|t| (0..choices).map(|_| parser(t))).collect();
        reply.tools = tools;
        Ok(reply)
    }

    /// Hands the engine whatever gives an answer.
    ///
    /// # Errors
    /// Requests that are not taken.
    pub async fn start_with(
        app: &Arc<App>,
        model: &str,
        choices: u32,
        ask: impl FnOnce(&dyn Service) -> Result<Generation, ServiceError> + Send + 'static,
    ) -> Result<Self, ApiError> {
        let (permit, trace) = (app.admit()?, Trace::current());
        let mut place = Place { app: app.clone(), settled: false, trace, _permit: permit };
        let arrived = Instant::now();
        let generation = app.call(ask).await;
        // Here it is refused or taken; a client that left before was dropped with this function.
        let generation = generation.inspect_err(|_| place.settled = true)?;
        Ok(Self {
            model: model.into(),
            choices,
            prompt_tokens: generation.prompt_tokens,
            chunks: generation.chunks,
            ready: VecDeque::new(),
            parsers: Vec::new(),
            tools: None,
            calls: vec![0; choices as usize],
            parts: Vec::new(),
            arrived,
            deadline: app.config.request_timeout.map(|timeout| arrived + timeout),
            begun: false,
            over: false,
            cancel: Some(generation.cancel),
            place,
        })
    }

    /// Its samples.
    pub fn choices(&self) -> u32 {
        self.choices
    }

    /// The next piece; none after [`Piece::Done`] or [`Piece::Failed`]. Nothing is lost when the
    /// future is dropped.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.over {
                return None;
            }
            let chunk = match self.deadline {
                None => self.chunks.recv().await,
                Some(deadline) => {
                    match tokio::time::timeout_at(deadline.into(), self.chunks.recv()).await {
                        Ok(chunk) => chunk,
                        Err(_) => {
                            let status = StatusCode::GATEWAY_TIMEOUT;
                            let message = "the answer took longer than the server allows";
                            self.fail(ApiError::new(status, "request_timeout", message));
                            continue;
                        }
                    }
                }
            };
            self.take(chunk);
        }
    }

    /// The next piece, if it is there already.
    pub fn try_next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.over {
                return None;
            }
            let chunk = self.chunks.try_recv().ok()?;
            self.take(Some(chunk));
        }
    }

    /// From the request's arrival.
    pub fn elapsed(&self) -> Duration {
        self.arrived.elapsed()
    }

    fn take(&mut self, chunk: Option<Chunk>) {
        match chunk {
            None => self.fail(ApiError::unavailable("the engine has stopped")),
            Some(Chunk::Token { choice, text, logprobs }) => {
                self.place.app.metrics.live.token();
                if !std::mem::replace(&mut self.begun, true) {
                    self.place.app.metrics.first_token(&self.model, self.elapsed());
                }
                self.text(choice, text, logprobs);
            }
            // Nobody asks for it here.
            Some(Chunk::Hidden(_)) => {}
            Some(Chunk::End { choice, finish }) => {
                if let Some(parser) = self.parsers.get_mut(choice as usize) {
                    parser.finish(&mut self.parts);
                    self.parts(choice);
                }
                self.place.app.metrics.choice_finished(&self.model, &finish);
                let calls = self.calls.get(choice as usize).copied().unwrap_or_default();
                self.place.trace.choice_ended(&finish, calls);
                match finish {
                    Finish::Failed(message) => self.fail(ApiError::failed(message)),
                    Finish::Refused(error) => self.fail(error.into()),
                    Finish::Stuck(message) => {
                        let status = StatusCode::BAD_REQUEST;
                        self.fail(ApiError::new(status, "constraint_failed", message));
                    }
                    Finish::Cancelled => {
                        self.fail(ApiError::unavailable("the request was cancelled by the server"));
                    }
                    finish => self.ready.push_back(Piece::End { choice, finish, calls }),
                }
            }
            Some(Chunk::Done(usage)) => {
                self.over = true;
                self.place.settled = true;
                self.place.trace.done(&usage);
                self.place.app.metrics.finished(&self.model, &usage, self.choices, self.elapsed());
                tracing::info!(
                    target: "dunlin::requests",
                    model = self.model,
                    prompt_tokens = usage.prompt_tokens,
                    cached_tokens = usage.cached_tokens,
                    output_tokens = usage.output_tokens,
                    queue_ms = usage.queue_ns as f64 / 1e6,
                    prefill_ms = usage.prefill_ns as f64 / 1e6,
                    decode_ms = usage.decode_ns as f64 / 1e6,
                    "finished"
                );
                self.ready.push_back(Piece::Done(usage));
            }
        }
    }

    fn text(&mut self, choice: u32, text: String, logprobs: Option<TokenLogprobs>) {
        let Some(parser) = self.parsers.get_mut(choice as usize) else {
            if !text.is_empty() || logprobs.is_some() {
                self.ready.push_back(Piece::Text { choice, text, logprobs });
            }
            return;
        };
        if logprobs.is_some() {
            self.ready.push_back(Piece::Text { choice, text: String::new(), logprobs });
        }
        parser.push(&text, &mut self.parts);
        self.parts(choice);
    }

    /// Passes on what a parser found.
    fn parts(&mut self, choice: u32) {
        let format = self.tools.as_ref().map_or(ToolFormat::Hermes, |tools| tools.format);
        for part in self.parts.drain(..) {
            self.ready.push_back(match part {
                Part::Text(text) => Piece::Text { choice, text, logprobs: None },
                Part::Call(call) => {
                    let calls = &mut self.calls[choice as usize];
                    let index = *calls;
                    *calls += 1;
                    let id = format.call_id(&self.place.app.identity.id(""));
                    Piece::Call { choice, index, id, call }
                }
            });
        }
    }

    fn fail(&mut self, error: ApiError) {
        self.over = true;
        self.place.settled = true;
        self.place.trace.failed(error.code.unwrap_or("invalid_request"));
        // The engine learns of it at once, not when the client has read the rest.
        self.cancel = None;
        self.chunks.close();
        self.ready.push_back(Piece::Failed(error));
    }
}

/// A choice that is complete.
#[derive(Debug, Default)]
pub struct WholeChoice {
    /// Its text.
    pub text: String,
    /// Its calls, with their ids.
    pub calls: Vec<(String, ToolCall)>,
    /// One entry a token, where asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Bytes of text before each of these tokens.
    pub offsets: Vec<usize>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

/// Waits for all of an answer.
///
/// # Errors
/// Where any of it failed.
pub async fn whole(mut reply: Reply) -> Result<(Vec<WholeChoice>, Usage), ApiError> {
    let mut choices: Vec<WholeChoice> =
        (0..reply.choices).map(|_| WholeChoice::default()).collect();
    while let Some(piece) = reply.next().await {
        match piece {
            Piece::Text { choice, text, logprobs } => {
                let choice = &mut choices[choice as usize];
                if let Some(logprobs) = logprobs {
                    choice.logprobs.push(logprobs);
                    choice.offsets.push(choice.text.chars().count());
                }
                choice.text.push_str(&text);
            }
            Piece::Call { choice, id, call, .. } => choices[choice as usize].calls.push((id, call)),
            Piece::End { choice, finish, .. } => choices[choice as usize].finish = Some(finish),
            Piece::Done(usage) => return Ok((choices, usage)),
            Piece::Failed(error) => return Err(error),
        }
    }
    Err(ApiError::failed("the answer has no end"))
}
