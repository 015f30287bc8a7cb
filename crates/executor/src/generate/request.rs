//! What is asked of the generator, and what it answers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use dunlin_units::RequestId;

use crate::sampler::{ParamError, SampleError, SamplingParams, TokenLogprob};
use crate::text::TextOptions;

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

/// Names KV that is kept between the requests of one conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionId(pub u64);

/// One prompt and what to make of it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt's tokens, at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Samples wanted; they share the prompt's prefill and KV.
    pub choices: u32,
    /// The most tokens of each choice; `None` is up to the context's end.
    pub max_tokens: Option<usize>,
    /// What to do when `max_tokens` does not fit.
    pub overflow: ContextOverflow,
    /// Tokens that end a choice. The token itself counts as output, but adds no text.
    pub stop_tokens: Vec<u32>,
    /// Strings that end a choice; the text ends before them.
    pub stop_strings: Vec<String>,
    /// How tokens become text.
    pub text: TextOptions,
    /// Log-probabilities, with this many best alternatives for each token.
    pub logprobs: Option<usize>,
    /// Reuse the KV of the common prefix with this session's last request, and keep the first
    /// choice's KV for its next.
    pub session: Option<SessionId>,
    /// Stops the request.
    pub cancel: CancelFlag,
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
            logprobs: None,
            session: None,
            cancel: CancelFlag::new(),
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
        /// The prompt's tokens.
        prompt: usize,
        /// The context's size.
        context: usize,
    },
    /// Prompt and output together exceed the context.
    #[error("the prompt's {prompt} tokens and {max_tokens} more exceed the context of {context}")]
    OutputTooLong {
        /// The prompt's tokens.
        prompt: usize,
        /// The tokens asked for.
        max_tokens: usize,
        /// The context's size.
        context: usize,
    },
    /// `max_tokens` is zero.
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
    /// `max_tokens` was reached.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// The request was cancelled.
    Cancelled,
    /// No token could be chosen.
    Unsampleable(SampleError),
    /// The backend could not compute a step; its message.
    BackendFailed(String),
}

impl Finish {
    /// OpenAI's name for it ("error" where it has none).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::StopToken(_) | Self::StopString(_) => "stop",
            Self::MaxTokens | Self::ContextFull => "length",
            Self::Cancelled => "cancelled",
            Self::Unsampleable(_) | Self::BackendFailed(_) => "error",
        }
    }

    /// What went wrong, where something did.
    pub fn error(&self) -> Option<String> {
        match self {
            Self::Unsampleable(error) => Some(error.to_string()),
            Self::BackendFailed(message) => Some(message.clone()),
            _ => None,
        }
    }
}

/// Log-probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionLogprobs {
    /// The chosen token's.
    pub chosen: TokenLogprob,
    /// The best tokens', best first.
    pub top: Vec<TokenLogprob>,
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
    /// Why it ended.
    pub finish: Finish,
}

/// What a request cost. Times are wall-clock nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bill {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, the ones whose KV was there already.
    pub cached_tokens: usize,
    /// Tokens chosen, over all choices.
    pub output_tokens: usize,
    /// Token positions that went through the model.
    pub computed_tokens: usize,
    /// Steps that the request had a part in.
    pub steps: usize,
    /// From submission to its first step.
    pub queue_ns: u64,
    /// From its first step to its first token.
    pub prefill_ns: u64,
    /// From its first token to its end.
    pub decode_ns: u64,
    /// Its part of the steps' time in the backend, by tokens.
    pub compute_share_ns: u64,
    /// Time spent choosing its tokens.
    pub sample_ns: u64,
    /// The most KV bytes it held at once, shared blocks counted once.
    pub kv_bytes: u64,
    /// Its part, by tokens, of the weight bytes that its steps read, where the backend can tell.
    pub weight_bytes_share: Option<u64>,
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
    },
    /// A request is over.
    Finished {
        /// Which.
        request: RequestId,
        /// Its results.
        completion: Completion,
    },
}
