//! Experts behind caches of every size, beside the same experts on the device.

use half::bf16;
use proptest::prelude::*;

use super::{ExpertOptions, Experts, chunk_tokens};
use crate::ops::Activation;
use crate::ops::peer::{ExpertFormat, ExpertLayout, Routing};
use crate::peer::rows::Point;
use crate::peer::{CacheOptions, CacheStatistics, CachedRows, ExpertMemory};
use crate::weights::FloatElement;
use crate::{Device, DeviceKind, Element, Error, Tensor};

/// Numbers from -1 to 1 that depend on a seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

fn tensor<T: Element + FloatElement>(device: &Device, shape: &[usize], seed: u64) -> Tensor<T> {
    let values: Vec<T> =
        numbers(shape.iter().product(), seed).into_iter().map(|value| T::round(value.into())).collect();
    Tensor::from_slice(device, &values, shape).expect("a small tensor")
}

/// Ids of which small ones are more frequent, and some twice a token.
fn routing(device: &Device, tokens: usize, heads: usize, k: usize, count: usize, seed: u64) -> Routing {
    let ids: Vec<u32> = numbers(tokens * heads * k, seed ^ 1)
        .into_iter()
        .map(|number| ((number * number * count as f32) as usize).min(count - 1) as u32)
        .collect();
    Routing {
        ids: Tensor::from_slice(device, &ids, [tokens, heads, k]).expect("a small tensor"),
        gates: tensor(device, &[tokens, heads, k], seed ^ 2),
    }
}

fn experts(device: &Device, layout: ExpertLayout, count: usize, options: ExpertOptions) -> Experts {
    Experts::new(device, layout, count, &options, |range| {
        let of = |length: usize, salt: u64| -> Vec<f32> {
            range.clone().flat_map(|expert| numbers(length, expert as u64 * 3 + salt)).collect()
        };
        let (u, v) = (layout.hidden() * layout.d(), layout.hidden() * layout.o());
        Ok([of(u, 0), if layout.is_gated() { of(u, 1) } else { Vec::new() }, of(v, 2)])
    })
    .expect("a small layer")
}

fn bits(y: &Tensor<bf16>) -> Vec<u16> {
    y.to_vec().expect("the result can be read").into_iter().map(bf16::to_bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn outputs_are_those_of_resident_experts_bit_for_bit(
        format in prop::sample::select(ExpertFormat::ALL.to_vec()),
        (d, o, hidden, gated) in (1usize..40, 1usize..40, 1usize..3, any::<bool>()),
        (tokens, heads, k) in (1usize..24, 1usize..3, 1usize..5),
        count in 1usize..50, slots in 1usize..56, chunk in 1usize..9, poison: bool, seed: u64,
    ) {
        let mut counts = Vec::new();
        for device in [Device::cpu(), Device::emulator()] {
            let layout = ExpertLayout::new(format, d, hidden, o, gated).unwrap();
            let options = ExpertOptions::default().activation(Activation::Silu).chunk_tokens(chunk);
            let resident = experts(&device, layout, count, options.memory(ExpertMemory::Resident));
            let cache = CacheOptions::default().slots(slots).poison(poison);
            let cached = experts(&device, layout, count, options.memory(ExpertMemory::Cached).cache(cache));
            prop_assert!(resident.is_resident() && !cached.is_resident());
            prop_assert_eq!(cached.capacity(), slots.min(count));
            let stream = device.new_stream().unwrap();
            for pass in 0..3 {
                let x = tensor::<bf16>(&device, &[tokens, d], seed ^ pass);
                let routing = routing(&device, tokens, heads, k, count, seed ^ pass);
                let expected = resident.forward(&x, &routing).unwrap();
                let got = cached.forward_on(&x, &routing, &stream).unwrap();
                prop_assert_eq!(got.shape(), expected.shape());
                prop_assert_eq!(bits(&got), bits(&expected));
            }
            let statistics = cached.statistics().unwrap();
            prop_assert_eq!(statistics.requests, (3 * tokens * heads * k) as u64);
            prop_assert_eq!(statistics.hits + statistics.misses, statistics.requests);
            prop_assert_eq!(statistics.steps, 3 * tokens.div_ceil(chunk) as u64);
            let heat: u64 = cached.heat().unwrap().expect("there is a cache").into_iter().map(u64::from).sum();
            prop_assert_eq!(heat, statistics.unique);
            prop_assert!(resident.statistics().is_none() && resident.heat().unwrap().is_none());
            counts.push((CacheStatistics { stalls: 0, ..statistics }, cached.heat().unwrap()));
        }
        prop_assert_eq!(&counts[0], &counts[1], "on the CPU and on the emulator");
    }
}

#[test]
fn a_pass_that_fails_is_an_error_and_the_next_one_is_right() {
    for device in [Device::cpu(), Device::emulator()] {
        let layout = ExpertLayout::new(ExpertFormat::Int8, 20, 1, 12, false).unwrap();
        let options = ExpertOptions::default().chunk_tokens(3);
        let resident = experts(&device, layout, 30, options.memory(ExpertMemory::Resident));
        let cache = CacheOptions::default().slots(7).poison(true);
        let cached = experts(&device, layout, 30, options.memory(ExpertMemory::Cached).cache(cache));
        // Copies are not part of every step of the CPU: its second finds all slots in use. Its ids come from nowhere.
        let mut points = vec![
            (Point::Plan, 1),
            (Point::Allocation, 3),
            (Point::Copy, 1),
            (Point::Record, 2),
            (Point::Copy, 0),
            (Point::Note, 0),
            (Point::Note, 3),
        ];
        if device.kind() == DeviceKind::Emulator {
            points.extend([(Point::Return, 0), (Point::Return, 2), (Point::Wait, 0), (Point::Wait, 1)]);
        }
        for (seed, (point, after)) in points.into_iter().enumerate() {
            let x = tensor::<bf16>(&device, &[10, 20], seed as u64);
            let routing = routing(&device, 10, 2, 3, 30, seed as u64);
            let expected = bits(&resident.forward(&x, &routing).unwrap());
            // How often the device cannot be waited for afterwards: a pass waits for it twice at most, and so do those after it, once each.
            for refusals in 0..5 {
                let refused = std::iter::repeat_n((Point::Synchronize, 0), refusals);
                cached.fail([(point, after)].into_iter().chain(refused.clone()));
                let failed = cached.forward(&x, &routing);
                assert!(matches!(failed, Err(Error::Driver { .. })), "{point:?}: {failed:?}");
                let error = failed.unwrap_err().to_string();
                assert!(error.contains(&format!("at {point:?}")), "what failed first: {error}");
                let left = cached.fail(None);
                // Nothing is under way where the first ids have not been noted.
                let is_behind = refusals > 0 && (point, after) != (Point::Note, 0);
                assert_eq!(left < refusals, is_behind, "after {point:?}: {left} of {refusals}");
                for left in (1..=left).rev().filter(|_| is_behind) {
                    cached.fail(refused.clone().take(left));
                    let error = cached.forward(&x, &routing).unwrap_err().to_string();
                    assert!(error.contains("at Synchronize"), "after {point:?}: {error}");
                    assert_eq!(cached.fail(None), left - 1, "a pass that does not begin waits once");
                }
                let got = bits(&cached.forward(&x, &routing).unwrap());
                assert_eq!(got, expected, "after {point:?}, {refusals} times");
            }
        }
    }
}

#[test]
fn any_number_of_tokens_and_leading_axes_are_taken() {
    let device = Device::emulator();
    let layout = ExpertLayout::new(ExpertFormat::Bf16, 8, 1, 5, false).unwrap();
    let options =
        ExpertOptions::default().memory(ExpertMemory::Cached).cache(CacheOptions::default().slots(4));
    let experts = experts(&device, layout, 9, options);
    for shape in [&[1][..], &[0], &[2, 0, 3], &[2, 3], &[]] {
        let tokens = shape.iter().product();
        let flat = routing(&device, tokens, 2, 2, 9, 5);
        let axes = [shape, &[2, 2]].concat();
        let routing =
            Routing { ids: flat.ids.reshape(&axes).unwrap(), gates: flat.gates.reshape(&axes).unwrap() };
        let x = tensor::<f32>(&device, &[shape, &[8]].concat(), 4);
        let y = experts.forward(&x, &routing).unwrap();
        assert_eq!(y.shape(), [shape, &[5]].concat());
    }
}

#[test]
fn outputs_go_where_they_are_asked_for_and_nowhere_else() {
    for device in [Device::cpu(), Device::emulator()] {
        let layout = ExpertLayout::new(ExpertFormat::F32, 8, 1, 5, false).unwrap();
        let resident = ExpertOptions::default().memory(ExpertMemory::Resident);
        let cached = ExpertOptions::default()
            .memory(ExpertMemory::Cached)
            .cache(CacheOptions::default().slots(4))
            .chunk_tokens(2);
        for options in [resident, cached] {
            let experts = experts(&device, layout, 9, options);
            let (stream, routing) = (device.default_stream(), routing(&device, 6, 2, 2, 9, 5));
            let x = tensor::<f32>(&device, &[6, 8], 4);
            let expected = experts.forward(&x, &routing).unwrap().to_vec().unwrap();
            // The middle rows of a larger tensor.
            let all = Tensor::from_slice(&device, &[7.0f32; 50], [10, 5]).unwrap();
            experts.forward_into(&x, &routing, &mut all.slice(0, 2..8).unwrap(), &stream).unwrap();
            let all = all.to_vec().unwrap();
            assert_eq!(all[10..40], expected);
            assert!(all[..10].iter().chain(&all[40..]).all(|&value| value == 7.0));

            let refused = |y: &Tensor<f32>| {
                experts.forward_into(&x, &routing, &mut y.clone(), &stream).expect_err("it does not fit")
            };
            let y = |shape: &[usize]| tensor::<f32>(&device, shape, 1);
            for shape in [&[5, 5][..], &[6, 4], &[30], &[1, 6, 5]] {
                assert!(matches!(refused(&y(shape)), Error::Shape { operand: "y", .. }), "{shape:?}");
            }
            assert!(matches!(refused(&y(&[5, 6]).swap_axes(0, 1).unwrap()), Error::Stride { .. }));
            let shared = x.reshape([48]).unwrap().slice(0, 9..39).unwrap().reshape([6, 5]).unwrap();
            assert!(matches!(refused(&shared), Error::Overlap { operand: "y", other: "x", .. }));
            let gates = routing.gates.reshape([24]).unwrap();
            let one = experts.forward_into(
                &x.slice(0, 0..1).unwrap(),
                &Routing {
                    ids: routing.ids.slice(0, 0..1).unwrap(),
                    gates: routing.gates.slice(0, 0..1).unwrap(),
                },
                &mut gates.slice(0, 3..8).unwrap().reshape([1, 5]).unwrap(),
                &stream,
            );
            assert!(matches!(one, Err(Error::Overlap { other: "gates", .. })), "{one:?}");
            let elsewhere = Tensor::<f32>::zeros(&Device::emulator(), [6, 5]).unwrap();
            assert!(matches!(refused(&elsewhere), Error::DeviceMismatch { operand: "y", .. }));
        }
    }
}

#[test]
fn experts_behind_a_cache_are_not_captured() {
    for device in [Device::cpu(), Device::emulator()] {
        let layout = ExpertLayout::new(ExpertFormat::F32, 8, 1, 5, false).unwrap();
        let (stream, routing) = (device.new_stream().unwrap(), routing(&device, 3, 1, 2, 9, 5));
        let x = tensor::<f32>(&device, &[3, 8], 4);
        for memory in [ExpertMemory::Cached, ExpertMemory::Resident] {
            let options = ExpertOptions::default().memory(memory).cache(CacheOptions::default().slots(4));
            let experts = experts(&device, layout, 9, options);
            let y = Tensor::<f32>::zeros(&device, [3, 5]).unwrap();
            let mut output = y.clone();
            let work = || experts.forward_into(&x, &routing, &mut output, &stream);
            // SAFETY: the work borrows the tensors that it uses, or the layer that holds them.
            let captured = unsafe { stream.capture(work) };
            if memory == ExpertMemory::Resident {
                captured.unwrap().launch().unwrap();
            } else {
                let error = captured.expect_err("the host has to wait").to_string();
                assert!(error.contains("stream") && error.contains("captured"), "{error}");
            }
            assert!(!stream.is_capturing());
            let expected = experts.forward_on(&x, &routing, &stream).unwrap().to_vec().unwrap();
            let is_same = y.to_vec().unwrap() == expected;
            assert_eq!(is_same, memory == ExpertMemory::Resident);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_errors_and_so_are_ids_of_no_expert() {
    for device in [Device::cpu(), Device::emulator()] {
        operands_that_do_not_fit_are_errors(&device);
    }
}

fn operands_that_do_not_fit_are_errors(device: &Device) {
    let layout = ExpertLayout::new(ExpertFormat::F32, 8, 1, 5, false).unwrap();
    let options = ExpertOptions::default()
        .memory(ExpertMemory::Cached)
        .cache(CacheOptions::default().slots(4))
        .chunk_tokens(1);
    let experts = experts(device, layout, 9, options);
    let good = routing(device, 3, 1, 2, 9, 5);
    let x = |shape: &[usize]| tensor::<f32>(device, shape, 4);
    for shape in [&[3, 7][..], &[2, 8], &[8], &[1, 3, 8]] {
        let error = experts.forward(&x(shape), &good);
        assert!(matches!(error, Err(Error::Shape { operand: "x", .. })), "{shape:?}: {error:?}");
    }
    let elsewhere = tensor::<f32>(&Device::emulator(), &[3, 8], 4);
    assert!(matches!(experts.forward(&elsewhere, &good), Err(Error::DeviceMismatch { .. })));
    let across = x(&[8, 3]).swap_axes(0, 1).unwrap();
    let error = experts.forward(&across, &good);
    assert!(matches!(error, Err(Error::Stride { operand: "x", .. })), "{error:?}");
    let bad = Routing { ids: Tensor::from_slice(device, &[0u32, 1, 2, 3, 9, 4], [3, 1, 2]).unwrap(), ..good };
    let error = experts.forward(&x(&[3, 8]), &bad).unwrap_err().to_string();
    assert!(
        error.contains("an id is 9, at 4") && error.contains("less than 9, the number of experts"),
        "{error}"
    );
    assert_eq!(experts.statistics().unwrap(), CacheStatistics::default(), "no chunk has been computed");
    let none = ExpertOptions::default().chunk_tokens(0);
    let refused = Experts::new(device, layout, 9, &none, |_| Ok([Vec::new(), Vec::new(), Vec::new()]));
    assert!(matches!(refused, Err(Error::Argument { argument: "chunk_tokens", .. })));
    let short = Experts::new(device, layout, 9, &options, |_| Ok([Vec::new(), Vec::new(), Vec::new()]));
    assert!(matches!(short, Err(Error::Shape { .. })));
}

#[test]
fn experts_that_fit_are_resident_unless_asked_otherwise() {
    let device = Device::cpu();
    let layout = ExpertLayout::new(ExpertFormat::F32, 64, 1, 64, false).unwrap();
    let of = |slots| {
        experts(&device, layout, 10, ExpertOptions::default().cache(CacheOptions::default().slots(slots)))
    };
    assert!(of(10).is_resident() && of(11).is_resident() && !of(9).is_resident());
}

#[test]
fn chunks_fit_into_the_cache_and_fill_a_gpu() {
    assert_eq!(chunk_tokens(16_384, 128, 1 << 20), 2048);
    assert_eq!(chunk_tokens(2048, 128, 1 << 20), 512);
    assert_eq!(chunk_tokens(16_384, 128, 100_000), 390);
    assert_eq!(chunk_tokens(16_384, 128, 1), 64);
    assert_eq!(chunk_tokens(1, 128, 1 << 20), 64);
    assert_eq!(chunk_tokens(1, 0, 0), 64);
}

#[test]
fn rows_of_another_length_than_the_layout_s_are_refused() {
    let device = Device::cpu();
    let layout = ExpertLayout::new(ExpertFormat::Bf16, 8, 1, 8, false).expect("sizes are fine");
    let rows = |bytes| CachedRows::new(&device, 4, bytes, &CacheOptions::default()).expect("there is memory");
    let fitting = Experts::in_rows(layout, rows(layout.row_bytes())).expect("the lengths are the same");
    assert_eq!(fitting.count(), 4);
    let refused = Experts::in_rows(layout, rows(2 * layout.row_bytes())).map(|_| ());
    assert!(matches!(refused, Err(Error::Argument { argument: "rows", .. })), "{refused:?}");
}
