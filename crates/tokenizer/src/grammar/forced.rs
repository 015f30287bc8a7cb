//! What a grammar leaves no choice about, as a guess at tokens.

use llguidance::{Matcher, toktrie::TokTrie};

use super::Grammar;

/// Bytes of a token that are looked at: long texts that must follow are drafted part by part.
const TOKEN_BYTES: usize = 32;

/// Follows one text on its own and says which tokens spell what must come next. That is a guess: a
/// text can be cut into tokens in more ways than one. What may follow is [`super::GrammarMatcher`]'s to
/// say, and nothing that happens here changes it.
pub struct ForcedText {
    /// None once it was lost.
    inner: Option<Matcher>,
    /// Tokens that it has been through.
    seen: usize,
}

impl std::fmt::Debug for ForcedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForcedText").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl ForcedText {
    pub(super) fn new(inner: Matcher) -> Self {
        Self { inner: Some(inner), seen: 0 }
    }

    /// So many tokens at most that spell what must follow these: none where there is a choice. Each
    /// call's tokens begin with those of the call before. Where the grammar cannot be followed any more
    /// nothing is said.
    pub fn after(&mut self, tokens: &[u32], most: usize) -> Vec<u32> {
        let Some(inner) = &mut self.inner else { return Vec::new() };
        let new = tokens.get(self.seen..).unwrap_or_default();
        if tokens.len() < self.seen || inner.consume_tokens(new).is_err() {
            self.inner = None;
            return Vec::new();
        }
        self.seen = tokens.len();
        let bytes = inner.compute_ff_bytes();
        let Ok(env) = inner.tok_env() else { return Vec::new() };
        // Control tokens are spelt with a mark that no text has.
        let text = bytes.split(|&byte| byte == TokTrie::SPECIAL_TOKEN_MARKER).next();
        let text = text.unwrap_or_default();
        let looked_at = &text[..text.len().min(most.saturating_mul(TOKEN_BYTES))];
        let mut forced = env.tok_trie().greedy_tokenize(looked_at);
        forced.truncate(most);
        forced
    }
}

impl Grammar {
    /// What is forced, at the start of a text.
    pub fn forced_text(&self) -> ForcedText {
        ForcedText::new(self.inner_matcher())
    }
}
