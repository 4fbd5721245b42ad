//! The squares of gradients, added up.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use super::{
    AdamWParams, CHUNK, CHUNKS, GradientPiece, StepFlags, TENSOR_WORDS, THREADS, count_of, join,
    piece_of_block, status,
};
use crate::launch::GlobalMut;
use crate::reduce::warp_sum;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// Warps of a block.
const WARPS: u32 = THREADS / warp::SIZE;

/// Adds up the squares of a piece's gradients, over the loss scale; NaN if one of these is not finite. The grid has a block for each piece.
///
/// A thread adds up the first elements of its chunks, the second ones, and so on, then these four sums, the first two and the last two first. So do warps by
/// [`warp_sum`], and the warps' sums are added in their order.
///
/// # Safety
///
/// The tables are valid, and say what is. The block has a warp's shared memory for four bytes each.
#[inline(always)]
pub unsafe fn square_sums(p: &AdamWParams) {
    let (block, id) = (thread::block_idx_x(), thread::thread_idx_x());
    // SAFETY: the caller's promise.
    unsafe {
        let [tensor, piece] = piece_of_block(p, block);
        let gradient = GradientPiece::load(p, tensor, piece);
        let entry = p.tensors.offset(tensor as u64 * TENSOR_WORDS as u64 + 8).address();
        let [low, high] = ptx::ld_global_v2_b32(entry);
        let count = count_of(join(low, high), piece);
        let unscale = unscale_of(p.status, p.flags);
        let total = sum_of_piece(&gradient, count, unscale);
        if id == 0 {
            ptx::st_global_b32(p.sums.offset(block as u64).address(), total.to_bits());
        }
    }
}

/// 1 over the loss scale, or 1.
///
/// # Safety
///
/// The table is the status.
#[inline(always)]
pub(super) unsafe fn unscale_of(table: GlobalMut<u32>, flags: StepFlags) -> f32 {
    // SAFETY: the caller's promise.
    let scale = f32::from_bits(unsafe { ptx::ld_global_b32(table.offset(status::SCALE as u64).address()) });
    if flags.has(StepFlags::SCALES) { 1.0 / scale } else { 1.0 }
}

/// The sum of the squares of a piece's `count` gradients times `unscale`, in the block's first thread.
///
/// # Safety
///
/// All threads of the block call it, once. The piece is there as it says. The block has a warp's shared memory for four bytes each.
#[inline(always)]
pub(super) unsafe fn sum_of_piece(gradient: &GradientPiece, count: u32, unscale: f32) -> f32 {
    let mut sum = 0.0;
    let place = |warp: u32| SharedAddress::dynamic().offset(warp * 4).get();
    // SAFETY: the caller's promise; each warp has a place, and the barrier is between writing and reading.
    unsafe {
        if gradient.is_there {
            let is_vector = gradient.is_aligned && count & (CHUNK - 1) == 0;
            let sums = if gradient.is_f32 {
                sums_of::<true>(gradient, is_vector, count, unscale)
            } else {
                sums_of::<false>(gradient, is_vector, count, unscale)
            };
            sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        }
        let all = warp_sum(sum);
        if warp::lane_id() == 0 {
            ptx::st_shared_f32(place(warp::warp_id()), all);
        }
        thread::sync_threads();
        let mut total = 0.0;
        if thread::thread_idx_x() == 0 {
            total = ptx::ld_shared_f32(place(0));
            for warp in 1..WARPS {
                total += ptx::ld_shared_f32(place(warp));
            }
        }
        total
    }
}

/// The sums of a thread.
///
/// # Safety
///
/// The piece has so many elements, in chunks at multiples of their size if `is_vector`.
#[inline(always)]
unsafe fn sums_of<const F32: bool>(
    gradient: &GradientPiece,
    is_vector: bool,
    count: u32,
    unscale: f32,
) -> [f32; CHUNK as usize] {
    // SAFETY: the caller's promise.
    let words = unsafe {
        if is_vector {
            load::<F32, true>(gradient.address, count)
        } else {
            load::<F32, false>(gradient.address, count)
        }
    };
    let (mut sums, mut not_finite) = ([0.0; CHUNK as usize], 0.0);
    for c in 0..CHUNKS as usize {
        let values = super::update::unpack::<F32>(words[c], gradient.is_f16);
        for j in 0..CHUNK as usize {
            let value = values[j] * unscale;
            sums[j] = ptx::fma(value, value, sums[j]);
            // Zero, or NaN for infinity and NaN.
            not_finite = ptx::fma(value, 0.0, not_finite);
        }
    }
    sums[0] += not_finite;
    sums
}

/// A thread's chunks, whose elements take a word each, or two of them one; zeros where there is none.
///
/// # Safety
///
/// As [`sums_of`].
#[inline(always)]
unsafe fn load<const F32: bool, const VECTOR: bool>(
    base: u64,
    count: u32,
) -> [[u32; CHUNK as usize]; CHUNKS as usize] {
    let mut words = [[0; CHUNK as usize]; CHUNKS as usize];
    for c in 0..CHUNKS as usize {
        let first = (c as u32 * THREADS + thread::thread_idx_x()) * CHUNK;
        // SAFETY: the caller's promise.
        words[c] = unsafe { super::update::load::<F32, VECTOR>(base, first, count) };
    }
    words
}
