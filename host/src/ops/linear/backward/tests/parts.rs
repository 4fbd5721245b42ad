//! Gradients that are parts of one tensor.

use super::matrix;
use crate::error::Error;
use crate::ops::linear::LinearGradientOutputs;
use crate::ops::{self, Activation};
use crate::{Device, Tensor};

#[test]
fn gradients_may_be_parts_of_one_tensor() {
    let (rows, columns, sums) = (9, 24, 16);
    for device in [Device::cpu(), Device::emulator()] {
        let [x, w, dy, z] = [[rows, sums], [columns, sums], [rows, columns], [rows, columns]]
            .map(|shape| matrix(&device, shape));
        let backward =
            ops::linear_backward(&x, &w, &dy).activation(Activation::Silu).preactivation(&z).residual(0.5);
        let bits = |tensor: &Tensor<f32>| tensor.to_vec().expect("it is read");
        let expected = backward.run().expect("it runs");
        let expected_dz = backward.dz().expect("it runs");

        // Blocks of columns, and what is left of the last one; all weights' gradients one after the other.
        let side_by_side = matrix(&device, [rows, sums + 2 * columns + 3]);
        let block =
            |start: usize, length: usize| side_by_side.slice(1, start..start + length).expect("it fits");
        let flat = matrix(&device, [1, columns * sums + columns + 5]).reshape([columns * sums + columns + 5]);
        let flat = flat.expect("it fits");
        let [mut dx, mut dresidual, mut dz] =
            [block(0, sums), block(sums, columns), block(sums + columns, columns)];
        let dw = flat.slice(0, 0..columns * sums).and_then(|dw| dw.reshape([columns, sums]));
        let (mut dw, mut db) =
            (dw.expect("it fits"), flat.slice(0, columns * sums..columns * sums + columns).expect("it fits"));
        let (rest, rest_of_flat) =
            (block(sums + 2 * columns, 3), flat.slice(0, (sums + 1) * columns..flat.len()));
        let rest_of_flat = rest_of_flat.expect("it fits");
        let before = [bits(&rest), bits(&rest_of_flat)];
        let outputs = LinearGradientOutputs {
            dx: Some(&mut dx),
            dw: Some(&mut dw),
            db: Some(&mut db),
            dresidual: Some(&mut dresidual),
            dz: Some(&mut dz),
            ..Default::default()
        };
        backward.run_into(outputs).expect("nothing overlaps");
        assert_eq!(bits(&dx), bits(&expected.dx));
        assert_eq!(bits(&dw), bits(&expected.dw));
        assert_eq!(bits(&db), bits(&expected.db));
        assert_eq!(bits(&dresidual), bits(&expected.dresidual.expect("there is one")));
        assert_eq!(bits(&dz), bits(&expected_dz));
        assert_eq!([bits(&rest), bits(&rest_of_flat)], before, "nothing else is written");

        let mut over = block(sums - 1, columns);
        let outputs = LinearGradientOutputs::<_, _, f32> {
            dx: Some(&mut dx),
            dresidual: Some(&mut over),
            ..Default::default()
        };
        let error = backward.run_into(outputs).expect_err("a column is of both");
        assert!(matches!(error, Error::Overlap { operand: "dx", other: "dresidual", .. }), "{error}");
    }
}
