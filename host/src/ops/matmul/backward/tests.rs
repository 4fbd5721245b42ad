//! Gradients of products against their definitions in f64, drawn: every layout, and operands that serve several matrices; what is refused; edges.

use half::{bf16, f16};
use ndarray::{ArrayD, Axis, IxDyn};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::MatmulGradientOutputs;
use crate::cpu::FromAccumulator;
use crate::error::{Error, Result};
use crate::ops::elementwise::tests::Rounding;
use crate::ops::linear::backward::tests::{Near, drawn, near, product, sums_error};
use crate::ops::linear::{LinearInput, LinearTypes};
use crate::ops::rows::{rounded, widened};
use crate::ops::{self, Implementation};
use crate::{Device, Tensor};

/// The leading axes of a, of b, and of the product.
type Leading = (&'static [usize], &'static [usize], &'static [usize]);

const LEADING: [Leading; 12] = [
    (&[], &[], &[]),
    (&[3], &[3], &[3]),
    (&[3], &[], &[3]),
    (&[], &[3], &[3]),
    (&[1], &[4], &[4]),
    (&[1], &[], &[1]),
    (&[2, 3], &[3], &[2, 3]),
    (&[3], &[2, 3], &[2, 3]),
    (&[2, 1], &[1, 3], &[2, 3]),
    (&[2, 3], &[2, 1], &[2, 3]),
    (&[2, 1, 2], &[2, 3, 1], &[2, 3, 2]),
    (&[0], &[], &[0]),
];

/// The layout of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Dense,
    Across,
    Wide(usize),
    /// The last leading axis, if there is one, after the rows.
    RowsFirst,
}

#[derive(Clone, Debug)]
struct Drawn {
    leading: Leading,
    sizes: [usize; 3],
    transpose: [bool; 2],
    lies: [Lies; 3],
    alpha: f32,
    adds: [bool; 2],
    seed: u64,
}

fn cases() -> impl Strategy<Value = Drawn> {
    let size = prop_oneof![4 => 1usize..34, 1 => prop::sample::select(vec![0usize, 8, 40, 64])];
    let lies =
        prop::sample::select(vec![Lies::Dense, Lies::Across, Lies::Wide(8), Lies::Wide(3), Lies::RowsFirst]);
    let lies = prop_oneof![1 => Just([Lies::Dense; 3]), 2 => prop::array::uniform3(lies)];
    let factor = prop::sample::select(vec![1.0f32, -0.5]);
    let sizes = prop::array::uniform3(size);
    (
        prop::sample::select(LEADING.to_vec()),
        sizes,
        any::<[bool; 2]>(),
        lies,
        factor,
        any::<[bool; 2]>(),
        any::<u64>(),
    )
        .prop_map(|(leading, sizes, transpose, lies, alpha, adds, seed)| Drawn {
            leading,
            sizes,
            transpose,
            lies,
            alpha,
            adds,
            seed,
        })
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

/// A tensor with the layout that is asked for and holds these numbers in the order of its axes.
fn placed<T: Rounding>(device: &Device, numbers: &[f32], shape: &[usize], lies: Lies) -> Result<Tensor<T>> {
    let rank = shape.len();
    let swapped = |first: usize, second: usize| {
        let mut stored = shape.to_vec();
        stored.swap(first, second);
        Tensor::zeros(device, stored)?.swap_axes(first, second)
    };
    let mut view = match lies {
        Lies::Across => swapped(rank - 2, rank - 1)?,
        Lies::RowsFirst if rank > 2 => swapped(rank - 3, rank - 2)?,
        Lies::Dense | Lies::RowsFirst => Tensor::zeros(device, shape)?,
        Lies::Wide(by) => {
            let mut wide = shape.to_vec();
            wide[rank - 1] += 2 * by;
            Tensor::zeros(device, wide)?.slice(rank - 1, by..by + shape[rank - 1])?
        }
    };
    view.write_slice(&rounded::<T>(numbers))?;
    Ok(view)
}

/// Numbers as an array, broadcast to leading axes.
fn array(numbers: &[f32], shape: &[usize], leading: &[usize]) -> ArrayD<f64> {
    let numbers = numbers.iter().map(|&number| f64::from(number)).collect();
    let array = ArrayD::from_shape_vec(IxDyn(shape), numbers).expect("as many");
    let full = [leading, &shape[shape.len() - 2..]].concat();
    array.broadcast(IxDyn(&full)).expect("they broadcast").to_owned()
}

/// The gradient of an operand of shape `own`, matrices from those of `left` and `right`, `[.., rows, sums]` and `[.., columns, sums]`.
fn definition(
    [left, right]: [&ArrayD<f64>; 2],
    (own, before, leading): (&[usize], &[f32], &[usize]),
    alpha: f32,
    error: f64,
) -> Vec<Near> {
    let rank = leading.len();
    let [rows, columns] = [own[own.len() - 2], own[own.len() - 1]];
    let of_own = &own[..own.len() - 2];
    let missing = rank - of_own.len();
    let mut pairs: Vec<Vec<(Near, f64)>> = vec![Vec::new(); before.len()];
    for (index, _) in ArrayD::<u8>::zeros(IxDyn(leading)).indexed_iter() {
        let (mut left, mut right) = (left.view(), right.view());
        let mut place = 0;
        for axis in 0..rank {
            left = left.index_axis_move(Axis(0), index[axis]);
            right = right.index_axis_move(Axis(0), index[axis]);
            if axis >= missing {
                let length = of_own[axis - missing];
                place = place * length + if length == 1 { 0 } else { index[axis] };
            }
        }
        for row in 0..rows {
            for column in 0..columns {
                let at = (place * rows + row) * columns + column;
                for sum in 0..left.shape()[1] {
                    let exact = left[[row, sum]];
                    pairs[at].push((Near { exact, error: 0.0 }, right[[column, sum]]));
                }
            }
        }
    }
    let of = |(pairs, before): (Vec<(Near, f64)>, &f32)| {
        product(pairs.into_iter(), alpha, error, f64::from(*before))
    };
    pairs.into_iter().zip(before).map(of).collect()
}

fn check<T, Y>(device: &Device, case: &Drawn) -> Result<(), TestCaseError>
where
    T: LinearInput + LinearTypes<Y> + Rounding,
    Y: FromAccumulator<f32> + Rounding,
{
    let Drawn { leading: (of_a, of_b, leading), sizes: [m, n, k], transpose, lies, alpha, adds, seed } =
        case.clone();
    let stored = |leading: &[usize], rows: usize, columns: usize, across: bool| {
        let matrix = if across { [columns, rows] } else { [rows, columns] };
        [leading, &matrix].concat()
    };
    let shapes =
        [stored(of_a, m, k, transpose[0]), stored(of_b, k, n, transpose[1]), stored(leading, m, n, false)];
    let numbers = [0, 1, 2].map(|at| drawn::<T>(seed ^ at as u64, shapes[at].iter().product()));
    let put = |at: usize| placed::<T>(device, &numbers[at], &shapes[at], lies[at]).map_err(fail);
    let (a, b, dy) = (put(0)?, put(1)?, put(2)?);
    let before = |at: usize| -> Vec<f32> {
        let count = numbers[at].len();
        if adds[at] { drawn::<Y>(seed ^ (7 + at as u64), count) } else { vec![f32::NAN; count] }
    };
    let (a0, b0) = (before(0), before(1));
    // Gradients lie among others, too.
    let of_result = |lies: Lies| if matches!(lies, Lies::Wide(_)) { lies } else { Lies::Dense };
    let mut da = placed::<Y>(device, &a0, &shapes[0], of_result(lies[1])).map_err(fail)?;
    let mut db = placed::<Y>(device, &b0, &shapes[1], of_result(lies[2])).map_err(fail)?;
    let operation = ops::matmul_backward(&a, &b, &dy).alpha(alpha);
    let operation = if transpose[0] { operation.transpose_a() } else { operation };
    let operation = if transpose[1] { operation.transpose_b() } else { operation };
    operation.run_into(MatmulGradientOutputs { da: Some(&mut da), db: Some(&mut db), adds }).map_err(fail)?;
    operation.implementation().map_err(fail)?;

    let [rank, last] = [leading.len(), leading.len() + 1];
    let full = |at: usize| array(&numbers[at], &shapes[at], leading);
    let across = |mut array: ArrayD<f64>| {
        array.swap_axes(rank, last);
        array
    };
    // A as [M, K], B as [K, N].
    let a = if transpose[0] { across(full(0)) } else { full(0) };
    let b = if transpose[1] { across(full(1)) } else { full(1) };
    let (dy, dy_across, a_across) = (full(2), across(full(2)), across(a));
    let zeros = |adds: bool, before: &[f32]| if adds { before.to_vec() } else { vec![0.0; before.len()] };
    let matrices: usize = leading.iter().product();
    let of_da = if transpose[0] { [&b, &dy] } else { [&dy, &b] };
    let error = sums_error::<T>(device, (n + 16) * matrices.max(1));
    let expected = definition(of_da, (&shapes[0], &zeros(adds[0], &a0), leading), alpha, error);
    near::<Y>(&widened(&da).map_err(fail)?, &expected, "da")?;
    let of_db = if transpose[1] { [&dy_across, &a_across] } else { [&a_across, &dy_across] };
    let error = sums_error::<T>(device, (m + 16) * matrices.max(1));
    let expected = definition(of_db, (&shapes[1], &zeros(adds[1], &b0), leading), alpha, error);
    near::<Y>(&widened(&db).map_err(fail)?, &expected, "db")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn kernels_compute_what_the_definitions_say(case in cases()) {
        let device: Device = ["emulator:9.0", "emulator:8.0"][case.seed as usize % 2].parse().expect("a device");
        check::<f16, f16>(&device, &case)?;
        check::<bf16, f32>(&device, &case)?;
        check::<f32, f32>(&device, &case)?;
    }

    #[test]
    fn the_cpu_computes_what_the_definitions_say(case in cases()) {
        check::<f16, f32>(&Device::cpu(), &case)?;
        check::<bf16, bf16>(&Device::cpu(), &case)?;
        check::<f32, f32>(&Device::cpu(), &case)?;
    }
}

fn tensor<T: Rounding>(device: &Device, shape: &[usize]) -> Tensor<T> {
    let numbers = rounded::<T>(&drawn::<T>(5, shape.iter().product()));
    Tensor::from_slice(device, &numbers, shape).expect("it fits")
}

/// The gradient of weights that serve a batch is one product of what is there.
#[test]
fn sums_over_matrices_are_one_product() {
    let device: Device = "emulator:9.0".parse().expect("a device");
    let (a, b, dy) = (
        tensor::<bf16>(&device, &[6, 8, 16]),
        tensor::<bf16>(&device, &[16, 24]),
        tensor::<bf16>(&device, &[6, 8, 24]),
    );
    let implementation = ops::matmul_backward(&a, &b, &dy).implementation().expect("it is known");
    assert_eq!(implementation.copies(), 0, "{implementation}");
    assert_eq!(implementation.launches().len(), 2, "{implementation}");
    // The other operand's rows and dY's have to be copied to be side by side.
    let (a, b, dy) = (
        tensor::<bf16>(&device, &[8, 16]),
        tensor::<bf16>(&device, &[6, 16, 24]),
        tensor::<bf16>(&device, &[6, 8, 24]),
    );
    let implementation = ops::matmul_backward(&a, &b, &dy).implementation().expect("it is known");
    assert_eq!(implementation.copies(), 2, "{implementation}");
    let cpu = Device::cpu();
    let (a, b, dy) =
        (tensor::<bf16>(&cpu, &[8, 16]), tensor::<bf16>(&cpu, &[16, 24]), tensor::<bf16>(&cpu, &[8, 24]));
    assert_eq!(ops::matmul_backward(&a, &b, &dy).implementation().expect("it is known"), Implementation::Cpu);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (device, other) = (Device::cpu(), Device::emulator());
    let (a, b, dy) = (tensor(&device, &[2, 3, 4]), tensor(&device, &[4, 5]), tensor(&device, &[2, 3, 5]));
    let operand_of = |result: Result<super::MatmulGradients<f32>>| match result.map(drop) {
        Err(Error::Shape { operation: "matmul_backward", operand, .. }) => operand,
        other => panic!("{other:?}"),
    };
    assert_eq!(operand_of(ops::matmul_backward(&tensor(&device, &[4]), &b, &dy).run()), "a");
    assert_eq!(operand_of(ops::matmul_backward(&a, &tensor(&device, &[4]), &dy).run()), "b");
    assert_eq!(operand_of(ops::matmul_backward(&a, &tensor(&device, &[3, 5]), &dy).run()), "b");
    assert_eq!(operand_of(ops::matmul_backward(&a, &tensor(&device, &[3, 4, 5]), &dy).run()), "b");
    assert_eq!(operand_of(ops::matmul_backward(&a, &b, &tensor(&device, &[3, 5])).run()), "dy");
    assert_eq!(operand_of(ops::matmul_backward(&a, &b, &dy).transpose_a().run()), "b");
    let elsewhere = ops::matmul_backward(&a, &b, &tensor(&other, &[2, 3, 5])).run();
    assert!(matches!(elsewhere, Err(Error::DeviceMismatch { operand: "dy", .. })), "{elsewhere:?}");

    let backward = ops::matmul_backward(&a, &b, &dy);
    type Outputs<'o> = MatmulGradientOutputs<'o, f32, f32>;
    let mut wrong = tensor(&device, &[5, 4]);
    let result = backward.run_into(Outputs { db: Some(&mut wrong), ..Default::default() });
    assert!(matches!(result, Err(Error::Shape { operand: "db", .. })), "{result:?}");
    let mut across = wrong.swap_axes(0, 1).expect("two axes");
    let result = backward.run_into(Outputs { db: Some(&mut across), ..Default::default() });
    assert!(matches!(result, Err(Error::Stride { operand: "db", .. })), "{result:?}");
    let mut over_a = a.clone();
    let result = backward.run_into(Outputs { da: Some(&mut over_a), ..Default::default() });
    assert!(matches!(result, Err(Error::Overlap { operand: "da", other: "a", .. })), "{result:?}");
    let both = tensor(&device, &[24]);
    let mut da = both.reshape([2, 3, 4]).expect("as many");
    let mut db = both.slice(0, 0..20).and_then(|some| some.reshape([4, 5])).expect("as many");
    let result = backward.run_into(Outputs { da: Some(&mut da), db: Some(&mut db), adds: [false; 2] });
    assert!(matches!(result, Err(Error::Overlap { operand: "db", other: "da", .. })), "{result:?}");
}
