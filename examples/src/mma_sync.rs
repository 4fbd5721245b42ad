//! A matrix product on the tensor cores, by `mma.sync`: a warp multiplies 16 × 16 by 16 × 8 elements of f16 at a time, and
//! adds in f32.
//!
//! Lane l has of each operand what the instruction's layout says: rows l / 4 and l / 4 + 8, and in them pairs of neighbours.

use warpsmith_dsl::prelude::*;
use warpsmith_dsl::ptx;

/// Two neighbours of a row in a register; zeros outside the matrix.
#[inline(always)]
fn pair(x: GlobalMatrix<F16>, row: usize, column: usize) -> u32 {
    let element = |column| x.get(row, column).map_or(0, |element| element.0 as u32);
    element(column) | element(column + 1) << 16
}

/// `C = A Bᵀ`, by any number of warps, which share out tiles of 16 × 8 elements of C.
#[kernel(block = [32, 1, 1])]
pub fn product_of_warps(a: GlobalMatrix<F16>, b: GlobalMatrix<F16>, c: GlobalMatrixMut<f32>) {
    let lane = warp::lane_id() as usize;
    let (group, pairs) = (lane / 4, 2 * (lane % 4));
    for [tile_row, tile_column] in block::indices_2d([c.rows().div_ceil(16), c.columns().div_ceil(8)]) {
        let (row, column) = (16 * tile_row, 8 * tile_column);
        let mut sums = [0.0; 4];
        for k in (0..a.columns()).step_by(16) {
            let of_a = [
                pair(a, row + group, k + pairs),
                pair(a, row + group + 8, k + pairs),
                pair(a, row + group, k + pairs + 8),
                pair(a, row + group + 8, k + pairs + 8),
            ];
            let of_b = [pair(b, column + group, k + pairs), pair(b, column + group, k + pairs + 8)];
            // SAFETY: all lanes of the warp are here.
            unsafe { ptx::mma_m16n8k16_f16(&mut sums, of_a, of_b) }
        }
        let store = |row: usize, column: usize, sum: f32| {
            if row < c.rows() && column < c.columns() {
                // SAFETY: the tile is this warp's, and no other lane has this element.
                unsafe { c.write(row, column, sum) }
            }
        };
        store(row + group, column + pairs, sums[0]);
        store(row + group, column + pairs + 1, sums[1]);
        store(row + group + 8, column + pairs, sums[2]);
        store(row + group + 8, column + pairs + 1, sums[3]);
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("mma_sync");

    #[test]
    fn products_of_any_size_are_within_the_bound() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<product_of_warps>()?;
        for ([m, n, k], grid) in [
            ([1, 1, 1], [1, 1, 1]),
            ([16, 8, 16], [2, 1, 1]),
            ([17, 5, 33], [1, 2, 1]),
            ([33, 31, 47], [4, 3, 1]),
            ([33, 31, 47], [1, 1, 5]),
            ([3, 4, 0], [2, 2, 2]),
        ] {
            let halves =
                |seed, count| numbers(seed, count).into_iter().map(f16::from_f32).collect::<Vec<_>>();
            let (a, b) = (halves(8, m * k), halves(9, n * k));
            let mut c = bench.zeros::<f32>([m, n])?;
            let args = (&bench.tensor(&a, [m, k])?, &bench.tensor(&b, [n, k])?, &mut c);
            kernel.run(&bench.stream(), grid, args)?;
            for (at, actual) in c.to_vec()?.into_iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let products = (0..k).map(|i| a[row * k + i].to_f64() * b[column * k + i].to_f64());
                let (exact, terms) = products.fold((0.0, 0.0), |(sum, terms), x| (sum + x, terms + x.abs()));
                // Products of f16 are exact; each goes through at most k additions, which may truncate.
                assert_within(actual, exact, 1.01 * 2.0 * (k + 1) as f64 * U * terms, (row, column));
            }
        }
        Ok(())
    }
}
