//! Linear layers on Hopper of operands with any strides: what [`linear`](mod@crate::linear) computes, without copies into rows that can
//! be read in chunks.
//!
//! A block reads the elements of its rows of X and W one by one, so this is for products that are so small that a launch more would take
//! longest.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::float::{Bf16, F16, HalfElement};
use warpsmith_dsl::gemm::strided::{self, Readers, StridedOperand, StridedTile};
use warpsmith_dsl::gemm::{MmaElement, TileShape};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, block, grid, kernel};

/// The sizes and strides of a launch, strides in elements.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct StridedParams {
    /// From one row of X to the next.
    pub row_stride_x: u64,
    /// From one column of X to the next.
    pub column_stride_x: u64,
    /// From one matrix of X to the next; 0 where all have the same.
    pub batch_x: u64,
    /// From one row of W to the next.
    pub row_stride_w: u64,
    /// From one column of W to the next.
    pub column_stride_w: u64,
    /// From one matrix of W to the next; 0 where all have the same.
    pub batch_w: u64,
    /// From one row of Y to the next.
    pub stride_y: u64,
    /// From one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// `Y = activation(alpha · X Wᵀ + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid of one block for each tile of each matrix.
///
/// # Safety
///
/// The pointers, those of `epilogue` too, are valid for the matrices that `p` describes. Y and what else is written overlap nothing else, but
/// that Y may be the epilogue's residual.
#[kernel(
    family = linear_strided,
    block = [strided::THREADS, 1, 1],
    min_blocks = 2,
    shared = StridedTile::SHARED_BYTES,
    instances = [
        linear_strided_f16_f16_32x32 = <F16>,
        linear_strided_bf16_bf16_32x32 = <Bf16>,
    ],
)]
pub unsafe fn linear_strided<T: MmaElement + HalfElement>(
    x: Global<T>,
    w: Global<T>,
    y: GlobalMut<T>,
    epilogue: LinearEpilogue<T, T>,
    p: StridedParams,
) {
    let tile = block::tile_index(p.m.div_ceil(StridedTile::BLOCK_M), p.n.div_ceil(StridedTile::BLOCK_N));
    let batch = tile.batch as u64;
    let x = StridedOperand {
        base: x.offset(batch * p.batch_x),
        row_stride: p.row_stride_x,
        column_stride: p.column_stride_x,
        rows: p.m,
        k: p.k,
    };
    let w = StridedOperand {
        base: w.offset(batch * p.batch_w),
        row_stride: p.row_stride_w,
        column_stride: p.column_stride_w,
        rows: p.n,
        k: p.k,
    };
    let y = Output { base: y.offset(batch * p.batch_y), stride: p.stride_y, rows: p.m, columns: p.n };
    let epilogue = epilogue.of_matrix(tile.batch, p.m, p.n);
    let readers = Readers::new(&x, &w, tile);
    grid::wait_for_earlier_launches();
    // SAFETY: the whole block is here, with the threads and the shared memory that the tile asks for; the caller vouches for the pointers,
    // and each tile of Y belongs to one block.
    unsafe {
        let columns = strided::columns(&epilogue, tile);
        let accumulators = readers.multiply();
        strided::store(accumulators, (epilogue, columns), y, tile);
    }
}
