//! The cases of optimisers: sizes around those of a chunk and of a piece; every type, rounding, option and alignment.

use warpsmith::DType;
use warpsmith::optim::Rounding;
use warpsmith_lab::cases::AdamWCase;

use super::{Level, Target};

/// The types of weights and of gradients.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
/// Tensors, and elements of the first.
const QUICK_SIZES: [[usize; 2]; 12] = [
    [3, 0],
    [1, 1],
    [4, 3],
    [1, 127],
    [2, 511],
    [1, 1000],
    [3, 4095],
    [1, 4096],
    [1, 4097],
    [2, 8191],
    [1, 20_011],
    [40, 20],
];
const MORE_SIZES: [[usize; 2]; 3] = [[300, 64], [2, 70_001], [1, 1 << 18]];
/// What is validated on a GPU.
const LARGE_SIZES: [[usize; 2]; 3] = [[1, 50_000_001], [1000, 30_000], [5000, 77]];
/// Elements in memory before weights and gradients.
const PLACES: [[usize; 2]; 5] = [[0, 0], [4, 8], [0, 1], [3, 0], [2, 6]];

/// The cases of AdamW.
pub(in super::super) fn optimizers(level: Level, target: Target, seed: u64) -> Vec<AdamWCase> {
    if target.compute_capability < (8, 0) {
        return Vec::new();
    }
    let mut sizes = QUICK_SIZES.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_SIZES);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend(LARGE_SIZES);
    }
    let mut cases = Vec::new();
    for (of, dtype) in TYPES.into_iter().enumerate() {
        for (number, &[tensors, length]) in sizes.iter().enumerate() {
            let gradient = TYPES[(number + of) % TYPES.len()];
            let plain = AdamWCase { tensors, ..AdamWCase::new(dtype, gradient, length) };
            let before = PLACES[number % PLACES.len()];
            let max_norm = Some([0.5, 30.0][number % 2]);
            let with_options = AdamWCase { before, max_norm, loss_scale: Some(1000.0), ..plain };
            cases.extend([plain, with_options]);
            if dtype != DType::F32 {
                let rounding = Rounding::Stochastic;
                cases.extend([
                    AdamWCase { rounding, ..plain },
                    AdamWCase { rounding, steps: 3, ..with_options },
                ]);
            }
        }
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}
