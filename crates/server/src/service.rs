//! What the protocols ask of an engine: one request, one stream of events, and a few questions.
//!
//! The codecs know nothing of the engine, the engine nothing of HTTP. Tests put a scripted service
//! in the engine's place.

use dunlin_engine::{Speculate, drafter::DraftAcceptance};
use dunlin_executor::sampler::SamplingParams;
use dunlin_kvcache::TenantId;
use dunlin_scheduler::Keep;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::constraint::Constraint;

/// Text, tokens or a conversation to go on from.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Continued as it is, behind BOS where the model adds one.
    Text(String),
    /// Continued as they are.
    Tokens(Vec<u32>),
    /// Rendered by the model's chat template.
    Chat(Chat),
}

/// A conversation in the form that chat templates take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chat {
    /// Objects with `role` and `content`; arguments of tool calls are objects.
    pub messages: Vec<Value>,
    /// Tools as OpenAI describes them: `{"type": "function", "function": {...}}`.
    pub tools: Vec<Value>,
    /// Further variables of the template.
    pub variables: Map<String, Value>,
    /// What the prompt ends with.
    pub ending: ChatEnding,
}

/// How a rendered conversation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChatEnding {
    /// With the start of the assistant's turn.
    #[default]
    Generation,
    /// With the end of the last message's text, so that the answer continues it.
    Continue,
    /// Where the template ends the last message.
    Closed,
}

/// One request to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// A model's id, as [`Service::models`] lists it.
    pub model: String,
    /// What to go on from.
    pub input: Input,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Samples wanted, at least one.
    pub choices: u32,
    /// The most tokens of each choice; without it, and where it does not fit, up to the context's
    /// end.
    pub max_tokens: Option<usize>,
    /// Strings that end a choice; its text ends before them.
    pub stop_strings: Vec<String>,
    /// Tokens that end a choice, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Go on past the model's own end tokens.
    pub ignore_eos: bool,
    /// Log-probabilities, with this many best alternatives for each token.
    pub logprobs: Option<usize>,
    /// Show the names of control tokens in the text.
    pub show_special: bool,
    /// Which drafters it uses; the server's own setting where it does not say.
    pub speculate: Option<Speculate>,
    /// How draft tokens come to be accepted; the server's own setting where it does not say.
    pub acceptance: Option<DraftAcceptance>,
    /// What the text of each choice must be.
    pub constraint: Option<Constraint>,
    /// The final hidden state of the prompt's last token is wanted, and nothing else.
    pub hidden: bool,
    /// On whose behalf.
    pub tenant: TenantId,
    /// The session that the input follows.
    pub session: Option<InSession>,
}

/// A session that a request continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InSession {
    /// Its name among the tenant's.
    pub id: String,
    /// What it keeps of the request.
    pub keep: Keep,
}

/// What is to be done with a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionCall {
    /// Make it.
    Create,
    /// Nothing: tell how it is.
    Get,
    /// Copy it; the copy is told of.
    Fork {
        /// The copy's name.
        to: String,
    },
    /// Cut it off.
    Rewind {
        /// Tokens that stay.
        tokens: usize,
    },
    /// Remove tokens from its middle.
    Prune {
        /// The first that goes.
        from: usize,
        /// The first that stays.
        to: usize,
        /// Keep the KV of those after them, instead of computing it again.
        keep_kv: bool,
    },
    /// Save it.
    Save {
        /// The file's name.
        file: String,
    },
    /// Make it from a file.
    Restore {
        /// The file's name.
        file: String,
    },
    /// End it.
    Close,
}

/// How a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    /// Its name among the tenant's.
    pub id: String,
    /// Tokens that it holds.
    pub tokens: usize,
    /// Whether a request is extending it.
    pub busy: bool,
}

impl Generate {
    /// One sample of a model's own distribution, with everything else off.
    pub fn new(model: String, input: Input) -> Self {
        Self {
            model,
            input,
            sampling: SamplingParams::default(),
            choices: 1,
            max_tokens: None,
            stop_strings: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            show_special: false,
            speculate: None,
            acceptance: None,
            constraint: None,
            hidden: false,
            tenant: TenantId(0),
            session: None,
        }
    }

    /// The final hidden state of an input's last token.
    pub fn hidden(model: String, input: Input) -> Self {
        let sampling = SamplingParams::greedy();
        Self { hidden: true, max_tokens: Some(1), sampling, ..Self::new(model, input) }
    }
}

/// A request that was taken.
#[derive(Debug)]
pub struct Generation {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What comes of it, up to [`Chunk::Done`]; that it ends before says that the engine is gone.
    pub chunks: mpsc::Receiver<Chunk>,
    /// Cancels the request. Of no effect when it is over.
    pub cancel: OnDrop,
}

/// Something that is done when this is dropped.
pub struct OnDrop(Option<Box<dyn FnOnce() + Send + Sync>>);

impl OnDrop {
    /// Does this.
    pub fn new(action: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(action)))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(action) = self.0.take() {
            action();
        }
    }
}

impl std::fmt::Debug for OnDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDrop")
    }
}

/// What a request produces.
#[derive(Debug, Clone, PartialEq)]
pub enum Chunk {
    /// A token was chosen.
    Token {
        /// In which sample.
        choice: u32,
        /// The text that became certain with it; may be empty.
        text: String,
        /// Where asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The final hidden state of the prompt's last token, `[d_model]`, where it was asked for.
    Hidden(Vec<f32>),
    /// A sample ended.
    End {
        /// Which.
        choice: u32,
        /// Why.
        finish: Finish,
    },
    /// All samples have ended.
    Done(Usage),
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token's.
    pub chosen: TokenLogprob,
    /// The best tokens', best first.
    pub top: Vec<TokenLogprob>,
}

/// A token and how likely it was.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its bytes, which need not be whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, before sampling parameters.
    pub logprob: f32,
}

/// Why a sample ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// A stop token, the model's own or one that was asked for.
    StopToken,
    /// This stop string.
    StopString(String),
    /// `max_tokens`, or the end of the context.
    Length,
    /// It was cancelled from the server's side.
    Cancelled,
    /// It failed; fit to be shown to a client.
    Failed(String),
    /// Its grammar is too complex to go on, or leaves nothing to go on with.
    Stuck(String),
    /// The engine did not take it on.
    Refused(ServiceError),
}

impl Finish {
    /// A word for it, in vLLM's terms.
    pub fn label(&self) -> &'static str {
        match self {
            Self::StopToken | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Cancelled => "abort",
            Self::Failed(_) | Self::Stuck(_) | Self::Refused(_) => "error",
        }
    }
}

/// What a request cost. Times are wall-clock nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones whose KV was there already.
    pub cached_tokens: usize,
    /// Tokens chosen, over all samples.
    pub output_tokens: usize,
    /// Tokens that were drafted and verified.
    pub drafted_tokens: usize,
    /// Of those, the ones that became output.
    pub accepted_tokens: usize,
    /// What holds of the output beside plain decoding's: `exact` or `distribution`.
    pub speculation_contract: &'static str,
    /// From submission to the first step.
    pub queue_ns: u64,
    /// From the first step to the first token.
    pub prefill_ns: u64,
    /// From the first token to the end.
    pub decode_ns: u64,
}

/// A model that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name on the wire.
    pub id: String,
    /// The most tokens of a sequence, prompt and answer together.
    pub context: usize,
    /// Tokens in its vocabulary.
    pub vocab_size: usize,
    /// Seconds since 1970 at which its file was made.
    pub created: u64,
    /// Bytes of its file.
    pub size_bytes: u64,
    /// Its architecture's name.
    pub architecture: String,
    /// Its parameters.
    pub parameters: u64,
    /// The name of its commonest weight type.
    pub quantization: String,
    /// Its chat template's source; none for models that only continue text.
    pub template: Option<String>,
    /// Hex digits that differ between files.
    pub digest: String,
}

/// Whether there is an engine to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The model is still being loaded.
    Loading,
    /// Requests are served.
    Ready,
    /// The engine stopped and will not come back.
    Dead,
    /// A model's file was shortened while it was in use: what it held is lost.
    Damaged,
}

impl Health {
    /// Why requests are not served.
    pub fn problem(self) -> Option<&'static str> {
        match self {
            Self::Ready => None,
            Self::Loading => Some("the model is being loaded"),
            Self::Dead => Some("the engine has stopped"),
            Self::Damaged => Some(
                "a model's file was shortened while it was in use; put it back and start the \
                 server again",
            ),
        }
    }
}

/// What the engine holds at one moment, and what it has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests that have a part in steps.
    pub running: usize,
    /// Requests that wait for their first step.
    pub waiting: usize,
    /// KV blocks in all.
    pub kv_blocks: usize,
    /// KV blocks that requests hold.
    pub kv_blocks_used: usize,
    /// Tokens in a KV block.
    pub block_tokens: usize,
    /// Requests that gave way to others, ever.
    pub preemptions: u64,
    /// Steps run.
    pub steps: u64,
    /// Token positions that went through the model.
    pub computed_tokens: u64,
    /// Nanoseconds spent in steps.
    pub step_ns: u64,
    /// Microjoules of all steps.
    pub microjoules: u64,
    /// Where joules come from.
    pub energy_source: &'static str,
}

/// A request that is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// A field cannot be used.
    #[error("{message}")]
    Unusable {
        /// Its name on the wire, where one is at fault.
        field: Option<&'static str>,
        /// What is wrong with it; shows no prompt.
        message: String,
    },
    /// The prompt leaves no room in the context.
    #[error(
        "the prompt has {prompt} tokens, but the model's context holds {context} and at least one \
         is needed for the answer"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// What is named is not there.
    #[error("{0}")]
    NotFound(&'static str),
    /// What is there does not go together with it.
    #[error("{0}")]
    Conflict(&'static str),
    /// A file could not be written or read; shows no path.
    #[error("{0}")]
    Storage(String),
    /// Too much is waiting already.
    #[error("too many requests are waiting; try again later")]
    Overloaded,
    /// The model is not loaded yet, or the engine is gone.
    #[error("the engine is not available")]
    Unavailable,
    /// Something failed that is not the request's fault; fit to be shown to a client.
    #[error("{0}")]
    Failed(String),
}

/// An engine, as the protocols see it. All calls may take CPU time and are made where blocking is
/// allowed, except [`Service::health`] and [`Service::models`], which answer at once.
pub trait Service: Send + Sync + 'static {
    /// Whether requests can be served.
    fn health(&self) -> Health;

    /// The models, the default first; empty until one is loaded.
    fn models(&self) -> Vec<ModelInfo>;

    /// What goes on now; zeros while there is no engine. May wait for a step to end.
    fn stats(&self) -> Stats;

    /// Whether nothing would be lost if the model were unloaded: no request and no session is there.
    fn is_idle(&self) -> bool {
        false
    }

    /// The tokens of an input.
    ///
    /// # Errors
    /// Inputs that the model or its template refuses.
    fn encode(&self, model: &str, input: &Input) -> Result<Vec<u32>, ServiceError>;

    /// The text of tokens, invalid UTF-8 replaced.
    ///
    /// # Errors
    /// Tokens outside the vocabulary.
    fn decode(&self, model: &str, tokens: &[u32]) -> Result<String, ServiceError>;

    /// A conversation as the model's template renders it.
    ///
    /// # Errors
    /// Models without a template, and conversations that it refuses.
    fn render(&self, model: &str, chat: &Chat) -> Result<String, ServiceError>;

    /// Takes a request.
    ///
    /// # Errors
    /// Requests that can never run, and those that there is no room for.
    fn generate(&self, request: Generate) -> Result<Generation, ServiceError>;

    /// Does something with one of a tenant's sessions, and tells how it is then.
    ///
    /// # Errors
    /// Sessions that are not there or in use, and what cannot be done with them.
    fn session(
        &self,
        tenant: TenantId,
        model: &str,
        id: &str,
        call: SessionCall,
    ) -> Result<SessionState, ServiceError>;

    /// A tenant's sessions, by name.
    ///
    /// # Errors
    /// Where there is no engine.
    fn sessions(&self, tenant: TenantId, model: &str) -> Result<Vec<SessionState>, ServiceError>;

    /// Registers a question to the request's session, and names it.
    ///
    /// # Errors
    /// As [`Service::generate`].
    fn register(&self, request: Generate) -> Result<u64, ServiceError>;

    /// Whether a question is answered; with `forget` it is then forgotten.
    ///
    /// # Errors
    /// There is no such session or question.
    fn question(
        &self,
        tenant: TenantId,
        model: &str,
        session: &str,
        question: u64,
        forget: bool,
    ) -> Result<bool, ServiceError>;

    /// Asks a registered question.
    ///
    /// # Errors
    /// There is no such session or question, or it cannot be asked any more.
    fn ask(
        &self,
        tenant: TenantId,
        model: &str,
        session: &str,
        question: u64,
    ) -> Result<Generation, ServiceError>;
}
