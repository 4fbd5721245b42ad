//! Low-rank updates whose V and U fit the registers of a block's warps: nothing but the sums of the first product goes through shared memory.
//!
//! Each warp has a part of K and the same part of the columns of Y. A lane reads 16 bytes of a row of X at a time, eight elements of K.
//! It takes them for the elements of two k-steps that its place in the fragments of A asks for. A product does not depend on the order
//! of K, as long as the rows of V are in the same. Likewise, the columns of U are in such an order that the eight results of a lane in
//! a row, of four fragments, are 16 bytes of Y. The rows of the next tile are on their way as soon as this tile's have been multiplied.

use core::marker::PhantomData;

use super::{LowRankElement, RankCodes, RankColumn};
use crate::float::HalfElement;
use crate::launch::Global;
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{Operand, Output};
use crate::warp;

/// Rows of a tile.
const ROWS: u32 = 16;
/// The largest rank: the rows of a fragment of B of which the lower half is zero.
const RANK: u32 = 8;
/// Elements of K of two k-steps, and columns of four fragments: 64 bytes of a row.
const GROUP: u32 = 32;
/// Elements of a chunk of 16 bytes.
const CHUNK: u32 = 8;
/// Bytes of a warp's accumulators.
const SUM_BYTES: u32 = warp::SIZE * 16;

/// What is computed: `X [M, K1]`, `V [K1, R]`, `U [R, K2]` and `Y [M, K2]`. The rows of X, U and Y are whole chunks of 16 bytes, at multiples
/// of 16 bytes.
#[derive(Clone, Copy)]
pub struct RowsProblem<T> {
    /// X.
    pub x: Operand<T>,
    /// V.
    pub v: Operand<T>,
    /// U.
    pub u: Operand<T>,
    /// Y.
    pub y: Output<T>,
    /// Whether the update is added to what Y holds.
    pub add: bool,
}

/// Tiles of 16 rows by `WARPS` warps, each with 32 · `GROUPS` elements of K and columns of Y; for ranks up to 8. `BLOCKS` blocks fit a
/// multiprocessor.
pub struct RowsTile<const GROUPS: usize, const WARPS: u32, const BLOCKS: u32>(PhantomData<()>);

/// The sizes of a [`RowsTile`], and its kernel.
pub trait RowsShape: 'static {
    /// Rows of a tile.
    const BLOCK_M: u32 = ROWS;
    /// The largest rank.
    const MAX_RANK: u32 = RANK;
    /// The largest K, and number of columns.
    const MAX_COLUMNS: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Blocks that a multiprocessor holds at a time.
    const MIN_BLOCKS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;

    /// Computes all tiles of this block. The blocks of the grid take turns with the tiles.
    ///
    /// # Safety
    ///
    /// All threads of the grid call it, in blocks of [`THREADS`](Self::THREADS) threads with [`SHARED_BYTES`](Self::SHARED_BYTES) bytes of
    /// dynamic shared memory. The operands and codes are valid for reads, and nothing writes them while the kernel runs; Y is valid for
    /// writes, and nothing else touches it. No size is more than the shape's.
    unsafe fn update<T: LowRankElement + HalfElement, C: RankCodes>(problem: &RowsProblem<T>, codes: &C);
}

impl<const GROUPS: usize, const WARPS: u32, const BLOCKS: u32> RowsTile<GROUPS, WARPS, BLOCKS> {
    /// Where what is known of the rank coordinates' codes follows the sums.
    const COLUMNS_AT: u32 = 2 * WARPS * SUM_BYTES;

    /// The place of what is known of the codes of a rank coordinate.
    #[inline(always)]
    fn of_column(rank: u32) -> u32 {
        SharedAddress::dynamic().offset(Self::COLUMNS_AT + rank * RankColumn::BYTES).get()
    }

    /// The lane's row of a fragment, and its number among the four that share it.
    #[inline(always)]
    fn place() -> (u32, u32) {
        (warp::lane_id() / 4, warp::lane_id() % 4)
    }

    /// The first element of the warp's part of a row.
    #[inline(always)]
    fn first() -> u32 {
        warp::warp_id() * (GROUPS as u32 * GROUP)
    }

    /// Has the lane's chunks of the tile whose first row is `row` loaded.
    #[inline(always)]
    unsafe fn load_rows<T: LowRankElement>(chunks: &mut [[[u32; 4]; 2]; GROUPS], x: &Operand<T>, row: u32) {
        let (own, quarter) = Self::place();
        let (row, column) = (row + own, Self::first() + quarter * CHUNK);
        let below = row + ROWS / 2;
        let at = x.base.address() + (row as u64 * x.stride + column as u64) * T::BYTES as u64;
        let at_below = at + x.stride * (ROWS / 2 * T::BYTES) as u64;
        for (group, [upper, lower]) in chunks.iter_mut().enumerate() {
            let offset = group as u32 * GROUP;
            let is_there = column + offset < x.k;
            let offset = (offset * T::BYTES) as u64;
            // SAFETY: the caller's promise: whole chunks of rows that there are.
            unsafe {
                *upper = ptx::ld_global_v4_b32_if(at + offset, is_there && row < x.rows);
                *lower = ptx::ld_global_v4_b32_if(at_below + offset, is_there && below < x.rows);
            }
        }
    }

    /// The lane's elements of V, of the two k-steps of each group.
    #[inline(always)]
    unsafe fn load_v<T: LowRankElement>(fragments: &mut [[[u32; 2]; 2]; GROUPS], v: &Operand<T>) {
        let (own, quarter) = Self::place();
        let mut row = Self::first() + quarter * CHUNK;
        let mut at = v.base.address() + (row as u64 * v.stride + own as u64) * T::BYTES as u64;
        let pitch = v.stride * T::BYTES as u64;
        for steps in fragments.iter_mut() {
            // Of a whole chunk all rows are there or none.
            let is_there = row < v.rows && own < v.k;
            for words in steps.iter_mut() {
                for word in words.iter_mut() {
                    // SAFETY: the caller's promise.
                    let [low, high] = unsafe {
                        [
                            T::load_code_bits(Global::new(at), is_there),
                            T::load_code_bits(Global::new(at + pitch), is_there),
                        ]
                    };
                    *word = low | high << 16;
                    at += 2 * pitch;
                }
            }
            row += GROUP;
            at += (GROUP - CHUNK) as u64 * pitch;
        }
    }

    /// The lane's elements of U, of the four fragments of each group.
    #[inline(always)]
    unsafe fn load_u<T: LowRankElement>(fragments: &mut [[u32; 4]; GROUPS], u: &Operand<T>) {
        let (own, quarter) = Self::place();
        let column = Self::first() + own / 2 * CHUNK;
        let shift = own % 2 * 16;
        for (group, words) in fragments.iter_mut().enumerate() {
            let column = column + group as u32 * GROUP;
            let load = |row: u32| {
                let at = u.base.offset(row as u64 * u.stride + column as u64);
                // SAFETY: the caller's promise: whole chunks of rows that there are.
                unsafe { ptx::ld_global_v4_b32_if(at.address(), row < u.rows && column < u.k) }
            };
            let (even, odd) = (load(2 * quarter), load(2 * quarter + 1));
            for (i, word) in words.iter_mut().enumerate() {
                *word = (even[i] >> shift & 0xffff) | odd[i] >> shift << 16;
            }
        }
    }

    /// The bits of the codes of the lane's sums of the tile whose first row is `row`.
    #[inline(always)]
    unsafe fn load_codes<T: LowRankElement>(row: u32, rows: u32) -> [u32; 4] {
        let (own, quarter) = Self::place();
        let (row, below) = (row + own, row + own + ROWS / 2);
        // SAFETY: the columns were written at the start, and the block has synchronised since; the caller's promise, for rows that there
        // are.
        unsafe {
            let left = RankColumn::get(Self::of_column(2 * quarter));
            let right = RankColumn::get(Self::of_column(2 * quarter + 1));
            let bits = |column: &RankColumn, row: u32| {
                // Most codes are each row's own, and divisions are long.
                let index = if column.rows <= 1 { row } else { row / column.rows };
                let at = Global::new(column.address + index as u64 * column.pitch);
                ptx::opaque(T::load_code_bits(at, row < rows && column.rows != 0))
            };
            [bits(&left, row), bits(&right, row), bits(&left, below), bits(&right, below)]
        }
    }

    /// The sums of the block's warps, of which this one's is `own`, times codes and scalings; zeros beyond `rank`.
    #[inline(always)]
    unsafe fn share<T: LowRankElement>(own: [f32; 4], codes: [u32; 4], odd: u32, rank: u32) -> [f32; 4] {
        let parts = SharedAddress::dynamic().offset(odd * (WARPS * SUM_BYTES) + warp::lane_id() * 16).get();
        let mut sums = [0.0; 4];
        // SAFETY: this lane's place. All have read what the last tile but one left there: they have since come to the last one's barrier.
        // The parts are read behind this one's.
        unsafe {
            ptx::st_shared_v4_f32(parts + warp::warp_id() * SUM_BYTES, own);
            thread::sync_threads();
            for warp in 0..WARPS {
                let part = ptx::ld_shared_v4_f32(parts + warp * SUM_BYTES);
                for i in 0..4 {
                    sums[i] += part[i];
                }
            }
        }
        let first = Self::place().1 * 2;
        let scaling = |rank: u32| {
            // SAFETY: written at the start, and the block has synchronised since.
            unsafe { ptx::ld_shared_f32(Self::of_column(rank) + RankColumn::SCALING_AT) }
        };
        let scaling = [scaling(first), scaling(first + 1)];
        // Not a product with zero: beyond the rank, the sum of an infinite row of X is no number.
        let times = |i: usize| {
            let code = T::code_of_bits(codes[i]);
            if first + (i as u32 % 2) < rank { sums[i] * (scaling[i % 2] * code) } else { 0.0 }
        };
        [times(0), times(1), times(2), times(3)]
    }
}

impl<const GROUPS: usize, const WARPS: u32, const BLOCKS: u32> RowsShape for RowsTile<GROUPS, WARPS, BLOCKS> {
    const MAX_COLUMNS: u32 = GROUPS as u32 * GROUP * WARPS;
    const THREADS: u32 = WARPS * warp::SIZE;
    const MIN_BLOCKS: u32 = BLOCKS;
    const SHARED_BYTES: u32 = Self::COLUMNS_AT + RANK * RankColumn::BYTES;

    #[inline(always)]
    unsafe fn update<T: LowRankElement + HalfElement, C: RankCodes>(problem: &RowsProblem<T>, codes: &C) {
        let &RowsProblem { x, v, u, y, add } = problem;
        let rank = u.rows;
        let mut row = thread::block_idx_x() * ROWS;
        // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a variable index and so live in
        // local memory.)
        let (mut chunks, mut of_v, mut of_u) =
            unsafe { (core::mem::zeroed(), core::mem::zeroed(), core::mem::zeroed()) };
        // SAFETY: the caller's promise. One thread writes the codes' column, and all synchronise before they read it.
        let mut held = unsafe {
            Self::load_rows(&mut chunks, &x, row);
            Self::load_v(&mut of_v, &v);
            Self::load_u(&mut of_u, &u);
            let thread = thread::thread_idx_x();
            if thread < RANK {
                codes.of_rank(thread).put(Self::of_column(thread));
            }
            thread::sync_threads();
            Self::load_codes::<T>(row, x.rows)
        };
        let (own, quarter) = Self::place();
        let column = Self::first() + quarter * CHUNK;
        let mut odd = 0;
        while row < x.rows {
            let mut even_sums = [0.0; 4];
            let mut odd_sums = [0.0; 4];
            for (group, chunk) in chunks.iter().enumerate() {
                let b = of_v[group];
                let [[a, b0, c, d], [e, f, g, h]] = *chunk;
                // SAFETY: all lanes of the warp are here.
                unsafe {
                    T::multiply_add(&mut even_sums, T::prepare_a([a, e, b0, f]), T::prepare_b(b[0]));
                    T::multiply_add(&mut odd_sums, T::prepare_a([c, g, d, h]), T::prepare_b(b[1]));
                }
            }
            for i in 0..4 {
                even_sums[i] += odd_sums[i];
            }
            let next = row + thread::grid_dim_x() * ROWS;
            // SAFETY: the caller's promise; all threads of the block are here.
            let sums = unsafe {
                Self::load_rows(&mut chunks, &x, next);
                Self::share::<T>(even_sums, held, odd, rank)
            };
            // SAFETY: the caller's promise.
            held = unsafe { Self::load_codes::<T>(next, x.rows) };
            let a = T::prepare_a([T::pack([sums[0], sums[1]]), T::pack([sums[2], sums[3]]), 0, 0]);
            let upper = row + own;
            let at = y.at(upper, column).address();
            let at = [at, at + y.stride * (ROWS / 2 * T::BYTES) as u64];
            let is_row = [upper < y.rows, upper + ROWS / 2 < y.rows];
            for (group, words) in of_u.iter().enumerate() {
                let mut products = [[0.0; 4]; 4];
                for (i, product) in products.iter_mut().enumerate() {
                    // SAFETY: all lanes of the warp are here.
                    unsafe { T::multiply_add(product, a, T::prepare_b([words[i], 0])) }
                }
                let is_there = column + group as u32 * GROUP < y.columns;
                for half in 0..2 {
                    if !(is_there && is_row[half]) {
                        continue;
                    }
                    let at = at[half] + (group as u32 * GROUP * T::BYTES) as u64;
                    let mut chunk = [0; 4];
                    // SAFETY: the caller's promise: whole chunks of rows that there are.
                    unsafe {
                        // Zeros are added rather than a choice made for each element.
                        let before = if add { ptx::ld_global_v4_b32(at) } else { [0; 4] };
                        for i in 0..4 {
                            let [low, high] = [before[i], before[i] >> 16].map(T::code_of_bits);
                            let pair = [products[i][2 * half] + low, products[i][2 * half + 1] + high];
                            chunk[i] = T::pack(pair);
                        }
                        ptx::st_global_v4_b32(at, chunk);
                    }
                }
            }
            odd ^= 1;
            row = next;
        }
    }
}
