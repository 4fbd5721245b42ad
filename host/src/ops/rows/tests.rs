//! Plans of operations on rows: each has all rows, in as many launches as they take.

use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_dsl::rows::{AnyRows, Kind};

use super::{FEWER_BLOCKS, MOST_BLOCKS, Piece, Plan, Shares, Sizes};
use crate::ops::cross_entropy::{CrossEntropyOutputs, Reduction};
use crate::ops::norm::NormOutputs;
use crate::{Device, Error, Result, Tensor, ops};

#[test]
fn every_chunk_of_a_row_is_some_threads_and_every_row_some_blocks() {
    for columns in [1, 3, 8, 31, 64, 127, 128, 768, 1000, 4096, 5000, 8192, 8193, 65_536, 100_003, 1 << 20] {
        for shares in [
            Shares { vector: true, chunk: 8, chunks: 4 },
            Shares { vector: true, chunk: 4, chunks: 4 },
            Shares { vector: true, chunk: 8, chunks: 2 },
            Shares { vector: false, chunk: 8, chunks: 4 },
            Shares { vector: false, chunk: 4, chunks: 4 },
            Shares { vector: false, chunk: 8, chunks: 2 },
            Shares { vector: false, chunk: 8, chunks: 1 },
        ] {
            for max_cluster in [1, 8, 12, 16] {
                for rows in [1, 7, 64, 4096, 1 << 20] {
                    let sizes = Sizes { rows, columns };
                    let all = Plan::new(sizes, shares, max_cluster);
                    let teams = if all.cluster > 1 { 1 } else { 256 / all.threads };
                    assert!(
                        all.blocks / all.cluster * teams >= rows as u32,
                        "a row has no team: {rows} × {columns}, {all:?}"
                    );
                    let Plan { threads, rounds, cluster, blocks } =
                        Plan::in_blocks(Sizes { rows, columns }, shares, max_cluster, 1056);
                    let case = format!("{rows} × {columns}, {shares:?}, {max_cluster}");
                    let chunks = columns.div_ceil(shares.chunk as usize);
                    let at_a_time = (threads * cluster * shares.chunks) as usize;
                    assert!(at_a_time * rounds as usize >= chunks, "{case}");
                    assert!(at_a_time * (rounds as usize - 1) < chunks, "{case}");
                    assert!(threads.is_power_of_two() && threads <= 256, "{case}");
                    // Fewer lanes than a warp's have chunks between each other's, which are all of a row.
                    assert!(shares.vector || threads >= 32 || threads * shares.chunks == 32, "{case}");
                    assert!(threads >= 32 || rounds == 1, "{case}");
                    assert!(cluster == 1 || threads == 256 && cluster <= max_cluster, "{case}");
                    assert!(blocks <= 1056 && blocks.is_multiple_of(cluster), "{case}");
                    let teams = if cluster > 1 { blocks / cluster } else { blocks * (256 / threads) };
                    assert!(teams as usize >= rows.min(66), "{case}");
                    let powers = Plan::in_powers(sizes, shares, max_cluster);
                    assert!(powers.cluster.is_power_of_two() && powers.cluster <= max_cluster, "{case}");
                    let at_a_time = (powers.threads * powers.cluster * shares.chunks) as usize;
                    assert!(at_a_time * powers.rounds as usize >= chunks, "{case}");
                    for multiprocessors in [1, 132] {
                        let spread = all.spread(sizes, shares, multiprocessors);
                        let threads = spread.threads;
                        assert_eq!((spread.rounds, spread.cluster), (all.rounds, all.cluster), "{case}");
                        assert!(
                            threads.is_power_of_two() && threads <= 256 && threads >= all.threads,
                            "{case}"
                        );
                        assert!(
                            shares.vector || threads >= 32 || threads * shares.chunks == 32,
                            "{case}: {spread:?}"
                        );
                        let teams = if spread.cluster > 1 { 1 } else { 256 / threads };
                        assert!(spread.blocks / spread.cluster * teams >= rows as u32, "{case}: {spread:?}");
                        // Threads that have no chunk would only wait.
                        assert!(
                            threads == all.threads || threads as usize / 2 < chunks,
                            "{case}: {spread:?}"
                        );
                        let few = rows as u64 * u64::from(threads) <= 512 * u64::from(multiprocessors);
                        assert!(threads == all.threads || few, "{case}: {spread:?}");
                    }
                    // Of parts there are no more for more threads.
                    let parts = Plan::in_blocks(sizes, shares, max_cluster, 264);
                    assert!(parts.spread(sizes, shares, 132).blocks <= 264, "{case}");
                }
            }
        }
    }
}

/// Rows that are all the same in memory may be more than a grid has clusters for.
#[test]
fn launches_have_all_rows_once_in_grids_that_there_are() {
    let shares = Shares { vector: true, chunk: 8, chunks: 4 };
    let most = (1usize << 31) - 1;
    for columns in [1, 100, 8192, 8193, 20_000, 1 << 17, 1 << 20] {
        for max_cluster in [1, 8, 12, 16] {
            for rows in [0, 1, 7, 1 << 27, (1 << 27) + 1, 1 << 30, most] {
                for most_blocks in [MOST_BLOCKS, 16, 1056, 65_535] {
                    // Few launches only, but of any size.
                    let rows = if most_blocks == MOST_BLOCKS { rows } else { rows % 10_007 };
                    let plan = Plan::in_blocks(Sizes { rows, columns }, shares, max_cluster, most_blocks);
                    let case = format!("{rows} × {columns}, {plan:?}");
                    let teams = if plan.cluster > 1 { 1 } else { 256 / plan.threads };
                    let (mut next, mut launches) = (0, 0);
                    for Piece { before, rows, blocks } in plan.pieces(rows) {
                        assert_eq!(before, next, "{case}");
                        assert!(rows > 0 && blocks <= most_blocks, "{case}");
                        assert!(blocks.is_multiple_of(plan.cluster), "{case}");
                        let clusters = u64::from(blocks / plan.cluster);
                        assert!(clusters * u64::from(teams) >= u64::from(rows), "{case}");
                        assert!((clusters - 1) * u64::from(teams) < u64::from(rows), "{case}");
                        next += u64::from(rows);
                        launches += 1;
                    }
                    assert_eq!(next, rows as u64, "{case}");
                    let has_one = plan.expect_one_launch("softmax", "x", rows);
                    assert_eq!(has_one.is_ok(), launches <= 1, "{case}");
                }
            }
        }
    }
    let plan = Plan::in_blocks(Sizes { rows: most, columns: 1 << 17 }, shares, 16, MOST_BLOCKS);
    let limit = ((1u64 << 31) - 1) / 16;
    assert_eq!(plan.pieces(most).map(|piece| u64::from(piece.rows)).max(), Some(limit));
    let error = plan.expect_one_launch("softmax", "x", most).expect_err("a grid has too few clusters");
    let Error::SizeLimit { operand: "x", limit: expected, actual, .. } = &error else { panic!("{error}") };
    assert!(expected.contains(&limit.to_string()) && *actual == most.to_string(), "{error}");
}

#[test]
fn rows_of_a_launch_begin_after_those_of_the_launches_before() {
    let piece = Piece { before: 3 << 30, rows: 1, blocks: 1 };
    let rows = AnyRows { base: 1 << 40, stride: 70_000, kind: Kind::BF16, offset: 1.0 };
    let of = piece.of(rows);
    assert_eq!((of.base, of.stride, of.offset), ((1 << 40) + (3 << 30) * 140_000, 70_000, 1.0));
    // The same row for all, and no operand, are where they are.
    assert_eq!(piece.of(AnyRows { stride: 0, ..rows }).base, 1 << 40);
    assert!(!piece.of(AnyRows::NONE).is_there());
    assert_eq!(piece.of_vector(GlobalMut::<f32>::new(256)).address(), 256 + (12 << 30));
    assert!(piece.of_vector(GlobalMut::<f32>::new(0)).is_null());
    assert_eq!(piece.from(Global::<u8>::new(256), 5).address(), 256 + 5 * (3 << 30));
    assert!(piece.from(Global::<u8>::new(0), 5).is_null());
}

/// Results of operations on rows, in the order of launches that write them.
fn results(device: &Device, [rows, columns]: [usize; 2]) -> Result<Vec<Vec<f32>>> {
    let tensor = |step: usize| {
        let numbers: Vec<f32> =
            (0..rows * columns).map(|at| (at * step % 2003) as f32 / 1001.0 - 1.0).collect();
        Tensor::from_slice(device, &numbers, [rows, columns])
    };
    let (x, other) = (tensor(7919)?, tensor(4507)?);
    let vector = || Tensor::<f32>::zeros(device, [rows]);
    let (mut y, mut sum, mut mean, mut deviation) = (tensor(1)?, tensor(1)?, vector()?, vector()?);
    ops::layer_norm(&x).residual(&other).run_into(NormOutputs {
        y: Some(&mut y),
        sum: Some(&mut sum),
        mean: Some(&mut mean),
        inverse_deviation: Some(&mut deviation),
    })?;
    let mut all = vec![y.to_vec()?, sum.to_vec()?, mean.to_vec()?, deviation.to_vec()?];
    let mask: Vec<u8> = (0..rows * columns).map(|at| u8::from(at % 7 != 3)).collect();
    let mask = Tensor::from_slice(device, &mask, [rows, columns])?;
    for mask in [mask.clone(), mask.slice(0, 0..1)?.reshape([columns])?] {
        all.push(ops::softmax(&x).mask(&mask).run()?.to_vec()?);
    }
    all.push(ops::softmax_gradient(&x, &other).run()?.to_vec()?);
    let labels: Vec<i64> = (0..rows).map(|row| (row * 5 % columns) as i64).collect();
    let labels = Tensor::from_slice(device, &labels, [rows])?;
    let (mut loss, mut lse, mut gradient) = (vector()?, vector()?, tensor(1)?);
    ops::cross_entropy(&x, &labels).reduction(Reduction::None).run_into(CrossEntropyOutputs {
        loss: Some(&mut loss),
        lse: Some(&mut lse),
        gradient: Some(&mut gradient),
    })?;
    all.extend([loss.to_vec()?, lse.to_vec()?, gradient.to_vec()?]);
    Ok(all)
}

#[test]
fn rows_of_several_launches_are_those_of_one() {
    for device in ["emulator:8.0", "emulator:9.0"].map(|name| name.parse::<Device>().expect("a device")) {
        for sizes in [[150, 24], [150, 25], [3, 8200], [3, 8201]] {
            let expected = results(&device, sizes).expect("it runs");
            FEWER_BLOCKS.set(1);
            let actual = results(&device, sizes);
            FEWER_BLOCKS.set(MOST_BLOCKS);
            let equal = |(a, b): (&Vec<f32>, &Vec<f32>)| {
                a.iter().map(|a| a.to_bits()).eq(b.iter().map(|b| b.to_bits()))
            };
            let actual = actual.expect("it runs");
            let same: Vec<bool> = actual.iter().zip(&expected).map(equal).collect();
            assert_eq!(same, [true; 10], "{device:?}, {sizes:?}");
        }
    }
}
