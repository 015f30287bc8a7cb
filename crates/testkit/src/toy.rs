//! A backend whose logits are a hash of the whole prefix as its KV blocks hold it: a wrong block
//! table, a lost or doubly used block or a wrong position changes them.

use dunlin_spec::ModelSpec;
use dunlin_tensor::{Backend, BackendError, KvLanes, LogitsWanted, SequenceInput, inherited};
use dunlin_units::SeedTree;

/// A slot of KV that was never written.
const EMPTY: u32 = u32::MAX;

/// A "model" whose KV of a token is the token itself.
#[derive(Debug)]
pub struct Toy {
    spec: ModelSpec,
    block_tokens: usize,
    max_step_tokens: usize,
    /// `[blocks][block_tokens]`
    kv: Vec<Vec<u32>>,
    /// The first logit of each row of the last step.
    hidden: Vec<f32>,
    /// The sizes of the steps seen.
    pub steps: Vec<usize>,
    /// A step with this token fails.
    pub fails_on: Option<u32>,
    /// After this token the logits are NaN.
    pub nan_after: Option<u32>,
    /// A step with this token panics.
    pub panics_on: Option<u32>,
}

impl Toy {
    /// The vocabulary's size.
    pub const VOCAB: usize = 50;

    /// A backend of so many blocks.
    pub fn new(blocks: usize, block_tokens: usize, max_step_tokens: usize) -> Self {
        let spec = ModelSpec {
            architecture: "toy".into(),
            name: None,
            vocab_size: Self::VOCAB,
            d_model: 1,
            context_length: 1 << 20,
            norm_eps: 1e-5,
            embed_scale: None,
            tied_head: true,
            logit_softcap: None,
            logit_scale: None,
            layers: Vec::new(),
        };
        Self {
            spec,
            block_tokens,
            max_step_tokens,
            kv: vec![vec![EMPTY; block_tokens]; blocks],
            hidden: Vec::new(),
            steps: Vec::new(),
            fails_on: None,
            nan_after: None,
            panics_on: None,
        }
    }

    /// Logits after a prefix, without any KV.
    pub fn logits_after(prefix: &[u32]) -> Vec<f32> {
        let mut node = SeedTree::root(0x70E);
        for &token in prefix {
            node = node.child_at(u64::from(token));
        }
        let mut stream = node.stream();
        (0..Self::VOCAB).map(|_| (stream.next_unit() * 6.0) as f32).collect()
    }

    /// Random tokens of its vocabulary.
    pub fn prompt(seed: u64, length: usize) -> Vec<u32> {
        let mut random = SeedTree::root(seed).child("prompt").stream();
        (0..length).map(|_| random.next_below(Self::VOCAB as u64) as u32).collect()
    }

    fn write(&mut self, seq: &SequenceInput<'_>) -> Result<(), BackendError> {
        for (i, &token) in seq.tokens.iter().enumerate() {
            if Some(token) == self.fails_on {
                return Err(BackendError::OutOfMemory("as the test wants".into()));
            }
            assert!(Some(token) != self.panics_on, "as the test wants");
            let position = seq.first_position + i;
            let block = seq.block_table[position / self.block_tokens] as usize;
            self.kv[block][position % self.block_tokens] = token;
        }
        Ok(())
    }

    /// The logits after the first `end` tokens of a sequence.
    fn row(&self, seq: &SequenceInput<'_>, end: usize) -> Vec<f32> {
        let prefix: Vec<u32> = (0..end)
            .map(|p| {
                let block = seq.block_table[p / self.block_tokens] as usize;
                self.kv[block][p % self.block_tokens]
            })
            .collect();
        assert!(!prefix.contains(&EMPTY), "KV that was never written is read");
        let mut row = Self::logits_after(&prefix);
        if self.nan_after.is_some() && prefix.last().copied() == self.nan_after {
            row[7] = f32::NAN;
        }
        row
    }
}

impl Backend for Toy {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }
    fn block_tokens(&self) -> usize {
        self.block_tokens
    }
    fn block_count(&self) -> usize {
        self.kv.len()
    }
    fn block_bytes(&self) -> usize {
        4 * self.block_tokens
    }
    fn max_step_tokens(&self) -> usize {
        self.max_step_tokens
    }
    fn weight_bytes_per_step(&self) -> Option<u64> {
        Some(1000)
    }

    fn forward(
        &mut self,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        logits.clear();
        let size: usize = batch.iter().map(|s| s.tokens.len()).sum();
        assert!(size > 0 && size <= self.max_step_tokens, "a step of {size} tokens");
        assert!(batch.iter().all(|s| !s.tokens.is_empty()));
        self.steps.push(size);
        // All KV of the step is written before anything is read, so that sequences that write to
        // the same slot are seen.
        for seq in batch {
            self.write(seq)?;
        }
        for (i, seq) in batch.iter().enumerate() {
            for (position, of) in inherited(batch, i, self.block_tokens) {
                let token = batch[of].tokens[position - batch[of].first_position];
                let block = seq.block_table[position / self.block_tokens] as usize;
                self.kv[block][position % self.block_tokens] = token;
            }
        }
        for seq in batch {
            let end = seq.first_position + seq.tokens.len();
            assert!(seq.block_table.len() * self.block_tokens >= end);
            let from = match seq.logits {
                LogitsWanted::None => end,
                LogitsWanted::Last => end - 1,
                LogitsWanted::All => seq.first_position,
            };
            for position in from..end {
                logits.extend(self.row(seq, position + 1));
            }
        }
        self.hidden = logits.chunks(Self::VOCAB).map(|row| row[0]).collect();
        Ok(())
    }

    fn hidden_states(&self, to: &mut Vec<f32>) -> bool {
        to.extend(&self.hidden);
        true
    }

    fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        assert!(tokens > 0 && tokens <= self.block_tokens, "{tokens} positions are copied");
        let copied = self.kv[from as usize][..tokens].to_vec();
        // What the copy does not hold is garbage, as it may be in a real backend.
        self.kv[to as usize].fill(EMPTY);
        self.kv[to as usize][..tokens].copy_from_slice(&copied);
    }

    fn kv_token_bytes(&self) -> usize {
        4
    }

    fn kv_layout_fingerprint(&self) -> u64 {
        0x70E
    }

    fn export_block(&self, block: u32, tokens: usize, to: &mut Vec<u8>) {
        to.extend(self.kv[block as usize][..tokens].iter().flat_map(|t| t.to_le_bytes()));
    }

    fn import_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        let (tokens, rest) = from.as_chunks::<4>();
        let bad = |problem: &str| Err(BackendError::BadKv { block, problem: problem.into() });
        if !rest.is_empty() || tokens.len() > self.block_tokens {
            return bad("not as many bytes as a block takes");
        }
        let Some(slots) = self.kv.get_mut(block as usize) else { return bad("there is none") };
        for (slot, token) in slots.iter_mut().zip(tokens) {
            *slot = u32::from_le_bytes(*token);
        }
        Ok(())
    }
    fn move_kv(
        &mut self,
        from: KvLanes,
        to: KvLanes,
        tokens: usize,
        _by: i64,
    ) -> Result<(), BackendError> {
        assert_ne!(from.block, to.block);
        for i in 0..tokens {
            let moved = self.kv[from.block as usize][from.first + i];
            self.kv[to.block as usize][to.first + i] = moved;
        }
        Ok(())
    }
}
