//! The cases of norms of rows: widths of every kernel, of several rounds, and of none; every option; what cancels.

use warpsmith::DType;
use warpsmith_lab::cases::{Data, NormCase, Placement};

use super::{Level, Target};

/// The types of rows.
const TYPES: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// Rows and columns: nothing, single elements, a part of a warp, some warps, a block, a cluster, more than one round, odd ones.
const QUICK_SIZES: [[usize; 2]; 17] = [
    [0, 7],
    [5, 0],
    [1, 1],
    [7, 1],
    [33, 8],
    [70, 24],
    [5, 31],
    [9, 128],
    [3, 129],
    [17, 768],
    [4, 1000],
    [2, 4096],
    [3, 5003],
    [2, 16_384],
    [1, 70_000],
    [600, 40],
    // So many that each cluster of a gradient has three: the places where its blocks meet are used again.
    [270, 4104],
];
const MORE_SIZES: [[usize; 2]; 6] =
    [[300, 768], [129, 1024], [2, 100_003], [1, 262_152], [5000, 3], [11, 8200]];
/// What is validated on a GPU: the last ones have more than 2³¹ elements.
const LARGE_SIZES: [[usize; 2]; 5] =
    [[8192, 4096], [131_072, 128], [64, 1 << 20], [65_536, 1000], [1_048_641, 2056]];

/// The cases of norms.
pub(in super::super) fn norms(level: Level, target: Target, seed: u64) -> Vec<NormCase> {
    let mut sizes = QUICK_SIZES.to_vec();
    if level >= Level::Default {
        sizes.extend(MORE_SIZES);
    }
    let mut cases = Vec::new();
    for dtype in TYPES {
        let half = if dtype == DType::F32 { DType::Bf16 } else { dtype };
        for &[rows, columns] in &sizes {
            let plain = NormCase::new(dtype, rows, columns);
            let weighted = NormCase { weight: Some(dtype), bias: Some(DType::F32), ..plain };
            cases.push(weighted);
            cases.push(NormCase { is_centered: false, bias: None, weight_offset: 1.0, ..weighted });
            if columns < 20_000 || target.on_gpu {
                cases.push(NormCase { residual: true, output: half, ..weighted });
            }
        }
        let of_options = NormCase { weight: Some(dtype), ..NormCase::new(dtype, 19, 328) };
        let options = [
            NormCase { weight: None, ..of_options },
            NormCase { weight: None, bias: Some(half), ..of_options },
            NormCase { bias: Some(dtype), output: DType::F32, ..of_options },
            NormCase { weight: Some(DType::F32), output: DType::F16, ..of_options },
            NormCase { weight: Some(DType::Bf16), output: DType::Bf16, is_centered: false, ..of_options },
            NormCase { mean: 100.0, ..of_options },
            NormCase { mean: 1e4, ..of_options },
            NormCase { mean: 1e6, dtype: DType::F32, ..of_options },
            NormCase { residual: true, is_centered: false, ..of_options },
            NormCase { residual: true, output: DType::F32, ..of_options },
        ];
        for case in options {
            for (before, after) in [(0, 0), (8, 8), (1, 0), (0, 3), (4, 4)] {
                cases.push(NormCase { placement: Placement { before, after }, ..case });
            }
        }
        for [rows, columns] in [[9, 64], [40, 8], [3, 1022], [2, 4096], [2, 6002]] {
            let exact = NormCase { data: Data::Integers, ..NormCase::new(dtype, rows, columns) };
            let exact = NormCase { weight: Some(dtype), bias: Some(dtype), ..exact };
            cases.extend([exact, NormCase { is_centered: false, output: DType::F32, ..exact }]);
        }
        if level == Level::Full && target.on_gpu {
            for [rows, columns] in LARGE_SIZES {
                let large = NormCase { weight: Some(dtype), ..NormCase::new(dtype, rows, columns) };
                // What the host holds of more is too much.
                if rows * columns <= 1 << 27 {
                    cases.extend([large, NormCase { is_centered: false, ..large }]);
                }
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

#[cfg(test)]
mod tests {
    use super::{Level, Target, norms};

    #[test]
    fn every_level_has_more_cases_and_old_gpus_none() {
        let target = Target { on_gpu: true, compute_capability: (9, 0) };
        let counts = [Level::Quick, Level::Default, Level::Full].map(|level| norms(level, target, 1).len());
        assert!(counts[0] > 200 && counts[0] < counts[1] && counts[1] < counts[2], "{counts:?}");
        assert!(norms(Level::Full, Target { compute_capability: (7, 5), ..target }, 1).is_empty());
    }
}
