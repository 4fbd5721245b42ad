//! How the kernels for few rows of x are launched.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::SplitKTile;
use warpsmith_dsl::launch::{GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::linear_skinny::SkinnyParams;

use super::{Instance, Operands, batch_stride, is_across, layouts, map_of, rounded, row_stride};
use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::{Element, L2Promotion, Swizzle, Tensor, TensorMapOptions};

impl<T: Element, O: Element> Instance<T, O> {
    pub(in crate::ops::gemm) fn skinny<K: Kernel<Args = SkinnyArgs<T, O>>, S: SplitKTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_skinny::<T, O, K, S> }
    }
}

/// The arguments of a kernel for few rows of x.
type SkinnyArgs<T, O> = (
    TensorMap,
    TensorMap,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    SkinnyParams,
);

/// Bytes of a line of the level-2 cache.
const LINE_BYTES: u64 = 128;
/// Rows of x from which on lines that are asked for in advance cost more than they save, if rows do not start at lines: measured with 1
/// and 16 to 128.
const FEW_ROWS: u32 = 16;

/// Launches the kernel `K` of tile `S`, which is for few rows of x.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_skinny<T: Element, O: Element, K: Kernel<Args = SkinnyArgs<T, O>>, S: SplitKTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let &Operands { y_arg, epilogue, .. } = operands;
    let launch = skinny_launch::<T, O, S>(operands)?;
    let kernel = device.kernel::<K>()?;
    let (grid, args) = ([blocks, 1, 1], (launch.x, launch.w, y_arg, epilogue, launch.params));
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if launch.is_early {
            kernel.launch_early(stream, grid, args)
        } else {
            kernel.launch(stream, grid, args)
        }
    }
}

/// What a launch for few rows of x is told beside its epilogue.
pub(crate) struct SkinnyLaunch {
    pub(crate) x: TensorMap,
    pub(crate) w: TensorMap,
    pub(crate) params: SkinnyParams,
    /// Whether it begins before earlier launches have ended.
    pub(crate) is_early: bool,
}

/// The map of a matrix that a kernel of tile `S` for few rows reads along K, with boxes of `box_rows` rows.
pub(super) fn skinny_map<T: Element, S: SplitKTile>(
    matrices: &Tensor<T>,
    box_rows: u32,
) -> Result<TensorMap> {
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    matrices.tensor_map([1, box_rows as usize, S::ROW_BYTES as usize / size_of::<T>()], &options)
}

/// What a launch of tile `S`, which is for few rows of x, is told of `operands`.
pub(crate) fn skinny_launch<T: Element, O: Element, S: SplitKTile>(
    operands: &Operands<'_, T, O>,
) -> Result<SkinnyLaunch> {
    let &Operands { x, w, y, m, n, k, .. } = operands;
    // What follows in a row is asked for next; but where the rows' parts lie in two lines each, that would be read twice.
    let straddles = |matrices: &Tensor<T>| {
        let stride = if is_across(matrices) { matrices.strides()[2] as u64 } else { row_stride(matrices) };
        !(stride * size_of::<T>() as u64).is_multiple_of(LINE_BYTES)
    };
    let l2_promotion =
        if m >= FEW_ROWS && (straddles(x) || straddles(w)) { L2Promotion::B128 } else { L2Promotion::B256 };
    let data_type = rounded::<T>();
    let swizzle = Swizzle::B128;
    let options = TensorMapOptions { swizzle, l2_promotion, data_type, ..TensorMapOptions::default() };
    let columns = S::ROW_BYTES as usize / size_of::<T>();
    let layouts = layouts(operands).with_b_mn(is_across(w));
    let x = x.tensor_map([1, S::A_BOX_ROWS as usize, columns], &options)?;
    let w = map_of(w, S::B_BOX_ROWS, columns, &options)?;
    let params = SkinnyParams { stride_y: row_stride(y), batch_y: batch_stride(y), m, n, k, layouts };
    // Large clusters find room one by one while others end; then some are late, and all wait for them.
    Ok(SkinnyLaunch { x, w, params, is_early: S::SPLIT <= 2 })
}
