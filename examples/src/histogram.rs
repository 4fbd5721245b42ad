//! How often each byte occurs: a block counts in shared memory, and then adds its counts to those in global memory.

use warpsmith_dsl::prelude::*;

shared_memory! {
    struct Shared {
        counts: SharedArray<u32, 256>,
    }
}

/// Adds to `counts[v]` how often the byte v occurs, by any number of blocks.
#[kernel(block = [256, 1, 1], shared = Shared::BYTES)]
pub fn histogram(x: GlobalSlice<u8>, counts: GlobalAtomics<u32>) {
    // SAFETY: the kernel has as much.
    let (own, of_block) = (block::thread_rank() as usize, unsafe { Shared::new() }.counts);
    // SAFETY: a count for each thread; then atomics only, between the barriers; all threads of the block reach both.
    let count = unsafe {
        of_block.write(own, 0);
        sync_threads();
        for i in thread::indices(x.len()) {
            of_block.fetch_add(x.at(i.get()) as usize, 1);
        }
        sync_threads();
        of_block.read(own)
    };
    if count > 0 {
        counts.fetch_add(own, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("histogram");

    #[test]
    fn counts_are_exact_for_any_number_of_blocks() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<histogram>()?;
        for (length, grid) in
            [(0, [1, 1, 1]), (1, [1, 1, 1]), (1009, [1, 1, 1]), (1009, [3, 1, 1]), (20_011, [1, 2, 3])]
        {
            let x: Vec<u8> = numbers(5, length).iter().map(|x| (x * 127.0) as i8 as u8).collect();
            let mut expected = [0u32; 256];
            x.iter().for_each(|&x| expected[x as usize] += 1);
            let mut counts = bench.zeros::<u32>([256])?;
            kernel.run(&bench.stream(), grid, (&bench.tensor(&x, [length])?, &mut counts))?;
            assert_eq!(counts.to_vec()?, expected, "{length} by {grid:?} blocks");
        }
        Ok(())
    }
}
