//! How the kernels of the linear families are launched: what each is told of the operands, and when its launch begins.

mod early;
mod f32;
pub(crate) mod fp8;
mod joined;
pub(crate) mod own;
mod persistent;
mod pointers;
mod skinny;

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::gemm::Layouts;
use warpsmith_dsl::launch::{Declaration, GlobalMut, TensorMap};
#[cfg(doc)]
use warpsmith_kernels::{
    linear::linear, linear_dots::linear_dots_f32_f32_8x2, linear_hopper::linear_hopper,
    linear_narrow::linear_narrow, linear_skinny::linear_skinny, linear_strided::linear_strided,
};

pub(crate) use early::{has_only_tiles, is_early, tiles};
pub(crate) use skinny::skinny_launch;

use super::passes::Passes;
use super::plan::{self, Plan};
use super::{LinearInput, LinearTypes, Tile};
use crate::cpu::FromAccumulator;
use crate::device::Device;
use crate::error::Result;
use crate::ops::Implementation;
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor, TensorMapOptions, TensorType};

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
    /// A second pair of operands, in which the sums go on: `[1, M, R]` and `[1, N, R]`, rows at multiples of 16 bytes. Only kernels for it read it.
    pub(crate) joined: Option<[&'a Tensor<T>; 2]>,
}

/// A kernel and how it is launched.
#[doc(hidden)]
pub struct Instance<T: Element, O: Element> {
    pub(crate) declaration: Declaration,
    pub(super) launch: Launch<T, O>,
}

pub(super) type Launch<T, O> = unsafe fn(&Device, &Stream, u32, &Operands<'_, T, O>) -> Result<()>;

impl<T: Element, O: Element> Instance<T, O> {
    /// Launches the kernel on `blocks` blocks, loading it if this is its first use on the device.
    ///
    /// # Safety
    ///
    /// The operands are valid for what [`linear`], [`linear_hopper`], [`linear_skinny`], [`linear_narrow`], [`linear_dots`](linear_dots_f32_f32_8x2) or [`linear_strided`] does with them,
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
        let (first, sums) = self.names();
        plan.implementation(device, first, sums)
    }
}

impl<T: LinearInput> Kernels<T, T> {
    /// Those of a variant whose sums go on in a second pair of operands, `parts` of each sum; `None` if there are none.
    pub(crate) fn joined(tile: Tile, parts: u32) -> Option<Self> {
        if parts > 1 {
            let passes = <T as LinearTypes<T>>::passes(tile)?;
            Some(Self::Two(Passes { parts: <T as LinearTypes<f32>>::joined(tile)?, ..passes }))
        } else {
            <T as LinearTypes<T>>::joined(tile).map(Self::One)
        }
    }
}

impl<T: Element, O: Element> Kernels<T, O> {
    /// The names of the kernels: of the first launch, and of one that adds parts.
    pub(crate) fn names(&self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::One(instance) => (instance.declaration.name, None),
            Self::Two(Passes { parts, sums }) => (parts.declaration.name, Some(sums.declaration.name)),
        }
    }

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

/// Which of x and w all products share.
pub(super) fn layouts<T: Element, O: Element>(operands: &Operands<'_, T, O>) -> Layouts {
    let batch = operands.y.shape()[0];
    let is_shared = |operand: &Tensor<T>| operand.shape()[0] == 1 && batch > 1;
    Layouts::K_MAJOR.with_shared_a(is_shared(operands.x)).with_shared_b(is_shared(operands.w))
}
