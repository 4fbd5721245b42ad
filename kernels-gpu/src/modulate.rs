//! The codes of generated updates, applied between two products: H = X V is multiplied by them, element by element, and rounded to the type
//! in which the next product reads it.

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::{KernelParam, kernel, thread, warp};

use crate::codes::Codes;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Rows of a warp, which loads all of them before it stores the first.
pub const WARP_ROWS: usize = 4;
/// Rows of a block.
pub const BLOCK_ROWS: u32 = THREADS / warp::SIZE * WARP_ROWS as u32;

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct ModulateParams {
    /// Elements from one row of H to the next.
    pub stride_h: u64,
    /// Elements from one row of the result to the next.
    pub stride_g: u64,
    /// Rows.
    pub m: u32,
    /// Columns of the result: as many as the codes have ranks, or more, which become zero.
    pub columns: u32,
}

/// `G = H ⊙ codes`, with each code's scaling, on a one-dimensional grid of a block for each [`BLOCK_ROWS`] rows.
///
/// # Safety
///
/// `g` is valid for the rows and columns that `p` describes, `h` and `codes` for as many rows and as many columns as the codes have ranks; `codes.rows` holds
/// no zero. G overlaps nothing else.
#[kernel(
    family = modulate,
    block = [THREADS, 1, 1],
    instances = [
        modulate_f16 = <F16>,
        modulate_bf16 = <Bf16>,
        modulate_f32 = <f32>,
    ],
)]
pub unsafe fn modulate<T: Element>(h: Global<f32>, codes: Codes<T>, g: GlobalMut<T>, p: ModulateParams) {
    let first = (thread::block_idx_x() * (THREADS / warp::SIZE) + warp::warp_id()) * WARP_ROWS as u32;
    let mut rank = warp::lane_id();
    while rank < p.columns {
        // SAFETY: `codes.rows` holds no zero; rows past the last are not read or written, and the rest is the caller's promise. Each element of
        // G belongs to one thread.
        unsafe {
            let of_rank = codes.of_rank(rank);
            let mut numbers = [0.0; WARP_ROWS];
            for (index, number) in numbers.iter_mut().enumerate() {
                let row = first + index as u32;
                let inside = row < p.m && rank < codes.rank();
                let hidden = f32::load_read_only_if(h.offset(row as u64 * p.stride_h + rank as u64), inside);
                *number = hidden * of_rank.scaled(row, inside);
            }
            for (index, number) in numbers.iter().enumerate() {
                let row = first + index as u32;
                if row < p.m {
                    T::store_rounded(g.offset(row as u64 * p.stride_g + rank as u64), *number);
                }
            }
        }
        rank += warp::SIZE;
    }
}
