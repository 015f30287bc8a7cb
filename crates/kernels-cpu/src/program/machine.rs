//! Runs a program: buffers, threads and the division of a step's work.

use super::attend::Attention;
use super::buffers::{Acts, Floats, Shared};
use super::moe::Routes;
use super::{Op, Program, Rows, ops};
use crate::elementwise::{self, RopeTable};
use crate::kv::KvPool;
use crate::matmul::Scratch;
use crate::pack::PackedMatrix;
use crate::pool::{SharedTeam, Worker};
use crate::{CpuFeatures, KernelError};
use dunlin_tensor::{LogitsWanted, SequenceInput};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The model's weights, as ids name them.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// Packed matrices.
    pub matrices: &'a [PackedMatrix<'a>],
    /// Vectors.
    pub vectors: &'a [Vec<f32>],
}

/// Nanoseconds that each operation of a program took in the last step, barriers included.
#[derive(Debug, Clone, Default)]
pub struct StepTimes {
    /// One for each operation; empty unless profiling is on.
    pub op_ns: Vec<u64>,
    /// When the step's first operation began.
    pub began: Option<Instant>,
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counter(AtomicUsize);

/// What belongs to one thread alone.
pub(super) struct PerThread<T>(Vec<UnsafeCell<T>>);

// SAFETY: each thread of the team touches only its own element.
unsafe impl<T: Send> Sync for PerThread<T> {}

impl<T: Default> PerThread<T> {
    pub fn new(count: usize) -> Self {
        PerThread((0..count).map(|_| UnsafeCell::default()).collect())
    }

    /// # Safety
    /// Called with the calling thread's own worker, and one result is used at a time.
    #[allow(clippy::mut_from_ref, reason = "each thread has its own element")]
    pub unsafe fn get(&self, worker: &Worker<'_>) -> &mut T {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.0[worker.index].get() }
    }
}

/// A new token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub id: u32,
    pub sequence: usize,
    pub position: usize,
}

/// Everything that the operations of one step read, and the buffers that they write.
pub(super) struct Step<'a> {
    pub cpu: CpuFeatures,
    pub weights: Weights<'a>,
    pub batch: &'a [SequenceInput<'a>],
    pub tokens: &'a [Token],
    /// Rows of `tokens` whose logits are wanted.
    pub wanted: &'a [usize],
    pub floats: &'a [Floats],
    pub acts: &'a [Acts],
    pub ropes: &'a [RopeTable],
    pub routes: &'a Routes,
    pub attention: &'a Attention,
    pub kv: &'a KvPool,
    pub scratch: &'a PerThread<Scratch>,
    pub work: &'a PerThread<Vec<f32>>,
    pub counters: &'a [Counter],
}

impl Step<'_> {
    /// Rows that buffers of the given kind have in this step.
    pub fn rows(&self, rows: Rows) -> usize {
        row_count(rows, self.tokens.len(), self.wanted.len())
    }

    /// This thread's shares of `0..total`, in pieces of `piece`, first come first served.
    pub fn shares(
        &self,
        op: usize,
        worker: &Worker<'_>,
        total: usize,
        piece: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let counter = &self.counters[op].0;
        let alone = worker.count == 1 || total <= piece;
        let index = worker.index;
        let mut first = true;
        std::iter::from_fn(move || {
            if alone {
                // One piece of work: the first thread takes it without asking.
                let mine = first && index == 0 && total > 0;
                first = false;
                return mine.then_some(0..total);
            }
            let start = counter.fetch_add(piece, Ordering::Relaxed);
            (start < total).then(|| start..(start + piece).min(total))
        })
    }
}

fn row_count(rows: Rows, tokens: usize, wanted: usize) -> usize {
    match rows {
        Rows::Tokens => tokens,
        Rows::Wanted => wanted,
        Rows::Routed { per_token } => tokens * per_token,
    }
}

/// Buffers and threads that run one program.
pub struct Machine {
    cpu: CpuFeatures,
    team: SharedTeam,
    program: Program,
    floats: Vec<Floats>,
    acts: Vec<Acts>,
    ropes: Vec<RopeTable>,
    routes: Routes,
    attention: Attention,
    scratch: PerThread<Scratch>,
    work: PerThread<Vec<f32>>,
    counters: Vec<Counter>,
    tokens: Vec<Token>,
    wanted: Vec<usize>,
    profile: bool,
    times: StepTimes,
}

impl Machine {
    /// A machine for `program` with `threads` threads.
    ///
    /// # Errors
    /// The system refuses a thread, or a RoPE setting makes no sense.
    pub fn new(cpu: CpuFeatures, threads: usize, program: Program) -> Result<Self, KernelError> {
        Self::with_team(cpu, SharedTeam::new(threads)?, program)
    }

    /// A machine for `program` with a team that others may use, too.
    ///
    /// # Errors
    /// A RoPE setting makes no sense.
    pub fn with_team(
        cpu: CpuFeatures,
        team: SharedTeam,
        program: Program,
    ) -> Result<Self, KernelError> {
        let count = team.count();
        let ropes = program.ropes.iter().map(RopeTable::new).collect::<Result<_, _>>()?;
        let floats = program.floats.iter();
        let floats = floats.map(|&(_, width)| Floats { width, values: Shared::default() });
        let acts = program.acts.iter().map(|&(_, width, needs)| Acts::new(width, needs));
        Ok(Machine {
            cpu,
            team,
            floats: floats.collect(),
            acts: acts.collect(),
            ropes,
            routes: Routes::default(),
            attention: Attention::new(count),
            scratch: PerThread::new(count),
            work: PerThread::new(count),
            // The second half is for operations of two phases.
            counters: (0..2 * program.ops.len()).map(|_| Counter::default()).collect(),
            tokens: Vec::new(),
            wanted: Vec::new(),
            profile: false,
            times: StepTimes::default(),
            program,
        })
    }

    /// Threads that run steps.
    pub fn threads(&self) -> usize {
        self.team.count()
    }

    /// The team that runs steps.
    pub fn team(&self) -> &SharedTeam {
        &self.team
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Turns the timing of single operations on or off.
    pub fn set_profile(&mut self, on: bool) {
        self.profile = on;
    }

    /// Times of the last step.
    pub fn times(&self) -> &StepTimes {
        &self.times
    }

    /// [`KvPool::move_tokens`] with the program's rotary embeddings.
    ///
    /// # Errors
    /// As there.
    pub fn move_kv(
        &self,
        kv: &mut KvPool,
        from: (u32, usize),
        to: (u32, usize),
        tokens: usize,
        by: i64,
    ) -> Result<(), String> {
        let mut ropes = vec![None; kv.n_layers()];
        for op in &self.program.ops {
            if let Op::Heads { layer, rope, .. } = op {
                ropes[*layer] = Some(&self.ropes[*rope]);
            }
        }
        let ropes: Vec<_> = ropes.into_iter().map(|r| r.expect("each layer has heads")).collect();
        kv.move_tokens(self.cpu, from, to, tokens, &ropes, by)
    }

    /// Runs one step. The batch was checked: token ids, block tables, at least one token each.
    /// `logits` becomes `[wanted, vocab]`.
    ///
    /// # Errors
    /// No memory for the step's activations.
    pub fn run(
        &mut self,
        weights: Weights<'_>,
        kv: &mut KvPool,
        batch: &[SequenceInput<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        self.list_tokens(batch);
        self.size_buffers()?;
        self.attention.plan(&self.program, kv, batch, self.team.count())?;
        if let Some(positions) = self.tokens.iter().map(|t| t.position + 1).max() {
            self.ropes.iter_mut().for_each(|rope| rope.grow(positions));
        }
        for counter in &self.counters {
            counter.0.store(0, Ordering::Relaxed);
        }
        let out = self.program.logits.map(|buffer| buffer.0);
        if let Some(out) = out {
            let floats = &mut self.floats[out];
            logits.resize(self.wanted.len() * floats.width, 0.0);
            // SAFETY: taken back below, before `logits` is used again.
            unsafe { floats.values.lend(logits) };
        }
        self.times.began = Some(Instant::now());
        self.walk(weights, kv, batch);
        if let Some(out) = out {
            self.floats[out].values.take_back();
        }
        Ok(())
    }

    /// Appends the normed hidden states, `[wanted, d]`, that the head read in the last step.
    pub fn hidden_states(&self, weights: Weights<'_>, to: &mut Vec<f32>) -> bool {
        let Some((buffer, weight, eps)) = self.program.hidden else { return false };
        let floats = &self.floats[buffer.0];
        for row in 0..self.wanted.len() {
            let start = to.len();
            to.resize(start + floats.width, 0.0);
            let weight = &weights.vectors[weight.0];
            elementwise::rms_norm(self.cpu, floats.row(row), weight, eps, &mut to[start..]);
        }
        true
    }

    fn list_tokens(&mut self, batch: &[SequenceInput<'_>]) {
        self.tokens.clear();
        self.wanted.clear();
        for (sequence, input) in batch.iter().enumerate() {
            let first = self.tokens.len();
            for (i, &id) in input.tokens.iter().enumerate() {
                self.tokens.push(Token { id, sequence, position: input.first_position + i });
            }
            match input.logits {
                LogitsWanted::None => {}
                LogitsWanted::Last => self.wanted.push(self.tokens.len() - 1),
                LogitsWanted::All => self.wanted.extend(first..self.tokens.len()),
            }
        }
    }

    fn size_buffers(&mut self) -> Result<(), KernelError> {
        let (tokens, wanted) = (self.tokens.len(), self.wanted.len());
        for (i, &(rows, width)) in self.program.floats.iter().enumerate() {
            if self.program.logits.is_none_or(|l| l.0 != i) {
                let rows = row_count(rows, tokens, wanted);
                self.floats[i].values.resize(rows * width)?;
            }
        }
        for (acts, &(rows, _, _)) in self.acts.iter_mut().zip(&self.program.acts) {
            acts.resize(row_count(rows, tokens, wanted))?;
        }
        Ok(())
    }

    fn walk(&mut self, weights: Weights<'_>, kv: &KvPool, batch: &[SequenceInput<'_>]) {
        let step = Step {
            cpu: self.cpu,
            weights,
            batch,
            tokens: &self.tokens,
            wanted: &self.wanted,
            floats: &self.floats,
            acts: &self.acts,
            ropes: &self.ropes,
            routes: &self.routes,
            attention: &self.attention,
            kv,
            scratch: &self.scratch,
            work: &self.work,
            counters: &self.counters,
        };
        let list: &[Op] = &self.program.ops;
        let times = UnsafeTimes(UnsafeCell::new(std::mem::take(&mut self.times.op_ns)));
        let profile = self.profile;
        let times_of = &times;
        self.team.run(&|worker| {
            let mut last = Instant::now();
            if worker.index == 0 {
                // SAFETY: the first thread alone touches the times.
                unsafe { (*times_of.0.get()).clear() };
            }
            for (i, op) in list.iter().enumerate() {
                ops::run(op, i, &step, &worker);
                worker.barrier();
                if profile && worker.index == 0 {
                    let now = Instant::now();
                    // SAFETY: as above.
                    unsafe { (*times_of.0.get()).push((now - last).as_nanos() as u64) };
                    last = now;
                }
            }
        });
        self.times.op_ns = times.0.into_inner();
    }
}

/// Times that the first thread writes.
struct UnsafeTimes(UnsafeCell<Vec<u64>>);
// SAFETY: one thread alone touches them during a run.
unsafe impl Sync for UnsafeTimes {}
