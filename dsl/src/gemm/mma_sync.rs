//! The portable main loop: `cp.async` into a ring of swizzled tiles, `ldmatrix`, `mma.sync`; sm_80 and later.
//!
//! The ring has `STAGES` slots. While the tensor cores work on one slot, the copies of the next `STAGES` − 1 are in
//! flight. One barrier for each slot says both that its data have arrived for all threads and that the slot before it
//! is free again. Within a slot, the fragments of the next k-step are loaded before the products of the current one,
//! across the slot's end too. So the tensor cores need not wait for shared memory.
//!
//! [`fp8`](super::fp8) has the products of 8-bit types.

use core::marker::PhantomData;

use crate::epilogue::Epilogue;
use crate::float::{Element, Stored};
use crate::gemm::again::{Seen, Staged, Sums};
use crate::gemm::turing::{self, RowReader};
use crate::gemm::{Exact, MmaElement, MmaProducts, Rule, TileShape};
use crate::layout::{
    ChunkIndex, Coord, STAGING_PAD_WORDS, TileIndex, a_fragment_chunk, accumulator_coord, b_fragment_chunk,
    staging_word, swizzled_chunk,
};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{Access, CopyShape, Operand, Output, TileLoader};
use crate::warp;

/// Rows of an accumulator fragment.
pub(super) const MMA_M: u32 = 16;
/// Columns of an accumulator fragment.
pub(super) const MMA_N: u32 = 8;
/// Bytes of a row that one k-step multiplies.
pub(super) const STEP_BYTES: u32 = 32;
/// Columns that a lane transforms and stores at a time.
pub(super) const COLUMNS: usize = 4;

/// A tile of `WARPS_M` × `WARPS_N` warps, each with `MI` × `NI` accumulators of 16 × 8, over a ring of `STAGES` slots whose
/// rows have `ROW_BYTES` bytes (64 or 128). The [`Rule`] says which products it makes.
pub struct MmaTile<
    const MI: usize,
    const NI: usize,
    const WARPS_M: u32,
    const WARPS_N: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    P = Exact,
>(PhantomData<P>);

/// The rows of A of one slot.
pub(super) struct ARows<S>(PhantomData<S>);
/// The rows of B of one slot.
pub(super) struct BRows<S>(PhantomData<S>);

impl<S: TileShape> CopyShape for ARows<S> {
    const ROWS: u32 = S::BLOCK_M;
    const ROW_BYTES: u32 = S::ROW_BYTES;
    const THREADS: u32 = S::THREADS;
}

impl<S: TileShape> CopyShape for BRows<S> {
    const ROWS: u32 = S::BLOCK_N;
    const ROW_BYTES: u32 = S::ROW_BYTES;
    const THREADS: u32 = S::THREADS;
}

/// The operands of one k-step, as `ldmatrix` gives them.
#[derive(Clone, Copy)]
pub(super) struct Fragments<const MI: usize, const NI: usize> {
    pub(super) a: [[u32; 4]; MI],
    pub(super) b: [[u32; 2]; NI],
}

/// Where a lane reads its fragments in a slot.
#[derive(Clone, Copy)]
pub(super) struct FragmentLoader<const MI: usize, const NI: usize, const ROW_BYTES: u32> {
    /// Offset in the slot of this lane's chunk of the first A fragment, at k-step 0.
    a: u32,
    /// The same of the first pair of B fragments.
    b: u32,
}

impl<const MI: usize, const NI: usize, const ROW_BYTES: u32> FragmentLoader<MI, NI, ROW_BYTES> {
    /// The loader of the fragments that start at row `first_a` of a slot's A, which is at its start, and at row `first_b` of
    /// its B, `b_offset` bytes further on.
    #[inline(always)]
    pub(super) fn new(first_a: u32, first_b: u32, b_offset: u32) -> Self {
        let lane = warp::lane_id();
        let at = |first_row: u32, ChunkIndex { row, chunk }: ChunkIndex| {
            first_row * ROW_BYTES + swizzled_chunk(ROW_BYTES, row, chunk)
        };
        Self {
            a: at(first_a, a_fragment_chunk(lane)),
            b: b_offset.wrapping_add(at(first_b, b_fragment_chunk(lane))),
        }
    }

    /// Loads the fragments of k-step `step` of the slot at `slot`.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it, and the slot's data are visible to it.
    #[inline(always)]
    pub(super) unsafe fn load(&self, slot: SharedAddress, step: u32) -> Fragments<MI, NI> {
        let b = slot.get().wrapping_add(self.b ^ (step * STEP_BYTES));
        // SAFETY: the caller's promise.
        let mut fragments = unsafe { self.load_a(slot, step) };
        for pair in 0..NI / 2 {
            // SAFETY: the caller's promise; the addresses are multiples of 16 within the slot.
            let [b0, b1, b2, b3] = unsafe { ptx::ldmatrix_x4(b + pair as u32 * (2 * MMA_N * ROW_BYTES)) };
            fragments.b[2 * pair] = [b0, b1];
            fragments.b[2 * pair + 1] = [b2, b3];
        }
        fragments
    }

    /// As [`load`](Self::load), of A alone; those of B are zeros.
    ///
    /// # Safety
    ///
    /// As [`load`](Self::load), for the rows of A.
    #[inline(always)]
    pub(super) unsafe fn load_a(&self, slot: SharedAddress, step: u32) -> Fragments<MI, NI> {
        // The swizzle makes a k-step an exclusive or: see `layout`.
        let a = slot.get() + (self.a ^ (step * STEP_BYTES));
        // SAFETY: all-zero bits are integers. (An array literal of this length would be filled by a loop with a variable
        // index and so live in local memory.)
        let mut fragments: Fragments<MI, NI> = unsafe { core::mem::zeroed() };
        for i in 0..MI {
            // SAFETY: the caller's promise; the addresses are multiples of 16 within the slot.
            fragments.a[i] = unsafe { ptx::ldmatrix_x4(a + i as u32 * (MMA_M * ROW_BYTES)) };
        }
        fragments
    }
}

/// Adds the products of one k-step to the accumulators.
///
/// # Safety
///
/// All lanes of the warp call it.
#[inline(always)]
pub(super) unsafe fn multiply_add<T: MmaProducts, const MI: usize, const NI: usize>(
    accumulators: &mut [[[f32; 4]; NI]; MI],
    fragments: &Fragments<MI, NI>,
) {
    let b = fragments.b.map(T::prepare_b);
    for (row, &a) in accumulators.iter_mut().zip(&fragments.a) {
        let a = T::prepare_a(a);
        for (accumulator, &b) in row.iter_mut().zip(&b) {
            // SAFETY: the caller's promise.
            unsafe { T::multiply_add(accumulator, a, b) }
        }
    }
}

/// Adds the sums of a slot to the accumulators, with ordinary additions in f32.
#[inline(always)]
fn promote<const MI: usize, const NI: usize>(
    accumulators: &mut [[[f32; 4]; NI]; MI],
    sums: &[[[f32; 4]; NI]; MI],
) {
    for (accumulator, sum) in accumulators.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        for (value, sum) in accumulator.iter_mut().zip(sum) {
            *value += sum;
        }
    }
}

impl<
    const MI: usize,
    const NI: usize,
    const WM: u32,
    const WN: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    P: Rule,
> MmaTile<MI, NI, WM, WN, STAGES, ROW_BYTES, P>
{
    /// k-steps of a slot.
    const SLOT_STEPS: u32 = ROW_BYTES / STEP_BYTES;
    /// Bytes of a slot's rows of A, which its rows of B follow.
    const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of a slot.
    const SLOT_BYTES: u32 = {
        assert!(
            NI.is_multiple_of(2),
            "B fragments are loaded in pairs, and two lanes have eight columns of a row"
        );
        assert!(STAGES >= 3, "one slot is read while another is filled and a third is on its way");
        (Self::BLOCK_M + Self::BLOCK_N) * ROW_BYTES
    };
    /// Columns of a warp's part of the tile.
    const WARP_N: u32 = NI as u32 * MMA_N;
    /// Bytes that a warp's accumulator rows of one fragment take in the staging buffer.
    const STAGING_BYTES: u32 = MMA_M * (Self::WARP_N + STAGING_PAD_WORDS) * 4;
    /// Fragments along M that the staging buffer of every warp holds at a time, within the ring's memory.
    const STAGED: usize = {
        let mut staged = MI;
        while staged as u32 * Self::STAGING_BYTES * (WM * WN) > STAGES * Self::SLOT_BYTES {
            staged /= 2;
        }
        assert!(staged > 0 && MI.is_multiple_of(staged));
        staged
    };

    /// The first of the columns of the output that this lane transforms and stores.
    #[inline(always)]
    fn output_column(tile: TileIndex) -> u32 {
        let column = warp::lane_id() % const { Self::WARP_N / COLUMNS as u32 } * COLUMNS as u32;
        tile.n * Self::BLOCK_N + Self::warp_origin().1 + column
    }

    /// What `epilogue` knows of the columns that this lane will store.
    ///
    /// # Safety
    ///
    /// As [`TileShape::store`].
    #[inline(always)]
    pub(super) unsafe fn columns<E: Epilogue>(epilogue: &E, tile: TileIndex) -> [E::Column; COLUMNS] {
        // SAFETY: the caller's promise.
        unsafe { epilogue.columns(Self::output_column(tile)) }
    }

    /// As [`TileShape::store`], by warps that have a place in the tile, when no warp of the block reads the ring any more.
    ///
    /// # Safety
    ///
    /// As [`TileShape::store`]; `columns` is what [`columns`](Self::columns) returned.
    #[inline(always)]
    pub(super) unsafe fn store_staged<O: Element, E: Epilogue, S: Sums>(
        accumulators: <Self as TileShape>::Accumulators,
        sums: &S,
        (epilogue, columns): (E, [E::Column; COLUMNS]),
        output: Output<O>,
        tile: TileIndex,
    ) {
        let lane = warp::lane_id();
        let staged_bytes = Self::STAGED as u32 * Self::STAGING_BYTES;
        let staging = SharedAddress::dynamic().offset(warp::warp_id() * staged_bytes);
        let word = |row: u32, column: u32| staging.offset(4 * staging_word(Self::WARP_N, row, column)).get();

        let lanes_per_row = const { Self::WARP_N / COLUMNS as u32 };
        let rows_per_pass = warp::SIZE / lanes_per_row;
        let (warp_row, warp_column) = Self::warp_origin();
        let (first_row, column) = (lane / lanes_per_row, (lane % lanes_per_row) * COLUMNS as u32);
        let output_row = tile.m * Self::BLOCK_M + warp_row + first_row;
        let output_column = Self::output_column(tile);
        let vector_aligned = output.is_vector_aligned();

        let mut seen = Seen::nothing();
        if S::ARE_SPLIT {
            accumulators.iter().flatten().for_each(|&fragment| seen.fragment(fragment));
        }
        // SAFETY: all lanes of the warp are here.
        let has_infinities = S::ARE_SPLIT && unsafe { seen.has_infinities() };

        for round in 0..MI / Self::STAGED {
            for i in 0..Self::STAGED {
                for (j, &[c0, c1, c2, c3]) in accumulators[round * Self::STAGED + i].iter().enumerate() {
                    let at = accumulator_coord(lane, 0);
                    let (row, column) = (i as u32 * MMA_M + at.row, j as u32 * MMA_N + at.column);
                    // SAFETY: within this warp's part of the staging buffer, which no other warp touches.
                    unsafe {
                        ptx::st_shared_v2_f32(word(row, column), [c0, c1]);
                        ptx::st_shared_v2_f32(word(row + MMA_M / 2, column), [c2, c3]);
                    }
                }
            }
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp() };
            if has_infinities {
                let first_row = tile.m * Self::BLOCK_M + warp_row + (round * Self::STAGED) as u32 * MMA_M;
                let part = Staged {
                    first: Coord { row: first_row, column: tile.n * Self::BLOCK_N + warp_column },
                    end: Coord { row: output.rows, column: output.columns },
                    own: Coord { row: lane / lanes_per_row, column },
                    rows: [rows_per_pass, Self::STAGED as u32 * MMA_M],
                    columns: COLUMNS as u32,
                };
                // SAFETY: written before the barrier, by this warp; the rest is the caller's promise.
                unsafe { part.mend(sums, word) }
            }
            // Not unrolled: the epilogue's code is larger than the loop's overhead.
            let rows = ptx::opaque(Self::STAGED as u32 * MMA_M);
            let mut row = 0;
            while row < rows {
                // SAFETY: written before the barrier, by this warp.
                let staged = unsafe { ptx::ld_shared_v4_f32(word(row + first_row, column)) };
                let row_in_tile = (round * Self::STAGED) as u32 * MMA_M + row;
                let at = Coord { row: output_row + row_in_tile, column: output_column };
                // SAFETY: the caller's promise; every element of the tile belongs to one lane of one warp, and the lanes of a row
                // have four neighbouring columns each.
                unsafe {
                    let result = epilogue.apply(at, epilogue.row(at.row), columns, staged);
                    output.store_4(at.row, at.column, result, vector_aligned);
                }
                row += rows_per_pass;
            }
            // SAFETY: all lanes of the warp are here.
            unsafe { warp::sync_warp() };
        }
    }

    /// The product of the rows of `a` and of `b` that output tile `tile` needs, each k-step multiplied as `Q` says.
    ///
    /// # Safety
    ///
    /// As [`TileShape::multiply`], on sm_80 or later.
    #[inline(always)]
    pub(super) unsafe fn multiply_rows<T: Stored, A: Access, Q: MmaProducts>(
        a: Operand<T>,
        b: Operand<T>,
        tile: TileIndex,
    ) -> <Self as TileShape>::Accumulators {
        let ring = SharedAddress::dynamic();
        let ring_bytes = STAGES * Self::SLOT_BYTES;
        let (warp_row, warp_column) = Self::warp_origin();
        let load_a = TileLoader::<T, A, ARows<Self>>::new(a, tile.m * Self::BLOCK_M);
        let load_b = TileLoader::<T, A, BRows<Self>>::new(b, tile.n * Self::BLOCK_N);
        let fragments = FragmentLoader::<MI, NI, ROW_BYTES>::new(warp_row, warp_column, Self::A_BYTES);
        let slots = (a.k * T::BYTES).div_ceil(ROW_BYTES);

        // Copies slot `index` along K, if there is one, and closes the thread's group of copies even if there is not, so
        // that the number of groups that a wait leaves open is the same everywhere.
        let fill = |at: u32, index: u32| {
            if index < slots {
                // SAFETY: the caller vouches for the operands; no warp reads this slot any more: see below.
                unsafe {
                    load_a.load(ring.offset(at), index);
                    load_b.load(ring.offset(at + Self::A_BYTES), index);
                }
            }
            ptx::cp_async_commit_group();
        };
        // Waits until the oldest of the STAGES − 1 open groups has arrived, for all threads. It also says that every warp
        // has loaded its fragments of the slot before, which may be filled again.
        let next_slot_arrived = || {
            ptx::cp_async_wait_group(STAGES - 2);
            // SAFETY: all threads of the block run this loop the same number of times.
            unsafe { thread::sync_threads() };
        };

        // Not unrolled: the copies' code is larger than the loop's overhead.
        let (mut index, first) = (0, ptx::opaque(STAGES - 1));
        while index < first {
            fill(index * Self::SLOT_BYTES, index);
            index += 1;
        }
        next_slot_arrived();

        // SAFETY: all-zero bits are numbers. (As in `FragmentLoader::load`.)
        let mut accumulators: <Self as TileShape>::Accumulators = unsafe { core::mem::zeroed() };
        let (mut read, mut write) = (0, (STAGES - 1) * Self::SLOT_BYTES);
        // SAFETY: the first slot has arrived.
        let mut current = unsafe { fragments.load(ring, 0) };
        for slot in 0..slots {
            // SAFETY: as above.
            let mut of_slot: <Self as TileShape>::Accumulators = unsafe { core::mem::zeroed() };
            let sums = if Q::IS_PROMOTED { &mut of_slot } else { &mut accumulators };
            for step in 0..Self::SLOT_STEPS {
                if step + 1 == Self::SLOT_STEPS {
                    next_slot_arrived();
                    read += Self::SLOT_BYTES;
                    if read == ring_bytes {
                        read = 0;
                    }
                }
                // SAFETY: the slot has arrived. (After the last one it holds what is not used.)
                let next = unsafe { fragments.load(ring.offset(read), (step + 1) % Self::SLOT_STEPS) };
                if step == 0 {
                    fill(write, slot + STAGES - 1);
                    write += Self::SLOT_BYTES;
                    if write == ring_bytes {
                        write = 0;
                    }
                }
                // SAFETY: all lanes of the warp are here.
                unsafe { multiply_add::<Q, MI, NI>(sums, &current) };
                current = next;
            }
            if Q::IS_PROMOTED {
                promote(&mut accumulators, &of_slot);
            }
        }
        accumulators
    }

    /// This warp's place in the tile: its first row and its first column.
    #[inline(always)]
    pub(super) fn warp_origin() -> (u32, u32) {
        let warp = warp::warp_id();
        ((warp / WN) * (MI as u32 * MMA_M), (warp % WN) * Self::WARP_N)
    }
}

impl<
    const MI: usize,
    const NI: usize,
    const WM: u32,
    const WN: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    P: Rule,
> TileShape for MmaTile<MI, NI, WM, WN, STAGES, ROW_BYTES, P>
{
    const BLOCK_M: u32 = MI as u32 * MMA_M * WM;
    const BLOCK_N: u32 = NI as u32 * MMA_N * WN;
    const THREADS: u32 = WM * WN * warp::SIZE;
    const SHARED_BYTES: u32 = STAGES * Self::SLOT_BYTES;
    const ROW_BYTES: u32 = ROW_BYTES;
    const SHARES: bool = Self::BLOCK_M == MMA_M;

    type Rule = P;
    type Accumulators = [[[f32; 4]; NI]; MI];

    #[inline(always)]
    unsafe fn multiply<T: MmaElement, A: Access>(
        a: Operand<T>,
        b: Operand<T>,
        tile: TileIndex,
    ) -> Self::Accumulators {
        if cfg!(feature = "turing") {
            let a = RowReader::<T, ARows<Self>>::new(a, tile.m * Self::BLOCK_M);
            let b_rows = RowReader::<T, BRows<Self>>::new(b, tile.n * Self::BLOCK_N);
            // SAFETY: the caller's promise. Kernels of this build are launched with aligned operands only.
            return unsafe {
                turing::multiply::<T, _, _, MI, NI, ROW_BYTES>(&a, &b_rows, b.k, Self::warp_origin())
            };
        }
        // SAFETY: the caller's promise.
        unsafe { Self::multiply_rows::<T, A, P::Of<T>>(a, b, tile) }
    }

    #[inline(always)]
    unsafe fn store<O: Element, E: Epilogue>(
        accumulators: Self::Accumulators,
        sums: &impl Sums,
        epilogue: E,
        output: Output<O>,
        tile: TileIndex,
    ) {
        // The staging buffer takes the ring's place once no warp reads the ring any more.
        // SAFETY: all threads of the block are here; the caller's promise.
        unsafe {
            thread::sync_threads();
            let columns = Self::columns(&epilogue, tile);
            Self::store_staged(accumulators, sums, (epilogue, columns), output, tile);
        }
    }
}
