//! The first three steps: tiles of 64 × 64 elements, a block of one warpgroup for each.

use warpsmith_dsl::barrier::Barrier;
use warpsmith_dsl::prelude::*;
use warpsmith_dsl::ptx::{self, Accumulators as _, MatrixDescriptor};
use warpsmith_dsl::shared::SharedAddress;

use super::{DEPTH, ROW_BYTES, multiply, shared_bytes, store};

/// Rows and columns of a tile.
const SIDE: u32 = 64;
const OPERAND_BYTES: u32 = SIDE * ROW_BYTES;
const STAGE_BYTES: u32 = 2 * OPERAND_BYTES;
/// Stages of the ring.
pub const RING: u32 = 4;

/// The rows of a tile as `wgmma` reads them.
#[inline(always)]
fn operand(at: SharedAddress) -> MatrixDescriptor {
    MatrixDescriptor::rows_of_128_bytes(at.get())
}

/// Copies 64 rows of 128 bytes to shared memory, in the 128-byte swizzle: chunk c of row r, 16 bytes, is put where chunk c
/// ⊕ (r mod 8) would be. Zeros stand for elements outside.
///
/// # Safety
///
/// All threads of the block call it, and nothing else touches the memory.
#[inline(always)]
unsafe fn copy_tile(x: GlobalMatrix<Bf16>, row: usize, depth: usize, to: SharedAddress) {
    let mut chunk = thread::thread_idx_x();
    while chunk < SIDE * 8 {
        let (own_row, own_chunk) = (chunk / 8, chunk % 8);
        let element = |i: usize| {
            let column = depth + 8 * own_chunk as usize + i;
            x.get(row + own_row as usize, column).map_or(0, |element| element.0 as u32)
        };
        let words = core::array::from_fn(|word| element(2 * word) | element(2 * word + 1) << 16);
        let at = to.offset(own_row * ROW_BYTES + (own_chunk ^ (own_row % 8)) * 16);
        // SAFETY: inside the tile, and this thread's.
        unsafe { ptx::st_shared_v4_b32(at.get(), words) }
        chunk += 128;
    }
}

/// Step 1: `Y = X Wᵀ` by tiles that the threads copy, and that any number of blocks share out.
#[kernel(block = [128, 1, 1], shared = STAGE_BYTES)]
pub fn step_1(x: GlobalMatrix<Bf16>, w: GlobalMatrix<Bf16>, y: GlobalMatrixMut<Bf16>) {
    let to_x = SharedAddress::dynamic();
    let to_w = to_x.offset(OPERAND_BYTES);
    for tile in block::indices_2d([y.rows(), y.columns()].map(|length| length.div_ceil(SIDE as usize))) {
        let [row, column] = tile.map(|index| index as u32 * SIDE);
        let mut sums = <[f32; 32]>::zero();
        for depth in (0..x.columns()).step_by(DEPTH as usize) {
            // SAFETY: all threads of the block are here. Copies end before the products that read them begin, and products
            // before the next copies.
            unsafe {
                copy_tile(x, row as usize, depth, to_x);
                copy_tile(w, column as usize, depth, to_w);
                // `wgmma` reads shared memory through another proxy than stores write it.
                ptx::fence_proxy_async_shared();
                sync_threads();
                sums.hold();
                multiply(&mut sums, operand(to_x), operand(to_w));
                ptx::wgmma_wait_group::<0>();
                sums.hold();
                sync_threads();
            }
        }
        // SAFETY: all products have ended; the tile is this block's.
        unsafe { store(&sums, y, row, column) }
    }
}

/// Has the copy engine fill a stage, and announces its bytes.
///
/// # Safety
///
/// One thread calls it, when nothing reads the stage any more; the maps describe matrices in boxes of 64 × 64 elements.
#[inline(always)]
unsafe fn load(x: &TensorMap, w: &TensorMap, at: [u32; 3], stage: SharedAddress, full: Barrier) {
    let [row, column, depth] = at.map(|at| at as i32);
    // SAFETY: the caller's promise.
    unsafe {
        full.arrive_and_expect(STAGE_BYTES);
        ptx::tma_load_2d(stage.get(), x.address(), [depth, row], full.address());
        ptx::tma_load_2d(stage.offset(OPERAND_BYTES).get(), w.address(), [depth, column], full.address());
    }
}

/// Steps 2 and 3: by tiles that the copy engine copies, `STAGES` ahead.
///
/// # Safety
///
/// The grid is of ⌈N / 64⌉ × ⌈M / 64⌉ × 1 blocks. `x` describes X [M, K] and `w` W [N, K] in boxes of 64 × 64 elements in the 128-byte swizzle; y is [M, N].
#[kernel(
    block = [128, 1, 1],
    shared = shared_bytes(SIDE, SIDE, STAGES),
    instances = [step_2 = <1>, step_3 = <RING>],
)]
pub unsafe fn copied<const STAGES: u32>(x: &TensorMap, w: &TensorMap, y: GlobalMatrixMut<Bf16>, k: u32) {
    let (row, column) = (thread::block_idx_y() * SIDE, thread::block_idx_x() * SIDE);
    let place = |stage: u32| SharedAddress::dynamic().offset(stage * STAGE_BYTES);
    let full = |stage: u32| Barrier::at(place(STAGES).offset(stage * Barrier::BYTES));
    let (is_first, steps) = (thread::thread_idx_x() == 0, k.div_ceil(DEPTH));
    let mut sums = <[f32; 32]>::zero();
    // SAFETY: all threads of the block are here. A stage is filled again when all have multiplied it.
    unsafe {
        if is_first {
            for stage in 0..STAGES {
                full(stage).init(1);
            }
            ptx::fence_mbarrier_init();
            for step in 0..STAGES {
                if step < steps {
                    load(x, w, [row, column, step * DEPTH], place(step), full(step));
                }
            }
        }
        sync_threads();
        for step in 0..steps {
            let stage = step % STAGES;
            full(stage).wait(step / STAGES % 2);
            sums.hold();
            multiply(&mut sums, operand(place(stage)), operand(place(stage).offset(OPERAND_BYTES)));
            ptx::wgmma_wait_group::<0>();
            sums.hold();
            sync_threads();
            if is_first && step + STAGES < steps {
                load(x, w, [row, column, (step + STAGES) * DEPTH], place(stage), full(stage));
            }
        }
        store(&sums, y, row, column);
    }
}
