//! The second pass of products that are split along K: adds the parts of each sum, in order, and applies the epilogue.

use core::num::NonZeroU32;

use warpsmith_dsl::epilogue::{Epilogue, LinearEpilogue};
use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::layout::Coord;
use warpsmith_dsl::tile::Output;
use warpsmith_dsl::{KernelParam, grid, kernel, ptx, thread, warp};

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Warps of a block.
pub const WARPS: u32 = THREADS / warp::SIZE;
/// Neighbouring columns of a lane.
const LANE_COLUMNS: u32 = 4;
/// Columns of a warp, all of one row.
pub const WARP_COLUMNS: u32 = LANE_COLUMNS * warp::SIZE;
/// Parts that a lane loads together: what hides the memory's latency.
const AT_ONCE: u32 = 4;

/// The sizes and strides of a launch. The parts are matrices of M rows: those of each matrix of Y follow each other.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct SumsParams {
    /// Elements from one row of a part to the next: a multiple of 4.
    pub stride: u64,
    /// Elements from one part to the next: a multiple of 4.
    pub part: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of Y.
    pub m: u32,
    /// Columns of Y.
    pub n: u32,
    /// Matrices of Y.
    pub batch: u32,
    /// Parts of each matrix.
    pub parts: u32,
}

/// `Y = activation(alpha · Σ parts + …)`, all that [`LinearEpilogue`] says, on a one-dimensional grid with a warp for each [`WARP_COLUMNS`] columns
/// of a row. The name of an instance tells the type of X and W, which is that of the bias, and the type of Y.
///
/// # Safety
///
/// `sums` is aligned to 16 bytes and valid for reads of whole groups of four columns; `y` and the pointers of `epilogue` are valid for what `p` describes.
/// Y and what else is written overlap nothing else, but that Y may be the epilogue's residual. `p.m` and `p.n` are not 0.
#[kernel(
    family = linear_sums,
    block = [THREADS, 1, 1],
    instances = [
        linear_sums_f16_f16 = <F16, F16>,
        linear_sums_f16_f32 = <F16, f32>,
        linear_sums_bf16_bf16 = <Bf16, Bf16>,
        linear_sums_bf16_f32 = <Bf16, f32>,
        linear_sums_f32_f32 = <f32, f32>,
    ],
)]
pub unsafe fn linear_sums<T: Element, O: Element>(
    sums: Global<f32>,
    y: GlobalMut<O>,
    epilogue: LinearEpilogue<T, O>,
    p: SumsParams,
) {
    // SAFETY: the caller's promise.
    let (m, groups) =
        unsafe { (NonZeroU32::new_unchecked(p.m), NonZeroU32::new_unchecked(p.n.div_ceil(WARP_COLUMNS))) };
    let item = thread::block_idx_x() * WARPS + warp::warp_id();
    let (row, group) = (item / groups, item % groups);
    let (batch, row) = (row / m, row % m);
    let column = group * WARP_COLUMNS + warp::lane_id() * LANE_COLUMNS;
    grid::wait_for_earlier_launches();
    if batch >= p.batch {
        return;
    }
    let epilogue = epilogue.of_matrix(batch, p.m, p.n);
    let first = sums.offset(batch as u64 * p.parts as u64 * p.part + row as u64 * p.stride + column as u64);
    // The sum of no numbers: it leaves the sign of a zero as it is.
    let mut total = [-0.0; LANE_COLUMNS as usize];
    let mut begin = 0;
    loop {
        let mut parts = [[0; LANE_COLUMNS as usize]; AT_ONCE as usize];
        for (index, part) in (begin..).zip(&mut parts) {
            let at = first.offset(index as u64 * p.part);
            // SAFETY: within a part, or not read.
            *part = unsafe { ptx::ld_global_v4_b32_if(at.address(), index < p.parts && column < p.n) };
        }
        for (index, part) in (begin..).zip(&parts) {
            for (total, &part) in total.iter_mut().zip(part) {
                *total = if index < p.parts { *total + f32::from_bits(part) } else { *total };
            }
        }
        begin += AT_ONCE;
        if begin >= p.parts {
            break;
        }
    }
    let y = Output { base: y.offset(batch as u64 * p.batch_y), stride: p.stride_y, rows: p.m, columns: p.n };
    let at = Coord { row, column };
    // SAFETY: all lanes of the warp are here, with neighbouring columns of a row, which belong to no other; the rest is the caller's promise.
    unsafe {
        let columns = [0, 1, 2, 3].map(|index| epilogue.column(column + index));
        let result = epilogue.apply(at, epilogue.row(row), columns, total);
        y.store_4(row, column, result, y.is_vector_aligned());
    }
}
