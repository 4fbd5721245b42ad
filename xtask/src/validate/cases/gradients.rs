//! The cases of gradients of linear layers, of scaled ones, of matrix products and of generated updates: sizes around those of a chunk, a strip and a block; every type, option and layout.

use warpsmith::DType;
use warpsmith::ops::{Activation, Precision};
use warpsmith_lab::cases::{
    CodesPer, Data, LinearBackwardCase, LinearCase, MatmulBackwardCase, MatmulCase, Placement, ScaleKind,
    ScaledBackwardCase, ScaledCase, Scales, SlopesFrom, UpdateBackwardCase, UpdateCase,
};

use super::{Level, Target};

/// Types of operands, of the layer's output, and of the gradients of weights.
const TYPES: [[DType; 3]; 7] = [
    [DType::F16, DType::F16, DType::F32],
    [DType::F16, DType::F16, DType::F16],
    [DType::F16, DType::F32, DType::F32],
    [DType::Bf16, DType::Bf16, DType::F32],
    [DType::Bf16, DType::Bf16, DType::Bf16],
    [DType::Bf16, DType::F32, DType::F32],
    [DType::F32, DType::F32, DType::F32],
];
/// Where rows are in larger ones.
const PLACEMENTS: [[usize; 2]; 4] = [[8, 8], [1, 0], [0, 3], [4, 4]];
/// What slopes are taken of, and where they are known from.
const SLOPES: [(Activation, SlopesFrom); 7] = [
    (Activation::None, SlopesFrom::Preactivation),
    (Activation::Relu, SlopesFrom::Mask),
    (Activation::Relu, SlopesFrom::Output),
    (Activation::Relu, SlopesFrom::Preactivation),
    (Activation::GeluErf, SlopesFrom::Preactivation),
    (Activation::GeluTanh, SlopesFrom::Preactivation),
    (Activation::Silu, SlopesFrom::Preactivation),
];

/// M, K, N: nothing, one, a part of a strip, several strips, one of more than one round, columns of several blocks, odd ones.
const QUICK_SIZES: [[usize; 3]; 12] = [
    [0, 5, 7],
    [5, 0, 7],
    [5, 7, 0],
    [1, 1, 1],
    [7, 9, 31],
    [33, 16, 8],
    [70, 24, 264],
    [130, 8, 129],
    [64, 40, 256],
    [65, 8, 256],
    [9, 72, 520],
    [300, 8, 24],
];
const MORE_SIZES: [[usize; 3]; 5] =
    [[200, 136, 264], [1030, 8, 40], [77, 64, 1000], [4, 100, 2049], [129, 128, 128]];
const LARGE_SIZES: [[usize; 3]; 4] =
    [[1024, 784, 2048], [8192, 4096, 4096], [16_384, 768, 3072], [32_768, 100, 4001]];

/// The cases of gradients of linear layers.
pub(in super::super) fn of_linear(level: Level, target: Target, seed: u64) -> Vec<LinearBackwardCase> {
    let mut sizes = QUICK_SIZES.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_SIZES);
    }
    let mut cases = Vec::new();
    for (at, [input, output, gradient]) in TYPES.into_iter().enumerate() {
        let typed = |(activation, slopes): (Activation, SlopesFrom), size| LinearBackwardCase {
            output,
            gradient,
            slopes,
            ..LinearBackwardCase::new(input, activation, size)
        };
        for (number, &size) in sizes.iter().enumerate() {
            let plain = typed(SLOPES[(number + at) % SLOPES.len()], size);
            let other = typed(SLOPES[(number + at + 3) % SLOPES.len()], size);
            let [before, after] = PLACEMENTS[number % PLACEMENTS.len()];
            cases.push(LinearBackwardCase { dz: number % 2 == 0, ..plain });
            cases.push(LinearBackwardCase {
                adds: true,
                alpha: 0.5,
                beta: -1.25,
                placement: Placement { before, after },
                scales: [Scales::Each, [Scales::None, Scales::One, Scales::Each][number % 3]],
                ..other
            });
        }
        for (number, slopes) in SLOPES.into_iter().enumerate() {
            let case = typed(slopes, [37, 24, 264]);
            cases.push(LinearBackwardCase { scales: [Scales::One, Scales::Each], ..case.clone() });
            if level >= Level::Default {
                cases.extend(PLACEMENTS.map(|[before, after]| LinearBackwardCase {
                    placement: Placement { before, after },
                    dz: true,
                    ..case.clone()
                }));
            }
            if matches!(slopes.0, Activation::None | Activation::Relu) {
                let exact = LinearBackwardCase { data: Data::Integers, adds: number % 2 == 0, ..case };
                cases.push(LinearBackwardCase { beta: 2.0, dz: true, ..exact.clone() });
                cases.push(LinearBackwardCase { m: 150, scales: [Scales::Each; 2], ..exact });
            }
        }
        if input == DType::F32 {
            let case = typed(SLOPES[6], [70, 40, 264]);
            cases.push(LinearBackwardCase { precision: Precision::Tf32, ..case });
        }
        if level == Level::Full && target.on_gpu {
            for (number, size) in LARGE_SIZES.into_iter().enumerate() {
                cases.push(typed(SLOPES[(number + 2 * at) % SLOPES.len()], size));
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// The cases of gradients of matrix products.
pub(in super::super) fn of_matmul(level: Level, target: Target, seed: u64) -> Vec<MatmulBackwardCase> {
    let mut sizes = vec![[0, 5, 7], [5, 0, 7], [5, 7, 0], [1, 1, 1], [7, 9, 31], [33, 16, 24], [40, 72, 64]];
    if level >= Level::Default {
        sizes.extend([[70, 33, 129], [128, 64, 72], [3, 200, 40]]);
    }
    let batches = [[1, 1], [3, 3], [3, 1], [1, 4]];
    let mut cases = Vec::new();
    let types = TYPES.into_iter().filter(|[input, output, _]| input == output);
    let types: Vec<_> = types.map(|[input, _, gradient]| [input, gradient]).collect();
    for (at, &[input, output]) in types.iter().enumerate() {
        for (number, &[m, k, n]) in sizes.iter().enumerate() {
            for (which, batch) in batches.into_iter().enumerate() {
                let layout = number + which + at;
                let [before, after] = PLACEMENTS[layout % PLACEMENTS.len()];
                let beside = Placement { before, after };
                let apart = if number % 2 == 0 { Placement::default() } else { beside };
                let product = LinearCase {
                    output,
                    bias: false,
                    activation: Activation::None,
                    scale: if which == 2 { -0.75 } else { 1.0 },
                    x: apart,
                    w: apart,
                    y: apart,
                    ..LinearCase::new(input, m, k, n)
                };
                let across = [layout % 2 == 1, layout / 2 % 2 == 1];
                let case = MatmulBackwardCase {
                    product: MatmulCase { batch, across, ..MatmulCase::new(product) },
                    adds: layout % 3 == 0,
                };
                if number == 5 {
                    let mut exact = case.clone();
                    exact.product.product.data = Data::Integers;
                    exact.product.product.scale = 2.0;
                    cases.push(exact);
                }
                cases.push(case);
            }
        }
        if level == Level::Full && target.on_gpu {
            for (batch, [m, k, n]) in [([16, 1], [1024, 768, 1000]), ([1, 8], [512, 1024, 777])] {
                let product = LinearCase {
                    output,
                    bias: false,
                    activation: Activation::None,
                    ..LinearCase::new(input, m, k, n)
                };
                let product = MatmulCase { batch, ..MatmulCase::new(product) };
                cases.push(MatmulBackwardCase { product, adds: false });
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.product.product.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// M, K, N, the ranks, and rows of a sequence: nothing, single elements, groups of one strip and of several, any number of teams, ranks of every number of threads.
const UPDATES: [([usize; 3], &[usize], usize); 12] = [
    ([0, 5, 7], &[2], 0),
    ([5, 0, 7], &[2], 0),
    ([5, 7, 0], &[3], 0),
    ([1, 1, 1], &[1], 0),
    ([18, 31, 13], &[3], 6),
    ([64, 64, 64], &[8], 16),
    ([65, 136, 72], &[16, 4], 5),
    ([70, 24, 104], &[8], 2),
    ([129, 104, 264], &[33, 5, 2], 3),
    ([300, 16, 24], &[8, 9], 150),
    ([700, 8, 9], &[1, 40], 350),
    ([34, 40, 33], &[128], 17),
];
const MORE_UPDATES: [([usize; 3], &[usize], usize); 4] = [
    ([1200, 8, 16], &[8, 2, 60], 600),
    ([200, 256, 520], &[48, 8], 100),
    ([96, 768, 768], &[8], 3),
    ([4100, 5, 8], &[2], 1025),
];
const LARGE_UPDATES: [([usize; 3], &[usize], usize); 4] = [
    ([4096, 768, 768], &[8], 512),
    ([5120, 2048, 3072], &[8, 8], 1024),
    ([16_384, 768, 768], &[16], 16_384),
    ([8192, 4096, 4096], &[64], 2048),
];

/// The cases of gradients of generated updates, alone and onto linear operations.
pub(in super::super) fn of_updates(level: Level, target: Target, seed: u64) -> Vec<UpdateBackwardCase> {
    let mut sizes = UPDATES.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_UPDATES);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend(LARGE_UPDATES);
    }
    let kinds = [CodesPer::Token, CodesPer::Sequence, CodesPer::Operation, CodesPer::Mixed];
    let mut cases = Vec::new();
    for (at, dtype) in [DType::F16, DType::Bf16, DType::F32].into_iter().enumerate() {
        for (number, &([m, k, n], ranks, sequence)) in sizes.iter().enumerate() {
            for (which, codes) in kinds.into_iter().enumerate() {
                // All kinds for sizes that are groups of more than one form, one of each for others.
                if !(5..16).contains(&number) && which != (number + at) % 4 {
                    continue;
                }
                let layout = number + which + at;
                let (activation, slopes) = SLOPES[layout % SLOPES.len()];
                let [before, after] = PLACEMENTS[layout % PLACEMENTS.len()];
                let beside = if layout % 3 == 0 { Placement { before, after } } else { Placement::default() };
                let update = UpdateCase {
                    ranks: ranks.to_vec(),
                    codes,
                    sequence,
                    scaling: [1.0, 0.75, -2.0][layout % 3],
                    v_across: layout % 4 == 1,
                    activation,
                    bias: false,
                    beta: [1.0, -1.25][layout % 2],
                    x: beside,
                    w: beside,
                    factors: beside,
                    y: beside,
                    ..UpdateCase::new(dtype, m, k, n, 1)
                };
                let type_of = |bit: usize| if layout >> bit & 1 == 0 { dtype } else { DType::F32 };
                let (gradient, of_codes) = (type_of(1), type_of(0));
                let case = UpdateBackwardCase {
                    gradient,
                    of_codes,
                    slopes,
                    adds: layout % 2 == 0,
                    ..UpdateBackwardCase::new(update)
                };
                let alone = UpdateBackwardCase {
                    update: case.update.clone().alone(false),
                    slopes: SlopesFrom::Preactivation,
                    adds: !case.adds,
                    ..case.clone()
                };
                if number < UPDATES.len() {
                    let mut exact = alone.clone();
                    exact.update = UpdateCase { data: Data::Integers, scaling: 2.0, ..exact.update };
                    cases.push(exact);
                }
                cases.extend([case, alone]);
            }
        }
        // Exact with a linear operation, whose gradient f32 does not round in between.
        let update = UpdateCase {
            ranks: vec![4, 3],
            codes: CodesPer::Mixed,
            sequence: 7,
            beta: 2.0,
            bias: false,
            data: Data::Integers,
            ..UpdateCase::new(dtype, 70, 24, 264, 1)
        };
        let relu = UpdateCase { activation: Activation::Relu, ..update.clone() };
        cases.push(UpdateBackwardCase::new(update));
        cases.push(UpdateBackwardCase {
            slopes: SlopesFrom::Mask,
            adds: true,
            ..UpdateBackwardCase::new(relu)
        });
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.update.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

/// The cases of gradients of scaled linear layers.
pub(in super::super) fn of_scaled(level: Level, target: Target, seed: u64) -> Vec<ScaledBackwardCase> {
    let mut sizes = vec![
        [0, 5, 7],
        [5, 0, 7],
        [5, 7, 0],
        [1, 1, 1],
        [17, 31, 13],
        [64, 48, 80],
        [130, 40, 72],
        [33, 16, 264],
    ];
    if level >= Level::Default {
        sizes.extend([[200, 136, 264], [256, 128, 128], [300, 64, 33]]);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend([[1024, 784, 2048], [8192, 4096, 4096], [4096, 1000, 777]]);
    }
    let gradients = [DType::F8E5M2, DType::F8E4M3, DType::Bf16, DType::F16, DType::F32];
    let mut cases = Vec::new();
    for (at, dy_type) in gradients.into_iter().enumerate() {
        for (number, &[m, k, n]) in sizes.iter().enumerate() {
            for which in 0..3 {
                let layout = 3 * number + which + at;
                let [before, after] = PLACEMENTS[layout % PLACEMENTS.len()];
                let beside = if layout % 3 == 0 { Placement { before, after } } else { Placement::default() };
                // One number each, and rows along the sums of one gradient, of both, and of none.
                let [x_scale, w_scale, dy_scale] = [
                    [ScaleKind::Tensor, ScaleKind::Device, ScaleKind::Tensor],
                    [ScaleKind::Rows, ScaleKind::Tensor, ScaleKind::Device],
                    [ScaleKind::One, ScaleKind::Rows, ScaleKind::Rows],
                    [ScaleKind::Device, ScaleKind::One, ScaleKind::Rows],
                    [ScaleKind::Rows, ScaleKind::Rows, ScaleKind::Rows],
                    [ScaleKind::One, ScaleKind::One, ScaleKind::One],
                ][layout % 6];
                let case = ScaledBackwardCase::new(m, k, n);
                let product = ScaledCase {
                    x_type: [DType::F8E4M3, DType::F8E5M2][number % 2],
                    output: [DType::Bf16, DType::F32][layout % 2],
                    x_scale,
                    w_scale,
                    alpha: [1.0, 0.5][which % 2],
                    x: beside,
                    w: beside,
                    y: beside,
                    across: [layout % 4 == 1, layout % 5 == 2],
                    data: if which == 2 { Data::Integers } else { Data::Uniform },
                    ..case.product.clone()
                };
                cases.push(ScaledBackwardCase { product, dy_type, dy_scale, adds: layout % 2 == 1 });
            }
        }
    }
    if target.compute_capability < (8, 0) {
        cases.clear();
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.product.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::{Level, Target, of_linear, of_matmul, of_scaled, of_updates};

    #[test]
    fn every_level_has_more_cases_and_old_gpus_none() {
        let target = Target { on_gpu: true, compute_capability: (9, 0) };
        let count = |level, target| {
            let products = [of_linear(level, target, 1).len(), of_matmul(level, target, 1).len()];
            [products[0], products[1], of_updates(level, target, 1).len(), of_scaled(level, target, 1).len()]
        };
        let counts = [Level::Quick, Level::Default, Level::Full].map(|level| count(level, target));
        for op in 0..4 {
            let of_op = counts.map(|counts| counts[op]);
            assert!(of_op[0] > 100 && of_op[0] < of_op[1] && of_op[1] < of_op[2], "{counts:?}");
        }
        assert_eq!(count(Level::Full, Target { compute_capability: (7, 5), ..target }), [0; 4]);
    }
}
