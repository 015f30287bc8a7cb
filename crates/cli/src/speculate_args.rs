//! The flags of speculation.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use dunlin_engine::{
    DrafterKind, EnergyBudget, MAX_BRANCHES, MAX_DRAFT, Speculate,
    drafter::{DraftAcceptance, Drafter, VocabularyMap, model::ModelDrafter},
};
use dunlin_model::{CpuModel, LoadOptions, LoadedModel};
use dunlin_tensor::Backend as _;
use dunlin_tokenizer::{EncodeOptions, Tokenizer};

use crate::outcome::unusable;

/// Who drafts, and how much.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculateArgs {
    /// Who drafts tokens for the model to verify, which changes none of them: lookup (what followed
    /// the same tokens earlier in prompt and answer), store (what followed them in earlier answers, or
    /// in --speculate-corpus), grammar (what the form of the answer leaves no choice about), draft
    /// (--draft-model), layers (the model without some of its layers), auto (all but layers, whichever
    /// pays), or off
    #[arg(long, env = "DUNLIN_SPECULATE", default_value = "auto", value_name = "WHO")]
    pub speculate: Speculate,

    /// A smaller model that drafts, best of the same family
    #[arg(long, env = "DUNLIN_DRAFT_MODEL", value_name = "FILE")]
    pub draft_model: Option<PathBuf>,

    /// Draft tokens of an answer that a step verifies at most
    #[arg(long, env = "DUNLIN_SPECULATE_MAX", default_value_t = MAX_DRAFT, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(..=256))]
    pub speculate_max: u32,

    /// Tokens of earlier answers that are kept in memory to draft from, over all tenants; no tenant
    /// is drafted for from another's. 0 keeps none
    #[arg(long, env = "DUNLIN_SPECULATE_STORE", value_name = "TOKENS", default_value_t = 1 << 18)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=1 << 28))]
    pub speculate_store: u64,

    /// A text that answers are likely to have parts of: drafts for everyone may come from it
    #[arg(long, env = "DUNLIN_SPECULATE_CORPUS", value_name = "FILE")]
    pub speculate_corpus: Option<PathBuf>,
    /// Branches of such a draft at most; 1 for chains
    #[arg(long, env = "DUNLIN_SPECULATE_BRANCHES", default_value_t = MAX_BRANCHES, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    pub speculate_branches: u32,

    /// How draft tokens come to be accepted: coupled (those that plain decoding chooses; changes
    /// nothing) or residual (answers of the same distribution, others than without drafts)
    #[arg(long, env = "DUNLIN_SPECULATE_ACCEPT", default_value = "coupled", value_name = "HOW")]
    pub speculate_accept: DraftAcceptance,

    /// Joules that a token of an answer may take on average, draft tokens that were wrong included, as
    /// far as speculation decides it: drafts are cut until it is kept. Joules are the processor's where
    /// it tells them, and else modelled from time
    #[arg(long, env = "DUNLIN_SPECULATE_JOULES", value_name = "J", value_parser = joules)]
    pub speculate_joules: Option<f64>,
}

/// Reads a number of joules.
pub fn joules(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|j| (1e-6..=1e6).contains(j));
    found.ok_or_else(|| format!("{text:?} is no number of joules from 0.000001 to 1000000"))
}

/// The largest corpus: all of its tokens are indexed in memory.
const MOST_CORPUS_BYTES: u64 = 64 << 20;

impl SpeculateArgs {
    /// The limit on energy, if there is one.
    pub fn energy_budget(&self) -> Option<EnergyBudget> {
        self.speculate_joules.map(|joules| EnergyBudget::new((joules * 1e6) as u64))
    }

    /// Whether drafts may come from earlier answers or a corpus.
    pub fn has_store(&self) -> bool {
        self.speculate_store > 0 || self.speculate_corpus.is_some()
    }

    /// The corpus's tokens, where there is one.
    ///
    /// # Errors
    /// A file that cannot be read, is too large, or is no text.
    pub fn corpus(&self, tokenizer: &Tokenizer) -> anyhow::Result<Option<Vec<u32>>> {
        let Some(path) =
            self.speculate_corpus.as_ref().filter(|_| self.speculate != Speculate::Off)
        else {
            return Ok(None);
        };
        let problem = || format!("cannot use the corpus {}", path.display());
        let file = std::fs::File::open(path).with_context(problem)?;
        let mut text = String::new();
        file.take(MOST_CORPUS_BYTES + 1).read_to_string(&mut text).with_context(problem)?;
        if text.len() as u64 > MOST_CORPUS_BYTES {
            let most = MOST_CORPUS_BYTES >> 20;
            return Err(unusable(format!("{}: it is larger than {most} MiB", problem())));
        }
        let options = EncodeOptions { add_special: false, parse_special: false };
        Ok(Some(tokenizer.encode(&text, options).with_context(problem)?))
    }

    /// The drafters that these flags name, for the model at `path` and its tokenizer; KV for as many tokens as
    /// the model has is theirs at most.
    ///
    /// # Errors
    /// A drafter that has nothing to draft from; a draft model that cannot be loaded, or whose
    /// vocabulary is another.
    pub fn drafters(
        &self,
        path: &Path,
        model: &CpuModel,
        tokenizer: &Tokenizer,
        options: &LoadOptions,
    ) -> anyhow::Result<Vec<Box<dyn Drafter>>> {
        if self.speculate == Speculate::Only(DrafterKind::Store) && !self.has_store() {
            return Err(unusable(
                "--speculate store needs a --speculate-store above 0 or a --speculate-corpus",
            ));
        }
        let own = LoadOptions {
            context: None,
            kv_tokens: Some(model.block_count() * model.block_tokens()),
            team: Some(model.team().clone()),
            ..options.clone()
        };
        if self.speculate == Speculate::Only(DrafterKind::Layers) {
            let layers = model.spec().layers.len();
            let own = LoadOptions {
                context: options.context,
                skip_layers: skipped_layers(layers),
                ..own
            };
            let drafting = dunlin_model::load(path, &own).context("cannot load the model again")?;
            let vocabulary = VocabularyMap::identity(model.spec().vocab_size as u32);
            let kind = DrafterKind::Layers;
            let drafter = ModelDrafter::of_kind(kind, drafting.backend, vocabulary);
            return Ok(vec![Box::new(drafter)]);
        }
        let wants_model = self.speculate == Speculate::Only(DrafterKind::Model);
        if wants_model && self.draft_model.is_none() {
            return Err(unusable("--speculate draft needs a --draft-model"));
        }
        let Some(path) = self.draft_model.as_ref().filter(|_| self.speculate != Speculate::Off)
        else {
            return Ok(Vec::new());
        };
        let LoadedModel { backend, tokenizer: spelling, .. } = dunlin_model::load(path, &own)
            .with_context(|| format!("cannot load the draft model {}", path.display()))?;
        let vocabulary = VocabularyMap::new(tokenizer, &spelling).map_err(unusable)?;
        Ok(vec![Box::new(ModelDrafter::new(backend, vocabulary))])
    }
}

/// The layers that a model drafts without: every other one of its middle. Those at both ends matter
/// most (as SWIFT and others found).
fn skipped_layers(layers: usize) -> Vec<usize> {
    (layers / 5 + 1..layers - layers.min(2 + layers / 8)).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_layers_stay() {
        assert_eq!(skipped_layers(28), (6..23).step_by(2).collect::<Vec<_>>());
        for layers in 1..64 {
            let skipped = skipped_layers(layers);
            assert!(!skipped.contains(&0) && !skipped.contains(&(layers - 1)));
            assert!(skipped.len() * 2 <= layers);
        }
    }

    #[test]
    fn joules_are_positive_numbers() {
        assert_eq!(joules("0.25"), Ok(0.25));
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "a"] {
            assert!(joules(bad).is_err(), "{bad}");
        }
    }
}
