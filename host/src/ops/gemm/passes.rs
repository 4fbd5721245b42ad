//! Products whose sums along K are split: a first launch computes the parts as f32 matrices, a second adds them and applies the epilogue.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::{Declaration, Global, GlobalMut, Kernel};
#[cfg(doc)]
use warpsmith_kernels::linear_sums::linear_sums;
use warpsmith_kernels::linear_sums::{SumsParams, WARP_COLUMNS, WARPS};

use super::launch::{Instance, Operands, batch_stride, row_stride};
use super::{Fused, Tile};
use crate::device::Device;
use crate::device::cuda::is_sanitized;
use crate::error::Result;
use crate::kernel::is_built;
use crate::stream::Stream;
use crate::tensor::{Element, Tensor};

/// The family of the second launch's kernels.
pub(crate) const SUMS: &str = "linear_sums";

/// Whether this program has the kernels that compute a problem in parts with a tile that can be: of an epilogue of its own it has the second one
/// itself.
pub(super) fn has_passes(tile: Tile, fused: Fused) -> bool {
    tile.has_passes() && is_built(if fused == Fused::Own { tile.family() } else { SUMS })
}

/// Columns of the parts that the second launch reads together.
const GROUP: u32 = 4;

/// The kernels of both launches.
#[doc(hidden)]
pub struct Passes<T: Element, O: Element> {
    /// Computes the parts.
    pub(crate) parts: Instance<T, f32>,
    /// Adds them.
    pub(crate) sums: Sums<T, O>,
}

impl<T: Element, O: Element> Passes<T, O> {
    /// Launches both, the first on `blocks` blocks, of operands whose K is that of a part.
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
        let &Operands { x, w, y, y_arg, m, n, k, parts, epilogue, joined } = operands;
        let batch = y.shape()[0] as u32;
        let total =
            Total { y_arg, strides: [row_stride(y), batch_stride(y)], sizes: [m, n, batch], epilogue };
        let (mut sums, columns) = parts_of(stream, [m, n, batch], parts)?;
        let y_arg = sums.arg_mut();
        let epilogue = LinearEpilogue::plain();
        let of_parts = Operands { x, w, y: &sums, y_arg, m, n: columns, k, parts, epilogue, joined };
        // SAFETY: the parts are this launch's own, in the order of the stream; the rest is the caller's promise.
        unsafe {
            self.parts.launch(device, stream, blocks, &of_parts)?;
            self.sums.launch(stream, &sums, parts, &total)
        }
    }
}

/// Memory for the parts of the sums of `batch` matrices of `m` × `n`, and how many columns these have there: whole groups. Rows of w that there are not
/// give columns of zeros.
pub(crate) fn parts_of(stream: &Stream, [m, n, batch]: [u32; 3], parts: u32) -> Result<(Tensor<f32>, u32)> {
    let columns = n.next_multiple_of(GROUP);
    let shape = [batch as usize * parts as usize, m as usize, columns as usize];
    Ok((between_launches(stream, shape)?, columns))
}

/// A new tensor that a launch writes and another one reads. It begins as zeros under compute-sanitizer: `initcheck` does not see what the copy engine stores, and takes a
/// copy of 16 bytes with a short source for a read of what is behind it.
pub(crate) fn between_launches<T: Element>(stream: &Stream, shape: impl AsRef<[usize]>) -> Result<Tensor<T>> {
    if is_sanitized() { Tensor::zeros_on(stream, shape) } else { Tensor::uninit_on(stream, shape) }
}

/// Where sums go that are in parts.
pub(crate) struct Total<T: Element, O: Element> {
    /// The place of y.
    pub(crate) y_arg: GlobalMut<O::Device>,
    /// Elements of y from one row to the next, and from one matrix to the next.
    pub(crate) strides: [u64; 2],
    /// Rows, columns and matrices of y.
    pub(crate) sizes: [u32; 3],
    /// What is done to the sums.
    pub(crate) epilogue: LinearEpilogue<T::Device, O::Device>,
}

/// The kernel of the second launch, with a bias of type `T`.
#[doc(hidden)]
pub struct Sums<T: Element, O: Element> {
    pub(crate) declaration: Declaration,
    launch: LaunchSums<T, O>,
}

/// The arguments of [`linear_sums`].
type SumsArgs<T, O> = (
    Global<f32>,
    GlobalMut<<O as Element>::Device>,
    LinearEpilogue<<T as Element>::Device, <O as Element>::Device>,
    SumsParams,
);

type LaunchSums<T, O> = unsafe fn(&Stream, &Tensor<f32>, u32, &Total<T, O>) -> Result<()>;

/// The blocks of the second launch: a warp for each group of columns of each row.
pub(crate) fn sums_blocks([m, n, batch]: [u32; 3]) -> u64 {
    let rows = u64::from(m).saturating_mul(batch.into());
    rows.saturating_mul(n.div_ceil(WARP_COLUMNS).into()).div_ceil(WARPS.into())
}

impl<T: Element, O: Element> Sums<T, O> {
    pub(crate) fn new<K: Kernel<Args = SumsArgs<T, O>>>() -> Self {
        Self { declaration: K::DECLARATION, launch: launch_sums::<T, O, K> }
    }

    /// Adds `parts` parts of each matrix.
    ///
    /// # Safety
    ///
    /// The output is valid for what [`linear_sums`] does with it, the parts are [as many](parts_of) as it says, and all live until the stream's work is done.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        sums: &Tensor<f32>,
        parts: u32,
        total: &Total<T, O>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { (self.launch)(stream, sums, parts, total) }
    }
}

/// Launches the kernel `K`.
///
/// # Safety
///
/// As [`Sums::launch`].
unsafe fn launch_sums<T: Element, O: Element, K: Kernel<Args = SumsArgs<T, O>>>(
    stream: &Stream,
    sums: &Tensor<f32>,
    parts: u32,
    total: &Total<T, O>,
) -> Result<()> {
    let &Total { y_arg, strides: [stride_y, batch_y], sizes: [m, n, batch], epilogue } = total;
    let (grid, params) = of_sums(sums, [stride_y, batch_y], [m, n, batch], parts);
    let kernel = stream.device().kernel::<K>()?;
    // SAFETY: the parts are contiguous rows of whole groups of columns; the rest is the caller's promise.
    unsafe { kernel.launch_early(stream, grid, (sums.arg(), y_arg, epilogue, params)) }
}

/// The blocks of the second launch, and what it is told, for an output with these strides from row to row and from matrix to matrix.
fn of_sums(
    sums: &Tensor<f32>,
    [stride_y, batch_y]: [u64; 2],
    [m, n, batch]: [u32; 3],
    parts: u32,
) -> ([u32; 3], SumsParams) {
    let (stride, part) = (sums.strides()[1] as u64, sums.strides()[0] as u64);
    // As the plan has checked, it is a number of 32 bits.
    let blocks = sums_blocks([m, n, batch]) as u32;
    ([blocks, 1, 1], SumsParams { stride, part, stride_y, batch_y, m, n, batch, parts })
}

/// The same for an output `y`.
pub(super) fn sums_params<O: Element>(
    sums: &Tensor<f32>,
    y: &Tensor<O>,
    sizes: [u32; 3],
    parts: u32,
) -> ([u32; 3], SumsParams) {
    of_sums(sums, [row_stride(y), batch_stride(y)], sizes, parts)
}
