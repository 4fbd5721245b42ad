//! How the kernels of the linear families are launched: what each is told of the operands, and when its launch begins.

mod early;
mod f32;
pub(crate) mod fp8;

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::parts::Parts;
use warpsmith_dsl::gemm::{Layouts, PersistentTile, SplitKTile, TileShape};
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::linear::LinearParams;
use warpsmith_kernels::linear_hopper::HopperParams;
use warpsmith_kernels::linear_narrow::NarrowParams;
use warpsmith_kernels::linear_skinny::SkinnyParams;
use warpsmith_kernels::linear_strided::StridedParams;
#[cfg(doc)]
use warpsmith_kernels::{
    linear::linear, linear_hopper::linear_hopper, linear_narrow::linear_narrow, linear_skinny::linear_skinny,
    linear_strided::linear_strided,
};

pub(crate) use early::{has_only_tiles, is_early, tiles};

use super::LinearTypes;
use super::halves::halves_of;
use super::passes::Passes;
use super::plan::{self, Plan};
use crate::cpu::FromAccumulator;
use crate::device::Device;
use crate::error::Result;
use crate::ops::{CHUNK_BYTES, Implementation, STORED_ROWS, has_short_rows};
use crate::stream::{Scratch, Stream};
use crate::tensor::{DType, Element, L2Promotion, Swizzle, Tensor, TensorMapOptions, TensorType};

/// What a linear kernel works on.
pub(crate) struct Operands<'a, T: Element, O: Element> {
    /// The matrices x, `[batch, M, K]`, with unit stride along K or, if the kernel reads that, along M; one if all products share it.
    pub(crate) x: &'a Tensor<T>,
    /// The matrices w, `[batch, N, K]`; one if all products share it.
    pub(crate) w: &'a Tensor<T>,
    /// The matrices y, `[batch, M, N]`.
    pub(crate) y: &'a Tensor<O>,
    /// The place of y.
    pub(crate) y_arg: GlobalMut<O::Device>,
    /// Rows of x and y.
    pub(crate) m: u32,
    /// Rows of w, columns of y.
    pub(crate) n: u32,
    /// Columns of x and w.
    pub(crate) k: u32,
    /// Blocks that share the sums of a tile, of those that are told at each launch, or parts of the sums that are matrices of y.
    pub(crate) parts: u32,
    /// What is done to the product.
    pub(crate) epilogue: LinearEpilogue<T::Device, O::Device>,
}

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element, O: Element> {
    pub(crate) declaration: Declaration,
    pub(super) launch: Launch<T, O>,
}

pub(super) type Launch<T, O> = unsafe fn(&Device, &Stream, u32, &Operands<'_, T, O>) -> Result<()>;

impl<T: Element, O: Element> Instance<T, O> {
    pub(in crate::ops::gemm) fn portable<K: Kernel<Args = PortableArgs<T, O>>, S: TileShape>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_portable::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn hopper<K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_hopper::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn hopper_halves<K: Kernel<Args = HopperArgs<T, O>>, S: PersistentTile>() -> Self
    {
        const { assert!(S::HALVES, "a tile that has halves") };
        Self { declaration: K::DECLARATION, launch: launch_hopper_halves::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn skinny<K: Kernel<Args = SkinnyArgs<T, O>>, S: SplitKTile>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_skinny::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn narrow<K: Kernel<Args = NarrowArgs<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_narrow::<T, O, K> }
    }

    pub(in crate::ops::gemm) fn strided<K: Kernel<Args = StridedArgs<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_strided::<T, O, K> }
    }

    /// Launches the kernel on `blocks` blocks, loading it if this is its first use on the device.
    ///
    /// # Safety
    ///
    /// The operands are valid for what [`linear`], [`linear_hopper`], [`linear_skinny`], [`linear_narrow`] or [`linear_strided`] does with them,
    /// and live until the stream's work is done.
    pub(crate) unsafe fn launch(
        &self,
        device: &Device,
        stream: &Stream,
        blocks: u32,
        operands: &Operands<'_, T, O>,
    ) -> Result<()> {
        // SAFETY: the caller's promise is the kernel's.
        unsafe { (self.launch)(device, stream, blocks, operands) }
    }
}

/// The kernels that compute a product.
pub(crate) enum Kernels<T: Element, O: Element> {
    /// All of it.
    One(Instance<T, O>),
    /// Parts of its sums, and what adds them.
    Two(Passes<T, O>),
}

impl<T, O> plan::Kernels for Kernels<T, O>
where
    T: LinearTypes<O>,
    O: Element + FromAccumulator<f32>,
{
    fn of(plan: &Plan) -> Option<Self> {
        match plan.is_split() {
            true => T::passes(plan.tile).map(Self::Two),
            false => T::instance(plan.tile).map(Self::One),
        }
    }

    fn implementation(&self, plan: &Plan, device: &Device) -> Implementation {
        match self {
            Self::One(instance) => plan.implementation(device, instance.declaration.name, None),
            Self::Two(Passes { parts, sums }) => {
                plan.implementation(device, parts.declaration.name, Some(sums.declaration.name))
            }
        }
    }
}

impl<T: Element, O: Element> Kernels<T, O> {
    /// Computes the product of some matrices.
    ///
    /// # Safety
    ///
    /// As [`Instance::launch`].
    pub(crate) unsafe fn launch(
        &self,
        device: &Device,
        stream: &Stream,
        blocks: u32,
        operands: &Operands<'_, T, O>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::One(instance) => instance.launch(device, stream, blocks, operands),
                Self::Two(passes) => passes.launch(device, stream, blocks, operands),
            }
        }
    }
}

/// The arguments of a kernel that reads x and w by their addresses: x, w, y, the epilogue and the parameters `P`.
type PointerArgs<T, O, P> = (
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    P,
);

/// The arguments of a portable kernel.
type PortableArgs<T, O> = (
    Global<<T as Element>::Device>,
    Global<<T as Element>::Device>,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    Parts,
    LinearParams,
);

/// Launches the portable kernel `K` of tile `S`.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_portable<T: Element, O: Element, K: Kernel<Args = PortableArgs<T, O>>, S: TileShape>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let &Operands { x, w, y, y_arg, m, n, k, parts, epilogue } = operands;
    let params = LinearParams {
        stride_x: row_stride(x),
        stride_w: row_stride(w),
        stride_y: row_stride(y),
        batch_x: batch_stride(x),
        batch_w: batch_stride(w),
        batch_y: batch_stride(y),
        m,
        n,
        k,
        reserved: 0,
    };
    let workspace = Workspace::new(stream, parts, blocks, S::BLOCK_M * S::BLOCK_N)?;
    let kernel = device.kernel::<K>()?;
    let args = (x.arg(), w.arg(), y_arg, epilogue, workspace.parts(), params);
    // SAFETY: the workspace is this launch's in the order of its stream; the rest of the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

/// Where the blocks that share a tile's sums meet.
struct Workspace {
    count: u32,
    /// `None` if no blocks share one.
    shared: Option<Scratch>,
}

impl Workspace {
    /// That of a launch of `blocks` blocks, of which each `count` share a tile of `elements` elements.
    fn new(stream: &Stream, count: u32, blocks: u32, elements: u32) -> Result<Self> {
        if count <= 1 {
            return Ok(Self { count: 1, shared: None });
        }
        let numbers = blocks as usize * elements as usize;
        Ok(Self { count, shared: Some(stream.scratch((blocks / count) as usize, numbers)?) })
    }

    fn parts(&self) -> Parts {
        self.shared.as_ref().map_or(Parts::WHOLE, |shared| {
            let (sums, arrived) = (shared.numbers(), shared.zeros());
            Parts { sums, arrived, count: self.count, ..Parts::WHOLE }
        })
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

/// Rows, and columns, of the boxes of operands that are contiguous along their rows.
const PANEL: usize = 64;

/// Elements from one row of matrices to the next.
///
/// A single row has no stride to speak of. Zero keeps the addresses of the rows that a tile has and the matrix lacks as
/// aligned as its own.
pub(super) fn row_stride<T: Element>(matrices: &Tensor<T>) -> u64 {
    if matrices.shape()[1] <= 1 { 0 } else { matrices.strides()[1] as u64 }
}

/// Elements from one matrix to the next; 0 for a single one.
pub(super) fn batch_stride<T: Element>(matrices: &Tensor<T>) -> u64 {
    if matrices.shape()[0] <= 1 { 0 } else { matrices.strides()[0] as u64 }
}

/// Whether matrices are contiguous along their rows rather than along K.
fn is_across<T: Element>(matrices: &Tensor<T>) -> bool {
    matrices.shape()[2] > 1 && matrices.strides()[2] != 1
}

/// The map of an operand, with boxes of `box_rows` rows and `columns` columns, or, if it is contiguous along its rows, with panels.
fn map_of<T: Element>(
    matrices: &Tensor<T>,
    box_rows: u32,
    columns: usize,
    options: &TensorMapOptions,
) -> Result<TensorMap> {
    if is_across(matrices) {
        matrices.swap_axes(1, 2)?.tensor_map([1, PANEL, PANEL], options)
    } else {
        matrices.tensor_map([1, box_rows as usize, columns], options)
    }
}

/// What the copy engine makes of inputs of a kernel for single products: the tensor cores would cut f32 off to TF32, so it rounds that.
fn rounded<T: Element>() -> Option<TensorType> {
    (T::DTYPE == DType::F32).then_some(TensorType::Tf32)
}

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

/// Which of x and w all products share.
pub(super) fn layouts<T: Element, O: Element>(operands: &Operands<'_, T, O>) -> Layouts {
    let batch = operands.y.shape()[0];
    let is_shared = |operand: &Tensor<T>| operand.shape()[0] == 1 && batch > 1;
    Layouts::K_MAJOR.with_shared_a(is_shared(operands.x)).with_shared_b(is_shared(operands.w))
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
    let parts = Dealt::whole::<T, O, S>(operands, blocks);
    // SAFETY: the caller's promise.
    unsafe { launch_hopper_parts::<T, O, K, S>(device, stream, blocks, operands, parts) }
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
    let sizes = [operands.m, operands.n, operands.y.shape()[0] as u32];
    let halves = halves_of::<S>(sizes, device.properties().multiprocessors);
    let positions = halves.whole.saturating_add(halves.pieces);
    let are_only = has_only_tiles(positions.saturating_mul(S::CLUSTER.into()), blocks);
    let whole = u32::try_from(halves.whole).unwrap_or(u32::MAX);
    let parts = Dealt { whole, narrow: halves.narrow, are_only };
    // SAFETY: the caller's promise.
    unsafe { launch_hopper_parts::<T, O, K, S>(device, stream, blocks, operands, parts) }
}

/// What a Hopper launch's tiles are computed as.
struct Dealt {
    /// [`HopperParams::whole`].
    whole: u32,
    /// [`HopperParams::narrow`].
    narrow: bool,
    /// Whether no block has more than one.
    are_only: bool,
}

impl Dealt {
    /// Whole tiles, of a launch on `blocks` blocks.
    fn whole<T: Element, O: Element, S: PersistentTile>(operands: &Operands<'_, T, O>, blocks: u32) -> Self {
        let tiles = tiles::<S>(operands.m, operands.n).saturating_mul(operands.y.shape()[0] as u64);
        Self { whole: u32::MAX, narrow: false, are_only: has_only_tiles(tiles, blocks) }
    }
}

/// Launches the Hopper kernel `K` of tile `S` for `parts` of it.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_hopper_parts<
    T: Element,
    O: Element,
    K: Kernel<Args = HopperArgs<T, O>>,
    S: PersistentTile,
>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
    parts: Dealt,
) -> Result<()> {
    let &Operands { y_arg, m, n, k, epilogue, .. } = operands;
    let launch = hopper_launch_of::<T, O, S>(operands, &parts)?;
    let kernel = device.kernel::<K>()?;
    let args = (launch.x, launch.w, launch.y_boxes, y_arg, epilogue, launch.params);
    let grid = [blocks, 1, 1];
    let row_bytes = u64::from(k) * size_of::<T>() as u64;
    // SAFETY: the maps are of matrices of `T`, with the boxes that the tile asks for; the rest is the caller's promise.
    unsafe {
        if is_early::<S>(row_bytes, [m, n], blocks, parts.are_only, device.properties().multiprocessors) {
            kernel.launch_early(stream, grid, args)
        } else {
            kernel.launch(stream, grid, args)
        }
    }
}

/// What a persistent launch of a product is told beside its epilogue.
pub(crate) struct HopperLaunch {
    pub(crate) x: TensorMap,
    pub(crate) w: TensorMap,
    pub(crate) y_boxes: TensorMap,
    pub(crate) params: HopperParams,
    /// Whether no block has more than one tile.
    pub(crate) are_only: bool,
}

/// What a launch on `blocks` blocks of tile `S`, all of whose tiles are whole, is told of `operands`.
pub(crate) fn hopper_launch<T: Element, O: Element, S: PersistentTile>(
    operands: &Operands<'_, T, O>,
    blocks: u32,
) -> Result<HopperLaunch> {
    hopper_launch_of::<T, O, S>(operands, &Dealt::whole::<T, O, S>(operands, blocks))
}

/// The map of a matrix that a persistent kernel of tile `S` reads along K, with boxes of `box_rows` rows.
pub(crate) fn hopper_map<T: Element, S: PersistentTile>(
    matrices: &Tensor<T>,
    box_rows: u32,
) -> Result<TensorMap> {
    let options = TensorMapOptions { swizzle: Swizzle::B128, ..TensorMapOptions::default() };
    matrices.tensor_map([1, box_rows as usize, S::ROW_BYTES as usize / size_of::<T>()], &options)
}

/// What a launch of tile `S` for `parts` of it is told of `operands`.
fn hopper_launch_of<T: Element, O: Element, S: PersistentTile>(
    operands: &Operands<'_, T, O>,
    parts: &Dealt,
) -> Result<HopperLaunch> {
    let &Operands { x, w, y, y_arg, m, n, k, parts: of_sums, epilogue } = operands;
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
        has_boxes: match (has_boxes, parts.are_only) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => HopperParams::LANES_STORE,
        },
        whole: parts.whole,
        narrow: parts.narrow.into(),
    };
    Ok(HopperLaunch { x, w, y_boxes, params, are_only: parts.are_only })
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
pub(crate) fn skinny_map<T: Element, S: SplitKTile>(
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

/// The arguments of a kernel for many rows of few columns.
type NarrowArgs<T, O> = PointerArgs<T, O, NarrowParams>;

/// Launches the kernel `K`, which is for many rows of few columns.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_narrow<T: Element, O: Element, K: Kernel<Args = NarrowArgs<T, O>>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let &Operands { x, w, y_arg, m, n, k, epilogue, .. } = operands;
    let [row_stride_w, column_stride_w] = [1, 2].map(|axis| w.strides()[axis] as u64);
    let params = NarrowParams { row_stride_w, column_stride_w, m, n, k, reserved: 0 };
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_early(stream, [blocks, 1, 1], (x.arg(), w.arg(), y_arg, epilogue, params)) }
}

/// The arguments of a kernel for operands that lie in any way.
type StridedArgs<T, O> = PointerArgs<T, O, StridedParams>;

/// Launches the kernel `K`, which is for operands that lie in any way.
///
/// # Safety
///
/// As [`Instance::launch`].
unsafe fn launch_strided<T: Element, O: Element, K: Kernel<Args = StridedArgs<T, O>>>(
    device: &Device,
    stream: &Stream,
    blocks: u32,
    operands: &Operands<'_, T, O>,
) -> Result<()> {
    let &Operands { x, w, y, y_arg, m, n, k, epilogue, .. } = operands;
    let [column_stride_x, column_stride_w] = [x, w].map(|operand| operand.strides()[2] as u64);
    let params = StridedParams {
        row_stride_x: row_stride(x),
        column_stride_x,
        batch_x: batch_stride(x),
        row_stride_w: row_stride(w),
        column_stride_w,
        batch_w: batch_stride(w),
        stride_y: row_stride(y),
        batch_y: batch_stride(y),
        m,
        n,
        k,
        reserved: 0,
    };
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_early(stream, [blocks, 1, 1], (x.arg(), w.arg(), y_arg, epilogue, params)) }
}
