//! The cases of softmax and of losses of rows: widths of every kernel, of several rounds, and of none; every option; numbers of every size.

use warpsmith::DType;
use warpsmith::cpu::CrossEntropy;
use warpsmith::ops::cross_entropy::Reduction;
use warpsmith_lab::cases::{CrossEntropyCase, MaskRows, Placement, SoftmaxCase};

use super::{Level, Target};

/// The types of rows.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];
/// Rows and columns: nothing, single elements, a part of a warp, some warps, a block, a cluster, more than one round, odd ones.
const QUICK_SIZES: [[usize; 2]; 15] = [
    [0, 7],
    [5, 0],
    [1, 1],
    [7, 1],
    [33, 8],
    [70, 24],
    [5, 31],
    [3, 129],
    [17, 768],
    [4, 1000],
    [2, 4096],
    [3, 5003],
    [2, 16_384],
    [1, 70_000],
    [600, 40],
];
const MORE_SIZES: [[usize; 2]; 7] =
    [[300, 768], [129, 1024], [2, 100_003], [1, 262_152], [5000, 3], [11, 8200], [2, 129_920]];
/// What is validated on a GPU.
const LARGE_SIZES: [[usize; 2]; 4] = [[8192, 4096], [131_072, 128], [64, 1 << 20], [2048, 129_920]];

/// The place of rows: on their own, aligned and not.
const PLACEMENTS: [Placement; 4] = [
    Placement { before: 0, after: 0 },
    Placement { before: 8, after: 8 },
    Placement { before: 1, after: 0 },
    Placement { before: 4, after: 7 },
];

fn sizes(level: Level, target: Target) -> Vec<[usize; 2]> {
    let mut sizes = QUICK_SIZES.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_SIZES);
    }
    if level == Level::Full && target.on_gpu {
        sizes.extend(LARGE_SIZES);
    }
    sizes
}

/// The type of a result that is another one.
fn other(dtype: DType, number: usize) -> DType {
    let first = TYPES.iter().position(|one| *one == dtype).unwrap_or(0);
    TYPES[(first + 1 + number % 2) % TYPES.len()]
}

fn seed(seed: u64, number: usize) -> u64 {
    seed.wrapping_mul(1 << 20).wrapping_add(number as u64)
}

/// The cases of softmax.
pub(in super::super) fn softmaxes(level: Level, target: Target, of_all: u64) -> Vec<SoftmaxCase> {
    if target.compute_capability < (8, 0) {
        return Vec::new();
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        for (number, [rows, columns]) in sizes(level, target).into_iter().enumerate() {
            let plain = SoftmaxCase::new(dtype, rows, columns);
            let mask = [MaskRows::All, MaskRows::One][number % 2];
            cases.push(plain);
            if columns < 20_000 || target.on_gpu {
                cases.push(SoftmaxCase { mask, scale: 0.125, output: other(dtype, number), ..plain });
            }
        }
        let of_options = SoftmaxCase::new(dtype, 19, 328);
        let options = [
            SoftmaxCase { range: 0.0, ..of_options },
            SoftmaxCase { range: 1000.0, scale: 60.0, in_place: true, ..of_options },
            SoftmaxCase { mask: MaskRows::All, infinities: true, ..of_options },
            SoftmaxCase { mask: MaskRows::One, in_place: true, scale: 1.7, ..of_options },
        ];
        for (case, placement) in
            options.into_iter().flat_map(|case| PLACEMENTS.map(|placement| (case, placement)))
        {
            // The operands or the mask alone are not aligned, too.
            for placements in [[placement; 3], [Placement::default(), placement, Placement::default()]] {
                if level >= Level::Default || placements[0] == placement {
                    cases.push(SoftmaxCase { placements, ..case });
                }
            }
        }
    }
    cases.iter_mut().enumerate().for_each(|(number, case)| case.seed = seed(of_all, number));
    cases
}

/// The cases of losses.
pub(in super::super) fn losses(level: Level, target: Target, of_all: u64) -> Vec<CrossEntropyCase> {
    if target.compute_capability < (8, 0) {
        return Vec::new();
    }
    const EVERY: CrossEntropy = CrossEntropy { smoothing: 0.1, z_loss: 1e-4, soft_cap: Some(30.0) };
    let reductions = [Reduction::Mean, Reduction::Sum, Reduction::None];
    let labels = [DType::I64, DType::I32, DType::U32];
    let mut cases = Vec::new();
    for dtype in TYPES {
        for (number, [rows, columns]) in sizes(level, target).into_iter().enumerate() {
            let plain = CrossEntropyCase {
                reduction: reductions[number % 3],
                labels: labels[number / 3 % 3],
                ..CrossEntropyCase::new(dtype, rows, columns)
            };
            cases.push(plain);
            if columns < 20_000 || target.on_gpu {
                let output = other(dtype, number);
                cases.push(CrossEntropyCase { options: EVERY, output, ignored: 0, ..plain });
            }
        }
        let of_options = CrossEntropyCase::new(dtype, 19, 328);
        let smoothed = CrossEntropy { smoothing: 1.0, ..CrossEntropy::default() };
        let capped = CrossEntropy { soft_cap: Some(1.5), ..CrossEntropy::default() };
        let options = [
            CrossEntropyCase { range: 1000.0, gradient_scale: -0.375, in_place: true, ..of_options },
            CrossEntropyCase { outside: true, options: smoothed, labels: DType::I32, ..of_options },
            CrossEntropyCase { reduction: Reduction::None, outside: true, options: capped, ..of_options },
            CrossEntropyCase { reduction: Reduction::Sum, options: EVERY, range: 0.0, ..of_options },
        ];
        for case in options {
            cases.extend(PLACEMENTS.map(|placement| CrossEntropyCase { placements: [placement; 2], ..case }));
        }
        // So many rows that labels are counted, and losses added up, in parts.
        cases.push(CrossEntropyCase { labels: DType::U32, ..CrossEntropyCase::new(dtype, 5000, 3) });
    }
    cases.iter_mut().enumerate().for_each(|(number, case)| case.seed = seed(of_all, number));
    cases
}

#[cfg(test)]
mod tests {
    use super::{Level, Target, losses, softmaxes};

    #[test]
    fn every_level_has_more_cases_and_old_gpus_none() {
        let target = Target { on_gpu: true, compute_capability: (9, 0) };
        let of = |level| [softmaxes(level, target, 1).len(), losses(level, target, 1).len()];
        let counts = [Level::Quick, Level::Default, Level::Full].map(of);
        for which in 0..2 {
            let counts = counts.map(|count| count[which]);
            assert!(counts[0] > 90 && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
        }
        let old = Target { compute_capability: (7, 5), ..target };
        assert!(softmaxes(Level::Full, old, 1).is_empty() && losses(Level::Full, old, 1).is_empty());
    }
}
