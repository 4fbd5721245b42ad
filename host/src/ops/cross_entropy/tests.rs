//! Rows that do not count, bad rows, many and no rows, other layouts, and what is refused. The conformance tests compare with f64, whatever is drawn.

use half::f16;

use super::{CrossEntropyOutputs, Reduction};
use crate::{Device, Error, Tensor, ops};

const U: f64 = 1.0 / (1u64 << 24) as f64;

fn devices() -> [Device; 3] {
    ["emulator:8.0", "emulator:9.0", "cpu"].map(|name| name.parse().expect("a device"))
}

/// A matrix of numbers in ±1.
fn matrix(device: &Device, [rows, columns]: [usize; 2]) -> Tensor<f32> {
    let numbers: Vec<f32> = (0..rows * columns).map(|at| (at * 7919 % 2003) as f32 / 1001.0 - 1.0).collect();
    Tensor::from_slice(device, &numbers, [rows, columns]).expect("it fits")
}

#[test]
fn the_kernels_are_told_in_their_order() {
    let [before, device, _] = devices();
    let labels = Tensor::<i64>::zeros(&device, [4]).expect("it fits");
    let logits = Tensor::<f32>::zeros(&device, [4, 129_920]).expect("it fits");
    let of = |reduction| ops::cross_entropy(&logits, &labels).reduction(reduction).implementation();
    for (reduction, expected) in [
        (Reduction::Mean, vec!["label_counts", "cross_entropy_cluster_f32", "loss_sums"]),
        (Reduction::Sum, vec!["cross_entropy_cluster_f32", "loss_sums"]),
        (Reduction::None, vec!["cross_entropy_cluster_f32"]),
    ] {
        let implementation = of(reduction).expect("it fits");
        let kernels: Vec<_> = implementation.launches().iter().map(|launch| launch.kernel).collect();
        assert_eq!(kernels, expected);
    }
    let labels = Tensor::<u32>::zeros(&before, [4]).expect("it fits");
    let logits = Tensor::<f16>::zeros(&before, [4, 12]).expect("it fits");
    let implementation = ops::cross_entropy(&logits, &labels).reduction(Reduction::None).implementation();
    assert_eq!(implementation.expect("it fits").launches()[0].kernel, "cross_entropy_any_f16");
}

#[test]
fn rows_that_do_not_count_change_nothing() {
    for device in devices() {
        let mut numbers = vec![f32::NAN; 5 * 40];
        numbers[40..80].copy_from_slice(&(0..40).map(|at| (at * 7 % 11) as f32 / 4.0).collect::<Vec<_>>());
        let logits = Tensor::from_slice(&device, &numbers, [5, 40]).expect("it fits");
        let ignored = Tensor::from_slice(&device, &[-100i64; 5], [5]).expect("it fits");
        for reduction in [Reduction::Mean, Reduction::Sum] {
            let losses = ops::cross_entropy(&logits, &ignored)
                .reduction(reduction)
                .run_with_gradient()
                .expect("it fits");
            assert_eq!(losses.loss.to_vec().expect("it is there"), [0.0]);
            assert_eq!(losses.gradient.to_vec().expect("it is there"), [0.0; 200]);
        }
        let labels = Tensor::from_slice(&device, &[-100i64, 3, -100, -100, -100], [5]).expect("it fits");
        let (loss, lse) = ops::cross_entropy(&logits, &labels).run_with_lse().expect("it fits");
        let one = (logits.slice(0, 1..2).expect("within"), labels.slice(0, 1..2).expect("within"));
        let alone = ops::cross_entropy(&one.0, &one.1).run().expect("it fits");
        assert_eq!(loss.to_vec().expect("there"), alone.to_vec().expect("there"));
        let lse = lse.to_vec().expect("it is there");
        assert!(lse[0].is_nan() && lse[1].is_finite() && lse[4].is_nan());
    }
}

#[test]
fn infinite_logits_and_labels_outside_are_told_by_their_rows() {
    let least = f32::NEG_INFINITY;
    for device in devices() {
        let x = [[1.0, least, 0.0], [least; 3], [1.0, f32::NAN, 0.0], [1.0, 2.0, 0.0], [1.0, least, 0.0]];
        let logits = Tensor::from_slice(&device, x.as_flattened(), [5, 3]).expect("it fits");
        for outside in [3, -1, i64::MIN, i64::MAX, 1 << 32] {
            let labels = Tensor::from_slice(&device, &[0, 0, 0, outside, 1], [5]).expect("it fits");
            let operation = ops::cross_entropy(&logits, &labels).reduction(Reduction::None);
            let losses = operation.run_with_gradient().expect("it fits");
            let (loss, gradient) =
                (losses.loss.to_vec().expect("there"), losses.gradient.to_vec().expect("there"));
            assert!((loss[0] - (1.0 + (-1f32).exp()).ln()).abs() < 1e-6);
            assert!(loss[1].is_nan() && loss[2].is_nan() && loss[3].is_nan());
            assert_eq!(loss[4], f32::INFINITY);
            assert!(gradient[..3].iter().all(|g| g.is_finite()) && gradient[1] == 0.0);
            assert!(gradient[3..12].iter().all(|g| g.is_nan()));
            assert_eq!(gradient[13], -1.0);
            let mean = operation.reduction(Reduction::Mean).run().expect("it fits");
            assert!(mean.to_vec().expect("it is there")[0].is_nan());
        }
    }
}

#[test]
fn many_rows_are_summed_in_parts() {
    for device in devices() {
        let rows = 5000;
        let logits = matrix(&device, [rows, 3]);
        let labels: Vec<u32> =
            (0..rows as u32).map(|row| if row % 5 == 0 { u32::MAX } else { row % 3 }).collect();
        let labels = Tensor::from_slice(&device, &labels, [rows]).expect("it fits");
        let operation = ops::cross_entropy(&logits, &labels).ignored_label(i64::from(u32::MAX));
        let each = operation.reduction(Reduction::None).run().expect("it fits").to_vec().expect("there");
        let sum: f64 = each.iter().map(|&loss| f64::from(loss)).sum();
        // Losses of up to 2: of 8 and 3 in a row, and the rest over lanes, warps and parts.
        let bound = 5000.0 * 2.0 * 48.0 * U;
        let found = operation.reduction(Reduction::Sum).run().expect("it fits").to_vec().expect("there")[0];
        assert!((f64::from(found) - sum).abs() <= bound, "{found} {sum}");
        let losses = operation.run_with_gradient().expect("it fits");
        let mean = losses.loss.to_vec().expect("there")[0];
        assert!((f64::from(mean) - sum / 4000.0).abs() <= (bound + 8.0 * U * sum) / 4000.0, "{mean} {sum}");
        let gradient = losses.gradient.to_vec().expect("there");
        assert_eq!(gradient[..3], [0.0; 3]);
        // Of each row it adds up to 0, and is at most 1 in 4000.
        assert!(
            gradient
                .chunks(3)
                .all(|row| row.iter().sum::<f32>().abs() < 1e-9 && row[0].abs() <= 1.001 / 4000.0)
        );
    }
}

#[test]
fn no_rows_lose_nothing_and_no_columns_have_no_label() {
    for device in devices() {
        let logits = Tensor::<f16>::zeros(&device, [0, 7]).expect("it fits");
        let labels = Tensor::<i64>::zeros(&device, [0]).expect("it fits");
        let operation = ops::cross_entropy(&logits, &labels);
        assert_eq!(operation.run().expect("it fits").to_vec().expect("there"), [0.0]);
        assert_eq!(operation.reduction(Reduction::None).run().expect("it fits").shape(), [0]);
        let logits = Tensor::<f16>::zeros(&device, [2, 0]).expect("it fits");
        let labels = Tensor::from_slice(&device, &[0i64, -100], [2]).expect("it fits");
        let operation = ops::cross_entropy(&logits, &labels).reduction(Reduction::None);
        let loss = operation.run_with_gradient().expect("it fits").loss.to_vec().expect("there");
        assert!(loss[0].is_nan() && loss[1] == 0.0);
        let row = Tensor::<f32>::zeros(&device, [4]).expect("it fits");
        let label = Tensor::<i64>::zeros(&device, []).expect("it fits");
        let loss = ops::cross_entropy(&row, &label).run().expect("it fits").to_vec().expect("there");
        assert!((loss[0] - 4f32.ln()).abs() < 1e-6);
    }
}

#[test]
fn other_strides_are_taken_too() {
    for device in devices() {
        let logits = matrix(&device, [6, 4]).reshape([2, 3, 4]).expect("it fits");
        let labels = Tensor::from_slice(&device, &[0i32, 1, 2, 3, 0, 1], [2, 3]).expect("it fits");
        let turned = (logits.swap_axes(0, 1).expect("there"), labels.swap_axes(0, 1).expect("there"));
        let operation = ops::cross_entropy(&turned.0, &turned.1).reduction(Reduction::None);
        let (loss, gradient) = {
            let losses = operation.run_with_gradient().expect("it fits");
            (losses.loss, losses.gradient)
        };
        let plain = ops::cross_entropy(&logits, &labels)
            .reduction(Reduction::None)
            .run_with_gradient()
            .expect("it fits");
        let [loss, gradient] = [
            loss.swap_axes(0, 1).expect("there").to_vec(),
            gradient.swap_axes(0, 1).expect("there").to_vec(),
        ];
        assert_eq!(loss.expect("there"), plain.loss.to_vec().expect("there"));
        assert_eq!(gradient.expect("there"), plain.gradient.to_vec().expect("there"));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::cpu();
    let logits = Tensor::<f32>::zeros(&device, [4, 6]).expect("it fits");
    let labels = Tensor::<i64>::zeros(&device, [4]).expect("it fits");
    let plain = || ops::cross_entropy(&logits, &labels);
    for (argument, operation) in [
        ("label_smoothing", plain().label_smoothing(1.5)),
        ("label_smoothing", plain().label_smoothing(f32::NAN)),
        ("z_loss", plain().z_loss(f32::INFINITY)),
        ("soft_cap", plain().soft_cap(0.0)),
        ("soft_cap", plain().soft_cap(-30.0)),
        ("gradient_scale", plain().gradient_scale(f32::NAN)),
    ] {
        let Err(Error::Argument { argument: found, .. }) = operation.run() else {
            panic!("{argument} is taken")
        };
        assert_eq!(found, argument);
    }
    for shape in [vec![], vec![3], vec![4, 1]] {
        let labels = Tensor::<i64>::zeros(&device, &shape).expect("it fits");
        let refused = ops::cross_entropy(&logits, &labels).run();
        assert!(matches!(refused, Err(Error::Shape { operand: "labels", .. })));
    }
    for (scale, operand) in [(2, "gradient_scale_on_device"), (0, "gradient_scale_on_device")] {
        let scale = Tensor::<f32>::zeros(&device, [scale]).expect("it fits");
        let refused = plain().gradient_scale_on_device(&scale).run();
        assert!(matches!(refused, Err(Error::Shape { operand: found, .. }) if found == operand));
    }
    let elsewhere = Tensor::<i64>::zeros(&Device::emulator(), [4]).expect("it fits");
    let refused = ops::cross_entropy(&logits, &elsewhere).run();
    assert!(matches!(refused, Err(Error::DeviceMismatch { operand: "labels", .. })));
    let mut loss = Tensor::<f32>::zeros(&device, [4]).expect("it fits");
    let mut lse = loss.clone();
    let outputs = CrossEntropyOutputs::<f32> { loss: Some(&mut loss), lse: Some(&mut lse), gradient: None };
    let refused = plain().reduction(Reduction::None).run_into(outputs);
    assert!(matches!(refused, Err(Error::Overlap { operand: "loss", other: "lse", .. })));
    let outputs = CrossEntropyOutputs::<f32> { loss: Some(&mut loss), ..Default::default() };
    assert!(matches!(plain().run_into(outputs), Err(Error::Shape { operand: "loss", .. })));
    let mut part = logits.slice(0, 0..2).expect("it is within");
    let of = logits.slice(0, 1..3).expect("it is within");
    let two = labels.slice(0, 0..2).expect("it is within");
    let outputs = CrossEntropyOutputs { gradient: Some(&mut part), ..Default::default() };
    let refused = ops::cross_entropy(&of, &two).run_into(outputs);
    assert!(matches!(refused, Err(Error::Overlap { operand: "gradient", other: "logits", .. })));
}
