//! The transpose of a matrix: through a tile of shared memory, so that both its rows and its columns are read and written
//! in whole lines. Rows of the tile are 33 elements long: the elements of a column are then in different banks.

use warpsmith_dsl::prelude::*;

const SIDE: usize = 32;
const ROWS_AT_ONCE: usize = 8;

shared_memory! {
    struct Shared {
        tile: SharedMatrix<f32, 32, 33>,
    }
}

/// `y[c, r] = x[r, c]`, by tiles of 32 × 32 elements, which any number of blocks share out.
#[kernel(block = [32, 8, 1], shared = Shared::BYTES)]
pub fn transpose(x: GlobalMatrix<f32>, y: GlobalMatrixMut<f32>) {
    // SAFETY: the kernel has as much.
    let tile = unsafe { Shared::new() }.tile;
    let (tx, ty) = (thread::thread_idx_x() as usize, thread::thread_idx_y() as usize);
    for tile_index in block::indices_2d([x.rows(), x.columns()].map(|length| length.div_ceil(SIDE))) {
        let [first_row, first_column] = tile_index.map(|index| index * SIDE);
        for row in (ty..SIDE).step_by(ROWS_AT_ONCE) {
            let element = x.get(first_row + row, first_column + tx).unwrap_or(0.0);
            // SAFETY: no other thread has this element before the barrier.
            unsafe { tile.write(row, tx, element) }
        }
        // SAFETY: all threads of the block are here.
        unsafe { sync_threads() }
        for row in (ty..SIDE).step_by(ROWS_AT_ONCE) {
            let (to_row, to_column) = (first_column + row, first_row + tx);
            if to_row < y.rows() && to_column < y.columns() {
                // SAFETY: the tile was written before the barrier; it is this block's, and no other thread has this element of y.
                unsafe { y.write(to_row, to_column, tile.read(tx, row)) }
            }
        }
        // SAFETY: all threads of the block are here. The next tile takes the place of this one.
        unsafe { sync_threads() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("transpose");

    #[test]
    fn every_element_is_in_its_place() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<transpose>()?;
        for (rows, columns, grid) in [
            (1, 1, [1, 1, 1]),
            (32, 32, [2, 2, 1]),
            (33, 7, [1, 1, 2]),
            (5, 101, [3, 1, 1]),
            (65, 97, [4, 3, 1]),
            (65, 97, [5, 1, 1]),
            (65, 97, [1, 3, 7]),
        ] {
            let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let mut y = bench.zeros::<f32>([columns, rows])?;
            kernel.run(&bench.stream(), grid, (&bench.tensor(&x, [rows, columns])?, &mut y))?;
            let y = y.to_vec()?;
            for (i, &element) in y.iter().enumerate() {
                let (row, column) = (i / rows, i % rows);
                assert_eq!(element, (column * columns + row) as f32, "at {row}, {column}");
            }
        }
        Ok(())
    }
}
