//! The tile of a product with an update: how its warps share H, and its two loops.

use core::marker::PhantomData;

use super::{TileRow, UpdateElement, UpdateOperands, UpdateShape};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::gemm::TileShape;
use crate::gemm::again::{Again, Line, add_products, any_lane, is_not_finite, replace, sums_of_fragment};
use crate::gemm::mma_sync::{ARows, BRows, FragmentLoader, MMA_M, MMA_N, MmaTile, STEP_BYTES, multiply_add};
use crate::layout::{CHUNK_BYTES, Coord, TileIndex, accumulator_coord, b_fragment_chunk, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{Aligned, Operand, Output, TileLoader};
use crate::warp;

/// An [`MmaTile`] with room for `RIDE` · 8 ranks in registers and `CHUNKS` times as many in shared memory.
pub struct UpdateTile<
    T,
    const MI: usize,
    const NI: usize,
    const WARPS_M: u32,
    const WARPS_N: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    const RIDE: usize,
    const CHUNKS: u32,
>(PhantomData<T>);

/// A thread's share of copying rows of Vᵀ to a slot.
#[derive(Clone, Copy)]
struct RideLoader {
    from: u64,
    pass_stride: u64,
    to: u32,
    row: u32,
    /// Rows of Vᵀ.
    rows: u32,
    /// Rows that the products read; those beyond Vᵀ are zeros.
    filled: u32,
    bytes_left: i32,
}

/// A thread's share of copying rows of U to a slot.
#[derive(Clone, Copy)]
struct AcrossLoader {
    from: u64,
    row_bytes: u64,
    to: u32,
    rows_left: i32,
    bytes: u32,
}

impl<
    T: UpdateElement,
    const MI: usize,
    const NI: usize,
    const WM: u32,
    const WN: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    const RIDE: usize,
    const CHUNKS: u32,
> UpdateTile<T, MI, NI, WM, WN, STAGES, ROW_BYTES, RIDE, CHUNKS>
{
    /// Bytes of a slot's rows of X, and of a panel of `H ⊙ S`.
    const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of a slot's rows of W, or of U.
    const B_BYTES: u32 = Self::BLOCK_N * ROW_BYTES;
    /// Bytes of a slot.
    const SLOT_BYTES: u32 = {
        assert!(RIDE.is_multiple_of(2), "fragments of V are loaded in pairs");
        Self::A_BYTES + Self::B_BYTES + Self::RIDE_RANKS * ROW_BYTES
    };
    const RING_BYTES: u32 = STAGES * Self::SLOT_BYTES;
    /// k-steps of a slot, and of a panel.
    const SLOT_STEPS: u32 = ROW_BYTES / STEP_BYTES;
    /// Ranks of a panel of `H ⊙ S`, which has a slot's row bytes, and of the rows of U in a slot.
    const PANEL_RANKS: u32 = ROW_BYTES / T::BYTES;
    /// Ranks of a k-step.
    const STEP_RANKS: u32 = STEP_BYTES / T::BYTES;
    const PANELS: u32 = (CHUNKS * Self::RIDE_RANKS).div_ceil(Self::PANEL_RANKS);
    /// Fragments along M of a warp's share of H.
    const SHARE: usize = {
        assert!(MI.is_multiple_of(WN as usize), "the warps of a row share it evenly");
        MI / WN as usize
    };
    /// Bytes of a row of U in a slot.
    const ACROSS_BYTES: u32 = Self::BLOCK_N * T::BYTES;
    const ACROSS_CHUNKS: u32 = Self::ACROSS_BYTES / CHUNK_BYTES;
    const ACROSS_ROWS_PER_PASS: u32 = {
        assert!(Self::THREADS.is_multiple_of(Self::ACROSS_CHUNKS), "every pass copies whole rows");
        assert!(Self::PANEL_RANKS.is_multiple_of(Self::THREADS / Self::ACROSS_CHUNKS));
        assert!(
            (Self::THREADS / Self::ACROSS_CHUNKS).is_multiple_of(8),
            "the exchange repeats with every pass"
        );
        Self::THREADS / Self::ACROSS_CHUNKS
    };
    const RIDE_ROWS_PER_PASS: u32 = Self::THREADS / (ROW_BYTES / CHUNK_BYTES);

    /// The loader of rows `first_rank`.. of Vᵀ, of which the products read those of `fragments` fragments.
    #[inline(always)]
    fn ride_loader(vt: Operand<T>, first_rank: u32, fragments: u32) -> RideLoader {
        let chunks = const { ROW_BYTES / CHUNK_BYTES };
        let (row, chunk) = (thread::thread_idx_x() / chunks, thread::thread_idx_x() % chunks);
        let row_bytes = vt.stride * T::BYTES as u64;
        RideLoader {
            from: vt.base.address() + (first_rank + row) as u64 * row_bytes + (chunk * CHUNK_BYTES) as u64,
            pass_stride: Self::RIDE_ROWS_PER_PASS as u64 * row_bytes,
            to: swizzled_chunk(ROW_BYTES, row, chunk),
            row,
            rows: vt.rows - first_rank,
            filled: fragments.next_multiple_of(2) * MMA_N,
            bytes_left: (vt.k * T::BYTES) as i32 - (chunk * CHUNK_BYTES) as i32,
        }
    }

    /// The loader of the part of U below the output's columns from `first_column` on.
    #[inline(always)]
    fn across_loader(u: Operand<T>, first_column: u32) -> AcrossLoader {
        let thread = thread::thread_idx_x();
        let (row, chunk) = (thread / Self::ACROSS_CHUNKS, thread % Self::ACROSS_CHUNKS);
        let row_bytes = u.stride * T::BYTES as u64;
        let first = first_column * T::BYTES + chunk * CHUNK_BYTES;
        AcrossLoader {
            from: u.base.address() + row as u64 * row_bytes + first as u64,
            row_bytes,
            to: row * Self::ACROSS_BYTES + (chunk ^ T::exchange(row)) * CHUNK_BYTES,
            rows_left: u.rows as i32 - row as i32,
            bytes: (u.k * T::BYTES).saturating_sub(first).min(CHUNK_BYTES),
        }
    }

    /// Where this warp's share of H begins in the tile.
    #[inline(always)]
    fn share_row() -> u32 {
        let warp = warp::warp_id();
        ((warp / WN) * MI as u32 + (warp % WN) * Self::SHARE as u32) * MMA_M
    }

    /// The fragments of X that this warp multiplies with V.
    #[inline(always)]
    fn share_of(a: &[[u32; 4]; MI]) -> [[u32; 4]; MI] {
        let own = warp::warp_id() % WN;
        let mut share = *a;
        for (i, words) in share.iter_mut().enumerate().take(Self::SHARE) {
            for other in 1..WN {
                // Selections: registers have no index.
                for (word, candidate) in words.iter_mut().zip(&a[other as usize * Self::SHARE + i]) {
                    *word = if own == other { *candidate } else { *word };
                }
            }
        }
        share
    }

    /// Where `H ⊙ S` of a row of the tile and a rank stands.
    #[inline(always)]
    fn place_of(hidden: SharedAddress, row: u32, rank: u32) -> SharedAddress {
        let byte = rank % Self::PANEL_RANKS * T::BYTES;
        hidden.offset(
            rank / Self::PANEL_RANKS * Self::A_BYTES
                + swizzled_chunk(ROW_BYTES, row, byte / CHUNK_BYTES)
                + byte % CHUNK_BYTES,
        )
    }

    /// Adds those of a lane's sums of a fragment of H up again that are not finite. `row` and `rank` are the first one's.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the operands are as [`run`](UpdateShape::run) asks.
    #[inline(always)]
    unsafe fn mend_hidden(sums: &mut [f32; 4], operands: &UpdateOperands<T>, row: u32, rank: u32) {
        // SAFETY: all lanes of the warp are here. Beyond the last rows there are sums of zeros, so what is read for them is not used.
        unsafe {
            if any_lane(sums.iter().any(|&sum| is_not_finite(sum))) {
                let (x, vt) = (&operands.x, &operands.vt);
                let rows = [row, row + MMA_M / 2].map(|row| Line::row(x, row.min(x.rows - 1)));
                let ranks = [rank, rank + 1].map(|rank| Line::row(vt, rank.min(vt.rows - 1)));
                replace(sums, sums_of_fragment(rows, ranks, x.k));
            }
        }
    }

    /// The sum at `at` of the output, in a tile whose first row is `first_row`, without the parts of f32 numbers.
    ///
    /// # Safety
    ///
    /// As [`run`](UpdateShape::run); the panels of `H ⊙ S` are visible.
    #[inline(always)]
    unsafe fn sum_again(
        hidden: SharedAddress,
        operands: &UpdateOperands<T>,
        first_row: u32,
        at: Coord,
    ) -> f32 {
        let UpdateOperands { x, w, vt, u } = operands;
        let row = at.row.saturating_sub(first_row);
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = add_products(0.0, Line::row(x, at.row), Line::row(w, at.column), x.k);
            let (mut u, mut rank) = (Line::column(u, at.column), 0);
            while rank < vt.rows {
                let hidden = ptx::ld_shared_f32(Self::place_of(hidden, row, rank).get());
                sum = ptx::fma(hidden, u.take(), sum);
                // Opaque: the loop would be unrolled.
                rank = ptx::opaque(rank + 1);
            }
            sum
        }
    }

    /// Puts this warp's share of `H ⊙ S`, of the ranks from `first_rank` on, into shared memory.
    ///
    /// # Safety
    ///
    /// As [`run`](UpdateShape::run); no thread reads these places before a barrier.
    #[inline(always)]
    unsafe fn put_hidden<S: Fn(u32) -> f32>(
        hidden: SharedAddress,
        shares: &[[[f32; 4]; RIDE]; MI],
        scale: &impl Fn(u32) -> S,
        first_row: u32,
        first_rank: u32,
        operands: &UpdateOperands<T>,
    ) {
        let end = operands.vt.rows;
        let own = accumulator_coord(warp::lane_id(), 0);
        let row = Self::share_row() + own.row;
        // A k-step's ranks past the last are zeros, so there are whole pairs of fragments. Not unrolled: what is done to a fragment is
        // larger than the loop's overhead.
        let pairs = ptx::opaque((end - first_rank).div_ceil(2 * MMA_N).min(RIDE as u32 / 2));
        let mut fragment = 0;
        while fragment < 2 * pairs {
            // SAFETY: all-zero bits are numbers.
            let mut chosen: [[f32; 4]; MI] = unsafe { core::mem::zeroed() };
            for candidate in 0..RIDE {
                // Registers have no index: each fragment has its own moves.
                if fragment == ptx::opaque(candidate as u32) {
                    for (to, share) in chosen.iter_mut().zip(shares).take(Self::SHARE) {
                        *to = share[candidate];
                    }
                }
            }
            let rank = first_rank + fragment * MMA_N + own.column;
            if T::IS_SPLIT {
                for (i, sums) in chosen.iter_mut().enumerate().take(Self::SHARE) {
                    let row = first_row + row + i as u32 * MMA_M;
                    // SAFETY: all lanes of the warp are here; the rest is the caller's promise.
                    unsafe { Self::mend_hidden(sums, operands, row, rank) }
                }
            }
            let scales = [scale(rank), scale(rank + 1)];
            for (i, &[c0, c1, c2, c3]) in chosen.iter().enumerate().take(Self::SHARE) {
                for (half, values) in [(0, [c0, c1]), (1, [c2, c3])] {
                    let row = row + i as u32 * MMA_M + half * (MMA_M / 2);
                    let scaled = |i: usize| {
                        let scale = scales[i](first_row + row);
                        if rank + (i as u32) < end { values[i] * scale } else { 0.0 }
                    };
                    let values = [scaled(0), scaled(1)];
                    // SAFETY: within the panels; this lane's own elements.
                    unsafe { T::put_rounded_2(Self::place_of(hidden, row, rank), values) }
                }
            }
            fragment = ptx::opaque(fragment + 1);
        }
    }
}

impl RideLoader {
    /// Copies tile `step` along K to the shared rows at `to`.
    ///
    /// # Safety
    ///
    /// As [`TileLoader::load`].
    #[inline(always)]
    unsafe fn load<const ROW_BYTES: u32>(&self, to: SharedAddress, step: u32, rows: u32, rows_per_pass: u32) {
        let left = self.bytes_left - (step * ROW_BYTES) as i32;
        let bytes = if left <= 0 { 0 } else { (left as u32).min(CHUNK_BYTES) };
        let mut from = self.from + (step * ROW_BYTES) as u64;
        for pass in 0..rows.div_ceil(rows_per_pass) {
            let row = self.row + pass * rows_per_pass;
            if row < self.filled {
                let present = if row < self.rows { bytes } else { 0 };
                let to = to.offset(self.to + pass * (rows_per_pass * ROW_BYTES));
                // SAFETY: `present` counts only bytes within the operand; the rest is the caller's promise.
                unsafe { ptx::cp_async_cg_16(to.get(), from, present) }
            }
            from += self.pass_stride;
        }
    }
}

impl AcrossLoader {
    /// Copies rows `panel` · `rows`.. of U to the shared rows at `to`, `row_bytes` apart.
    ///
    /// # Safety
    ///
    /// As [`TileLoader::load`].
    #[inline(always)]
    unsafe fn load(&self, to: SharedAddress, panel: u32, rows: u32, rows_per_pass: u32, row_bytes: u32) {
        for pass in 0..rows / rows_per_pass {
            let row = panel * rows + pass * rows_per_pass;
            let present = if (row as i32) < self.rows_left { self.bytes } else { 0 };
            let to = to.offset(self.to + pass * (rows_per_pass * row_bytes));
            // SAFETY: `present` counts only bytes within U; the rest is the caller's promise.
            unsafe { ptx::cp_async_cg_16(to.get(), self.from + row as u64 * self.row_bytes, present) }
        }
    }
}

impl<
    T: UpdateElement,
    const MI: usize,
    const NI: usize,
    const WM: u32,
    const WN: u32,
    const STAGES: u32,
    const ROW_BYTES: u32,
    const RIDE: usize,
    const CHUNKS: u32,
> UpdateShape<T> for UpdateTile<T, MI, NI, WM, WN, STAGES, ROW_BYTES, RIDE, CHUNKS>
{
    const BLOCK_M: u32 = MI as u32 * MMA_M * WM;
    const BLOCK_N: u32 = NI as u32 * MMA_N * WN;
    const THREADS: u32 = WM * WN * warp::SIZE;
    const SHARED_BYTES: u32 = Self::RING_BYTES + Self::PANELS * Self::A_BYTES;
    const MAX_RANK: u32 = CHUNKS * Self::RIDE_RANKS;
    const RIDE_RANKS: u32 = RIDE as u32 * MMA_N;

    #[inline(always)]
    unsafe fn run<O: Element, E: Epilogue, S: Fn(u32) -> f32>(
        operands: &UpdateOperands<T>,
        scale: impl Fn(u32) -> S,
        epilogue: E,
        output: Output<O>,
        tiles: TileRow,
    ) {
        let &UpdateOperands { x, w, vt, u } = operands;
        let ring = SharedAddress::dynamic();
        let hidden = ring.offset(Self::RING_BYTES);
        let (warp_row, warp_column) = MmaTile::<MI, NI, WM, WN, STAGES, ROW_BYTES>::warp_origin();
        let fragments = FragmentLoader::<MI, NI, ROW_BYTES>::new(warp_row, warp_column, Self::A_BYTES);
        let ride_chunk = b_fragment_chunk(warp::lane_id());
        let ride_at =
            Self::A_BYTES + Self::B_BYTES + swizzled_chunk(ROW_BYTES, ride_chunk.row, ride_chunk.chunk);
        let slots = (x.k * T::BYTES).div_ceil(ROW_BYTES);
        let ranks = vt.rows;

        // The chunks of ranks beyond the first have a pass each, before the pass of the first tile, with which the first chunk rides.
        let early = if CHUNKS > 1 { ranks.div_ceil(Self::RIDE_RANKS).saturating_sub(1) } else { 0 };
        let passes = early + (tiles.end - tiles.first);
        let mut pass = 0;
        while pass < passes {
            let multiplies = CHUNKS == 1 || pass >= early;
            let chunk = early.saturating_sub(pass);
            let first_rank = chunk * Self::RIDE_RANKS;
            let riding =
                if pass <= early { (ranks - first_rank).div_ceil(MMA_N).min(RIDE as u32) } else { 0 };
            let panels = if multiplies { ranks.div_ceil(Self::PANEL_RANKS) } else { 0 };
            let tile = TileIndex { batch: 0, m: tiles.m, n: tiles.first + pass.saturating_sub(early) };
            let load_x = TileLoader::<T, Aligned, ARows<MmaTile<MI, NI, WM, WN, STAGES, ROW_BYTES>>>::new(
                x,
                tile.m * Self::BLOCK_M,
            );
            let load_w = TileLoader::<T, Aligned, BRows<MmaTile<MI, NI, WM, WN, STAGES, ROW_BYTES>>>::new(
                w,
                tile.n * Self::BLOCK_N,
            );
            let load_v = Self::ride_loader(vt, first_rank, riding);

            // Copies slot `index`, if there is one, and closes the thread's group of copies even if there is not, so that the
            // number of groups that a wait leaves open is the same everywhere. Rows of U follow the last of W.
            let fill = |at: u32, index: u32| {
                let slot = ring.offset(at);
                // SAFETY: the caller vouches for the operands; no warp reads this slot any more: see `mma_sync`.
                unsafe {
                    if index < slots {
                        load_x.load(slot, index);
                        if multiplies {
                            load_w.load(slot.offset(Self::A_BYTES), index);
                        }
                        let rows = slot.offset(Self::A_BYTES + Self::B_BYTES);
                        load_v.load::<ROW_BYTES>(rows, index, Self::RIDE_RANKS, Self::RIDE_ROWS_PER_PASS);
                    } else if index - slots < panels {
                        // Made here, where it is needed for once: before the loop it would take registers.
                        let load_u = Self::across_loader(u, ptx::opaque(tile.n) * Self::BLOCK_N);
                        load_u.load(
                            slot.offset(Self::A_BYTES),
                            index - slots,
                            Self::PANEL_RANKS,
                            Self::ACROSS_ROWS_PER_PASS,
                            Self::ACROSS_BYTES,
                        );
                    }
                }
                ptx::cp_async_commit_group();
            };
            let next_slot_arrived = || {
                ptx::cp_async_wait_group(STAGES - 2);
                // SAFETY: all threads of the block run these loops the same number of times.
                unsafe { thread::sync_threads() };
            };
            let advance = |at: u32| {
                let next = at + Self::SLOT_BYTES;
                if next == Self::RING_BYTES { 0 } else { next }
            };

            let (mut read, mut write) = (0, 0);
            // Not unrolled: the code of a copy is large, and this is no place to save instructions.
            let ahead = ptx::opaque(STAGES - 1);
            let mut index = 0;
            while index < ahead {
                fill(write, index);
                write = advance(write);
                index += 1;
            }
            next_slot_arrived();

            // SAFETY: all-zero bits are numbers. (An array literal of this length would be filled by a loop with a variable index and so
            // live in local memory.)
            let mut accumulators: [[[f32; 4]; NI]; MI] = unsafe { core::mem::zeroed() };
            // SAFETY: as above.
            let mut shares: [[[f32; 4]; RIDE]; MI] = unsafe { core::mem::zeroed() };
            // SAFETY: the first slot has arrived.
            let mut current = unsafe { fragments.load(ring, 0) };
            let mut slot = 0;
            while slot < slots {
                for step in 0..Self::SLOT_STEPS {
                    // Opaque, so that the loop is not written out for every number of fragments.
                    let riding = ptx::opaque(riding);
                    // SAFETY: all-zero bits are integers; the slot has arrived.
                    let mut v: [[u32; 4]; RIDE] = unsafe { core::mem::zeroed() };
                    for (pair, words) in v.iter_mut().enumerate().take(RIDE / 2) {
                        if riding > 2 * pair as u32 {
                            let rows = ring.get() + read + (ride_at ^ (step * STEP_BYTES));
                            let rows = rows + pair as u32 * (2 * MMA_N * ROW_BYTES);
                            // SAFETY: all lanes of the warp are here, and the slot has arrived.
                            *words = unsafe { ptx::ldmatrix_x4(rows) };
                        }
                    }
                    if step + 1 == Self::SLOT_STEPS {
                        next_slot_arrived();
                        read = advance(read);
                    }
                    // SAFETY: the slot has arrived. (After the last one it holds what is not used.)
                    let next = unsafe { fragments.load(ring.offset(read), (step + 1) % Self::SLOT_STEPS) };
                    if step == 0 {
                        fill(write, slot + STAGES - 1);
                        write = advance(write);
                    }
                    if CHUNKS == 1 || ptx::opaque(multiplies as u32) != 0 {
                        // SAFETY: all lanes of the warp are here.
                        unsafe { multiply_add::<T, MI, NI>(&mut accumulators, &current) };
                    }
                    if riding > 0 {
                        let a = Self::share_of(&current.a).map(T::prepare_a);
                        for fragment in 0..RIDE {
                            if riding > fragment as u32 {
                                let words = v[fragment / 2];
                                let b = if fragment % 2 == 0 {
                                    [words[0], words[1]]
                                } else {
                                    [words[2], words[3]]
                                };
                                let b = T::prepare_b(b);
                                for (share, &a) in shares.iter_mut().zip(&a).take(Self::SHARE) {
                                    // SAFETY: all lanes of the warp are here.
                                    unsafe { T::multiply_add(&mut share[fragment], a, b) };
                                }
                            }
                        }
                    }
                    current = next;
                }
                slot += 1;
            }

            if riding > 0 {
                // SAFETY: the panels are read after the barrier.
                unsafe {
                    Self::put_hidden(hidden, &shares, &scale, tile.m * Self::BLOCK_M, first_rank, operands);
                    thread::sync_threads();
                }
            }
            if multiplies {
                let mut panel = 0;
                while panel < panels {
                    fill(write, slots + panel + STAGES - 1);
                    write = advance(write);
                    let first_step = panel * Self::SLOT_STEPS;
                    let steps =
                        ptx::opaque((ranks.div_ceil(Self::STEP_RANKS) - first_step).min(Self::SLOT_STEPS));
                    let mut step = 0;
                    while step < steps {
                        // SAFETY: the panels of `H ⊙ S` are visible, and the slot has arrived.
                        unsafe {
                            let mut operands = fragments.load_a(hidden.offset(panel * Self::A_BYTES), step);
                            let rows = ring.offset(read + Self::A_BYTES);
                            for pair in 0..NI / 2 {
                                let column = warp_column + 2 * MMA_N * pair as u32;
                                let [b0, b1] = T::load_across(rows, Self::ACROSS_BYTES, column, step);
                                (operands.b[2 * pair], operands.b[2 * pair + 1]) = (b0, b1);
                            }
                            multiply_add::<T, MI, NI>(&mut accumulators, &operands);
                        }
                        // Opaque, so that the loop is not unrolled.
                        step = ptx::opaque(step + 1);
                    }
                    next_slot_arrived();
                    read = advance(read);
                    panel += 1;
                }
                // SAFETY: the panels stay, behind the staging buffers; the rest is the caller's promise.
                let again = |at| unsafe { Self::sum_again(hidden, operands, tile.m * Self::BLOCK_M, at) };
                let sums = Again::<T, _>::new(again);
                // SAFETY: the ring is empty but for what all threads have waited for; the rest is the caller's promise.
                unsafe {
                    MmaTile::<MI, NI, WM, WN, STAGES, ROW_BYTES>::store(
                        accumulators,
                        &sums,
                        epilogue,
                        output,
                        tile,
                    );
                }
            }
            // The next pass fills slots that may still be read, or be another warp's staging buffer.
            // SAFETY: all threads of the block are here.
            unsafe { thread::sync_threads() };
            pass += 1;
        }
    }
}
