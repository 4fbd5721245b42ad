//! Parts of a gradient, added up in fixed order.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::column_sums::{
    COLUMNS, ColumnSumsParams, MATRICES, column_sums as column_sums_kernel,
};

use super::rows::RowElement;
use crate::error::Result;
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// An element type of sums.
pub trait SumElement: RowElement {
    /// The kernel.
    #[doc(hidden)]
    type Sums: Kernel<Args = (ColumnSumsParams<Self::Device>,)>;
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

/// Adds up the columns of one or two matrices of parts `[P, N]` into vectors `[N]`, or onto what they hold. Matrices have the same shape, with elements and less
/// than 2³¹ rows and columns; all are apart.
pub(crate) fn column_sums<T: SumElement>(
    stream: &Stream,
    mut sums: [Option<(&Tensor<f32>, &mut Tensor<T>)>; MATRICES],
    adds: bool,
) -> Result<()> {
    let Some((first, _)) = sums.iter().flatten().next() else { return Ok(()) };
    let [rows, columns] = [first.shape()[0], first.shape()[1]];
    let (_, blocks) = launch_of::<T>(columns);
    let params = ColumnSumsParams {
        x: sums.each_ref().map(|sum| sum.as_ref().map_or(Global::new(0), |(parts, _)| parts.arg())),
        y: sums.each_mut().map(|sum| sum.as_mut().map_or(GlobalMut::new(0), |(_, to)| to.arg_mut())),
        rows: rows as u32,
        columns: columns as u32,
        adds: u32::from(adds),
        reserved: 0,
    };
    let kernel = stream.device().kernel::<T::Sums>()?;
    let mut operands: Vec<&dyn Operand> = Vec::new();
    for (parts, to) in sums.iter().flatten() {
        operands.push(*parts);
        operands.push(&**to);
    }
    let grid = [blocks, MATRICES as u32, 1];
    // SAFETY: the sizes are those of the tensors, which are apart; `with_operands` orders the work with their other uses.
    stream.with_operands(&operands, || unsafe { kernel.launch(stream, grid, (params,)) })
}
