//! Look-ups bit by bit, and gradients against sums in the order of tokens, drawn; what is refused; edges.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{EmbeddingElement, EmbeddingId};
use crate::error::{Error, Result};
use crate::ops::elementwise::tests::{numbers, placed};
use crate::ops::rows::widened;
use crate::ops::{self, Implementation};
use crate::{Device, Tensor};

/// A type of ids, with what it has of a number: out of range it is anything.
trait Id: EmbeddingId {
    fn of(number: u64, is_there: bool) -> Self;
}

impl Id for u32 {
    fn of(number: u64, is_there: bool) -> Self {
        if is_there { number as u32 } else { u32::MAX - (number % 3) as u32 }
    }
}

impl Id for i64 {
    fn of(number: u64, is_there: bool) -> Self {
        match number % 3 {
            _ if is_there => number as i64,
            0 => -1 - (number % 100) as i64,
            1 => i64::MIN,
            // The lower half is a row's.
            _ => 1 << 32,
        }
    }
}

#[derive(Clone, Debug)]
struct Drawn {
    vocabulary: usize,
    columns: usize,
    tokens: usize,
    /// Different ids, at most.
    different: usize,
    /// One of so many ids is out of range; none if it is 0.
    missing: u64,
    place: [usize; 2],
    seed: u64,
}

fn ids_of<I: Id>(drawn: &Drawn) -> Vec<I> {
    let mut state = drawn.seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 24
    };
    let vocabulary = drawn.vocabulary as u64;
    (0..drawn.tokens)
        .map(|_| {
            let is_there = vocabulary > 0 && (drawn.missing == 0 || next() % drawn.missing != 0);
            let number = next() % drawn.different.max(1) as u64;
            I::of(if is_there { number.wrapping_mul(0x9e37_79b9) % vocabulary } else { number }, is_there)
        })
        .collect()
}

fn fail(error: Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn check<T: EmbeddingElement, I: Id>(device: &Device, drawn: &Drawn) -> Result<(), TestCaseError> {
    let Drawn { vocabulary, columns, tokens, place, seed, .. } = *drawn;
    let list = ids_of::<I>(drawn);
    let rows: Vec<Option<usize>> = list.iter().map(|id| id.row(vocabulary)).collect();
    let ids = Tensor::from_slice(device, &list, [tokens]).map_err(fail)?;

    let of_table = numbers(seed, vocabulary * columns);
    let table = placed::<T>(device, &of_table, [vocabulary, columns], place).map_err(fail)?;
    let elements = table.to_vec().map_err(fail)?;
    let mut y = placed::<T>(device, &vec![0.0; tokens * columns], [tokens, columns], place).map_err(fail)?;
    ops::embedding(&table, &ids).run_into(&mut y).map_err(fail)?;
    let y = y.to_vec().map_err(fail)?;
    for (token, row) in rows.iter().enumerate() {
        let got = &y[token * columns..][..columns];
        match row {
            Some(row) => prop_assert_eq!(got, &elements[row * columns..][..columns]),
            None => {
                let numbers = got.iter().map(|got| got.to_f32());
                prop_assert!(numbers.into_iter().all(f32::is_nan), "a row that is not there is NaN");
            }
        }
    }

    let dy =
        placed::<T>(device, &numbers(seed ^ 5, tokens * columns), [tokens, columns], place).map_err(fail)?;
    let of_tokens = widened(&dy).map_err(fail)?;
    let start = numbers(seed ^ 9, vocabulary * columns);
    let mut gradient = placed::<f32>(device, &start, [vocabulary, columns], place).map_err(fail)?;
    let backward = ops::embedding_backward(&dy, &ids, vocabulary);
    backward.accumulate(&mut gradient).map_err(fail)?;
    // In the order of tokens, in f32: the same bits.
    let (mut dense, mut sums) = (start, vec![0.0f32; vocabulary * columns]);
    for (token, row) in rows.iter().enumerate() {
        for column in 0..if row.is_some() { columns } else { 0 } {
            let at = row.unwrap_or(0) * columns + column;
            dense[at] += of_tokens[token * columns + column];
            sums[at] += of_tokens[token * columns + column];
        }
    }
    prop_assert_eq!(gradient.to_vec().map_err(fail)?, dense);
    let mut different: Vec<u32> = rows.iter().flatten().map(|&row| row as u32).collect();
    different.sort_unstable();
    different.dedup();
    let expected: Vec<f32> =
        different.iter().flat_map(|&row| sums[row as usize * columns..][..columns].to_vec()).collect();
    let (places, got) = backward.run().and_then(|sparse| sparse.read()).map_err(fail)?;
    prop_assert_eq!((&places, &got), (&different, &expected));
    let (_, got) = backward.run_as::<bf16>().and_then(|sparse| sparse.read()).map_err(fail)?;
    prop_assert_eq!(got, expected.iter().map(|&sum| bf16::from_f32(sum)).collect::<Vec<_>>());
    Ok(())
}

fn cases() -> impl Strategy<Value = Drawn> {
    let vocabulary =
        prop_oneof![Just(0usize), Just(1), 2usize..40, prop::sample::select(vec![255usize, 256, 257, 1000]),];
    let columns = prop_oneof![1usize..20, prop::sample::select(vec![8usize, 64, 127, 520, 1100])];
    let tokens = prop_oneof![0usize..40, Just(333)];
    let different = prop_oneof![Just(1usize), Just(3), Just(1 << 20)];
    let missing = prop_oneof![Just(0u64), Just(4)];
    let place = prop_oneof![Just([0, 0]), Just([8, 8]), [0usize..5, 0usize..5]];
    (vocabulary, columns, tokens, different, missing, place, any::<u64>()).prop_map(
        |(vocabulary, columns, tokens, different, missing, place, seed)| Drawn {
            vocabulary,
            columns,
            tokens,
            different,
            missing,
            place,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_copied_and_gradients_added_up_in_order(drawn in cases()) {
        for device in ["emulator:9.0", "emulator:8.0", "cpu"] {
            let device: Device = device.parse().expect("a device");
            check::<f16, u32>(&device, &drawn)?;
            check::<bf16, i64>(&device, &drawn)?;
            check::<f32, u32>(&device, &drawn)?;
        }
    }
}

/// Several tiles and passes, and ids that many tokens of several tiles have.
#[test]
fn many_tokens_are_sorted_in_tiles() {
    let drawn = |vocabulary, different| Drawn {
        vocabulary,
        columns: 3,
        tokens: 9001,
        different,
        missing: 50,
        place: [0, 0],
        seed: 77,
    };
    let device = Device::emulator();
    for drawn in [drawn(70_000, 1 << 40), drawn(70_000, 5), drawn(300, 1 << 20), drawn(1 << 16, 1 << 20)] {
        check::<f32, i64>(&device, &drawn).expect("it is what the definition says");
    }
}

#[test]
fn the_same_id_many_times_adds_all() -> Result<()> {
    for device in [Device::emulator(), Device::cpu()] {
        let dy = Tensor::from_slice(&device, &vec![f16::ONE; 5000 * 8], [5000, 8])?;
        let ids = Tensor::from_slice(&device, &vec![41i64; 5000], [5000])?;
        let (places, rows) = ops::embedding_backward(&dy, &ids, 50).run()?.read()?;
        assert_eq!((places, rows), (vec![41], vec![5000.0; 8]));
    }
    Ok(())
}

#[test]
fn ids_have_any_shape_and_none_are_none() -> Result<()> {
    for device in [Device::emulator(), Device::cpu()] {
        let table = placed::<f32>(&device, &numbers(1, 40), [10, 4], [0, 0])?;
        let ids = Tensor::from_slice(&device, &[3u32, 1, 9, 0, 3, 2], [3, 2])?;
        let y = ops::embedding(&table, &ids).run()?;
        assert_eq!(y.shape(), [3, 2, 4]);
        let turned = ids.swap_axes(0, 1)?;
        let y_turned = ops::embedding(&table, &turned).run()?;
        assert_eq!(y_turned.to_vec()?, y.swap_axes(0, 1)?.to_vec()?);
        let single = Tensor::from_slice(&device, &[7u32], [])?;
        assert_eq!(ops::embedding(&table, &single).run()?.to_vec()?, table.slice(0, 7..8)?.to_vec()?);
        let (places, _) = ops::embedding_backward(&y_turned, &turned, 10).run()?.read()?;
        assert_eq!(places, [0, 1, 2, 3, 9]);

        let none = Tensor::<i64>::zeros(&device, [0, 5])?;
        let op = ops::embedding(&table, &none);
        assert_eq!(op.implementation()?, Implementation::Empty);
        let y = op.run()?;
        assert_eq!(y.shape(), [0, 5, 4]);
        let sparse = ops::embedding_backward(&y, &none, 10).run()?;
        assert_eq!((sparse.rows.shape(), sparse.count.to_vec()?), (&[0, 4][..], vec![0]));
        let mut gradient = table.deep_clone()?;
        ops::embedding_backward(&y, &none, 10).accumulate(&mut gradient)?;
        assert_eq!(gradient.to_vec()?, table.to_vec()?);
    }
    Ok(())
}

#[test]
fn results_go_where_they_are_wanted_and_run_again() -> Result<()> {
    let device = Device::emulator();
    let dy = placed::<bf16>(&device, &numbers(6, 30 * 16), [30, 16], [0, 0])?;
    let list: Vec<u32> = (0..30).map(|i| i * 7 % 11).collect();
    let ids = Tensor::from_slice(&device, &list, [30])?;
    let op = ops::embedding_backward(&dy, &ids, 11);
    assert_eq!(op.implementation()?.launches().len(), 6);
    let expected = op.run()?;
    let mut there = expected.clone();
    there.rows = Tensor::zeros(&device, [11, 16])?;
    there.ids = Tensor::zeros(&device, [11])?;
    op.run_into(&mut there)?;
    assert_eq!(there.read()?, expected.read()?);
    let mut short = expected.clone();
    short.rows = Tensor::zeros(&device, [10, 16])?;
    assert!(matches!(op.run_into(&mut short), Err(Error::Shape { operand: "rows", .. })));
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    let (device, cpu) = (Device::emulator(), Device::cpu());
    let table = Tensor::<f32>::zeros(&device, [10, 4])?;
    let ids = Tensor::<u32>::zeros(&device, [6])?;
    let vector = Tensor::<f32>::zeros(&device, [10])?;
    assert!(matches!(ops::embedding(&vector, &ids).run(), Err(Error::Shape { operand: "table", .. })));
    let elsewhere = Tensor::<u32>::zeros(&cpu, [6])?;
    assert!(matches!(
        ops::embedding(&table, &elsewhere).run(),
        Err(Error::DeviceMismatch { operand: "ids", .. })
    ));
    let mut wrong = Tensor::<f32>::zeros(&device, [6, 5])?;
    assert!(matches!(
        ops::embedding(&table, &ids).run_into(&mut wrong),
        Err(Error::Shape { operand: "y", .. })
    ));
    let mut same = table.slice(0, 0..6)?;
    assert!(matches!(
        ops::embedding(&table, &ids).run_into(&mut same),
        Err(Error::Overlap { operand: "y", .. })
    ));
    let dy = Tensor::<f32>::zeros(&device, [5, 4])?;
    assert!(matches!(ops::embedding_backward(&dy, &ids, 10).run(), Err(Error::Shape { operand: "ids", .. })));
    let dy = Tensor::<f32>::zeros(&device, [6, 4])?;
    let op = ops::embedding_backward(&dy, &ids, 10);
    assert!(matches!(op.accumulate(&mut wrong), Err(Error::Shape { operand: "gradient", .. })));
    let refused = ops::embedding_backward(&dy, &ids, usize::MAX).run();
    assert!(matches!(refused, Err(Error::SizeLimit { operand: "table", .. })), "{refused:?}");
    Ok(())
}
