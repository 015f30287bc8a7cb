//! Runs tokens through a backend and hands out logits position by position.
//!
//! One sequence at a time, all of the backend's KV blocks are its own. The logits of a long text
//! never lie in memory together.

use anyhow::Context as _;
use dunlin_tensor::{Backend, LogitsWanted, SequenceInput};

use crate::outcome::unusable;

/// The most values of logits that one step may give: 64 MiB.
const STEP_LOGITS: usize = 16 << 20;
/// Enough tokens in a step for the products to run at full speed.
const STEP_TOKENS: usize = 512;

/// One sequence on a backend.
pub struct Scorer<'a> {
    backend: &'a mut dyn Backend,
    /// Every block, in order.
    table: Vec<u32>,
    logits: Vec<f32>,
    vocab_size: usize,
}

impl<'a> Scorer<'a> {
    /// Takes the whole backend.
    pub fn new(backend: &'a mut dyn Backend) -> Self {
        let blocks = u32::try_from(backend.block_count()).unwrap_or(u32::MAX);
        let vocab_size = backend.spec().vocab_size;
        Self { backend, table: (0..blocks).collect(), logits: Vec::new(), vocab_size }
    }

    /// The number of logits of a position.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The most positions that the sequence may have.
    pub fn capacity(&self) -> usize {
        self.table.len() * self.backend.block_tokens()
    }

    /// Computes `tokens`, the first of them at `position` (everything before is there already), and
    /// calls `each(position, logits)` for the positions from `wanted_from` on.
    ///
    /// # Errors
    /// Tokens outside the vocabulary, a sequence longer than the KV, and what `each` answers.
    pub fn run(
        &mut self,
        tokens: &[u32],
        position: usize,
        wanted_from: usize,
        mut each: impl FnMut(usize, &[f32]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let end = position + tokens.len();
        if end > self.capacity() {
            let capacity = self.capacity();
            return Err(unusable(format!("{end} tokens do not fit into {capacity} of KV")));
        }
        let mut at = position;
        while at < end {
            let wanted = at >= wanted_from;
            let mut step = STEP_TOKENS.min(self.backend.max_step_tokens()).min(end - at);
            if wanted {
                step = step.min((STEP_LOGITS / self.vocab_size).max(1));
            } else {
                step = step.min(wanted_from - at);
            }
            let step = step.max(1);
            let tokens = &tokens[at - position..at - position + step];
            self.step(tokens, at, wanted)?;
            if wanted {
                for (i, logits) in self.logits.chunks_exact(self.vocab_size).enumerate() {
                    each(at + i, logits)?;
                }
            }
            at += step;
        }
        Ok(())
    }

    fn step(&mut self, tokens: &[u32], position: usize, wanted: bool) -> anyhow::Result<()> {
        let logits = if wanted { LogitsWanted::All } else { LogitsWanted::None };
        let blocks = (position + tokens.len()).div_ceil(self.backend.block_tokens());
        let input = SequenceInput {
            tokens,
            first_position: position,
            block_table: &self.table[..blocks],
            logits,
            branch_of: None,
        };
        self.backend
            .forward(&[input], &mut self.logits)
            .with_context(|| format!("position {position}"))?;
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use dunlin_spec::ModelSpec;
    use dunlin_tensor::BackendError;

    /// A backend whose logits are a function of the tokens so far, so that tests know them: the
    /// logit of `v` after a token `t` at position `p` is `table(t, p, v)`.
    pub struct Fake<F> {
        spec: ModelSpec,
        logit: F,
        /// The tokens of each step, for tests of how work is cut.
        pub steps: Vec<(usize, usize, LogitsWanted)>,
    }

    impl<F: Fn(u32, usize, usize) -> f32 + Send> Fake<F> {
        pub fn new(vocab_size: usize, logit: F) -> Self {
            let spec = ModelSpec {
                architecture: "fake".into(),
                name: None,
                vocab_size,
                d_model: 32,
                context_length: 4096,
                norm_eps: 1e-5,
                embed_scale: None,
                tied_head: true,
                logit_softcap: None,
                logit_scale: None,
                layers: Vec::new(),
            };
            Self { spec, logit, steps: Vec::new() }
        }
    }

    impl<F: Fn(u32, usize, usize) -> f32 + Send> Backend for Fake<F> {
        fn spec(&self) -> &ModelSpec {
            &self.spec
        }
        fn block_tokens(&self) -> usize {
            16
        }
        fn block_count(&self) -> usize {
            256
        }
        fn block_bytes(&self) -> usize {
            1024
        }
        fn max_step_tokens(&self) -> usize {
            100
        }
        fn forward(
            &mut self,
            batch: &[SequenceInput<'_>],
            logits: &mut Vec<f32>,
        ) -> Result<(), BackendError> {
            logits.clear();
            for input in batch {
                let n = input.tokens.len();
                self.steps.push((input.first_position, n, input.logits));
                assert!(input.block_table.len() >= (input.first_position + n).div_ceil(16));
                for (i, &token) in input.tokens.iter().enumerate() {
                    let wanted = match input.logits {
                        LogitsWanted::None => false,
                        LogitsWanted::Last => i + 1 == n,
                        LogitsWanted::All => true,
                    };
                    if wanted {
                        let p = input.first_position + i;
                        logits.extend((0..self.spec.vocab_size).map(|v| (self.logit)(token, p, v)));
                    }
                }
            }
            Ok(())
        }
        fn copy_block(&mut self, _from: u32, _to: u32, _tokens: usize) {}
    }

    #[test]
    fn every_wanted_position_comes_once_and_in_order() {
        for (length, from) in [(1, 0), (250, 0), (250, 249), (250, 130), (99, 500)] {
            let mut fake = Fake::new(4, |t, p, v| t as f32 + p as f32 * 10.0 + v as f32 * 0.1);
            let tokens: Vec<u32> = (0..length as u32).map(|t| t % 4).collect();
            let mut seen = Vec::new();
            Scorer::new(&mut fake)
                .run(&tokens, 0, from, |p, logits| {
                    assert_eq!(logits[3], (p as u32 % 4) as f32 + p as f32 * 10.0 + 3.0 * 0.1);
                    seen.push(p);
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen, (from..length).collect::<Vec<_>>(), "{length} from {from}");
            let computed: usize = fake.steps.iter().map(|s| s.1).sum();
            assert_eq!(computed, length, "each token once");
        }
    }

    #[test]
    fn a_sequence_goes_on_where_it_was() {
        let mut fake = Fake::new(4, |t, p, _| (t as usize * 1000 + p) as f32);
        let mut scorer = Scorer::new(&mut fake);
        assert_eq!(scorer.capacity(), 4096);
        let mut got = Vec::new();
        let mut keep = |_: usize, logits: &[f32]| {
            got.push(logits[0]);
            Ok(())
        };
        scorer.run(&[0, 1], 0, 1, &mut keep).unwrap();
        scorer.run(&[2], 2, 2, &mut keep).unwrap();
        assert!(scorer.run(&[0], 4096, 0, &mut keep).is_err(), "past the KV");
        assert_eq!(got, [1001.0, 2002.0]);
    }
}
