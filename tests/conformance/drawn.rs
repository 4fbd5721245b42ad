//! What tests of drawn cases share: how sizes and layouts are drawn, how many cases are run, and what is asked of each one's outcome.

use std::env::VarError;
use std::num::NonZeroU32;

use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use warpsmith::{Device, DeviceKind};
use warpsmith_lab::cases::Placement;
use warpsmith_lab::validate::Outcome;

/// A size: nothing, one, small, one of `around` (the multiples that tiles and copies care about) or a neighbour of it, one of `others`
/// (primes among them); at most `most`.
pub(crate) fn side(most: usize, around: &[usize], others: &[usize]) -> impl Strategy<Value = usize> + use<> {
    let around = prop::sample::select(around.to_vec());
    prop_oneof![
        1 => Just(0),
        2 => Just(1),
        4 => 2usize..20,
        6 => (around, -1isize..=1).prop_map(|(at, off)| at.saturating_add_signed(off)),
        3 => prop::sample::select(others.to_vec()),
    ]
    .prop_map(move |size| size.min(most))
}

/// Columns beside an operand: none, whole chunks of `chunk` elements, or any number.
pub(crate) fn placement(chunk: usize) -> impl Strategy<Value = Placement> {
    prop_oneof![
        4 => Just(Placement::default()),
        2 => (0usize..3, 0usize..3)
            .prop_map(move |(before, after)| Placement { before: chunk * before, after: chunk * after }),
        2 => (0usize..9, 0usize..9).prop_map(|(before, after)| Placement { before, after }),
    ]
}

/// Has one of so many drawn cases run.
const SHARE_VARIABLE: &str = "WARPSMITH_TEST_SHARE";

/// Runs so many cases in the emulator, or on another device.
pub(crate) fn runner(device: &Device, [emulator, other]: [u32; 2]) -> Result<TestRunner, Failed> {
    let share = match std::env::var(SHARE_VARIABLE) {
        Ok(text) => text.parse::<NonZeroU32>().map_err(|error| {
            format!("{SHARE_VARIABLE} is `{text}`, expected a number of at least 1: {error}")
        })?,
        Err(VarError::NotPresent) => NonZeroU32::MIN,
        Err(error) => return Err(format!("{SHARE_VARIABLE}: {error}").into()),
    };
    let cases = if device.kind() == DeviceKind::Emulator { emulator } else { other };
    let cases = cases.div_ceil(share.get());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    Ok(TestRunner::new_with_rng(config, crate::properties::rng()?))
}

/// What came of a case, if it ran, all of its `elements` were compared and every one is right.
pub(crate) fn passed(
    outcome: warpsmith::Result<Outcome>,
    what: &str,
    elements: usize,
) -> Result<Outcome, TestCaseError> {
    let outcome = outcome.map_err(|error| TestCaseError::fail(format!("{what}: {error}")))?;
    prop_assert_eq!(outcome.compared, elements, "{}: not every element was compared", what);
    prop_assert!(
        outcome.passed(),
        "{what}: {} elements out of bounds, {} stray writes by {}; the worst: {:?}",
        outcome.failures,
        outcome.stray_writes,
        outcome.implementation,
        outcome.worst
    );
    Ok(outcome)
}
