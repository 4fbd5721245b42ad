//! The cross-entropy of rows, and its gradient.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use core::f32::consts::{LN_2, LOG2_E};

use super::labels::{Labels, total};
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, Exponentials, RowElement, Team, hide};
use crate::{math, ptx};

/// Logits and labels, and where results go.
#[repr(C)]
pub struct CrossEntropyParams<T> {
    /// Where the gradient with respect to the logits goes; nowhere if it is not there.
    pub gradient: AnyRows,
    /// The labels.
    pub labels: Labels,
    /// The logits, rows `logits_stride` apart.
    pub logits: Global<T>,
    /// Elements from one row to the next.
    pub logits_stride: u64,
    /// Where each row's loss goes.
    pub loss: GlobalMut<f32>,
    /// Where the logarithm of each row's sum of exponentials goes; null if it is not wanted.
    pub lse: GlobalMut<f32>,
    /// How many labels of each part of the rows count: the gradient is divided by their sum. Null if it is not.
    pub counts: Global<u32>,
    /// How many counts there are.
    pub parts: u32,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Threads of a block that share a row, a power of two.
    pub threads: u32,
    /// How often the threads of a row have `CHUNKS` chunks of it each.
    pub rounds: u32,
    /// ε.
    pub smoothing: f32,
    /// 1 over the number of columns.
    pub inverse: f32,
    /// ζ.
    pub z_loss: f32,
    /// What logits are capped at; 0 if they are not.
    pub cap: f32,
    /// 1 over it.
    pub inverse_cap: f32,
    /// What the gradient is multiplied with.
    pub gradient_scale: f32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for CrossEntropyParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CrossEntropyParams<T> {}

// SAFETY: two fields of 24 bytes, five of eight, twelve of four: no padding.
unsafe impl<T: 'static> KernelParam for CrossEntropyParams<T> {}

/// The loss of each row, its gradient and the logarithm of its sum. The grid has blocks, or clusters of them, for as many rows as it likes.
///
/// A row whose label is ignored has loss 0 and gradient 0. One whose label is no column has NaN for both.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`. What is written overlaps nothing else, but the gradient may be the logits if their types and
/// rows are the same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS); all threads of a row have all of its chunks in `p.rounds` rounds.
#[inline(always)]
pub unsafe fn cross_entropy_rows<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &CrossEntropyParams<T>,
) {
    // SAFETY: the caller's promise.
    let mut team = unsafe { Team::<CLUSTER>::new(p.threads) };
    let all = Columns::<PER, VECTOR>::new(team.rank, team.threads, p.columns);
    let mut factor = p.gradient_scale;
    if !p.counts.is_null() {
        // SAFETY: as above. Where it is 0 all rows are ignored.
        factor *= ptx::rcp_approx_ftz(unsafe { total(p.counts, p.parts) } as f32);
    }
    let mut base = team.first;
    while base < p.rows {
        let row = base + team.index;
        // SAFETY: the row is one of p's, or no column of it is touched.
        unsafe {
            let task = Task::new(p, row, factor);
            cross_entropy_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(
                p,
                &mut team,
                all.only_if(row < p.rows),
                &task,
            );
        }
        base += team.step;
    }
}

/// What is asked for of a row.
struct Task {
    row: u32,
    /// The label's column; none that there is if it has none.
    target: u32,
    /// What the gradient is multiplied with.
    factor: f32,
    /// Whether it counts.
    counts: bool,
}

impl Task {
    /// # Safety
    ///
    /// As [`cross_entropy_rows`].
    #[inline(always)]
    unsafe fn new<T>(p: &CrossEntropyParams<T>, row: u32, factor: f32) -> Self {
        let mut task = Self { row, target: u32::MAX, factor, counts: false };
        if row < p.rows {
            // SAFETY: there is such a row.
            let label = unsafe { p.labels.load(row) };
            task.counts = !p.labels.ignore(label);
            if (label as u64) < p.columns as u64 {
                task.target = label as u32;
            }
        }
        task
    }
}

#[inline(always)]
unsafe fn cross_entropy_row<
    T: RowElement,
    const PER: usize,
    const CHUNKS: usize,
    const VECTOR: bool,
    const CLUSTER: bool,
>(
    p: &CrossEntropyParams<T>,
    team: &mut Team<CLUSTER>,
    mine: Columns<PER, VECTOR>,
    task: &Task,
) {
    let row = task.row;
    let from = p.logits.offset(row as u64 * p.logits_stride).address();
    let read = mine.only_if(task.counts || !p.lse.is_null());
    let mut words = [[0; 4]; CHUNKS];
    let (mut own, mut of_target, mut all) = (Exponentials::NONE, 0.0, 0.0);
    // SAFETY (of all blocks): the caller's promise; a thread writes where only itself has read.
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        for c in 0..CHUNKS {
            // SAFETY: as above.
            words[c] = unsafe { read.load_words::<T>(from, first + c as u32) };
        }
        let mut max = f32::NEG_INFINITY;
        for c in 0..CHUNKS {
            let x: [f32; PER] = T::unpack(words[c]);
            for j in 0..PER {
                let x = if read.has(first + c as u32, j) { x[j] } else { f32::NEG_INFINITY };
                max = ptx::max_nan(max, x);
            }
        }
        // The cap keeps the order. It is finite also of −∞, but not of no number at all.
        if p.cap != 0.0 && read.has(first, 0) {
            max = p.cap * math::tanh(max * p.inverse_cap);
        }
        own.raise(max, LOG2_E);
        hide(&mut words);
        for c in 0..CHUNKS {
            let chunk = first + c as u32;
            let mut z: [f32; PER] = T::unpack(words[c]);
            if p.cap != 0.0 {
                for j in 0..PER {
                    z[j] = p.cap * math::tanh(z[j] * p.inverse_cap);
                }
            }
            let is_target = read.are(chunk, task.target);
            for j in 0..PER {
                let is_there = read.has(chunk, j);
                all += if is_there { z[j] } else { 0.0 };
                of_target = if is_there && is_target[j] { z[j] } else { of_target };
                z[j] = if is_there { z[j] } else { f32::NEG_INFINITY };
            }
            own.add(&z, LOG2_E);
        }
    }
    let others = [all, of_target, 0.0];
    // SAFETY: as above.
    let (Exponentials { max, sum }, [all, of_target, _]) = unsafe { own.join(team, LOG2_E, others) };
    let log = ptx::lg2_approx_ftz(sum) * LN_2;
    let lse = max + log;
    // Opaque: what is made of them is not kept in registers from one row to the next.
    let [smoothing, z_loss] =
        [p.smoothing, p.z_loss].map(|number| f32::from_bits(ptx::opaque(number.to_bits())));
    if team.rank == 0 && row < p.rows {
        let mut loss = (max - of_target) + log;
        if smoothing != 0.0 {
            let to_all = (max - all * p.inverse) + log;
            loss = (1.0 - smoothing) * loss + smoothing * to_all;
        }
        if z_loss != 0.0 {
            loss += z_loss * lse * lse;
        }
        if task.target == u32::MAX {
            loss = f32::NAN;
        }
        loss = if task.counts { loss } else { 0.0 };
        // SAFETY: as above.
        unsafe {
            ptx::st_global_b32(p.loss.offset(row as u64).address(), loss.to_bits());
            if !p.lse.is_null() {
                ptx::st_global_b32(p.lse.offset(row as u64).address(), lse.to_bits());
            }
        }
    }
    if !p.gradient.is_there() {
        return;
    }
    let inverse = ptx::rcp_approx_ftz(sum);
    let of_lse = if z_loss != 0.0 { ptx::fma(2.0 * z_loss, lse, 1.0) } else { 1.0 };
    let (uniform, factor) =
        (smoothing * p.inverse, if task.target == u32::MAX { f32::NAN } else { task.factor });
    let wanted = (1.0 - smoothing) + uniform;
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        if p.rounds > 1 {
            for c in 0..CHUNKS {
                // SAFETY: as above.
                words[c] = unsafe { read.load_words::<T>(from, first + c as u32) };
            }
        }
        hide(&mut words);
        for c in 0..CHUNKS {
            let chunk = first + c as u32;
            let mut z: [f32; PER] = T::unpack(words[c]);
            if p.cap != 0.0 {
                for j in 0..PER {
                    z[j] = p.cap * math::tanh(z[j] * p.inverse_cap);
                }
            }
            let is_target = mine.are(chunk, task.target);
            let mut gradient = [0.0; PER];
            for j in 0..PER {
                let share = Exponentials::of(z[j], max, LOG2_E) * inverse;
                let target = if is_target[j] { wanted } else { uniform };
                let own = ptx::fma(of_lse, share, -target) * factor;
                gradient[j] = if task.counts { own } else { 0.0 };
            }
            if p.cap != 0.0 {
                for j in 0..PER {
                    // The derivative of the cap: of its tanh, which z is a multiple of.
                    let t = z[j] * p.inverse_cap;
                    let capped = gradient[j] * ptx::fma(-t, t, 1.0);
                    gradient[j] = if task.counts { capped } else { 0.0 };
                }
            }
            // SAFETY: as above.
            unsafe { mine.store(&p.gradient, row, chunk, gradient) };
        }
    }
}
