//! What tiles of gradients read of each row: its log-sum-exp, and Δ, the sum of dY ∘ Y.

use super::ROW_NUMBERS;
use crate::attention::portable::{Strided, WARPS};
use crate::attention::softmax::LOG2_E;
use crate::attention::work::{Sequences, Sizes, Tiles, Work};
use crate::float::Element;
use crate::launch::{Global, GlobalMut};
use crate::reduce::sum_of_lanes;
use crate::{KernelParam, ptx, thread, warp};

/// Rows of a block.
pub const BLOCK_ROWS: u32 = 64;
/// Lanes that share a row, and neighbouring columns that a lane loads at a time.
const LANES: u32 = 16;
const COLUMNS: u32 = 4;
/// Rows of a block at a time.
const TURN_ROWS: u32 = WARPS * warp::SIZE / LANES;

/// What a launch is told.
#[derive(Clone, Copy, KernelParam)]
#[repr(C)]
pub struct RowParams {
    /// Y, in rows that start at multiples of 16 bytes.
    pub y: Strided,
    /// dY, in the same way.
    pub dy: Strided,
    /// The log-sum-exp of each row.
    pub lse: Global<f32>,
    /// Of each head one more score without a value; null if there are none.
    pub sinks: Global<f32>,
    /// [`ROW_NUMBERS`] of each row, in the order of log-sum-exps.
    pub rows: GlobalMut<f32>,
    /// What each row of Q adds to the gradient of the sink of each head; null if that is not asked for.
    pub dsinks: GlobalMut<f32>,
    /// Columns of Y.
    pub columns: u32,
    /// Keeps the size a multiple of eight; its value is not read.
    pub reserved: u32,
    /// Sequences, heads, rows and keys.
    pub sizes: Sizes,
    /// Where sequences begin, and how long they are.
    pub sequences: Sequences,
}

/// Finds the numbers of the rows of a tile of [`BLOCK_ROWS`], on a one-dimensional grid of a block for each.
///
/// # Safety
///
/// All threads of the block call it. The pointers are valid for what `p` describes, and what is written overlaps nothing else.
#[inline(always)]
pub unsafe fn find_rows<T: Element>(p: &RowParams) {
    let tiles = Tiles::new(p.sizes, p.sequences, BLOCK_ROWS);
    // SAFETY: the caller's promise; each row belongs to neighbouring lanes of one warp.
    unsafe {
        let Some(work) = tiles.work(thread::block_idx_x()) else { return };
        let own = thread::thread_idx_x() / LANES;
        let mut turn = 0;
        while turn < BLOCK_ROWS {
            let row = work.row + turn + own;
            let delta = sum_of_lanes(product::<T>(p, &work, row), LANES);
            if row < work.written && warp::lane_id().is_multiple_of(LANES) {
                store(p, &work, row, delta);
            }
            // Opaque: copies of the loop are worth nothing.
            turn = ptx::opaque(turn + TURN_ROWS);
        }
    }
}

/// The lane's part of Δ of a row: nothing if the row does not count.
///
/// # Safety
///
/// As [`find_rows`].
#[inline(always)]
unsafe fn product<T: Element>(p: &RowParams, work: &Work, row: u32) -> f32 {
    let first = |of: Strided| {
        let at = work.place.batch as u64 * of.sequence
            + (work.place.row + row) as u64 * of.row
            + work.head as u64 * of.head;
        Global::<T>::new(of.first::<T>().offset(at).address())
    };
    let (y, dy) = (first(p.y), first(p.dy));
    let mut sums = [0.0; COLUMNS as usize];
    let mut column = warp::lane_id() % LANES * COLUMNS;
    while row < work.rows && column < p.columns {
        let at = column as u64;
        // SAFETY: the caller's promise, of columns that are there; a row starts at a multiple of what is loaded at a time.
        let [y, dy] = [y, dy].map(|of| unsafe {
            if column + COLUMNS <= p.columns {
                T::words_to_f32(T::load_words_if(of.offset(at), true))
            } else {
                let of_column =
                    |index: u64| T::load_if(of.offset(at + index), column + (index as u32) < p.columns);
                [of_column(0), of_column(1), of_column(2), of_column(3)].map(T::to_f32)
            }
        });
        for index in 0..COLUMNS as usize {
            sums[index] = ptx::fma(y[index], dy[index], sums[index]);
        }
        column += LANES * COLUMNS;
    }
    let [a, b, c, d] = sums;
    (a + b) + (c + d)
}

/// Stores what is known of a row, of which this is Δ.
///
/// # Safety
///
/// As [`find_rows`].
#[inline(always)]
unsafe fn store(p: &RowParams, work: &Work, row: u32, delta: f32) {
    let sizes = &p.sizes;
    let in_tensor = work.place.row + row;
    let number =
        work.place.batch as u64 * sizes.lse_batch + work.head as u64 * sizes.lse_head + in_tensor as u64;
    let counts = row < work.rows;
    // SAFETY: the caller's promise.
    unsafe {
        let lse = ptx::ld_global_f32_if(p.lse.offset(number).address(), counts);
        let counts = counts && lse != f32::NEG_INFINITY;
        // Where no key has weight, that of each is exp(s − ∞).
        let [kept, delta] = if counts { [lse, delta] } else { [f32::INFINITY, 0.0] };
        let to = p.rows.offset(number * ROW_NUMBERS as u64).address();
        ptx::st_global_v4_b32(to, [kept, delta, kept * LOG2_E, delta].map(f32::to_bits));
        if p.dsinks.is_null() {
            return;
        }
        let sink = ptx::ld_global_nc_f32(p.sinks.offset(work.head as u64).address());
        let weight = if counts { ptx::ex2_approx_ftz((sink - lse) * LOG2_E) } else { 0.0 };
        let at = work.place.batch as u64 * sizes.rows as u64 + in_tensor as u64;
        let to = p.dsinks.offset(at * sizes.heads as u64 + work.head as u64);
        ptx::st_global_b32(to.address(), (-weight * delta).to_bits());
    }
}
