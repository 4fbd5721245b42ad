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

        // Blocks of columns, and what is left of the last one; all weights' gradients one after the other.
        let side_by_side = || matrix(&device, [rows, sums + 2 * columns + 3]);
        let flat =
            || matrix(&device, [1, columns * sums + columns + 5]).reshape([columns * sums + columns + 5]);
        let of = |side_by_side: &Tensor<f32>, flat: &Tensor<f32>| {
            let block =
                |start: usize, length: usize| side_by_side.slice(1, start..start + length).expect("it fits");
            let dw = flat.slice(0, 0..columns * sums).and_then(|dw| dw.reshape([columns, sums]));
            let db = flat.slice(0, columns * sums..columns * sums + columns);
            let blocks = [block(0, sums), block(sums, columns), block(sums + columns, columns)];
            (blocks, dw.expect("it fits"), db.expect("it fits"))
        };
        // Each in a tensor of its own, as far from its beginning: the order of sums depends on the alignment.
        let apart = || of(&side_by_side(), &flat().expect("it fits"));
        let [mut expected_dx, _, _] = apart().0;
        let [_, mut expected_dresidual, _] = apart().0;
        let [_, _, mut expected_dz] = apart().0;
        let (mut expected_dw, mut expected_db) = (apart().1, apart().2);
        let outputs = LinearGradientOutputs {
            dx: Some(&mut expected_dx),
            dw: Some(&mut expected_dw),
            db: Some(&mut expected_db),
            dresidual: Some(&mut expected_dresidual),
            dz: Some(&mut expected_dz),
            ..Default::default()
        };
        backward.run_into(outputs).expect("nothing overlaps");

        let (side_by_side, flat) = (side_by_side(), flat().expect("it fits"));
        let block =
            |start: usize, length: usize| side_by_side.slice(1, start..start + length).expect("it fits");
        let ([mut dx, mut dresidual, mut dz], mut dw, mut db) = of(&side_by_side, &flat);
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
        assert_eq!(bits(&dx), bits(&expected_dx));
        assert_eq!(bits(&dw), bits(&expected_dw));
        assert_eq!(bits(&db), bits(&expected_db));
        assert_eq!(bits(&dresidual), bits(&expected_dresidual));
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
