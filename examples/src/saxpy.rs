//! `y = a · x + y`: any number of elements by any number of threads, each of which takes every so many-th.

use warpsmith_dsl::prelude::*;

/// `y[i] = a · x[i] + y[i]`
#[kernel(block = [256, 1, 1])]
pub fn saxpy(a: f32, x: GlobalSlice<f32>, mut y: GlobalSliceMut<f32>) {
    for i in thread::indices(y.len()) {
        if let Some(mut y) = y.get_mut(i) {
            y.write(a * x.at(i.get()) + y.read());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, U, assert_within, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("saxpy");

    #[test]
    fn results_are_within_two_roundings() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<saxpy>()?;
        let a = 0.7f32;
        for (length, blocks) in [(0, 1), (1, 1), (256, 1), (1009, 1), (1009, 3), (1009, 9)] {
            let (x, before) = (numbers(1, length), numbers(2, length));
            let mut y = bench.tensor(&before, [length])?;
            kernel.run(&bench.stream(), [blocks, 1, 1], (a, &bench.tensor(&x, [length])?, &mut y))?;
            for (i, actual) in y.to_vec()?.into_iter().enumerate() {
                let product = f64::from(a) * f64::from(x[i]);
                let expected = product + f64::from(before[i]);
                assert_within(actual, expected, U * (product.abs() * (1.0 + U) + expected.abs()), i);
            }
        }
        Ok(())
    }
}
