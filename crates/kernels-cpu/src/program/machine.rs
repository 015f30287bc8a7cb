//! Runs a program: buffers, threads and the division of a step's work.

use super::attend::Attention;
use super::best::Choices;
use super::buffers::{Acts, Floats, Shared};
use super::moe::Routes;
use super::{Op, Program, Rows, ops};
use crate::elementwise::{self, RopeTable};
use crate::kv::KvPool;
use crate::matmul::Scratch;
use crate::pack::PackedMatrix;
use crate::pool::{SharedTeam, Worker};
use crate::{CpuFeatures, KernelError};
use dunlin_tensor::{Best, LogitsWanted, Screening, SequenceInput};
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

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Every thread's, between steps.
    pub fn each(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(UnsafeCell::get_mut)
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
    /// Rows of `tokens` whose logits are wanted: first all of them, then the best alone.
    pub wanted: &'a [usize],
    /// How many of `wanted` are wanted in full.
    pub full: usize,
    pub floats: &'a [Floats],
    pub acts: &'a [Acts],
    pub ropes: &'a [RopeTable],
    pub routes: &'a Routes,
    pub attention: &'a Attention,
    pub choices: &'a Choices,
    pub kv: &'a KvPool,
    pub scratch: &'a PerThread<Scratch>,
    pub work: &'a PerThread<Vec<f32>>,
    pub counters: &'a [Counter],
}

impl Step<'_> {
    /// Rows that buffers of the given kind have in this step.
    pub fn rows(&self, rows: Rows) -> usize {
        row_count(rows, self.tokens.len(), self.wanted.len(), self.full)
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

fn row_count(rows: Rows, tokens: usize, wanted: usize, full: usize) -> usize {
    match rows {
        Rows::Tokens => tokens,
        Rows::Wanted => wanted,
        Rows::Full => full,
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
    choices: Choices,
    scratch: PerThread<Scratch>,
    work: PerThread<Vec<f32>>,
    counters: Vec<Counter>,
    tokens: Vec<Token>,
    wanted: Vec<usize>,
    /// Wanted rows whose logits are wanted in full.
    full: usize,
    /// The place in `wanted` of each position in the order of the batch.
    places: Vec<usize>,
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
            choices: Choices::new(count),
            scratch: PerThread::new(count),
            work: PerThread::new(count),
            // The second half is for operations of two phases.
            counters: (0..2 * program.ops.len()).map(|_| Counter::default()).collect(),
            tokens: Vec::new(),
            wanted: Vec::new(),
            full: 0,
            places: Vec::new(),
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
    /// Sequences that are marked in `greedy` (those past its end are not) get an entry in `best` for
    /// each wanted position, and `logits` becomes `[wanted, vocab]` of the others.
    ///
    /// # Errors
    /// No memory for the step's activations.
    pub fn run(
        &mut self,
        weights: Weights<'_>,
        kv: &mut KvPool,
        batch: &[SequenceInput<'_>],
        greedy: &[bool],
        (logits, best): (&mut Vec<f32>, &mut Vec<Best>),
    ) -> Result<(), KernelError> {
        self.list_tokens(batch, greedy);
        self.size_buffers(weights)?;
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
            logits.resize(self.full * floats.width, 0.0);
            // SAFETY: taken back below, before `logits` is used again.
            unsafe { floats.values.lend(logits) };
        }
        self.times.began = Some(Instant::now());
        self.walk(weights, kv, batch);
        if let Some(out) = out {
            self.floats[out].values.take_back();
        }
        best.clear();
        self.choices.take(best);
        Ok(())
    }

    /// How far looking for best tokens went, since the beginning.
    pub fn screening(&self) -> Screening {
        self.choices.screening()
    }

    /// Appends the normed hidden states, `[wanted, d]`, that the head read in the last step.
    pub fn hidden_states(&self, weights: Weights<'_>, to: &mut Vec<f32>) -> bool {
        let Some((buffer, weight, eps)) = self.program.hidden else { return false };
        let floats = &self.floats[buffer.0];
        for &row in &self.places {
            let start = to.len();
            to.resize(start + floats.width, 0.0);
            let weight = &weights.vectors[weight.0];
            elementwise::rms_norm(self.cpu, floats.row(row), weight, eps, &mut to[start..]);
        }
        true
    }

    fn list_tokens(&mut self, batch: &[SequenceInput<'_>], greedy: &[bool]) {
        self.tokens.clear();
        self.wanted.clear();
        self.places.clear();
        let marked = |sequence: usize| greedy.get(sequence).is_some_and(|&marked| marked);
        let all = || batch.iter().enumerate();
        self.full = all().filter(|&(s, _)| !marked(s)).map(|(_, input)| input.wanted()).sum();
        self.wanted.resize(all().map(|(_, input)| input.wanted()).sum(), 0);
        let (mut next_full, mut next_best) = (0, self.full);
        for (sequence, input) in batch.iter().enumerate() {
            let first = self.tokens.len();
            for (i, &id) in input.tokens.iter().enumerate() {
                self.tokens.push(Token { id, sequence, position: input.first_position + i });
            }
            let rows = match input.logits {
                LogitsWanted::None => continue,
                LogitsWanted::Last => self.tokens.len() - 1..self.tokens.len(),
                LogitsWanted::All => first..self.tokens.len(),
            };
            let next = if marked(sequence) { &mut next_best } else { &mut next_full };
            for row in rows {
                self.wanted[*next] = row;
                self.places.push(*next);
                *next += 1;
            }
        }
    }

    fn size_buffers(&mut self, weights: Weights<'_>) -> Result<(), KernelError> {
        let (tokens, wanted) = (self.tokens.len(), self.wanted.len());
        for (i, &(rows, width)) in self.program.floats.iter().enumerate() {
            if self.program.logits.is_none_or(|l| l.0 != i) {
                let rows = row_count(rows, tokens, wanted, self.full);
                self.floats[i].values.resize(rows * width)?;
            }
        }
        for (acts, &(rows, _, _)) in self.acts.iter_mut().zip(&self.program.acts) {
            acts.resize(row_count(rows, tokens, wanted, self.full))?;
        }
        let head = self.program.ops.iter().find_map(|op| match op {
            Op::Best { matrix, .. } => Some(weights.matrices[matrix.0].layout().panels()),
            _ => None,
        });
        if let Some(panels) = head {
            self.choices.resize(wanted - self.full, panels)?;
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
            full: self.full,
            floats: &self.floats,
            acts: &self.acts,
            ropes: &self.ropes,
            routes: &self.routes,
            attention: &self.attention,
            choices: &self.choices,
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
