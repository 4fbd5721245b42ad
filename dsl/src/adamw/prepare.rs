//! The scalars of a step.

// Loops over registers index arrays by constants: an iterator by value would be an array in local memory.
#![allow(clippy::needless_range_loop)]

use super::{
    AdamWParams, GRADIENT_WORDS, GROUP_WORDS, HISTORY_WORDS, PREPARE_THREADS, STATUS_WORDS, Scalars,
    StepFlags, TENSOR_WORDS, load_f64, status, store_f64,
};
use crate::reduce::warp_sum;
use crate::shared::SharedAddress;
use crate::{ptx, thread, warp};

/// Warps of the block.
const WARPS: u32 = PREPARE_THREADS / warp::SIZE;
/// Sums of pieces that a thread loads together.
const LOADED: u32 = 8;
/// What the norm is raised by where it is divided by.
const LEAST_NORM: f32 = 1e-6;

/// Adds up the sums of the pieces; from them, whether there is a step at all, what gradients are multiplied with, and the scalars of each tensor's step. It changes the
/// loss scale. The grid has one block.
///
/// A thread adds up every [`PREPARE_THREADS`]th sum; the threads' sums are added as those of [`square_sums`](super::square_sums) are.
///
/// # Safety
///
/// The tables are valid. The block has shared memory for four bytes of each warp.
#[inline(always)]
pub unsafe fn prepare(p: &AdamWParams) {
    let id = thread::thread_idx_x();
    let word = |place: usize| p.status.offset(place as u64).address();
    // SAFETY: the caller's promise: the status is read by all before the barrier, and written by one thread after it; each thread has tensors of its own.
    unsafe {
        let scale = f32::from_bits(ptx::ld_global_b32(word(status::SCALE)));
        let good_steps = ptx::ld_global_b32(word(status::GOOD_STEPS));
        let squares = sum_of_squares(p);
        let norm = ptx::sqrt_rn(squares);
        // A sum beyond the largest number is infinite, and of finite gradients.
        let found = p.flags.has(StepFlags::SCALES) && norm.is_nan();
        if id == 0 {
            let unscale = if p.flags.has(StepFlags::SCALES) { 1.0 / scale } else { 1.0 };
            let ratio = p.max_norm / (norm + LEAST_NORM);
            // NaN stays NaN.
            let clip = if !p.flags.has(StepFlags::CLIPS) || ratio >= 1.0 { 1.0 } else { ratio };
            let (mut next_scale, mut next_steps) = (scale, good_steps);
            if p.flags.has(StepFlags::SCALES) {
                next_steps = if found { 0 } else { good_steps + 1 };
                if found {
                    next_scale = scale * p.backoff;
                } else if next_steps >= p.growth_interval {
                    let grown = scale * p.growth;
                    next_scale = if grown < f32::INFINITY { grown } else { scale };
                    next_steps = 0;
                }
            }
            let norm = if p.flags.has(StepFlags::HAS_SUMS) { norm } else { 0.0 };
            const { assert!(STATUS_WORDS == 8 && status::NORM == 3 && status::CLIP == 5) };
            ptx::st_global_v4_b32(
                word(status::SCALE),
                [next_scale.to_bits(), next_steps, found as u32, norm.to_bits()],
            );
            ptx::st_global_v2_b32(word(status::UNSCALE), [unscale.to_bits(), clip.to_bits()]);
        }
        let mut tensor = id;
        while tensor < p.tensor_count {
            tensor_step(p, tensor, found);
            tensor += PREPARE_THREADS;
        }
    }
}

/// The sum of the pieces' sums, the same in all threads of the block; 0 if there are none.
///
/// # Safety
///
/// As [`prepare`]; all threads of the block call it.
#[inline(always)]
unsafe fn sum_of_squares(p: &AdamWParams) -> f32 {
    let mut sum = 0.0;
    let count = if p.flags.has(StepFlags::HAS_SUMS) { p.piece_count } else { 0 };
    let mut first = thread::thread_idx_x();
    while first < count {
        let mut loaded = [0.0; LOADED as usize];
        for i in 0..LOADED {
            let piece = first + i * PREPARE_THREADS;
            let at = p.sums.offset(piece as u64).address();
            // SAFETY: within the table, or not read.
            loaded[i as usize] = unsafe { ptx::ld_global_f32_if(at, piece < count) };
        }
        for i in 0..LOADED as usize {
            sum += loaded[i];
        }
        first += LOADED * PREPARE_THREADS;
    }
    let place = |warp: u32| SharedAddress::dynamic().offset(warp * 4).get();
    // SAFETY: all lanes come here; each warp has a place, and the barrier is between writing and reading.
    unsafe {
        let own = warp_sum(sum);
        if warp::lane_id() == 0 {
            ptx::st_shared_f32(place(warp::warp_id()), own);
        }
        thread::sync_threads();
        let mut total = ptx::ld_shared_f32(place(0));
        for warp in 1..WARPS {
            total += ptx::ld_shared_f32(place(warp));
        }
        total
    }
}

/// Counts a tensor's step, and makes its scalars. A tensor without a gradient takes none, nor does any after a gradient that is not finite.
///
/// # Safety
///
/// As [`prepare`]; the tensor is this thread's.
#[inline(always)]
unsafe fn tensor_step(p: &AdamWParams, tensor: u32, found: bool) {
    let tensor_at = |words: usize| tensor as u64 * words as u64;
    // SAFETY: the caller's promise.
    unsafe {
        let [low, high] = ptx::ld_global_v2_b32(p.gradients.offset(tensor_at(GRADIENT_WORDS)).address());
        let group = ptx::ld_global_b32(p.tensors.offset(tensor_at(TENSOR_WORDS) + 12).address());
        let options = p.groups.offset(group as u64 * GROUP_WORDS as u64);
        let option = |number: u64| load_f64(options.offset(2 * number).address());
        let (rate, betas) = (option(0), [option(1), option(2)]);
        let (epsilon, decay, corrects) = (option(3), option(4), option(5) != 0.0);
        let history = p.history.offset(tensor_at(HISTORY_WORDS));
        let step = ptx::ld_global_b32(history.address()).wrapping_add(1);
        let mut powers = [0.0; 2];
        for i in 0..2 {
            powers[i] = load_f64(history.offset(2 + 2 * i as u64).address()) * betas[i];
        }
        let is_active = !found && low | high != 0;
        if is_active {
            ptx::st_global_b32(history.address(), step);
            for i in 0..2 {
                store_f64(history.offset(2 + 2 * i as u64).address(), powers[i]);
            }
        }
        let corrections = if corrects { [1.0 - powers[0], 1.0 - powers[1]] } else { [1.0; 2] };
        let scalars = Scalars {
            step_size: (rate / corrections[0]) as f32,
            inverse_root: (1.0 / ptx::sqrt_rn_f64(corrections[1])) as f32,
            decay: (rate * decay) as f32,
            shares: [(1.0 - betas[0]) as f32, (1.0 - betas[1]) as f32],
            epsilon: epsilon as f32,
            step,
            is_active,
        };
        scalars.store(p.scalars, tensor);
    }
}
