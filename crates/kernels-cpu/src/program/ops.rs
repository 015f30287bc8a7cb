//! What one thread does of each operation.

use super::best::{self, Head};
use super::machine::Step;
use super::{ActBuf, FloatBuf, MatrixId, Op, Rows, VectorId, moe};
use crate::CpuFeatures;
use crate::elementwise;
use crate::kv::BLOCK_TOKENS;
use crate::matmul::{Output, run_panels};
use crate::pool::Worker;
use dunlin_spec::{Activation, AttnSpec};
use std::ops::Range;

/// Rows that a thread takes at a time in operations that treat each row alone.
const ROW_PIECE: usize = 4;

pub(super) fn run(op: &Op, i: usize, step: &Step<'_>, worker: &Worker<'_>) {
    match op {
        Op::Embed { table, scale, out } => embed(i, step, worker, *table, *scale, *out),
        Op::Norm { x, weight, eps, out } => norm(i, step, worker, *x, *weight, *eps, *out),
        Op::Quantize { x, out } => {
            let (x, out) = (&step.floats[x.0], &step.acts[out.0]);
            each_row(i, step, worker, out.rows, |t| {
                // SAFETY: row `t` is this thread's.
                unsafe { out.set(step.cpu, t, x.row(t)) };
            });
        }
        Op::MatMul { parts, acts, out, add } => {
            let rows = 0..step.floats[out.0].values.len() / step.floats[out.0].width;
            matmul(i, step, worker, parts, *acts, rows, *out, *add);
        }
        Op::Heads { layer, spec, rope, qkv, bias, norms } => {
            let heads = Heads { layer: *layer, spec, rope: *rope, bias: *bias, norms: *norms };
            let qkv = &step.floats[qkv.0];
            let rows = step.tokens.len();
            // Keys of neighbouring tokens share cache lines, so a thread takes a block of them.
            let piece = if rows >= 2 * worker.count * BLOCK_TOKENS { BLOCK_TOKENS } else { 1 };
            for t in step.shares(i, worker, rows, piece).flatten() {
                // SAFETY: row `t` is this thread's.
                heads.run(step, t, unsafe { qkv.row_mut(t) });
            }
        }
        Op::Attend { layer, qkv, out, .. } => {
            let (qkv, out) = (&step.floats[qkv.0], &step.floats[out.0]);
            step.attention.run(i, step, worker, *layer, qkv, out);
        }
        Op::NormAdd { y, weight, eps, x } => norm_add(i, step, worker, *y, *weight, *eps, *x),
        Op::AddBias { x, bias } => {
            let (x, bias) = (&step.floats[x.0], &step.weights.vectors[bias.0]);
            each_row(i, step, worker, x.values.len() / x.width, |t| {
                // SAFETY: row `t` is this thread's.
                elementwise::add(step.cpu, unsafe { x.row_mut(t) }, bias);
            });
        }
        Op::Gated { gate_up, activation, out } => {
            gated(i, step, worker, *gate_up, *activation, *out);
        }
        Op::Select { x, out } => {
            let (x, out) = (&step.floats[x.0], &step.floats[out.0]);
            each_row(i, step, worker, step.rows(Rows::Wanted), |t| {
                // SAFETY: row `t` is this thread's.
                unsafe { out.row_mut(t) }.copy_from_slice(x.row(step.wanted[t]));
            });
        }
        Op::Best { matrix, acts, scale, cap } => {
            best::run(
                i,
                step,
                worker,
                Head { matrix: *matrix, acts: *acts, scale: *scale, cap: *cap },
            );
        }
        Op::Logits { x, scale, cap } => logits(i, step, worker, *x, *scale, *cap),
        Op::Route { logits, per_token, renormalize, acts, out } => {
            moe::route(step, worker, *logits, *per_token, *renormalize, *acts, *out);
        }
        Op::ExpertMatMul { experts, acts, out } => {
            moe::matmul(i, step, worker, experts, *acts, *out);
        }
        Op::Combine { y, per_token, x, replace } => {
            moe::combine(i, step, worker, *y, *per_token, *x, *replace);
        }
    }
}

/// Calls `f` for this thread's share of `rows` rows.
pub(super) fn each_row(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    rows: usize,
    mut f: impl FnMut(usize),
) {
    let piece = if rows <= worker.count * ROW_PIECE { 1 } else { ROW_PIECE };
    step.shares(i, worker, rows, piece).flatten().for_each(&mut f);
}

fn embed(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    table: MatrixId,
    scale: Option<f32>,
    out: FloatBuf,
) {
    let (table, out) = (&step.weights.matrices[table.0], &step.floats[out.0]);
    each_row(i, step, worker, step.tokens.len(), |t| {
        // SAFETY: row `t` is this thread's.
        let row = unsafe { out.row_mut(t) };
        table.dequantize_row(step.tokens[t].id as usize, row);
        if let Some(scale) = scale {
            elementwise::scale(step.cpu, row, scale);
        }
    });
}

fn norm(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    x: FloatBuf,
    weight: VectorId,
    eps: f32,
    out: ActBuf,
) {
    let (x, out) = (&step.floats[x.0], &step.acts[out.0]);
    let weight = &step.weights.vectors[weight.0];
    // SAFETY: this thread's own memory.
    let work = unsafe { step.work.get(worker) };
    work.resize(x.width, 0.0);
    each_row(i, step, worker, out.rows, |t| {
        elementwise::rms_norm(step.cpu, x.row(t), weight, eps, work);
        // SAFETY: row `t` is this thread's.
        unsafe { out.set(step.cpu, t, work) };
    });
}

fn norm_add(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    y: FloatBuf,
    weight: VectorId,
    eps: f32,
    x: FloatBuf,
) {
    let (x, y) = (&step.floats[x.0], &step.floats[y.0]);
    let weight = &step.weights.vectors[weight.0];
    // SAFETY: this thread's own memory.
    let work = unsafe { step.work.get(worker) };
    work.resize(x.width, 0.0);
    each_row(i, step, worker, x.values.len() / x.width, |t| {
        elementwise::rms_norm(step.cpu, y.row(t), weight, eps, work);
        // SAFETY: row `t` is this thread's.
        elementwise::add(step.cpu, unsafe { x.row_mut(t) }, work);
    });
}

fn gated(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    gate_up: FloatBuf,
    activation: Activation,
    out: ActBuf,
) {
    let (x, out) = (&step.floats[gate_up.0], &step.acts[out.0]);
    each_row(i, step, worker, out.rows, |t| {
        // SAFETY: row `t` is this thread's.
        let (gate, up) = unsafe { x.row_mut(t) }.split_at_mut(out.width);
        match activation {
            Activation::Silu => elementwise::silu_mul(step.cpu, gate, up),
            Activation::GeluTanh => elementwise::gelu_tanh_mul(step.cpu, gate, up),
        }
        // SAFETY: as above.
        unsafe { out.set(step.cpu, t, gate) };
    });
}

fn logits(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    x: FloatBuf,
    scale: Option<f32>,
    cap: Option<f32>,
) {
    let x = &step.floats[x.0];
    let piece = 4096;
    for range in step.shares(i, worker, x.values.len(), piece) {
        // SAFETY: the range is this thread's.
        scale_and_cap(step.cpu, unsafe { x.values.slice_mut(range) }, scale, cap);
    }
}

/// `x = cap * tanh(x * scale / cap)`, or the part of it that there is.
pub(super) fn scale_and_cap(cpu: CpuFeatures, x: &mut [f32], scale: Option<f32>, cap: Option<f32>) {
    if let Some(scale) = scale {
        elementwise::scale(cpu, x, scale);
    }
    if let Some(cap) = cap {
        elementwise::softcap(cpu, x, cap);
    }
}

/// This thread's panels of products that share their activations.
#[allow(clippy::too_many_arguments, reason = "the fields of one operation")]
fn matmul(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    parts: &[(MatrixId, usize)],
    acts: ActBuf,
    rows: Range<usize>,
    out: FloatBuf,
    add: bool,
) {
    if rows.is_empty() {
        return;
    }
    let panels = |&(m, _): &(MatrixId, usize)| step.weights.matrices[m.0].layout().panels();
    let total: usize = parts.iter().map(panels).sum();
    let piece = panel_piece(total, worker.count);
    for share in step.shares(i, worker, total, piece) {
        panels_of(step, worker, parts, share, acts, rows.clone(), out, add);
    }
}

/// Panels that a thread takes at a time: an even number, small enough to even out the threads.
pub(super) fn panel_piece(total: usize, threads: usize) -> usize {
    (total / (threads * 8) / 2 * 2).clamp(2, 32)
}

/// Computes panels `share` of the concatenation of `parts`, for rows `rows` of the activations,
/// which become rows `rows` of `out`.
#[allow(clippy::too_many_arguments, reason = "the fields of one operation")]
pub(super) fn panels_of(
    step: &Step<'_>,
    worker: &Worker<'_>,
    parts: &[(MatrixId, usize)],
    share: Range<usize>,
    acts: ActBuf,
    rows: Range<usize>,
    out: FloatBuf,
    add: bool,
) {
    let (acts, out) = (&step.acts[acts.0], &step.floats[out.0]);
    // SAFETY: this thread's own memory.
    let scratch = unsafe { step.scratch.get(worker) };
    let mut before = 0;
    for &(matrix, at) in parts {
        let w = &step.weights.matrices[matrix.0];
        let panels = w.layout().panels();
        let start = share.start.max(before);
        let end = share.end.min(before + panels);
        if start < end {
            let columns = acts.columns(w.layout().spec().is_float(), rows.clone());
            let first = rows.start * out.width + at;
            let len = out.values.len() - first;
            // SAFETY: the buffer outlives the call; threads compute disjoint panels.
            let y =
                unsafe { Output::from_raw(out.values.pointer().add(first), len, out.width, add) };
            run_panels(step.cpu, w, start - before..end - before, &columns, &y, scratch);
        }
        before += panels;
    }
}

/// The fields of [`Op::Heads`].
struct Heads<'a> {
    layer: usize,
    spec: &'a AttnSpec,
    rope: usize,
    bias: Option<VectorId>,
    norms: Option<(VectorId, VectorId, f32)>,
}

impl Heads<'_> {
    fn run(&self, step: &Step<'_>, t: usize, row: &mut [f32]) {
        let (cpu, spec, token) = (step.cpu, self.spec, step.tokens[t]);
        if let Some(bias) = self.bias {
            elementwise::add(cpu, row, &step.weights.vectors[bias.0]);
        }
        let (q, kv) = row.split_at_mut(spec.n_heads * spec.head_dim);
        let (k, v) = kv.split_at_mut(spec.n_kv_heads * spec.head_dim);
        if let Some((q_norm, k_norm, eps)) = self.norms {
            for head in q.chunks_exact_mut(spec.head_dim) {
                let weight = &step.weights.vectors[q_norm.0];
                elementwise::rms_norm_in_place(cpu, head, weight, eps);
            }
            for head in k.chunks_exact_mut(spec.head_dim) {
                let weight = &step.weights.vectors[k_norm.0];
                elementwise::rms_norm_in_place(cpu, head, weight, eps);
            }
        }
        let (cos, sin) = step.ropes[self.rope].row(token.position);
        for head in q.chunks_exact_mut(spec.head_dim).chain(k.chunks_exact_mut(spec.head_dim)) {
            elementwise::rope_neox(cpu, head, cos, sin);
        }
        step.attention.store(step, self.layer, t, k, v);
    }
}
