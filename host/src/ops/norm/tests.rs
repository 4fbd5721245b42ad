//! Rows near zero. The conformance tests compare with f64, whatever is drawn.

use half::{bf16, f16};

use super::{NormElement, NormGradientOutputs};
use crate::ops::rows::{RowElement, widened};
use crate::ops::softmax::SoftmaxElement;
use crate::{Device, EmulatorOptions, Tensor, ops};

/// The unit of rounding of f32.
const U: f32 = 1.0 / (1u32 << 24) as f32;
/// Columns of rows in a part of a warp, in a block and in rounds, or a cluster: aligned and not.
const COLUMNS: [usize; 6] = [8, 7, 64, 1002, 16_384, 16_383];

fn devices() -> [Device; 3] {
    ["emulator:8.0", "emulator:9.0", "cpu"].map(|name| name.parse().expect("a device"))
}

/// Two rows that repeat some numbers.
fn rows<T: RowElement>(device: &Device, columns: usize, pattern: &[f32]) -> Tensor<T> {
    let row = pattern.iter().map(|&number| T::from_accumulator(number)).cycle().take(columns);
    let both: Vec<T> = row.clone().chain(row).collect();
    Tensor::from_slice(device, &both, [2, columns]).expect("it fits")
}

#[test]
fn numbers_whose_squares_are_nothing_have_an_infinite_deviation() {
    let small = 2f32.powi(-100);
    for device in devices() {
        for columns in COLUMNS {
            let x = rows::<f32>(&device, columns, &[small, -small, 0.0, -0.0]);
            let normed = ops::rms_norm(&x).epsilon(0.0).run_saving::<f32>().expect("it runs");
            let deviation = normed.inverse_deviation.to_vec().expect("it is there");
            assert_eq!(deviation, [f32::INFINITY; 2], "{device:?}, {columns}");
            let y = normed.y.to_vec().expect("it is there");
            for (x, y) in x.to_vec().expect("it is there").into_iter().zip(y) {
                let is_right = if x == 0.0 { y.is_nan() } else { y == x.signum() * f32::INFINITY };
                assert!(is_right, "{device:?}, {columns}: {x} gives {y}");
            }
            // The mean of as many positive and negative numbers is exact.
            let x = rows::<f32>(&device, columns / 2 * 2, &[small, -small]);
            let y = ops::layer_norm(&x).epsilon(0.0).run().expect("it runs").to_vec().expect("it is there");
            for (x, y) in x.to_vec().expect("it is there").into_iter().zip(y) {
                assert_eq!(y, x.signum() * f32::INFINITY, "{device:?}, {columns}");
            }
        }
    }
}

#[test]
fn numbers_whose_squares_are_subnormal_are_normed_as_any() {
    // Its square is a subnormal power of two, and so is the mean of as many of them as another one.
    let small = 2f32.powi(-68);
    for device in devices() {
        for columns in [8, 64, 16_384] {
            let x = rows::<f32>(&device, columns, &[small, -small]);
            for norm in [ops::rms_norm(&x), ops::layer_norm(&x)] {
                let y = norm.epsilon(0.0).run().expect("it runs").to_vec().expect("it is there");
                for (x, y) in x.to_vec().expect("it is there").into_iter().zip(y) {
                    // The root's error, and that of the product.
                    assert!((y - x.signum()).abs() <= 5.0 * U, "{device:?}, {columns}: {y}");
                }
            }
        }
    }
}

fn zeros_keep_their_sign<T: ops::norm::NormElement, Y: RowElement>(device: &Device) {
    for columns in COLUMNS {
        let x = rows::<T>(device, columns, &[1.0, -1.0, 0.0, -0.0]);
        for sign in [1.0, -1.0] {
            let weight: Vec<T> = vec![T::from_accumulator(sign); columns];
            let weight = Tensor::from_slice(device, &weight, [columns]).expect("it fits");
            for norm in [ops::rms_norm(&x), ops::layer_norm(&x)] {
                let y = norm.weight(&weight).run_as::<Y>().expect("it runs");
                let mut numbers = [vec![0.0; 2 * columns], vec![0.0; 2 * columns]];
                T::widen(&x.to_vec().expect("it is there"), &mut numbers[0]);
                Y::widen(&y.to_vec().expect("it is there"), &mut numbers[1]);
                for (x, y) in numbers[0].iter().zip(&numbers[1]) {
                    let expected = (x * sign).is_sign_negative();
                    assert_eq!(
                        (*y == 0.0, y.is_sign_negative()),
                        (*x == 0.0, expected),
                        "{device:?}, {columns}"
                    );
                }
            }
        }
    }
}

#[test]
fn zeros_without_a_bias_keep_their_sign() {
    for device in devices() {
        zeros_keep_their_sign::<f32, f32>(&device);
        zeros_keep_their_sign::<f16, f16>(&device);
        zeros_keep_their_sign::<f16, f32>(&device);
    }
}

/// However many threads share a row, it is added up to the same bits: on a GPU of one multiprocessor, where few rows have few, and among many rows.
#[test]
fn results_of_a_row_depend_on_nothing_but_the_row() {
    expect_same_bits::<f32>(&[(5, 2300), (36, 2300), (70, 700), (400, 300), (1003, 300), (2000, 270)]);
    expect_same_bits::<bf16>(&[(40, 2300), (70, 700), (129, 700), (400, 300), (1003, 300), (3000, 270)]);
}

/// Of rows of so many columns, among as many others.
fn expect_same_bits<T: NormElement + SoftmaxElement>(widths: &[(usize, usize)]) {
    let of = |multiprocessors| {
        let options =
            EmulatorOptions { multiprocessors: Some(multiprocessors), ..EmulatorOptions::default() };
        Device::emulator_with(options)
    };
    let mut are_shared_differently = [0; 3];
    for &(columns, many) in widths {
        let numbers = |seed: usize| -> Vec<T> {
            let of = |at: usize| ((at * 7919 + seed) % 1021) as f32 / 64.0 - 7.0;
            (0..many * columns).map(|at| T::from_accumulator(of(at))).collect()
        };
        let (x, dy) = (numbers(1), numbers(57));
        let results = |device: &Device, rows: usize| {
            let tensor = |of: &[T]| {
                Tensor::from_slice(device, &of[..rows * columns], [rows, columns]).expect("it fits")
            };
            let (x, dy) = (tensor(&x), tensor(&dy));
            let bits = |of: &[f32], count: usize| of[..count].iter().map(|number| number.to_bits()).collect();
            let mut results: Vec<Vec<u32>> = Vec::new();
            for norm in [ops::layer_norm(&x), ops::rms_norm(&x)] {
                let normed = norm.run_saving::<f32>().expect("it runs");
                results.push(bits(&normed.y.to_vec().expect("it is there"), columns));
                for saved in normed.mean.iter().chain([&normed.inverse_deviation]) {
                    results.push(bits(&saved.to_vec().expect("it is there"), 1));
                }
                let dx = norm.backward(&dy).run().expect("it runs").dx;
                results.push(bits(&widened(&dx).expect("it is there"), columns));
            }
            let softmax = ops::softmax(&x).run().expect("it runs");
            let dx = ops::softmax_gradient(&softmax, &dy).run().expect("it runs");
            results.push(bits(&widened(&dx).expect("it is there"), columns));
            let norm = ops::layer_norm(&x);
            let saved = norm.run_saving::<f32>().expect("it runs");
            let kernels = [
                norm.implementation(),
                norm.backward(&dy).statistics(&saved.mean, &saved.inverse_deviation).implementation(),
                ops::softmax_gradient(&softmax, &dy).implementation(),
            ];
            (kernels.map(|kernel| kernel.expect("a kernel").to_string()), results)
        };
        let [one, large] = [of(1), of(132)];
        let expected = results(&large, 40);
        let others = [results(&one, 40), results(&large, 1), results(&large, many)];
        for other in &others {
            assert!(expected.1 == other.1, "{columns} columns: {:?} and {:?}", expected.0, other.0);
        }
        for (count, which) in are_shared_differently.iter_mut().zip(0..) {
            *count += usize::from(others[0].0[which] != expected.0[which]);
        }
    }
    let [norm, gradient, softmax] = are_shared_differently;
    // The gradient of a norm is planned for as many multiprocessors on every GPU.
    assert!(norm >= 4 && gradient == 0 && softmax >= 3, "rows of {are_shared_differently:?} widths");
}

/// Gradients of rows that are wider than threads have registers for: into what the rows were read from, apart, and those of the columns alone.
#[test]
fn gradients_of_wide_rows_are_those_of_the_cpu() {
    let cpu = Device::cpu();
    // Without clusters, of one part and of several. Whole numbers, of which the CPU's sums in another order are as good as exact.
    for (rows, columns) in [(3, 4104), (70, 4100), (33, 4097)] {
        let numbers = |seed: usize| -> Vec<f32> {
            (0..rows * columns).map(|at| ((at * 31 + seed) % 13) as f32 - 6.0).collect()
        };
        let (x, dy) = (numbers(1), numbers(5));
        let weight: Vec<f32> = (0..columns).map(|at| (at % 5) as f32 - 2.0).collect();
        let gradients = |device: &Device, place: usize| -> Vec<Vec<f32>> {
            let tensor = |of: &[f32]| Tensor::from_slice(device, of, [rows, columns]).expect("it fits");
            let (x, dy) = (tensor(&x), tensor(&dy));
            let weight = Tensor::from_slice(device, &weight, [columns]).expect("it fits");
            let norm = ops::layer_norm(&x).weight(&weight);
            let [mut dweight, mut dbias] =
                [(); 2].map(|()| Tensor::<f32>::zeros(device, [columns]).expect("it fits"));
            let mut dx = match place {
                0 => Tensor::zeros(device, [rows, columns]).expect("it fits"),
                1 => x.clone(),
                _ => dy.clone(),
            };
            let outputs = NormGradientOutputs {
                dx: (place < 3).then_some(&mut dx),
                dweight: Some(&mut dweight),
                dbias: Some(&mut dbias),
                adds: false,
            };
            norm.backward(&dy).run_into(outputs).expect("it runs");
            let dx = if place < 3 { dx.to_vec().expect("it is there") } else { Vec::new() };
            vec![dx, dweight.to_vec().expect("it is there"), dbias.to_vec().expect("it is there")]
        };
        for device in ["emulator:8.0", "emulator:9.0"].map(|name| name.parse().expect("a device")) {
            for place in 0..4 {
                let (got, expected) = (gradients(&device, place), gradients(&cpu, place));
                for (which, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let largest = expected.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
                    assert_eq!(got.len(), expected.len());
                    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                        // A sum of so many terms, each rounded.
                        let bound = columns as f32 * U * largest.max(1.0);
                        assert!(
                            (got - expected).abs() <= bound,
                            "{rows} × {columns}, place {place}, result {which}, {at}: {got}, {expected}"
                        );
                    }
                }
            }
        }
    }
    // On a GPU with clusters these fit registers; without, not.
    let of_8_0: Device = "emulator:8.0".parse().expect("a device");
    let x = Tensor::<f32>::zeros(&of_8_0, [70, 4104]).expect("it fits");
    let told = ops::layer_norm(&x).backward(&x).implementation().expect("a kernel").to_string();
    assert!(told.contains("norm_columns_f32"), "{told}");
}
