//! The cases of optimisers: sizes around those of a chunk and of a piece; every type, rounding, option and alignment; and gradients of rows and of experts.

use warpsmith::DType;
use warpsmith::optim::{Rounding, SecondMoment};
use warpsmith_lab::cases::{AdamWCase, AdamWRows};

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
const LARGE_SIZES: [[usize; 2]; 3] = [[1, 2_000_001], [1000, 1000], [5000, 77]];
/// Elements in memory before weights and gradients.
const PLACES: [[usize; 2]; 5] = [[0, 0], [4, 8], [0, 1], [3, 0], [2, 6]];

/// Rows of the first tensor, and what of them gradients have.
const QUICK_ROWS: [(usize, AdamWRows); 10] = [
    (0, AdamWRows::Some { columns: 8, used: 5 }),
    (1, AdamWRows::Some { columns: 1, used: 1 }),
    (9, AdamWRows::Some { columns: 64, used: 9 }),
    (40, AdamWRows::Some { columns: 127, used: 7 }),
    (100, AdamWRows::Some { columns: 260, used: 33 }),
    (1000, AdamWRows::Some { columns: 4, used: 250 }),
    (5, AdamWRows::Some { columns: 5003, used: 2 }),
    (33, AdamWRows::Experts { inputs: 24, hidden: 1, gated: false, used: 20 }),
    (20, AdamWRows::Experts { inputs: 37, hidden: 3, gated: true, used: 4 }),
    (7, AdamWRows::Experts { inputs: 130, hidden: 2, gated: false, used: 7 }),
];
/// What is validated on a GPU.
const LARGE_ROWS: [(usize, AdamWRows); 3] = [
    (10_000, AdamWRows::Some { columns: 96, used: 3001 }),
    (50_257, AdamWRows::Some { columns: 13, used: 50_257 }),
    (30_000, AdamWRows::Experts { inputs: 16, hidden: 1, gated: false, used: 20_000 }),
];

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
    let mut all_rows = QUICK_ROWS.to_vec();
    if level == Level::Full && target.on_gpu {
        all_rows.extend(LARGE_ROWS);
    }
    for (of, dtype) in TYPES.into_iter().enumerate() {
        for (number, &(length, rows)) in all_rows.iter().enumerate() {
            let gradient = TYPES[(number + of) % TYPES.len()];
            let plain = AdamWCase { rows, ..AdamWCase::new(dtype, gradient, length) };
            let before = PLACES[(number + of) % PLACES.len()];
            let (max_norm, loss_scale) = (Some([0.5, 30.0][number % 2]), Some(1000.0));
            let second_moment = SecondMoment::PerRow;
            let by_row = AdamWCase { second_moment, tensors: 2, before, max_norm, loss_scale, ..plain };
            let rounding = if number % 2 == 0 { Rounding::Stochastic } else { Rounding::Master };
            cases.extend([plain, by_row, AdamWCase { before, rounding, steps: 3, ..plain }]);
        }
    }
    let second_moment = SecondMoment::PerRow;
    cases.extend([3, 5000].map(|length| AdamWCase {
        second_moment,
        tensors: 2,
        ..AdamWCase::new(DType::F32, DType::F32, length)
    }));
    for (number, case) in cases.iter_mut().enumerate() {
        case.seed = seed.wrapping_mul(1 << 20).wrapping_add(number as u64);
    }
    cases
}
