//! What is asked of the engine, and what it answers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use dunlin_executor::{
    ChoiceEnd, PositionLogprobs,
    drafter::DraftAcceptance,
    sampler::{ParamError, SampleError, SamplingParams},
    text::TextOptions,
};
use dunlin_kvcache::TenantId;
use dunlin_scheduler::{Class, End, MAX_BRANCHES, MAX_DRAFT, Rejection, SessionUse, Speculate};
use dunlin_tokenizer::grammar::Grammar;
use dunlin_units::RequestId;

use crate::bill::Bill;

/// Stops a request from outside; checked before every step. Clones stop the same request.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag, for good.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is up.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happens to a request whose prompt and `max_tokens` together exceed the context. (A prompt
/// that exceeds it alone is always refused.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextOverflow {
    /// It is refused.
    #[default]
    Refuse,
    /// It runs, and ends with [`Finish::ContextFull`] where the context does.
    Stop,
}

/// One prompt and what to make of it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt's tokens, at least one. In a session, the tokens that follow what it holds.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Samples wanted; they share the prompt's prefill and KV.
    pub choices: u32,
    /// The most tokens of each choice; `None` is up to the context's end. Zero only in a session:
    /// the prompt is appended, and nothing is chosen.
    pub max_tokens: Option<usize>,
    /// What to do when `max_tokens` does not fit.
    pub overflow: ContextOverflow,
    /// Tokens that end a choice. The token is part of the output, and has no text unless
    /// [`TextOptions::show_special`] gives it one.
    pub stop_tokens: Vec<u32>,
    /// Strings that end a choice; the text ends before them.
    pub stop_strings: Vec<String>,
    /// How tokens become text.
    pub text: TextOptions,
    /// What the text of each choice must be, compiled for this model's vocabulary. A choice ends
    /// where its text is complete and nothing can follow.
    pub grammar: Option<Grammar>,
    /// The final hidden state of the prompt's last token is wanted, as [`Choice::hidden`].
    pub hidden: bool,
    /// Log-probabilities, with this many best alternatives for each token.
    pub logprobs: Option<usize>,
    /// Stops the request.
    pub cancel: CancelFlag,
    /// On whose behalf. Tenants share no KV, and cannot learn of each other's.
    pub tenant: TenantId,
    /// Who goes first.
    pub class: Class,
    /// The session that the prompt continues, and what it keeps of this.
    pub session: Option<SessionUse>,
    /// Nanoseconds from submission after which the request ends whatever has become of it.
    pub expires_ns: Option<u64>,
    /// Nanoseconds from submission within which the first token is due, for policies that look at
    /// it.
    pub due_ns: Option<u64>,
    /// The expected number of output tokens, for policies that look at it.
    pub predicted_tokens: Option<u32>,
    /// Which drafters it uses. They change no token, only how fast they come, but for what `acceptance`
    /// says.
    pub speculate: Speculate,
    /// Draft tokens of a choice that a step verifies at most.
    pub max_draft: u32,
    /// Branches of such a draft at most; 1 for chains.
    pub max_branches: u32,
    /// How draft tokens come to be accepted. The bill says which contract that is.
    pub acceptance: DraftAcceptance,
}

impl Request {
    /// One sample of up to `max_tokens`, with everything else off.
    pub fn new(prompt: Vec<u32>, sampling: SamplingParams, max_tokens: Option<usize>) -> Self {
        Self {
            prompt,
            sampling,
            choices: 1,
            max_tokens,
            overflow: ContextOverflow::default(),
            stop_tokens: Vec::new(),
            stop_strings: Vec::new(),
            text: TextOptions::default(),
            grammar: None,
            hidden: false,
            logprobs: None,
            cancel: CancelFlag::new(),
            tenant: TenantId(0),
            class: Class::default(),
            session: None,
            expires_ns: None,
            due_ns: None,
            predicted_tokens: None,
            speculate: Speculate::Off,
            max_draft: MAX_DRAFT,
            max_branches: MAX_BRANCHES,
            acceptance: DraftAcceptance::default(),
        }
    }
}

/// A request that cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// The prompt has no tokens.
    #[error("the prompt is empty; it needs at least one token")]
    EmptyPrompt,
    /// A prompt token outside the vocabulary.
    #[error("prompt token {token} is outside the model's vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// The vocabulary's size.
        vocab_size: usize,
    },
    /// The prompt leaves no room for a single token.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context} and one must be left for \
         the answer"
    )]
    PromptTooLong {
        /// The prompt's tokens, with those of its session.
        prompt: usize,
        /// The context's size.
        context: usize,
    },
    /// Prompt and output together exceed the context.
    #[error("the prompt's {prompt} tokens and {max_tokens} more exceed the context of {context}")]
    OutputTooLong {
        /// The prompt's tokens, with those of its session.
        prompt: usize,
        /// The tokens asked for.
        max_tokens: usize,
        /// The context's size.
        context: usize,
    },
    /// `max_tokens` is zero, and there is no session to append to.
    #[error("max_tokens is 0; at least one token is generated")]
    NoTokensWanted,
    /// No choices, or more than a step can hold.
    #[error("{choices} samples were asked for; it can be 1 to {limit}")]
    BadChoices {
        /// Samples asked for.
        choices: u32,
        /// The most that a step of this backend holds.
        limit: usize,
    },
    /// The request would not fit even if it ran alone.
    #[error("the request needs KV for {needed} tokens, but the model was loaded with {available}")]
    KvTooSmall {
        /// KV positions needed, in whole blocks.
        needed: usize,
        /// KV positions that there are.
        available: usize,
    },
    /// Text features without a tokenizer.
    #[error("stop strings need a tokenizer, and this model was loaded without one")]
    NoTokenizer,
    /// A stop string that is empty.
    #[error("a stop string is empty")]
    EmptyStopString,
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Param(#[from] ParamError),
}

/// Why a choice ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    /// A stop token was chosen.
    StopToken(u32),
    /// A stop string appeared: its index in [`Request::stop_strings`].
    StopString(usize),
    /// The text is what the grammar wants, and nothing can follow.
    Complete,
    /// `max_tokens` was reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The operator's limit was reached.
    Clipped,
    /// The request was cancelled.
    Cancelled,
    /// Its time was up.
    Expired,
    /// The core did not take it on.
    Rejected(Rejection),
    /// No token could be chosen.
    Unsampleable(SampleError),
    /// The backend could not compute a step; its message.
    BackendFailed(String),
}

impl Finish {
    /// From what the core and the executor know of it.
    pub(crate) fn new(end: &End, seen: Option<ChoiceEnd>, ends_at_context: bool) -> Self {
        match (end, seen) {
            (End::Rejected(rejection), _) => Self::Rejected(rejection.clone()),
            (End::Aborted, _) => Self::Cancelled,
            (End::Expired, _) => Self::Expired,
            (End::Clipped, _) => Self::Clipped,
            (_, Some(ChoiceEnd::StopToken(token))) => Self::StopToken(token),
            (_, Some(ChoiceEnd::StopString(which))) => Self::StopString(which),
            (_, Some(ChoiceEnd::Complete)) => Self::Complete,
            (_, Some(ChoiceEnd::Unsampleable(error))) => Self::Unsampleable(error),
            (_, Some(ChoiceEnd::BackendFailed(message))) => Self::BackendFailed(message),
            (End::Error, _) => Self::BackendFailed("the step failed".into()),
            (End::Length | End::Stop, _) if ends_at_context => Self::ContextFull,
            (End::Length | End::Stop, _) => Self::MaxTokens,
        }
    }

    /// OpenAI's name for it ("error" where it has none).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopString(_) | Self::Complete => "stop",
            Self::MaxTokens | Self::ContextFull | Self::Clipped => "length",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Rejected(_) | Self::Unsampleable(_) | Self::BackendFailed(_) => "error",
        }
    }

    /// What went wrong, where something did.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Rejected(rejection) => Some(rejection.to_string()),
            Self::Unsampleable(error) => Some(error.to_string()),
            Self::BackendFailed(message) => Some(message.clone()),
            _ => None,
        }
    }
}

/// One finished sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Its tokens, a stop token included.
    pub token_ids: Vec<u32>,
    /// Its text, up to but without what stopped it. Empty without a tokenizer.
    pub text: String,
    /// One entry a token, where they were asked for.
    pub logprobs: Option<Vec<PositionLogprobs>>,
    /// The final hidden state of the prompt's last token, `[d_model]`, where it was asked for and
    /// the backend has it.
    pub hidden: Option<Vec<f32>>,
    /// Why it ended.
    pub finish: Finish,
}

/// A finished request.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    /// The samples, by number.
    pub choices: Vec<Choice>,
    /// What it cost.
    pub bill: Bill,
}

/// What a step has to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// A token was chosen.
    Token {
        /// Whose.
        request: RequestId,
        /// In which sample.
        choice: u32,
        /// The token.
        token: u32,
        /// The text that became certain with it; may be empty.
        text: &'a str,
        /// Its log-probability and alternatives, where they were asked for.
        logprobs: Option<&'a PositionLogprobs>,
    },
    /// Text that was held back while it might have been the beginning of something became certain,
    /// because its choice was ended from outside.
    Text {
        /// Whose.
        request: RequestId,
        /// In which sample.
        choice: u32,
        /// The text.
        text: &'a str,
    },
    /// A request is over.
    Finished {
        /// Which.
        request: RequestId,
        /// Its results.
        completion: Completion,
    },
}
