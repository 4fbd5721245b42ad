//! An operation on rows with functions of one's own, by the library's skeleton: a power of two of a block's threads share a
//! row, each has its columns, and sums go over all of them. Rows may have any length, any stride and any alignment.

use warpsmith_dsl::prelude::*;
use warpsmith_dsl::ptx;
use warpsmith_dsl::rows::{Columns, RowElement, SHARED_BYTES, THREADS, Team};

/// What is done to a row: a number of each element is added up, and the sum and the element make the result.
pub trait RowFunction {
    /// What is added up.
    fn term(x: f32) -> f32;

    /// The result of an element, from the sum over its row of `columns` elements.
    fn finish(x: f32, sum: f32, columns: f32) -> f32;
}

/// `tanh(x / √(mean of x²))`: one's own.
pub enum TanhOfNormed {}

impl RowFunction for TanhOfNormed {
    #[inline(always)]
    fn term(x: f32) -> f32 {
        x * x
    }

    #[inline(always)]
    fn finish(x: f32, sum: f32, columns: f32) -> f32 {
        math::tanh(x / math::sqrt(sum / columns + 1e-6))
    }
}

/// Columns that a thread has at a time.
const PER: usize = 4;

/// Applies `F` to rows, `threads` of a block to a row, on any number of blocks along x; others do nothing. y has the shape of x.
#[kernel(
    block = [THREADS, 1, 1],
    shared = SHARED_BYTES,
    instances = [
        tanh_of_normed_f16 = <F16, TanhOfNormed>,
        tanh_of_normed_bf16 = <Bf16, TanhOfNormed>,
        tanh_of_normed_f32 = <f32, TanhOfNormed>,
    ],
)]
pub fn own_rows<T: RowElement + Copy, F: RowFunction>(
    x: GlobalMatrix<T>,
    y: GlobalMatrixMut<T>,
    threads: u32,
) {
    let (rows, columns) = (x.rows() as u32, x.columns() as u32);
    let fits = y.rows() == x.rows() && y.columns() == x.columns();
    // A team's row is less than the number of rows, and of those that the grid has at a time, more.
    let is_countable = rows as u64 + thread::grid_dim_x() as u64 * THREADS as u64 <= u32::MAX as u64;
    if !fits || !is_countable || !threads.is_power_of_two() || threads > THREADS {
        // SAFETY: no precondition.
        unsafe { ptx::trap() }
    }
    // Teams are counted along x.
    if thread::block_idx_y() | thread::block_idx_z() != 0 {
        return;
    }
    // SAFETY: all threads of the blocks along x are here, with a power of two. Rows are those of x and y, or no column of them is
    // touched; each is one team's.
    unsafe {
        let mut team = Team::<false>::new(threads);
        let all = Columns::<PER, false>::new(team.rank, team.threads, columns);
        let mut base = team.first;
        while base < rows {
            let row = base + team.index;
            let mine = all.only_if(row < rows);
            let from = x.base().offset(row as u64 * x.stride() as u64).address();
            let to = y.base().offset(row as u64 * y.stride() as u64).address();
            let load = |chunk| T::unpack::<PER>(mine.load_words::<T>(from, chunk));
            let (mut own, mut chunk) = (0.0, 0);
            while all.reaches(chunk) {
                for (j, x) in load(chunk).into_iter().enumerate() {
                    own += if mine.has(chunk, j) { F::term(x) } else { 0.0 };
                }
                chunk += 1;
            }
            let [sum] = team.sum([own]);
            chunk = 0;
            while all.reaches(chunk) {
                let results = load(chunk).map(|x| F::finish(x, sum, columns as f32));
                mine.store_rounded::<T>(to, chunk, results);
                chunk += 1;
            }
            base += team.step;
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use warpsmith::{Result, Tensor};
    use warpsmith_dsl::launch::SafeKernel;

    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("own_rows");

    fn check<T, K>(from: fn(f32) -> T, to: fn(T) -> f32, u_out: f64) -> Result<()>
    where
        T: warpsmith::Element,
        T::Device: Copy,
        K: SafeKernel<Args = (GlobalMatrix<T::Device>, GlobalMatrixMut<T::Device>, u32)>,
    {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<K>()?;
        for (rows, columns, threads) in [(1, 1, 1), (3, 7, 8), (9, 130, 32), (2, 1009, 256), (5, 33, 64)] {
            let x: Vec<T> = numbers(16, rows * columns).into_iter().map(from).collect();
            let mut y = Tensor::zeros(&bench.device, [rows, columns])?;
            let args = (&bench.tensor(&x, [rows, columns])?, &mut y, threads);
            kernel.run(&bench.stream(), [2, 1 + rows as u32 % 2, 1 + rows as u32 % 3], args)?;
            for (at, actual) in y.to_vec()?.into_iter().enumerate() {
                let row = x[at / columns * columns..][..columns].iter().map(|&x| f64::from(to(x)));
                let mean = row.map(|x| x * x).sum::<f64>() / columns as f64 + f64::from(1e-6f32);
                let argument = f64::from(to(x[at])) / mean.sqrt();
                // The sum's terms and additions, halved by the root; its division and addition, the root and the division.
                // The slope of tanh times its argument is at most 1/2; tanh is off by 8 u. Then it is rounded to the type.
                let additions = (columns.div_ceil(threads as usize) + 1 + 10) as f64;
                let of_argument = (additions + 2.0) / 2.0 + 2.0;
                let bound = 1.01 * U * (0.5 * of_argument + 8.0) + u_out * argument.tanh().abs();
                assert_within(to(actual), argument.tanh(), bound, (at / columns, at % columns));
            }
        }
        Ok(())
    }

    #[test]
    fn rows_of_any_length_and_type_are_within_the_bound() -> Result<()> {
        check::<f32, own_rows<f32, TanhOfNormed>>(|x| x, |x| x, U)?;
        check::<f16, own_rows<F16, TanhOfNormed>>(f16::from_f32, f16::to_f32, 1.0 / 2048.0)?;
        check::<bf16, own_rows<Bf16, TanhOfNormed>>(bf16::from_f32, bf16::to_f32, 1.0 / 256.0)
    }

    #[test]
    fn more_rows_at_a_time_than_are_counted_end_the_kernel() -> Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<own_rows<f32, TanhOfNormed>>()?;
        let (x, mut y) = (bench.zeros::<f32>([2, 1])?, bench.zeros::<f32>([2, 1])?);
        // The first teams of blocks 0 and 2²⁴ would have the same row.
        let error = kernel.run(&bench.stream(), [(1 << 24) + 1, 1, 1], (&x, &mut y, 1)).unwrap_err();
        assert!(error.to_string().contains("trap"), "{error}");
        Ok(())
    }
}
