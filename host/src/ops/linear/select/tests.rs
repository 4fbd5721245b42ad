//! The choice, against what was measured and what must hold.
//!
//! 16-bit types on Hopper are judged by `tiles-h100.csv` and `epilogues-h100.csv`, which say with which driver and by which commands they were
//! taken, and they and f32 by what the tuner measured for the bench (`docs/bench/tune-h100.csv`). Of most of the first neither the commit nor the clocks are known, and its tile of 64 × 160 is mostly dealt out in an order that is not
//! the library's. The tables in this file are of an H100 and the kernels of the commit that each names, not of those beside this file;
//! command, driver and clocks are not known. So all of them stand for the order of the tiles, within a twentieth, and not for
//! times to compare anything else with: they keep a change of the model from choosing worse than it did. `cargo xtask bench --variants --csv FILE`
//! takes such tables, with all of that noted.

use std::collections::BTreeMap;

use super::{Access, Fused, Limits, Problem, Tile, candidates, estimate, select};
use crate::DType;
use crate::ops::{CHUNK_BYTES, Precision, Products};
use crate::tune::report;

/// One product at the accuracy of its inputs' type.
fn full(input: DType, access: Access) -> Problem {
    let products = Products::choose(input, 1, Precision::Full, true);
    Problem {
        m: 1,
        n: 1,
        k: 1,
        batch: 1,
        input,
        output: input,
        access,
        products,
        stores_boxes: true,
        fused: Fused::Floor,
    }
}

const H100: Limits = Limits {
    compute_capability: (9, 0),
    multiprocessors: 132,
    max_shared_per_block: 232_448,
    shared_per_multiprocessor: 233_472,
};
/// An H100 that runs what its predecessors run.
const PORTABLE: Limits = Limits { compute_capability: (8, 0), ..H100 };

fn tile_on(limits: &Limits, m: u32, k: u32, n: u32, input: DType) -> Tile {
    select(&Problem { m, n, k, ..full(input, Access::Aligned) }, limits).expect("all tiles fit an H100")
}

fn tile(m: u32, k: u32, n: u32, input: DType) -> Tile {
    tile_on(&PORTABLE, m, k, n, input)
}

#[test]
fn large_problems_get_the_tile_that_reads_least() {
    for size in [4096, 8192, 16384] {
        assert_eq!(tile(size, size, size, DType::Bf16), Tile::T128x128);
        assert_eq!(tile(size, size, size, DType::F32), Tile::T128x64);
    }
}

#[test]
fn hopper_gets_its_own_tiles_for_what_its_copy_engine_can_read() {
    for size in [4096, 8192, 16384] {
        assert!(tile_on(&H100, size, size, size, DType::Bf16).is_hopper());
        assert_eq!(tile_on(&H100, size, size, size, DType::F32), Tile::HopperSplit128x256);
    }
    let problem = Problem { m: 4096, n: 4096, k: 4096, ..full(DType::F16, Access::Words) };
    assert!(select(&problem, &H100).is_some_and(|tile| !tile.is_hopper()), "rows that are not aligned");
    let empty = Problem { k: 0, access: Access::Aligned, ..problem };
    assert!(select(&empty, &H100).is_some_and(|tile| !tile.is_hopper()), "no columns");
    let later = Limits { compute_capability: (10, 0), ..H100 };
    let problem = Problem { access: Access::Aligned, ..problem };
    assert!(select(&problem, &later).is_some_and(|tile| !tile.is_hopper()), "another architecture");
}

/// The tile whose last ones may be in halves, and the one whose kernel it shares.
const HALVES: Tile = Tile::HopperCooperative128x256Halves;
const WHOLE: Tile = Tile::HopperCooperative128x256;

/// M, K, N, and microseconds of each tile in the order of [`Tile::ALL`], but for halves.
type Measured<const TILES: usize> = ((u32, u32, u32), [f64; TILES]);

/// Checks choices against what was measured of the tiles that are as exact as `products`; halves were not, and may not be chosen.
fn check_choices<const TILES: usize>(input: DType, products: Products, measured: &[Measured<TILES>]) {
    let serves = |tile: &Tile| {
        *tile != HALVES && tile.serves(input, Access::Aligned) && tile.products(input).is_at_least(products)
    };
    let tiles: Vec<_> = Tile::ALL.into_iter().filter(serves).collect();
    assert_eq!(tiles.len(), TILES);
    for &((m, k, n), times) in measured {
        let problem = Problem { m, n, k, products, ..full(input, Access::Aligned) };
        let choice = select(&problem, &H100).expect("all tiles fit an H100");
        let of = |tile: Tile| times[tiles.iter().position(|&other| other == tile).expect("a tile")];
        let fastest = times.into_iter().fold(f64::INFINITY, f64::min);
        assert!(of(choice) <= 1.05 * fastest, "{m}x{k}x{n}: {choice} takes {}, {fastest}", of(choice));
    }
}

/// What `cargo xtask bench --variants` measured: a size, a tile, microseconds; bf16 with bias and ReLU.
const MEASURED: &str = include_str!("tiles-h100.csv");

#[test]
fn the_choice_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
    let mut sizes: BTreeMap<&str, Vec<(Tile, f64)>> = BTreeMap::new();
    for line in MEASURED.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[size, tile, microseconds] = &fields[..] else { panic!("three fields in `{line}`") };
        let time = microseconds.parse().expect("a number");
        sizes.entry(size).or_default().push((tile.parse().expect("a tile"), time));
    }
    assert!(sizes.len() > 40);
    let mut missed = Vec::new();
    for (size, times) in sizes {
        let sides: Vec<u32> = size.split('x').map(|side| side.parse().expect("a number")).collect();
        // y is contiguous; so whether the copy engine can store it follows from its columns.
        let stores_boxes = sides[2].is_multiple_of(8);
        let problem = Problem {
            m: sides[0],
            k: sides[1],
            n: sides[2],
            stores_boxes,
            fused: Fused::Floor,
            ..full(DType::Bf16, Access::Aligned)
        };
        let choice = select(&problem, &H100).expect("all tiles fit an H100");
        let fastest = times.iter().map(|&(_, time)| time).fold(f64::INFINITY, f64::min);
        let of = |tile| times.iter().find(|(other, _)| *other == tile).map(|&(_, time)| time);
        let time = of(choice);
        if time.is_none_or(|time| time > 1.05 * fastest) {
            missed.push(format!("{size}: {choice}, {time:?}, {fastest}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// What `cargo xtask bench --variants` measured of longer epilogues: an operation, a size, a tile, microseconds; bf16.
const MEASURED_EPILOGUES: &str = include_str!("epilogues-h100.csv");

#[test]
fn the_choice_for_longer_epilogues_is_within_a_twentieth_of_the_fastest_measured() {
    let mut cases: BTreeMap<(&str, &str), Vec<(Tile, f64)>> = BTreeMap::new();
    for line in MEASURED_EPILOGUES.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let &[operation, size, tile, microseconds] = &fields[..] else { panic!("four fields in `{line}`") };
        let time = microseconds.parse().expect("a number");
        cases.entry((operation, size)).or_default().push((tile.parse().expect("a tile"), time));
    }
    assert_eq!(cases.len(), 28);
    for ((operation, size), times) in cases {
        let sides: Vec<u32> = size.split('x').map(|side| side.parse().expect("a number")).collect();
        let terms = ["residual", "preactivation", "scales"].iter().any(|term| operation.contains(term));
        let fused = match operation {
            _ if terms => Fused::Terms,
            _ if operation.contains("mask") => Fused::Mask,
            _ => Fused::Activation,
        };
        let (m, k, n) = (sides[0], sides[1], sides[2]);
        let problem = Problem { m, k, n, fused, ..full(DType::Bf16, Access::Aligned) };
        let choice = select(&problem, &H100).expect("all tiles fit an H100");
        let fastest = times.iter().map(|&(_, time)| time).fold(f64::INFINITY, f64::min);
        let time = times.iter().find(|(tile, _)| *tile == choice).map(|&(_, time)| time);
        assert!(
            time.is_some_and(|time| time <= 1.05 * fastest),
            "{operation} {size}: {choice}, {time:?}, {fastest}"
        );
    }
}

/// What a case of `cargo xtask tune` comes to, if operands of 16 bits or f32 are read in chunks; those of 16 bits with an odd K are copied
/// into such first.
fn tuned_problem(operation: &str, dtype: &str, shape: &str) -> Option<Problem> {
    let (input, output, precision) = match dtype {
        "bf16" => (DType::Bf16, DType::Bf16, Precision::Full),
        "f16" => (DType::F16, DType::F16, Precision::Full),
        "bf16-to-f32" => (DType::Bf16, DType::F32, Precision::Full),
        "f32" => (DType::F32, DType::F32, Precision::Full),
        "tf32" => (DType::F32, DType::F32, Precision::Tf32),
        // 8-bit types have an operation of their own, which `ops::scaled::select` chooses for.
        _ => return None,
    };
    let sides: Vec<u32> = shape.split('x').map(|side| side.parse().expect("a number")).collect();
    let (batch, [m, k, n]) = match sides[..] {
        [m, k, n] => (1, [m, k, n]),
        [batch, m, k, n] => (batch, [m, k, n]),
        _ => panic!("a shape: {shape}"),
    };
    let access = match operation.strip_prefix("matmul ") {
        None | Some("nt") => Access::Aligned,
        Some("nn") => Access::WAcross,
        Some(_) => Access::Across,
    };
    let has = |terms: &[&str]| terms.iter().any(|term| operation.contains(term));
    let fused = if has(&["residual", "scales", "preactivation"]) {
        Fused::Terms
    } else if has(&["mask"]) {
        Fused::Mask
    } else if has(&["gelu", "silu"]) {
        Fused::Activation
    } else {
        Fused::Floor
    };
    let is_chunked =
        |elements: u32, dtype: DType| (elements as usize * dtype.size()).is_multiple_of(CHUNK_BYTES);
    let is_copied = input != DType::F32 && !k.is_multiple_of(2);
    (is_chunked(k, input) || is_copied).then_some(Problem {
        m,
        n,
        k,
        batch,
        output,
        fused,
        products: Products::choose(input, k as usize, precision, true),
        stores_boxes: is_chunked(n, output),
        ..full(input, access)
    })
}

/// All epilogues, layouts, batches and types of the bench but for FP8, as `cargo xtask tune` measured them.
#[test]
fn the_choice_on_hopper_is_within_a_twentieth_of_the_tuners() {
    let cases = report::cases();
    let (mut checked, mut missed) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (case, times) in &cases {
        let [operation, dtype, shape] = case.each_ref().map(String::as_str);
        let Some(problem) = tuned_problem(operation, dtype, shape) else { continue };
        let choice = select(&problem, &H100).expect("all tiles fit an H100");
        missed.extend(report::missed(case, times, choice.name()));
        *checked.entry(dtype).or_default() += 1;
    }
    for (dtype, least) in [("bf16", 115), ("f16", 6), ("f32", 6), ("tf32", 6), ("bf16-to-f32", 2)] {
        let count = checked.get(dtype).copied().unwrap_or(0);
        assert!(count >= least, "{count} of {dtype}, of {} cases", cases.len());
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Halves of 16-bit types and f32, stored by the copy engine and row by row, in problems of every number of waves.
#[test]
fn halves_are_chosen_instead_of_whole_tiles_wherever_a_launch_has_any() {
    let (mut halved, mut chosen) = (0, 0);
    for input in [DType::Bf16, DType::F32] {
        let products = Products::choose(input, 1, Precision::Tf32, true);
        for stores_boxes in [true, false] {
            for (m, n) in (1..40).flat_map(|m| (1..40).map(move |n| (m * 331, n * 251))) {
                for k in [64, 1000, 4096] {
                    let problem = Problem { m, n, k, products, stores_boxes, ..full(input, Access::Aligned) };
                    let of = |tile| estimate(Some(tile), &problem, &H100).expect("a kernel");
                    let choice = select(&problem, &H100).expect("all tiles fit an H100");
                    if candidates(&problem, &H100).any(|tile| tile == HALVES) {
                        assert!(of(HALVES) <= of(WHOLE), "{problem:?}");
                        assert_ne!(choice, WHOLE, "{problem:?}");
                        halved += 1;
                        chosen += u32::from(choice == HALVES);
                    } else {
                        assert_eq!(of(HALVES), of(WHOLE), "the same launch: {problem:?}");
                        assert_ne!(choice, HALVES, "{problem:?}");
                    }
                }
            }
        }
    }
    assert!(halved > 1000 && chosen > 100, "{halved}, {chosen}");
}

/// f32 on an H100, kernels of commit 2df4ec4.
#[test]
fn the_choice_for_f32_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
    let measured: [Measured<7>; 18] = [
        ((1, 4096, 4096), [253.84, 134.07, 101.27, 63.9, 154.55, 83.72, 32.6]),
        ((16, 4096, 4096), [254.19, 134.16, 101.42, 63.98, 154.59, 83.77, 32.88]),
        ((64, 4096, 4096), [254.65, 134.38, 101.63, 64.12, 154.94, 84.01, 50.19]),
        ((128, 4096, 4096), [258.52, 136.42, 103.21, 65.88, 157.58, 85.43, 100.56]),
        ((256, 4096, 4096), [263.6, 139.15, 105.8, 98.76, 160.87, 153.59, 196.28]),
        ((512, 4096, 4096), [272.46, 145.17, 165.92, 203.54, 278.85, 318.23, 410.33]),
        ((256, 256, 512), [22.79, 12.53, 10.27, 7.02, 12.73, 7.53, 3.86]),
        ((512, 512, 512), [38.35, 20.68, 16.42, 10.91, 22.29, 12.71, 8.13]),
        ((1024, 784, 2048), [57.59, 31.14, 34.69, 41.06, 53.6, 61.79, 79.86]),
        ((1024, 1024, 1024), [69.74, 37.25, 29.05, 26.77, 41.63, 39.5, 50.16]),
        ((1536, 1536, 1536), [104.35, 111.11, 104.35, 97.58, 173.74, 143.92, 167.12]),
        ((2048, 2048, 2048), [143.39, 149.5, 169.15, 205.16, 284.39, 320.14, 416.11]),
        ((3072, 3072, 3072), [622.2, 543.89, 616.56, 679.97, 1029.42, 1038.87, 1330.23]),
        ((4096, 1024, 1024), [74.71, 77.01, 86.88, 104.48, 144.04, 160.8, 207.0]),
        ((16384, 768, 768), [171.24, 178.12, 199.82, 237.09, 331.14, 365.1, 469.55]),
        ((4096, 4096, 4096), [1141.77, 1198.58, 1358.27, 1672.58, 2298.27, 2567.62, 3285.15]),
        ((8192, 4096, 4096), [2275.71, 2370.88, 2674.75, 3202.43, 4587.58, 5042.3, 6535.36]),
        ((8192, 8192, 8192), [8638.56, 9227.78, 10696.54, 13168.51, 20105.35, 21133.82, 26020.35]),
    ];
    check_choices(DType::F32, Products::ThreeTf32, &measured);
}

/// TF32 on an H100, kernels of commit 2df4ec4. The first three tiles round f32 to TF32; the times of the others are those of the
/// table for f32.
#[test]
fn the_choice_for_tf32_on_hopper_is_within_a_twentieth_of_the_fastest_measured() {
    let measured: [Measured<10>; 9] = [
        ((1024, 784, 2048), [13.29, 20.86, 13.22, 57.59, 31.14, 34.69, 41.06, 53.6, 61.79, 79.86]),
        ((1024, 1024, 1024), [13.32, 24.31, 13.0, 69.74, 37.25, 29.05, 26.77, 41.63, 39.5, 50.16]),
        ((1536, 1536, 1536), [32.85, 34.55, 34.47, 104.35, 111.11, 104.35, 97.58, 173.74, 143.92, 167.12]),
        ((2048, 2048, 2048), [46.74, 47.16, 49.12, 143.39, 149.5, 169.15, 205.16, 284.39, 320.14, 416.11]),
        (
            (3072, 3072, 3072),
            [170.62, 195.02, 177.74, 622.2, 543.89, 616.56, 679.97, 1029.42, 1038.87, 1330.23],
        ),
        ((4096, 1024, 1024), [26.34, 27.02, 28.24, 74.71, 77.01, 86.88, 104.48, 144.04, 160.8, 207.0]),
        ((16384, 768, 768), [61.22, 61.93, 65.9, 171.24, 178.12, 199.82, 237.09, 331.14, 365.1, 469.55]),
        (
            (4096, 4096, 4096),
            [366.21, 346.49, 381.02, 1141.77, 1198.58, 1358.27, 1672.58, 2298.27, 2567.62, 3285.15],
        ),
        (
            (8192, 4096, 4096),
            [757.93, 683.99, 780.29, 2275.71, 2370.88, 2674.75, 3202.43, 4587.58, 5042.3, 6535.36],
        ),
    ];
    check_choices(DType::F32, Products::Tf32, &measured);
}

#[test]
fn f32_is_rounded_to_tf32_only_where_that_is_asked_for() {
    for size in [1, 100, 4096, 8192] {
        let problem = Problem { m: size, n: size, k: size, ..full(DType::F32, Access::Aligned) };
        let tile = select(&problem, &H100).expect("all tiles fit an H100");
        assert_eq!(tile.products(DType::F32), Products::ThreeTf32, "{size}");
    }
    let problem =
        Problem { m: 4096, n: 4096, k: 4096, products: Products::Tf32, ..full(DType::F32, Access::Aligned) };
    assert!(select(&problem, &H100).is_some_and(|tile| tile.products(DType::F32) == Products::Tf32));
    let tile = select(&problem, &PORTABLE).expect("tiles fit");
    assert_eq!(tile.products(DType::F32), Products::ThreeTf32, "what other devices have is more exact");
}

#[test]
fn a_persistent_launch_is_of_whole_clusters_and_no_larger_than_the_device() {
    for tile in Tile::ALL.into_iter().filter(|tile| tile.is_persistent()) {
        let (rows, columns) = tile.shape();
        for multiprocessors in [1, 7, 132] {
            for (m, n) in [(1, 1), (rows + 1, columns + 1), (5000, 3000), (1 << 20, 1 << 20)] {
                let blocks = tile.blocks(m, n, 1, multiprocessors);
                assert!(blocks > 0 && blocks.is_multiple_of(u64::from(tile.cluster())));
                // A cluster for each tile, or for each half of two.
                let pieces = if tile == Tile::HopperCooperative128x256Halves { 2 } else { 1 };
                assert!(blocks <= pieces * tile.tiles(m, n));
                assert!(blocks <= u64::from((2 * multiprocessors).max(tile.cluster())));
            }
        }
    }
}

/// As an H100 said by its occupancy for blocks that have a multiprocessor each: 132 blocks, 66 clusters of two, and 30 of four.
#[test]
fn a_launch_is_of_no_more_clusters_than_run_at_a_time() {
    for (tile, blocks) in [
        (Tile::HopperCooperative64x128, 132),
        (Tile::HopperCooperative128x128, 132),
        (Tile::HopperCooperative64x160, 120),
        (Tile::HopperCooperative128x160, 120),
    ] {
        assert_eq!(tile.blocks(1 << 20, 1 << 20, 1, 132), blocks, "{tile}");
    }
}

#[test]
fn small_problems_are_spread_over_the_multiprocessors() {
    assert_eq!(tile(256, 256, 512, DType::F16), Tile::T16x64);
    assert_eq!(tile(1, 4096, 4096, DType::F16), Tile::T16x64);
    assert_eq!(tile(16, 4096, 11008, DType::Bf16), Tile::T16x64);
}

/// The portable tile that was fastest on an H100, for each size that was measured: kernels of commit d60262c. The times themselves
/// were not kept.
#[test]
fn the_choice_is_the_fastest_measured() {
    let measured = [
        (DType::Bf16, 1, 4096, 4096, Tile::T16x64),
        (DType::Bf16, 16, 4096, 4096, Tile::T16x64),
        (DType::Bf16, 64, 4096, 4096, Tile::T16x64),
        (DType::Bf16, 128, 4096, 4096, Tile::T64x64),
        (DType::Bf16, 256, 4096, 4096, Tile::T64x64),
        (DType::Bf16, 256, 256, 512, Tile::T16x64),
        (DType::Bf16, 512, 512, 512, Tile::T16x64),
        (DType::Bf16, 1024, 784, 2048, Tile::T128x64),
        (DType::Bf16, 1024, 1024, 1024, Tile::T64x64),
        (DType::Bf16, 1536, 1536, 1536, Tile::T128x64),
        (DType::Bf16, 2048, 2048, 2048, Tile::T128x128),
        (DType::Bf16, 3072, 3072, 3072, Tile::T128x128),
        (DType::Bf16, 4096, 1024, 1024, Tile::T128x128),
        (DType::Bf16, 4096, 4096, 4096, Tile::T128x128),
        (DType::Bf16, 16384, 768, 768, Tile::T128x128),
        (DType::F32, 1, 4096, 4096, Tile::T16x64),
        (DType::F32, 128, 4096, 4096, Tile::T64x64),
        (DType::F32, 256, 256, 512, Tile::T16x64),
        (DType::F32, 512, 512, 512, Tile::T16x64),
        (DType::F32, 1024, 784, 2048, Tile::T128x64),
        (DType::F32, 2048, 2048, 2048, Tile::T128x64),
    ];
    for (input, m, k, n, fastest) in measured {
        assert_eq!(tile(m, k, n, input), fastest, "{input} {m}x{k}x{n}");
    }
}

#[test]
fn every_choice_has_a_kernel_that_fits_the_device() {
    for input in [DType::F16, DType::Bf16, DType::F32] {
        for access in Access::ALL {
            for shared in [49_152, 101_376, 166_912, 232_448] {
                let limits = Limits {
                    compute_capability: (9, 0),
                    multiprocessors: 46,
                    max_shared_per_block: shared,
                    shared_per_multiprocessor: shared + 1024,
                };
                for size in [1, 15, 64, 100, 1000, 5000, i32::MAX as u32] {
                    for batch in [1, 1000, u32::MAX] {
                        let problem = Problem { m: size, n: size, k: size, batch, ..full(input, access) };
                        let Some(tile) = select(&problem, &limits) else { continue };
                        assert!(tile.serves(input, access) && tile.shared_bytes() <= shared);
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_with_too_little_shared_memory_is_told_so() {
    let limits = Limits {
        multiprocessors: 10,
        max_shared_per_block: 1024,
        shared_per_multiprocessor: 2048,
        ..PORTABLE
    };
    let problem = full(DType::F16, Access::Aligned);
    assert_eq!(select(&problem, &limits), None);
}

#[test]
fn more_multiprocessors_never_ask_for_larger_tiles() {
    let area = |multiprocessors| {
        let problem = Problem { m: 2048, n: 2048, k: 2048, ..full(DType::F16, Access::Aligned) };
        let (rows, columns) =
            select(&problem, &Limits { multiprocessors, ..PORTABLE }).expect("tiles fit").shape();
        rows * columns
    };
    assert!(area(8) >= area(132) && area(132) >= area(100_000));
}

/// Words of a mask are of 32 columns; what is for few columns of plain products stores none.
#[test]
fn masks_are_served_by_tiles_of_whole_words_and_terms_by_fewer() {
    for tile in Tile::ALL {
        let has_words = tile.shape().1.is_multiple_of(32) && tile != Tile::Narrow16x256;
        assert_eq!(tile.serves_fused(Fused::Mask), has_words, "{tile}");
        assert!(!tile.serves_fused(Fused::Terms) || has_words, "{tile}");
    }
    assert!(!Tile::HopperPingPong128x192.serves_fused(Fused::Terms));
}
