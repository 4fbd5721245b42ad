//! Caches of every kind, and rotary position embedding, beside the operations that they stand for.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::{Attention, AttentionConfig, CacheFormat, KvCache, KvCacheConfig};
use crate::layers::Linear;
use crate::ops::attention::{Alignment, AttentionInput};
use crate::ops::linear::LinearInput;
use crate::ops::{Activation, Pairing, RotaryTable};
use crate::weights::FloatElement;
use crate::{Device, Element, Error, Tensor, ops};

const DEVICES: [&str; 3] = ["cpu", "emulator:8.0", "emulator:9.0"];

trait Number: AttentionInput + LinearInput + FloatElement {}
impl<T: AttentionInput + LinearInput + FloatElement> Number for T {}

fn devices() -> impl Iterator<Item = Device> {
    DEVICES.into_iter().map(|name| name.parse().expect("a device"))
}

fn numbers<T: FloatElement>(device: &Device, shape: &[usize], seed: usize) -> Tensor<T> {
    let number = |i: usize| T::round(((i * 7919 + seed * 131) % 1009) as f64 / 500.0 - 1.0);
    let elements: Vec<T> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, &elements, shape).expect("it fits")
}

fn elements<T: Element>(tensor: &Tensor<T>) -> Vec<T> {
    tensor.to_vec().expect("it is there")
}

/// Four heads of queries and two of keys, of 16 columns.
fn layer<T: Number>(device: &Device, is_fused: bool) -> Attention<T> {
    let linear = |out: usize, columns: usize, seed: usize| {
        let bias = Some(numbers(device, &[out], seed + 50));
        Linear::new(numbers(device, &[out, columns], seed), bias, Activation::None).expect("it fits")
    };
    let config = AttentionConfig::new(4).key_heads(2).causal();
    let made = if is_fused {
        Attention::fused(config, linear(8 * 16, 24, 1), linear(20, 64, 2))
    } else {
        Attention::new(config, linear(64, 24, 1), linear(32, 24, 2), linear(32, 24, 3), linear(20, 64, 4))
    };
    made.expect("the weights fit")
}

fn cache<T: Number>(layer: &Attention<T>, format: CacheFormat, on_device: bool) -> KvCache<T> {
    let config = layer.cache_config(2, 40).format(format);
    let config = if on_device { config.lengths_on_device() } else { config };
    let cache = KvCache::with_config(layer.device(), config).expect("there is memory");
    if format == CacheFormat::Same {
        return cache;
    }
    let scales =
        |scales: &[f32]| Tensor::from_slice(layer.device(), scales, [scales.len()]).expect("it fits");
    cache.with_scales(scales(&[0.05, 0.125]), scales(&[0.03])).expect("they fit")
}

const FORMATS: [CacheFormat; 3] = [CacheFormat::Same, CacheFormat::F8E4M3, CacheFormat::F8E5M2];

/// A step that is captured once gives, launched again and again, the bits of steps that are not, on a cache whose lengths are on the device and on one of the host's.
fn graph_of_a_step<T: Number>(device: &Device, format: CacheFormat, is_fused: bool, turns: bool) {
    let table = RotaryTable::new(device, 10_000.0, 12, 60).expect("it fits");
    let mut layer = layer::<T>(device, is_fused);
    if turns {
        layer = layer.with_rotary(table, Pairing::Halves).expect("it fits");
    }
    let [mut of_host, mut plain, mut captured] =
        [false, true, true].map(|on_device| cache(&layer, format, on_device));
    // Prompts of different lengths.
    let prompt = numbers::<T>(device, &[2, 7, 24], 9);
    let lengths = Tensor::from_slice(device, &[7u32, 3], [2]).expect("it fits");
    let expected = layer.operation(&prompt).cache(&mut of_host).rows(&[7, 3][..]).run().expect("it fits");
    for cache in [&mut plain, &mut captured] {
        let y = layer.operation(&prompt).cache(&mut *cache).lengths(&lengths).run().expect("it fits");
        assert!(elements(&y) == elements(&expected), "{device} {format:?}: prompts");
        assert_eq!(cache.lengths().expect("they are there"), [7, 3]);
    }

    let stream = device.new_stream().expect("a stream");
    let new = |step: usize| numbers::<T>(device, &[2, 1, 24], 20 + step);
    let mut x = new(0);
    let y = Tensor::<T>::zeros_on(&stream, [2, 1, 20]).expect("it fits");
    let (read_x, mut to_y) = (x.clone(), y.clone());
    let work = || layer.operation(&read_x).cache(&mut captured).on(&stream).run_into(&mut to_y);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work) }.expect("it can be captured");
    for step in 0..6 {
        // What is captured is a step, too.
        if step > 0 {
            x.write_slice(&elements(&new(step))).expect("it fits");
            graph.launch().expect("it runs");
        }
        let alone = layer.forward_with_cache(&x, &mut plain).expect("it fits");
        let by_host = layer.forward_with_cache(&x, &mut of_host).expect("it fits");
        assert!(elements(&y) == elements(&alone), "{device} {format:?}: step {step}");
        assert!(elements(&alone) == elements(&by_host), "{device} {format:?}: step {step}");
    }
    drop(graph);
    let all = [&of_host, &plain, &captured].map(|cache| cache.lengths().expect("they are there"));
    assert_eq!(all, [[13, 9]; 3].map(Vec::from));
}

#[test]
fn a_captured_step_runs_again_while_the_cache_grows() {
    for device in devices() {
        for (number, format) in FORMATS.into_iter().enumerate() {
            graph_of_a_step::<bf16>(&device, format, number % 2 == 0, number != 1);
            graph_of_a_step::<f16>(&device, format, number % 2 == 1, number == 1);
        }
        graph_of_a_step::<f32>(&device, CacheFormat::Same, true, true);
    }
}

#[test]
fn lengths_on_the_device_are_those_on_the_host() {
    for device in devices() {
        for format in FORMATS {
            let layer = layer::<bf16>(&device, true);
            let [mut of_host, mut of_device] =
                [false, true].map(|on_device| cache(&layer, format, on_device));
            assert!(of_host.device_lengths().is_none() && of_device.device_lengths().is_some());
            for (seed, rows) in [5usize, 1, 0, 12, 1, 1].into_iter().enumerate() {
                let x = numbers(&device, &[2, rows, 24], seed);
                let expected = layer.forward_with_cache(&x, &mut of_host).expect("it fits");
                let y = layer.forward_with_cache(&x, &mut of_device).expect("it fits");
                // Hopper's kernels for many rows and those for few plan by the axis: bits may differ there.
                let close =
                    |(a, b): (bf16, bf16)| (a.to_f32() - b.to_f32()).abs() <= 0.02 * (1.0 + a.to_f32().abs());
                assert!(elements(&y).into_iter().zip(elements(&expected)).all(close), "{device} {format:?}");
                assert_eq!(
                    of_device.lengths().expect("they are there"),
                    of_host.lengths().expect("they are there")
                );
            }
            for cache in [&mut of_host, &mut of_device] {
                assert!(cache.truncate(2, 0).is_err() && cache.truncate(0, 21).is_err());
                cache.truncate(0, 4).expect("it is longer");
                assert_eq!(cache.lengths().expect("they are there"), [4, 20]);
            }
            of_device.reset().expect("it works");
            assert_eq!(of_device.lengths().expect("they are there"), [0, 0]);
            // More than the capacity is left out.
            let k = numbers(&device, &[2, 30, 2, 16], 3);
            of_device.append(&k, &k).expect("nothing is refused");
            of_device.append(&k, &k).expect("nothing is refused");
            assert_eq!(of_device.lengths().expect("they are there"), [40, 40]);
            assert!(of_host.append(&k, &k).is_err());
        }
    }
}

/// What a cache of 8 bits holds, of numbers that are halfway between two of them, too large, subnormal, and none.
fn stored_numbers<T: Number, K: FloatElement + crate::cpu::Operand>(format: CacheFormat, largest: f64) {
    for device in devices() {
        for (width, gap) in [(16, 0), (5, 3)] {
            let special =
                [0.0, -0.0, 1e6, -1e6, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-3, 2e-6, -5e-7];
            let number = |i: usize| match i % 5 {
                0 => special[i / 5 % special.len()],
                _ => ((i * 7919) % 1009) as f64 / 17.0 - 30.0,
            };
            let of_row = 2 * (width + gap);
            let all: Vec<T> = (0..2 * 3 * of_row).map(|i| T::round(number(i))).collect();
            let k = Tensor::from_slice(&device, &all, [2, 3, 2, width + gap]).expect("it fits");
            let k = k.slice(3, 0..width).expect("it is there");
            let scales = Tensor::from_slice(&device, &[0.5f32, 3.0], [2]).expect("it fits");
            let config = KvCacheConfig::new(2, 8, 2, width).format(format);
            let mut cache = KvCache::<T>::with_config(&device, config).expect("there is memory");
            cache = cache.with_scales(scales, None).expect("they fit");
            cache.append_rows(&k, &k, &[1, 0]).expect("it fits");
            cache.append_rows(&k, &k, &[3, 2]).expect("it fits");
            let [keys, values] = cache.stored::<K>().expect("this is what it stores");
            assert!(cache.stored::<T>().is_none());
            let new = elements(&k);
            for (stored, scales) in [(keys, [0.5f32, 3.0]), (values, [1.0, 1.0])] {
                let stored = elements(stored);
                for (b, rows) in [(0, vec![0, 0, 1, 2]), (1, vec![0, 1])] {
                    for (place, row) in rows.into_iter().enumerate() {
                        for (h, column) in (0..2).flat_map(|h| (0..width).map(move |column| (h, column))) {
                            let number = new[((b * 3 + row) * 2 + h) * width + column].to_f32() / scales[h];
                            let got = stored[((b * 8 + place) * 2 + h) * width + column].to_f32();
                            let clamped = f64::from(number).clamp(-largest, largest);
                            let expected = K::round(clamped).to_f32();
                            let is_right = got == expected
                                && got.is_sign_negative() == expected.is_sign_negative()
                                || got.is_nan() && number.is_nan();
                            assert!(is_right, "{device} {format:?}: {got} for {number}, {expected}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_cache_of_8_bits_holds_the_nearest_numbers() {
    stored_numbers::<bf16, F8E4M3>(CacheFormat::F8E4M3, 448.0);
    stored_numbers::<f16, F8E4M3>(CacheFormat::F8E4M3, 448.0);
    stored_numbers::<bf16, F8E5M2>(CacheFormat::F8E5M2, 57_344.0);
    stored_numbers::<f16, F8E5M2>(CacheFormat::F8E5M2, 57_344.0);
}

/// A layer that turns is the operations one after the other.
fn turned<T: Number>(device: &Device, pairing: Pairing, is_fused: bool) {
    let table = RotaryTable::new(device, 1000.0, 12, 60).expect("it fits");
    let plain = layer::<T>(device, is_fused);
    let layer = plain.clone().with_rotary(table.clone(), pairing).expect("it fits");
    let x = numbers::<T>(device, &[2, 20, 24], 5);
    let stream = device.default_stream();
    let of = |x: &Tensor<T>, positions: &Tensor<u32>| {
        let projected = plain.project(x, &stream).expect("it fits");
        let (q, k, v) = (projected.q, projected.k, projected.v);
        let turn = |x: &Tensor<T>| {
            ops::rotary(x, &table).pairing(pairing).positions(positions).run().expect("it fits")
        };
        (turn(&q), turn(&k), v)
    };
    let positions = |all: &[u32], shape: &[usize]| Tensor::from_slice(device, all, shape).expect("it fits");
    let in_order: Vec<u32> = (0..40).map(|token| token % 20).collect();
    let (q, k, v) = of(&x, &positions(&in_order, &[2, 20]));
    let attended = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).run().expect("it fits");
    let expected = plain.output().forward(&attended.reshape([2, 20, 64]).expect("it fits")).expect("it fits");
    assert!(elements(&layer.forward(&x).expect("it fits")) == elements(&expected), "{device}: at once");
    assert!(elements(&plain.forward(&x).expect("it fits")) != elements(&expected));

    // Packed sequences of 13 and 27 tokens.
    let packed = x.reshape([40, 24]).expect("it fits");
    let offsets = positions(&[0, 13, 40], &[3]);
    let (q, k, v) = of(&packed, &positions(&(0..13).chain(0..27).collect::<Vec<u32>>(), &[40]));
    let operation = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).packed(&offsets, &offsets);
    let attended = operation.run().expect("it fits").reshape([40, 64]).expect("it fits");
    let expected = plain.output().forward(&attended).expect("it fits");
    let y = layer.operation(&packed).packed(&offsets).run().expect("it fits");
    assert!(elements(&y) == elements(&expected), "{device}: packed");

    // Steps go on where the cache ends.
    let all = elements(&layer.forward(&x).expect("it fits"));
    let mut cache = layer.new_cache(2, 20).expect("there is memory");
    let mut first = 0;
    for rows in [9, 1, 1, 4, 5] {
        let y = layer.forward_with_cache(&x.slice(1, first..first + rows).expect("it is there"), &mut cache);
        let y = elements(&y.expect("it fits"));
        for (b, row) in (0..2).flat_map(|b| (0..rows).map(move |row| (b, row))) {
            let expected = &all[(b * 20 + first + row) * 20..][..20];
            for (y, expected) in y[(b * rows + row) * 20..][..20].iter().zip(expected) {
                let (y, expected) = (y.to_f32(), expected.to_f32());
                assert!(
                    (y - expected).abs() <= 0.03 * (1.0 + expected.abs()),
                    "{device}: {y} for {expected}"
                );
            }
        }
        first += rows;
    }
    // More positions than the table has.
    let short = RotaryTable::new(device, 1000.0, 12, 19).expect("it fits");
    let error = plain.with_rotary(short, pairing).expect("it fits").forward(&x).map(drop);
    let error = error.expect_err("they are too many");
    assert!(
        matches!(error, Error::SizeLimit { operation: "Attention::forward", operand: "x", .. }),
        "{error}"
    );
}

#[test]
fn a_layer_that_turns_is_its_operations() {
    for device in devices() {
        turned::<bf16>(&device, Pairing::Halves, true);
        turned::<f16>(&device, Pairing::Neighbours, false);
        turned::<f32>(&device, Pairing::Halves, false);
    }
}

#[test]
fn options_that_do_not_fit_a_cache_or_a_layer_are_named() {
    let device = Device::cpu();
    let layer = layer::<bf16>(&device, true);
    let text = |error: Error| error.to_string();
    let wide = RotaryTable::new(&device, 1000.0, 18, 19).expect("it fits");
    let error = text(layer.clone().with_rotary(wide, Pairing::Halves).map(drop).expect_err("it is too wide"));
    assert!(
        error.contains(
            "Attention::with_rotary: table is one that turns 18, expected one that turns at most 16"
        ),
        "{error}"
    );
    let scale = |count: usize| Tensor::from_slice(&device, &vec![1f32; count], [count]).expect("it fits");
    let same = KvCache::<bf16>::new(&device, 2, 9, 2, 16).expect("there is memory");
    let error = text(same.with_scales(scale(1), None).map(drop).expect_err("it has none"));
    assert!(error.contains("KvCache::with_scales: k is a tensor of shape [1], expected none"), "{error}");
    let config = KvCacheConfig::new(2, 9, 2, 16).format(CacheFormat::F8E4M3);
    let narrow = KvCache::<bf16>::with_config(&device, config).expect("there is memory");
    let error = text(narrow.with_scales(None, scale(3)).map(drop).expect_err("there are two heads"));
    assert!(error.contains("`v` has shape [3], expected [1], or [2] for the heads"), "{error}");
    let error =
        KvCache::<f32>::with_config(&Device::emulator(), config).map(drop).expect_err("there is no kernel");
    assert!(matches!(error, Error::UnsupportedDevice { .. }), "{error}");

    let mut on_device = cache(&layer, CacheFormat::Same, true);
    let x = numbers(&device, &[2, 3, 24], 1);
    let error =
        text(layer.operation(&x).cache(&mut on_device).rows(&[1, 2][..]).run().expect_err("it has none"));
    assert!(
        error.contains("Attention::forward: rows is 2 of them, expected none with a cache whose lengths"),
        "{error}"
    );
    let lengths = Tensor::from_slice(&device, &[1u32, 2, 3], [3]).expect("it fits");
    let error =
        text(layer.operation(&x).cache(&mut on_device).lengths(&lengths).run().expect_err("there are two"));
    assert!(
        error.contains("Attention::forward: `lengths` has shape [3], expected [2], one for each"),
        "{error}"
    );
    let mut of_host = cache(&layer, CacheFormat::Same, false);
    let two = Tensor::from_slice(&device, &[1u32, 2], [2]).expect("it fits");
    let error =
        text(layer.operation(&x).cache(&mut of_host).lengths(&two).run().expect_err("the host has them"));
    assert!(error.contains("Attention::forward: lengths is a tensor of shape [2], expected none"), "{error}");
    assert_eq!(of_host.lengths().expect("they are there"), [0, 0]);
}
