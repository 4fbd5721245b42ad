//! What the kernels of a product are told of the sizes and the strides of a launch.

use crate::KernelParam;
use crate::gemm::Layouts;

/// The sizes and options of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct LinearParams {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of W to the next.
    pub stride_w: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of X to the next; 0 where all have the same.
    pub batch_x: u64,
    /// Elements from one matrix of W to the next; 0 where all have the same.
    pub batch_w: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Keeps the size a multiple of the alignment; its value is not read.
    pub reserved: u32,
}

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct HopperParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Matrices.
    pub batch: u32,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W, at least 1, or those of each part of the sums; a row has less than 2³¹ bytes.
    pub k: u32,
    /// The layouts of X and W, and into how many parts the sums along K are split, which are matrices of Y then.
    pub layouts: Layouts,
    /// Not 0 if `y_boxes` describes Y, which then has aligned rows, and so have the matrices of the epilogue; [`LANES_STORE`](Self::LANES_STORE) if a tile whose
    /// [lanes can](crate::gemm::PersistentTile::LANES_STORE) is not to use it.
    pub has_boxes: u32,
    /// Groups of a cluster's tiles that are computed whole, where the tile [has halves](crate::gemm::PersistentTile::HALVES); `u32::MAX` for all.
    pub whole: u32,
    /// 1 if of the last column of tiles only the first half is computed, since Y has no more columns; else 0.
    pub narrow: u32,
}

impl HopperParams {
    /// A value of `has_boxes`.
    pub const LANES_STORE: u32 = 2;
}

/// The sizes and strides of a launch.
#[derive(Clone, Copy, Debug, KernelParam)]
#[repr(C)]
pub struct SkinnyParams {
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Elements from one matrix of Y to the next.
    pub batch_y: u64,
    /// Rows of X and of Y.
    pub m: u32,
    /// Rows of W, and columns of Y.
    pub n: u32,
    /// Columns of X and of W; a row has less than 2³¹ bytes.
    pub k: u32,
    /// Which of X and W all matrices share, and whether W is contiguous along N; X is along K.
    pub layouts: Layouts,
}

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
