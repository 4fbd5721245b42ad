//! What is refused, and what the errors say of it.

use half::f16;

use super::tensor;
use crate::ops::attention::{Alignment, AttentionOp};
use crate::{Device, Error, Tensor, ops};

/// The error's text, of an operation that must not run, by whichever way.
fn refusal(operation: &AttentionOp<'_, f16>) -> String {
    let error = operation.run().expect_err("it does not fit").to_string();
    assert_eq!(operation.run_with_lse().expect_err("it does not fit").to_string(), error);
    assert_eq!(operation.implementation().expect_err("it does not fit").to_string(), error);
    let (mut y, mut lse) = (tensor([1; 4], |_| 0.0), Tensor::zeros(&Device::cpu(), [1]).expect("it fits"));
    assert_eq!(operation.run_into(&mut y).expect_err("it does not fit").to_string(), error);
    let into = operation.run_into_with_lse(&mut y, &mut lse);
    assert_eq!(into.expect_err("it does not fit").to_string(), error);
    error
}

fn zeros<T: crate::Element>(shape: &[usize]) -> Tensor<T> {
    Tensor::zeros(&Device::cpu(), shape).expect("it fits")
}

#[test]
fn operands_that_do_not_fit_are_named_with_what_was_expected_and_what_came() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let (q, k, v) = (of(&[2, 3, 4, 8]), of(&[2, 5, 2, 8]), of(&[2, 5, 2, 6]));
    let cases = [
        (of(&[3, 4, 8]), k.clone(), v.clone(), "`q` has shape [3, 4, 8], expected [B, Sq, H, D], four axes"),
        (q.clone(), of(&[5, 8]), v.clone(), "`k` has shape [5, 8], expected [B, Sk, Hk, D], four axes"),
        (q.clone(), k.clone(), of(&[6]), "`v` has shape [6], expected [B, Sk, Hk, Dv], four axes"),
        (
            q.clone(),
            of(&[1, 5, 2, 8]),
            v.clone(),
            "`k` has shape [1, 5, 2, 8], expected [2, 5, 2, 8], as q gives",
        ),
        (
            q.clone(),
            of(&[2, 5, 2, 7]),
            v.clone(),
            "`k` has shape [2, 5, 2, 7], expected [2, 5, 2, 8], as q gives",
        ),
        (
            q.clone(),
            k.clone(),
            of(&[2, 4, 2, 6]),
            "`v` has shape [2, 4, 2, 6], expected [2, 5, 2, 6], as k gives",
        ),
        (
            q.clone(),
            k.clone(),
            of(&[2, 5, 1, 6]),
            "`v` has shape [2, 5, 1, 6], expected [2, 5, 2, 6], as k gives",
        ),
        (
            q.clone(),
            of(&[2, 5, 3, 8]),
            of(&[2, 5, 3, 6]),
            "`k` has shape [2, 5, 3, 8], expected a number of heads that divides the 4 of q",
        ),
        (
            q.clone(),
            of(&[2, 5, 0, 8]),
            of(&[2, 5, 0, 6]),
            "`k` has shape [2, 5, 0, 8], expected a number of heads that divides the 4 of q",
        ),
        (
            of(&[2, 3, 4, 0]),
            of(&[2, 5, 2, 0]),
            v.clone(),
            "`q` has shape [2, 3, 4, 0], expected at least one element in the last axis",
        ),
        (
            q.clone(),
            k.clone(),
            of(&[2, 5, 2, 0]),
            "`v` has shape [2, 5, 2, 0], expected at least one element in the last axis",
        ),
        (
            q.swap_axes(2, 3).expect("they are there"),
            of(&[2, 5, 4, 4]),
            of(&[2, 5, 4, 6]),
            "`q` has strides [96, 32, 1, 8], expected 1 for the last axis (see `contiguous`)",
        ),
    ];
    for (q, k, v, expected) in cases {
        assert_eq!(refusal(&ops::attention(&q, &k, &v)), format!("attention: {expected}"));
    }
}

#[test]
fn options_that_do_not_fit_are_named_with_what_was_expected_and_what_came() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let (q, k, v) = (of(&[2, 3, 4, 8]), of(&[2, 5, 2, 8]), of(&[2, 5, 2, 6]));
    let attention = || ops::attention(&q, &k, &v);
    let (mask, bias) = (zeros::<u8>(&[2, 4, 2, 5]), of(&[4, 3, 5]));
    let (blocks, no_blocks) = (zeros::<u8>(&[2, 4, 1, 3]), zeros::<u8>(&[2, 4, 2, 1]));
    let (two, four) = (zeros::<f32>(&[2]), zeros::<f32>(&[4]));
    let strided = zeros::<f32>(&[4, 2]).slice(1, 0..1).expect("it is there").reshape([4]).expect("a vector");
    let (one, beside) = (zeros::<u32>(&[1]), zeros::<u32>(&[2, 2]).slice(1, 0..1).expect("it is there"));
    let beside = beside.reshape([2]).expect("a vector");
    let cases = [
        (attention().scale(f32::NAN), "scale is NaN, expected a finite number"),
        (attention().scale(f32::INFINITY), "scale is inf, expected a finite number"),
        (attention().soft_cap(0.0), "soft_cap is 0, expected a finite number above 0"),
        (attention().soft_cap(f32::INFINITY), "soft_cap is inf, expected a finite number above 0"),
        (
            attention().mask(&mask),
            "`mask` has shape [2, 4, 2, 5], expected [2, 4, 3, 5], as q and k give, or 1 for each axis",
        ),
        (
            attention().bias(&bias),
            "`bias` has shape [4, 3, 5], expected [2, 4, 3, 5], as q and k give, or 1 for each axis",
        ),
        (
            attention().block_mask(&blocks, [2, 2]),
            "`block_mask` has shape [2, 4, 1, 3], expected [2, 4, 2, 3], as q and k give, or 1 for each of the first two axes",
        ),
        (
            attention().block_mask(&no_blocks, [2, 2]),
            "`block_mask` has shape [2, 4, 2, 1], expected [2, 4, 2, 3], as q and k give, or 1 for each of the first two axes",
        ),
        (
            attention().block_mask(&blocks, [0, 2]),
            "block size is 0 × 2, expected at least one row and one key",
        ),
        (attention().alibi(&two), "`slopes` has shape [2], expected [4] or [2, 4], as q gives"),
        (attention().alibi(&strided), "`slopes` has strides [2], expected elements without gaps"),
        (attention().sinks(&two), "`sinks` has shape [2], expected [4], as q gives"),
        (attention().sinks(&strided), "`sinks` has strides [2], expected elements without gaps"),
        (attention().lengths(Some(&one), None), "`lengths_q` has shape [1], expected [2], as q gives"),
        (
            attention().lengths(None, Some(&beside)),
            "`lengths_k` has strides [2], expected elements without gaps",
        ),
        (
            attention().packed(&one, &one),
            "`q` has shape [2, 3, 4, 8], expected [Tq, H, D], three axes for packed sequences",
        ),
    ];
    for (operation, expected) in cases {
        assert_eq!(refusal(&operation), format!("attention: {expected}"));
    }
    attention().sinks(&four).alibi(&four).run().expect("these fit");
}

#[test]
fn what_packed_sequences_do_not_have_is_named() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let (q, k, v) = (of(&[3, 4, 8]), of(&[5, 2, 8]), of(&[5, 2, 6]));
    let (mask, bias, lengths) = (zeros::<u8>(&[1; 4]), of(&[1; 4]), zeros::<u32>(&[1]));
    let (two, three, none) = (zeros::<u32>(&[2]), zeros::<u32>(&[3]), zeros::<u32>(&[0]));
    let matrix = zeros::<u32>(&[2, 2]);
    let attention = || ops::attention(&q, &k, &v).packed(&two, &two);
    attention().run().expect("these fit");
    let refused = "expected none with packed sequences, which offsets describe";
    let cases = [
        (attention().mask(&mask), format!("mask is a tensor of shape [1, 1, 1, 1], {refused}")),
        (attention().bias(&bias), format!("bias is a tensor of shape [1, 1, 1, 1], {refused}")),
        (
            attention().block_mask(&mask, [64, 64]),
            format!("block_mask is a tensor of shape [1, 1, 1, 1], {refused}"),
        ),
        (attention().lengths(Some(&lengths), None), format!("lengths_q is a tensor of shape [1], {refused}")),
        (attention().lengths(None, Some(&lengths)), format!("lengths_k is a tensor of shape [1], {refused}")),
        (
            attention().packed(&two, &three),
            "`offsets_k` has shape [3], expected [2], as offsets_q gives".into(),
        ),
        (
            attention().packed(&none, &none),
            "`offsets_q` has shape [0], expected [B + 1], at least one offset".into(),
        ),
        (
            attention().packed(&matrix, &two),
            "`offsets_q` has shape [2, 2], expected [B + 1], at least one offset".into(),
        ),
    ];
    for (operation, expected) in cases {
        assert_eq!(refusal(&operation), format!("attention: {expected}"));
    }
}

#[test]
fn pages_that_do_not_fit_are_named() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let (q, k, v) = (of(&[2, 3, 4, 8]), of(&[7, 5, 2, 8]), of(&[7, 5, 2, 6]));
    let tables = |shape: &[usize]| zeros::<u32>(shape);
    let (table, none) = (tables(&[2, 3]), tables(&[2, 0]));
    ops::attention(&q, &k, &v).pages(&table).run().expect("these fit");
    let (no_pages, no_keys) = (of(&[0, 5, 2, 8]), of(&[7, 0, 2, 8]));
    let (no_values, no_values_of_keys) = (of(&[0, 5, 2, 6]), of(&[7, 0, 2, 6]));
    ops::attention(&q, &no_pages, &no_values).pages(&none).run().expect("nothing is read");
    ops::attention(&q, &no_keys, &no_values_of_keys).pages(&none).run().expect("nothing is read");
    let (vector, others) = (tables(&[3]), tables(&[3, 3]));
    let columns = tables(&[3, 2]).swap_axes(0, 1).expect("they are there");
    let (flat, fewer, mask) = (of(&[5, 2, 8]), of(&[6, 5, 2, 6]), zeros::<u8>(&[2, 4, 3, 5]));
    let two = zeros::<u32>(&[2]);
    let (packed, packed_keys) = (of(&[3, 4, 8]), of(&[5, 2, 8]));
    let cases = [
        (
            ops::attention(&q, &k, &v).pages(&vector),
            "`page_table` has shape [3], expected [B, pages of a sequence], two axes",
        ),
        (
            ops::attention(&q, &k, &v).pages(&others),
            "`page_table` has shape [3, 3], expected [2, pages of a sequence], as q gives",
        ),
        (
            ops::attention(&q, &k, &v).pages(&columns),
            "`page_table` has strides [1, 2], expected 1 for the last axis (see `contiguous`)",
        ),
        (
            ops::attention(&q, &flat, &v).pages(&table),
            "`k` has shape [5, 2, 8], expected [P, page size, Hk, D], four axes",
        ),
        (
            ops::attention(&q, &k, &fewer).pages(&table),
            "`v` has shape [6, 5, 2, 6], expected [7, 5, 2, 6], as k gives",
        ),
        (
            ops::attention(&q, &no_pages, &no_values).pages(&table),
            "`k` has shape [0, 5, 2, 8], expected at least one page, since sequences have 3 pages",
        ),
        (
            ops::attention(&q, &no_keys, &no_values_of_keys).pages(&table),
            "`k` has shape [7, 0, 2, 8], expected at least one key in a page, since sequences have 3 pages",
        ),
        (
            ops::attention(&q, &k, &v).pages(&table).mask(&mask),
            "`mask` has shape [2, 4, 3, 5], expected [2, 4, 3, 15], as q and k give, or 1 for each axis",
        ),
        (
            ops::attention(&packed, &packed_keys, &packed_keys).packed(&two, &two).pages(&table),
            "page_table is a tensor of shape [2, 3], expected none with packed sequences, which offsets describe",
        ),
    ];
    for (operation, expected) in cases {
        assert_eq!(refusal(&operation), format!("attention: {expected}"));
    }
}

#[test]
fn results_that_do_not_fit_or_share_memory_are_named() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let qkv = of(&[2, 5, 12, 8]);
    let heads = |from: usize| qkv.slice(2, from..from + 4).expect("they are there");
    let (q, k, v) = (heads(0), heads(4), heads(8));
    let attention = || ops::attention(&q, &k, &v).causal(Alignment::TopLeft);
    let run = |y: &Tensor<f16>, lse: &Tensor<f32>| {
        let (mut y, mut lse) = (y.clone(), lse.clone());
        attention().run_into_with_lse(&mut y, &mut lse).expect_err("it does not fit").to_string()
    };
    let (y, lse) = (of(&[2, 5, 4, 8]), zeros::<f32>(&[2, 4, 5]));
    attention().run_into_with_lse(&mut y.clone(), &mut lse.clone()).expect("these fit");
    // Heads before rows.
    let mut other = of(&[2, 4, 5, 8]).swap_axes(1, 2).expect("they are there");
    attention().run_into(&mut other).expect("this fits");

    let expected = "attention: `y` has shape [2, 4, 5, 8], expected [2, 5, 4, 8], as q and v give";
    assert_eq!(run(&of(&[2, 4, 5, 8]), &lse), expected);
    let transposed = of(&[2, 5, 8, 4]).swap_axes(2, 3).expect("they are there");
    let expected =
        "attention: `y` has strides [160, 32, 1, 4], expected 1 for the last axis (see `contiguous`)";
    assert_eq!(run(&transposed, &lse), expected);
    let expected = "attention: `lse` has shape [2, 5, 4], expected [2, 4, 5], as q and k give";
    assert_eq!(run(&y, &zeros(&[2, 5, 4])), expected);
    let gaps = zeros::<f32>(&[2, 5, 4]).swap_axes(1, 2).expect("they are there");
    assert_eq!(run(&y, &gaps), "attention: `lse` has strides [20, 1, 4], expected elements without gaps");
    let expected = "attention: `y` shares memory with `k`, expected separate memory";
    assert_eq!(run(&heads(4), &lse), expected);
    // Beside the three in one tensor there is room for the output.
    let rows = of(&[2, 5, 16, 8]);
    let [q, k, v, mut y] = [0, 4, 8, 12].map(|from| rows.slice(2, from..from + 4).expect("they are there"));
    ops::attention(&q, &k, &v).run_into(&mut y).expect("this fits");
    let (q, k, v) = (heads(0), heads(4), heads(8));
    let whole = k.contiguous().expect("it fits");
    let error = ops::attention(&q, &whole, &v).run_into(&mut whole.clone()).expect_err("they share memory");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn devices_that_differ_are_named() {
    let (cpu, emulator) = (Device::cpu(), Device::emulator());
    let of = |device: &Device| Tensor::<f16>::zeros(device, [1, 2, 1, 8]).expect("it fits");
    let (q, k) = (of(&cpu), of(&emulator));
    let error = ops::attention(&q, &k, &q).run().expect_err("they differ").to_string();
    assert_eq!(error, "attention: `k` is on emulator:8.0, expected cpu");
    let sinks = Tensor::<f32>::zeros(&emulator, [1]).expect("it fits");
    let table = Tensor::<u32>::zeros(&emulator, [1, 1]).expect("it fits");
    let error = ops::attention(&q, &q, &q).pages(&table).run().expect_err("they differ").to_string();
    assert_eq!(error, "attention: `page_table` is on emulator:8.0, expected cpu");
    let error = ops::attention(&q, &q, &q).sinks(&sinks).run().expect_err("they differ").to_string();
    assert_eq!(error, "attention: `sinks` is on emulator:8.0, expected cpu");
    let stream = emulator.default_stream();
    let error = ops::attention(&q, &q, &q).on(&stream).run().expect_err("they differ").to_string();
    assert_eq!(error, "attention: `stream` is on emulator:8.0, expected cpu");
    let error = ops::attention(&q, &q, &q).run_into(&mut of(&emulator)).expect_err("they differ").to_string();
    assert_eq!(error, "attention: `y` is on emulator:8.0, expected cpu");
}

#[test]
fn axes_of_two_to_the_power_of_31_are_refused() {
    let of = |shape: &[usize]| zeros::<f16>(shape);
    let (q, k, v) = (of(&[0, 1 << 31, 1, 8]), of(&[0, 1, 1, 8]), of(&[0, 1, 1, 8]));
    let error = ops::attention(&q, &k, &v).run().expect_err("it is too large");
    assert!(matches!(error, Error::SizeLimit { operand: "q", quantity: "number of rows", .. }), "{error}");
    let (k, v) = (of(&[0, 1 << 31, 1, 8]), of(&[0, 1 << 31, 1, 8]));
    let q = of(&[0, 1, 1, 8]);
    let error = ops::attention(&q, &k, &v).run().expect_err("it is too large");
    assert!(matches!(error, Error::SizeLimit { operand: "k", quantity: "number of keys", .. }), "{error}");
    let (k, v, table) = (of(&[1, 1 << 16, 0, 8]), of(&[1, 1 << 16, 0, 8]), zeros::<u32>(&[0, 1 << 15]));
    let q = of(&[0, 1, 0, 8]);
    let error = ops::attention(&q, &k, &v).pages(&table).run().expect_err("it is too large");
    assert!(matches!(error, Error::SizeLimit { operand: "k", quantity: "number of keys", .. }), "{error}");
}
