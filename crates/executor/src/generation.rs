//! What the executor knows of a request: how its tokens are chosen, what ends it, and the choices
//! so far.

use dunlin_kvcache::TenantId;
use dunlin_scheduler::Speculate;
use dunlin_tokenizer::grammar::Grammar;

use crate::{
    constraint::Constraint,
    drafter::DraftAcceptance,
    sampler::{SampleError, SamplingParams, TokenLogprob},
    text::ChoiceText,
};

/// How a request's tokens are chosen and looked at.
#[derive(Debug, Clone)]
pub struct GenerationParams {
    /// How tokens are chosen; checked with [`SamplingParams::validate`].
    pub sampling: SamplingParams,
    /// Samples of the prompt, at least one.
    pub choices: u32,
    /// The most tokens of each choice.
    pub max_tokens: u32,
    /// Tokens that end a choice and are part of it.
    pub stop_tokens: Vec<u32>,
    /// Log-probabilities, with this many best alternatives for each token.
    pub logprobs: Option<usize>,
    /// Which drafters may propose.
    pub speculate: Speculate,
    /// Nodes of a draft at most.
    pub max_draft: u32,
    /// Whose earlier answers drafts may come from; its own join them.
    pub tenant: TenantId,
    /// Branches of a draft at most.
    pub max_branches: u32,
    /// How draft tokens come to be accepted.
    pub acceptance: DraftAcceptance,
    /// The text of nothing yet, with the stop strings; each choice starts from a copy.
    pub text: ChoiceText,
    /// What the text of each choice must be.
    pub grammar: Option<Grammar>,
    /// The final hidden state of the prompt's last token is wanted.
    pub hidden: bool,
}

impl GenerationParams {
    /// Whether drafters draw tokens for residual sampling.
    pub fn draws(&self) -> bool {
        self.acceptance == DraftAcceptance::Residual && self.sampling.temperature > 0.0
    }

    /// Whether a choice under a grammar looks at all that is allowed.
    pub(crate) fn wants_all_allowed(&self, vocab_size: usize) -> bool {
        self.draws() || self.sampling.wants_all_allowed(vocab_size)
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

/// What ended a choice, as far as the executor can see.
#[derive(Debug, Clone, PartialEq)]
pub enum ChoiceEnd {
    /// A stop token was chosen.
    StopToken(u32),
    /// A stop string appeared: its index.
    StopString(usize),
    /// The text is what the grammar wants, and nothing can follow.
    Complete,
    /// As many tokens as were wanted.
    MaxTokens,
    /// No token could be chosen.
    Unsampleable(SampleError),
    /// The backend could not compute a step; its message.
    BackendFailed(String),
}

/// One sample of a request.
#[derive(Debug, Clone)]
pub struct ChoiceState {
    /// The tokens chosen, a stop token included.
    pub tokens: Vec<u32>,
    /// One entry a token, where they were asked for.
    pub logprobs: Vec<PositionLogprobs>,
    /// The text so far.
    pub text: ChoiceText,
    /// For each token, the bytes of text that were certain after it.
    pub text_ends: Vec<usize>,
    /// Why it ended, once it has.
    pub end: Option<ChoiceEnd>,
    /// The final hidden state of the token before the choice's first, `[d_model]`, where it was
    /// asked for and the backend has it.
    pub hidden: Option<Vec<f32>>,
    /// What may come next.
    pub(crate) constraint: Option<Constraint>,
}

/// A request's parameters and its choices.
#[derive(Debug, Clone)]
pub struct Generation {
    /// How its tokens are chosen.
    pub params: GenerationParams,
    /// All choices, by number.
    pub choices: Vec<ChoiceState>,
    /// Nanoseconds spent choosing tokens.
    pub sample_ns: u64,
    /// Whether a token was chosen by residual sampling: the choices are not plain decoding's.
    pub residual: bool,
}

impl Generation {
    /// A request that has no tokens yet.
    pub fn new(params: GenerationParams) -> Self {
        let fresh = ChoiceState {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: params.text.clone(),
            text_ends: Vec::new(),
            end: None,
            hidden: None,
            constraint: params.grammar.as_ref().map(Constraint::new),
        };
        let choices = vec![fresh; params.choices as usize];
        Self { params, choices, sample_ns: 0, residual: false }
    }
}

impl GenerationParams {
    /// Whether each token is the largest logit's and nothing else is asked of the logits.
    pub(crate) fn wants_best_alone(&self) -> bool {
        self.sampling.wants_best_alone() && self.logprobs.is_none() && self.grammar.is_none()
    }
}

impl ChoiceState {
    /// Takes the next token, and looks whether the choice ends with it.
    pub(crate) fn push(
        &mut self,
        params: &GenerationParams,
        token: u32,
        logprobs: Option<PositionLogprobs>,
    ) {
        self.tokens.push(token);
        self.logprobs.extend(logprobs);
        self.end = if params.stop_tokens.contains(&token) {
            Some(ChoiceEnd::StopToken(token))
        } else if let Some(which) = self.text.push(token) {
            Some(ChoiceEnd::StopString(which))
        } else if self.constraint.as_ref().is_some_and(|c| c.completed_by(&self.tokens)) {
            Some(ChoiceEnd::Complete)
        } else if self.tokens.len() >= params.max_tokens as usize {
            Some(ChoiceEnd::MaxTokens)
        } else {
            None
        };
        if self.end.is_some() {
            self.text.flush();
        }
        self.text_ends.push(self.text.len());
    }

    /// Ends the choice where it is, unless it has ended already.
    pub(crate) fn finish(&mut self, end: ChoiceEnd) {
        if self.end.is_none() {
            self.text.flush();
            self.end = Some(end);
        }
    }
}
