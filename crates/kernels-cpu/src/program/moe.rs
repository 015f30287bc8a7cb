//! Mixture of experts: routing, the experts' products and their weighted sum.
//!
//! A token's result depends on its own router logits alone: experts are chosen by weight, equal
//! ones by the lower index, and their outputs are added best first, whatever else is in the batch.

use super::machine::Step;
use super::ops::{each_row, panel_piece, panels_of};
use super::{ActBuf, FloatBuf, MatrixId};
use crate::elementwise;
use crate::pool::Worker;
use std::cell::UnsafeCell;

/// Which tokens each expert gets, in the step being run.
#[derive(Debug, Default)]
pub(super) struct Routes(UnsafeCell<Table>);

// SAFETY: written by disjoint rows or by the first thread alone, between barriers.
unsafe impl Sync for Routes {}

#[derive(Debug, Default)]
struct Table {
    /// Expert and weight of each token's choices, best first, `[tokens][per_token]`.
    chosen: Vec<(u32, f32)>,
    /// Where each choice stands once sorted by expert, `[tokens][per_token]`.
    place: Vec<u32>,
    /// The choice at each place.
    choice: Vec<u32>,
    /// The first place of each expert, and the end.
    starts: Vec<u32>,
}

impl Routes {
    fn table(&self) -> &Table {
        // SAFETY: no one writes between the barriers that separate the phases.
        unsafe { &*self.0.get() }
    }
}

/// See [`super::Op::Route`].
pub(super) fn route(
    step: &Step<'_>,
    worker: &Worker<'_>,
    logits: FloatBuf,
    per_token: usize,
    renormalize: bool,
    acts: ActBuf,
    out: ActBuf,
) {
    let logits = &step.floats[logits.0];
    let tokens = step.tokens.len();
    if worker.index == 0 {
        // SAFETY: the other threads wait at the barrier.
        let table = unsafe { &mut *step.routes.0.get() };
        table.chosen.clear();
        for t in 0..tokens {
            // SAFETY: as above.
            let row = unsafe { logits.row_mut(t) };
            elementwise::softmax(step.cpu, row);
            choose(row, per_token, renormalize, &mut table.chosen);
        }
        table.sort(logits.width);
    }
    worker.barrier();
    let table = step.routes.table();
    let (from, to) = (&step.acts[acts.0], &step.acts[out.0]);
    for (place, &choice) in table.choice.iter().enumerate() {
        if place % worker.count == worker.index {
            // SAFETY: places are divided among the threads.
            unsafe { to.copy_row(place, from, choice as usize / per_token) };
        }
    }
}

/// Appends the `k` largest of `weights`, best first, the lower index first among equals.
fn choose(weights: &[f32], k: usize, renormalize: bool, chosen: &mut Vec<(u32, f32)>) {
    let first = chosen.len();
    for _ in 0..k {
        let taken = &chosen[first..];
        let free = |e: &usize| taken.iter().all(|&(t, _)| t as usize != *e);
        let best =
            (0..weights.len()).filter(free).fold(None, |best: Option<usize>, e| match best {
                // NaN wins nothing, so a poisoned token still has some choice.
                Some(b) if weights[e] > weights[b] => Some(e),
                Some(b) => Some(b),
                None => Some(e),
            });
        let best = best.expect("the spec has at least k experts");
        chosen.push((best as u32, weights[best]));
    }
    if renormalize {
        let sum = chosen[first..].iter().fold(0.0, |sum, &(_, w)| sum + w);
        chosen[first..].iter_mut().for_each(|(_, w)| *w /= sum);
    }
}

impl Table {
    fn sort(&mut self, experts: usize) {
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for &(e, _) in &self.chosen {
            self.starts[e as usize + 1] += 1;
        }
        for e in 0..experts {
            self.starts[e + 1] += self.starts[e];
        }
        self.place.clear();
        self.place.resize(self.chosen.len(), 0);
        self.choice.clear();
        self.choice.resize(self.chosen.len(), 0);
        let mut next = self.starts.clone();
        for (i, &(e, _)) in self.chosen.iter().enumerate() {
            let place = next[e as usize];
            next[e as usize] += 1;
            self.place[i] = place;
            self.choice[place as usize] = i as u32;
        }
    }
}

/// See [`super::Op::ExpertMatMul`].
pub(super) fn matmul(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    experts: &[Vec<(MatrixId, usize)>],
    acts: ActBuf,
    out: FloatBuf,
) {
    let table = step.routes.table();
    let panels_of_expert = |e: usize| -> usize {
        experts[e].iter().map(|&(m, _)| step.weights.matrices[m.0].layout().panels()).sum()
    };
    let piece = panel_piece(panels_of_expert(0), worker.count);
    let rows = |e: usize| table.starts[e] as usize..table.starts[e + 1] as usize;
    let pieces = |e: usize| {
        if rows(e).is_empty() { 0 } else { panels_of_expert(e).div_ceil(piece) }
    };
    let total: usize = (0..experts.len()).map(pieces).sum();
    for share in step.shares(i, worker, total, 1).flatten() {
        let (mut e, mut left) = (0, share);
        while left >= pieces(e) {
            left -= pieces(e);
            e += 1;
        }
        let panels = left * piece..((left + 1) * piece).min(panels_of_expert(e));
        panels_of(step, worker, &experts[e], panels, acts, rows(e), out, false);
    }
}

/// See [`super::Op::Combine`].
pub(super) fn combine(
    i: usize,
    step: &Step<'_>,
    worker: &Worker<'_>,
    y: FloatBuf,
    per_token: usize,
    x: FloatBuf,
    replace: bool,
) {
    let (x, y, table) = (&step.floats[x.0], &step.floats[y.0], step.routes.table());
    each_row(i, step, worker, step.tokens.len(), |t| {
        // SAFETY: row `t` is this thread's.
        let out = unsafe { x.row_mut(t) };
        if replace {
            out.fill(0.0);
        }
        for rank in t * per_token..(t + 1) * per_token {
            let weight = table.chosen[rank].1;
            let row = y.row(table.place[rank] as usize);
            for (out, y) in out.iter_mut().zip(row) {
                *out = weight.mul_add(*y, *out);
            }
        }
    });
}
