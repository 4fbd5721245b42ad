//! A product with a low-rank update on sm_75: what [`update`](super::update) computes, with the main loop of [`turing`](super::turing).
//!
//! V does not ride along: `H = X V` is a product of its own, 64 ranks at a time, with which a block begins. It is scaled, rounded and kept
//! in shared memory for all tiles of the block, which should have several where there are many.

use core::marker::PhantomData;

use super::TileShape;
use super::again::Whole;
use super::mma_sync::{ARows, BRows, MMA_M, MMA_N, MmaTile};
use super::turing::{RowReader, SlotPart, TuringElement, multiply};
use super::update::{TileRow, UpdateElement, UpdateOperands, UpdateShape};
use crate::epilogue::Epilogue;
use crate::float::Element;
use crate::launch::Global;
use crate::layout::{CHUNK_BYTES, TileIndex, accumulator_coord, swizzled_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;
use crate::tile::{Operand, Output};
use crate::warp;

/// 64 × 64 outputs by four warps, up to 128 ranks.
pub struct TuringUpdateTile<T>(PhantomData<T>);

const MI: usize = 2;
const NI: usize = 4;
const ROW_BYTES: u32 = 128;
type Tile = MmaTile<MI, NI, 2, 2, 4, ROW_BYTES>;

impl<T: UpdateElement> TuringUpdateTile<T> {
    /// Bytes of the rows of one operand in a slot, and of a panel of `H ⊙ S`.
    const ROWS_BYTES: u32 = Tile::BLOCK_M * ROW_BYTES;
    /// Two slots; the staging buffers of the store are there too.
    const RING_BYTES: u32 = 4 * Self::ROWS_BYTES;
    /// Ranks of a panel.
    const PANEL_RANKS: u32 = ROW_BYTES / T::BYTES;
    const PANELS: u32 = Self::MAX_RANK / Self::PANEL_RANKS;

    /// Puts `H ⊙ S` of the ranks from `first_rank` on into the panels; ranks past the last are zeros.
    ///
    /// # Safety
    ///
    /// As [`run`](UpdateShape::run); no thread reads these places before a barrier.
    #[inline(always)]
    unsafe fn put_hidden<S: Fn(u32) -> f32>(
        hidden: SharedAddress,
        product: &[[[f32; 4]; NI]; MI],
        scale: &impl Fn(u32) -> S,
        first_row: u32,
        ranks: [u32; 2],
    ) {
        let [first_rank, end] = ranks;
        let own = accumulator_coord(warp::lane_id(), 0);
        let (warp_row, warp_column) = Tile::warp_origin();
        // Not unrolled: what is done to a fragment is larger than the loop's overhead.
        let mut fragment = ptx::opaque(0);
        while fragment < NI as u32 {
            let mut chosen = [[0.0; 4]; MI];
            for candidate in 0..NI {
                // Registers have no index: each fragment has its own moves.
                if fragment == ptx::opaque(candidate as u32) {
                    for (to, row) in chosen.iter_mut().zip(product) {
                        *to = row[candidate];
                    }
                }
            }
            let rank = first_rank + warp_column + fragment * MMA_N + own.column;
            let scales = [scale(rank), scale(rank + 1)];
            for (i, &[c0, c1, c2, c3]) in chosen.iter().enumerate() {
                for (half, values) in [(0, [c0, c1]), (1, [c2, c3])] {
                    let row = warp_row + own.row + i as u32 * MMA_M + half * (MMA_M / 2);
                    let scaled = |i: usize| {
                        let scale = scales[i](first_row + row);
                        if rank + (i as u32) < end { values[i] * scale } else { 0.0 }
                    };
                    let byte = rank % Self::PANEL_RANKS * T::BYTES;
                    let at = rank / Self::PANEL_RANKS * Self::ROWS_BYTES
                        + swizzled_chunk(ROW_BYTES, row, byte / CHUNK_BYTES)
                        + byte % CHUNK_BYTES;
                    // SAFETY: within the panels; this lane's own elements.
                    unsafe { T::put_rounded_2(hidden.offset(at), [scaled(0), scaled(1)]) }
                }
            }
            fragment = ptx::opaque(fragment + 1);
        }
    }

    /// Puts the rows of U of panel `panel` into rows along the ranks at `to`, one for each column of the tile.
    ///
    /// # Safety
    ///
    /// As [`run`](UpdateShape::run); no other thread touches the rows before a barrier.
    #[inline(always)]
    unsafe fn put_across(to: SharedAddress, u: Operand<T>, first_column: u32, panel: u32) {
        let columns = Tile::BLOCK_N;
        let words = columns * (ROW_BYTES / 4);
        let mut index = ptx::opaque(thread::thread_idx_x());
        while index < words {
            let (column, word) = (index % columns, index / columns);
            let rank = panel * Self::PANEL_RANKS + word * (4 / T::BYTES);
            let inside = first_column + column < u.k;
            let element = |rank: u32| {
                let from = u.base.offset(rank as u64 * u.stride + (first_column + column) as u64);
                // SAFETY: within U, if the condition holds.
                unsafe { T::load_bits_if(from, inside && rank < u.rows) }
            };
            let bits = if T::BYTES == 2 { element(rank) | element(rank + 1) << 16 } else { element(rank) };
            let at = swizzled_chunk(ROW_BYTES, column, word / 4) + word % 4 * 4;
            // SAFETY: within the rows; this thread's own word.
            unsafe { ptx::st_shared_b32(to.offset(at).get(), bits) }
            index = ptx::opaque(index + Tile::THREADS);
        }
    }
}

impl<T: UpdateElement> UpdateShape<T> for TuringUpdateTile<T> {
    const BLOCK_M: u32 = Tile::BLOCK_M;
    const BLOCK_N: u32 = Tile::BLOCK_N;
    const THREADS: u32 = Tile::THREADS;
    const SHARED_BYTES: u32 = Self::RING_BYTES + Self::PANELS * Self::ROWS_BYTES;
    const MAX_RANK: u32 = 128;
    const RIDE_RANKS: u32 = 0;

    #[inline(always)]
    unsafe fn run<O: Element, E: Epilogue, S: Fn(u32) -> f32>(
        operands: &UpdateOperands<T>,
        scale: impl Fn(u32) -> S,
        epilogue: E,
        output: Output<O>,
        tiles: TileRow,
    ) {
        let &UpdateOperands { x, w, vt, u } = operands;
        let slot = SharedAddress::dynamic();
        let hidden = slot.offset(Self::RING_BYTES);
        let origin = Tile::warp_origin();
        let ranks = vt.rows;
        let first_row = tiles.m * Tile::BLOCK_M;

        // The passes that make H, then one for each tile. One loop, so that the products' code stands once.
        let early = ranks.div_ceil(Tile::BLOCK_N);
        let passes = early + (tiles.end - tiles.first);
        let mut pass = ptx::opaque(0);
        while pass < passes {
            let is_early = pass < early;
            let tile = TileIndex { batch: 0, m: tiles.m, n: tiles.first + pass.saturating_sub(early) };
            let first_column = tile.n * Tile::BLOCK_N;
            let base = if is_early { vt.base.address() } else { w.base.address() };
            let right = Operand {
                base: Global::new(base),
                stride: if is_early { vt.stride } else { w.stride },
                rows: if is_early { ranks } else { w.rows },
                k: x.k,
            };
            // Without a W there is nothing but the update.
            let k = if base == 0 { 0 } else { x.k };
            let first = if is_early { pass * Tile::BLOCK_N } else { first_column };
            let a = RowReader::<T, ARows<Tile>>::new(x, first_row);
            let b = RowReader::<T, BRows<Tile>>::new(right, first);
            // SAFETY: the caller's promise.
            let mut accumulators: [[[f32; 4]; NI]; MI] =
                unsafe { multiply::<T, _, _, MI, NI, ROW_BYTES>(&a, &b, k, origin) };
            if is_early {
                // SAFETY: the panels are read after the barrier.
                unsafe {
                    Self::put_hidden(hidden, &accumulators, &scale, first_row, [first, ranks]);
                    thread::sync_threads();
                }
            } else {
                let panels = ptx::opaque(ranks.div_ceil(Self::PANEL_RANKS));
                let mut panel = 0;
                while panel < panels {
                    let of_panel = hidden.offset(panel * Self::ROWS_BYTES);
                    // Its right operand lies in front of it: an offset that wraps around.
                    let b_offset = slot.get().wrapping_sub(of_panel.get());
                    let part = SlotPart { slot: of_panel, b_offset, row: origin.0, column: origin.1 };
                    // SAFETY: nobody reads the slot after the barrier that ends the products before.
                    unsafe {
                        Self::put_across(slot, u, first_column, panel);
                        thread::sync_threads();
                        <T as TuringElement>::multiply_slot::<MI, NI, ROW_BYTES>(&mut accumulators, part);
                        thread::sync_threads();
                    }
                    panel = ptx::opaque(panel + 1);
                }
                // SAFETY: the slots are free; the rest is the caller's promise. The next pass writes them after the barrier.
                unsafe {
                    Tile::store(accumulators, &Whole, epilogue, output, tile);
                    thread::sync_threads();
                }
            }
            pass = ptx::opaque(pass + 1);
        }
    }
}
