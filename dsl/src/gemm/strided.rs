//! Products of 16-bit operands with any strides, read element by element; sm_80 and later.
//!
//! What reads 16 bytes at a time, or 4, needs rows that start at multiples of as many. Here a thread loads single elements, two neighbours
//! along K at a time, and puts them together in shared memory. All that a tile needs of 128 columns of K is on its way at once: for a small
//! product that is all that it reads, and the time is that of one access to memory.

use core::marker::PhantomData;

use super::mma_sync::{COLUMNS, FragmentLoader, MmaTile, STEP_BYTES, multiply_add};
use super::two_slots::{self, SlotProducts, SlotReader, Slots};
use crate::epilogue::Epilogue;
use crate::float::HalfElement;
use crate::gemm::again::Whole;
use crate::gemm::{MmaElement, TileShape};
use crate::launch::Global;
use crate::layout::{Swizzle, TileIndex};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::Output;

/// 32 × 32 outputs by four warps; four more only read.
pub type StridedTile = MmaTile<1, 2, 2, 2, 4, ROW_BYTES>;

/// A matrix in global memory: `rows` rows of `k` elements, at any strides.
#[derive(Clone, Copy)]
pub struct StridedOperand<T> {
    /// The first element.
    pub base: Global<T>,
    /// Elements from one row to the next.
    pub row_stride: u64,
    /// Elements from one column to the next.
    pub column_stride: u64,
    /// The number of rows.
    pub rows: u32,
    /// Elements of a row.
    pub k: u32,
}

/// Bytes of a row of shared memory.
const ROW_BYTES: u32 = 128;
/// Columns of K of such a row.
const PANEL_K: u32 = ROW_BYTES / BYTES;
/// Such rows beside each other in a slot.
const PANELS: u32 = 2;
/// Columns of K of a slot.
const SLOT_K: u32 = PANELS * PANEL_K;
/// Rows of an operand of a tile.
const ROWS: u32 = StridedTile::BLOCK_M;
/// Bytes of one panel of an operand.
const PANEL_BYTES: u32 = ROWS * ROW_BYTES;
/// The slots: the rows of A, and behind them those of B.
const SLOT_BYTES: u32 = 2 * PANELS * PANEL_BYTES;
/// Threads of a block. All read, and the first ones, which have the tile, multiply: twice as many have what a tile needs on its way in half
/// the instructions.
pub const THREADS: u32 = 2 * StridedTile::THREADS;
/// Pairs of neighbours along K in a slot.
const PAIRS: u32 = SLOT_K / 2;
/// Rows that the threads read at a time, where they are contiguous along K.
const PASS_ROWS: u32 = THREADS / PAIRS;
/// Pairs that they read at a time of each row, where they are not.
const PASS_PAIRS: u32 = THREADS / ROWS;
/// Pairs that each thread reads of an operand's part of a slot.
const PASSES: usize = {
    assert!(ROWS == StridedTile::BLOCK_N, "both operands have as many rows");
    assert!(2 * SLOT_BYTES <= StridedTile::SHARED_BYTES, "two slots");
    assert!(THREADS.is_multiple_of(PAIRS) && THREADS.is_multiple_of(ROWS), "whole rows, or whole columns");
    (ROWS * PAIRS / THREADS) as usize
};
/// Bytes of an element.
const BYTES: u32 = 2;

/// A thread's share of reading an operand.
///
/// Neighbouring threads have neighbours along K where these are neighbours in memory, and along the rows otherwise.
#[derive(Clone, Copy)]
struct ElementReader<T> {
    /// The first element of the thread's first pair of the first slot.
    from: u64,
    /// Bytes from one row to the next, and from one column.
    strides: [u64; 2],
    /// The first pair's row of the tile's, and its column.
    first: [u32; 2],
    /// How many of the tile's rows the operand has, and its columns.
    lengths: [u32; 2],
    is_along_k: bool,
    kind: PhantomData<T>,
}

impl<T: HalfElement> ElementReader<T> {
    /// The reader of the tile's rows from `first_row` on, which is within the operand.
    #[inline(always)]
    fn new(operand: &StridedOperand<T>, first_row: u32) -> Self {
        let thread = thread::thread_idx_x();
        let strides = [operand.row_stride, operand.column_stride].map(|stride| stride * BYTES as u64);
        let is_along_k = operand.column_stride == 1;
        let [row, pair] =
            if is_along_k { [thread / PAIRS, thread % PAIRS] } else { [thread % ROWS, thread / ROWS] };
        let from =
            operand.base.address() + (first_row + row) as u64 * strides[0] + (2 * pair) as u64 * strides[1];
        // Opaque: worked out here, before anything is waited for.
        let [low, high] = [from as u32, (from >> 32) as u32].map(ptx::opaque);
        Self {
            from: (high as u64) << 32 | low as u64,
            strides,
            first: [row, 2 * pair],
            lengths: [operand.rows - first_row, operand.k],
            is_along_k,
            kind: PhantomData,
        }
    }

    /// Row and column of the first pair. What follows from them is worked out where it is needed: all that a loop could keep of it would take
    /// more registers, and more time before the loop than in it, which mostly runs once.
    #[inline(always)]
    fn first(&self) -> [u32; 2] {
        self.first.map(ptx::opaque)
    }
}

// SAFETY: all-zero bits are integers.
unsafe impl<T: HalfElement> SlotReader for ElementReader<T> {
    /// The two elements of each pair.
    type Words = [[u32; 2]; PASSES];

    #[inline(always)]
    unsafe fn read(&self, slot: u32) -> Self::Words {
        let ([row, column], [row_stride, column_stride]) = (self.first(), self.strides);
        let column = slot * SLOT_K + column;
        let [rows, k] = self.lengths;
        // SAFETY: all-zero bits are integers. (An array literal of this length would be filled by a loop with a variable index and so live
        // in local memory.)
        let mut words: Self::Words = unsafe { core::mem::zeroed() };
        if self.is_along_k {
            let mut from = self.from + (slot * SLOT_K * BYTES) as u64;
            let has = [column < k, column + 1 < k];
            for (pass, [low, high]) in words.iter_mut().enumerate() {
                let has_row = row + (pass as u32 * PASS_ROWS) < rows;
                // SAFETY: within the operand, if the condition holds.
                unsafe {
                    *low = ptx::ld_global_nc_u16_wide_if(from, has_row && has[0]);
                    *high = ptx::ld_global_nc_u16_wide_if(from + BYTES as u64, has_row && has[1]);
                }
                from += PASS_ROWS as u64 * row_stride;
            }
        } else {
            let mut from = self.from + (slot * SLOT_K) as u64 * column_stride;
            let has_row = row < rows;
            for (pass, [low, high]) in words.iter_mut().enumerate() {
                let column = column + 2 * pass as u32 * PASS_PAIRS;
                // SAFETY: within the operand, if the condition holds.
                unsafe {
                    *low = ptx::ld_global_nc_u16_wide_if(from, has_row && column < k);
                    *high = ptx::ld_global_nc_u16_wide_if(from + column_stride, has_row && column + 1 < k);
                }
                from += (2 * PASS_PAIRS) as u64 * column_stride;
            }
        }
        words
    }

    #[inline(always)]
    unsafe fn put(&self, to: SharedAddress, words: &Self::Words) {
        let [row, column] = self.first();
        let swizzle = Swizzle::for_row(ROW_BYTES);
        if self.is_along_k {
            let panel = to.offset(column / PANEL_K * PANEL_BYTES);
            // The swizzle is the same every eight rows.
            const { assert!(2 * PASS_ROWS == 8) };
            let to = [0, PASS_ROWS].map(|further| {
                panel.offset(swizzle.apply((row + further) * ROW_BYTES + column % PANEL_K * BYTES))
            });
            for (pass, [low, high]) in words.iter().enumerate() {
                let to = to[pass % 2].offset(pass as u32 / 2 * (2 * PASS_ROWS * ROW_BYTES));
                // SAFETY: the caller's promise; this thread's own word.
                unsafe { ptx::st_shared_b32(to.get(), low | high << 16) }
            }
        } else {
            for (pass, [low, high]) in words.iter().enumerate() {
                let column = column + 2 * pass as u32 * PASS_PAIRS;
                let at = swizzle.apply(row * ROW_BYTES + column % PANEL_K * BYTES);
                let to = to.offset(column / PANEL_K * PANEL_BYTES + at);
                // SAFETY: the caller's promise; this thread's own word.
                unsafe { ptx::st_shared_b32(to.get(), low | high << 16) }
            }
        }
    }
}

/// The products of a warp.
struct WarpProducts<T> {
    accumulators: <StridedTile as TileShape>::Accumulators,
    loader: FragmentLoader<1, 2, ROW_BYTES>,
    kind: PhantomData<T>,
}

impl<T: MmaElement> SlotProducts for WarpProducts<T> {
    #[inline(always)]
    unsafe fn add(&mut self, slot: SharedAddress) {
        if !multiplies() {
            return;
        }
        for panel in 0..PANELS {
            for step in 0..ROW_BYTES / STEP_BYTES {
                // SAFETY: the caller's promise.
                unsafe {
                    let fragments = self.loader.load(slot.offset(panel * PANEL_BYTES), step);
                    multiply_add::<T, 1, 2>(&mut self.accumulators, &fragments);
                }
            }
        }
    }
}

/// A thread's share of reading the operands of a tile.
#[derive(Clone, Copy)]
pub struct Readers<T> {
    a: ElementReader<T>,
    b: ElementReader<T>,
}

impl<T: MmaElement + HalfElement> Readers<T> {
    /// The readers of the rows of `a` and of `b` that output tile `tile` needs, which is within the output. Nothing is read yet.
    #[inline(always)]
    #[must_use]
    pub fn new(a: &StridedOperand<T>, b: &StridedOperand<T>, tile: TileIndex) -> Self {
        Self { a: ElementReader::new(a, tile.m * ROWS), b: ElementReader::new(b, tile.n * ROWS) }
    }

    /// The product of these rows.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, with readers of the same tile, in a block of [`THREADS`] threads with [`StridedTile`]'s shared memory.
    /// The operands are valid for reads, and nothing writes them while the kernel runs.
    #[inline(always)]
    pub unsafe fn multiply(&self) -> <StridedTile as TileShape>::Accumulators {
        let slots = Slots {
            count: self.a.lengths[1].div_ceil(SLOT_K),
            bytes: SLOT_BYTES,
            b_offset: const { PANELS * PANEL_BYTES },
        };
        let (row, column) = StridedTile::warp_origin();
        let loader = FragmentLoader::new(row, column, slots.b_offset);
        // SAFETY: all-zero bits are numbers.
        let accumulators = unsafe { core::mem::zeroed() };
        let mut products = WarpProducts::<T> { accumulators, loader, kind: PhantomData };
        // SAFETY: the caller's promise.
        unsafe { two_slots::multiply(&self.a, &self.b, slots, &mut products) };
        products.accumulators
    }
}

/// Whether this thread is one of those that have the tile.
#[inline(always)]
fn multiplies() -> bool {
    thread::thread_idx_x() < StridedTile::THREADS
}

/// As [`TileShape::store`], of what [`Readers::multiply`] returned.
///
/// # Safety
///
/// As [`TileShape::store`], for all threads that called [`Readers::multiply`]; beside the epilogue is what [`columns`] returned for it.
#[inline(always)]
pub unsafe fn store<T: HalfElement, E: Epilogue>(
    accumulators: <StridedTile as TileShape>::Accumulators,
    epilogue: (E, [E::Column; COLUMNS]),
    output: Output<T>,
    tile: TileIndex,
) {
    if multiplies() {
        // SAFETY: the caller's promise; behind the last slot's products there is a barrier.
        unsafe { StridedTile::store_staged(accumulators, &Whole, epilogue, output, tile) }
    }
}

/// What `epilogue` knows of the columns that this thread will store, to be read before the products.
///
/// # Safety
///
/// `epilogue` may be asked for every column of the output.
#[inline(always)]
pub unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> [E::Column; COLUMNS] {
    // SAFETY: the caller's promise.
    unsafe { StridedTile::columns(epilogue, tile) }
}
