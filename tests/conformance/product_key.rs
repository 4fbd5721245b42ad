//! Product-key retrieval against its f64 reference: drawn by proptest over options, sizes, ties, duplicates and skew; exact where it has to
//! be; a million experts; and what is refused.

use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops::peer::{Gate, QueryNorm, RetrievalBlocks, Routing, RoutingInput};
use warpsmith::{DType, Device, DeviceKind, Error, Tensor, ops};
use warpsmith_lab::cases::{Data, NormKind, RoutingCase};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    retrievals_drawn_stay_within_their_bound,
    integer_retrievals_drawn_find_exactly_the_best_experts,
    queries_and_keys_of_every_width_are_multiplied_whole,
    blocks_of_every_kind_find_the_best,
    the_best_of_a_million_experts_are_found,
    numbers_beyond_the_range_of_f16_are_routed,
    sub_keys_that_are_equal_are_taken_in_their_order,
    rows_of_equal_scores_stand_beside_others,
    retrievals_that_do_not_fit_are_refused,
    retrievals_for_no_tokens_are_empty,
    results_go_into_tensors_that_are_there,
];

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

fn check(device: &Device, case: &RoutingCase) -> Result<f64, TestCaseError> {
    let what = || format!("{} {} {}", case.dtype, case.shape(), case.options());
    let found = validate::product_key_topk(device, case)
        .map_err(|error| TestCaseError::fail(format!("{}: {error}", what())))?;
    let outcome = &found.outcome;
    prop_assert_eq!(outcome.compared, case.tokens * case.heads * case.k, "not everything was compared");
    prop_assert!(
        outcome.passed(),
        "{}: {} failures by {}; the worst: {:?}; recall {}",
        what(),
        outcome.failures,
        outcome.implementation,
        outcome.worst,
        found.recall
    );
    prop_assert!(!case.has_exact_ids() || found.recall == 1.0, "{}: recall {}", what(), found.recall);
    Ok(found.recall)
}

fn plain(result: Result<f64, TestCaseError>) -> Result<f64, Failed> {
    result.map_err(|error| error.to_string().into())
}

pub(crate) fn retrieval(data: Data) -> impl Strategy<Value = RoutingCase> {
    let n = prop_oneof![
        2 => 1usize..20,
        3 => prop::sample::select(vec![16usize, 31, 32, 33, 64, 255, 256, 257]),
        1 => prop::sample::select(vec![300usize, 513]),
    ];
    let half = prop_oneof![
        3 => 1usize..12,
        3 => prop::sample::select(vec![8usize, 16, 31, 32, 64, 65, 127, 128, 129]),
        1 => prop::sample::select(vec![136usize, 200, 256, 300]),
    ];
    let k = prop_oneof![2 => 1usize..=64, 2 => prop::sample::select(vec![1usize, 8, 16, 32, 33, 64])];
    let tokens = prop_oneof![1 => Just(0usize), 3 => 1usize..6, 2 => prop::sample::select(vec![11usize, 33])];
    let sizes = (tokens, 1usize..40, 1usize..5, n, half, k);
    let options = (
        prop::sample::select(TYPES.to_vec()),
        prop::sample::select(NormKind::ALL.to_vec()),
        prop::sample::select(Gate::ALL.to_vec()),
        prop::sample::select(vec![1.0f32, 0.5, 2.0, 0.3]),
        any::<[bool; 7]>(),
        any::<u64>(),
    );
    (sizes, options).prop_map(move |((tokens, columns, heads, n, half, k), options)| {
        let (dtype, norm, gate, temperature, flags, seed) = options;
        let [per_head, bias, affine, per_head_norm, duplicates, skewed, unaligned] = flags;
        let integers = data == Data::Integers;
        RoutingCase {
            heads,
            per_head,
            bias,
            norm: if integers { NormKind::None } else { norm },
            affine: affine && !integers,
            per_head_norm,
            gate,
            temperature: if integers && temperature == 0.3 { 1.0 } else { temperature },
            duplicates,
            skewed,
            unaligned,
            data,
            seed,
            ..RoutingCase::new(dtype, [tokens, columns], [n, half], k.min(n))
        }
    })
}

fn run_drawn(device: &Device, data: Data) -> Result<(), Failed> {
    Ok(drawn::runner(device, [60, 200])?.run(&retrieval(data), |case| check(device, &case).map(|_| ()))?)
}

fn retrievals_drawn_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    run_drawn(device, Data::Uniform)
}

fn integer_retrievals_drawn_find_exactly_the_best_experts(device: &Device) -> Result<(), Failed> {
    run_drawn(device, Data::Integers)
}

/// Halves around what stands in shared memory at a time, and around a slot of the ring.
fn queries_and_keys_of_every_width_are_multiplied_whole(device: &Device) -> Result<(), Failed> {
    for dtype in TYPES {
        for half in [1, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 160, 255, 257, 385] {
            let case = RoutingCase {
                heads: 2,
                norm: NormKind::None,
                gate: Gate::Identity,
                data: Data::Integers,
                seed: half as u64,
                ..RoutingCase::new(dtype, [3, 17], [40, half], 9)
            };
            plain(check(device, &case))?;
        }
    }
    Ok(())
}

/// The blocks that this device has for sub-keys of that type and so many experts.
fn blocks_of(device: &Device, dtype: DType, k: usize) -> Vec<RetrievalBlocks> {
    let mut all = vec![RetrievalBlocks::One];
    let has_clusters = (9..12).contains(&device.properties().compute_capability.0);
    if device.kind() != DeviceKind::Cpu && has_clusters && k <= 32 {
        for rows in if dtype == DType::F32 { vec![32] } else { vec![32, 64] } {
            all.extend([2, 4, 8].map(|blocks| RetrievalBlocks::Cluster { rows, blocks }));
        }
    }
    all
}

/// Numbers of sub-keys that leave a block of a cluster few of them, and so few groups for its bounds; rows that leave a block few.
fn blocks_of_every_kind_find_the_best(device: &Device) -> Result<(), Failed> {
    for (n, k) in [(356, 16), (100, 32), (128, 32), (120, 25), (1100, 9)] {
        for dtype in TYPES {
            for blocks in blocks_of(device, dtype, k) {
                for data in [Data::Uniform, Data::Integers] {
                    let norm = if data == Data::Integers { NormKind::None } else { NormKind::Rms };
                    let case = RoutingCase {
                        heads: 3,
                        norm,
                        gate: Gate::Identity,
                        blocks: Some(blocks),
                        data,
                        seed: n as u64,
                        ..RoutingCase::new(dtype, [23, 9], [n, 20], k)
                    };
                    plain(check(device, &case))?;
                }
            }
        }
    }
    Ok(())
}

/// The reference configuration, for few tokens, and with queries half as wide.
fn the_best_of_a_million_experts_are_found(device: &Device) -> Result<(), Failed> {
    for dtype in TYPES {
        for half in [128, 64] {
            let case = RoutingCase { seed: 6, ..RoutingCase::new(dtype, [4, 64], [1024, half], 16) };
            let recall = plain(check(device, &case))?;
            assert_eq!(recall, 1.0, "{dtype}, {half}");
        }
    }
    Ok(())
}

/// Without a norm queries may be as large and as small as f32 numbers are.
fn numbers_beyond_the_range_of_f16_are_routed(device: &Device) -> Result<(), Failed> {
    for scale in [2f32.powi(-14), 1.0, 60_000.0] {
        let x = Tensor::from_slice(device, &[f16::from_f32(scale)], [1, 1])?;
        // Queries of ±scale² · 1, 3/4, ..
        let rows: Vec<f16> = [1.0, -0.75, 0.5, 0.25].map(|v: f32| f16::from_f32(v * scale)).to_vec();
        let w = Tensor::from_slice(device, &rows, [4, 1])?;
        let keys_1: Vec<f16> = [1.0, 1.0, 0.5, 1.0, 1.0, 0.75].map(f16::from_f32).to_vec();
        let keys = Tensor::from_slice(device, &keys_1, [3, 2])?;
        let routing = ops::product_key_topk(&x, &w, &keys, &keys, 1, 3)
            .query_norm(QueryNorm::none())
            .gate(Gate::Identity)
            .run()?;
        // Scores of the first half, over scale²: 0.25, −0.25, 0.4375; of the second: 0.75, 0.5, 0.6875.
        assert_eq!(routing.ids.to_vec()?, [6, 8, 0], "{scale}");
        let square = f16::from_f32(scale).to_f32().powi(2);
        for (got, expected) in routing.gates.to_vec()?.into_iter().zip([1.1875, 1.125, 1.0]) {
            let expected = expected * square;
            assert!((got - expected).abs() <= 2f32.powi(-11) * expected, "{scale}: {got} {expected}");
        }
    }
    Ok(())
}

fn sub_keys_that_are_equal_are_taken_in_their_order(device: &Device) -> Result<(), Failed> {
    for (n, k) in [(300, 40), (300, 16), (600, 31)] {
        for dtype in TYPES {
            let ids = match dtype {
                DType::F16 => ids_of_equal::<f16>(device, f16::ONE, n, k)?,
                DType::Bf16 => ids_of_equal::<bf16>(device, bf16::ONE, n, k)?,
                _ => ids_of_equal::<f32>(device, 1.0, n, k)?,
            };
            assert_eq!(ids, (0..k as u32).collect::<Vec<_>>(), "{dtype} k={k}: all experts are equal");
        }
    }
    Ok(())
}

/// Tokens 0, whose scores are all equal, among others, whose scores rise or fall with the number of the sub-key.
fn rows_of_equal_scores_stand_beside_others(device: &Device) -> Result<(), Failed> {
    for (n, k) in [(300, 16), (700, 5)] {
        let tokens: Vec<f32> =
            (0..19).map(|token: i32| [0.0, 1.0, -1.0, 2.0][(token * token) as usize % 4]).collect();
        let keys: Vec<f32> = (0..n).map(|key| key as f32).collect();
        let x = Tensor::from_slice(device, &tokens, [tokens.len(), 1])?;
        let w = Tensor::from_slice(device, &[1.0f32, 2.0], [2, 1])?;
        let keys = Tensor::from_slice(device, &keys, [n, 1])?;
        let routing = ops::product_key_topk(&x, &w, &keys, &keys, 1, k)
            .query_norm(QueryNorm::none())
            .gate(Gate::Identity)
            .run()?;
        let (ids, gates) = (routing.ids.to_vec()?, routing.gates.to_vec()?);
        for (token, (ids, gates)) in tokens.iter().zip(ids.chunks(k).zip(gates.chunks(k))) {
            let score = |id: usize| token * ((id / n) as f32 + 2.0 * (id % n) as f32);
            let mut all: Vec<usize> = (0..n * n).collect();
            all.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
            assert!(
                ids.iter().zip(&all).all(|(&id, &best)| id as usize == best),
                "n={n} token {token}: {ids:?}"
            );
            assert!(gates.iter().zip(&all).all(|(&gate, &best)| gate == score(best)), "n={n} token {token}");
        }
    }
    Ok(())
}

fn ids_of_equal<T: RoutingInput>(device: &Device, one: T, n: usize, k: usize) -> warpsmith::Result<Vec<u32>> {
    let x = Tensor::from_slice(device, &[one; 3], [3])?;
    let w = Tensor::from_slice(device, &[one; 12], [4, 3])?;
    let keys = Tensor::from_slice(device, &vec![one; 2 * n], [n, 2])?;
    let routing = ops::product_key_topk(&x, &w, &keys, &keys, 1, k).query_norm(QueryNorm::none()).run()?;
    assert_eq!(routing.ids.shape(), [1, k]);
    assert!(routing.gates.to_vec()?.iter().all(|gate| (gate * k as f32 - 1.0).abs() < 1e-6));
    routing.ids.to_vec()
}

fn retrievals_that_do_not_fit_are_refused(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<f32>::zeros(device, shape);
    let (x, w, keys) = (zeros(&[5, 7])?, zeros(&[12, 7])?, zeros(&[9, 3])?);
    let run = |w: &Tensor<f32>, keys_1: &Tensor<f32>, keys_2: &Tensor<f32>, heads, k| {
        ops::product_key_topk(&x, w, keys_1, keys_2, heads, k).run()
    };
    run(&w, &keys, &keys, 2, 9)?;
    let per_head = zeros(&[2, 9, 3])?;
    run(&w, &per_head, &per_head, 2, 9)?;
    for k in [0, 10, 65] {
        assert!(matches!(run(&w, &keys, &keys, 2, k), Err(Error::Argument { argument: "k", .. })), "{k}");
    }
    assert!(matches!(run(&w, &keys, &keys, 0, 1), Err(Error::Argument { argument: "heads", .. })));
    assert!(matches!(run(&w, &keys, &keys, 3, 1), Err(Error::Shape { operand: "w_q", .. })));
    assert!(matches!(run(&w, &keys, &per_head, 2, 1), Err(Error::Shape { operand: "keys_2", .. })));
    assert!(matches!(run(&w, &zeros(&[9])?, &keys, 2, 1), Err(Error::Shape { operand: "keys_1", .. })));
    assert!(matches!(
        run(&w, &zeros(&[9, 0])?, &zeros(&[9, 0])?, 2, 1),
        Err(Error::Shape { operand: "keys_1", .. })
    ));
    let operation = || ops::product_key_topk(&x, &w, &keys, &keys, 2, 3);
    let bias = zeros(&[11])?;
    assert!(matches!(operation().bias(&bias).run(), Err(Error::Shape { operand: "bias", .. })));
    let norm = QueryNorm::layer(1e-5).weight(&bias);
    assert!(matches!(
        operation().query_norm(norm).run(),
        Err(Error::Shape { operand: "weight of the norm", .. })
    ));
    for temperature in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 1e6] {
        let refused = operation().temperature(temperature).run();
        assert!(matches!(refused, Err(Error::Argument { argument: "temperature", .. })), "{temperature}");
    }
    let refused = operation().query_norm(QueryNorm::rms(-1.0)).run();
    assert!(matches!(refused, Err(Error::Argument { argument: "epsilon", .. })));
    if device.kind() != DeviceKind::Cpu {
        let has_clusters = (9..12).contains(&device.properties().compute_capability.0);
        for (rows, blocks) in [(32, 2), (32, 3), (64, 2), (16, 2)] {
            let refused = operation().blocks(RetrievalBlocks::Cluster { rows, blocks }).run();
            match (has_clusters, rows, blocks) {
                (true, 32, 2) => assert!(refused.is_ok()),
                (false, 32, 2) => assert!(matches!(refused, Err(Error::UnsupportedDevice { .. }))),
                _ => assert!(matches!(refused, Err(Error::Argument { argument: "blocks", .. }))),
            }
        }
    }
    let other = if device.kind() == DeviceKind::Cpu { Device::emulator() } else { Device::cpu() };
    let elsewhere = Tensor::<f32>::zeros(&other, [9, 3])?;
    assert!(matches!(run(&w, &keys, &elsewhere, 2, 1), Err(Error::DeviceMismatch { operand: "keys_2", .. })));
    Ok(())
}

fn retrievals_for_no_tokens_are_empty(device: &Device) -> Result<(), Failed> {
    let zeros = |shape: &[usize]| Tensor::<bf16>::zeros(device, shape);
    let (x, w, keys) = (zeros(&[2, 0, 7])?, zeros(&[12, 7])?, zeros(&[9, 3])?);
    let routing = ops::product_key_topk(&x, &w, &keys, &keys, 2, 4).run()?;
    assert_eq!((routing.ids.shape(), routing.gates.shape()), (&[2, 0, 2, 4][..], &[2, 0, 2, 4][..]));
    Ok(())
}

fn results_go_into_tensors_that_are_there(device: &Device) -> Result<(), Failed> {
    let round = |number: f32| number;
    let (x, w) = (patterned(device, 1, &[5, 8], round)?, patterned(device, 2, &[24, 8], round)?);
    let keys = patterned(device, 3, &[2, 33, 6], round)?;
    let operation = || ops::product_key_topk(&x, &w, &keys, &keys, 2, 3);
    let expected = operation().run()?;
    let empty = |shape: &[usize]| -> warpsmith::Result<Routing> {
        Ok(Routing { ids: Tensor::zeros(device, shape)?, gates: Tensor::zeros(device, shape)? })
    };
    let mut routing = empty(&[5, 2, 3])?;
    operation().run_into(&mut routing)?;
    assert_eq!(routing.ids.to_vec()?, expected.ids.to_vec()?);
    assert_eq!(routing.gates.to_vec()?, expected.gates.to_vec()?);

    let refused = operation().run_into(&mut empty(&[5, 2, 4])?);
    assert!(matches!(refused, Err(Error::Shape { operand: "ids", .. })));
    let mut other = Routing { gates: Tensor::zeros(device, [5, 6])?, ..routing.clone() };
    assert!(matches!(operation().run_into(&mut other), Err(Error::Shape { operand: "gates", .. })));
    let wide = Tensor::zeros(device, [5, 2, 4])?.slice(2, 0..3)?;
    let mut gaps = Routing { gates: wide, ..routing.clone() };
    assert!(matches!(operation().run_into(&mut gaps), Err(Error::Stride { operand: "gates", .. })));
    let mut shared = Routing { gates: x.reshape([40])?.slice(0, 5..35)?.reshape([5, 2, 3])?, ..routing };
    let refused = operation().run_into(&mut shared);
    assert!(matches!(refused, Err(Error::Overlap { operand: "gates", other: "x", .. })));
    Ok(())
}

/// A number for each element, of both signs.
fn patterned<T: RoutingInput>(
    device: &Device,
    seed: usize,
    shape: &[usize],
    round: fn(f32) -> T,
) -> warpsmith::Result<Tensor<T>> {
    let number = |at: usize| {
        let mixed = (at as u32).wrapping_mul(0x9e37_79b1) ^ (seed as u32).wrapping_mul(0x85eb_ca77);
        round((mixed.wrapping_mul(0x27d4_eb2f) >> 16) as f32 / 32_768.0 - 1.0)
    };
    let elements: Vec<T> = (0..shape.iter().product()).map(number).collect();
    Tensor::from_slice(device, &elements, shape)
}

fn bits<T: RoutingInput>(
    device: &Device,
    [n, half, k]: [usize; 3],
    blocks: RetrievalBlocks,
    round: fn(f32) -> T,
) -> warpsmith::Result<(Vec<u32>, Vec<u32>)> {
    let (tokens, heads) = (19, 2);
    let x = patterned(device, 1, &[tokens, 24], round)?;
    let w = patterned(device, 2, &[heads * 2 * half, 24], round)?;
    let keys = [patterned(device, 3, &[n, half], round)?, patterned(device, 4, &[n, half], round)?];
    let routing = ops::product_key_topk(&x, &w, &keys[0], &keys[1], heads, k).blocks(blocks).run()?;
    Ok((routing.ids.to_vec()?, routing.gates.to_vec()?.into_iter().map(f32::to_bits).collect()))
}

/// Queries of one piece and of several, one chunk of sub-keys and several, both numbers of places.
fn retrievals_give_the_same_bits_in_every_mode() -> Result<(), Failed> {
    for sizes in [[40, 24, 16], [600, 160, 33], [300, 128, 32]] {
        for dtype in TYPES {
            let mut first = None;
            for (mode, device) in crate::modes::devices()? {
                for blocks in blocks_of(&device, dtype, sizes[2]) {
                    let bits = match dtype {
                        DType::F16 => bits(&device, sizes, blocks, f16::from_f32)?,
                        DType::Bf16 => bits(&device, sizes, blocks, bf16::from_f32)?,
                        _ => bits(&device, sizes, blocks, |number: f32| number)?,
                    };
                    let first = first.get_or_insert_with(|| bits.clone());
                    assert!(*first == bits, "{dtype} {sizes:?}, {mode}, {blocks}: differs from the first");
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let name = "emulator::modes::retrievals_give_the_same_bits_in_every_mode";
    vec![crate::timed::trial(name, retrievals_give_the_same_bits_in_every_mode)]
}
