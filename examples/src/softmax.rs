//! The softmax of rows: a block for each row, three passes over it. Blocks share the rows out, so that every grid will do.

use warpsmith_dsl::prelude::*;

shared_memory! {
    struct Shared {
        scratch: SharedArray<f32, 32>,
    }
}

/// `y[r, c] = exp(x[r, c] − max) / Σ exp(x[r, ·] − max)`, by any number of blocks.
#[kernel(block = [256, 1, 1], shared = Shared::BYTES)]
pub fn softmax(x: GlobalMatrix<f32>, y: GlobalMatrixMut<f32>) {
    // SAFETY: the kernel has as much.
    let scratch = unsafe { Shared::new() }.scratch;
    for row in block::indices(x.rows()) {
        let mut most = f32::NEG_INFINITY;
        for column in block::strided(x.columns()) {
            most = most.max(x.at(row, column));
        }
        // SAFETY: all threads of the block are here, eight whole warps; nothing else uses the scratch.
        let most = unsafe { block::max(most, scratch) };
        let mut sum = 0.0;
        for column in block::strided(x.columns()) {
            sum += math::exp(x.at(row, column) - most);
        }
        // SAFETY: as above.
        let scale = 1.0 / unsafe { block::sum(sum, scratch) };
        for column in block::strided(x.columns()) {
            // SAFETY: the row is this block's, the column this thread's.
            unsafe { y.write(row, column, math::exp(x.at(row, column) - most) * scale) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("softmax");

    #[test]
    fn rows_of_any_length_are_within_the_bound() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<softmax>()?;
        for (rows, columns, scale, grid) in [
            (1, 1, 1.0, [1, 1, 1]),
            (3, 7, 10.0, [3, 1, 1]),
            (2, 256, 1.0, [1, 2, 3]),
            (5, 1009, 80.0, [1, 1, 2]),
        ] {
            let x: Vec<f32> = numbers(4, rows * columns).iter().map(|x| x * scale).collect();
            let mut y = bench.zeros::<f32>([rows, columns])?;
            kernel.run(&bench.stream(), grid, (&bench.tensor(&x, [rows, columns])?, &mut y))?;
            let y = y.to_vec()?;
            for (row, (x, y)) in x.chunks(columns).zip(y.chunks(columns)).enumerate() {
                let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
                for (column, (&x, &y)) in x.iter().zip(y).enumerate() {
                    let exact = (x - most).exp() / sum;
                    // The rounding of a difference d moves its exponential by d u, relatively; `exp` is off by 8 u. All terms are
                    // positive, so that the sum is off by no more than they are, and its additions. Division and product: 2 u.
                    let worst = 2.0 * f64::from(scale);
                    let additions = (columns.div_ceil(256) + 10) as f64;
                    let bound = 1.01 * ((most - x) + 8.0 + worst + 8.0 + additions + 2.0) * U * exact;
                    assert_within(y, exact, bound + f64::from(f32::from_bits(1)), (row, column));
                }
            }
        }
        Ok(())
    }
}
