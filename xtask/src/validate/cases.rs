//! The cases of `xtask validate`.

mod attention;
mod copies;
mod elements;
mod epilogues;
mod experts;
mod gradients;
mod load;
mod norms;
mod optimizers;
mod routing;
mod scaled;
mod softmaxes;
mod updates;

#[cfg(test)]
pub(super) use attention::widest_gradients;
pub(super) use attention::{attention_gradients, attentions};
pub(super) use copies::copies;
pub(super) use elements::{caches, elementwise, embeddings, rotations};
pub(super) use experts::{expert_gradients, experts};
pub(super) use gradients::{
    of_linear as linear_gradients, of_matmul as matmul_gradients, of_scaled as scaled_gradients,
    of_updates as update_gradients,
};
pub(super) use load::load;
#[cfg(test)]
pub(super) use load::works as load_works;
pub(super) use norms::norms;
pub(super) use optimizers::optimizers;
pub(super) use routing::{retrieval_gradients, retrievals, selections};
pub(super) use scaled::{compared_scaled, scaled};
use serde::Serialize;
pub(super) use softmaxes::{losses, softmaxes};
pub(super) use updates::updates;
use warpsmith::ops::gemm::{Access, Tile};
use warpsmith::ops::{Activation, Precision};
use warpsmith::{DType, Device, DeviceKind, EmulatorOptions};
use warpsmith_lab::cases::{Data, LinearCase, MatmulCase, Placement, Scales, Terms};

/// How much to validate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Quick,
    Default,
    Full,
}

/// Types of the inputs and of the output.
const TYPES: [(DType, DType); 5] = [
    (DType::F16, DType::F16),
    (DType::F16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::Bf16, DType::F32),
    (DType::F32, DType::F32),
];

/// M, K, N: nothing at all, single elements, primes, one more and one less than tiles, few rows, long sums.
const QUICK_SIZES: [(usize, usize, usize); 8] = [
    (0, 5, 7),
    (5, 0, 7),
    (1, 1, 1),
    (17, 31, 13),
    (64, 64, 64),
    (65, 129, 67),
    (1, 1000, 100),
    (129, 100, 257),
];
const MORE_SIZES: [(usize, usize, usize); 9] = [
    (5, 7, 0),
    (1, 64, 1),
    (3, 5, 2),
    (127, 255, 131),
    (128, 128, 256),
    (16, 512, 300),
    (33, 4096, 65),
    (200, 96, 520),
    (256, 256, 512),
];
/// What is validated on a GPU, and the smaller of them in the emulator too.
const LARGE_SIZES: [(usize, usize, usize); 6] = [
    (1024, 784, 2048),
    (1000, 4096, 999),
    (2048, 2047, 2048),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 4096, 4096),
];
/// The largest product that the emulator validates: it runs about a thousand times slower than a GPU.
const EMULATED_WORK: usize = 1024 * 784 * 2048;

/// What the cases are chosen for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Whether it is fast enough for large problems.
    pub(super) on_gpu: bool,
    /// Its compute capability.
    pub(super) compute_capability: (u32, u32),
}

impl Target {
    /// What `device` is.
    pub(super) fn of(device: &Device) -> Self {
        let compute_capability = match device.kind() {
            // It runs any tile's case, and ignores the tile.
            DeviceKind::Cpu => (8, 0),
            _ => device.properties().compute_capability,
        };
        Self { on_gpu: matches!(device.kind(), DeviceKind::Cuda(_)), compute_capability }
    }

    /// An emulator that runs the same kernels.
    pub(super) fn emulator(self) -> Device {
        let compute_capability = self.compute_capability;
        Device::emulator_with(EmulatorOptions { compute_capability, ..EmulatorOptions::default() })
    }
}

/// The cases of the linear operation.
pub(super) fn linear(level: Level, target: Target, seed: u64) -> Vec<LinearCase> {
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        let case = |(m, k, n)| LinearCase { output, ..LinearCase::new(input, m, k, n) };
        cases.extend(QUICK_SIZES.map(case));
        cases.extend(options(&case));
        cases.extend(layouts(&case));
        cases.extend(terms(&case));
        if level >= Level::Default {
            cases.extend(MORE_SIZES.map(case));
            cases.extend(tiles(&case, input, target));
            cases.extend(QUICK_SIZES.into_iter().chain(MORE_SIZES).map(|size| integers(case(size))));
        } else {
            cases.extend([(17, 31, 13), (65, 129, 67)].map(|size| integers(case(size))));
        }
        cases.extend(epilogues::on_tiles([input, output], level, target));
        if level == Level::Full {
            let fits = |&(m, k, n): &(usize, usize, usize)| target.on_gpu || m * k * n <= EMULATED_WORK;
            let large = LARGE_SIZES.into_iter().filter(fits);
            cases.extend(large.clone().map(case));
            if input == DType::F32 {
                cases.extend(MORE_SIZES.into_iter().chain(large).map(case).map(tf32));
            }
        }
    }
    numbered(cases, seed)
}

/// The cases of matrix products: every layout of both operands, single and in batches, on sizes that are aligned and on odd ones.
pub(super) fn matmul(level: Level, target: Target, seed: u64) -> Vec<MatmulCase> {
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        let case = |(m, k, n)| {
            let product = LinearCase { output, ..LinearCase::new(input, m, k, n) };
            LinearCase { activation: Activation::None, bias: false, ..product }
        };
        let layouts = |product: LinearCase, batch: [usize; 2]| {
            [[false, false], [false, true], [true, false], [true, true]].map(|across| MatmulCase {
                product: product.clone(),
                batch,
                across,
            })
        };
        let beside = Placement { before: 8, after: 3 };
        let scaled = LinearCase {
            scale: -0.37,
            terms: Terms { beta: 0.5, in_place: true, ..Terms::default() },
            ..case((64, 72, 80))
        };
        let mut chosen = vec![
            (case((64, 64, 64)), [1, 1]),
            (case((65, 129, 67)), [1, 1]),
            (case((40, 24, 56)), [3, 3]),
            (case((33, 17, 13)), [1, 3]),
            (scaled.clone(), [1, 1]),
        ];
        if level >= Level::Default {
            chosen.extend([
                (case((1, 100, 40)), [4, 1]),
                (case((7, 0, 9)), [2, 2]),
                (case((9, 8, 1)), [2, 2]),
                (LinearCase { x: beside, w: beside, y: beside, ..case((70, 88, 90)) }, [2, 2]),
                (
                    LinearCase {
                        terms: Terms { in_place: false, row_scale: Scales::Each, ..scaled.terms },
                        ..scaled
                    },
                    [2, 2],
                ),
                (integers(case((130, 100, 140))), [1, 1]),
                (integers(case((65, 33, 129))), [2, 1]),
            ]);
        }
        if level == Level::Full && target.on_gpu {
            chosen.extend([
                (case((1024, 784, 2048)), [1, 1]),
                (case((1000, 4095, 999)), [1, 1]),
                (case((4096, 4096, 4096)), [1, 1]),
                (case((512, 512, 512)), [16, 16]),
                (case((1024, 128, 1024)), [32, 32]),
            ]);
        }
        if level == Level::Full && input == DType::F32 {
            let sizes = [(64, 64, 64), (130, 100, 140), (33, 17, 13), (1024, 784, 2048), (1000, 4095, 999)];
            let fits = |&(m, k, n): &(usize, usize, usize)| target.on_gpu || m * k * n < EMULATED_WORK;
            let products = sizes.into_iter().filter(fits).map(case).map(tf32);
            chosen.extend(products.flat_map(|product| [(product.clone(), [1, 1]), (product, [2, 2])]));
            if target.on_gpu {
                chosen.push((tf32(case((4096, 4096, 4096))), [1, 1]));
            }
            // The tiles that round, which are not chosen for small products.
            let rounds = |tile: &Tile| {
                tile.runs_on(target.compute_capability) && tile.precision(input) == Precision::Tf32
            };
            let of = |tile| LinearCase { tile: Some(tile), ..tf32(case((130, 100, 140))) };
            chosen.extend(Tile::ALL.into_iter().filter(rounds).map(|tile| (of(tile), [2, 2])));
        }
        cases.extend(chosen.into_iter().flat_map(|(product, batch)| layouts(product, batch)));
        if level >= Level::Default {
            cases.extend(tiles_across(&case, [input, output], target));
        }
        cases.extend(epilogues::in_batches([input, output], level, target));
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.product.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// Integer cases on which a GPU and the emulator are compared bit by bit.
pub(super) fn compared_bits(target: Target, seed: u64) -> Vec<LinearCase> {
    let mut cases = Vec::new();
    for (input, output) in TYPES {
        let case = |(m, k, n)| integers(LinearCase { output, ..LinearCase::new(input, m, k, n) });
        cases.extend(QUICK_SIZES.into_iter().chain(MORE_SIZES).map(case));
        cases.extend(tiles(&case, input, target));
        cases.extend(layouts(&case));
        cases.extend(terms(&case));
        cases.extend(epilogues::exact_on_tiles([input, output], target));
    }
    // A GPU's `ex2` and `rcp` are approximate in their own way.
    cases.retain(LinearCase::is_exact);
    numbered(cases, seed)
}

/// The same of matrix products: what is validated by default, every layout and batch of it, on integers.
pub(super) fn compared_products(target: Target, seed: u64) -> Vec<MatmulCase> {
    let mut cases = matmul(Level::Default, target, seed);
    for case in &mut cases {
        case.product = integers(case.product.clone());
        // Half an odd integer may be rounded.
        if case.product.terms.beta.abs() < 1.0 {
            case.product.terms.beta *= 2.0;
        }
    }
    cases.retain(|case| case.product.is_exact());
    cases
}

/// The same for operands that may be rounded to TF32.
fn tf32(case: LinearCase) -> LinearCase {
    LinearCase { precision: Precision::Tf32, ..case }
}

fn integers(case: LinearCase) -> LinearCase {
    LinearCase { data: Data::Integers, scale: 0.5, ..case }
}

/// Every activation, with and without a bias, scaled or not.
fn options(case: &impl Fn((usize, usize, usize)) -> LinearCase) -> Vec<LinearCase> {
    let with = |activation| {
        let sized = case((37, 70, 45));
        [
            LinearCase { activation, bias: false, ..sized.clone() },
            LinearCase { activation, scale: -0.37, ..sized },
        ]
    };
    Activation::ALL.into_iter().flat_map(with).collect()
}

/// Scales, residuals and what training needs: each alone and all together, on outputs with whole words of a mask and without.
fn terms(case: &impl Fn((usize, usize, usize)) -> LinearCase) -> Vec<LinearCase> {
    let none = Terms::default();
    let all = Terms {
        row_scale: Scales::Each,
        column_scale: Scales::Each,
        beta: 2.0,
        mask: true,
        preactivation: true,
        ..none
    };
    let alone = [
        Terms { row_scale: Scales::Each, ..none },
        Terms { column_scale: Scales::Each, row_scale: Scales::One, ..none },
        Terms { column_scale: Scales::One, ..none },
        Terms { beta: -1.0, ..none },
        Terms { beta: 1.0, in_place: true, ..none },
        Terms { mask: true, ..none },
        Terms { preactivation: true, ..none },
    ];
    let alone = alone.map(|terms| LinearCase { terms, ..case((70, 88, 90)) });
    let together = [(37, 70, 45), (130, 64, 256), (65, 40, 288)].map(case);
    let gelu = LinearCase { activation: Activation::GeluErf, ..case((40, 56, 33)) };
    let together = together.into_iter().chain([gelu]).map(|case| LinearCase { terms: all, ..case });
    alone.into_iter().chain(together).collect()
}

/// Operands inside larger matrices: on 16-byte boundaries, and on any.
fn layouts(case: &impl Fn((usize, usize, usize)) -> LinearCase) -> Vec<LinearCase> {
    let at = |before, after| Placement { before, after };
    let sized = case((70, 88, 90));
    vec![
        LinearCase { x: at(8, 16), w: at(16, 8), y: at(8, 6), ..sized.clone() },
        LinearCase { x: at(1, 0), ..sized.clone() },
        LinearCase { w: at(0, 3), ..sized.clone() },
        LinearCase { y: at(1, 2), ..sized.clone() },
        LinearCase { x: at(3, 2), w: at(5, 1), y: at(7, 1), m: 9, k: 61, n: 67, ..sized },
    ]
}

/// Every tile with every access that it has a kernel for, on an output that none divides, with a tail along K and without.
fn tiles(
    case: &impl Fn((usize, usize, usize)) -> LinearCase,
    input: DType,
    target: Target,
) -> Vec<LinearCase> {
    let beside = |before| Placement { before, after: 8 - before };
    // The third has a sum longer than a ring of stages, the fourth one of which so has each of four blocks that share it, the last one that some
    // blocks have no part of. Of one product, no other hides how its factors are rounded.
    let single = Placement { before: 0, after: 7 };
    let aligned = vec![
        LinearCase { x: single, w: single, ..case((70, 1, 72)) },
        case((200, 128, 300)),
        case((150, 200, 140)),
        case((200, 1032, 264)),
        case((40, 2568, 72)),
        case((3, 72, 136)),
    ];
    // Rows that are no whole chunks, chunks that start within one of memory's, and one operand that can be read faster than the other.
    let sized = || case((134, 128, 75));
    let words = vec![
        case((150, 202, 140)),
        case((20, 204, 70)),
        LinearCase { x: beside(2), w: beside(2), ..sized() },
        LinearCase { x: beside(4), ..sized() },
        LinearCase { w: beside(2), ..sized() },
    ];
    let output = case((1, 1, 1)).output;
    let forced = |access, cases: Vec<LinearCase>| {
        let runs = move |tile: &Tile| {
            tile.runs_on(target.compute_capability)
                && tile.serves(input, access)
                && tile.serves_output(input, output)
        };
        let tiles = Tile::ALL.into_iter().filter(runs);
        tiles.flat_map(move |tile| {
            let precision = tile.precision(input);
            // Where the copy engine stores, rows are multiples of 16 bytes.
            let columns = move |n: usize| if tile.needs_boxes() { n.next_multiple_of(8) } else { n };
            cases.clone().into_iter().map(move |case| LinearCase {
                tile: Some(tile),
                precision,
                n: columns(case.n),
                ..case
            })
        })
    };
    // Rows of every length, W beside other columns, tiles that end in each part of one; and more than a GPU's warps have rings for.
    let dense =
        [(200, 100, 100), (150, 101, 99), (1, 1, 1), (64, 128, 128), (31, 16, 256), (97, 37, 61)].map(case);
    let dense = dense.into_iter().chain([
        LinearCase { w: Placement { before: 3, after: 2 }, bias: false, ..case((70, 113, 31)) },
        LinearCase { activation: Activation::GeluErf, scale: -0.37, ..case((65, 88, 90)) },
        case((70_000, 7, 5)),
    ]);
    // Rows of odd lengths and odd places, sums of several slots, and one operand that could be read faster.
    let strided = [(127, 127, 127), (70, 300, 45), (33, 1, 65), (1, 5, 3), (64, 384, 64)].map(case);
    let strided = strided.into_iter().chain([
        LinearCase { x: Placement { before: 1, after: 2 }, w: Placement { before: 3, after: 3 }, ..sized() },
        LinearCase { x: beside(3), y: Placement { before: 1, after: 0 }, ..sized() },
    ]);
    // What the copy engine stores inside a larger Y, of columns around those of the widest boxes.
    let inside = [360, 176, 352, 112, 120, 8]
        .map(|n| LinearCase { y: Placement { before: 8, after: 16 }, ..case((300, 72, n)) });
    let stored = |case: &LinearCase| case.tile.is_some_and(|tile| tile.needs_boxes());
    let inside = forced(Access::Aligned, inside.to_vec()).filter(stored);
    let dense = forced(Access::Dense, dense.collect()).chain(forced(Access::Strided, strided.collect()));
    forced(Access::Aligned, aligned).chain(forced(Access::Words, words)).chain(dense).chain(inside).collect()
}

/// Every tile with every layout that it has a kernel for but the usual one: outputs that none divides, a tail along K, and sums
/// longer than any ring of stages, also of each of four blocks that share one. Rows that end within a chunk. One product,
/// several, and several that share an operand.
fn tiles_across(
    case: &impl Fn((usize, usize, usize)) -> LinearCase,
    [input, output]: [DType; 2],
    target: Target,
) -> Vec<MatmulCase> {
    let layouts = [
        (Access::WAcross, [false, true]),
        (Access::Across, [true, false]),
        (Access::Across, [true, true]),
        (Access::Strided, [false, true]),
        (Access::Strided, [true, false]),
        (Access::Strided, [true, true]),
    ];
    let runs = |tile: Tile, access| {
        tile.runs_on(target.compute_capability)
            && tile.serves(input, access)
            && tile.serves_output(input, output)
    };
    let of = |tile: Tile, across: [bool; 2]| {
        let product = |size| LinearCase { tile: Some(tile), precision: tile.precision(input), ..case(size) };
        // Operands across in a wider matrix, whose rows start at multiples of 16 bytes and end anywhere.
        let within = |product: LinearCase| {
            let n = if tile.needs_boxes() { product.n.next_multiple_of(8) } else { product.n };
            let beside = |is_across, length: usize| Placement {
                after: if is_across { length.next_multiple_of(8) - length } else { 0 },
                ..Placement::default()
            };
            LinearCase { n, x: beside(across[0], product.m), w: beside(across[1], n), ..product }
        };
        [
            MatmulCase { product: product((200, 136, 304)), batch: [1, 1], across },
            MatmulCase { product: integers(product((72, 2568, 136))), batch: [1, 1], across },
            MatmulCase { product: within(product((35, 72, 67))), batch: [1, 1], across },
            MatmulCase { product: within(product((16, 200, 1))), batch: [1, 1], across },
            MatmulCase { product: product((24, 200, 72)), batch: [2, 2], across },
            MatmulCase { product: product((24, 136, 8)), batch: [1, 2], across },
            MatmulCase { product: product((8, 136, 24)), batch: [2, 1], across },
        ]
    };
    let pairs = Tile::ALL.into_iter().flat_map(|tile| layouts.map(|(access, across)| (tile, access, across)));
    pairs
        .filter(|&(tile, access, _)| runs(tile, access))
        .flat_map(|(tile, _, across)| of(tile, across))
        .collect()
}

fn numbered(mut cases: Vec<LinearCase>, seed: u64) -> Vec<LinearCase> {
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use float8::F8E4M3;
    use half::{bf16, f16};
    use warpsmith::cpu::FromAccumulator;
    use warpsmith::ops::Implementation;
    use warpsmith::ops::linear::LinearTypes;
    use warpsmith::ops::scaled::ScaledOutput;
    use warpsmith::{DType, Device, Element, Tensor, ops};
    use warpsmith_lab::cases::{LinearCase, Placement, ScaledCase};
    use warpsmith_lab::validate;

    use super::{Level, Target, compared_scaled, linear, scaled};

    const AMPERE: Target = Target { on_gpu: false, compute_capability: (8, 0) };

    /// The kernels that `case` runs in the emulator.
    fn kernels<T, O>(device: &Device, case: &LinearCase) -> warpsmith::Result<Vec<&'static str>>
    where
        T: LinearTypes<O> + ops::linear::LinearInput,
        O: Element + FromAccumulator<f32>,
    {
        let place = |rows, place: Placement| {
            let columns = place.before..place.before + case.k;
            Tensor::<T>::zeros(device, [rows, columns.end + place.after])?.slice(1, columns)
        };
        let (x, w) = (place(case.m, case.x)?, place(case.n, case.w)?);
        let op =
            ops::linear(&x, &w).output::<O>().tile(case.tile).parts(case.parts).precision(case.precision);
        Ok(names(op.implementation()?))
    }

    fn names(implementation: Implementation) -> Vec<&'static str> {
        implementation.launches().iter().map(|launch| launch.kernel).collect()
    }

    #[test]
    fn the_default_cases_run_every_kernel_that_ships() -> warpsmith::Result<()> {
        let mut reached = BTreeSet::new();
        for device in ["emulator", "emulator:9.0"] {
            let device: Device = device.parse()?;
            for case in linear(Level::Default, Target::of(&device), 1) {
                reached.extend(match (case.input, case.output) {
                    (DType::F16, DType::F16) => kernels::<f16, f16>(&device, &case)?,
                    (DType::F16, DType::F32) => kernels::<f16, f32>(&device, &case)?,
                    (DType::Bf16, DType::Bf16) => kernels::<bf16, bf16>(&device, &case)?,
                    (DType::Bf16, DType::F32) => kernels::<bf16, f32>(&device, &case)?,
                    (DType::F32, DType::F32) => kernels::<f32, f32>(&device, &case)?,
                    other => panic!("no linear operation has the types {other:?}"),
                });
            }
        }
        let families = [
            "linear",
            "linear_dots",
            "linear_hopper",
            "linear_hopper_f32",
            "linear_narrow",
            "linear_skinny",
            "linear_strided",
            "linear_sums",
        ];
        assert_eq!(reached, shipped(&families));
        Ok(())
    }

    /// The names of the products' kernels that ship in some families.
    fn shipped(families: &[&str]) -> BTreeSet<&'static str> {
        let modules = warpsmith_kernels::MODULES.iter().filter(|module| families.contains(&module.family));
        let names = modules.flat_map(|module| module.entries).map(|entry| entry.name);
        let names: BTreeSet<_> = names.filter(|name| name.starts_with("linear_")).collect();
        assert!(!names.is_empty());
        names
    }

    /// Those that make copies in f16 run before the portable ones.
    #[test]
    fn the_default_cases_run_every_scaled_kernel_that_ships() -> warpsmith::Result<()> {
        fn kernels<O: ScaledOutput>(
            device: &Device,
            case: &ScaledCase,
        ) -> warpsmith::Result<Vec<&'static str>> {
            let x = Tensor::<F8E4M3>::zeros(device, [case.m, case.k])?;
            let w = Tensor::<F8E4M3>::zeros(device, [case.n, case.k])?;
            let op = ops::linear_scaled(&x, &w).output::<O>().tile(case.tile).parts(case.parts);
            Ok(names(op.implementation()?))
        }
        let mut reached = BTreeSet::new();
        for device in ["emulator", "emulator:8.9", "emulator:9.0"] {
            let device: Device = device.parse()?;
            for case in scaled(Level::Default, Target::of(&device), 1) {
                reached.extend(match case.output {
                    DType::F16 => kernels::<f16>(&device, &case)?,
                    DType::Bf16 => kernels::<bf16>(&device, &case)?,
                    _ => kernels::<f32>(&device, &case)?,
                });
            }
        }
        let mut expected = shipped(&["linear_fp8", "linear_fp8_ada", "linear_fp8_hopper"]);
        // Of those that add parts, the ones with a bias of y's type.
        expected.extend(["linear_sums_bf16_bf16", "linear_sums_f16_f16", "linear_sums_f32_f32"]);
        assert_eq!(reached, expected);
        Ok(())
    }

    /// As a GPU is, so is the CPU's implementation compared with the emulator: both are exact where the cases are.
    #[test]
    fn scaled_cases_that_are_compared_have_the_same_bits_on_two_devices() -> warpsmith::Result<()> {
        let (cpu, emulator): (Device, Device) = (Device::cpu(), "emulator:9.0".parse()?);
        let cases = compared_scaled(Target::of(&emulator), 1);
        for across in [[true, false], [false, true], [true, true]] {
            assert!(cases.iter().any(|case| case.across == across));
        }
        assert!(cases.iter().any(|case| case.terms.in_place && case.terms.mask && case.tile.is_some()));
        // A prime, so that every type, layout and term has its turn.
        for case in cases.iter().step_by(7) {
            let bits = validate::linear_scaled_bits(&emulator, case)?;
            let same = bits == validate::linear_scaled_bits(&cpu, case)?;
            assert!(
                same && bits.len() >= case.m * case.n,
                "{} {} {}",
                case.types(),
                case.shape(),
                case.options()
            );
        }
        Ok(())
    }

    #[test]
    fn each_level_holds_the_cases_of_the_one_before() {
        let count = |level, on_gpu| linear(level, Target { on_gpu, ..AMPERE }, 1).len();
        assert!(count(Level::Quick, false) < count(Level::Default, false));
        assert!(count(Level::Default, false) < count(Level::Full, false));
        assert!(count(Level::Full, false) < count(Level::Full, true));
    }

    #[test]
    fn no_two_cases_of_a_run_draw_the_same_numbers() {
        let cases = linear(Level::Full, Target { on_gpu: true, compute_capability: (9, 0) }, 3);
        let mut seeds: Vec<_> = cases.iter().map(|case| case.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), cases.len());
    }
}
