//! What a GPU leaves open must not show: every shipped kernel gives the same bits whenever its copies and products complete, in
//! whatever order its warps take turns, and on however many threads.

use std::collections::BTreeSet;

use half::{bf16, f16};
use libtest_mimic::{Failed, Trial};
use ndarray::{Array1, Array2};
use warpsmith::cpu::FromAccumulator;
use warpsmith::emulator::Completion;
use warpsmith::ops::linear::select::Access;
use warpsmith::ops::linear::{LinearInput, LinearTypes, Tile};
use warpsmith::ops::{self, Activation, Implementation};
use warpsmith::validate::{self, Data, LinearCase, MatmulCase};
use warpsmith::weights::FloatElement;
use warpsmith::{DType, Device, Element, EmulatorOptions, Tensor};
use warpsmith_kernels::MODULES;

/// M, K, N: several tiles with tails, sums longer than any ring of stages.
const SIZES: [(usize, usize, usize); 2] = [(200, 712, 264), (65, 40, 72)];

/// Emulated H100s, which run all kernels.
fn devices() -> Vec<(String, Device)> {
    let options = |completion, seed, threads| EmulatorOptions {
        compute_capability: (9, 0),
        completion,
        seed,
        threads: Some(threads),
        ..EmulatorOptions::default()
    };
    let mut all = vec![
        ("late".to_owned(), options(Completion::Latest, 0, 1)),
        ("at once".to_owned(), options(Completion::Eager, 0, 2)),
    ];
    all.extend((1..=3).map(|seed| (format!("random, seed {seed}"), options(Completion::Random, seed, 2))));
    all.into_iter().map(|(name, options)| (name, Device::emulator_with(options))).collect()
}

fn values<T: FloatElement>(rows: usize, columns: usize, seed: u32) -> Array2<T> {
    let mut state = seed;
    Array2::from_shape_simple_fn((rows, columns), || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::round(f64::from(state >> 8) / f64::from(1 << 23) - 1.0)
    })
}

/// Runs a tile in every mode; gives the kernels that ran.
fn check<T, O>(tile: Tile, access: Access) -> Result<BTreeSet<String>, Failed>
where
    T: LinearInput + LinearTypes<O> + FloatElement,
    O: Element + FloatElement + FromAccumulator<f32> + Into<f64>,
{
    let mut ran = BTreeSet::new();
    let devices = devices();
    for (m, mut k, mut n) in SIZES {
        // An odd row length is what kernels without copies of 16 bytes are for.
        k += usize::from(access == Access::Unaligned);
        let mut activation = Activation::GeluErf;
        if tile.needs_boxes() {
            (n, activation) = (n.next_multiple_of(8), Activation::Relu);
        }
        let mut first: Option<Vec<u64>> = None;
        for (mode, device) in &devices {
            let x = Tensor::from_array(device, &values::<T>(m, k, 1))?;
            let w = Tensor::from_array(device, &values::<T>(n, k, 2))?;
            let bias = Tensor::from_array(device, &Array1::from_iter(values::<T>(1, n, 3)))?;
            let op = ops::linear(&x, &w).bias(&bias).activation(activation).tile(tile);
            let op = op.precision(tile.precision(T::DTYPE)).output::<O>();
            let Implementation::Emulator { kernel, .. } = op.implementation()? else {
                return Err(format!("no kernel for {tile:?}").into());
            };
            ran.insert(kernel.to_owned());
            let y = op.run().map_err(|error| format!("{mode}: {error}"))?;
            let bits = y.to_vec()?.into_iter().map(|value| Into::<f64>::into(value).to_bits()).collect();
            match &first {
                None => first = Some(bits),
                Some(first) if *first == bits => {}
                Some(_) => return Err(format!("{kernel}, {m}×{k}×{n}: {mode} differs from late").into()),
            }
        }
    }
    Ok(ran)
}

/// Runs every tile of some types, and compares what ran with what ships.
fn check_all<T, O>(types: &str) -> Result<(), Failed>
where
    T: LinearInput + LinearTypes<O> + FloatElement,
    O: Element + FloatElement + FromAccumulator<f32> + Into<f64>,
{
    let mut ran = BTreeSet::new();
    for access in [Access::Aligned, Access::Unaligned] {
        for tile in Tile::ALL.into_iter().filter(|tile| tile.serves(T::DTYPE, access)) {
            ran.extend(check::<T, O>(tile, access)?);
        }
    }
    let part = format!("_{types}_");
    let entries = MODULES.iter().flat_map(|module| module.text.lines()).filter_map(|line| {
        let (name, _) = line.split_once(".entry ")?.1.split_once('(')?;
        name.contains(&part).then(|| name.to_owned())
    });
    let missing: Vec<_> = entries.filter(|name| !ran.contains(name)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not run: {missing:?}").into()) }
}

/// M, K, N of more tiles than an H100 has blocks for them: some blocks work through two, and the second goes around the ring of
/// stages where the first has stopped.
const PERSISTENT: (usize, usize, usize) = (17_300, 136, 384);

/// Whole tiles and cut ones, in clusters, with an activation that is applied in registers.
fn blocks_that_work_through_several_tiles_are_right() -> Result<(), Failed> {
    for tile in Tile::ALL.into_iter().filter(|tile| tile.is_persistent()) {
        let types = [DType::Bf16, DType::F32].into_iter();
        for input in types.filter(|&input| tile.serves(input, Access::Aligned)) {
            check_persistent(tile, input)?;
        }
    }
    Ok(())
}

fn check_persistent(tile: Tile, input: DType) -> Result<(), Failed> {
    let (m, k, n) = PERSISTENT;
    let case = LinearCase {
        tile: Some(tile),
        precision: tile.precision(input),
        activation: Activation::Relu,
        data: Data::Integers,
        ..LinearCase::new(input, m, k, n)
    };
    for (mode, device) in devices() {
        let blocks = tile.blocks(m as u32, n as u32, 1, device.properties().multiprocessors);
        assert!(blocks < tile.tiles(m as u32, n as u32), "the launch is persistent");
        let outcome = validate::linear(&device, &case).map_err(|error| format!("{mode}: {error}"))?;
        assert!(outcome.passed() && outcome.exact && outcome.compared == m * n, "{mode}: {outcome:?}");
    }
    Ok(())
}

/// Operands along K and across it, of their own for each matrix and shared, with tails in every direction.
fn operands_of_every_layout_are_read_where_they_lie() -> Result<(), Failed> {
    for (mode, device) in devices() {
        for tile in Tile::ALL.into_iter().filter(|tile| tile.serves(DType::F16, Access::Across)) {
            for (across, batch) in [
                ([false, true], [2, 2]),
                ([true, false], [1, 2]),
                ([true, true], [2, 1]),
                ([true, true], [1, 1]),
            ] {
                let product = LinearCase {
                    tile: Some(tile),
                    activation: Activation::Relu,
                    data: Data::Integers,
                    ..LinearCase::new(DType::F16, 200, 136, 264)
                };
                let case = MatmulCase { product, batch, across };
                let outcome = validate::matmul(&device, &case).map_err(|error| format!("{mode}: {error}"))?;
                assert!(outcome.passed() && outcome.exact, "{mode}, {tile}, {}: {outcome:?}", case.options());
            }
        }
    }
    Ok(())
}

/// Checks the kernels of some types.
type Check = fn(&str) -> Result<(), Failed>;

pub(crate) fn trials() -> Vec<Trial> {
    let all: [(&str, Check); 5] = [
        ("f16_f16", check_all::<f16, f16>),
        ("f16_f32", check_all::<f16, f32>),
        ("bf16_bf16", check_all::<bf16, bf16>),
        ("bf16_f32", check_all::<bf16, f32>),
        ("f32_f32", check_all::<f32, f32>),
    ];
    let by_types = all.map(|(types, check)| {
        let name = format!("emulator::modes::every_kernel_of_{types}_gives_the_same_bits_in_every_mode");
        Trial::test(name, move || check(types))
    });
    let name = "emulator::modes::blocks_that_work_through_several_tiles_are_right_in_every_mode";
    let persistent = Trial::test(name, blocks_that_work_through_several_tiles_are_right);
    let name = "emulator::modes::operands_of_every_layout_are_read_where_they_lie_in_every_mode";
    let layouts = Trial::test(name, operands_of_every_layout_are_read_where_they_lie);
    by_types.into_iter().chain([persistent, layouts]).collect()
}
