//! One text on its way through a grammar.

use llguidance::{Matcher, api::StopReason};

use super::{Grammar, GrammarError};

/// Follows one text. Its state is that after the tokens it was last asked about; asked about others,
/// it goes back to where they part.
pub struct GrammarMatcher {
    grammar: Grammar,
    inner: Matcher,
    /// The tokens that it has been through.
    seen: Vec<u32>,
    /// What may come after them, one bit a token, where that was computed.
    allowed: Option<Vec<u32>>,
    /// Of how many of them the text was complete first, if it is.
    complete: Option<usize>,
    /// Whether it has tables of its own already.
    alone: bool,
}

impl std::fmt::Debug for GrammarMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarMatcher").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

impl Clone for GrammarMatcher {
    fn clone(&self) -> Self {
        Self {
            grammar: self.grammar.clone(),
            inner: self.inner.clone(),
            seen: self.seen.clone(),
            allowed: self.allowed.clone(),
            complete: self.complete,
            alone: self.alone,
        }
    }
}

impl GrammarMatcher {
    pub(super) fn new(grammar: Grammar, inner: Matcher) -> Self {
        Self { grammar, inner, seen: Vec::new(), allowed: None, complete: None, alone: false }
    }

    /// The tokens that may follow these: bit `i % 32` of word `i / 32` is token `i`. The last word
    /// may have bits beyond the vocabulary. Where the text is complete and nothing can follow, these
    /// are the tokens that end it.
    ///
    /// # Errors
    /// Tokens that the grammar does not allow, and grammars that are too complex here.
    pub fn allowed(&mut self, tokens: &[u32]) -> Result<&[u32], GrammarError> {
        self.follow(tokens)?;
        if self.allowed.is_none() {
            let mask = match self.inner.compute_mask_or_eos() {
                Ok(mask) => mask,
                Err(_) => {
                    self.begin_again(tokens)?;
                    self.inner.compute_mask_or_eos().map_err(|_| self.stuck())?
                }
            };
            if mask.is_zero() {
                return Err(GrammarError::Stuck { tokens: tokens.len() });
            }
            self.allowed = Some(mask.into());
        }
        Ok(self.allowed.as_deref().unwrap_or_default())
    }

    /// Whether this token may follow these, without the work for all others. `true` is what
    /// [`GrammarMatcher::allowed`] says too; `false` says that the token is not allowed, or that only
    /// [`GrammarMatcher::allowed`] knows.
    pub fn surely_allows(&mut self, tokens: &[u32], token: u32) -> bool {
        if self.follow(tokens).is_err() {
            return false;
        }
        if let Some(mask) = &self.allowed {
            return mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        }
        // Where its tables are full it takes nothing, so a token that it takes is a right one.
        self.grammar.is_plain(token) && self.inner.validate_tokens(&[token]).is_ok_and(|n| n == 1)
    }

    /// Goes on to after these tokens.
    ///
    /// # Errors
    /// As [`GrammarMatcher::allowed`].
    pub fn follow(&mut self, tokens: &[u32]) -> Result<(), GrammarError> {
        let common = self.seen.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if common == self.seen.len() && common == tokens.len() {
            return Ok(());
        }
        if self.walk(common, tokens).is_err() {
            self.begin_again(tokens)?;
        }
        Ok(())
    }

    /// Whether the text is complete and nothing can follow.
    pub fn is_complete(&self) -> bool {
        matches!(
            self.inner.stop_reason(),
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence
        )
    }

    /// Whether the text of these tokens is complete and nothing can follow. It does not go back to
    /// tokens that it has been through.
    ///
    /// # Errors
    /// As [`GrammarMatcher::allowed`].
    pub fn is_completed_by(&mut self, tokens: &[u32]) -> Result<bool, GrammarError> {
        if !self.seen.starts_with(tokens) {
            self.follow(tokens)?;
        }
        Ok(self.complete.is_some_and(|complete| complete <= tokens.len()))
    }

    /// From the state after the first `common` tokens that were seen to that after `tokens`.
    fn walk(&mut self, common: usize, tokens: &[u32]) -> Result<(), ()> {
        self.allowed = None;
        let back = self.seen.len() - common;
        if back > 0 {
            self.inner.rollback(back).map_err(drop)?;
            // It knows its last set by the number of its parser's rows and the lexer's state, which
            // another way to here may share.
            self.inner.invalidate_bias_cache();
            self.seen.truncate(common);
            self.complete = self.complete.filter(|&complete| complete <= common);
        }
        for &token in &tokens[common..] {
            self.inner.consume_token(token).map_err(drop)?;
            self.seen.push(token);
            if self.complete.is_none() && self.is_complete() {
                self.complete = Some(self.seen.len());
            }
        }
        Ok(())
    }

    /// Goes through these tokens from the start, on tables of its own: an error may come of what
    /// others have put into the shared ones.
    fn begin_again(&mut self, tokens: &[u32]) -> Result<(), GrammarError> {
        let error = GrammarError::Stuck { tokens: tokens.len() };
        if std::mem::replace(&mut self.alone, true) {
            return Err(error);
        }
        self.inner = self.grammar.matcher_alone();
        self.seen.clear();
        self.complete = None;
        self.walk(0, tokens).map_err(|()| error)
    }

    fn stuck(&self) -> GrammarError {
        GrammarError::Stuck { tokens: self.seen.len() }
    }
}
