//! The cross-entropy of rows, and its gradient.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use core::f32::consts::{LN_2, LOG2_E};

use super::labels::{Labels, total};
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::rows::{AnyRows, Columns, Exponentials, RowElement, Team, each_chunk, hidden};
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
    /// A number that the gradient is multiplied with beside `gradient_scale`; null if there is none.
    pub device_scale: Global<f32>,
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

// SAFETY: two fields of 24 bytes, six of eight, twelve of four: no padding.
unsafe impl<T: 'static> KernelParam for CrossEntropyParams<T> {}

/// The loss of each row, its gradient and the logarithm of its sum: a team has one.
///
/// A row whose label is ignored has loss 0 and gradient 0. One whose label is no column has NaN for both.
///
/// # Safety
///
/// What `p` describes is valid, and aligned to chunks if `VECTOR`. What is written overlaps nothing else, but the gradient may be the logits if their types and
/// rows are the same. `p.threads` is a power of two up to [`THREADS`](crate::rows::THREADS), as [`Columns`] takes them; the number of a cluster's blocks
/// is a power of two. All threads of a row have all of its chunks in `p.rounds` rounds. The grid has a team for each row.
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
    let row = team.row();
    // SAFETY: the row is one of p's, or no column of it is touched.
    unsafe {
        cross_entropy_row::<T, PER, CHUNKS, VECTOR, CLUSTER>(p, &mut team, all.only_if(row < p.rows), row)
    };
}

/// Logits of a round, −∞ where there is no column.
///
/// # Safety
///
/// As [`cross_entropy_rows`].
#[inline(always)]
unsafe fn load<T: RowElement, const PER: usize, const CHUNKS: usize, const VECTOR: bool>(
    p: &CrossEntropyParams<T>,
    columns: Columns<PER, VECTOR>,
    row: u32,
    round: u32,
    words: &mut [[u32; 4]; CHUNKS],
) {
    let from = p.logits.offset(row as u64 * p.logits_stride).address();
    for c in 0..CHUNKS {
        // SAFETY: the caller's promise.
        words[c] = unsafe { columns.load_words_or_least::<T>(from, round * CHUNKS as u32 + c as u32) };
    }
}

/// A logit as it counts.
#[inline(always)]
fn capped<T>(p: &CrossEntropyParams<T>, z: f32) -> f32 {
    p.cap * math::tanh(z * p.inverse_cap)
}

/// What is asked for of a row.
struct Task {
    counts: bool,
    /// The label's column; none that there is if it has none, or does not count.
    target: u32,
    /// Whether this thread has the label's column, or is the first where there is none. It writes the loss: it alone may read that logit when others write gradients.
    is_owner: bool,
}

impl Task {
    /// # Safety
    ///
    /// As [`cross_entropy_rows`].
    #[inline(always)]
    unsafe fn new<T, const PER: usize, const VECTOR: bool, const CLUSTER: bool>(
        p: &CrossEntropyParams<T>,
        team: &Team<CLUSTER>,
        mine: Columns<PER, VECTOR>,
        row: u32,
    ) -> Self {
        // SAFETY: the caller's promise.
        let label = p.labels.value(unsafe { p.labels.load(row, p.rows) });
        let counts = row < p.rows && !p.labels.ignore(label);
        let target = if counts && (label as u64) < p.columns as u64 { label as u32 } else { u32::MAX };
        let is_owner = if target == u32::MAX { team.rank == 0 } else { mine.has_column(target) };
        Self { counts, target, is_owner }
    }
}

/// The loss of a row and its gradient.
///
/// # Safety
///
/// As [`cross_entropy_rows`], for all threads of a row.
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
    row: u32,
) {
    let mut words = [[0; 4]; CHUNKS];
    // SAFETY: the caller's promise, as that of all blocks below; a thread writes where only itself has read.
    unsafe { load::<T, PER, CHUNKS, VECTOR>(p, mine, row, 0, &mut words) };
    // SAFETY: as above; there is such a column.
    let of_target = unsafe {
        let Task { target, is_owner, .. } = Task::new(p, team, mine, row);
        let at = p.logits.offset(row as u64 * p.logits_stride + target as u64).address();
        T::load_bits_if(at, is_owner && target != u32::MAX)
    };
    let (mut own, mut all) = (Exponentials::NONE, 0.0);
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        if round > 0 {
            // SAFETY: as above.
            unsafe { load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words) };
        }
        let mut max = T::max_of_all::<PER, CHUNKS>(&words);
        // The cap keeps the order. It is finite also of −∞, but not of no number at all.
        if p.cap != 0.0 && mine.has(first, 0) {
            max = capped(p, max);
        }
        own.raise(max, LOG2_E);
        each_chunk!(c of CHUNKS => {
            let chunk = first + c as u32;
            if mine.reaches(chunk) {
                let mut z: [f32; PER] = T::unpack(hidden(words[c]));
                if p.cap != 0.0 {
                    for j in 0..PER {
                        z[j] = if mine.has(chunk, j) { capped(p, z[j]) } else { f32::NEG_INFINITY };
                    }
                }
                if p.smoothing != 0.0 {
                    for j in 0..PER {
                        all += if mine.has(chunk, j) { z[j] } else { 0.0 };
                    }
                }
                own.add(&z, LOG2_E);
            }
        });
    }
    // SAFETY: as above.
    let (Exponentials { max, sum }, all) = unsafe { team.exponentials(own, all, LOG2_E) };
    // Once more: it is not kept in registers until now.
    // SAFETY: as above.
    let Task { counts, target, is_owner } = unsafe { Task::new(p, team, mine, ptx::opaque(row)) };
    let log = ptx::lg2_approx_ftz(sum) * LN_2;
    let lse = max + log;
    // Opaque: what is made of them is not kept in registers while the row is summed.
    let [smoothing, z_loss] =
        [p.smoothing, p.z_loss].map(|number| f32::from_bits(ptx::opaque(number.to_bits())));
    let mut of_target = T::unpack::<PER>([of_target, 0, 0, 0])[0];
    if p.cap != 0.0 {
        of_target = capped(p, of_target);
    }
    if is_owner && row < p.rows {
        let mut loss = (max - of_target) + log;
        if smoothing != 0.0 {
            let to_all = (max - all * p.inverse) + log;
            loss = (1.0 - smoothing) * loss + smoothing * to_all;
        }
        if z_loss != 0.0 {
            loss += z_loss * lse * lse;
        }
        if target == u32::MAX {
            loss = f32::NAN;
        }
        loss = if counts { loss } else { 0.0 };
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
    let mut factor = if target == u32::MAX { f32::NAN } else { p.gradient_scale };
    if !p.device_scale.is_null() {
        // SAFETY: as above.
        factor *= f32::from_bits(unsafe { ptx::ld_global_b32(p.device_scale.address()) });
    }
    if !p.counts.is_null() {
        // SAFETY: as above. Where it is 0 all rows are ignored.
        factor *= ptx::rcp_approx_ftz(unsafe { total(p.counts, p.parts) } as f32);
    }
    let uniform = smoothing * p.inverse;
    // Of a row that does not count: 0 for numbers of any kind, which it reads as zeros.
    let (slope, level) = if counts { (inverse * of_lse * factor, uniform * factor) } else { (0.0, 0.0) };
    let max = if counts { max } else { 0.0 };
    let to = p.gradient.row(row);
    for round in 0..p.rounds {
        let first = round * CHUNKS as u32;
        if p.rounds > 1 {
            // SAFETY: as above.
            unsafe { load::<T, PER, CHUNKS, VECTOR>(p, mine, row, round, &mut words) };
        }
        if !counts {
            words = [[0; 4]; CHUNKS];
        }
        each_chunk!(c of CHUNKS => {
            let chunk = first + c as u32;
            if mine.reaches(chunk) {
                let mut z: [f32; PER] = T::unpack(hidden(words[c]));
                if p.cap != 0.0 {
                    for j in 0..PER {
                        z[j] = capped(p, z[j]);
                    }
                }
                let mut gradient = [0.0; PER];
                for j in 0..PER {
                    gradient[j] = ptx::fma(Exponentials::of(z[j], max, LOG2_E), slope, -level);
                }
                if p.cap != 0.0 {
                    for j in 0..PER {
                        gradient[j] *= slope_of_cap(p, z[j]);
                    }
                }
                // SAFETY: as above.
                unsafe { mine.store_as(p.gradient.kind, to, chunk, gradient) };
            }
        });
    }
    if is_owner && target != u32::MAX {
        let wanted = (1.0 - smoothing) + uniform;
        let share = Exponentials::of(of_target, max, LOG2_E) * inverse;
        let mut gradient = ptx::fma(of_lse, share, -wanted) * factor;
        if p.cap != 0.0 {
            gradient *= slope_of_cap(p, of_target);
        }
        // SAFETY: as above; this thread has just written there itself.
        unsafe { p.gradient.store(row, target, gradient) };
    }
}

/// The derivative of the cap where it gives z: of its tanh, which z is a multiple of.
#[inline(always)]
fn slope_of_cap<T>(p: &CrossEntropyParams<T>, z: f32) -> f32 {
    let t = z * p.inverse_cap;
    ptx::fma(-t, t, 1.0)
}
