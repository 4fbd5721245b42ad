//! A stream that leaves multiprocessors to others: results have the same bits whatever the limit, and persistent launches keep within it.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use half::bf16;
use proptest::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpsmith::ops;
use warpsmith::ops::gemm::{Access, Fused, Tile};
use warpsmith::{DType, Device, Element, EmulatorOptions, Stream, Tensor};

/// Multiprocessors of the emulated H100.
const ALL: u32 = 132;

/// The entry and the blocks of each launch, in order.
#[derive(Clone, Default)]
struct Grids(Arc<Mutex<Vec<(String, u32)>>>);

impl Visit for Grids {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut launches = self.0.lock().expect("no test panics while it holds the lock");
        if field.name() == "entry" {
            launches.push((format!("{value:?}"), 0));
        }
        if field.name() == "grid" {
            let text = format!("{value:?}");
            let numbers = text.trim_matches(['[', ']']).split(", ").map(|number| number.parse::<u32>());
            let blocks = numbers.map(|number| number.expect("a grid is of numbers")).product();
            launches.last_mut().expect("the entry comes first").1 = blocks;
        }
    }
}

impl Subscriber for Grids {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "warpsmith::launch"
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What `work` returns, and the blocks of its launches of the kernel family `of`.
fn with_grids<R>(of: &str, work: impl FnOnce() -> R) -> (R, Vec<u32>) {
    let grids = Grids::default();
    let result = tracing::subscriber::with_default(grids.clone(), work);
    let launches = grids.0.lock().expect("no test panics while it holds the lock");
    (result, launches.iter().filter(|(entry, _)| entry.contains(of)).map(|(_, blocks)| *blocks).collect())
}

fn h100() -> Device {
    Device::emulator_with(EmulatorOptions { compute_capability: (9, 0), ..EmulatorOptions::default() })
}

/// Numbers between -1 and 1 that look random.
fn numbers<T: Element>(device: &Device, seed: u32, shape: &[usize], of: impl Fn(f32) -> T) -> Tensor<T> {
    let mut state = seed;
    let values: Vec<T> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            of((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
        })
        .collect();
    Tensor::from_slice(device, &values, shape).expect("the values fit")
}

fn bits<T: Element>(tensor: &Tensor<T>) -> Vec<u8> {
    bytemuck::cast_slice(&tensor.to_vec().expect("the work ends")).to_vec()
}

/// The tiles of persistent kernels for plain products of inputs of this type.
fn persistent(input: DType) -> Vec<Tile> {
    let is_tested = |tile: &Tile| {
        tile.is_persistent() && tile.serves(input, Access::Aligned) && tile.serves_fused(Fused::Floor)
    };
    Tile::of_input(input).filter(Tile::is_hopper_tile).filter(is_tested).collect()
}

trait IsHopper {
    fn is_hopper_tile(&self) -> bool;
}

impl IsHopper for Tile {
    fn is_hopper_tile(&self) -> bool {
        self.runs_on((9, 0)) && !self.runs_on((8, 9))
    }
}

/// Runs `work` on a stream without a limit and with these, and compares the bits. Its launch of the kernel family `of` is persistent, with
/// `resident` blocks to a multiprocessor, and `least` blocks whatever the limit.
fn expect_same_bits(
    device: &Device,
    of: &str,
    limits: &[u32],
    [resident, least]: [u32; 2],
    work: impl Fn(&Stream) -> Vec<u8>,
) -> Result<(), TestCaseError> {
    let stream = device.default_stream();
    let (whole, unlimited) = with_grids(of, || work(&stream));
    for &limit in limits {
        let (limited, grids) = with_grids(of, || work(&stream.with_multiprocessors(limit)));
        prop_assert_eq!(&whole, &limited, "limit {}", limit);
        prop_assert_eq!([grids.len(), unlimited.len()], [1, 1]);
        let most = (limit.min(ALL) * resident).max(least);
        prop_assert!(grids.iter().all(|&blocks| blocks > 0 && blocks <= most), "{limit}: {grids:?}");
        if most < unlimited[0] {
            prop_assert!(grids[0] < unlimited[0], "{limit}: {grids:?}, without {unlimited:?}");
        }
    }
    Ok(())
}

/// Products that have more tiles than there are multiprocessors.
fn product<T: ops::linear::LinearInput>(
    (tile, wide, rest, k): (Tile, u32, [u32; 2], usize),
    limits: &[u32],
    of: impl Fn(f32) -> T,
) -> Result<(), TestCaseError> {
    let (rows, columns) = tile.shape();
    let resident = if tile.name().contains("split-64") { 2 } else { 1 };
    // A round on the whole device, and some tiles more, of which the last ones are cut off.
    let tiles_n = wide;
    let tiles_m = (ALL * resident + 9).div_ceil(tiles_n);
    let m = (tiles_m * rows - rest[0] % rows) as usize;
    let n = (tiles_n * columns - rest[1] % (columns / 8) * 8) as usize;
    let device = h100();
    let (x, w) = (numbers(&device, 1, &[m, k], &of), numbers(&device, 2, &[n, k], &of));
    let precision = tile.precision(T::DTYPE);
    expect_same_bits(&device, "linear", limits, [resident, tile.cluster()], |stream| {
        let y = ops::linear(&x, &w).precision(precision).tile(tile).parts(1).on(stream).run();
        bits(&y.expect("the tile serves the product"))
    })
}

fn limits() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![Just(vec![1, 116]), Just(vec![131, 7]), proptest::collection::vec(1..ALL + 9, 2)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_have_the_same_bits_within_any_limit(
        which in any::<prop::sample::Index>(),
        wide in 6..13u32,
        rest in [0..64u32, 0..16u32],
        k in 1..6usize,
        limits in limits(),
    ) {
        let tiles = persistent(DType::Bf16);
        product((tiles[which.index(tiles.len())], wide, rest, 8 * k), &limits, bf16::from_f32)?;
    }

    #[test]
    fn products_of_f32_have_the_same_bits_within_any_limit(
        which in any::<prop::sample::Index>(),
        wide in 6..13u32,
        rest in [0..64u32, 0..16u32],
        k in 1..4usize,
        limits in limits(),
    ) {
        let tiles = persistent(DType::F32);
        product((tiles[which.index(tiles.len())], wide, rest, 8 * k), &limits, |number| number)?;
    }

    /// Teams of every size, with several tiles each on few multiprocessors.
    #[test]
    fn few_rows_have_the_same_bits_within_any_limit(
        m in 1..20usize,
        // More tiles than blocks at a time: others are left alone.
        n in 600..1500usize,
        k in prop_oneof![1..200usize, 500..1200usize],
        limits in limits(),
    ) {
        let device = h100();
        let (x, w) = (numbers(&device, 1, &[m, k], |number| number), numbers(&device, 2, &[n, k], |number| number));
        expect_same_bits(&device, "linear_dots", &limits, [2, 1], |stream| {
            bits(&ops::linear(&x, &w).tile(Tile::Dots8x2).on(stream).run().expect("the tile serves the product"))
        })?;
    }

    #[test]
    fn attention_has_the_same_bits_within_any_limit(
        heads in 1..4usize,
        // Few rows take kernels whose blocks have one tile.
        rows in 65..140usize,
        keys in 1..40usize,
        limits in limits(),
    ) {
        let device = h100();
        let batch = (ALL as usize + 5).div_ceil(heads);
        let of = |seed, rows| numbers(&device, seed, &[batch, rows, heads, 64], bf16::from_f32);
        let (q, k, v) = (of(1, rows), of(2, keys), of(3, keys));
        expect_same_bits(&device, "attention_hopper", &limits, [1, 1], |stream| {
            bits(&ops::attention(&q, &k, &v).on(stream).run().expect("the operands fit"))
        })?;
    }
}

proptest! {
    // Each has millions of outputs.
    #![proptest_config(ProptestConfig { cases: 2, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn updates_have_the_same_bits_within_any_limit(
        rank in prop_oneof![1..9usize, 9..40usize],
        wide in 6..9usize,
        rest in 0..60usize,
        limits in limits(),
    ) {
        let device = h100();
        let (k, n) = (16, wide * 256);
        let m = (ALL as usize + 9).div_ceil(wide) * 128 - rest;
        let of = |seed, shape: [usize; 2]| numbers(&device, seed, &shape, bf16::from_f32);
        let (x, w) = (of(1, [m, k]), of(2, [n, k]));
        let (v, codes, u) = (of(3, [k, rank]), of(4, [m, rank]), of(5, [rank, n]));
        let operation = || ops::linear_with_update(&x, &w, &v, &codes, &u, 0.5).way(ops::update::Way::Kernel);
        expect_same_bits(&device, "linear_update_hopper", &limits, [1, 16], |stream| {
            bits(&operation().on(stream).run().expect("the operands fit"))
        })?;
    }
}

#[test]
fn launches_of_one_tile_a_block_are_left_alone() {
    let device = h100();
    let stream = device.default_stream().with_multiprocessors(1);
    let (x, w) =
        (numbers(&device, 1, &[256, 16], bf16::from_f32), numbers(&device, 2, &[256, 16], bf16::from_f32));
    let run = || ops::linear(&x, &w).tile(Tile::HopperPingPong128x128).on(&stream).run().expect("it runs");
    let (_, grids) = with_grids("linear", run);
    assert_eq!(grids, [4]);
}

#[test]
fn a_limit_is_that_of_clones_branches_and_default_streams() {
    let device = h100();
    let stream = device.new_stream().expect("the emulator has streams");
    assert_eq!(stream.multiprocessors(), ALL);
    let limited = stream.with_multiprocessors(100);
    assert_eq!(limited, stream, "the same queue");
    assert_eq!(
        [limited.multiprocessors(), limited.clone().multiprocessors(), stream.multiprocessors()],
        [100, 100, ALL]
    );
    limited.as_default(|| assert_eq!(device.default_stream().multiprocessors(), 100));
    assert_eq!(device.default_stream().multiprocessors(), ALL);
    let of_branch = limited.beside(&[], |branch| Ok(branch.multiprocessors())).expect("there are branches");
    assert_eq!(of_branch, 100);
    assert_eq!(limited.with_multiprocessors(None).multiprocessors(), ALL);
    assert_eq!([0, 1000].map(|most| stream.with_multiprocessors(most).multiprocessors()), [1, ALL]);
}
