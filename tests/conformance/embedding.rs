//! Look-ups in tables bit by bit, and the gradients of tables against sums in the order of tokens, drawn by proptest.

use half::{bf16, f16};
use libtest_mimic::Failed;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use warpsmith::ops;
use warpsmith::ops::embedding::EmbeddingElement;
use warpsmith::{Device, DeviceKind, Tensor};

use crate::elementwise::{Number, matrix, widened};
use crate::{Case, cases, drawn};

pub(crate) const CASES: &[(&str, Case)] = cases![
    rows_drawn_are_copied_and_their_gradients_added_up_in_order,
    many_tokens_of_few_ids_and_of_many_are_added_up,
    a_captured_gradient_runs_again_on_what_is_there_then,
];

/// Ids of which some are out of range.
fn ids(seed: u64, tokens: usize, vocabulary: usize, different: u64) -> Vec<i64> {
    (0..tokens as u64)
        .map(|token| {
            let mut z = seed ^ token.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z ^= z >> 27;
            match z % 16 {
                0 => -1,
                1 => vocabulary as i64 + (z >> 40) as i64,
                _ => ((z >> 8) % different.max(1) * 7919 % vocabulary.max(1) as u64) as i64,
            }
        })
        .collect()
}

fn check<T: EmbeddingElement + Number>(
    device: &Device,
    [vocabulary, columns, tokens]: [usize; 3],
    different: u64,
    place: [usize; 2],
    seed: u64,
) -> warpsmith::Result<Option<&'static str>> {
    let list = ids(seed, tokens, vocabulary, different);
    let row = |id: i64| usize::try_from(id).ok().filter(|&row| row < vocabulary);
    let given = Tensor::from_slice(device, &list, [tokens])?;
    let table = matrix::<T>(device, seed, [vocabulary, columns], place)?;
    let (elements, y) = (table.to_vec()?, ops::embedding(&table, &given).run()?.to_vec()?);
    for (token, &id) in list.iter().enumerate() {
        let got = &y[token * columns..][..columns];
        let is_right = match row(id) {
            Some(row) => got == &elements[row * columns..][..columns],
            None => got.iter().all(|got| got.widen().is_nan()),
        };
        if !is_right {
            return Ok(Some("a row is another"));
        }
    }
    let dy = matrix::<T>(device, seed ^ 1, [tokens, columns], place)?;
    let rows = widened(&dy)?;
    let mut gradient = matrix::<f32>(device, seed ^ 2, [vocabulary, columns], place)?;
    let (mut dense, mut sums) = (gradient.to_vec()?, vec![0.0f32; vocabulary * columns]);
    for (token, &id) in list.iter().enumerate() {
        if let Some(row) = row(id) {
            for column in 0..columns {
                dense[row * columns + column] += rows[token * columns + column] as f32;
                sums[row * columns + column] += rows[token * columns + column] as f32;
            }
        }
    }
    let backward = ops::embedding_backward(&dy, &given, vocabulary);
    backward.accumulate(&mut gradient)?;
    if gradient.to_vec()? != dense {
        return Ok(Some("the gradient of the table is another"));
    }
    let mut different: Vec<u32> = list.iter().filter_map(|&id| row(id)).map(|row| row as u32).collect();
    different.sort_unstable();
    different.dedup();
    let expected: Vec<f32> =
        different.iter().flat_map(|&row| sums[row as usize * columns..][..columns].to_vec()).collect();
    Ok((backward.run()?.read()? != (different, expected)).then_some("the sparse gradient is another"))
}

fn rows_drawn_are_copied_and_their_gradients_added_up_in_order(device: &Device) -> Result<(), Failed> {
    let sizes = (
        drawn::side(1000, &[16, 256], &[37, 1000]),
        drawn::side(1100, &[8, 64, 512], &[127, 1100]),
        drawn::side(2100, &[32, 256, 2048], &[333]),
    );
    let place = prop_oneof![Just([0, 0]), Just([8, 8]), [0usize..5, 0usize..5]];
    let different = prop::sample::select(vec![1u64, 3, 1 << 30]);
    let strategy = (sizes, different, place, 0u8..3, any::<u64>());
    Ok(drawn::runner(device, [60, 200])?.run(
        &strategy,
        |((vocabulary, columns, tokens), different, place, of, seed)| {
            // In the emulator long rows of many tokens take long.
            let columns = if tokens > 400 { columns.min(24) } else { columns };
            let sizes = [vocabulary, columns, tokens];
            let outcome = match of {
                0 => check::<f16>(device, sizes, different, place, seed),
                1 => check::<bf16>(device, sizes, different, place, seed),
                _ => check::<f32>(device, sizes, different, place, seed),
            };
            match outcome {
                Ok(None) => Ok(()),
                Ok(Some(wrong)) => Err(TestCaseError::fail(wrong)),
                Err(error) => Err(TestCaseError::fail(error.to_string())),
            }
        },
    )?)
}

fn many_tokens_of_few_ids_and_of_many_are_added_up(device: &Device) -> Result<(), Failed> {
    let tokens = if device.kind() == DeviceKind::Emulator { 9001 } else { 200_003 };
    for (vocabulary, different) in [(70_000, 1 << 40), (70_000, 7), (250, 1 << 40)] {
        let wrong = check::<bf16>(device, [vocabulary, 5, tokens], different, [0, 0], 9)?;
        assert_eq!(wrong, None, "{vocabulary} {different}");
    }
    Ok(())
}

fn a_captured_gradient_runs_again_on_what_is_there_then(device: &Device) -> Result<(), Failed> {
    let stream = device.new_stream()?;
    let mut given = Tensor::<i64>::zeros_on(&stream, [5000])?;
    let dy = Tensor::<f32>::zeros_on(&stream, [5000, 16])?;
    dy.clone().write_slice(&matrix::<f32>(device, 3, [5000, 16], [0, 0])?.to_vec()?)?;
    let result = ops::embedding_backward(&dy, &given, 900).on(&stream).run()?;
    let (read, mut to) = (given.clone(), result.clone());
    let work = || ops::embedding_backward(&dy, &read, 900).on(&stream).run_into(&mut to);
    // SAFETY: the work borrows the tensors that it uses; what it makes it drops.
    let mut graph = unsafe { stream.capture(work)? };
    for seed in 1..4 {
        let next = ids(seed, 5000, 900, 1 << 20);
        given.write_slice(&next)?;
        graph.launch()?;
        let there = Tensor::from_slice(device, &next, [5000])?;
        assert!(result.read()? == ops::embedding_backward(&dy, &there, 900).run()?.read()?, "{seed}");
    }
    Ok(())
}
