//! Parts of a gradient, added up in fixed order.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::column_sums::{COLUMNS, column_sums as column_sums_kernel};

use super::rows::RowElement;
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// An element type of sums.
pub trait SumElement: RowElement {
    /// The kernel.
    #[doc(hidden)]
    type Sums: Kernel<Args = (Global<f32>, Global<Self::Device>, GlobalMut<Self::Device>, u32, u32)>;
}

impl SumElement for f16 {
    type Sums = column_sums_kernel<F16>;
}
impl SumElement for bf16 {
    type Sums = column_sums_kernel<Bf16>;
}
impl SumElement for f32 {
    type Sums = column_sums_kernel<f32>;
}

/// The kernel's name, and its blocks for so many columns.
pub(crate) fn launch_of<T: SumElement>(columns: usize) -> (&'static str, u32) {
    (T::Sums::DECLARATION.name, (columns as u64).div_ceil(u64::from(COLUMNS)) as u32)
}

/// Adds up the columns of `parts` `[P, N]` into `to` `[N]`, or onto what it holds. Both have elements, less than 2³¹ rows and columns, and are apart.
pub(crate) fn column_sums<T: SumElement>(
    stream: &Stream,
    parts: &Tensor<f32>,
    to: &mut Tensor<T>,
    adds: bool,
) -> Result<()> {
    let [rows, columns] = [parts.shape()[0], parts.shape()[1]];
    let (_, blocks) = launch_of::<T>(columns);
    let before = if adds { to.arg() } else { Global::new(0) };
    let arguments = (parts.arg(), before, to.arg_mut(), rows as u32, columns as u32);
    let kernel = stream.device().kernel::<T::Sums>()?;
    // SAFETY: the sizes are those of the tensors, which are apart; `with_operands` orders the work with their other uses.
    stream.with_operands(&[parts, to], || unsafe { kernel.launch(stream, [blocks, 1, 1], arguments) })
}
