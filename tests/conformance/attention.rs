//! Attention against its f64 reference, on drawn cases; exact where one key has all the weight; what lengths and offsets may be.

use half::bf16;
use libtest_mimic::Failed;
use ndarray::{Array1, Array3, Array4};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::attention::{Alignment, Way, Window};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor, ops};
use warpsmith_lab::cases::{AttentionCase, AttentionLayout, Data, KeyScales, Sequences, Slopes};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    attention_draws_stay_within_their_bound,
    attention_draws_with_one_key_of_all_the_weight_are_exact,
    attention_cases_that_are_easy_to_get_wrong_hold,
    attention_gradients_drawn_stay_within_their_bound,
    attention_gradients_of_one_key_of_all_the_weight_are_exact,
    attention_gradients_of_cases_that_are_easy_to_get_wrong_hold,
    attention_of_a_sequence_does_not_depend_on_others,
    attention_takes_lengths_and_offsets_beyond_its_tensors,
    attention_of_many_rows_and_heads_is_that_of_few,
    a_captured_attention_runs_again_on_what_is_there_then,
    a_captured_attention_reads_its_table_of_pages_each_time,
    absurd_cases_of_attention_are_not_validated,
];

/// Cases that once failed are added here.
fn regressions() -> Vec<AttentionCase> {
    let packed = |lengths: &[[usize; 2]], heads, width| AttentionCase {
        sequences: Sequences::Packed(lengths.to_vec()),
        ..AttentionCase::new(DType::F16, [0; 3], heads, width)
    };
    let causal = Window::new(None, Some(0), Alignment::BottomRight);
    vec![
        AttentionCase::new(DType::F32, [0, 0, 0], [1, 1], 8),
        AttentionCase::new(DType::Bf16, [2, 3, 0], [2, 2], 8),
        // The rows of one key are nowhere else, whatever its columns.
        AttentionCase::new(DType::F16, [1, 1, 1], [1, 1], 20),
        AttentionCase::new(DType::F16, [2, 5, 1], [1, 1], 100),
        packed(&[[3, 1]], [1, 1], 20),
        AttentionCase { window: causal, ..packed(&[[76, 1], [34, 1], [146, 1]], [1, 1], 32) },
        AttentionCase {
            window: causal,
            sinks: true,
            ..packed(&[[5, 3], [0, 4], [4, 0], [0, 0]], [1, 3], 64)
        },
        AttentionCase { window: causal, ..AttentionCase::new(DType::F16, [1, 130, 66], [1, 2], 64) },
        AttentionCase {
            window: Window::new(Some(32), Some(64), Alignment::BottomRight),
            ..AttentionCase::new(DType::Bf16, [1, 129, 33], [1, 1], 64)
        },
        AttentionCase {
            page_size: Some(1),
            window: causal,
            ..AttentionCase::new(DType::F16, [3, 1, 300], [1, 4], 64)
        },
        AttentionCase {
            sequences: Sequences::Padded {
                rows: 70,
                keys: 96,
                lengths: vec![[70, 96], [0, 33], [5, 0], [40, 64]],
            },
            page_size: Some(32),
            window: causal,
            ..AttentionCase::new(DType::Bf16, [0; 3], [2, 2], 128)
        },
        AttentionCase {
            bias: Some([true; 4]),
            blocks: Some(([true; 2], [1, 1])),
            slopes: Some(Slopes::OfSequences),
            ..AttentionCase::new(DType::F32, [2, 9, 70], [1, 5], 24)
        },
    ]
}

fn attention_cases_that_are_easy_to_get_wrong_hold(device: &Device) -> Result<(), Failed> {
    for case in regressions() {
        check(device, &case).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn check(device: &Device, case: &AttentionCase) -> Result<(), TestCaseError> {
    let what = format!("{} {} {}", case.dtype, case.shape(), case.options());
    drawn::passed(validate::attention(device, case), &what, case.elements()).map(drop)
}

fn sequences() -> impl Strategy<Value = Sequences> {
    let side = || drawn::side(200, &[16, 32, 64, 128], &[37, 61, 97, 131]);
    let of = |(rows, keys): (usize, usize)| (0..=rows, 0..=keys).prop_map(|(rows, keys)| [rows, keys]);
    let lengths = move |sides| prop::collection::vec(of(sides), 1..5);
    let padded = (side(), side()).prop_flat_map(move |(rows, keys)| {
        lengths((rows, keys)).prop_map(move |lengths| Sequences::Padded { rows, keys, lengths })
    });
    // More keys than one block has of a sequence, whose rows are few.
    let many = (1usize..20, 257usize..700).prop_flat_map(move |(rows, keys)| {
        let padded = lengths((rows, keys));
        prop_oneof![
            Just(Sequences::Equal { batch: 1, rows, keys }),
            padded.prop_map(move |lengths| Sequences::Padded { rows, keys, lengths }),
        ]
    });
    prop_oneof![
        3 => (0usize..4, side(), side()).prop_map(|(batch, rows, keys)| Sequences::Equal { batch, rows, keys }),
        2 => padded,
        2 => many,
        3 => prop::collection::vec(of((140, 140)), 0..6).prop_map(Sequences::Packed),
    ]
}

pub(crate) const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// The sequences with keys in whole pages of this size; packed ones have no pages.
fn in_pages(sequences: Sequences, size: usize) -> (Sequences, Option<usize>) {
    match sequences {
        Sequences::Equal { batch, rows, keys } => {
            (Sequences::Equal { batch, rows, keys: keys.next_multiple_of(size) }, Some(size))
        }
        Sequences::Padded { rows, keys, lengths } => {
            (Sequences::Padded { rows, keys: keys.next_multiple_of(size), lengths }, Some(size))
        }
        packed @ Sequences::Packed(_) => (packed, None),
    }
}

/// Everything but what is added to the scores.
fn plain_case(data: Data) -> impl Strategy<Value = AttentionCase> {
    let dtype = prop::sample::select(&TYPES[..]);
    let width =
        || prop_oneof![3 => (1usize..17).prop_map(|eighths| 8 * eighths), 1 => Just(192), 1 => Just(256)];
    let reach = || prop::option::of(prop_oneof![1 => Just(0u32), 4 => 0u32..150, 1 => Just(u32::MAX)]);
    let alignment = prop::sample::select(vec![Alignment::TopLeft, Alignment::BottomRight]);
    let window = (reach(), reach(), alignment)
        .prop_map(|(left, right, alignment)| Window::new(left, right, alignment));
    let window = prop_oneof![1 => Just(Window::default()), 2 => window];
    let mask = prop::option::weighted(0.4, any::<[bool; 4]>());
    let size = || prop::sample::select(vec![1u32, 7, 16, 64, 128, 1000]);
    let blocks = prop::option::weighted(
        0.3,
        (any::<[bool; 2]>(), (size(), size()).prop_map(|(rows, keys)| [rows, keys])),
    );
    let layout =
        prop::sample::select(vec![AttentionLayout::Rows, AttentionLayout::Heads, AttentionLayout::Among]);
    let page_size = prop::option::weighted(
        0.4,
        prop_oneof![1 => Just(1usize), 2 => 2usize..40, 3 => Just(16), 1 => Just(128)],
    );
    let sequences = (sequences(), page_size).prop_map(|(sequences, page_size)| match page_size {
        Some(size) => in_pages(sequences, size),
        None => (sequences, None),
    });
    let sizes = (sequences, 1usize..4, 1usize..6, width(), width());
    let way = prop_oneof![1 => Just(None), 2 => prop::sample::select(&Way::ALL[..]).prop_map(Some)];
    // Of 8 bits every third.
    let keys_dtype =
        prop::sample::select(vec![None, None, None, None, Some(DType::F8E4M3), Some(DType::F8E5M2)]);
    let key_scales = prop::sample::select(vec![None, Some(KeyScales::OfTensor), Some(KeyScales::OfHeads)]);
    let keys = (keys_dtype, key_scales.clone(), key_scales);
    (dtype, sizes, window, mask, blocks, (layout, keys), way, any::<u64>()).prop_map(
        move |(dtype, sizes, window, mask, blocks, (layout, (keys_dtype, k_scales, v_scales)), way, seed)| {
            let keys_dtype = keys_dtype.filter(|_| dtype != DType::F32);
            let key_scales = [k_scales, v_scales].map(|scales| scales.filter(|_| keys_dtype.is_some()));
            let ((sequences, page_size), key_heads, group, width, value_width) = sizes;
            // Three columns for each of the digits that tell keys apart.
            let least = if keys_dtype.is_some() { 21 } else { 9 };
            let width = if data == Data::Integers { width.max(least) } else { width };
            let is_packed = matches!(sequences, Sequences::Packed(_));
            AttentionCase {
                sequences,
                value_width,
                window,
                mask: mask.filter(|_| !is_packed),
                blocks: blocks.filter(|_| !is_packed),
                page_size,
                keys_dtype,
                key_scales,
                layout,
                way,
                data,
                seed,
                ..AttentionCase::new(dtype, [0; 3], [key_heads, group], width)
            }
        },
    )
}

/// Any case, with everything that is done to scores.
fn any_case() -> impl Strategy<Value = AttentionCase> {
    let scale = prop::option::weighted(0.3, prop::sample::select(vec![0.0f32, 0.02, 0.3, -0.25]));
    let cap = prop::option::weighted(0.3, prop::sample::select(vec![0.3f32, 2.0, 50.0]));
    let bias = prop::option::weighted(0.4, any::<[bool; 4]>());
    let slopes = prop::sample::select(vec![None, None, Some(Slopes::OfHeads), Some(Slopes::OfSequences)]);
    (plain_case(Data::Uniform), scale, cap, bias, slopes, any::<bool>()).prop_map(
        |(case, scale, soft_cap, bias, slopes, sinks)| {
            let is_packed = matches!(case.sequences, Sequences::Packed(_));
            let bias = bias.filter(|_| !is_packed);
            AttentionCase { scale, soft_cap, bias, slopes, sinks, ..case }
        },
    )
}

fn attention_draws_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [40, 300])?.run(&any_case(), |case| check(device, &case))?)
}

fn attention_draws_with_one_key_of_all_the_weight_are_exact(device: &Device) -> Result<(), Failed> {
    // Two digits of a key's number at least.
    Ok(drawn::runner(device, [40, 300])?.run(&plain_case(Data::Integers), |case| check(device, &case))?)
}

/// The case with what has gradients; none if a kernel of the device lacks its sizes.
fn differentiable(device: &Device, case: AttentionCase) -> Option<AttentionCase> {
    let is_wide = case.dtype == DType::F32 && case.width.max(case.value_width) > 128;
    // Hopper's blocks have the shared memory for them.
    let has_kernel =
        !is_wide || device.kind() == DeviceKind::Cpu || device.properties().compute_capability == (9, 0);
    has_kernel.then_some(AttentionCase { page_size: None, keys_dtype: None, key_scales: [None; 2], ..case })
}

fn check_gradients(device: &Device, case: AttentionCase) -> Result<(), TestCaseError> {
    let Some(case) = differentiable(device, case) else { return Ok(()) };
    let [matrices, rows, keys] = case.sequences.axes();
    let of_keys = keys * case.key_heads * (case.width + case.value_width);
    let of_sinks = if case.sinks { case.heads() } else { 0 };
    let compared = matrices * (rows * case.heads() * case.width + of_keys) + of_sinks;
    let what = format!("gradients of {} {} {}", case.dtype, case.shape(), case.options());
    drawn::passed(validate::attention_backward(device, &case), &what, compared).map(drop)
}

fn attention_gradients_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(drawn::runner(device, [40, 300])?.run(&any_case(), |case| check_gradients(device, case))?)
}

fn attention_gradients_of_one_key_of_all_the_weight_are_exact(device: &Device) -> Result<(), Failed> {
    let cases = plain_case(Data::Integers);
    Ok(drawn::runner(device, [40, 300])?.run(&cases, |case| check_gradients(device, case))?)
}

fn attention_gradients_of_cases_that_are_easy_to_get_wrong_hold(device: &Device) -> Result<(), Failed> {
    for case in regressions() {
        check_gradients(device, case).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn numbers(device: &Device, shape: [usize; 4], seed: usize) -> Result<Tensor<bf16>, Failed> {
    let mut index = seed;
    let array = Array4::from_shape_fn(shape, |_| {
        index = (index * 7919 + 12_345) % 1_000_003;
        bf16::from_f32(index as f32 / 250_000.0 - 2.0)
    });
    Ok(Tensor::from_array(device, &array)?)
}

/// One step of decoding more changes the bits of its own sequence alone.
fn attention_of_a_sequence_does_not_depend_on_others(device: &Device) -> Result<(), Failed> {
    let q = numbers(device, [4, 1, 8, 64], 1)?;
    let (k, v) = (numbers(device, [4, 1024, 2, 64], 2)?, numbers(device, [4, 1024, 2, 64], 3)?);
    let run = |first: u32| -> Result<Vec<bf16>, Failed> {
        let lengths = Tensor::from_slice(device, &[first, 1000, 120, 500], [4])?;
        Ok(ops::attention(&q, &k, &v).lengths(None, Some(&lengths)).run()?.to_vec()?)
    };
    let (some, others) = (run(900)?, run(800)?);
    assert_ne!(some[..512], others[..512]);
    assert_eq!(some[512..], others[512..]);
    Ok(())
}

fn attention_takes_lengths_and_offsets_beyond_its_tensors(device: &Device) -> Result<(), Failed> {
    let (q, k) = (numbers(device, [2, 40, 2, 16], 1)?, numbers(device, [2, 70, 1, 16], 2)?);
    let v = numbers(device, [2, 70, 1, 8], 3)?;
    let expected = ops::attention(&q, &k, &v).run()?.to_vec()?;
    let beyond = Tensor::from_slice(device, &[41, u32::MAX], [2])?;
    let got = ops::attention(&q, &k, &v).lengths(Some(&beyond), Some(&beyond)).run()?.to_vec()?;
    // Of keys only the second length is beyond.
    assert_eq!(got[40 * 2 * 8..], expected[40 * 2 * 8..]);

    let (q, k, v) = (q.reshape([80, 2, 16])?, k.reshape([140, 1, 16])?, v.reshape([140, 1, 8])?);
    let offsets = |offsets: [u32; 4]| Tensor::from_slice(device, &offsets, [4]);
    let whole = ops::attention(&q, &k, &v);
    let expected = whole.run_with_lse().err().map(|error| error.to_string());
    assert!(expected.is_some_and(|error| error.contains("four axes")));
    let (of_q, of_k) = (offsets([0, 40, 81, u32::MAX])?, offsets([0, 70, 1000, u32::MAX])?);
    let (y, lse) = ops::attention(&q, &k, &v).packed(&of_q, &of_k).run_with_lse()?;
    assert!(y.to_vec()?.iter().all(|y| y.is_finite()) && lse.to_vec()?.iter().all(|lse| lse.is_finite()));
    // The second sequence ends before it starts.
    let (of_q, of_k) = (offsets([10, 40, 20, 20])?, offsets([0, 70, 50, 60])?);
    let (y, lse) = ops::attention(&q, &k, &v).packed(&of_q, &of_k).run_with_lse()?;
    let (y, lse) = (y.to_vec()?, lse.to_vec()?);
    assert!(y[..10 * 2 * 8].iter().all(|y| y.to_f32() == 0.0), "rows of no sequence are zeros");
    assert!(y[40 * 2 * 8..].iter().all(|y| y.to_f32() == 0.0), "rows of no sequence are zeros");
    let none = |rows: &[f32]| rows.iter().all(|&lse| lse == f32::NEG_INFINITY);
    assert!(none(&lse[..10]) && none(&lse[40..90]) && none(&lse[120..]));
    assert!(lse[10..40].iter().all(|lse| lse.is_finite()));
    Ok(())
}

/// Rows and heads are computed apart: those of a part have the bits that they have among all.
fn attention_of_many_rows_and_heads_is_that_of_few(device: &Device) -> Result<(), Failed> {
    let (q, k) = (numbers(device, [1, 100, 6, 32], 1)?, numbers(device, [1, 90, 2, 32], 2)?);
    let v = numbers(device, [1, 90, 2, 32], 3)?;
    let all = ops::attention(&q, &k, &v).causal(Alignment::TopLeft).run()?;
    let (q, k, v) = (q.slice(2, 3..6)?, k.slice(2, 1..2)?, v.slice(2, 1..2)?);
    let part = ops::attention(&q, &k, &v).causal(Alignment::TopLeft).run()?;
    assert_eq!(all.slice(2, 3..6)?.to_vec()?, part.to_vec()?);
    Ok(())
}

fn a_captured_attention_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let q = Tensor::from_array(device, &Array3::from_elem((30, 2, 8), bf16::ONE))?;
    let k = Tensor::from_array(device, &Array3::from_elem((50, 1, 8), bf16::ONE))?;
    let v = Tensor::from_array(
        device,
        &Array3::from_shape_fn((50, 1, 4), |(key, ..)| bf16::from_f32(key as f32)),
    )?;
    let vector = |offsets: [u32; 3]| Tensor::from_array(device, &Array1::from(offsets.to_vec()));
    let (mut of_q, mut of_k) = (vector([0; 3])?, vector([0; 3])?);
    let mut y = Tensor::<bf16>::zeros_on(&stream, [30, 2, 4])?;
    let mut lse = Tensor::<f32>::zeros_on(&stream, [2, 30])?;
    let (read_q, read_k) = (of_q.clone(), of_k.clone());
    let (mut to_y, mut to_lse) = (y.clone(), lse.clone());
    let work = || {
        let operation = ops::attention(&q, &k, &v).packed(&read_q, &read_k).on(&stream);
        operation.run_into_with_lse(&mut to_y, &mut to_lse)
    };
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for (rows, keys) in [([0, 10, 30], [0, 25, 50]), ([0, 29, 30], [3, 4, 50]), ([0, 0, 30], [0, 50, 50])] {
        of_q.write_slice(&rows)?;
        of_k.write_slice(&keys)?;
        y.write_slice(&vec![bf16::NAN; y.len()])?;
        lse.write_slice(&vec![f32::NAN; lse.len()])?;
        graph.launch()?;
        let (expected, expected_lse) = ops::attention(&q, &k, &v).packed(&of_q, &of_k).run_with_lse()?;
        assert_eq!((y.to_vec()?, lse.to_vec()?), (expected.to_vec()?, expected_lse.to_vec()?));
    }
    Ok(())
}

/// Decoding with pages: the table and the lengths change from launch to launch, and numbers beyond the last page count for the last.
fn a_captured_attention_reads_its_table_of_pages_each_time(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    for rows in [1, 20] {
        let q = numbers(device, [2, rows, 4, 64], 1)?;
        let (k, v) = (numbers(device, [9, 16, 2, 64], 2)?, numbers(device, [9, 16, 2, 64], 3)?);
        let mut table = Tensor::<u32>::zeros(device, [2, 4])?;
        let mut lengths = Tensor::<u32>::zeros(device, [2])?;
        let y = Tensor::<bf16>::zeros_on(&stream, [2, rows, 4, 64])?;
        let (read_table, read_lengths, mut to_y) = (table.clone(), lengths.clone(), y.clone());
        let work = || {
            let operation = ops::attention(&q, &k, &v).pages(&read_table).lengths(None, Some(&read_lengths));
            operation.causal(Alignment::BottomRight).on(&stream).run_into(&mut to_y)
        };
        // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
        let mut graph = unsafe { stream.capture(work)? };
        for (pages, of_sequences) in [
            ([[3u32, 1, 4, 1], [5, 9, 2, 6]], [50u32, 64]),
            ([[3, 8, 7, u32::MAX], [0, u32::MAX, u32::MAX, u32::MAX]], [33, 9]),
        ] {
            table.write_slice(pages.as_flattened())?;
            lengths.write_slice(&of_sequences)?;
            graph.launch()?;
            for (b, pages) in pages.into_iter().enumerate() {
                // The same keys one after the other, in the same number of them, of which nothing is beyond the length.
                let dense = |x: &Tensor<bf16>| -> Result<Tensor<bf16>, Failed> {
                    let mut dense = Vec::new();
                    for page in pages {
                        let page = page.min(8) as usize;
                        dense.extend(x.slice(0, page..page + 1)?.to_vec()?);
                    }
                    Ok(Tensor::from_slice(device, &dense, [1, 64, 2, 64])?)
                };
                let (k, v, length) = (dense(&k)?, dense(&v)?, of_sequences[b] as usize);
                let (q, y) = (q.slice(0, b..b + 1)?, y.slice(0, b..b + 1)?);
                let (k, v) = (k.slice(1, 0..length)?, v.slice(1, 0..length)?);
                let expected = ops::attention(&q, &k, &v).causal(Alignment::BottomRight).run()?;
                for (got, expected) in y.to_vec()?.into_iter().zip(expected.to_vec()?) {
                    let (got, expected) = (got.to_f32(), expected.to_f32());
                    // Hopper's kernels for keys one after the other add up in another order.
                    assert!(
                        (got - expected).abs() <= 0.02 * (1.0 + expected.abs()),
                        "{got}, expected {expected}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn absurd_cases_of_attention_are_not_validated(device: &Device) -> Result<(), Failed> {
    let case = |sizes, heads, width| AttentionCase::new(DType::F16, sizes, heads, width);
    const MOST: usize = usize::MAX;
    let refused = |case: &AttentionCase| {
        let error = validate::attention(device, case).map(drop).expect_err("it cannot be drawn");
        let bits = validate::attention_bits(device, case).expect_err("nor can it here");
        assert_eq!(bits.to_string(), error.to_string());
        error
    };
    for case in [
        case([MOST, 2, 2], [1, 1], 8),
        case([1, MOST, 0], [1, 1], 8),
        case([0, 2, MOST], [1, 1], 8),
        case([1, 2, 2], [MOST, MOST], 8),
        case([1, 2, 2], [1, 1], MOST),
        AttentionCase { value_width: MOST, ..case([1, 2, 2], [1, 1], 8) },
        AttentionCase { sequences: Sequences::Packed(vec![[MOST, 1]; 2]), ..case([0; 3], [1, 1], 8) },
        AttentionCase { mask: Some([false; 4]), ..case([1, 1 << 32, 1 << 32], [1, 1], 8) },
    ] {
        let error = refused(&case);
        assert!(matches!(error, Error::SizeLimit { .. }), "{error}");
    }
    let beyond = Sequences::Padded { rows: 3, keys: 4, lengths: vec![[3, 4], [3, 5]] };
    let few = case([1, 2, 2], [1, 1], 8);
    for (case, argument) in [
        (AttentionCase { sequences: beyond, ..few.clone() }, "lengths is [3, 5]"),
        (AttentionCase { page_size: Some(0), ..few.clone() }, "page size is 0"),
        (AttentionCase { page_size: Some(3), ..few.clone() }, "page size is 3"),
        (AttentionCase { blocks: Some(([false; 2], [0, 8])), ..few.clone() }, "block size is [0, 8]"),
        (AttentionCase { data: Data::Integers, sinks: true, ..few }, "data is 2 keys of 8 columns, sinks"),
    ] {
        let error = refused(&case).to_string();
        assert!(error.contains(argument), "{error}");
    }
    let error = validate::attention(device, &case([1, 1 << 33, 2], [1, 1], 1 << 13)).map(drop);
    assert!(matches!(error, Err(Error::OutOfMemory { .. })), "{error:?}");
    Ok(())
}
