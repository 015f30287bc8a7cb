//! The CPU backend: a pack, a program, a KV pool and the threads that run steps.

use crate::pack::Pack;
use crate::{LoadOptions, ModelError, assemble, weights};
use dunlin_checkpoint::Role;
use dunlin_kernels_cpu::kv::{BLOCK_TOKENS, KvGeometry, KvPool, needs_wide_keys};
use dunlin_kernels_cpu::pool::SharedTeam;
use dunlin_kernels_cpu::program::{Machine, Op, Program, Rows, StepTimes, Weights};
use dunlin_kernels_cpu::{CpuFeatures, KernelError};
use dunlin_spec::{FfnSpec, ModelSpec, WeightType};
use dunlin_tensor::{Backend, BackendError, Best, KvLanes, Screening, SequenceInput};
use std::path::Path;

/// A step holds as many tokens as keep its activations below this many bytes.
const STEP_BYTES: usize = 16 << 20;
/// The most new tokens of a step, however narrow the model.
const STEP_TOKENS: usize = 512;

/// A model on the CPU.
pub struct CpuModel {
    spec: ModelSpec,
    pack: Pack,
    vectors: Vec<Vec<f32>>,
    kv: KvPool,
    machine: Machine,
    max_step_tokens: usize,
    weight_bytes: u64,
}

impl CpuModel {
    pub(crate) fn new(
        path: &Path,
        pack: Pack,
        threads: usize,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        let limit = pack.index.spec.context_length;
        let context = options.context.unwrap_or(limit);
        if context == 0 || context > limit {
            return Err(ModelError::BadContext { path: path.to_path_buf(), context, limit });
        }
        let spec = pack.spec_for(context).clone();
        let types: Vec<WeightType> = pack.index.matrices.iter().map(|m| m.ty).collect();
        let program = assemble::assemble(&spec, &types, options.activations, &options.skip_layers);
        let cpu = match options.cpu {
            Some(cpu) => cpu,
            None => CpuFeatures::detect()?,
        };
        // A block more for each: a copy on write holds two for a moment.
        let all = || context.saturating_add(BLOCK_TOKENS).saturating_mul(options.sequences);
        let blocks = options.kv_tokens.unwrap_or_else(all).div_ceil(BLOCK_TOKENS).max(1);
        let vectors = pack.vectors();
        let geometry = kv_geometry(&spec, &program, &vectors);
        let kv = KvPool::new(&geometry, options.kv_type, blocks)?;
        let row_bytes: usize = program
            .floats
            .iter()
            .filter(|(rows, _)| !matches!(rows, Rows::Wanted | Rows::Full))
            .map(|&(rows, width)| 4 * width * per_token(rows))
            .chain(program.acts.iter().map(|&(rows, width, _)| 2 * width * per_token(rows)))
            .sum();
        let max_step_tokens = (STEP_BYTES / row_bytes.max(1)).clamp(32, STEP_TOKENS) / 32 * 32;
        let weight_bytes = bytes_per_step(&spec, &pack, &options.skip_layers);
        let machine = match &options.team {
            Some(team) => Machine::with_team(cpu, team.clone(), program)?,
            None => Machine::new(cpu, threads, program)?,
        };
        Ok(CpuModel { spec, pack, vectors, kv, machine, max_step_tokens, weight_bytes })
    }

    /// Threads that run steps.
    pub fn threads(&self) -> usize {
        self.machine.threads()
    }

    /// The threads that run steps, for another model to use as well.
    pub fn team(&self) -> &SharedTeam {
        self.machine.team()
    }

    /// Turns the timing of single operations on or off.
    pub fn set_profile(&mut self, on: bool) {
        self.machine.set_profile(on);
    }

    /// Times of the last step, and the operations that they belong to.
    pub fn times(&self) -> (&StepTimes, &[Op]) {
        (self.machine.times(), &self.machine.program().ops)
    }

    /// One step, of which marked sequences want the best token alone.
    fn step(
        &mut self,
        batch: &[SequenceInput<'_>],
        greedy: &[bool],
        logits: &mut Vec<f32>,
        best: &mut Vec<Best>,
    ) -> Result<(), BackendError> {
        self.check(batch)?;
        if batch.is_empty() {
            logits.clear();
            best.clear();
            return Ok(());
        }
        let matrices = self.pack.matrices();
        let weights = Weights { matrices: &matrices, vectors: &self.vectors };
        let out = (logits, best);
        self.machine.run(weights, &mut self.kv, batch, greedy, out).map_err(backend_error)
    }

    fn check(&self, batch: &[SequenceInput<'_>]) -> Result<(), BackendError> {
        let tokens: usize = batch.iter().map(|s| s.tokens.len()).sum();
        if tokens > self.max_step_tokens {
            return Err(BackendError::OutOfMemory(format!(
                "a step of {tokens} tokens; the most is {}",
                self.max_step_tokens
            )));
        }
        for (sequence, input) in batch.iter().enumerate() {
            let bad = |problem| Err(BackendError::BadBlockTable { sequence, problem });
            if input.tokens.is_empty() {
                return bad("it has no new token".into());
            }
            let vocab_size = self.spec.vocab_size;
            if let Some(&token) = input.tokens.iter().find(|&&t| t as usize >= vocab_size) {
                return Err(BackendError::TokenOutOfRange { token, vocab_size });
            }
            let end = input.first_position.checked_add(input.tokens.len());
            let need = end.map_or(usize::MAX, |end| end.div_ceil(BLOCK_TOKENS));
            if input.block_table.len() < need {
                return bad(format!("{need} blocks are needed, {} given", input.block_table.len()));
            }
            let count = self.kv.n_blocks();
            if let Some(block) = input.block_table.iter().find(|&&b| b as usize >= count) {
                return bad(format!("block {block} of {count}"));
            }
            if let Some(of) = input.branch_of {
                check_branch(batch, sequence, of).or_else(|problem| bad(problem.into()))?;
            }
        }
        self.check_written_blocks(batch)
    }

    /// Two sequences must not write one block, nor may one read what another writes.
    fn check_written_blocks(&self, batch: &[SequenceInput<'_>]) -> Result<(), BackendError> {
        let mut written: Vec<(u32, usize)> = Vec::new();
        for (sequence, input) in batch.iter().enumerate() {
            let first = input.first_position / BLOCK_TOKENS;
            let end = (input.first_position + input.tokens.len()).div_ceil(BLOCK_TOKENS);
            written.extend(input.block_table[first..end].iter().map(|&b| (b, sequence)));
        }
        written.sort_unstable();
        for pair in written.windows(2) {
            if pair[0].0 == pair[1].0 {
                let problem = format!("block {} is written twice in one step", pair[0].0);
                return Err(BackendError::BadBlockTable { sequence: pair[1].1, problem });
            }
        }
        Ok(())
    }
}

/// Whether a sequence may be a branch of another.
fn check_branch(batch: &[SequenceInput<'_>], index: usize, of: usize) -> Result<(), &'static str> {
    if of >= index {
        return Err("it is a branch of a sequence that comes after it");
    }
    let (branch, parent) = (&batch[index], &batch[of]);
    let first = branch.first_position;
    // The parent was checked before: its end is no overflow, and its table covers it.
    let parts = parent.first_position + 1..=parent.first_position + parent.tokens.len();
    if !parts.contains(&first) {
        return Err("it begins where its parent has no new token before it");
    }
    let shared = first / BLOCK_TOKENS;
    if branch.block_table[..shared] != parent.block_table[..shared] {
        return Err("it does not have its parent's blocks");
    }
    Ok(())
}

/// The KV of each layer. Key biases say which layers are not fit for int8 keys.
fn kv_geometry(spec: &ModelSpec, program: &Program, vectors: &[Vec<f32>]) -> Vec<KvGeometry> {
    let mut geometry: Vec<_> = spec.layers.iter().map(|l| KvGeometry::from(&l.attn)).collect();
    for op in &program.ops {
        if let Op::Heads { layer, spec: a, bias: Some(bias), .. } = op {
            let queries = a.n_heads * a.head_dim;
            let keys = &vectors[bias.0][queries..queries + a.n_kv_heads * a.head_dim];
            geometry[*layer].wide_keys = needs_wide_keys(keys, a.head_dim, a.rope.dim);
        }
    }
    geometry
}

fn per_token(rows: Rows) -> usize {
    match rows {
        Rows::Routed { per_token } => per_token,
        Rows::Tokens | Rows::Wanted | Rows::Full => 1,
    }
}

/// Bytes of weights that a step of one token reads.
fn bytes_per_step(spec: &ModelSpec, pack: &Pack, skipped: &[usize]) -> u64 {
    let mut total = 0.0;
    for (key, layout) in weights::matrices(spec).iter().zip(pack.layouts()) {
        let share = match key.role {
            Role::TokenEmbd if !spec.tied_head => 0.0,
            Role::TokenEmbd | Role::Output => 1.0,
            _ if skipped.contains(&key.layer) => 0.0,
            Role::ExpertGate | Role::ExpertUp | Role::ExpertDown => {
                match &spec.layers[key.layer].ffn {
                    FfnSpec::Moe(moe) => moe.n_used as f64 / moe.n_experts as f64,
                    FfnSpec::Gated { .. } => 1.0,
                }
            }
            _ => 1.0,
        };
        total += share * layout.bytes() as f64;
    }
    total as u64
}

fn backend_error(error: KernelError) -> BackendError {
    BackendError::OutOfMemory(error.to_string())
}

impl Backend for CpuModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn block_tokens(&self) -> usize {
        BLOCK_TOKENS
    }

    fn block_count(&self) -> usize {
        self.kv.n_blocks()
    }

    fn block_bytes(&self) -> usize {
        self.kv.block_bytes()
    }

    fn max_step_tokens(&self) -> usize {
        self.max_step_tokens
    }

    fn weight_bytes_per_step(&self) -> Option<u64> {
        Some(self.weight_bytes)
    }

    fn forward(
        &mut self,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.step(batch, &[], logits, &mut Vec::new())
    }

    fn forward_best(
        &mut self,
        batch: &[SequenceInput<'_>],
        greedy: &[bool],
        logits: &mut Vec<f32>,
        best: &mut Vec<Best>,
    ) -> Result<(), BackendError> {
        assert_eq!(batch.len(), greedy.len(), "a mark for each sequence");
        self.step(batch, greedy, logits, best)
    }

    fn screening(&self) -> Option<Screening> {
        Some(self.machine.screening())
    }

    fn hidden_states(&self, to: &mut Vec<f32>) -> bool {
        let matrices = self.pack.matrices();
        let weights = Weights { matrices: &matrices, vectors: &self.vectors };
        self.machine.hidden_states(weights, to)
    }

    fn copy_block(&mut self, from: u32, to: u32, tokens: usize) {
        self.kv.copy_block(from, to, tokens);
    }

    fn kv_token_bytes(&self) -> usize {
        self.kv.token_bytes()
    }

    fn kv_layout_fingerprint(&self) -> u64 {
        self.kv.layout_fingerprint()
    }

    fn export_block(&self, block: u32, tokens: usize, to: &mut Vec<u8>) {
        self.kv.export_block(block, tokens, to);
    }

    fn import_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        self.kv.import_block(block, from).map_err(|problem| BackendError::BadKv { block, problem })
    }
    fn move_kv(
        &mut self,
        from: KvLanes,
        to: KvLanes,
        tokens: usize,
        by: i64,
    ) -> Result<(), BackendError> {
        let (from, to) = ((from.block, from.first), (to.block, to.first));
        let moved = self.machine.move_kv(&mut self.kv, from, to, tokens, by);
        moved.map_err(|problem| BackendError::BadKv { block: to.0, problem })
    }
}
