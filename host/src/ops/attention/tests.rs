//! Attention against an implementation of its own in f64, with all options at once; what is refused; edges.

mod fp8;
mod naive;
mod refused;
mod rotary;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use ndarray::{Array4, ArrayD, IxDyn};
use proptest::prelude::*;

use super::{Alignment, AttentionInput, Way};
use crate::weights::FloatElement;
use crate::{Device, Tensor, ops};
use naive::{Drawn, compare};

/// What is drawn of a case for a device: everything but the elements, which its seed decides.
fn cases_on(
    rows: usize,
    keys: usize,
    width: impl Strategy<Value = usize> + Clone,
) -> impl Strategy<Value = Drawn> {
    let side = |most: usize| prop_oneof![1 => Just(0usize), 2 => Just(1usize), 6 => 2..=most];
    let sizes = (side(3), side(rows), side(keys), 1usize..4, 1usize..4, width.clone(), width);
    let reach = || prop::option::of(prop_oneof![Just(0u32), 1u32..9, Just(u32::MAX)]);
    let window = (prop::option::of(any::<bool>()), reach(), reach());
    let switches = prop::array::uniform9(any::<bool>());
    let page_size = prop_oneof![3 => Just(0usize), 1 => Just(1usize), 2 => 2usize..20, 1 => Just(64usize)];
    let scales = prop::array::uniform2(prop::option::of(any::<bool>()));
    let drawn = (sizes, window, switches, 0u8..4, scales, page_size, any::<u64>());
    drawn.prop_map(|(sizes, window, switches, layout, scales, page_size, seed)| {
        let (batch, rows, keys, key_heads, group, width, value_width) = sizes;
        let (is_top_left, left, right) = window;
        let alignment = is_top_left.map(|is| if is { Alignment::TopLeft } else { Alignment::BottomRight });
        Drawn {
            batch,
            rows,
            keys,
            key_heads,
            group,
            width,
            value_width,
            window: alignment.map(|alignment| (left, right, alignment)),
            switches,
            layout,
            scales,
            page_size,
            seed,
        }
    })
}

fn cases() -> impl Strategy<Value = Drawn> {
    cases_on(37, 70, prop_oneof![Just(1usize), Just(8), Just(13), 2usize..40])
}

/// Of more than one tile and key block, and heads of all tiles.
fn cases_of_tiles() -> impl Strategy<Value = Drawn> {
    // Few rows of each sequence as often as many.
    let rows = prop_oneof![Just(5usize), Just(300)];
    rows.prop_flat_map(|rows| {
        cases_on(rows, 420, prop_oneof![Just(1usize), Just(64), Just(128), 2usize..257])
    })
}

/// Nothing that changes scores, which rarely happens where each option is drawn: a few rows of heads that share keys, or many, and keys for several parts.
fn plain_cases() -> impl Strategy<Value = Drawn> {
    let rows = prop_oneof![2 => Just(30usize), 1 => Just(300)];
    let drawn = rows.prop_flat_map(|rows| {
        cases_on(rows, 1500, prop_oneof![Just(8usize), Just(64), Just(128), 2usize..257])
    });
    drawn.prop_map(|drawn| {
        let mut switches = [false; 9];
        // Packed sequences in one of four, lengths in half.
        switches[0] = drawn.switches[0] && drawn.switches[1];
        switches[8] = drawn.switches[8];
        Drawn { switches, page_size: 0, ..drawn }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn kernels_for_plain_scores_compute_it_too(drawn in plain_cases()) {
        let device: Device = "emulator:9.0".parse().expect("a device");
        compare::<f16, f16>(&device, &drawn)?;
        compare::<bf16, bf16>(&device, &drawn)?;
    }

    #[test]
    fn kernels_compute_it_too(drawn in cases_of_tiles()) {
        for device in ["emulator:9.0", "emulator:8.0"] {
            let device: Device = device.parse().expect("a device");
            compare::<f16, f16>(&device, &drawn)?;
            compare::<bf16, bf16>(&device, &drawn)?;
            compare::<f32, f32>(&device, &drawn)?;
        }
    }

    #[test]
    fn kernels_take_keys_of_8_bits(drawn in cases_of_tiles()) {
        for device in ["emulator:8.9", "emulator:8.0"] {
            let device: Device = device.parse().expect("a device");
            compare::<f16, F8E4M3>(&device, &drawn)?;
            compare::<bf16, F8E4M3>(&device, &drawn)?;
            compare::<f16, F8E5M2>(&device, &drawn)?;
            compare::<bf16, F8E5M2>(&device, &drawn)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn all_options_at_once_are_what_their_definition_says(drawn in cases()) {
        compare::<f32, f32>(&Device::cpu(), &drawn)?;
        compare::<f16, f16>(&Device::cpu(), &drawn)?;
        compare::<bf16, bf16>(&Device::cpu(), &drawn)?;
        compare::<f16, F8E4M3>(&Device::cpu(), &drawn)?;
        compare::<bf16, F8E5M2>(&Device::cpu(), &drawn)?;
    }
}

fn tensor<T: FloatElement>(shape: [usize; 4], value: impl Fn([usize; 4]) -> f64) -> Tensor<T> {
    let array = Array4::from_shape_fn(shape, |(b, s, h, d)| T::round(value([b, s, h, d])));
    Tensor::from_array(&Device::cpu(), &array).expect("it fits")
}

#[test]
fn a_row_without_keys_has_zeros_and_no_sum_or_its_sink() {
    let (q, k) = (tensor::<f32>([1, 8, 1, 4], |_| 1.0), tensor::<f32>([1, 5, 1, 4], |_| 1.0));
    let v = tensor::<f32>([1, 5, 1, 2], |_| 3.0);
    let sinks = Tensor::from_slice(&Device::cpu(), &[0.25f32], [1]).expect("it fits");
    for sink in [None, Some(&sinks)] {
        let causal = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).sinks(sink);
        let (y, lse) = causal.run_with_lse().expect("the shapes fit");
        let (y, lse) = (y.to_vec().expect("it is there"), lse.to_vec().expect("it is there"));
        assert_eq!(y[..6], [0.0; 6], "the first three rows are before the first key");
        let nothing = sink.map_or(f32::NEG_INFINITY, |_| 0.25);
        assert_eq!(lse[..3], [nothing; 3]);
        assert!(y[6..].iter().all(|y| *y > 2.0) && lse[3..].iter().all(|lse| lse.is_finite()));
    }
}

#[test]
fn no_keys_at_all_give_zeros() {
    let (q, k) = (tensor::<f16>([2, 3, 2, 8], |_| 1.0), tensor::<f16>([2, 0, 1, 8], |_| 1.0));
    let v = tensor::<f16>([2, 0, 1, 4], |_| 1.0);
    let (y, lse) = ops::attention(&q, &k, &v).run_with_lse().expect("the shapes fit");
    assert!(y.to_vec().expect("it is there").iter().all(|y| *y == f16::ZERO));
    assert!(lse.to_vec().expect("it is there").iter().all(|lse| *lse == f32::NEG_INFINITY));
}

#[test]
fn what_a_row_does_not_attend_to_does_not_show_in_it() {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let poisoned = |j: usize, good: f64| if j < 3 { good } else { bad[j % 3] };
    let q = tensor::<bf16>([1, 2, 1, 4], |_| 1.0);
    let k = tensor::<bf16>([1, 9, 1, 4], |[_, j, ..]| poisoned(j, 0.5));
    let v = tensor::<bf16>([1, 9, 1, 4], |[_, j, ..]| poisoned(j, j as f64));
    let lengths = Tensor::from_slice(&Device::cpu(), &[3u32], [1]).expect("it fits");
    let mask =
        Tensor::from_slice(&Device::cpu(), &[1u8, 1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 9]).expect("it fits");
    let attention = || ops::attention(&q, &k, &v);
    for (name, operation) in [
        ("lengths", attention().lengths(None, Some(&lengths))),
        ("mask", attention().mask(&mask)),
        ("window", attention().window(None, Some(1), Alignment::TopLeft)),
    ] {
        let y = operation.run().expect("the shapes fit").to_vec().expect("it is there");
        let rows: Vec<f32> = y.iter().step_by(4).map(|y| y.to_f32()).collect();
        let expected = if name == "window" { [0.5, 1.0] } else { [1.0, 1.0] };
        assert_eq!(rows, expected, "{name}");
    }
}

#[test]
fn rows_of_no_sequence_stay_as_they_are_or_are_zeros() {
    let cpu = Device::cpu();
    let packed =
        |shape: [usize; 3], value: f32| Tensor::from_array(&cpu, &ArrayD::from_elem(IxDyn(&shape), value));
    let (q, k, v) = (packed([6, 1, 8], 1.0), packed([4, 1, 8], 1.0), packed([4, 1, 2], 5.0));
    let (q, k, v) = (q.expect("it fits"), k.expect("it fits"), v.expect("it fits"));
    let offsets = |offsets: [u32; 4]| Tensor::from_slice(&cpu, &offsets, [4]).expect("it fits");
    // Rows 1 and 2, then none, then row 3 without keys.
    let (of_q, of_k) = (offsets([1, 3, 3, 4]), offsets([0, 3, 4, 4]));
    let operation = ops::attention(&q, &k, &v).packed(&of_q, &of_k);
    let (mut y, mut lse) = operation.run_with_lse().expect("the shapes fit");
    assert_eq!(
        y.to_vec().expect("it is there"),
        [0.0, 0.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    );
    let none = f32::NEG_INFINITY;
    let sums = lse.to_vec().expect("it is there");
    assert_eq!((sums[0], &sums[3..]), (none, &[none; 3][..]));
    assert!(sums[1].is_finite() && sums[1] == sums[2]);

    y.write_slice(&[7.0; 12]).expect("it has so many");
    lse.write_slice(&[7.0; 6]).expect("it has so many");
    operation.run_into_with_lse(&mut y, &mut lse).expect("they fit");
    assert_eq!(
        y.to_vec().expect("it is there"),
        [7.0, 7.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0, 7.0, 7.0, 7.0, 7.0]
    );
    assert_eq!(lse.to_vec().expect("it is there"), [7.0, sums[1], sums[1], none, 7.0, 7.0]);
}

/// A prompt that sequences share is in memory once.
#[test]
fn sequences_may_share_pages() {
    let q = tensor::<f32>([3, 2, 2, 4], |[b, i, h, d]| ((b + 2 * i + 3 * h + 5 * d) % 7) as f64 - 3.0);
    let k = tensor::<f32>([4, 5, 1, 4], |[p, j, _, d]| ((3 * p + 2 * j + d) % 5) as f64 - 2.0);
    let v = tensor::<f32>([4, 5, 1, 3], |[p, j, _, d]| (p * 15 + j * 3 + d) as f64);
    let pages = [[1u32, 0], [1, 2], [1, 1]];
    let table = Tensor::from_array(&Device::cpu(), &ndarray::arr2(&pages)).expect("it fits");
    let y = ops::attention(&q, &k, &v).pages(&table).causal(Alignment::BottomRight).run().expect("they fit");
    let y = y.to_vec().expect("it is there");
    for (b, pages) in pages.into_iter().enumerate() {
        let part = |x: &Tensor<f32>, page: u32| x.slice(0, page as usize..page as usize + 1)?.to_vec();
        let dense = |x: &Tensor<f32>, width: usize| {
            let elements = pages.map(|page| part(x, page).expect("it is there")).concat();
            Tensor::from_slice(&Device::cpu(), &elements, [1, 10, 1, width]).expect("it fits")
        };
        let (q, k, v) = (q.slice(0, b..b + 1).expect("it is there"), dense(&k, 4), dense(&v, 3));
        let alone = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).run().expect("they fit");
        assert_eq!(y[b * 12..][..12], alone.to_vec().expect("it is there"));
    }
}

#[test]
fn a_far_best_key_has_all_the_weight() {
    fn of_type<T: AttentionInput + FloatElement>() {
        let key = |row: usize| (row * 7 + 3) % 11;
        // Of row i and key j the product is −(i' − j)², with scale 256.
        let q = tensor::<T>([1, 9, 2, 3], |[_, i, _, d]| {
            let t = key(i) as f64;
            [2.0 * t, -1.0, -t * t][d]
        });
        let k = tensor::<T>([1, 11, 1, 3], |[_, j, _, d]| [j as f64, (j * j) as f64, 1.0][d]);
        let v = tensor::<T>([1, 11, 1, 5], |[_, j, _, d]| (j * 5 + d) as f64);
        let (y, lse) = ops::attention(&q, &k, &v).scale(256.0).run_with_lse().expect("the shapes fit");
        for (index, y) in y.to_vec().expect("it is there").into_iter().enumerate() {
            let (row, column) = (index / 10, index % 5);
            assert_eq!(y, T::round((key(row) * 5 + column) as f64), "{row} {column}");
        }
        assert!(lse.to_vec().expect("it is there").iter().all(|lse| *lse == 0.0));
    }
    of_type::<f16>();
    of_type::<bf16>();
    of_type::<f32>();
}

/// The devices whose kernels are compared with the CPU.
fn emulators() -> [Device; 2] {
    ["emulator:8.0", "emulator:9.0"].map(|device| device.parse().expect("a device"))
}

/// One row with one head, and keys of which the last has all the weight.
fn last_key<T: AttentionInput + FloatElement>(device: &Device, keys: usize) -> (f64, f32) {
    let place = |value: &dyn Fn(usize) -> f64, rows: usize| {
        let elements: Vec<T> = (0..rows * 8).map(|i| T::round(value(i / 8))).collect();
        Tensor::from_slice(device, &elements, [1, rows, 1, 8]).expect("it fits")
    };
    let last = |j: usize| if j + 1 == keys { 5.0 } else { 0.0 };
    let (q, k, v) = (place(&|_| 8.0, 1), place(&last, keys), place(&last, keys));
    let (y, lse) = ops::attention(&q, &k, &v).run_with_lse().expect("the shapes fit");
    let (y, lse) = (y.to_vec().expect("it is there"), lse.to_vec().expect("it is there"));
    (f64::from(y[0].to_f32()), lse[0])
}

#[test]
fn every_part_of_many_keys_counts() {
    // On both sides of where parts become longer, for blocks of every length.
    for keys in [8192, 8193, 8200, 8223, 8224, 10_241] {
        for device in emulators() {
            let logit = (8.0 * 8.0 * 5.0 / 8f64.sqrt()) as f32;
            for (y, lse) in [last_key::<f16>(&device, keys), last_key::<f32>(&device, keys)] {
                assert_eq!(y, 5.0, "{device}, {keys} keys");
                assert!((lse - logit).abs() < 1e-4, "{device}, {keys} keys: {lse}");
            }
        }
    }
}

#[test]
fn rows_beyond_their_length_have_no_sink_where_keys_are_split() {
    for device in emulators() {
        let ones = |shape: [usize; 4]| {
            let elements = vec![f16::ONE; shape.iter().product()];
            Tensor::from_slice(&device, &elements, shape).expect("it fits")
        };
        let (q, k) = (ones([1, 4, 1, 64]), ones([1, 600, 1, 64]));
        let sinks = Tensor::from_slice(&device, &[0.25f32], [1]).expect("it fits");
        let lengths = Tensor::from_slice(&device, &[2u32], [1]).expect("it fits");
        let operation = ops::attention(&q, &k, &k).sinks(&sinks).lengths(Some(&lengths), None);
        let (y, lse) = operation.run_with_lse().expect("the shapes fit");
        let lse = lse.to_vec().expect("it is there");
        assert!(lse[..2].iter().all(|lse| lse.is_finite()), "{device}: {lse:?}");
        assert_eq!(lse[2..], [f32::NEG_INFINITY; 2], "{device}");
        assert!(y.to_vec().expect("it is there")[128..].iter().all(|y| *y == f16::ZERO));
    }
}

/// Masks of the least number of a type, as programs use them, and scores of that size.
#[test]
fn logits_of_any_size_are_weighed() {
    let mut devices = emulators().to_vec();
    devices.push(Device::cpu());
    for device in devices {
        for (rows, way) in [(3, None), (70, None), (70, Some(Way::Hopper)), (70, Some(Way::Whole))] {
            for least in [bf16::MIN.to_f32(), -1e38, -1e20, -1e12, -1e10] {
                for left in [true, false] {
                    let keys = 300;
                    let is_masked = |j: usize| if left { j < 200 } else { j >= 100 };
                    let place = |rows: usize, value: &dyn Fn(usize) -> f32| {
                        let elements: Vec<bf16> =
                            (0..rows * 64).map(|i| bf16::from_f32(value(i / 64))).collect();
                        Tensor::from_slice(&device, &elements, [1, rows, 1, 64]).expect("it fits")
                    };
                    let (q, k) = (place(rows, &|_| 0.5), place(keys, &|_| 0.5));
                    let v = place(keys, &|j| if is_masked(j) { 9.0 } else { 2.0 });
                    let bias: Vec<bf16> =
                        (0..keys).map(|j| bf16::from_f32(if is_masked(j) { least } else { 0.0 })).collect();
                    let bias = Tensor::from_slice(&device, &bias, [1, 1, 1, keys]).expect("it fits");
                    let y = ops::attention(&q, &k, &v).bias(&bias).way(way).run().expect("the shapes fit");
                    let y = y.to_vec().expect("it is there");
                    assert!(y.iter().all(|y| y.to_f32() == 2.0), "{device}, {rows} rows, {least}: {}", y[0]);
                }
            }
            // The same without a bias: the largest score is a product that is rounded.
            let place = |rows: usize, value: &dyn Fn(usize) -> f32| {
                let elements: Vec<bf16> = (0..rows * 64).map(|i| bf16::from_f32(value(i / 64))).collect();
                Tensor::from_slice(&device, &elements, [1, rows, 1, 64]).expect("it fits")
            };
            let (q, k) = (place(rows, &|_| 1.3e5), place(300, &|j| if j % 2 == 0 { 1.3e5 } else { 1.0 }));
            let v = place(300, &|j| if j % 2 == 0 { 2.0 } else { 9.0 });
            let (y, lse) = ops::attention(&q, &k, &v).way(way).run_with_lse().expect("the shapes fit");
            let exact = 64.0 * f64::from(bf16::from_f32(1.3e5).to_f32()).powi(2) / 8.0;
            assert!(
                y.to_vec().expect("it is there").iter().all(|y| y.to_f32() == 2.0),
                "{device}, {rows} rows"
            );
            for lse in lse.to_vec().expect("it is there") {
                assert!((f64::from(lse) / exact - 1.0).abs() < 1e-6, "{device}: {lse} for {exact}");
            }
        }
    }
}

#[test]
fn a_soft_cap_far_above_all_scores_changes_nothing() {
    for device in emulators() {
        let place = |rows: usize, factor: f32| {
            let elements: Vec<f32> = (0..rows * 16).map(|i| (i % 13) as f32 * factor - 0.3).collect();
            Tensor::from_slice(&device, &elements, [1, rows, 1, 16]).expect("it fits")
        };
        let (q, k, v) = (place(3, 0.1), place(40, 0.07), place(40, 0.05));
        let plain = ops::attention(&q, &k, &v).run().expect("the shapes fit").to_vec().expect("it is there");
        for cap in [1e4, 1e6, 1e30, f32::MAX] {
            let capped = ops::attention(&q, &k, &v).soft_cap(cap).run().expect("the shapes fit");
            for (plain, capped) in plain.iter().zip(capped.to_vec().expect("it is there")) {
                assert!((plain - capped).abs() < 1e-5, "{device}, cap {cap}: {capped} for {plain}");
            }
        }
    }
}

/// Whatever sequences there are beside one.
#[test]
fn rows_that_share_keys_alternate_on_hopper_where_that_saves_tiles() {
    let [_, device] = emulators();
    let (whole, dealt) = ("attention_hopper_f16_", "attention_hopper_dealt_f16_");
    for (rows, [heads, key_heads], keys, width, expected) in [
        // As few as one tile of the kernels for every GPU has.
        (1, [32, 8], 4096, 128, ["attention_f16_128_few", "attention_combine_f16"]),
        (16, [4, 4], 600, 64, ["attention_f16_64_few", "attention_combine_f16"]),
        // A tile of rows of a group in the place of several: with all keys, and dealt to blocks.
        (20, [20, 5], 1095, 80, [dealt, ""]),
        (20, [60, 12], 7240, 32, [dealt, "attention_combine_f16"]),
        // Few tiles, many keys.
        (290, [8, 4], 12_000, 128, [dealt, "attention_combine_f16"]),
        (290, [8, 4], 12_000, 256, [whole, ""]),
        (90, [4, 4], 12_000, 256, [dealt, "attention_combine_f16"]),
        (290, [8, 4], 2000, 128, [whole, ""]),
        (100, [12, 12], 900, 192, [whole, ""]),
        (512, [32, 8], 2048, 128, [whole, ""]),
    ] {
        for batch in [1, 2] {
            let empty = |rows: usize, heads: usize| {
                Tensor::<f16>::uninit(&device, [batch, rows, heads, width]).expect("there is memory")
            };
            let (q, k) = (empty(rows, heads), empty(keys, key_heads));
            let name = ops::attention(&q, &k, &k).implementation().expect("the shapes fit").to_string();
            assert!(name.contains(expected[0]), "{rows} rows of {heads}, {keys} keys: {name}");
            let adds = name.contains("attention_combine");
            assert_eq!(adds, !expected[1].is_empty(), "{rows} rows of {heads}, {keys} keys: {name}");
        }
    }
}

/// Of the keys of an axis that do not count there may be any number.
#[test]
fn parts_follow_from_a_sequences_own_keys() {
    for device in emulators() {
        // Few rows, and more of heads that share keys: on Hopper another kernel has those.
        for (own, rows, heads) in [(100, 2, 1), (3001, 2, 1), (9000, 2, 1), (100, 5, 4), (3001, 5, 4)] {
            let bits = |all: usize| {
                let place = |rows: usize, heads: usize, seed: usize| {
                    let value = |i: usize| f16::from_f32(((i * 7919 + seed) % 1009) as f32 / 500.0 - 1.0);
                    let elements: Vec<f16> = (0..rows * heads * 16).map(value).collect();
                    Tensor::from_slice(&device, &elements, [1, rows, heads, 16]).expect("it fits")
                };
                let (q, k, v) = (place(rows, heads, 1), place(all, 1, 2), place(all, 1, 3));
                let lengths = Tensor::from_slice(&device, &[own as u32], [1]).expect("it fits");
                let operation = ops::attention(&q, &k, &v).lengths(None, Some(&lengths));
                operation.run().expect("the shapes fit").to_vec().expect("it is there")
            };
            let first = bits(own);
            for all in [own + 300, 8192.max(own), 8200.max(own + 1), 20_000] {
                assert_eq!(bits(all), first, "{device}, {own} of {all} keys");
            }
        }
    }
}
