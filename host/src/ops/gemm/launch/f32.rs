//! How the kernels for f32 alone are launched: those on Hopper, which read x and w in boxes, and by their addresses where sums are added up again, and that for
//! few rows.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::dots;
use warpsmith_dsl::gemm::wgmma_f32::SplitTile;
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::linear_dots::DotsParams;
use warpsmith_kernels::linear_hopper_f32::HopperF32Params;

use super::{Instance, Operands, batch_stride, layouts, row_stride};
use crate::device::Device;
use crate::error::Result;
use crate::ops::gemm::Tile;
use crate::ops::gemm::variants::{Teams, blocks_at_once};
use crate::stream::Stream;
use crate::tensor::{Swizzle, TensorMapOptions};

impl Instance<f32, f32> {
    pub(in crate::ops::gemm) fn split<K: Kernel<Args = SplitArgs>, S: SplitTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_split::<K, S> }
    }

    pub(in crate::ops::gemm) fn dots<K: Kernel<Args = DotsArgs>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_dots::<K> }
    }
}

/// The arguments of a Hopper kernel at f32 accuracy.
type SplitArgs = (
    TensorMap,
    TensorMap,
    Global<f32>,
    Global<f32>,
    GlobalMut<f32>,
    LinearEpilogue<f32, f32>,
    HopperF32Params,
);

/// Launches the f32 kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_split<K: Kernel<Args = SplitArgs>, S: SplitTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, f32, f32>,
) -> Result<()> {
    let &Operands { x, w, y, y_arg, m, n, k, epilogue, .. } = operands;
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    let (batch, layouts) = (y.shape()[0] as u32, layouts(operands));
    let x_map = x.tensor_map([1, S::A_BOX_ROWS as usize, S::STAGE_K as usize], &options)?;
    let w_map = w.tensor_map([1, S::B_BOX_ROWS as usize, S::STAGE_K as usize], &options)?;
    let params = HopperF32Params {
        stride_x: row_stride(x),
        stride_w: row_stride(w),
        batch_x: batch_stride(x),
        batch_w: batch_stride(w),
        stride_y: row_stride(y),
        batch_y: batch_stride(y),
        batch,
        m,
        n,
        k,
        layouts,
        reserved: 0,
    };
    let args = (x_map, w_map, x.arg(), w.arg(), y_arg, epilogue, params);
    let tiles = u64::from(m.div_ceil(S::BLOCK_M).next_multiple_of(S::CLUSTER_M))
        * u64::from(n.div_ceil(S::BLOCK_N))
        * u64::from(batch);
    let blocks = stream.persistent_blocks(blocks, tiles, |multiprocessors| {
        blocks_at_once(multiprocessors, S::MIN_BLOCKS, S::CLUSTER_M)
    });
    let kernel = device.kernel::<K>()?;
    // SAFETY: the maps are of matrices of f32, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

/// The arguments of a kernel for few rows.
type DotsArgs = (Global<f32>, Global<f32>, GlobalMut<f32>, LinearEpilogue<f32, f32>, DotsParams);

/// Launches the kernel `K`, which is for few rows.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_dots<K: Kernel<Args = DotsArgs>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, f32, f32>,
) -> Result<()> {
    let &Operands { x, w, y, y_arg, m, n, k, epilogue, .. } = operands;
    let batch = y.shape()[0] as u32;
    let tiles = Tile::Dots8x2.tiles(m, n).saturating_mul(batch.into());
    let row_bytes = u64::from(k) * size_of::<f32>() as u64;
    let params = DotsParams {
        stride_x: row_stride(x),
        stride_w: row_stride(w),
        stride_y: row_stride(y),
        batch_x: batch_stride(x),
        batch_w: batch_stride(w),
        batch_y: batch_stride(y),
        m,
        n,
        k,
        batch,
        log2_warps: Teams::of(tiles, row_bytes, device.properties().multiprocessors).log2_warps,
        reserved: 0,
    };
    let blocks = stream.persistent_blocks(blocks, tiles, |multiprocessors| multiprocessors * dots::RESIDENT);
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_early(stream, [blocks, 1, 1], (x.arg(), w.arg(), y_arg, epilogue, params)) }
}
