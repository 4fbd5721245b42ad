//! The linear operation and matrix products against their f64 reference, on cases drawn by proptest: sizes, types, options, layouts, tiles, seeds.
//!
//! Draws are the same on every run unless `WARPSMITH_TEST_SEED` is set. A failing case is printed, after shrinking, as the value
//! to add to [`REGRESSIONS`], which every device runs first; so nothing is read from or written to files.

use std::env::VarError;

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
use warpsmith::ops::gemm::{Access, Tile};
use warpsmith::ops::{Activation, Precision};
use warpsmith::{DType, Device};
use warpsmith_lab::cases::{Data, LinearCase, MatmulCase, Scales, Terms};
use warpsmith_lab::validate;

use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    drawn_cases_stay_within_their_bound,
    drawn_integer_cases_are_exact,
    drawn_products_stay_within_their_bound,
    drawn_integer_products_are_exact,
    cases_that_once_failed_or_are_easy_to_get_wrong_hold,
];

/// Decides what is drawn.
const SEED_VARIABLE: &str = "WARPSMITH_TEST_SEED";

/// Sizes and types that are worth running always: each is M, K, N with input and output type.
const REGRESSIONS: &[(usize, usize, usize, DType, DType)] = &[
    (1, 1, 1, DType::F16, DType::F16),
    (0, 3, 4, DType::F32, DType::F32),
    (3, 0, 4, DType::Bf16, DType::Bf16),
    (3, 4, 0, DType::F16, DType::F32),
    (65, 9, 1, DType::Bf16, DType::F32),
    (1, 257, 129, DType::F32, DType::F32),
    (130, 520, 70, DType::F16, DType::F16),
    (17, 1023, 33, DType::F32, DType::F32),
];

const TYPES: [(DType, DType); 5] = [
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::F32, DType::F32),
];

fn side(most: usize) -> impl Strategy<Value = usize> {
    drawn::side(most, &[8, 16, 32, 64, 128], &[37, 61, 97, 131, 257])
}

fn runner(device: &Device) -> Result<TestRunner, Failed> {
    drawn::runner(device, [96, 400])
}

/// No terms half of the time, so that the plain kernels are drawn as well.
fn terms() -> impl Strategy<Value = Terms> {
    let scales = || prop::sample::select(vec![Scales::None, Scales::One, Scales::Each]);
    let beta = prop::sample::select(vec![0.0f32, 0.0, 1.0, -2.0, 0.3]);
    let all = (scales(), scales(), beta, any::<[bool; 3]>(), drawn::placement(8)).prop_map(
        |(row_scale, column_scale, beta, [in_place, mask, preactivation], beside)| Terms {
            row_scale,
            column_scale,
            beta,
            in_place,
            mask,
            preactivation,
            beside,
        },
    );
    prop_oneof![Just(Terms::default()), all]
}

/// Products of the same sizes, but smaller ones where there are several of them.
pub(crate) fn matmul_case(device: &Device, data: Data) -> impl Strategy<Value = MatmulCase> {
    let batch = prop_oneof![
        4 => Just([1, 1]),
        2 => (2usize..4).prop_map(|count| [count; 2]),
        1 => (2usize..4).prop_map(|count| [count, 1]),
        1 => (2usize..4).prop_map(|count| [1, count]),
        1 => prop::sample::select(vec![[0, 0], [0, 1], [1, 0]]),
    ];
    (linear_case(device, data), batch, any::<[bool; 2]>()).prop_map(|(product, batch, across)| {
        let most = if batch == [1, 1] { usize::MAX } else { 70 };
        let LinearCase { m, k, n, .. } = product;
        let product = LinearCase { m: m.min(most), k: k.min(most), n: n.min(most), ..product };
        MatmulCase { product, batch, across }
    })
}

fn linear_case(device: &Device, data: Data) -> impl Strategy<Value = LinearCase> {
    let capability = device.properties().compute_capability;
    let sizes = (side(131), side(257), side(257));
    let places = (drawn::placement(8), drawn::placement(8), drawn::placement(8));
    let parts = prop::option::weighted(0.7, 1u32..12);
    let options = (
        prop::sample::select(TYPES.to_vec()),
        prop::sample::select(Activation::ALL.to_vec()),
        any::<bool>(),
        prop::sample::select(vec![1.0f32, 1.0, 0.5, 2.0, -0.37]),
        prop::option::weighted(0.4, (prop::sample::select(Tile::ALL.to_vec()), parts)),
        any::<u64>(),
        terms(),
        any::<bool>(),
    );
    (sizes, places, options).prop_map(move |((m, k, n), (x, w, y), options)| {
        let ((input, output), activation, bias, scale, tile, seed, terms, rounds) = options;
        let case = LinearCase::new(input, m, k, n);
        let case = LinearCase { output, activation, bias, scale, terms, x, w, y, data, seed, ..case };
        let tile = tile.filter(|(tile, _)| has_kernel(&case, *tile, capability));
        let parts = tile.filter(|(tile, _)| tile.shares()).and_then(|(_, parts)| parts);
        let tile = tile.map(|(tile, _)| tile);
        let allowed = if rounds { Precision::Tf32 } else { Precision::Full };
        let precision = tile.map_or(allowed, |tile| tile.precision(input));
        LinearCase { tile, parts, precision, ..case }
    })
}

/// Whether a tile can be asked for: Hopper's need Hopper and a column. (What a tile cannot read in place is copied.)
pub(crate) fn has_kernel(case: &LinearCase, tile: Tile, capability: (u32, u32)) -> bool {
    let runs = match capability {
        // The CPU implementation ignores the tile.
        (0, 0) => true,
        _ => tile.runs_on(capability) && (case.k > 0 || !tile.is_hopper()),
    };
    let places = [case.y, case.terms.beside].map(|place| place.before | place.after);
    let chunks = (case.n | places[0] | places[1]).is_multiple_of(8);
    let serves = tile.serves(case.input, Access::Aligned) && tile.serves_output(case.input, case.output);
    runs && serves && (!tile.needs_boxes() || chunks) && tile.serves_fused(case.fused())
}

/// What everything that is drawn depends on: the same on every run, unless the variable says otherwise.
pub(crate) fn seed() -> Result<u64, Failed> {
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{SEED_VARIABLE} is `{text}`: {error}"))?),
        Err(VarError::NotPresent) => Ok(0),
        Err(error) => Err(format!("{SEED_VARIABLE}: {error}").into()),
    }
}

/// The source of everything that is drawn.
pub(crate) fn rng() -> Result<TestRng, Failed> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed()?.to_le_bytes());
    Ok(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Runs one case; the error says what it was and what was wrong.
fn check(device: &Device, case: &LinearCase) -> Result<(), TestCaseError> {
    let what = format!("{} {}", case.types(), case.shape());
    let outcome = drawn::passed(validate::linear(device, case), &what, case.m * case.n)?;
    prop_assert_eq!(outcome.exact, case.is_exact());
    Ok(())
}

/// As [`check`], for a batch of products.
pub(crate) fn check_matmul(device: &Device, case: &MatmulCase) -> Result<(), TestCaseError> {
    let product = &case.product;
    let what = format!("{} {}", product.types(), case.shape());
    let elements = case.matrices() * product.m * product.n;
    let outcome = drawn::passed(validate::matmul(device, case), &what, elements)?;
    prop_assert_eq!(outcome.exact, product.is_exact());
    Ok(())
}

fn drawn_products_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&matmul_case(device, Data::Uniform), |case| check_matmul(device, &case))?)
}

fn drawn_integer_products_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = matmul_case(device, Data::Integers)
        .prop_map(|case| MatmulCase { product: made_exact(case.product), ..case });
    Ok(runner(device)?.run(&exact, |case| {
        prop_assert!(case.product.is_exact());
        check_matmul(device, &case)
    })?)
}

/// The case with options that keep integers exact.
fn made_exact(case: LinearCase) -> LinearCase {
    LinearCase {
        activation: if case.bias { Activation::Relu } else { Activation::None },
        scale: if case.scale < 0.0 { 1.0 } else { case.scale },
        terms: Terms { beta: case.terms.beta.round(), ..case.terms },
        ..case
    }
}

fn drawn_cases_stay_within_their_bound(device: &Device) -> Result<(), Failed> {
    Ok(runner(device)?.run(&linear_case(device, Data::Uniform), |case| check(device, &case))?)
}

fn drawn_integer_cases_are_exact(device: &Device) -> Result<(), Failed> {
    let exact = linear_case(device, Data::Integers).prop_map(made_exact);
    Ok(runner(device)?.run(&exact, |case| {
        prop_assert!(case.is_exact());
        check(device, &case)
    })?)
}

fn cases_that_once_failed_or_are_easy_to_get_wrong_hold(device: &Device) -> Result<(), Failed> {
    for &(m, k, n, input, output) in REGRESSIONS {
        for data in [Data::Uniform, Data::Integers] {
            let case = LinearCase { output, data, ..LinearCase::new(input, m, k, n) };
            check(device, &case).map_err(|error| format!("{case:?}: {error}"))?;
        }
    }
    Ok(())
}
