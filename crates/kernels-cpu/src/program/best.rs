//! The best token of positions that want nothing else: see [`crate::screen`].

use super::buffers::Shared;
use super::machine::{PerThread, Step};
use super::ops::{panel_piece, scale_and_cap};
use super::{ActBuf, MatrixId};
use crate::KernelError;
use crate::matmul::{Columns, Output, run_panels, run_panels_high};
use crate::pack::{PANEL_ROWS, PackedMatrix};
use crate::pool::Worker;
use crate::screen::{self, Approximations};
use dunlin_tensor::{Best, Screening};
use std::ops::Range;

/// With more positions than this the whole product is faster: most panels have a row that may win
/// in one of them, and such panels are multiplied twice.
const SCREEN_POSITIONS: usize = 4;
/// Panels that a thread looks through at a time for rows that may win.
const LOOK_PIECE: usize = 64;
/// Screening saves three bits of 8.5 and reads all 8.5 of the panels that may win once more: it pays
/// where fewer than one panel in so many may.
const PAYS_BELOW: u64 = 4;
/// Where it did not pay, it is tried again after one step, then two, four, up to so many.
const LONGEST_PAUSE: u32 = 256;

/// What the threads find in a step.
pub(super) struct Choices {
    /// Largest upper ends, `[positions][panels]`.
    upper: Shared<f32>,
    /// Largest lower ends, `[threads][positions]`.
    lower: Shared<f32>,
    /// Best tokens, `[threads][positions]`.
    best: Shared<Best>,
    positions: usize,
    /// What each thread has looked at in this step.
    seen: PerThread<Screening>,
    /// What all have looked at in the steps before.
    total: Screening,
    /// Steps that are computed in full before the next one is screened, and how many there are when
    /// screening does not pay again. Either way gives the same bits.
    pause: u32,
    next_pause: u32,
}

impl Choices {
    pub fn new(threads: usize) -> Self {
        Choices {
            upper: Shared::default(),
            lower: Shared::default(),
            best: Shared::default(),
            positions: 0,
            seen: PerThread::new(threads),
            total: Screening::default(),
            pause: 0,
            next_pause: 1,
        }
    }

    /// Makes room for a step.
    pub fn resize(&mut self, positions: usize, panels: usize) -> Result<(), KernelError> {
        let threads = self.seen.count();
        self.positions = positions;
        let screened = if positions <= SCREEN_POSITIONS { positions } else { 0 };
        self.upper.resize(screened * panels)?;
        self.lower.resize(screened * threads)?;
        self.best.resize(positions * threads)
    }

    /// The best token of each position of a step that has just run.
    pub fn take(&mut self, to: &mut Vec<Best>) {
        let mut step = Screening::default();
        for seen in self.seen.each() {
            let seen = std::mem::take(seen);
            step.screened += seen.screened;
            step.exact += seen.exact;
        }
        self.total.screened += step.screened;
        self.total.exact += step.exact;
        if step.screened == 0 {
            self.pause = self.pause.saturating_sub(u32::from(self.positions > 0));
        } else if step.exact * PAYS_BELOW > step.screened {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        } else {
            self.next_pause = 1;
        }
        let all = self.best.slice(0..self.best.len());
        to.extend((0..self.positions).map(|t| {
            let each = all.iter().skip(t).step_by(self.positions);
            each.copied().fold(Best::NONE, Best::or)
        }));
    }

    /// Panels looked at since the beginning.
    pub fn screening(&self) -> Screening {
        self.total
    }
}

/// The fields of [`super::Op::Best`].
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub matrix: MatrixId,
    pub acts: ActBuf,
    pub scale: Option<f32>,
    pub cap: Option<f32>,
}

/// What one thread works with.
struct Share<'a> {
    head: Head,
    step: &'a Step<'a>,
    worker: &'a Worker<'a>,
    w: &'a PackedMatrix<'a>,
    columns: Columns<'a>,
    /// This thread's best tokens so far, `[positions]`.
    best: &'a mut [Best],
}

pub(super) fn run(i: usize, step: &Step<'_>, worker: &Worker<'_>, head: Head) {
    let rows = step.full..step.wanted.len();
    let n = rows.len();
    if n == 0 {
        return;
    }
    let w = &step.weights.matrices[head.matrix.0];
    let columns = step.acts[head.acts.0].columns(w.layout().spec().is_float(), rows);
    // SAFETY: this thread's part.
    let best = unsafe { step.choices.best.slice_mut(worker.index * n..(worker.index + 1) * n) };
    best.fill(Best::NONE);
    let mut share = Share { head, step, worker, w, columns, best };
    // Scales and caps may make different logits equal, and the lower row then wins.
    let plain = head.scale.is_none() && head.cap.is_none() && step.choices.pause == 0;
    let quantized = !matches!(share.columns, Columns::Float(_));
    if w.layout().can_screen() && plain && quantized && n <= SCREEN_POSITIONS {
        share.screen(i);
        worker.barrier();
        share.multiply_the_rest(i + step.counters.len() / 2);
    } else {
        let total = w.layout().panels();
        for panels in step.shares(i, worker, total, panel_piece(total, worker.count)) {
            share.multiply(panels);
        }
    }
}

impl Share<'_> {
    fn rows(&self, panels: &Range<usize>) -> usize {
        let rows = self.w.layout().rows();
        (panels.end * PANEL_ROWS).min(rows) - panels.start * PANEL_ROWS
    }

    /// Approximations of all rows: the upper end of each panel, and this thread's best lower end.
    fn screen(&self, op: usize) {
        let (step, worker, w) = (self.step, self.worker, self.w);
        let (n, total) = (self.columns.n(), w.layout().panels());
        // SAFETY: this thread's own memory.
        let (work, scratch) = unsafe { (step.work.get(worker), step.scratch.get(worker)) };
        let mut norms = [0.0; SCREEN_POSITIONS];
        for (t, norm) in norms[..n].iter_mut().enumerate() {
            *norm = screen::column_norm(&self.columns, t).unwrap_or(f32::NAN);
        }
        let mut lower = [f32::NEG_INFINITY; SCREEN_POSITIONS];
        for panels in step.shares(op, worker, total, panel_piece(total, worker.count)) {
            let stride = panels.len() * PANEL_ROWS;
            work.resize(n * stride, 0.0);
            let rows = self.rows(&panels);
            let y = Output::of_rows(work, stride, panels.start * PANEL_ROWS);
            run_panels_high(step.cpu, w, panels.clone(), &self.columns, &y, scratch);
            for (t, values) in work.chunks_exact(stride).enumerate() {
                let (panel, values) = (panels.start, &values[..rows]);
                let rows = Approximations { w, panel, values, norm: norms[t] };
                let range = t * total + panels.start..t * total + panels.end;
                // SAFETY: these panels are this thread's.
                let upper = unsafe { step.choices.upper.slice_mut(range) };
                lower[t] = lower[t].max(screen::bounds(step.cpu, rows, upper));
            }
            // SAFETY: this thread's own.
            unsafe { step.choices.seen.get(worker) }.screened += panels.len() as u64;
        }
        // SAFETY: this thread's part.
        let to = unsafe { step.choices.lower.slice_mut(worker.index * n..(worker.index + 1) * n) };
        to.copy_from_slice(&lower[..n]);
    }

    /// Multiplies the panels that have a row that may win.
    fn multiply_the_rest(&mut self, op: usize) {
        let (step, worker) = (self.step, self.worker);
        let (n, total) = (self.columns.n(), self.w.layout().panels());
        let mut least = [f32::NEG_INFINITY; SCREEN_POSITIONS];
        for lower in step.choices.lower.slice(0..n * worker.count).chunks_exact(n) {
            for (least, lower) in least.iter_mut().zip(lower) {
                *least = least.max(*lower);
            }
        }
        for panels in step.shares(op, worker, total, LOOK_PIECE) {
            for panel in panels {
                let may_win = |t: usize| {
                    let at = t * total + panel;
                    step.choices.upper.slice(at..at + 1)[0] >= least[t]
                };
                if (0..n).any(may_win) {
                    self.multiply(panel..panel + 1);
                    // SAFETY: this thread's own.
                    unsafe { step.choices.seen.get(worker) }.exact += 1;
                }
            }
        }
    }

    /// The exact logits of some panels' rows, and the best of them.
    fn multiply(&mut self, panels: Range<usize>) {
        let step = self.step;
        // SAFETY: this thread's own memory.
        let (work, scratch) =
            unsafe { (step.work.get(self.worker), step.scratch.get(self.worker)) };
        let stride = panels.len() * PANEL_ROWS;
        work.resize(self.columns.n() * stride, 0.0);
        let rows = self.rows(&panels);
        let y = Output::of_rows(work, stride, panels.start * PANEL_ROWS);
        run_panels(step.cpu, self.w, panels.clone(), &self.columns, &y, scratch);
        for (values, best) in work.chunks_exact_mut(stride).zip(self.best.iter_mut()) {
            let values = &mut values[..rows];
            scale_and_cap(step.cpu, values, self.head.scale, self.head.cap);
            let first = (panels.start * PANEL_ROWS) as u32;
            *best = best.or(screen::best_of(step.cpu, values, first));
        }
    }
}

#[cfg(test)]
mod tests;
