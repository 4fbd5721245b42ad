//! What the gradients of a generated update have between their products.
//!
//! For ΔY = s · (H ⊙ codes) U with H = X V, let P = dY Uᵀ. One pass over H and P, both in f32, writes A = s · H ⊙ codes, which the product dU = Aᵀ dY reads, and
//! dH = s · P ⊙ codes, which dV = Xᵀ dH and dX = dH Vᵀ read. It sums s · P ⊙ H over the rows that share a row of codes: the gradient of the codes.
//!
//! A thread has one column of a strip's rows. Rows that share codes are a group, cut into strips. The strips do not depend on the GPU, so neither does the order of
//! the sums.

// Registers are indexed by constants: an iterator over several arrays at once might put them in memory.
#![allow(clippy::needless_range_loop)]

use crate::float::{Bf16, Element, F16};
use crate::launch::{Global, GlobalMut, KernelParam};
use crate::linear_gradient::put;
use crate::rows::{AnyRows, Kind, THREADS};
use crate::shared::SharedAddress;
use crate::{ptx, thread};

/// Rows whose loads a thread starts together.
pub const ROWS: u32 = 4;
/// Shared memory of a block, in bytes: a sum of each thread.
pub const SHARED_BYTES: u32 = THREADS * 4;

/// Operands and results of [`update_gradients`], of one update. `T` is the type of X, V, the codes and U.
#[repr(C)]
pub struct UpdateGradientParams<T> {
    /// H, the update's first column; null if only dH is wanted.
    pub h: Global<f32>,
    /// P, the update's first column; null if only A is wanted.
    pub p: Global<f32>,
    /// Elements from one row of H, and of P, to the next.
    pub stride: u64,
    /// The codes.
    pub codes: Global<T>,
    /// Elements from one row of codes to the next.
    pub codes_stride: u64,
    /// Where A goes; null if it is not wanted.
    pub a: GlobalMut<T>,
    /// Where dH goes; null if it is not wanted.
    pub dh: GlobalMut<T>,
    /// Elements from one row of A, and of dH, to the next.
    pub result_stride: u64,
    /// Where the gradient of the codes goes, or, of groups of several strips, the sums of these. Only if there are H and P.
    pub dcodes: AnyRows,
    /// Rows of H and P.
    pub rows: u32,
    /// The update's columns: its rank, at most `threads`.
    pub columns: u32,
    /// Groups.
    pub groups: u32,
    /// Rows of a group; the last one may have fewer.
    pub group: u32,
    /// Rows of a strip.
    pub strip: u32,
    /// Threads that have a row, a power of two up to [`THREADS`].
    pub threads: u32,
    /// Rows of a strip that threads of a block have at a time, a power of two; `threads` times as many are at most [`THREADS`].
    pub teams: u32,
    /// Whether each row has codes of its own, 1 or 0: groups are then no more than shares of the rows, of one strip each, and nothing is summed.
    pub own: u32,
    /// Rows of `dcodes` from one group to the next.
    pub of_group: u32,
    /// Rows of `dcodes` from one strip of a group to the next.
    pub of_strip: u32,
    /// s.
    pub scaling: f32,
    /// Whether the gradient of the codes is added to what is there: 1 or 0.
    pub adds: u32,
}

impl<T> Clone for UpdateGradientParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for UpdateGradientParams<T> {}

// SAFETY: eight fields of eight bytes, an operand of 24, twelve fields of four: no padding.
unsafe impl<T: 'static> KernelParam for UpdateGradientParams<T> {}

/// A, dH, and the gradient of the codes. Along x the grid has a block for every [`THREADS`] / (`threads` · `teams`) groups, along y one for each strip of a group.
///
/// The teams that share a strip take turns with its rows; their sums are added in pairs.
///
/// # Safety
///
/// All threads of the block call it. What `p` describes is valid, and nothing that is written overlaps anything else. `p.threads` and `p.teams` are as they say. If
/// the gradient of the codes is added to what is there, each group has one strip.
#[inline(always)]
pub unsafe fn update_gradients<T: Element>(p: &UpdateGradientParams<T>) {
    // Powers of two, which the compiler cannot know.
    let (id, of_row, of_strip) =
        (thread::thread_idx_x(), p.threads.trailing_zeros(), p.teams.trailing_zeros());
    let (column, team) = (id & (p.threads - 1), id >> of_row);
    let place = team & (p.teams - 1);
    let group = thread::block_idx_x() * (THREADS >> of_row >> of_strip) + (team >> of_strip);
    let strip = thread::block_idx_y();
    let is_there = group < p.groups;
    let begin = if is_there { group * p.group } else { p.rows };
    let of_group = if p.rows - begin < p.group { p.rows - begin } else { p.group };
    let before = strip * p.strip;
    // A group of fewer rows may have fewer strips.
    let before = if before < of_group { before } else { of_group };
    let count = if of_group - before < p.strip { of_group - before } else { p.strip };
    let (first, end) = (begin + before, begin + before + count);
    let has_column = column < p.columns;
    let [has_h, has_p] = [!p.h.is_null(), !p.p.is_null()];
    let own_gradients = p.own != 0 && p.dcodes.is_there();
    let (mut sum, mut row) = (0.0, first + place);
    while row < end {
        let (mut h, mut q, mut codes) = ([0.0; ROWS as usize], [0.0; ROWS as usize], [0.0; ROWS as usize]);
        for i in 0..ROWS as usize {
            let at = row + i as u32 * p.teams;
            let inside = at < end && has_column;
            let offset = at as u64 * p.stride + column as u64;
            let code_row = if p.own != 0 { at } else { group };
            // No branch around them: what comes together behind one would wait for each load before the next.
            // SAFETY: the caller's promise; what is not there is not read.
            unsafe {
                h[i] = f32::load_read_only_if(p.h.offset(offset), inside && has_h);
                q[i] = f32::load_read_only_if(p.p.offset(offset), inside && has_p);
                let code = p.codes.offset(code_row as u64 * p.codes_stride + column as u64);
                codes[i] = T::load_read_only_if(code, inside).to_f32_where_used();
            }
        }
        for i in 0..ROWS as usize {
            let at = row + i as u32 * p.teams;
            let (factor, gradient) = (p.scaling * codes[i], q[i] * h[i] * p.scaling);
            sum += gradient;
            if at < end && has_column {
                let offset = at as u64 * p.result_stride + column as u64;
                // SAFETY: the caller's promise; the place is this thread's.
                unsafe {
                    if !p.a.is_null() {
                        T::store_rounded(p.a.offset(offset), h[i] * factor);
                    }
                    if !p.dh.is_null() {
                        T::store_rounded(p.dh.offset(offset), q[i] * factor);
                    }
                    if own_gradients {
                        put_any(&p.dcodes, at, column, gradient, p.adds != 0);
                    }
                }
            }
        }
        row += ROWS * p.teams;
    }
    if p.own != 0 || !p.dcodes.is_there() {
        return;
    }
    let place_of = |id: u32| SharedAddress::dynamic().offset(id * 4).get();
    // SAFETY: each thread has a place of its own, and reads those of teams that write no more; a barrier is between writing and reading. The result is this thread's.
    unsafe {
        ptx::st_shared_f32(place_of(id), sum);
        let mut half = p.teams >> 1;
        while half > 0 {
            thread::sync_threads();
            if place < half {
                sum += ptx::ld_shared_f32(place_of(id + (half << of_row)));
                ptx::st_shared_f32(place_of(id), sum);
            }
            half >>= 1;
        }
        if place == 0 && has_column && is_there {
            let to = group * p.of_group + strip * p.of_strip;
            put_any(&p.dcodes, to, column, sum, p.adds != 0);
        }
    }
}

/// Stores an element of rows of any type, or adds it to what is there.
///
/// # Safety
///
/// The element is this thread's.
#[inline(always)]
unsafe fn put_any(rows: &AnyRows, row: u32, column: u32, value: f32, adds: bool) {
    let to = rows.row(row) + column as u64 * rows.kind.bytes() as u64;
    // SAFETY: the caller's promise.
    unsafe {
        if rows.kind == Kind::F32 {
            put::<f32>(to, value, adds);
        } else if rows.kind == Kind::F16 {
            put::<F16>(to, value, adds);
        } else {
            put::<Bf16>(to, value, adds);
        }
    }
}
