//! Shuffles, votes, reductions and prefix sums, against plain Rust.

use warpsmith::tensor::Element;
use warpsmith::{Result, Tensor};
use warpsmith_dsl::launch::SafeKernel;
use warpsmith_dsl::slice::{GlobalMatrixMut, GlobalSlice};

use crate::{kernels, module, vector};

const BLOCK: usize = 320;

/// What a thread's row should be, from the values of its block and its rank. Sums are exact.
fn expected<T: Copy>(
    values: &[T],
    rank: usize,
    zero: T,
    plus: fn(T, T) -> T,
    larger: fn(T, T) -> T,
    smaller: fn(T, T) -> T,
) -> [T; 14] {
    let (first, lane) = (rank / 32 * 32, rank % 32);
    let warp = &values[first..first + 32];
    let fold = |values: &[T], f: fn(T, T) -> T| values[1..].iter().fold(values[0], |a, &b| f(a, b));
    let sum = |values: &[T]| values.iter().fold(zero, |a, &b| plus(a, b));
    [
        sum(warp),
        fold(warp, larger),
        fold(warp, smaller),
        sum(&warp[..=lane]),
        sum(&warp[..lane]),
        sum(values),
        fold(values, larger),
        fold(values, smaller),
        sum(&values[..=rank]),
        sum(&values[..rank]),
        warp[7],
        warp[lane ^ 5],
        warp[if lane < 3 { lane } else { lane - 3 }],
        warp[if lane + 3 > 31 { lane } else { lane + 3 }],
    ]
}

fn check<K, T>(
    values: Vec<T>,
    zero: T,
    plus: fn(T, T) -> T,
    larger: fn(T, T) -> T,
    smaller: fn(T, T) -> T,
) -> Result<()>
where
    T: Element<Device = T>,
    K: SafeKernel<Args = (GlobalSlice<T>, GlobalMatrixMut<T>)>,
{
    let (device, module) = module()?;
    let mut y = Tensor::<T>::zeros(&device, [values.len(), 14])?;
    let grid = [(values.len() / BLOCK) as u32, 1, 1];
    module.kernel::<K>()?.run(&device.default_stream(), grid, (&vector(&device, &values)?, &mut y))?;
    for (i, row) in y.to_vec()?.chunks(14).enumerate() {
        let block = &values[i / BLOCK * BLOCK..][..BLOCK];
        assert_eq!(row, expected(block, i % BLOCK, zero, plus, larger, smaller), "thread {i}");
    }
    Ok(())
}

#[test]
fn lanes_of_u32_exchange_and_add() -> Result<()> {
    check::<kernels::lanes<u32>, _>(crate::words(2 * BLOCK), 0, u32::wrapping_add, u32::max, u32::min)
}

#[test]
fn lanes_of_i32_exchange_and_add() -> Result<()> {
    let values = crate::words(2 * BLOCK).into_iter().map(|word| word as i32).collect();
    check::<kernels::lanes<i32>, _>(values, 0, i32::wrapping_add, i32::max, i32::min)
}

#[test]
fn lanes_of_f32_exchange_and_add() -> Result<()> {
    let values = (0..2 * BLOCK).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
    check::<kernels::lanes<f32>, _>(values, 0.0, |a, b| a + b, f32::max, f32::min)
}

#[test]
fn of_f32_numbers_count_and_nan_is_what_has_none() -> Result<()> {
    let (device, module) = module()?;
    // A block of NaN, one with a number in one thread, one with a warp of numbers.
    let mut values = vec![f32::NAN; 3 * BLOCK];
    values[BLOCK + 77] = -3.0;
    (0..32).for_each(|lane| values[2 * BLOCK + 32 + lane] = lane as f32 - 40.0);
    let mut y = Tensor::<f32>::zeros(&device, [values.len(), 14])?;
    let args = (&vector(&device, &values)?, &mut y);
    module.kernel::<kernels::lanes<f32>>()?.run(&device.default_stream(), [3, 1, 1], args)?;
    let expected = [[f32::NAN; 2], [-3.0; 2], [-9.0, -40.0]];
    for (i, row) in y.to_vec()?.chunks(14).enumerate() {
        let is = |actual: f32, expected: f32| actual == expected || actual.is_nan() && expected.is_nan();
        let [most, least] = expected[i / BLOCK];
        assert!(is(row[6], most) && is(row[7], least), "block of thread {i}: {:?}", &row[6..8]);
        let warp = &values[i / 32 * 32..][..32];
        let of_warp = [f32::max, f32::min].map(|f| warp.iter().copied().fold(f32::NAN, f));
        assert!(is(row[1], of_warp[0]) && is(row[2], of_warp[1]), "warp of thread {i}: {:?}", &row[1..3]);
    }
    Ok(())
}

#[test]
fn votes_count_every_thread() -> Result<()> {
    let (device, module) = module()?;
    let x: Vec<i32> = (0..192).map(|i| if i < 96 { i * 41 % 96 } else { 100 }).collect();
    for least in [-1, 3, 95, 96, 100, 101] {
        let mut y = Tensor::<u32>::zeros(&device, [192, 5])?;
        let args = (&vector(&device, &x)?, least, &mut y);
        module.kernel::<kernels::votes>()?.run(&device.default_stream(), [2, 1, 1], args)?;
        for (i, row) in y.to_vec()?.chunks(5).enumerate() {
            let (warp, block) = (&x[i / 32 * 32..][..32], &x[i / 96 * 96..][..96]);
            let holds = |&value: &i32| value >= least;
            let ballot = warp.iter().rev().fold(0, |bits, value| bits << 1 | u32::from(holds(value)));
            let expected = [
                ballot,
                u32::from(warp.iter().any(holds)),
                u32::from(warp.iter().all(holds)),
                u32::from(block.iter().any(holds)),
                u32::from(block.iter().all(holds)),
            ];
            assert_eq!(row, expected, "thread {i}, least {least}");
        }
    }
    Ok(())
}
