//! Sums of the columns of a matrix of f32, in fixed order: what the parts of a gradient add up to.

use warpsmith_dsl::float::{Bf16, Element, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, KernelParam};
use warpsmith_dsl::shared::SharedAddress;
use warpsmith_dsl::{kernel, ptx, thread, warp};

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Columns of a block: a lane each.
pub const COLUMNS: u32 = warp::SIZE;
const WARPS: u32 = THREADS / warp::SIZE;
/// Rows that a thread loads together.
const LOADED: u32 = 8;

/// Matrices that one launch adds up.
pub const MATRICES: usize = 2;

/// What is added up: a matrix or two.
#[repr(C)]
pub struct ColumnSumsParams<T> {
    /// The matrices, rows without gaps; null if there is none.
    pub x: [Global<f32>; MATRICES],
    /// Where their columns' sums go.
    pub y: [GlobalMut<T>; MATRICES],
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Whether sums are added to what is there: 1 or 0.
    pub adds: u32,
    /// Nothing.
    pub reserved: u32,
}

impl<T> Clone for ColumnSumsParams<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ColumnSumsParams<T> {}

// SAFETY: four fields of eight bytes, four of four: no padding.
unsafe impl<T: 'static> KernelParam for ColumnSumsParams<T> {}

/// `y[column] (+)= Σ x[row, column]`. A warp adds up every eighth row; the warps' sums are added in their order.
///
/// The grid has, along x, a block for each [`COLUMNS`] columns, and along y [`MATRICES`].
///
/// # Safety
///
/// Each x is null or valid for reads of rows · columns elements, and its y then for `columns`; what is written overlaps nothing else.
#[kernel(
    family = column_sums,
    block = [THREADS, 1, 1],
    dependent_launch = true,
    min_blocks = 4,
    shared = THREADS * 4,
    instances = [column_sums_f16 = <F16>, column_sums_bf16 = <Bf16>, column_sums_f32 = <f32>],
)]
pub unsafe fn column_sums<T: Element>(p: ColumnSumsParams<T>) {
    let (rows, columns) = (p.rows, p.columns);
    // A selection among the fields' places would copy the parameter to local memory.
    let is_second = thread::block_idx_y() != 0;
    let x = if is_second { p.x[1] } else { p.x[0] };
    let y = if is_second { p.y[1] } else { p.y[0] };
    if x.is_null() {
        return;
    }
    let (warp, lane) = (warp::warp_id(), warp::lane_id());
    let column = thread::block_idx_x() * COLUMNS + lane;
    let (mut sum, mut row) = (0.0, warp);
    while row < rows {
        let mut loaded = [0.0; LOADED as usize];
        for (step, value) in loaded.iter_mut().enumerate() {
            let row = row + step as u32 * WARPS;
            let at = x.offset(row as u64 * columns as u64 + column as u64);
            // SAFETY: within the matrix, or not read.
            *value = unsafe { ptx::ld_global_f32_if(at.address(), row < rows && column < columns) };
        }
        for value in loaded {
            sum += value;
        }
        row += LOADED * WARPS;
    }
    let place = |warp: u32| SharedAddress::dynamic().offset((warp * COLUMNS + lane) * 4).get();
    // SAFETY: each thread has a place; the barrier is between writing and reading. The column is this thread's.
    unsafe {
        ptx::st_shared_f32(place(warp), sum);
        thread::sync_threads();
        if warp != 0 || column >= columns {
            return;
        }
        for other in 1..WARPS {
            sum += ptx::ld_shared_f32(place(other));
        }
        if p.adds != 0 {
            sum += T::load_if(Global::new(y.offset(column as u64).address()), true).to_f32();
        }
        T::store_rounded(y.offset(column as u64), sum);
    }
}
