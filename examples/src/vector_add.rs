//! `c = a + b`: a thread for each element. The index of a thread names an element that no other thread has, so that nothing
//! is unsafe.

use warpsmith_dsl::prelude::*;

/// `c[i] = a[i] + b[i]`, by a thread for each element.
#[kernel(block = [256, 1, 1])]
pub fn vector_add(a: GlobalSlice<f32>, b: GlobalSlice<f32>, mut c: GlobalSliceMut<f32>) {
    let i = thread::index_1d();
    // The last block has threads beyond the last element.
    if let Some(mut c) = c.get_mut(i) {
        c.write(a.at(i.get()) + b.at(i.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("vector_add");

    #[test]
    fn sums_are_rounded_once() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<vector_add>()?;
        for length in [0, 1, 31, 256, 257, 1009] {
            let (a, b) = (numbers(1, length), numbers(2, length));
            let mut c = bench.zeros::<f32>([length])?;
            let args = (&bench.tensor(&a, [length])?, &bench.tensor(&b, [length])?, &mut c);
            kernel.run_over(&bench.stream(), length, args)?;
            let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            assert_eq!(c.to_vec()?, expected);
        }
        Ok(())
    }

    #[test]
    fn tensors_that_do_not_fit_are_refused() -> warpsmith::Result<()> {
        let bench = Bench::new(&KERNELS)?;
        let kernel = bench.module.kernel::<vector_add>()?;
        let (x, mut c) = (bench.zeros::<f32>([4, 4])?, bench.zeros::<f32>([16])?);
        let columns = x.swap_axes(0, 1)?;
        let error = kernel.run_over(&bench.stream(), 16, (&columns, &x, &mut c)).unwrap_err().to_string();
        assert!(error.contains("`a` has strides [1, 4], expected those of a tensor without gaps"), "{error}");
        let alias = c.clone();
        let error = kernel.run_over(&bench.stream(), 16, (&alias, &x, &mut c)).unwrap_err().to_string();
        assert!(error.contains("`c`") && error.contains("`a`"), "{error}");
        // A slice that is too short is found where it is read.
        let error = kernel.run_over(&bench.stream(), 16, (&x.slice(0, 0..2)?, &x, &mut c)).unwrap_err();
        assert!(error.to_string().contains("trap"), "{error}");
        Ok(())
    }
}
