//! How the kernels are launched that read x and w by their addresses: the portable ones, that for many rows of few columns and that for any strides.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::TileShape;
use warpsmith_dsl::gemm::parts::Parts;
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::linear::LinearParams;
use warpsmith_kernels::linear_narrow::NarrowParams;
use warpsmith_kernels::linear_strided::StridedParams;

use super::{Instance, Operands, batch_stride, row_stride};
use crate::device::Device;
use crate::error::Result;
use crate::stream::{Scratch, Stream};
use crate::tensor::Element;

impl<T: Element, O: Element> Instance<T, O> {
    pub(in crate::ops::gemm) fn portable<K: Kernel<Args = PortableArgs<T, O>>, S: TileShape>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_portable::<T, O, K, S> }
    }

    pub(in crate::ops::gemm) fn narrow<K: Kernel<Args = NarrowArgs<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_narrow::<T, O, K> }
    }

    pub(in crate::ops::gemm) fn strided<K: Kernel<Args = StridedArgs<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_strided::<T, O, K> }
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
    let &Operands { x, w, y_arg, parts, epilogue, .. } = operands;
    let workspace = Workspace::new(stream, parts, blocks, S::BLOCK_M * S::BLOCK_N)?;
    let kernel = device.kernel::<K>()?;
    let args = (x.arg(), w.arg(), y_arg, epilogue, workspace.parts(), linear_params(operands));
    // SAFETY: the workspace is this launch's in the order of its stream; the rest of the caller's promise is the kernel's.
    unsafe { kernel.launch(stream, [blocks, 1, 1], args) }
}

/// What a portable kernel is told of its operands.
pub(super) fn linear_params<T: Element, O: Element>(operands: &Operands<'_, T, O>) -> LinearParams {
    let &Operands { x, w, y, m, n, k, .. } = operands;
    LinearParams {
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
    }
}

/// Where the blocks that share a tile's sums meet.
pub(super) struct Workspace {
    count: u32,
    /// `None` if no blocks share one.
    shared: Option<Scratch>,
}

impl Workspace {
    /// That of a launch of `blocks` blocks, of which each `count` share a tile of `elements` elements.
    pub(super) fn new(stream: &Stream, count: u32, blocks: u32, elements: u32) -> Result<Self> {
        if count <= 1 {
            return Ok(Self { count: 1, shared: None });
        }
        let numbers = blocks as usize * elements as usize;
        Ok(Self { count, shared: Some(stream.scratch((blocks / count) as usize, numbers)?) })
    }

    pub(super) fn parts(&self) -> Parts {
        self.shared.as_ref().map_or(Parts::WHOLE, |shared| {
            let (sums, arrived) = (shared.numbers(), shared.zeros());
            Parts { sums, arrived, count: self.count, ..Parts::WHOLE }
        })
    }
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
    // Each warp goes from tile to tile, also where a block has few of them.
    let blocks = stream.persistent_blocks(blocks, u64::MAX, |multiprocessors| multiprocessors);
    let kernel = device.kernel::<K>()?;
    // SAFETY: the caller's promise is the kernel's.
    unsafe { kernel.launch_early(stream, [blocks, 1, 1], (x.arg(), w.arg(), y_arg, epilogue, params)) }
}

/// The arguments of a kernel for operands with any strides.
type StridedArgs<T, O> = PointerArgs<T, O, StridedParams>;

/// Launches the kernel `K`, which is for operands with any strides.
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
