//! Operations on rows with functions of one's own, planned by the library: it chooses how many threads, blocks and clusters share a row, as for its
//! own norms. A function makes passes over a row, each of which finds a number, and then its results.

use warpsmith_dsl::prelude::*;

/// `gain[c] · tanh((x − mean) / √(variance + ε))`: two sums, and operands.
#[row_kernels(tanh_of_normed_f16: F16 -> F16, tanh_of_normed_bf16: Bf16 -> f32, tanh_of_normed_f32: f32 -> f32)]
pub struct TanhOfNormed {
    gain: GlobalSlice<f32>,
    epsilon: f32,
    inverse_columns: f32,
}

impl RowFunction for TanhOfNormed {
    const PASSES: &'static [Reduction] = &[Reduction::Sum, Reduction::Sum];

    #[inline(always)]
    fn term(&self, pass: usize, x: f32, _: u32, row: Row) -> f32 {
        let centered = x - row.found[0] * self.inverse_columns;
        if pass == 0 { x } else { centered * centered }
    }

    #[inline(always)]
    fn finish(&self, x: f32, column: u32, row: Row) -> f32 {
        let [mean, variance] = [row.found[0], row.found[1]].map(|sum| sum * self.inverse_columns);
        let gain = self.gain.get(column as usize).unwrap_or(0.0);
        gain * math::tanh((x - mean) / math::sqrt(variance + self.epsilon))
    }
}

/// `x²` over the largest magnitude of the row: one maximum, and no operands.
#[row_kernels(square_f32: f32 -> F16, square_bf16: Bf16 -> Bf16)]
pub struct SquareOfLargest {}

impl RowFunction for SquareOfLargest {
    const PASSES: &'static [Reduction] = &[Reduction::Maximum];

    #[inline(always)]
    fn term(&self, _: usize, x: f32, _: u32, _: Row) -> f32 {
        x.abs()
    }

    #[inline(always)]
    fn finish(&self, x: f32, _: u32, row: Row) -> f32 {
        x * x / row.found[0]
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use warpsmith::ops::fused::{self, FusedRows, RowOf};
    use warpsmith::ops::rows::RowElement;
    use warpsmith::{Device, Element, Error, Result, Tensor};
    use warpsmith_dsl::operands::FieldOperands;
    use warpsmith_dsl::rows::RowKernels;

    use super::*;
    use crate::testing::{U, numbers};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("own_rows");
    const EPSILON: f32 = 1e-3;

    /// Rows and columns: none, single elements, parts of a warp, primes, a block's registers and one more, more than a cluster's.
    const SIZES: [[usize; 2]; 10] =
        [[0, 5], [3, 0], [1, 1], [3, 7], [9, 130], [2, 1009], [5, 64], [2, 4096], [3, 4104], [1, 70_001]];

    /// Those, and some that are drawn.
    fn sizes() -> Vec<[usize; 2]> {
        let drawn = numbers(11, 12).into_iter().map(|number| (number + 1.0) * 0.5);
        let drawn: Vec<f32> = drawn.collect();
        let drawn =
            drawn.chunks_exact(2).map(|two| [1 + (two[0] * 6.0) as usize, 1 + (two[1] * 9000.0) as usize]);
        SIZES.into_iter().chain(drawn).collect()
    }

    fn devices() -> Vec<Device> {
        ["emulator:8.0", "emulator:9.0"].map(|name| name.parse().expect("it is a device")).to_vec()
    }

    /// The function in f64, and how far f32 may be from it.
    fn tanh_of_normed(gain: &[f32], row: &RowOf<'_>) -> Vec<(f64, f64)> {
        let columns = row.x.len() as f64;
        let sum = |f: &dyn Fn(f64) -> f64| row.x.iter().map(|&x| f(x)).sum::<f64>();
        let mean = sum(&|x| x) / columns;
        let variance = sum(&|x| (x - mean).powi(2)) / columns;
        // The mean is off by its additions, and two roundings of its product.
        let of_mean = (row.additions + 2.0) * U * sum(&f64::abs) / columns;
        // That moves each square by twice itself; its own are of difference, product and sum.
        let of_variance = ((row.additions + 5.0) * U * variance)
            + 2.0 * of_mean * sum(&|x| (x - mean).abs()) / columns
            + 2.0 * of_mean * of_mean;
        let inside = variance + f64::from(EPSILON);
        let each = row.x.iter().zip(gain).map(|(&x, &gain)| {
            let argument = (x - mean) / inside.sqrt();
            // Difference, addition of ε, root and division; half of what the variance is off by.
            let relative = 4.0 * U + 0.51 * of_variance / inside;
            let of_argument = of_mean / inside.sqrt() + relative * argument.abs();
            // The slope of tanh is at most 1; tanh is off by 8 u, the product by one.
            let gain = f64::from(gain);
            (gain * argument.tanh(), 1.01 * gain.abs() * (of_argument + 9.0 * U))
        });
        each.collect()
    }

    fn check_tanh<F, T, O>(from: fn(f32) -> T) -> Result<()>
    where
        F: RowKernels<Function = TanhOfNormed>,
        T: RowElement + Element<Device = F::Input> + Into<f64>,
        O: RowElement + Element<Device = F::Output> + Into<f64>,
    {
        for device in devices() {
            let operation = fused::rows::<F, T, O>(&device, &KERNELS)?;
            for [rows, columns] in sizes() {
                let gain = numbers(3, columns);
                let on_device = Tensor::from_slice(&device, &gain, [columns])?;
                let x: Vec<T> =
                    numbers(16, rows * (columns + 3)).into_iter().map(|x| from(x + 0.5)).collect();
                let larger = Tensor::from_slice(&device, &x, [rows, columns + 3])?;
                // At the start of the memory, and where nothing is aligned.
                for x in [larger.slice(1, 0..columns)?.contiguous()?, larger.slice(1, 3..columns + 3)?] {
                    let op = operation.of(&x, (&on_device, EPSILON, 1.0 / columns as f32));
                    let worst = op.check(|row| tanh_of_normed(&gain, row))?;
                    assert_eq!(worst.is_none(), rows * columns == 0);
                    let of = || format!("{} of {rows} × {columns} on {device}: {worst:?}", F::NAME);
                    assert!(worst.is_none_or(|worst| worst.is_within()), "{}", of());
                }
            }
        }
        Ok(())
    }

    #[test]
    fn rows_of_any_length_type_and_place_are_within_the_bound() -> Result<()> {
        check_tanh::<tanh_of_normed_f32, f32, f32>(|x| x)?;
        check_tanh::<tanh_of_normed_f16, f16, f16>(f16::from_f32)?;
        check_tanh::<tanh_of_normed_bf16, bf16, f32>(bf16::from_f32)
    }

    #[test]
    fn maxima_are_exact_and_results_may_replace_rows() -> Result<()> {
        let square = |row: &RowOf<'_>| {
            let largest = row.x.iter().fold(0.0, |most, x| f64::max(most, x.abs()));
            row.x.iter().map(|x| x * x / largest).map(|y| (y, 2.02 * U * y)).collect()
        };
        for device in devices() {
            let wide = fused::rows::<square_f32, f32, f16>(&device, &KERNELS)?;
            let half = fused::rows::<square_bf16, bf16, bf16>(&device, &KERNELS)?;
            for [rows, columns] in sizes() {
                let x = numbers(7, rows * columns);
                let worst =
                    wide.of(&Tensor::from_slice(&device, &x, [1, rows, columns])?, ()).check(square)?;
                assert!(worst.is_none_or(|worst| worst.is_within()), "{rows} × {columns}: {worst:?}");
                let x: Vec<bf16> = x.into_iter().map(bf16::from_f32).collect();
                let mut x = Tensor::from_slice(&device, &x, [rows, columns])?;
                let expected = half.of(&x, ()).run()?.to_vec()?;
                let source = x.clone();
                half.of(&source, ()).run_into(&mut x)?;
                assert_eq!(x.to_vec()?, expected);
            }
        }
        Ok(())
    }

    #[test]
    fn a_row_that_has_no_number_gives_none() -> Result<()> {
        let device = Device::emulator();
        let operation = fused::rows::<square_f32, f32, f16>(&device, &KERNELS)?;
        let x = Tensor::from_slice(&device, &[1.0, f32::NAN, 3.0, 1.0, 2.0, 4.0], [2, 3])?;
        let y = operation.of(&x, ()).run()?.to_vec()?;
        assert!(y[..3].iter().all(|y| y.is_nan()), "{y:?}");
        assert_eq!(y[3..], [0.25, 1.0, 4.0].map(f16::from_f32));
        Ok(())
    }

    /// The kernel that would run, for rows of so many columns.
    fn kernel(
        operation: &FusedRows<tanh_of_normed_f16, f16, f16>,
        device: &Device,
        columns: usize,
    ) -> Result<String> {
        let (x, gain) =
            (Tensor::<f16>::zeros(device, [2, columns])?, Tensor::<f32>::zeros(device, [columns])?);
        Ok(operation.of(&x, (&gain, 0.0, 0.0)).implementation()?.to_string())
    }

    #[test]
    fn long_rows_are_those_of_clusters_where_there_are_any() -> Result<()> {
        for device in devices() {
            let operation = fused::rows::<tanh_of_normed_f16, f16, f16>(&device, &KERNELS)?;
            let hopper = device.properties().compute_capability.0 >= 9;
            let long = if hopper { ["cluster", "cluster_any"] } else { ["block", "any"] };
            for (columns, variant) in [(4096, "block"), (1001, "any"), (8192, long[0]), (8191, long[1])] {
                let found = kernel(&operation, &device, columns)?;
                assert!(found.contains(&format!("tanh_of_normed_f16_{variant} ")), "{columns}: {found}");
            }
        }
        Ok(())
    }

    /// A function of the same name and types, whose operand is no slice.
    mod others {
        use warpsmith_dsl::prelude::*;

        #[row_kernels(square_f32: f32 -> F16)]
        pub struct Another {
            address: u32,
        }

        impl RowFunction for Another {
            const PASSES: &'static [Reduction] = &[];

            fn term(&self, _: usize, x: f32, _: u32, _: Row) -> f32 {
                x
            }

            fn finish(&self, _: f32, _: u32, _: Row) -> f32 {
                self.address as f32
            }
        }
    }

    #[test]
    fn kernels_of_another_struct_are_not_taken_for_these() -> Result<()> {
        let device = Device::emulator();
        let operation = fused::rows::<others::square_f32, f32, f16>(&device, &KERNELS)?;
        let x = Tensor::<f32>::zeros(&device, [1, 1])?;
        match operation.of(&x, (7,)).run() {
            Err(Error::KernelMismatch { quantity, .. }) => {
                assert_eq!(quantity, "the fingerprint of the source")
            }
            other => panic!("expected a mismatch, got {other:?}"),
        }
        Ok(())
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() -> Result<()> {
        let device = Device::emulator();
        let operation = fused::rows::<tanh_of_normed_f32, f32, f32>(&device, &KERNELS)?;
        let x = Tensor::<f32>::zeros(&device, [4, 6])?;
        let gain = Tensor::<f32>::zeros(&device, [6])?;
        let to = |y: &mut Tensor<f32>| operation.of(&x, (&gain, 0.0, 0.0)).run_into(y).unwrap_err();
        let mut y = Tensor::zeros(&device, [6, 4])?;
        assert!(matches!(to(&mut y), Error::Shape { operand: "y", .. }));
        let mut y = y.swap_axes(0, 1)?;
        assert!(matches!(to(&mut y), Error::Stride { operand: "y", .. }));
        let mut y = Tensor::zeros(&Device::emulator(), [4, 6])?;
        assert!(matches!(to(&mut y), Error::DeviceMismatch { operand: "y", .. }));
        let mut y = x.clone().reshape([24])?.slice(0, 0..24)?.reshape([6, 4])?;
        assert!(matches!(to(&mut y), Error::Shape { .. }));
        // Its own gain, and other rows of what x is a part of.
        let larger = Tensor::<f32>::zeros(&device, [5, 6])?;
        let (x, mut y) = (larger.slice(0, 0..4)?, larger.slice(0, 1..5)?);
        let error = operation.of(&x, (&gain, 0.0, 0.0)).run_into(&mut y).unwrap_err();
        assert!(matches!(error, Error::Overlap { operand: "y", other: "x", .. }), "{error}");
        let row = larger.slice(0, 4..5)?.reshape([6])?;
        let error = operation.of(&x, (&row, 0.0, 0.0)).run_into(&mut y).unwrap_err();
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
        assert_eq!(<TanhOfNormed as FieldOperands>::NAMES, ["gain", "epsilon", "inverse_columns"]);
        Ok(())
    }
}
