//! Rows of nothing, bad rows, other layouts, and what is refused. The conformance tests compare with f64, whatever is drawn.

use half::{bf16, f16};

use crate::{Device, Error, Tensor, ops};

fn devices() -> [Device; 3] {
    ["emulator:8.0", "emulator:9.0", "cpu"].map(|name| name.parse().expect("a device"))
}

#[test]
fn wide_rows_have_clusters_and_odd_ones_kernels_of_their_own() {
    let [before, device, _] = devices();
    let x = Tensor::<bf16>::zeros(&device, [300, 16_400]).expect("it fits");
    let odd = x.slice(1, 1..10).expect("it is within");
    let narrow = x.slice(1, 0..512).expect("it is within");
    let older = Tensor::<bf16>::zeros(&before, [300, 16_400]).expect("it fits");
    for (x, expected) in [
        (&x, "softmax_cluster_bf16"),
        (&odd, "softmax_any_bf16"),
        (&narrow, "softmax_bf16"),
        (&older, "softmax_bf16"),
    ] {
        let implementation = ops::softmax(x).implementation().expect("it fits");
        assert_eq!(implementation.launches()[0].kernel, expected, "{implementation}");
    }
    let implementation = ops::softmax_gradient(&x, &x).implementation().expect("it fits");
    assert_eq!(implementation.launches()[0].kernel, "softmax_cluster_gradient_bf16", "{implementation}");
    let mask = Tensor::<u8>::zeros(&device, [520]).expect("it fits").slice(0, 1..513).expect("it is within");
    let implementation = ops::softmax(&narrow).mask(&mask).implementation().expect("it fits");
    assert_eq!(implementation.launches()[0].kernel, "softmax_any_bf16", "a mask of odd alignment");
}

#[test]
fn a_row_of_nothing_is_zeros_and_a_bad_one_stays_alone() {
    let (nan, least) = (f32::NAN, f32::NEG_INFINITY);
    for device in devices() {
        let x = [[1.0, 2.0, 1.0], [nan, 2.0, least], [least; 3], [f32::INFINITY, 0.0, 0.0], [1.0, 2.0, 1.0]];
        let x = Tensor::from_slice(&device, x.as_flattened(), [5, 3]).expect("it fits");
        let y = ops::softmax(&x).run().expect("it fits").to_vec().expect("it is there");
        assert_eq!(y[..3], y[12..]);
        assert!(y[..3].iter().all(|y| *y > 0.2));
        assert!(y[3].is_nan() && y[4].is_nan() && y[5] == 0.0);
        assert_eq!(y[6..9], [0.0; 3]);
        assert!(y[9..12].iter().all(|y| y.is_nan()));
        // The mask takes NaN and ∞ out.
        let mask = Tensor::from_slice(&device, &[0u8, 1, 1], [3]).expect("it fits");
        let y = ops::softmax(&x).mask(&mask).run().expect("it fits").to_vec().expect("it is there");
        assert_eq!(y[3..6], [0.0, 1.0, 0.0]);
        assert_eq!(y[9..12], [0.0, 0.5, 0.5]);
    }
}

#[test]
fn other_axes_and_no_elements_are_taken_too() {
    for device in devices() {
        for shape in [vec![0, 4], vec![4, 0], vec![0]] {
            let x = Tensor::<f16>::zeros(&device, &shape).expect("it fits");
            assert_eq!(ops::softmax(&x).run().expect("it fits").shape(), &shape[..]);
            assert_eq!(ops::softmax_gradient(&x, &x).run().expect("it fits").shape(), &shape[..]);
        }
        let numbers: Vec<f32> = (0..24).map(|at| (at * 7 % 11) as f32 / 4.0).collect();
        let x = Tensor::from_slice(&device, &numbers, [2, 3, 4]).expect("it fits");
        let turned = x.swap_axes(0, 2).expect("there are three");
        let y = ops::softmax(&turned).run().expect("it fits");
        let same = ops::softmax(&turned.deep_clone().expect("it fits")).run().expect("it fits");
        assert_eq!((y.shape(), y.to_vec().expect("there")), (&[4, 3, 2][..], same.to_vec().expect("there")));
        let row = ops::softmax(&x.reshape([24]).expect("it fits")).run().expect("it fits");
        assert!((row.to_vec().expect("there").iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::cpu();
    let x = Tensor::<f32>::zeros(&device, [4, 6]).expect("it fits");
    let refused = |operation: ops::softmax::SoftmaxOp<'_, f32>| operation.run().expect_err("it does not fit");
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-38] {
        assert!(matches!(refused(ops::softmax(&x).scale(scale)), Error::Argument { argument: "scale", .. }));
    }
    assert!(matches!(
        refused(ops::softmax(&x).temperature(0.0)),
        Error::Argument { argument: "temperature", .. }
    ));
    for shape in [vec![4], vec![6, 4], vec![4, 1], vec![2, 6], vec![]] {
        let mask = Tensor::<u8>::zeros(&device, &shape).expect("it fits");
        assert!(matches!(refused(ops::softmax(&x).mask(&mask)), Error::Shape { operand: "mask", .. }));
    }
    let elsewhere = Tensor::<u8>::zeros(&Device::emulator(), [6]).expect("it fits");
    assert!(matches!(
        refused(ops::softmax(&x).mask(&elsewhere)),
        Error::DeviceMismatch { operand: "mask", .. }
    ));
    let point = Tensor::<f32>::zeros(&device, []).expect("it fits");
    assert!(matches!(refused(ops::softmax(&point)), Error::Shape { operand: "x", .. }));
    let mut part = x.slice(0, 0..2).expect("it is within");
    let of = x.slice(0, 1..3).expect("it is within");
    let overlap = ops::softmax(&of).run_into(&mut part);
    assert!(matches!(overlap, Err(Error::Overlap { operand: "y", other: "x", .. })));
    let overlap = ops::softmax_gradient(&of, &of).run_into(&mut part);
    assert!(matches!(overlap, Err(Error::Overlap { operand: "dx", other: "y", .. })));
    let mut other = Tensor::<f16>::zeros(&device, [6, 4]).expect("it fits");
    assert!(matches!(ops::softmax(&x).run_into(&mut other), Err(Error::Shape { operand: "y", .. })));
    let mut turned = other.swap_axes(0, 1).expect("there are two");
    assert!(matches!(ops::softmax(&x).run_into(&mut turned), Err(Error::Stride { operand: "y", .. })));
    let dy = Tensor::<f32>::zeros(&device, [4, 5]).expect("it fits");
    let refused = ops::softmax_gradient(&x, &dy).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "dy", .. })));
    let refused = ops::softmax(&dy).backward(&x, &x).run();
    assert!(matches!(refused, Err(Error::Shape { operand: "y", .. })));
}
