//! An attention that turns queries and keys is that of queries and keys which are turned.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::ops::attention::{Alignment, AttentionInput, AttentionOp, Rotary};
use crate::ops::{Pairing, RotaryTable};
use crate::weights::FloatElement;
use crate::{Device, Element, Error, Tensor, ops};

const DEVICES: [&str; 3] = ["cpu", "emulator:8.0", "emulator:9.0"];

fn numbers<T: FloatElement>(device: &Device, shape: &[usize], seed: usize) -> Tensor<T> {
    let number = |i: usize| T::round(((i * 7919 + seed * 131) % 1009) as f64 / 500.0 - 1.0);
    let elements: Vec<T> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, &elements, shape).expect("it fits")
}

fn bits<T: Element>(result: crate::Result<(Tensor<T>, Tensor<f32>)>) -> (Vec<T>, Vec<f32>) {
    let (y, lse) = result.expect("the shapes fit");
    (y.to_vec().expect("it is there"), lse.to_vec().expect("it is there"))
}

fn of_type<T: AttentionInput + FloatElement>() {
    for name in DEVICES {
        let device: Device = name.parse().expect("a device");
        let table = RotaryTable::new(&device, 10_000.0, 40, 200).expect("it fits");
        for (rows, keys, pairing) in
            [(70, 90, Pairing::Halves), (1, 90, Pairing::Neighbours), (1, 1, Pairing::Halves)]
        {
            // Heads that are a part of wider rows, of which the last elements are not turned.
            let all = numbers::<T>(&device, &[2, rows.max(keys), 4, 48], 1);
            let q = all.slice(1, 0..rows).expect("it is there").slice(2, 1..3).expect("it is there");
            let k = all.slice(1, 0..keys).expect("it is there").slice(2, 3..4).expect("it is there");
            let v = numbers::<T>(&device, &[2, keys, 1, 24], 3);
            let offset = keys - rows.min(keys);
            let turn = |x: &Tensor<T>, offset: usize| {
                ops::rotary(x, &table).pairing(pairing).offset(offset).run().expect("it fits")
            };
            let causal =
                |operation: AttentionOp<'_, T>| bits(operation.causal(Alignment::BottomRight).run_with_lse());
            let rotary = Rotary::new(&table).pairing(pairing).offsets(offset, 3);
            let got = causal(ops::attention(&q, &k, &v).rotary(rotary));
            assert!(
                got == causal(ops::attention(&turn(&q, offset), &turn(&k, 3), &v)),
                "{name}: {rows} {keys}"
            );
            let got = causal(ops::attention(&q, &k, &v).rotary(rotary.queries_only()));
            assert!(got == causal(ops::attention(&turn(&q, offset), &k, &v)), "{name}: {rows} {keys}");

            let positions = |length: usize| {
                let all: Vec<u32> = (0..2 * length as u32).map(|token| token * 17 % 200).collect();
                Tensor::from_slice(&device, &all, [2, length]).expect("it fits")
            };
            let (of_q, of_k) = (positions(rows), positions(keys));
            let turn = |x: &Tensor<T>, positions: &Tensor<u32>| {
                ops::rotary(x, &table).pairing(pairing).positions(positions).run().expect("it fits")
            };
            let got = causal(ops::attention(&q, &k, &v).rotary(rotary.positions(&of_q, &of_k)));
            assert!(
                got == causal(ops::attention(&turn(&q, &of_q), &turn(&k, &of_k), &v)),
                "{name}: {rows} {keys}"
            );
        }

        // Packed sequences begin at 0 each.
        let (q, k) = (numbers::<T>(&device, &[30, 2, 48], 1), numbers::<T>(&device, &[40, 1, 48], 2));
        let vector = |all: &[u32]| Tensor::from_slice(&device, all, [all.len()]).expect("it fits");
        let (of_q, of_k) = (vector(&[0, 7, 7, 30]), vector(&[0, 20, 25, 40]));
        let counted =
            |ends: &[u32]| -> Vec<u32> { ends.windows(2).flat_map(|ends| 0..ends[1] - ends[0]).collect() };
        let (at_q, at_k) = (vector(&counted(&[0, 7, 7, 30])), vector(&counted(&[0, 20, 25, 40])));
        let packed = |q: &Tensor<T>, k: &Tensor<T>, rotary: Option<Rotary<'_>>| {
            bits(ops::attention(q, k, k).packed(&of_q, &of_k).rotary(rotary).run_with_lse())
        };
        let turn = |x: &Tensor<T>, positions: &Tensor<u32>| {
            ops::rotary(x, &table).positions(positions).run().expect("it fits")
        };
        let turned = packed(&q, &k, Some(Rotary::new(&table)));
        let v = &k;
        let expected =
            ops::attention(&turn(&q, &at_q), &turn(&k, &at_k), v).packed(&of_q, &of_k).run_with_lse();
        assert!(turned == bits(expected), "{name}: packed");
        assert!(packed(&q, &k, None) != turned);
    }
}

#[test]
fn turning_is_what_the_operation_of_its_own_does() {
    of_type::<f16>();
    of_type::<bf16>();
    of_type::<f32>();
}

#[test]
fn the_launches_are_told() {
    let device = Device::emulator();
    let table = RotaryTable::new(&device, 10_000.0, 64, 200).expect("it fits");
    let (q, k) = (numbers::<f16>(&device, &[1, 3, 4, 64], 1), numbers::<f16>(&device, &[1, 90, 2, 64], 2));
    let narrow = numbers::<F8E4M3>(&device, &[1, 90, 2, 64], 2);
    let told =
        |implementation: crate::Result<ops::Implementation>| implementation.expect("it fits").to_string();
    let both = told(ops::attention(&q, &k, &k).rotary(Rotary::new(&table)).implementation());
    assert!(both.contains("rotary_f16") && both.contains("attention_f16_64_few"), "{both}");
    let queries = Rotary::new(&table).queries_only();
    let one = told(ops::attention(&q, &narrow, &narrow).rotary(queries).implementation());
    assert!(one.contains("rotary_f16") && one.contains("attention_fp8"), "{one}");
}

#[test]
fn what_cannot_be_turned_is_refused() {
    let device = Device::cpu();
    let table = RotaryTable::new(&device, 10_000.0, 16, 50).expect("it fits");
    let (q, k) = (numbers::<f16>(&device, &[2, 3, 2, 16], 1), numbers::<f16>(&device, &[2, 40, 1, 16], 2));
    let refused = |operation: AttentionOp<'_, f16>| {
        let error = operation.implementation().expect_err("it does not fit").to_string();
        assert_eq!(operation.run().expect_err("it does not fit").to_string(), error);
        error
    };
    let rotary = Rotary::new(&table);
    for (rotary, expected) in [
        (
            rotary.offsets(48, 0),
            "offset_q is 48, expected so that 3 positions are within the rotary table's 50",
        ),
        (
            rotary.offsets(0, 11),
            "offset_k is 11, expected so that 40 positions are within the rotary table's 50",
        ),
        (rotary.offsets(usize::MAX, 0), "offset_q is"),
    ] {
        let error = refused(ops::attention(&q, &k, &k).rotary(rotary));
        assert!(error.contains(expected), "{error}");
    }
    let wrong = Tensor::<u32>::zeros(&device, [2, 4]).expect("it fits");
    let error = refused(ops::attention(&q, &k, &k).rotary(rotary.positions(&wrong, None)));
    assert!(error.contains("`positions_q` has shape [2, 4], expected [2, 3], as q gives"), "{error}");
    let error = refused(ops::attention(&q, &k, &k).rotary(rotary.positions(None, &wrong)));
    assert!(error.contains("`positions_k` has shape [2, 4], expected [2, 40], as k gives"), "{error}");
    let wide = RotaryTable::new(&device, 10_000.0, 18, 50).expect("it fits");
    let error = refused(ops::attention(&q, &k, &k).rotary(Rotary::new(&wide)));
    assert!(error.contains("heads of at least 18 elements, which the rotary table turns"), "{error}");
    let pages = Tensor::<u32>::zeros(&device, [2, 1]).expect("it fits");
    let error = refused(ops::attention(&q, &k, &k).pages(&pages).rotary(rotary));
    assert!(error.contains("queries only, since keys are in pages"), "{error}");
    let narrow = numbers::<F8E4M3>(&device, &[2, 40, 1, 16], 2);
    let error = ops::attention(&q, &narrow, &narrow).rotary(rotary).run().expect_err("it does not fit");
    assert!(error.to_string().contains("queries only, since k is f8e4m3"), "{error}");
    let elsewhere = RotaryTable::new(&Device::emulator(), 10_000.0, 16, 50).expect("it fits");
    let error =
        ops::attention(&q, &k, &k).rotary(Rotary::new(&elsewhere)).run().expect_err("it is elsewhere");
    assert!(matches!(error, Error::DeviceMismatch { operand: "rotary table", .. }), "{error}");
    let packed = numbers::<f16>(&device, &[3, 2, 16], 1);
    let offsets = Tensor::from_slice(&device, &[0u32, 3], [2]).expect("it fits");
    let error = refused(
        ops::attention(&packed, &packed, &packed).packed(&offsets, &offsets).rotary(rotary.offsets(1, 0)),
    );
    assert!(error.contains("offset_q is 1, expected 0 with packed sequences"), "{error}");
    // What is written may not be what is turned by.
    let angles = table.angles().clone();
    let mut lse = angles.reshape([800]).expect("it is so long").with_axes(0, &[2, 2, 3], &[6, 3, 1]);
    let mut y = Tensor::zeros(&device, [2, 3, 2, 16]).expect("it fits");
    let error = ops::attention(&q, &k, &k).rotary(rotary).run_into_with_lse(&mut y, &mut lse);
    assert!(matches!(error, Err(Error::Overlap { operand: "lse", other: "rotary table", .. })), "{error:?}");
}
