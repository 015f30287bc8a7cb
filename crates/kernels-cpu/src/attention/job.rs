//! Running a plan's items on one layer, from any number of threads.

use super::SEGMENT_TOKENS;
use super::item::{Scratch, Work, run_item, run_merge};
use super::plan::Plan;
use super::segment::Span;
use super::softmax::RowState;
use super::tiles::{QUERY_STRIDE, SCORE_STRIDE};
use crate::kv::{BLOCK_TOKENS, KvGeometry, KvPool, VALUE_GROUP};
use crate::simd::LANES;
use crate::{CpuFeatures, KernelError};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tensors of one layer's attention, as pointers: for callers that keep theirs in an arena.
#[derive(Debug, Clone, Copy)]
pub struct AttnTensors {
    /// Queries with RoPE applied: row `r` has `n_heads * head_dim` values from `r * q_stride`.
    pub q: *const f32,
    /// Values between two rows of `q`.
    pub q_stride: usize,
    /// Outputs: row `r` has `n_heads * v_head_dim` values from `r * out_stride`.
    pub out: *mut f32,
    /// Values between two rows of `out`.
    pub out_stride: usize,
    /// [`Plan::partials_len`] values.
    pub partials: *mut f32,
}

/// A thread's own memory for attention; grows to what the plans it meets need, and keeps it.
#[derive(Debug, Default)]
pub struct AttnScratch {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [f32; LANES]);

impl AttnScratch {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for the items of a plan.
    pub fn reserve(&mut self, plan: &Plan) {
        let lines: usize = Self::parts(plan).iter().sum();
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LANES]));
        }
    }

    /// Lines of each part, in the order of [`Scratch`]'s fields.
    fn parts(plan: &Plan) -> [usize; 10] {
        let (rows, shape) = (plan.max_unit_rows, plan.shape());
        let v_stride = shape.v_head_dim.next_multiple_of(LANES);
        let lines = |values: usize| values.div_ceil(LANES);
        let outputs = lines(rows * v_stride);
        let states = lines(rows * 2);
        [
            lines(rows * QUERY_STRIDE),
            lines(rows * SCORE_STRIDE),
            lines(shape.head_dim * BLOCK_TOKENS),
            lines(v_stride * BLOCK_TOKENS),
            lines(shape.v_head_dim.div_ceil(VALUE_GROUP) * BLOCK_TOKENS),
            outputs,
            outputs,
            states,
            states,
            states,
        ]
    }

    fn split(&mut self, plan: &Plan) -> Scratch {
        self.reserve(plan);
        let mut at = self.lines.as_mut_ptr();
        let parts = Self::parts(plan).map(|lines| {
            let here = at;
            // SAFETY: `reserve` has made room for the sum of all parts.
            at = unsafe { at.add(lines) };
            here.cast::<f32>()
        });
        let [q, scores, keys, values, scales, outputs, merged, states, merged_states, spans] =
            parts;
        Scratch {
            q,
            scores,
            keys,
            values,
            scales,
            outputs,
            merged,
            states: states.cast::<RowState>(),
            merged_states: merged_states.cast::<RowState>(),
            spans: spans.cast::<Span>(),
        }
    }
}

impl Plan {
    /// Whether the plan fits a layer of a pool.
    ///
    /// # Errors
    /// Says what does not fit.
    pub fn check(&self, pool: &KvPool, layer: usize) -> Result<(), KernelError> {
        let bad = |problem| Err(KernelError::BadShape { what: "attention", problem });
        if layer >= pool.n_layers() {
            return bad(format!("layer {layer} of {}", pool.n_layers()));
        }
        let shape = self.shape();
        let has = pool.geometry(layer);
        let want = KvGeometry {
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            v_head_dim: shape.v_head_dim,
            wide_keys: has.wide_keys,
        };
        if has != want {
            return bad(format!("the pool holds {has:?}, not {want:?}"));
        }
        if self.blocks > pool.n_blocks() {
            let (block, count) = (self.blocks - 1, pool.n_blocks());
            return bad(format!("a table names block {block} of {count}"));
        }
        Ok(())
    }

    /// Rows that the tensors must have.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Runs item `index` of one layer.
    ///
    /// # Safety
    /// [`Plan::check`] has passed for the pool and layer; the tensors have [`Plan::rows`] rows and
    /// are as they say; until the call returns nobody writes the KV that the queries see, nor the
    /// queries; no other thread runs the same item, or uses this scratch.
    ///
    /// # Panics
    /// Where there is no such item.
    pub unsafe fn run_item(
        &self,
        cpu: CpuFeatures,
        pool: &KvPool,
        layer: usize,
        tensors: AttnTensors,
        scratch: &mut AttnScratch,
        index: usize,
    ) {
        let work = self.work(pool, layer, tensors, scratch);
        // SAFETY: the caller's.
        unsafe { run_item(cpu, &work, index) }
    }

    /// Runs merge `index` of one layer.
    ///
    /// # Safety
    /// As [`Plan::run_item`], and all items have been run.
    ///
    /// # Panics
    /// Where there is no such merge.
    pub unsafe fn run_merge(
        &self,
        cpu: CpuFeatures,
        pool: &KvPool,
        layer: usize,
        tensors: AttnTensors,
        scratch: &mut AttnScratch,
        index: usize,
    ) {
        let work = self.work(pool, layer, tensors, scratch);
        // SAFETY: the caller's.
        unsafe { run_merge(cpu, &work, index) }
    }

    fn work<'a>(
        &'a self,
        pool: &'a KvPool,
        layer: usize,
        tensors: AttnTensors,
        scratch: &mut AttnScratch,
    ) -> Work<'a> {
        Work { plan: self, pool, layer: pool.layer(layer), tensors, scratch: scratch.split(self) }
    }
}

/// One layer's attention, to be run by any number of threads: each calls [`AttnJob::work`].
#[derive(Debug)]
pub struct AttnJob<'a> {
    cpu: CpuFeatures,
    plan: &'a Plan,
    pool: &'a KvPool,
    layer: usize,
    tensors: AttnTensors,
    next_item: AtomicUsize,
    done_items: AtomicUsize,
    next_merge: AtomicUsize,
    /// The queries, outputs and partial results are borrowed.
    borrows: PhantomData<&'a mut [f32]>,
}

// SAFETY: items write disjoint outputs and partial results, and each is run once; everything else
// is read only.
unsafe impl Sync for AttnJob<'_> {}
// SAFETY: the pointers are to borrowed slices, which may be used from any thread.
unsafe impl Send for AttnJob<'_> {}

impl<'a> AttnJob<'a> {
    /// The attention of layer `layer` of `pool`: from `q`, `[rows, n_heads * head_dim]`, into
    /// `out`, `[rows, n_heads * v_head_dim]`. `partials` is grown as needed. Rows that no sequence
    /// of the plan names are left alone.
    ///
    /// # Errors
    /// The plan does not fit the pool, or a slice is too short.
    pub fn new(
        cpu: CpuFeatures,
        plan: &'a Plan,
        pool: &'a KvPool,
        layer: usize,
        q: &'a [f32],
        out: &'a mut [f32],
        partials: &'a mut Vec<f32>,
    ) -> Result<Self, KernelError> {
        plan.check(pool, layer)?;
        let shape = plan.shape();
        let (q_stride, out_stride) =
            (shape.n_heads * shape.head_dim, shape.n_heads * shape.v_head_dim);
        for (what, len, stride) in
            [("queries", q.len(), q_stride), ("outputs", out.len(), out_stride)]
        {
            if plan.rows().checked_mul(stride).is_none_or(|need| len < need) {
                let problem = format!("{len} values where {} rows of {stride} belong", plan.rows());
                return Err(KernelError::BadShape { what, problem });
            }
        }
        if partials.len() < plan.partials_len() {
            partials.resize(plan.partials_len(), 0.0);
        }
        let tensors = AttnTensors {
            q: q.as_ptr(),
            q_stride,
            out: out.as_mut_ptr(),
            out_stride,
            partials: partials.as_mut_ptr(),
        };
        Ok(AttnJob {
            cpu,
            plan,
            pool,
            layer,
            tensors,
            next_item: AtomicUsize::new(0),
            done_items: AtomicUsize::new(0),
            next_merge: AtomicUsize::new(0),
            borrows: PhantomData,
        })
    }

    /// Does a share of the work: takes items until none is left, waits until the other threads have
    /// finished theirs, then does the same with merges. When every thread that called this has
    /// returned, the outputs are complete.
    pub fn work(&self, scratch: &mut AttnScratch) {
        let Self { cpu, plan, pool, layer, tensors, .. } = *self;
        loop {
            let i = self.next_item.fetch_add(1, Ordering::Relaxed);
            if i >= plan.items() {
                break;
            }
            // SAFETY: `new` has checked the parts and holds the borrows; the counter gives each
            // item to one thread.
            unsafe { plan.run_item(cpu, pool, layer, tensors, scratch, i) };
            self.done_items.fetch_add(1, Ordering::Release);
        }
        if plan.merges() == 0 {
            return;
        }
        let mut spins = 0u32;
        while self.done_items.load(Ordering::Acquire) < plan.items() {
            spins += 1;
            if spins.is_multiple_of(1 << 12) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
        loop {
            let i = self.next_merge.fetch_add(1, Ordering::Relaxed);
            if i >= plan.merges() {
                break;
            }
            // SAFETY: as above, and all items are done.
            unsafe { plan.run_merge(cpu, pool, layer, tensors, scratch, i) };
        }
    }
}

/// Attention of one layer on `threads` threads made for the purpose: for tests and measurements.
///
/// # Errors
/// As [`AttnJob::new`].
pub fn attend(
    cpu: CpuFeatures,
    plan: &Plan,
    pool: &KvPool,
    layer: usize,
    q: &[f32],
    out: &mut [f32],
    threads: usize,
) -> Result<(), KernelError> {
    let mut partials = Vec::new();
    let job = AttnJob::new(cpu, plan, pool, layer, q, out, &mut partials)?;
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| job.work(&mut AttnScratch::new()));
        }
        job.work(&mut AttnScratch::new());
    });
    Ok(())
}

const _: () = assert!(SEGMENT_TOKENS < SCORE_STRIDE);
