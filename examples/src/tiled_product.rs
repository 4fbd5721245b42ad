//! A matrix product by tiles: a block loads a tile of each operand to shared memory, from which every element is read 16 times.

use warpsmith_dsl::prelude::*;

const SIDE: usize = 16;

shared_memory! {
    struct Shared {
        a: SharedMatrix<f32, 16, 16>,
        b: SharedMatrix<f32, 16, 16>,
    }
}

/// `C = A B`, a thread for each element of C.
#[kernel(block = [16, 16, 1], shared = Shared::BYTES)]
pub fn tiled_product(a: GlobalMatrix<f32>, b: GlobalMatrix<f32>, mut c: GlobalMatrixMut<f32>) {
    // SAFETY: the kernel has as much.
    let tiles = unsafe { Shared::new() };
    let own = thread::index_2d();
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    let mut sum = 0.0;
    for first in (0..a.columns()).step_by(SIDE) {
        let element_a = a.get(own.row(), first + tx).unwrap_or(0.0);
        let element_b = b.get(first + ty, own.column()).unwrap_or(0.0);
        // SAFETY: each thread writes its own elements, between barriers that all threads of the block reach.
        unsafe {
            tiles.a.write(ty, tx, element_a);
            tiles.b.write(ty, tx, element_b);
            sync_threads();
            for k in 0..SIDE {
                sum += tiles.a.read(ty, k) * tiles.b.read(k, tx);
            }
            sync_threads();
        }
    }
    if let Some(mut c) = c.get_mut(own) {
        c.write(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("tiled_product");

    #[test]
    fn products_of_any_size_are_within_the_bound() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<tiled_product>()?;
        for [m, n, k] in [[1, 1, 1], [16, 16, 16], [17, 5, 33], [33, 31, 7], [3, 4, 0]] {
            let (a, b) = (numbers(6, m * k), numbers(7, k * n));
            let mut c = bench.zeros::<f32>([m, n])?;
            let args = (&bench.tensor(&a, [m, k])?, &bench.tensor(&b, [k, n])?, &mut c);
            kernel.run_over(&bench.stream(), [m, n], args)?;
            for (at, actual) in c.to_vec()?.into_iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let products = (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b[i * n + column]));
                let (exact, terms) = products.fold((0.0, 0.0), |(sum, terms), x| (sum + x, terms + x.abs()));
                // Each product is rounded, and goes through at most k additions.
                let bound = 1.01 * (k + 1) as f64 * U * terms;
                assert_within(actual, exact, bound, (row, column));
            }
        }
        Ok(())
    }
}
