//! A product with an epilogue of one's own, `y[r, c] = softplus(scales[r] · (X Wᵀ)[r, c] + bias[c])`, planned by the library: it
//! chooses the tile, the cluster and how many blocks share a sum as for its own products.

use warpsmith_dsl::prelude::*;

/// `softplus(scale of the row · sum + bias of the column)`
#[product_kernels(softplus_f16: F16 -> F16, softplus_bf16: Bf16 -> f32)]
pub fn softplus(sum: f32, #[row] scale: f32, #[column] bias: f32) -> f32 {
    let x = scale * sum + bias;
    x.max(0.0) + math::ln(1.0 + math::exp(-x.abs()))
}

/// `sum²`: an epilogue without operands.
#[product_kernels(square_f16: F16 -> f32)]
pub fn square(sum: f32) -> f32 {
    sum * sum
}

/// `gain · max(sum + a + b, floor) · scale`, with numbers of all kinds: of columns in two types, of rows, and the same for all.
#[product_kernels(clipped_f16: F16 -> f32)]
pub fn clipped(
    value: f32,
    #[column] a: f32,
    #[row] scale: f32,
    #[column(Bf16)] sum: f32,
    floor: f32,
    gain: i32,
    reserved: u32,
) -> f32 {
    gain as f32 * (value + a + sum).max(floor) * scale + reserved as f32
}

/// `row · (sum + columns) + rows · bias + column`, with two numbers of rows, and names that are those of other things.
#[product_kernels(bias_bf16: Bf16 -> f32)]
pub fn bias(
    sum: f32,
    #[row] row: f32,
    #[row] rows: f32,
    #[column] columns: f32,
    bias: f32,
    column: u32,
) -> f32 {
    row * (sum + columns) + rows * bias + column as f32
}

/// `offset + scale of the group of columns · sum`: a struct reads at the places that it chooses.
#[product_kernels(grouped_f16: F16 -> f32)]
pub struct Grouped {
    scales: GlobalSlice<f32>,
    group: u32,
    offset: f32,
}

impl ProductEpilogue for Grouped {
    type Row = ();
    type Column = f32;

    #[inline(always)]
    fn row(&self, _: u32) {}

    #[inline(always)]
    fn column(&self, column: u32) -> f32 {
        self.scales.get((column / self.group.max(1)) as usize).unwrap_or(0.0)
    }

    #[inline(always)]
    fn apply(&self, (): (), scale: f32, sum: f32) -> f32 {
        self.offset + scale * sum
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use warpsmith::ops::fused::{self, FusedProduct, Sum};
    use warpsmith::ops::gemm::{Fused, Tile};
    use warpsmith::{Device, Element, Error, Result, Tensor};

    use super::*;
    use crate::testing::{U, numbers, with_last_grid};

    const KERNELS: warpsmith::KernelFile = warpsmith::include_kernels!("own_product");

    /// `softplus`, and how far f32 may be from it: the error of its argument, since the slope is at most 1. Of its own: the
    /// exponential's 8 u and the addition's, halved by the logarithm's slope, the logarithm's 5 u of ln 2, and the last addition.
    fn exact_softplus(scales: &[f32], bias: &[f32], sum: &Sum) -> (f64, f64) {
        let (scale, bias) = (f64::from(scales[sum.row]), f64::from(bias[sum.column]));
        let x = scale * sum.value + bias;
        let exact = x.max(0.0) + (-x.abs()).exp().ln_1p();
        let of_argument = scale.abs() * sum.error + 2.0 * U * ((scale * sum.value).abs() + bias.abs());
        (exact, 1.01 * (of_argument + U * (4.5 + 3.5 + exact)))
    }

    struct Case<T, O, F> {
        product: FusedProduct<F, T, O>,
        device: Device,
        from: fn(f32) -> T,
    }

    impl<T, O, F> Case<T, O, F>
    where
        F: warpsmith_dsl::gemm::product::ProductKernels<Epilogue = Softplus>,
        T: warpsmith::ops::linear::LinearTypes<f32> + Element<Device = F::Input> + Into<f64>,
        O: Element<Device = F::Output> + Into<f64>,
    {
        fn new(device: Device, from: fn(f32) -> T) -> Result<Self> {
            Ok(Self { product: fused::product::<F, T, O>(&device, &KERNELS)?, device, from })
        }

        /// A matrix whose rows are `stride` elements apart.
        fn matrix(&self, seed: u64, [rows, columns]: [usize; 2], stride: usize) -> Result<Tensor<T>> {
            let elements: Vec<T> = numbers(seed, rows * stride).into_iter().map(self.from).collect();
            Tensor::from_slice(&self.device, &elements, [rows, stride])?.slice(1, 0..columns)
        }

        /// Runs and checks a product of these sizes, of rows that are `gap` elements apart from each other.
        fn check(
            &self,
            [m, n, k]: [usize; 3],
            gap: usize,
            tile: Option<Tile>,
            parts: Option<u32>,
        ) -> Result<()> {
            let (x, w) = (self.matrix(21, [m, k], k + gap)?, self.matrix(22, [n, k], k + gap)?);
            let (scales, bias) = (numbers(23, m), numbers(24, n));
            let of_row = Tensor::from_slice(&self.device, &scales, [m])?;
            let of_column = Tensor::from_slice(&self.device, &bias, [n])?;
            let product = self.product.of(&x, &w, (&of_row, &of_column)).tile(tile).parts(parts);
            let worst = product.check(|sum| exact_softplus(&scales, &bias, sum))?;
            assert!(worst.is_none_or(|worst| worst.is_within()), "{m}x{n}x{k}, {tile:?}: {}", worst.unwrap());
            Ok(())
        }
    }

    fn emulator(name: &str) -> Device {
        name.parse().expect("an emulator")
    }

    #[test]
    fn products_of_any_size_and_layout_are_within_the_bound() -> Result<()> {
        for device in ["emulator", "emulator:9.0"] {
            let halves = Case::<f16, f16, softplus_f16>::new(emulator(device), f16::from_f32)?;
            let brain = Case::<bf16, f32, softplus_bf16>::new(emulator(device), bf16::from_f32)?;
            for (sizes, gap) in [
                ([1, 1, 1], 0),
                ([1, 96, 64], 0),
                ([17, 5, 33], 0),
                ([131, 67, 72], 8),
                ([40, 200, 19], 1),
                ([3, 4, 0], 8),
                ([0, 4, 8], 0),
            ] {
                halves.check(sizes, gap, None, None)?;
                brain.check(sizes, gap, None, None)?;
            }
        }
        Ok(())
    }

    #[test]
    fn every_variant_computes_the_same_function() -> Result<()> {
        let halves = Case::<f16, f16, softplus_f16>::new(emulator("emulator:9.0"), f16::from_f32)?;
        let own: Vec<Tile> =
            Tile::of_input(warpsmith::DType::F16).filter(|tile| tile.serves_fused(Fused::Own)).collect();
        assert_eq!(own.len(), 9);
        for tile in own {
            halves.check([150, 264, 136], 0, Some(tile), Some(1))?;
            if tile.shares() {
                halves.check([19, 72, 520], 0, Some(tile), Some(3))?;
            }
        }
        Ok(())
    }

    #[test]
    fn the_planner_chooses_by_sizes_and_device() -> Result<()> {
        let kernels = |device: &str, [m, n, k]: [usize; 3], forced: Option<Tile>| {
            let case = Case::<f16, f16, softplus_f16>::new(emulator(device), f16::from_f32)?;
            let [x, w] = [m, n].map(|rows| Tensor::<f16>::zeros(&case.device, [rows, k]));
            let [scales, bias] = [m, n].map(|length| Tensor::<f32>::zeros(&case.device, [length]));
            let (x, w, scales, bias) = (x?, w?, scales?, bias?);
            let parts = forced.map(|_| 3);
            let product = case.product.of(&x, &w, (&scales, &bias)).tile(forced).parts(parts);
            Ok::<_, Error>(product.implementation()?.to_string())
        };
        let (large, one_row) = ([2048, 2048, 1024], [1, 4096, 1024]);
        for (device, sizes, expected) in [
            ("emulator:8.0", large, &["softplus_f16_128x128"][..]),
            ("emulator:8.0", one_row, &["softplus_f16_16x64"]),
            ("emulator:9.0", large, &["softplus_f16_pingpong", "softplus_f16_cooperative"]),
            ("emulator:9.0", one_row, &["softplus_f16_skinny_16x64"]),
            ("emulator:12.0", large, &["softplus_f16_128x128", "softplus_f16_128x64"]),
        ] {
            let told = kernels(device, sizes, None)?;
            assert!(expected.iter().any(|kernel| told.contains(kernel)), "{sizes:?} on {device}: {told}");
        }
        let told = kernels("emulator:9.0", large, Some(Tile::HopperCooperative128x256))?;
        assert!(told.contains("linear_hopper_f16_f32_cooperative_128x256"), "{told}");
        assert!(told.contains("softplus_f16_sums"), "{told}");
        Ok(())
    }

    #[test]
    fn a_variant_without_a_kernel_is_refused_with_those_that_have_one() -> Result<()> {
        let halves = Case::<f16, f16, softplus_f16>::new(emulator("emulator:9.0"), f16::from_f32)?;
        let error = halves.check([64, 64, 64], 0, Some(Tile::Skinny64x64), None).unwrap_err().to_string();
        assert!(error.contains("skinny-16x64-split4") && error.contains("skinny-64x64"), "{error}");
        Ok(())
    }

    #[test]
    fn launches_leave_the_multiprocessors_that_their_stream_leaves() -> Result<()> {
        let case = Case::<f16, f16, softplus_f16>::new(emulator("emulator:9.0"), f16::from_f32)?;
        // More tiles than multiprocessors: launches with one for each block are left alone.
        let [m, n, k] = [12 * 128, 12 * 256, 16];
        let (x, w) = (case.matrix(31, [m, k], k)?, case.matrix(32, [n, k], k)?);
        let [scales, bias] = [(33, m), (34, n)].map(|(seed, length)| {
            Tensor::from_slice(&case.device, &numbers(seed, length), [length]).expect("it fits")
        });
        let run = |stream: &warpsmith::Stream| {
            let product = case.product.of(&x, &w, (&scales, &bias));
            product.tile(Some(Tile::HopperCooperative128x256)).parts(Some(1)).on(stream).run()?.to_vec()
        };
        let stream = case.device.default_stream();
        let (whole, blocks) = with_last_grid(|| run(&stream));
        let (limited, fewer) = with_last_grid(|| run(&stream.with_multiprocessors(6)));
        assert_eq!((blocks, fewer), (132, 6));
        assert_eq!(whole?, limited?);
        Ok(())
    }

    #[test]
    fn operands_that_do_not_fit_are_named() -> Result<()> {
        let case = Case::<f16, f16, softplus_f16>::new(emulator("emulator"), f16::from_f32)?;
        let (x, w) = (case.matrix(1, [4, 8], 8)?, case.matrix(2, [3, 8], 8)?);
        let numbers = Tensor::<f32>::zeros(&case.device, [4])?;
        let of_columns = numbers.slice(0, 0..3)?;
        let run = |x: &Tensor<f16>, w: &Tensor<f16>| case.product.of(x, w, (&numbers, &of_columns)).run();
        let narrow = case.matrix(2, [3, 7], 7)?;
        let error = run(&x, &narrow).unwrap_err().to_string();
        assert!(error.contains("`w` has shape [3, 7]") && error.contains("[N, 8]"), "{error}");
        let flat = x.reshape([32])?;
        assert!(matches!(run(&flat, &w), Err(Error::Shape { operand: "x", .. })));
        let other = Tensor::<f16>::zeros(&Device::cpu(), [3, 8])?;
        assert!(matches!(run(&x, &other), Err(Error::DeviceMismatch { .. })));
        // A number for each row and for each column, no more and no fewer.
        for (operands, operand, of) in
            [((&of_columns, &of_columns), "scale", "row"), ((&numbers, &numbers), "bias", "column")]
        {
            let error = case.product.of(&x, &w, operands).run().unwrap_err();
            assert!(matches!(&error, Error::Shape { operand: of, .. } if *of == operand), "{error}");
            assert!(error.to_string().contains(&format!("one for each {of} of y")), "{error}");
        }
        let mut y = Tensor::<f16>::zeros(&case.device, [3, 4])?;
        let into = case.product.of(&x, &w, (&numbers, &of_columns)).run_into(&mut y);
        assert!(matches!(into, Err(Error::Shape { operand: "y", .. })));
        let mut same = w.slice(1, 0..3)?;
        let into = case.product.of(&w, &w, (&numbers, &numbers)).run_into(&mut same);
        assert!(matches!(into, Err(Error::Overlap { operand: "y", .. })));
        Ok(())
    }

    #[test]
    fn an_epilogue_may_have_no_operands() -> Result<()> {
        let device = Device::emulator();
        let square = fused::product::<square_f16, f16, f32>(&device, &KERNELS)?;
        let x: Vec<f16> = numbers(25, 5 * 24).into_iter().map(f16::from_f32).collect();
        let x = Tensor::from_slice(&device, &x, [5, 24])?;
        let worst = square.of(&x, &x, ()).check(|sum| {
            let exact = sum.value * sum.value;
            (exact, 1.01 * (2.0 * sum.value.abs() * sum.error + sum.error * sum.error + U * exact))
        })?;
        assert!(worst.is_some_and(|worst| worst.is_within()), "{}", worst.unwrap());
        Ok(())
    }

    #[test]
    fn numbers_of_rows_of_columns_and_of_all_reach_the_function() -> Result<()> {
        for device in ["emulator", "emulator:9.0"].map(emulator) {
            let clipped = fused::product::<clipped_f16, f16, f32>(&device, &KERNELS)?;
            let [m, n, k] = [19, 70, 24];
            // Whole numbers: every result is exact.
            let whole = |seed, count| numbers(seed, count).into_iter().map(|x| (x * 4.0).round()).collect();
            let [x, w, a, scales, b]: [Vec<f32>; 5] =
                [(41, m * k), (42, n * k), (43, n), (44, m), (45, n)].map(|(seed, count)| whole(seed, count));
            let halves = |numbers: &[f32]| numbers.iter().copied().map(f16::from_f32).collect::<Vec<_>>();
            let on_x = Tensor::from_slice(&device, &halves(&x), [m, k])?;
            let on_w = Tensor::from_slice(&device, &halves(&w), [n, k])?;
            let on_b: Vec<bf16> = b.iter().copied().map(bf16::from_f32).collect();
            let [on_a, on_scales] =
                [&a, &scales].map(|numbers| Tensor::from_slice(&device, numbers, [numbers.len()]));
            let (on_a, on_scales, on_b) = (on_a?, on_scales?, Tensor::from_slice(&device, &on_b, [n])?);
            let operands = (&on_a, &on_scales, &on_b, -3.0f32, -2i32, 5u32);
            let y = clipped.of(&on_x, &on_w, operands).run()?.to_vec()?;
            for (at, y) in y.into_iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let sum: f32 = (0..k).map(|k_| x[row * k + k_] * w[column * k + k_]).sum();
                assert_eq!(
                    y,
                    -2.0 * (sum + a[column] + b[column]).max(-3.0) * scales[row] + 5.0,
                    "{row}, {column}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn parameters_may_be_called_like_the_function_and_like_each_other() -> Result<()> {
        for device in ["emulator", "emulator:9.0"].map(emulator) {
            let product = fused::product::<bias_bf16, bf16, f32>(&device, &KERNELS)?;
            let [m, n, k] = [5, 9, 16];
            let ones = |rows: usize| Tensor::from_slice(&device, &vec![bf16::ONE; rows * k], [rows, k]);
            let counted = |of: usize| {
                Tensor::from_slice(&device, &(0..of).map(|at| at as f32).collect::<Vec<_>>(), [of])
            };
            let (x, w, row, column) = (ones(m)?, ones(n)?, counted(m)?, counted(n)?);
            let y = product.of(&x, &w, (&row, &row, &column, 0.5f32, 7u32)).run()?.to_vec()?;
            for (at, y) in y.into_iter().enumerate() {
                let (row, column) = ((at / n) as f32, (at % n) as f32);
                assert_eq!(y, row * (k as f32 + column) + row * 0.5 + 7.0);
            }
            // Of outputs without elements, too, operands are held to their lengths.
            let none = Tensor::<bf16>::zeros(&device, [0, k])?;
            let refused = product.of(&none, &w, (&row, &row, &column, 0.5f32, 7u32)).run();
            assert!(matches!(refused, Err(Error::Shape { operand: "row", .. })));
        }
        Ok(())
    }

    #[test]
    fn a_struct_reads_at_the_places_that_it_chooses() -> Result<()> {
        let device = Device::emulator();
        let grouped = fused::product::<grouped_f16, f16, f32>(&device, &KERNELS)?;
        let x: Vec<f16> = numbers(51, 7 * 24).into_iter().map(f16::from_f32).collect();
        let x = Tensor::from_slice(&device, &x, [7, 24])?;
        let scales = Tensor::from_slice(&device, &[1.0f32, -0.5, 2.0], [3])?;
        let worst = grouped.of(&x, &x, (&scales, 3u32, 0.25f32)).check(|sum| {
            let scale = [1.0, -0.5, 2.0][sum.column / 3];
            (0.25 + scale * sum.value, scale.abs() * sum.error + 2.0 * U * ((scale * sum.value).abs() + 0.25))
        })?;
        assert!(worst.is_some_and(|worst| worst.is_within()), "{}", worst.unwrap());
        Ok(())
    }
}
