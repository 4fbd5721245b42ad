//! How the persistent kernels are launched: whole tiles or halves, what they are told of the operands, and what of Y the copy engine stores.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::PersistentTile;
use warpsmith_dsl::launch::{GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::linear_hopper::HopperParams;

use super::{
    Instance, Operands, batch_stride, has_only_tiles, is_across, is_early, layouts, map_of, rounded,
    row_stride, tiles,
};
use crate::device::Device;
use crate::error::Result;
use crate::ops::gemm::halves::halves_of;
use crate::ops::gemm::variants::blocks_at_once;
use crate::ops::{CHUNK_BYTES, STORED_ROWS, has_short_rows};
use crate::stream::Stream;
use crate::tensor::{Element, Swizzle, Tensor, TensorMapOptions};

impl<T: Element, O: Element> Instance<T, O> {
    pub(in crate::ops::gemm) fn hopper<K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_hopper::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn hopper_halves<K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>() -> Self
    {
        const { assert!(S::HALVES, "a tile that has halves") };
        Self { declaration: K::DECLARATION, launch: launch_hopper_halves::<T, O, K, S> }
    }
}

/// The arguments of a Hopper kernel.
type HopperArgs<T, O> = (
    TensorMap,
    TensorMap,
    TensorMap,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    HopperParams,
);

/// Whether the copy engine can store the rows of `y`, which begins at `y_arg`: they start at multiples of 16 bytes.
fn is_chunked<T: Element>(y_arg: GlobalMut<T::Device>, y: &Tensor<T>) -> bool {
    let strides = (row_stride(y) | batch_stride(y)) * size_of::<T>() as u64;
    (y_arg.address() | strides).is_multiple_of(CHUNK_BYTES as u64)
}

/// Whether the rows of the matrices that an epilogue reads and stores are at multiples of 16 bytes, of elements of `bytes` bytes.
fn has_chunked_matrices<B, O>(epilogue: &LinearEpilogue<B, O>, bytes: usize) -> bool {
    let e = epilogue;
    let strides = [e.residual_stride, e.residual_batch, e.preactivation_stride, e.preactivation_batch];
    let strides = strides.into_iter().fold(0, |all, stride| all | stride) * bytes as u64;
    (e.residual.address() | e.preactivation.address() | strides).is_multiple_of(CHUNK_BYTES as u64)
}

/// Launches the Hopper kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_hopper<T: Element, O: Element, K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let dealt = Dealt::whole::<T, O, S>(stream, operands, blocks);
    // SAFETY: the caller's promise.
    unsafe { launch_dealt::<T, O, K, S>(device, stream, operands, &dealt) }
}

/// As [`launch_hopper`], with the last tiles in halves where that is sooner done.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_hopper_halves<
    T: Element,
    O: Element,
    K: Kernel<Args = HopperArgs<T, O>>,
    S: PersistentTile,
>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let dealt = Dealt::halves::<T, O, S>(stream, operands, blocks);
    // SAFETY: the caller's promise.
    unsafe { launch_dealt::<T, O, K, S>(device, stream, operands, &dealt) }
}

/// What a Hopper launch's tiles are computed as, and by how many blocks.
pub(super) struct Dealt {
    /// Those of the launch: of the plan, or as many as the stream's limit allows.
    pub(super) blocks: u32,
    /// [`HopperParams::whole`].
    whole: u32,
    /// [`HopperParams::narrow`].
    narrow: bool,
    /// Whether no block has more than one.
    pub(super) are_only: bool,
}

impl Dealt {
    /// Whole tiles, of a launch that is planned on `planned` blocks.
    pub(super) fn whole<T: Element, O: Element, S: PersistentTile>(
        stream: &Stream,
        operands: &Operands<'_, T, O>,
        planned: u32,
    ) -> Self {
        let tiles = tiles::<S>(operands.m, operands.n).saturating_mul(operands.y.shape()[0] as u64);
        let blocks = persistent_blocks::<S>(stream, planned, tiles);
        Self { blocks, whole: u32::MAX, narrow: false, are_only: has_only_tiles(tiles, blocks) }
    }

    /// The last tiles in halves where that is sooner done on the whole device.
    pub(super) fn halves<T: Element, O: Element, S: PersistentTile>(
        stream: &Stream,
        operands: &Operands<'_, T, O>,
        planned: u32,
    ) -> Self {
        let sizes = [operands.m, operands.n, operands.y.shape()[0] as u32];
        let halves = halves_of::<S>(sizes, stream.device().properties().multiprocessors);
        let positions = halves.whole.saturating_add(halves.pieces).saturating_mul(S::CLUSTER.into());
        let blocks = persistent_blocks::<S>(stream, planned, positions);
        let whole = u32::try_from(halves.whole).unwrap_or(u32::MAX);
        Self { blocks, whole, narrow: halves.narrow, are_only: has_only_tiles(positions, blocks) }
    }
}

/// The blocks of a launch of tile `S` for `tiles` tiles, which is planned on `planned` blocks, within the stream's limit.
pub(super) fn persistent_blocks<S: PersistentTile>(stream: &Stream, planned: u32, tiles: u64) -> u32 {
    stream.persistent_blocks(planned, tiles, |multiprocessors| {
        blocks_at_once(multiprocessors, S::MIN_BLOCKS, S::CLUSTER)
    })
}

/// Launches the Hopper kernel `K` of tile `S` for tiles that are dealt out.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_dealt<T: Element, O: Element, K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>(
    device: &Device,
    stream: &Stream,
    operands: &Operands<'_, T, O>,
    dealt: &Dealt,
) -> Result<()> {
    let &Operands { y_arg, m, n, k, epilogue, .. } = operands;
    let &Dealt { blocks, are_only, .. } = dealt;
    let launch = hopper_launch::<T, O, S>(operands, dealt)?;
    let kernel = device.kernel::<K>()?;
    let args = (launch.x, launch.w, launch.y_boxes, y_arg, epilogue, launch.params);
    let grid = [blocks, 1, 1];
    let row_bytes = u64::from(k) * size_of::<T>() as u64;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if is_early::<S>(row_bytes, [m, n], blocks, are_only, device.properties().multiprocessors) {
            kernel.launch_early(stream, grid, args)
        } else {
            kernel.launch(stream, grid, args)
        }
    }
}

/// What a persistent launch of a product is told beside its epilogue.
pub(super) struct HopperLaunch {
    pub(super) x: TensorMap,
    pub(super) w: TensorMap,
    pub(super) y_boxes: TensorMap,
    pub(super) params: HopperParams,
}

/// The map of a matrix that a persistent kernel of tile `S` reads along K, with boxes of `box_rows` rows.
pub(super) fn hopper_map<T: Element, S: PersistentTile>(
    matrices: &Tensor<T>,
    box_rows: u32,
) -> Result<TensorMap> {
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    matrices.tensor_map([1, box_rows as usize, S::ROW_BYTES as usize / size_of::<T>()], &options)
}

/// What a launch of tile `S` for tiles that are dealt out is told of `operands`.
pub(super) fn hopper_launch<T: Element, O: Element, S: PersistentTile>(
    operands: &Operands<'_, T, O>,
    dealt: &Dealt,
) -> Result<HopperLaunch> {
    let &Operands { x, w, y, y_arg, m, n, k, parts: of_sums, epilogue, .. } = operands;
    let columns = S::ROW_BYTES as usize / size_of::<T>();
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    let of_inputs = TensorMapOptions { data_type: rounded::<T>(), ..options.clone() };
    let batch = y.shape()[0];
    let layouts = layouts(operands).with_a_mn(is_across(x)).with_b_mn(is_across(w)).with_parts(of_sums);
    let x = map_of(x, S::A_BOX_ROWS, columns, &of_inputs)?;
    let w = map_of(w, S::B_BOX_ROWS, columns, &of_inputs)?;
    // The copy engine stores chunks of 16 bytes, also where a row ends within one.
    let has_boxes = is_chunked(y_arg, y)
        && (n as usize * size_of::<O>()).is_multiple_of(CHUNK_BYTES)
        && has_chunked_matrices(&epilogue, size_of::<O>())
        && (epilogue.residual.is_null() || has_short_rows(n as usize, size_of::<O>()));
    let y_boxes = if has_boxes {
        let swizzle = if S::STORED_ROW_BYTES < S::ROW_BYTES { Swizzle::B64 } else { Swizzle::B128 };
        let options = TensorMapOptions { swizzle, ..options };
        y.tensor_map([1, STORED_ROWS, S::STORED_ROW_BYTES as usize / size_of::<O>()], &options)?
    } else {
        TensorMap::from_words([0; 16])
    };
    let params = HopperParams {
        stride_y: row_stride(y),
        batch_y: batch_stride(y),
        batch: batch as u32,
        m,
        n,
        k,
        layouts,
        // Behind the stores of an only tile there is nothing to do.
        has_boxes: match (has_boxes, dealt.are_only) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => HopperParams::LANES_STORE,
        },
        whole: dealt.whole,
        narrow: dealt.narrow.into(),
    };
    Ok(HopperLaunch { x, w, y_boxes, params })
}
