//! Tensor parallelism: layers that are split, beside whole ones.

use half::bf16;
use warpsmith::layers::Linear;
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::launch;
use warpsmith_parallel::ranges::block_range;
use warpsmith_parallel::tensor::{ColumnLinear, RowLinear};
use warpsmith_parallel::{Communicator, Result};

use crate::support::{F32_UNIT, LIMIT, Matrix, Random, expect_close};

/// M, K, hidden columns, N.
const SHAPES: [[usize; 4]; 5] = [[0, 3, 4, 2], [1, 3, 5, 2], [9, 8, 13, 7], [16, 4, 8, 8], [2, 1, 3, 1]];

/// A multilayer perceptron and what goes through it.
struct Case {
    x: Matrix,
    up: Matrix,
    up_bias: Vec<f32>,
    down: Matrix,
    down_bias: Vec<f32>,
    dy: Matrix,
}

impl Case {
    fn new([m, k, hidden, n]: [usize; 4], mut numbers: impl FnMut(usize) -> Vec<f32>) -> Self {
        Self {
            x: Matrix::new(m, k, numbers(m * k)),
            up: Matrix::new(hidden, k, numbers(hidden * k)),
            up_bias: numbers(hidden),
            down: Matrix::new(n, hidden, numbers(n * hidden)),
            down_bias: numbers(n),
            dy: Matrix::new(m, n, numbers(m * n)),
        }
    }
}

/// Output, gradient of x, and of both weights and biases, all of them whole.
type Results = [Vec<f32>; 6];

fn bias(device: &Device, numbers: &[f32]) -> Result<Tensor<f32>> {
    Ok(Tensor::from_slice(device, numbers, [numbers.len()])?)
}

/// What whole layers give.
fn whole(device: &Device, case: &Case) -> Result<Results> {
    let up = Linear::new(case.up.tensor(device), Some(bias(device, &case.up_bias)?), Activation::Relu)?;
    let down = Linear::new(case.down.tensor(device), Some(bias(device, &case.down_bias)?), Activation::None)?;
    let (hidden, saved_up) = up.forward_train(&case.x.tensor(device))?;
    let (y, saved_down) = down.forward_train(&hidden)?;
    let of_down = down.backward(&saved_down, &case.dy.tensor(device))?;
    let of_up = up.backward(&saved_up, &of_down.dx)?;
    let all = [&y, &of_up.dx, &of_up.dw, &of_up.db, &of_down.dw, &of_down.db];
    Ok(all.map(|tensor| tensor.to_vec().expect("it is read")))
}

/// What split layers give, put together.
fn split(
    size: usize,
    device: fn() -> Device,
    case: &Case,
    pieces: usize,
    is_sequence: bool,
) -> Result<Results> {
    let parts = launch::threads_within(LIMIT, size, |communicator| {
        let device = device();
        let up_bias = bias(&device, &case.up_bias)?;
        let up =
            ColumnLinear::shard(&communicator, &case.up.tensor(&device), Some(&up_bias), Activation::Relu)?
                .pieces(pieces);
        let down_bias = bias(&device, &case.down_bias)?;
        let down =
            RowLinear::shard(&communicator, &case.down.tensor(&device), Some(&down_bias))?.pieces(pieces);
        let (x, dy) = (case.x.tensor(&device), case.dy.tensor(&device));
        let (y, of_up, of_down) = if is_sequence {
            let rows = block_range(case.x.rows, size, communicator.rank());
            let (hidden, saved_up) = up.forward_sequence(&x.slice(0, rows.clone())?, case.x.rows)?;
            let (y, saved_down) = down.forward_sequence(&hidden)?;
            let of_down = down.backward_sequence(&saved_down, &dy.slice(0, rows)?)?;
            (y, up.backward_sequence(&saved_up, &of_down.dx)?, of_down)
        } else {
            let (hidden, saved_up) = up.forward_train(&x)?;
            assert_eq!(up.forward(&x)?.to_vec()?, hidden.to_vec()?);
            let (y, saved_down) = down.forward_train(&hidden)?;
            let of_down = down.backward(&saved_down, &dy)?;
            (y, up.backward(&saved_up, &of_down.dx)?, of_down)
        };
        let all = [&y, &of_up.dx, &of_up.dw, &of_up.db, &of_down.dw, &of_down.db];
        Ok(all.map(|tensor| tensor.to_vec().expect("it is read")))
    })?;
    // Rows of a rank follow those of the one before; columns of the second weight lie side by side.
    let joined = |index: usize| parts.iter().flat_map(|part| part[index].clone()).collect::<Vec<_>>();
    let same = |index: usize| {
        assert!(parts.iter().all(|part| part[index] == parts[0][index]), "result {index}");
        parts[0][index].clone()
    };
    let rows = |index| if is_sequence { joined(index) } else { same(index) };
    let [n, hidden] = [case.down.rows, case.down.columns];
    let mut of_down = Vec::with_capacity(n * hidden);
    for row in 0..n {
        for part in &parts {
            let columns = part[4].len() / n;
            of_down.extend_from_slice(&part[4][row * columns..(row + 1) * columns]);
        }
    }
    Ok([rows(0), rows(1), joined(2), joined(3), of_down, same(5)])
}

#[test]
fn whole_numbers_give_the_bits_of_whole_layers() -> Result<()> {
    for shape in SHAPES {
        let mut random = Random(shape[0] as u64);
        let case = Case::new(shape, |count| random.whole(count));
        let expected = whole(&Device::cpu(), &case)?;
        for size in [1, 2, 3, 4, 8] {
            for (pieces, is_sequence) in [(1, false), (4, false), (100, false), (1, true)] {
                let found = split(size, Device::cpu, &case, pieces, is_sequence)?;
                assert_eq!(found, expected, "{shape:?} on {size}, {pieces} pieces, sequence: {is_sequence}");
            }
        }
    }
    Ok(())
}

#[test]
fn emulated_devices_split_layers_too() -> Result<()> {
    let mut random = Random(5);
    let case = Case::new([5, 8, 6, 4], |count| random.whole(count));
    let expected = whole(&Device::cpu(), &case)?;
    for is_sequence in [false, true] {
        assert_eq!(split(2, Device::emulator, &case, 2, is_sequence)?, expected);
    }
    Ok(())
}

#[test]
fn sums_over_ranks_are_within_the_bound_of_the_whole_layer() -> Result<()> {
    let mut random = Random(11);
    let x = Matrix::new(6, 37, random.numbers(6 * 37));
    let w = Matrix::new(5, 37, random.numbers(5 * 37));
    let exact = x.product(&w);
    for size in 1..=8 {
        let results = launch::threads_within(LIMIT, size, |communicator| {
            let layer = RowLinear::shard(&communicator, &w.tensor(&Device::cpu()), None)?;
            let own = x.tensor(&Device::cpu()).slice(1, layer.range())?.contiguous()?;
            Ok(layer.forward(&own)?.to_vec()?)
        })?;
        for found in results {
            // At most 37 + size roundings of partial sums, none of which is larger than the sum of the sizes.
            let absolute = (37 + size) as f64 * F32_UNIT;
            expect_close(&found, &exact, F32_UNIT, absolute, &format!("{size} ranks"));
        }
    }
    Ok(())
}

#[test]
fn sixteen_bits_round_each_rank_once_and_the_sum_once() -> Result<()> {
    let (unit, device) = (1.0 / 256.0, Device::cpu());
    let mut random = Random(12);
    let mut rounded = |count| -> Vec<f32> {
        random.numbers(count).into_iter().map(|number| bf16::from_f32(number).to_f32()).collect()
    };
    let (x, w) = (Matrix::new(4, 29, rounded(4 * 29)), Matrix::new(3, 29, rounded(3 * 29)));
    let exact = x.product(&w);
    for size in [1, 2, 5] {
        let results = launch::threads_within(LIMIT, size, |communicator| {
            let half = |matrix: &Matrix| ops::cast::<bf16>(&matrix.tensor(&device)).run();
            let layer = RowLinear::shard(&communicator, &half(&w)?, None)?;
            let y = layer.forward(&half(&x)?.slice(1, layer.range())?.contiguous()?)?;
            Ok(ops::cast::<f32>(&y).run()?.to_vec()?)
        })?;
        for found in results {
            let absolute = (unit + (29 + size) as f64 * F32_UNIT) * (1.0 + unit);
            expect_close(&found, &exact, unit, absolute, &format!("{size} ranks"));
        }
    }
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_refused() -> Result<()> {
    let communicator = Communicator::local(1, LIMIT)?.remove(0);
    let device = Device::cpu();
    let of = |shape: &[usize]| Tensor::<f32>::zeros(&device, shape).expect("it fits");
    let expect = |result: Result<()>, words: &str| {
        let error = result.expect_err("it does not fit").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
    };
    let short = of(&[2]);
    let split =
        |weight: &Tensor<f32>, bias| ColumnLinear::shard(&communicator, weight, bias, Activation::None);
    expect(split(&of(&[3]), None).map(drop), "expected [out, in]");
    expect(split(&of(&[3, 2]), Some(&short)).map(drop), "bias");
    expect(RowLinear::shard(&communicator, &of(&[3, 2]), Some(&of(&[2]))).map(drop), "bias");
    let (column, row) = (split(&of(&[3, 2]), None)?, RowLinear::shard(&communicator, &of(&[3, 2]), None)?);
    expect(column.forward(&of(&[4, 3])).map(drop), "x");
    expect(column.forward_sequence(&of(&[4, 3]), 4).map(drop), "2 columns");
    expect(column.forward_sequence(&of(&[4, 2]), 5).map(drop), "5 rows, the block of rank 0 of 5");
    expect(row.forward(&of(&[4, 3])).map(drop), "2 columns");
    expect(column.forward(&of(&[2])).map(drop), "a matrix of 2 columns");
    let (_, foreign) = Linear::new(of(&[3, 2]), None, Activation::None)?.forward_train(&of(&[2]))?;
    expect(column.backward(&foreign, &of(&[1, 3])).map(drop), "a matrix of 2 columns");
    expect(column.backward_sequence(&foreign, &of(&[1, 3])).map(drop), "a matrix of 2 columns");
    let (_, saved) = column.forward_train(&of(&[4, 2]))?;
    expect(column.backward(&saved, &of(&[4, 2])).map(drop), "dy");
    expect(column.backward(&saved, &of(&[5, 3])).map(drop), "dy");
    let (_, saved) = row.forward_train(&of(&[4, 2]))?;
    expect(row.backward_sequence(&saved, &of(&[3, 3])).map(drop), "4 rows");
    Ok(())
}
