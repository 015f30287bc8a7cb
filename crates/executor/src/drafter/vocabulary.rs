//! Tokens of one vocabulary in another.
//!
//! Models of a family often have the same vocabulary, sometimes cut at different lengths; then a
//! token is its own. Where vocabularies differ, a token that the other has with the same bytes is
//! that one, and any other becomes the tokens of its bytes. What a drafter proposes must have one
//! token with the same bytes; where it has none, the draft ends.

use std::collections::HashMap;

use dunlin_tokenizer::{EncodeOptions, Tokenizer};

/// See the module.
#[derive(Debug, Clone)]
pub struct VocabularyMap {
    /// Tokens of the draft model for each of the model's; empty where both are the same.
    to_draft: Vec<Box<[u32]>>,
    /// The model's token for each of the draft model's.
    from_draft: Vec<Option<u32>>,
    /// Tokens that both have, where they are the same.
    same: u32,
}

/// Two vocabularies that have too little in common.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the draft model's vocabulary has {common} of the model's {vocab_size} tokens; it needs at least \
     half of them"
)]
pub struct VocabularyMismatch {
    /// Tokens that it has with the same bytes.
    pub common: usize,
    /// The model's tokens.
    pub vocab_size: usize,
}

impl VocabularyMap {
    /// Both models have the same tokens, `vocab_size` at least.
    pub fn identity(vocab_size: u32) -> Self {
        Self { to_draft: Vec::new(), from_draft: Vec::new(), same: vocab_size }
    }

    /// The map from a model's vocabulary to its draft model's.
    ///
    /// # Errors
    /// They have less than half of the tokens in common.
    pub fn new(model: &Tokenizer, draft: &Tokenizer) -> Result<Self, VocabularyMismatch> {
        let (count, draft_count) = (model.n_tokens(), draft.n_tokens());
        let both = count.min(draft_count);
        if (0..both).all(|id| model.token_bytes(id) == draft.token_bytes(id)) {
            return Ok(Self::identity(both));
        }
        let mut by_bytes: HashMap<&[u8], u32> = HashMap::new();
        for id in (0..draft_count).rev() {
            if let Some(bytes) = draft.token_bytes(id).filter(|b| !b.is_empty()) {
                by_bytes.insert(bytes, id);
            }
        }
        let options = EncodeOptions { add_special: false, parse_special: false };
        let mut from_draft = vec![None; draft_count as usize];
        let mut common = 0;
        let spelt = |id: u32| {
            let bytes = model.token_bytes(id).unwrap_or_default();
            let text = String::from_utf8_lossy(bytes);
            draft.encode(&text, options).unwrap_or_default().into_boxed_slice()
        };
        let to_draft = (0..count)
            .map(|id| {
                let bytes = model.token_bytes(id).unwrap_or_default();
                match by_bytes.get(bytes) {
                    Some(&other) => {
                        common += 1;
                        from_draft[other as usize].get_or_insert(id);
                        Box::from([other])
                    }
                    None => spelt(id),
                }
            })
            .collect();
        if common * 2 < count as usize {
            return Err(VocabularyMismatch { common, vocab_size: count as usize });
        }
        Ok(Self { to_draft, from_draft, same: 0 })
    }

    /// The map of two vocabularies of which each token of the draft model's has this one, no two the
    /// same.
    #[cfg(test)]
    pub(super) fn of_names(from_draft: Vec<Option<u32>>, vocab_size: u32) -> Self {
        let id = |token| from_draft.iter().position(|&name| name == Some(token));
        let to_draft = (0..vocab_size).map(|t| id(t).into_iter().map(|id| id as u32).collect());
        Self { to_draft: to_draft.collect(), from_draft, same: 0 }
    }

    /// Whether a token of the one is the same of the other.
    pub fn is_identity(&self) -> bool {
        self.to_draft.is_empty()
    }

    /// Appends the draft model's tokens for one of the model's. None for tokens that it cannot say.
    pub(super) fn push(&self, token: u32, to: &mut Vec<u32>) {
        if !self.is_identity() {
            to.extend_from_slice(self.to_draft.get(token as usize).map_or(&[], |t| &t[..]));
        } else if token < self.same {
            to.push(token);
        }
    }

    /// The model's token for one of the draft model's.
    pub(super) fn back(&self, token: u32) -> Option<u32> {
        if self.is_identity() {
            (token < self.same).then_some(token)
        } else {
            self.from_draft.get(token as usize).copied().flatten()
        }
    }
}
