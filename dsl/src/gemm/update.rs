//! A matrix product with a low-rank update in one kernel: `X Wᵀ + ((X V) ⊙ S) U`, on the main loop of [`mma_sync`](super::mma_sync).
//!
//! V rides along: a slot of the ring holds, behind the rows of X and of W, rows of Vᵀ. The fragments of X that a warp
//! has loaded for its part of the product serve `H = X V` too. The warps beside each other in a row of the tile have
//! the same rows of X, so each takes its share of them for H. When K is used up, `H ⊙ S` is rounded to the operands'
//! type and put into shared memory. There it is the left operand of a few more k-steps. Their right operand, rows of U,
//! comes through the ring after the last of W.
//!
//! The registers hold the part of H for `RIDE` · 8 ranks. Of more ranks the rest comes first, `RIDE` · 8 at a time, in passes over K that
//! read X again and leave W alone. Shared memory keeps all of `H ⊙ S` while the block goes along a row of tiles, so that only the
//! first of them pays for it.

mod tile;

pub use tile::UpdateTile;

use super::MmaElement;
use super::mma_sync::MMA_N;
use crate::epilogue::Epilogue;
use crate::float::{Bf16, Element, F16, HalfElement};
use crate::launch::Global;
use crate::layout::{CHUNK_BYTES, across_chunk};
use crate::ptx;
use crate::shared::SharedAddress;
use crate::tile::{Operand, Output};
use crate::warp;

/// The matrices of a product with an update. All rows start at multiples of 16 bytes.
#[derive(Clone, Copy)]
pub struct UpdateOperands<T> {
    /// X, M rows of K elements.
    pub x: Operand<T>,
    /// W, N rows of K elements.
    pub w: Operand<T>,
    /// Vᵀ, R rows of K elements.
    pub vt: Operand<T>,
    /// U as it is, R rows of N elements: `k` counts columns.
    pub u: Operand<T>,
}

/// The output tiles of a block: some neighbours along N.
#[derive(Clone, Copy)]
pub struct TileRow {
    /// Their index along M.
    pub m: u32,
    /// The index of the first along N.
    pub first: u32,
    /// The index after that of the last.
    pub end: u32,
}

/// A block's tile of a product with an update.
pub trait UpdateShape<T: UpdateElement>: 'static {
    /// Rows of the output tile.
    const BLOCK_M: u32;
    /// Columns of the output tile.
    const BLOCK_N: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Dynamic shared memory of a block, in bytes.
    const SHARED_BYTES: u32;
    /// The most ranks.
    const MAX_RANK: u32;
    /// Ranks that ride along with the first tile; more take passes of their own.
    const RIDE_RANKS: u32;

    /// Computes the output tiles `tiles`. `scale` gives, of a rank, what gives the element of S in a row.
    ///
    /// # Safety
    ///
    /// All threads of the block call it, with the same arguments, in a block of `THREADS` threads with `SHARED_BYTES` bytes of dynamic
    /// shared memory. The operands are valid for reads, with aligned rows of less than 2³¹ bytes; there are at most `MAX_RANK` ranks;
    /// nothing writes the operands while the kernel runs. The tiles are within the output, which is valid for writes and which
    /// no other block touches there. `epilogue` may be asked for every column of it, `scale` for every row of X and every rank.
    unsafe fn run<O: Element, E: Epilogue, S: Fn(u32) -> f32>(
        operands: &UpdateOperands<T>,
        scale: impl Fn(u32) -> S,
        epilogue: E,
        output: Output<O>,
        tiles: TileRow,
    );
}

/// A type that products with an update have kernels for.
pub trait UpdateElement: MmaElement {
    /// What the number of a chunk in row `row` of U is exchanged with: an exclusive or that spreads the loads of
    /// [`load_across`](Self::load_across) over the banks.
    fn exchange(row: u32) -> u32;

    /// Rounds two neighbouring elements and puts them into shared memory.
    ///
    /// # Safety
    ///
    /// There is room at `to`, which is a multiple of their size and which no other thread touches.
    unsafe fn put_rounded_2(to: SharedAddress, values: [f32; 2]);

    /// The bits of an element if `condition` holds, else zero.
    ///
    /// # Safety
    ///
    /// As [`Element::load_read_only_if`].
    unsafe fn load_bits_if(from: Global<Self>, condition: bool) -> u32;

    /// The B fragments of 16 columns from `column` on and of k-step `step`, of rows of `row_bytes` bytes at `rows` that are contiguous
    /// along the columns.
    ///
    /// # Safety
    ///
    /// All lanes of the warp call it; the rows are there, and visible to it.
    unsafe fn load_across(rows: SharedAddress, row_bytes: u32, column: u32, step: u32) -> [[u32; 2]; 2];
}

macro_rules! half_update {
    ($element:ident) => {
        impl UpdateElement for $element {
            #[inline(always)]
            fn exchange(row: u32) -> u32 {
                row % 8
            }

            #[inline(always)]
            unsafe fn load_bits_if(from: Global<Self>, condition: bool) -> u32 {
                // SAFETY: the caller's promise.
                unsafe { Self::load_read_only_if(from, condition).0 as u32 }
            }

            #[inline(always)]
            unsafe fn put_rounded_2(to: SharedAddress, values: [f32; 2]) {
                // SAFETY: the caller's promise.
                unsafe { ptx::st_shared_b32(to.get(), Self::pack(values)) }
            }

            #[inline(always)]
            unsafe fn load_across(
                rows: SharedAddress,
                row_bytes: u32,
                column: u32,
                step: u32,
            ) -> [[u32; 2]; 2] {
                let own = across_chunk(warp::lane_id());
                let chunk = (column / 8 + own.chunk) ^ Self::exchange(own.row);
                let at = rows.offset((step * 16 + own.row) * row_bytes + chunk * CHUNK_BYTES);
                // SAFETY: the caller's promise.
                let [b0, b1, b2, b3] = unsafe { ptx::ldmatrix_x4_trans(at.get()) };
                [[b0, b1], [b2, b3]]
            }
        }
    };
}
half_update!(F16);
half_update!(Bf16);

impl UpdateElement for f32 {
    #[inline(always)]
    fn exchange(row: u32) -> u32 {
        2 * (row % 4)
    }

    #[inline(always)]
    unsafe fn load_bits_if(from: Global<Self>, condition: bool) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { Self::load_read_only_if(from, condition).to_bits() }
    }

    #[inline(always)]
    unsafe fn put_rounded_2(to: SharedAddress, values: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { ptx::st_shared_v2_f32(to.get(), values) }
    }

    /// Element by element, since no instruction transposes words of 32 bits: lane l has rows l mod 4 and 4 more of column l / 4.
    #[inline(always)]
    unsafe fn load_across(rows: SharedAddress, row_bytes: u32, column: u32, step: u32) -> [[u32; 2]; 2] {
        let lane = warp::lane_id();
        let word = |fragment: u32, row: u32| {
            let column = column + MMA_N * fragment + lane / 4;
            let chunk = (column / 4) ^ Self::exchange(lane % 4);
            let at = (step * 8 + row) * row_bytes + chunk * CHUNK_BYTES + column % 4 * 4;
            // SAFETY: the caller's promise.
            unsafe { ptx::ld_shared_b32(rows.offset(at).get()) }
        };
        let fragment = |i: u32| [word(i, lane % 4), word(i, lane % 4 + 4)];
        [fragment(0), fragment(1)]
    }
}
