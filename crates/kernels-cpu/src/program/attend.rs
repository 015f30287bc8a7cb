//! Attention within a program: plans made once a step, items shared out among the threads.

use super::buffers::{Floats, Shared};
use super::machine::{PerThread, Step};
use super::{Op, Program};
use crate::KernelError;
use crate::attention::{AttnScratch, AttnSequence, AttnShape, AttnTensors, Plan};
use crate::kv::{BLOCK_TOKENS, KvPool, KvRows};
use crate::pool::Worker;
use dunlin_tensor::{SequenceInput, inherited};

/// The step's plans and what the threads need to run them.
pub(super) struct Attention {
    /// One for each shape that the program's layers have.
    plans: Vec<Plan>,
    /// The plan of each operation; only attention has one.
    plan_of: Vec<Option<usize>>,
    /// Blocks of branches that also hold a new token's KV, by its row; in the order of rows.
    copies: Vec<(usize, u32)>,
    partials: Shared<f32>,
    scratch: PerThread<AttnScratch>,
}

impl Attention {
    pub fn new(threads: usize) -> Self {
        Attention {
            plans: Vec::new(),
            plan_of: Vec::new(),
            copies: Vec::new(),
            partials: Shared::default(),
            scratch: PerThread::new(threads),
        }
    }

    /// Plans the attention of a step, and checks that the pool has what it will read.
    pub fn plan(
        &mut self,
        program: &Program,
        kv: &KvPool,
        batch: &[SequenceInput<'_>],
        threads: usize,
    ) -> Result<(), KernelError> {
        let mut first_row = 0;
        let mut sequences = Vec::with_capacity(batch.len());
        for input in batch {
            sequences.push(AttnSequence {
                first_row,
                tokens: input.tokens.len(),
                first_position: input.first_position,
                block_table: input.block_table,
            });
            first_row += input.tokens.len();
        }
        self.list_copies(batch, &sequences);
        self.plans.clear();
        self.plan_of.clear();
        for op in &program.ops {
            let Op::Attend { layer, spec, .. } = op else {
                self.plan_of.push(None);
                continue;
            };
            let shape = AttnShape::from(spec);
            let known = self.plans.iter().position(|p| *p.shape() == shape);
            let index = match known {
                Some(index) => index,
                None => {
                    self.plans.push(Plan::new(shape, &sequences, threads)?);
                    self.plans.len() - 1
                }
            };
            self.plans[index].check(kv, *layer)?;
            self.plan_of.push(Some(index));
        }
        let partials = self.plans.iter().map(Plan::partials_len).max().unwrap_or(0);
        self.partials.resize(partials)
    }

    /// Finds the branches whose own blocks begin with tokens of other sequences of the step.
    fn list_copies(&mut self, batch: &[SequenceInput<'_>], sequences: &[AttnSequence<'_>]) {
        self.copies.clear();
        for (index, branch) in batch.iter().enumerate().filter(|(_, b)| b.branch_of.is_some()) {
            let to = branch.block_table[branch.first_position / BLOCK_TOKENS];
            self.copies.extend(inherited(batch, index, BLOCK_TOKENS).map(|(position, of)| {
                let row = sequences[of].first_row + position - sequences[of].first_position;
                (row, to)
            }));
        }
        self.copies.sort_unstable();
    }

    /// Stores the keys and values of the new token in this row of the step.
    pub fn store(&self, step: &Step<'_>, layer: usize, row: usize, k: &[f32], v: &[f32]) {
        let token = step.tokens[row];
        let table = step.batch[token.sequence].block_table;
        let own = table[token.position / BLOCK_TOKENS];
        let lane = token.position % BLOCK_TOKENS;
        let rows = KvRows { k, k_stride: k.len(), v, v_stride: v.len(), n: 1 };
        let first = self.copies.partition_point(|copy| copy.0 < row);
        let copies = self.copies[first..].iter().take_while(|copy| copy.0 == row);
        for block in copies.map(|copy| copy.1).chain([own]) {
            // SAFETY: each token is one thread's, no two tokens of a step share a lane of a block
            // (block tables were checked: a branch's own blocks are its alone, and what it inherits
            // lies before its own tokens), and attention reads only after the next barrier.
            unsafe { step.kv.store_rows(step.cpu, layer, block, lane, rows) };
        }
    }

    /// This thread's share of a layer's attention.
    pub fn run(
        &self,
        i: usize,
        step: &Step<'_>,
        worker: &Worker<'_>,
        layer: usize,
        qkv: &Floats,
        out: &Floats,
    ) {
        let Some(plan) = self.plan_of[i].map(|p| &self.plans[p]) else { return };
        let tensors = AttnTensors {
            q: qkv.values.pointer(),
            q_stride: qkv.width,
            out: out.values.pointer(),
            out_stride: out.width,
            partials: self.partials.pointer(),
        };
        // SAFETY: this thread's own memory.
        let scratch = unsafe { self.scratch.get(worker) };
        for item in step.shares(i, worker, plan.items(), 1).flatten() {
            // SAFETY: the plan was checked against the pool; buffers have a row for each token of
            // the step; keys and queries were written before the last barrier; the counter gives
            // each item to one thread.
            unsafe { plan.run_item(step.cpu, step.kv, layer, tensors, scratch, item) };
        }
        if plan.merges() == 0 {
            return;
        }
        worker.barrier();
        let second = i + step.counters.len() / 2;
        for merge in step.shares(second, worker, plan.merges(), 1).flatten() {
            // SAFETY: as above, and all items have been run before the barrier.
            unsafe { plan.run_merge(step.cpu, step.kv, layer, tensors, scratch, merge) };
        }
    }
}
