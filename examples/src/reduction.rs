//! The sum of a vector: each thread adds its elements, a block adds its threads, and a second launch adds the blocks. The
//! order is always the same, and so is the result.

use warpsmith_dsl::prelude::*;

shared_memory! {
    struct Shared {
        scratch: SharedArray<f32, 32>,
    }
}

/// `partial[b]`: the sum of the elements that block `b` has, of any grid; as many as the grid has blocks.
#[kernel(block = [256, 1, 1], shared = Shared::BYTES)]
pub fn sum(x: GlobalSlice<f32>, partial: GlobalSliceMut<f32>) {
    let mut own = 0.0;
    for i in thread::indices(x.len()) {
        own += x.at(i.get());
    }
    // SAFETY: the kernel has the scratch, which nothing else uses. All threads of the block are here, eight whole warps. One
    // thread writes for the block, which alone has its index.
    unsafe {
        let of_block = block::sum(own, Shared::new().scratch);
        if block::thread_rank() == 0 {
            partial.write(block::index_in_grid(), of_block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("reduction");

    fn sum_of(bench: &Bench, x: &[f32], grid: [u32; 3]) -> warpsmith::Result<f32> {
        let kernel = bench.module.kernel::<sum>()?;
        let x = bench.tensor(x, [x.len()])?;
        let blocks = grid.iter().product::<u32>() as usize;
        let (mut partial, mut total) = (bench.zeros::<f32>([blocks])?, bench.zeros::<f32>([1])?);
        kernel.run(&bench.stream(), grid, (&x, &mut partial))?;
        kernel.run(&bench.stream(), [1, 1, 1], (&partial, &mut total))?;
        Ok(total.to_vec()?[0])
    }

    #[test]
    fn sums_are_within_the_bound_of_the_longest_chain() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        for (length, grid) in [
            (0, [1, 1, 1]),
            (1, [1, 1, 1]),
            (257, [2, 1, 1]),
            (10_007, [3, 1, 1]),
            (10_007, [1, 7, 1]),
            (10_007, [2, 2, 2]),
        ] {
            let blocks = grid.iter().product::<u32>() as usize;
            let x = numbers(3, length);
            let (exact, terms): (f64, f64) = x
                .iter()
                .fold((0.0, 0.0), |(sum, terms), &x| (sum + f64::from(x), terms + f64::from(x).abs()));
            // A thread's elements, twice; the lanes and the warps of a block, twice.
            let additions = length.div_ceil(256 * blocks) + blocks.div_ceil(256) + 2 * (5 + 5);
            let bound = 1.01 * additions as f64 * U * terms;
            assert_within(sum_of(&bench, &x, grid)?, exact, bound, (length, grid));
        }
        Ok(())
    }

    #[test]
    fn whole_numbers_are_exact() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let x: Vec<f32> = (0..5003).map(|i| (i % 17) as f32 - 8.0).collect();
        for grid in [[5, 1, 1], [1, 1, 5], [2, 3, 2]] {
            assert_eq!(sum_of(&bench, &x, grid)?, x.iter().sum::<f32>());
        }
        Ok(())
    }
}
