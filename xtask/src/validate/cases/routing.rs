//! The cases of selections and of product-key retrieval.

use warpsmith::DType;
use warpsmith::ops::peer::{Gate, RetrievalBlocks};
use warpsmith_lab::cases::{Data, NormKind, RoutingCase, TopkCase};

use super::{Level, Target};

const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Rows, columns, k.
const QUICK_SELECTIONS: [[usize; 3]; 6] =
    [[0, 5, 1], [1, 1, 1], [3, 31, 31], [17, 257, 16], [5, 1000, 64], [2, 20_000, 33]];
const MORE_SELECTIONS: [[usize; 3]; 4] = [[100, 33, 33], [64, 1024, 16], [3, 50_257, 50], [1, 100_003, 64]];
/// For a GPU.
const LARGE_SELECTIONS: [[usize; 3]; 2] = [[16_384, 1024, 16], [256, 128_256, 64]];

/// The cases of selections.
pub(in super::super) fn selections(level: Level, target: Target, seed: u64) -> Vec<TopkCase> {
    let mut sizes = QUICK_SELECTIONS.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_SELECTIONS);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend(LARGE_SELECTIONS);
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        for &[rows, columns, k] in &sizes {
            for data in [Data::Uniform, Data::Integers] {
                cases.push(TopkCase { dtype, rows, columns, k, data, seed: 0 });
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

/// Tokens and their columns, sub-keys and half the width of a query, k.
type Size = ([usize; 2], [usize; 2], usize);

const QUICK_RETRIEVALS: [Size; 6] = [
    ([0, 5], [7, 3], 2),
    ([1, 1], [1, 1], 1),
    ([3, 17], [33, 5], 16),
    ([5, 31], [257, 64], 33),
    ([9, 64], [100, 129], 64),
    ([2, 100], [300, 31], 8),
];
const MORE_RETRIEVALS: [Size; 4] = [
    ([33, 48], [256, 128], 16),
    ([4, 96], [513, 300], 32),
    ([17, 256], [64, 8], 64),
    ([1, 1024], [128, 32], 1),
];
/// For a GPU: the reference configuration.
const LARGE_RETRIEVALS: [Size; 2] = [([256, 1024], [1024, 128], 16), ([64, 512], [4096, 128], 64)];

/// For each kind of blocks that could be chosen: several of them, of which the last has few rows, and several chunks of sub-keys.
const FORCED_RETRIEVALS: [Size; 2] = [([45, 40], [356, 40], 16), ([7, 64], [1100, 128], 32)];

/// The blocks that a retrieval may have.
pub(super) fn blocks(dtype: DType, target: Target) -> Vec<RetrievalBlocks> {
    let mut all = vec![RetrievalBlocks::One];
    // From 12.0 on a block may have less shared memory than a cluster's takes.
    if (9..12).contains(&target.compute_capability.0) {
        for rows in if dtype == DType::F32 { vec![32] } else { vec![32, 64] } {
            all.extend([2, 4, 8].map(|blocks| RetrievalBlocks::Cluster { rows, blocks }));
        }
    }
    all
}

/// The cases of product-key retrieval: sizes, options, and a million experts.
pub(in super::super) fn retrievals(level: Level, target: Target, seed: u64) -> Vec<RoutingCase> {
    let mut cases = Vec::new();
    for dtype in TYPES {
        let case =
            |(tokens, keys, k): Size| RoutingCase { heads: 3, ..RoutingCase::new(dtype, tokens, keys, k) };
        let mut sizes = QUICK_RETRIEVALS.to_vec();
        if level >= Level::Default {
            sizes.extend(MORE_RETRIEVALS);
        }
        for size in sizes {
            let integers = RoutingCase {
                data: Data::Integers,
                norm: NormKind::None,
                gate: Gate::Relu,
                per_head: size.2 % 2 == 1,
                ..case(size)
            };
            cases.extend([case(size), integers]);
        }
        cases.extend(options(&case));
        let million = RoutingCase { heads: 8, ..case(([4, 64], [1024, 128], 16)) };
        cases.push(million);
        if level >= Level::Default {
            for blocks in blocks(dtype, target) {
                let case = |size| RoutingCase { blocks: Some(blocks), ..case(size) };
                cases.extend(FORCED_RETRIEVALS.map(case));
                let integers = case(FORCED_RETRIEVALS[0]);
                cases.push(RoutingCase {
                    data: Data::Integers,
                    norm: NormKind::None,
                    gate: Gate::Identity,
                    ..integers
                });
            }
        }
        if level == Level::Full && target.on_gpu {
            cases.extend(LARGE_RETRIEVALS.map(|size| RoutingCase { heads: 8, ..case(size) }));
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

/// The cases of gradients: sizes and options of retrievals, whatever blocks find the experts.
pub(in super::super) fn retrieval_gradients(level: Level, target: Target, seed: u64) -> Vec<RoutingCase> {
    let mut cases = retrievals(level, target, seed);
    cases.retain(|case| case.blocks.is_none());
    cases
}

/// Every norm, every gate, sub-keys of every kind.
fn options(case: &impl Fn(Size) -> RoutingCase) -> Vec<RoutingCase> {
    let sized = case(([6, 40], [70, 24], 12));
    let mut cases: Vec<_> = NormKind::ALL
        .into_iter()
        .flat_map(|norm| {
            let plain = RoutingCase { norm, ..sized.clone() };
            let affine = RoutingCase {
                affine: true,
                bias: true,
                per_head_norm: norm != NormKind::Rms,
                ..plain.clone()
            };
            [plain, affine]
        })
        .collect();
    cases.extend(Gate::ALL.map(|gate| RoutingCase { gate, temperature: 0.3, ..sized.clone() }));
    cases.extend([
        RoutingCase { per_head: true, ..sized.clone() },
        RoutingCase { per_head: true, unaligned: true, bias: true, ..sized.clone() },
        RoutingCase { unaligned: true, ..case(([6, 40], [70, 21], 12)) },
        RoutingCase { duplicates: true, ..sized.clone() },
        RoutingCase { skewed: true, ..sized.clone() },
        RoutingCase { duplicates: true, data: Data::Integers, norm: NormKind::None, ..sized },
    ]);
    cases
}

#[cfg(test)]
mod tests {
    use super::super::{Level, Target};
    use super::{retrievals, selections};

    #[test]
    fn each_level_holds_the_cases_of_the_one_before() {
        let target = Target { on_gpu: true, compute_capability: (9, 0) };
        let counts = |level| (selections(level, target, 1).len(), retrievals(level, target, 1).len());
        let (quick, default, full) = (counts(Level::Quick), counts(Level::Default), counts(Level::Full));
        assert!(quick.0 < default.0 && default.0 < full.0);
        assert!(quick.1 < default.1 && default.1 < full.1);
        let quick = retrievals(Level::Quick, target, 1);
        assert!(quick.iter().any(|case| case.n * case.n >= 1_000_000), "a million experts");
        assert!(quick.iter().any(|case| case.is_exact()));
        let turing = Target { on_gpu: true, compute_capability: (7, 5) };
        assert!(selections(Level::Full, turing, 1).is_empty());
    }
}
