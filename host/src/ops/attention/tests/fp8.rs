//! Keys and values of 8 bits are what they stand for, and so are the results.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::cpu::Operand;
use crate::ops::Implementation;
use crate::ops::attention::{Alignment, AttentionInput, AttentionKeys, Way};
use crate::weights::FloatElement;
use crate::{Device, Element, Error, Tensor, ops};

/// Devices with either way to widen, one of them with Hopper's kernels, which take no such keys.
const DEVICES: [&str; 3] = ["emulator:8.0", "emulator:8.9", "emulator:9.0"];

fn of_64(number: impl Operand) -> f64 {
    f64::from(number.to_f32())
}

fn device(name: &str) -> Device {
    name.parse().expect("a device")
}

/// A tensor of numbers from a sequence, of `count` different ones.
fn numbers<T: Element>(
    device: &Device,
    shape: [usize; 4],
    seed: usize,
    of: impl Fn(usize) -> T,
) -> Tensor<T> {
    let elements: Vec<T> = (0..shape.iter().product()).map(|i| of((i * 7919 + seed * 131) % 1009)).collect();
    Tensor::from_slice(device, &elements, shape).expect("it fits")
}

/// Keys of 8 bits, and the same of 16.
fn both<T: FloatElement, K: FloatElement + Operand>(
    device: &Device,
    shape: [usize; 4],
    seed: usize,
) -> (Tensor<K>, Tensor<T>) {
    let narrow = |i: usize| K::round(i as f64 / 250.0 - 2.0);
    let wide = |i: usize| T::round(of_64(narrow(i)));
    (numbers(device, shape, seed, narrow), numbers(device, shape, seed, wide))
}

/// Scales that are powers of two, so that nothing is rounded that was not before.
fn scales(device: &Device, scales: &[f32]) -> Tensor<f32> {
    Tensor::from_slice(device, scales, [scales.len()]).expect("it fits")
}

/// Runs both on tiles of the same blocks, whose results are the same bits.
fn same_bits<T: AttentionInput + FloatElement, K: AttentionKeys<T> + FloatElement>() {
    for name in DEVICES {
        let device = device(name);
        for (rows, width, keys) in
            [(70, 64, 200), (3, 128, 700), (65, 128, 130), (2, 256, 400), (40, 200, 70)]
        {
            // Fewer keys are not split.
            for way in if keys < 400 { &[Way::Whole][..] } else { &[Way::Whole, Way::Split] } {
                let way = *way;
                let q = numbers(&device, [2, rows, 4, width], 1, |i| T::round(i as f64 / 500.0 - 1.0));
                let (k, wide_k) = both::<T, K>(&device, [2, keys, 2, width], 2);
                let (v, _) = both::<T, K>(&device, [2, keys, 2, width], 3);
                let of_heads = [2.0, 0.5];
                let (k_scale, v_scale) = (scales(&device, &[0.25]), scales(&device, &of_heads));
                let scaled = v.to_vec().expect("it is there").into_iter().enumerate();
                let scaled = scaled.map(|(i, v)| T::round(of_64(v) * f64::from(of_heads[i / width % 2])));
                let wide_v =
                    Tensor::from_slice(&device, &scaled.collect::<Vec<_>>(), v.shape()).expect("it fits");
                let lengths =
                    Tensor::from_slice(&device, &[keys as u32, keys as u32 / 2], [2]).expect("it fits");
                let narrow = ops::attention(&q, &k, &v).scale(2.0).k_scale(&k_scale).v_scale(&v_scale);
                let narrow = narrow.causal(Alignment::BottomRight).lengths(None, Some(&lengths)).way(way);
                let wide = ops::attention(&q, &wide_k, &wide_v).scale(0.5);
                let wide = wide.causal(Alignment::BottomRight).lengths(None, Some(&lengths)).way(way);
                let implementation = narrow.implementation().expect("it fits").to_string();
                let expected = if name == DEVICES[0] { "attention_fp8_" } else { "attention_fp8_ada_" };
                assert!(implementation.contains(expected), "{name}: {implementation}");
                let (y, lse) = narrow.run_with_lse().expect("the shapes fit");
                let (expected, expected_lse) = wide.run_with_lse().expect("the shapes fit");
                let (y, expected) =
                    (y.to_vec().expect("it is there"), expected.to_vec().expect("it is there"));
                let differs = y.iter().zip(&expected).position(|(y, expected)| y != expected);
                assert_eq!(differs, None, "{name} {rows}×{keys} {width} {way:?}");
                assert_eq!(lse.to_vec().expect("it is there"), expected_lse.to_vec().expect("it is there"));
            }
        }
    }
}

#[test]
fn results_of_e4m3_are_those_of_the_same_numbers_in_16_bits() {
    same_bits::<f16, F8E4M3>();
    same_bits::<bf16, F8E4M3>();
}

#[test]
fn results_of_e5m2_are_those_of_the_same_numbers_in_16_bits() {
    same_bits::<f16, F8E5M2>();
    same_bits::<bf16, F8E5M2>();
}

/// Every number of 8 bits as a value that has all the weight, and as a key.
fn every_number<T: AttentionInput + FloatElement, K: AttentionKeys<T> + FloatElement>(of_bits: fn(u8) -> K) {
    for name in DEVICES.into_iter().chain(["cpu"]) {
        let device = device(name);
        for rows in [1, 70] {
            // Column c of key 0 holds the number c: for every row it is the only key.
            let q = numbers(&device, [1, rows, 1, 256], 1, |_| T::round(0.0));
            let all: Vec<K> = (0..=255).map(of_bits).collect();
            let v = Tensor::from_slice(&device, &all, [1, 1, 1, 256]).expect("it fits");
            let zeros = numbers(&device, [1, 1, 1, 256], 1, |_| of_bits(0));
            let y =
                ops::attention(&q, &zeros, &v).run().expect("the shapes fit").to_vec().expect("it is there");
            for (index, y) in y.into_iter().enumerate() {
                let (got, expected) = (of_64(y), of_64(of_bits((index % 256) as u8)));
                let is_right = got == expected || got.is_nan() && expected.is_nan();
                assert!(is_right, "{name}, {rows} rows, {:#x}: {got} for {expected}", index % 256);
            }
            // Key j holds the number j in one column, beside which there are zeros: the score is that number.
            for bits in (0..=255u8).step_by(if name == "cpu" { 1 } else { 9 }) {
                let mut key = vec![of_bits(0); 64];
                key[usize::from(bits) % 64] = of_bits(bits);
                let k = Tensor::from_slice(&device, &key, [1, 1, 1, 64]).expect("it fits");
                let q = numbers(&device, [1, rows, 1, 64], 1, |_| T::round(1.0));
                let (_, lse) = ops::attention(&q, &k, &k).scale(1.0).run_with_lse().expect("the shapes fit");
                let (got, expected) =
                    (f64::from(lse.to_vec().expect("it is there")[0]), of_64(of_bits(bits)));
                // A score of infinity has no weight relative to itself.
                let is_right = (got - expected).abs() <= 1e-6 * expected.abs()
                    || got.is_nan() && !expected.is_finite()
                    || got == f64::NEG_INFINITY && expected == f64::NEG_INFINITY;
                assert!(is_right, "{name}, {rows} rows, {bits:#x}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn every_number_of_8_bits_is_itself() {
    every_number::<f16, F8E4M3>(F8E4M3::from_bits);
    every_number::<bf16, F8E4M3>(F8E4M3::from_bits);
    every_number::<f16, F8E5M2>(F8E5M2::from_bits);
    every_number::<bf16, F8E5M2>(F8E5M2::from_bits);
}

/// A scale of zero makes zeros, also where parts of the keys are added up.
#[test]
fn a_scale_of_zero_makes_values_of_zero() {
    for name in DEVICES {
        let device = device(name);
        for (rows, keys) in [(1, 900), (70, 90)] {
            let q = numbers(&device, [1, rows, 2, 64], 1, |i| f16::from_f64(i as f64 / 500.0 - 1.0));
            let (k, _) = both::<f16, F8E4M3>(&device, [1, keys, 1, 64], 2);
            let zero = scales(&device, &[0.0]);
            let (y, lse) = ops::attention(&q, &k, &k).v_scale(&zero).run_with_lse().expect("the shapes fit");
            assert!(y.to_vec().expect("it is there").iter().all(|y| y.to_f32() == 0.0), "{name}");
            assert!(lse.to_vec().expect("it is there").iter().all(|lse| lse.is_finite()), "{name}");
        }
    }
}

#[test]
fn scales_that_do_not_fit_are_named() {
    let device = Device::cpu();
    let q = numbers(&device, [1, 2, 4, 8], 1, |_| f16::ONE);
    let (k, wide) = both::<f16, F8E4M3>(&device, [1, 3, 2, 8], 2);
    let of = |count: usize| scales(&device, &vec![1.0; count]);
    let refused = |result: crate::Result<Tensor<f16>>| result.expect_err("it does not fit").to_string();
    let (three, four) = (of(3), of(4));
    assert!(
        refused(ops::attention(&q, &k, &k).k_scale(&three).run())
            .contains("`k_scale` has shape [3], expected [1], or [2] for the heads of k")
    );
    assert!(
        refused(ops::attention(&q, &k, &k).v_scale(&four).run())
            .contains("`v_scale` has shape [4], expected [1], or [2] for the heads of k")
    );
    let gaps = four.with_axes(0, &[2], &[2]);
    let error = ops::attention(&q, &k, &k).v_scale(&gaps).run().expect_err("it has gaps");
    assert!(matches!(error, Error::Stride { operand: "v_scale", .. }), "{error}");
    let one = of(1);
    let error = refused(ops::attention(&q, &wide, &wide).k_scale(&one).run());
    assert!(
        error.contains("k_scale is a tensor of shape [1], expected none, since k and v are f16"),
        "{error}"
    );
    let elsewhere = scales(&Device::emulator(), &[1.0]);
    let error = ops::attention(&q, &k, &k).k_scale(&elsewhere).run().expect_err("it is elsewhere");
    assert!(matches!(error, Error::DeviceMismatch { operand: "k_scale", .. }), "{error}");
    let empty = ops::attention(&q, &k, &k).k_scale(&one).v_scale(&one).implementation().expect("these fit");
    assert_eq!(empty, Implementation::Cpu);
}
