//! Parts of a gradient, added up in fixed order.

use half::{bf16, f16};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::column_sums::{
    COLUMNS, ColumnSumsParams, MATRICES, column_sums as column_sums_kernel,
};

use std::ops::Range;

use super::SIDE_LIMIT;
use super::rows::RowElement;
use crate::error::{Error, Result};
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

/// Adds up the columns of one or two matrices of parts `[P, N]` into vectors `[N]`, or onto what they hold. Matrices have the same shape; all are apart.
///
/// A launch takes less than 2³¹ rows. Of more, sums are rounded to their type after each launch.
pub(crate) fn column_sums<T: SumElement>(
    stream: &Stream,
    sums: [Option<(&Tensor<f32>, &mut Tensor<T>)>; MATRICES],
    adds: bool,
) -> Result<()> {
    in_pieces(stream, sums, adds, SIDE_LIMIT - 1)
}

/// The rows of each launch, of which one takes `most`.
fn pieces(rows: usize, most: u64) -> impl Iterator<Item = Range<usize>> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    (0..rows.div_ceil(most)).map(move |piece| piece * most..rows.min((piece + 1).saturating_mul(most)))
}

fn in_pieces<T: SumElement>(
    stream: &Stream,
    mut sums: [Option<(&Tensor<f32>, &mut Tensor<T>)>; MATRICES],
    adds: bool,
    most: u64,
) -> Result<()> {
    let Some((first, _)) = sums.iter().flatten().next() else { return Ok(()) };
    let [rows, columns] = [first.shape()[0], first.shape()[1]];
    if columns as u64 >= SIDE_LIMIT {
        return Err(Error::SizeLimit {
            operation: "column_sums",
            operand: "parts",
            quantity: "number of columns",
            limit: format!("less than {SIDE_LIMIT}"),
            actual: columns.to_string(),
        });
    }
    if rows == 0 && !adds {
        // The sum over no rows, for which there is nothing to launch.
        return sums.into_iter().flatten().try_for_each(|(_, to)| {
            let zeros = Tensor::zeros_on(stream, to.shape())?;
            to.copy_from_on(&zeros, stream)
        });
    }
    for piece in pieces(rows, most) {
        let adds = adds || piece.start > 0;
        let parts = |sum: &Option<(&Tensor<f32>, _)>| {
            sum.as_ref().map(|(parts, _)| parts.slice(0, piece.clone())).transpose()
        };
        let [one, two] = [parts(&sums[0])?, parts(&sums[1])?];
        let [to_one, to_two] = sums.each_mut().map(|sum| sum.as_mut().map(|(_, to)| &mut **to));
        launch(stream, [one.as_ref().zip(to_one), two.as_ref().zip(to_two)], adds)?;
    }
    Ok(())
}

/// One launch, for matrices of less than 2³¹ rows and columns.
fn launch<T: SumElement>(
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
    stream.with_operands(&operands, || unsafe { kernel.launch_early(stream, grid, (params,)) })
}

#[cfg(test)]
mod tests {
    use super::{SIDE_LIMIT, column_sums, in_pieces, pieces};
    use crate::{Device, Error, Tensor, ops};

    #[test]
    fn launches_have_all_rows_once_and_count_them_in_32_bits() {
        let limit = SIDE_LIMIT as usize;
        for rows in [0, 1, limit - 1, limit, 2 * limit - 2, 2 * limit - 1, 2 * limit, 2 * limit + 5, 1 << 40]
        {
            let mut next = 0;
            for piece in pieces(rows, SIDE_LIMIT - 1) {
                assert_eq!(piece.start, next, "{rows}");
                assert!((1..limit).contains(&piece.len()), "{rows}: {piece:?}");
                next = piece.end;
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn sums_of_several_launches_are_those_of_one() {
        let device = Device::emulator();
        let stream = device.default_stream();
        let (rows, columns) = (13, 35);
        // Whole numbers, whose sums are exact.
        let numbers: Vec<f32> = (0..rows * columns).map(|at| (at * 37 % 101) as f32 - 50.0).collect();
        let parts = Tensor::from_slice(&device, &numbers, [rows, columns]).expect("it fits");
        let sum = |column: usize| (0..rows).map(|row| numbers[row * columns + column]).sum::<f32>();
        for most in [1, 4, 12, 13, 100] {
            for adds in [false, true] {
                let before = if adds { 3.0 } else { f32::NAN };
                let new = || Tensor::from_slice(&device, &vec![before; columns], [columns]).expect("it fits");
                let (mut one, mut two) = (new(), new());
                let sums = [Some((&parts, &mut one)), Some((&parts, &mut two))];
                in_pieces(&stream, sums, adds, most).expect("it runs");
                let expected: Vec<f32> =
                    (0..columns).map(|column| sum(column) + if adds { before } else { 0.0 }).collect();
                assert_eq!(
                    [one, two].map(|sums| sums.to_vec().expect("it is read")),
                    [(); 2].map(|()| expected.clone())
                );
            }
        }
    }

    #[test]
    fn no_rows_add_up_to_zeros() {
        for device in [Device::emulator(), "emulator:9.0".parse().expect("a device")] {
            let stream = device.default_stream();
            let parts = Tensor::<f32>::zeros(&device, [0, 5]).expect("it has no elements");
            for (adds, expected) in [(false, 0.0), (true, 7.0)] {
                let mut sums = Tensor::from_slice(&device, &[7.0f32; 5], [5]).expect("it fits");
                column_sums(&stream, [Some((&parts, &mut sums)), None], adds).expect("it runs");
                assert_eq!(sums.to_vec().expect("it is read"), [expected; 5]);
            }
        }
    }

    #[test]
    fn rows_that_32_bits_do_not_count_are_refused() {
        // They have no elements, and so need no memory.
        for device in [Device::cpu(), Device::emulator()] {
            for rows in [SIDE_LIMIT as usize, 1 << 32, (1 << 32) + 7] {
                let empty = |shape| Tensor::<f32>::zeros(&device, shape).expect("it has no elements");
                let (x, w, dy) = (empty([rows, 0]), empty([0, 0]), empty([rows, 0]));
                let error = ops::linear_backward(&x, &w, &dy).run().expect_err("there are too many rows");
                let Error::SizeLimit { quantity, actual, .. } = &error else { panic!("{error}") };
                assert_eq!((*quantity, actual), ("number of rows", &rows.to_string()));
            }
        }
    }
}
